"""However an upstream's bytes are cut, the caller gets the same: bytes, head, outcome."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.routing.exchange_kit import (
    CHUNKS,
    PLACES,
    bytewise,
    chat_exchange,
    chunked,
    cut,
    feed,
    http,
)

pytestmark = pytest.mark.requirement("contract 2", "cases 22")

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=5)

BLOCKS = st.one_of(
    st.sampled_from([b"data: " + chunk for chunk in CHUNKS]),
    OBJECTS.map(lambda value: b"data: " + json.dumps(value, ensure_ascii=False).encode()),
    st.sampled_from(
        [
            b": ping",
            b"event: x\nid: 1\ndata: {}",
            b'data:{"a":\ndata: 1}',
            b"data: [DONE]",
            b"retry: 5",
            b"",
            b"data: {",
            b'data: {"a":"\xff"}',
            b'data: {"error":{"message":"m","code":429}}',
            'data: {"a":"你🙂"}'.encode(),
        ]
    ),
)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Streams good and bad, in every framing, plain or coded, with something after the end or cut short."""
    newline = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    body = b"".join(block + b"\n\n" for block in draw(st.lists(BLOCKS, max_size=6)))
    body = body.removesuffix(draw(st.sampled_from([b"", b"\n", b"\n\n"]))).replace(b"\n", newline)
    headers = []
    if draw(st.integers(0, 5)) == 0:
        body = gzip.compress(body)
        headers.append("Content-Encoding: gzip")
    framing = draw(st.sampled_from(["length", "chunked", "eof"]))
    if framing == "chunked" and draw(st.booleans()):
        # Chunks that know nothing of events.
        headers.append("Transfer-Encoding: chunked")
        body = chunked(*cut(body, draw(PLACES)), trailer=b"X: y\r\n")
        framing = "eof"
    response = http(
        body,
        status=draw(st.sampled_from([200] * 8 + [400, 429, 500])),
        content_type=draw(st.sampled_from(["text/event-stream"] * 6 + ["application/json", "text/plain"])),
        framing=framing,
        headers=headers,
    )
    if draw(st.integers(0, 3)) == 0:
        response = response[: draw(st.integers(0, len(response)))]
    return response + draw(st.sampled_from([b"", b"", b"HTTP/1.1 200 OK"]))


@given(response=responses() | st.binary(max_size=100), stream=st.booleans(), places=PLACES)
def test_no_cut_makes_a_difference_to_the_caller(response, stream, places):
    limits = {"max_event": 200, "max_body": 5000}
    one_read = feed(chat_exchange(stream=stream, **limits), [response], eof=True)
    in_pieces = feed(chat_exchange(stream=stream, **limits), cut(response, places), eof=True)
    in_bytes = feed(chat_exchange(stream=stream, **limits), bytewise(response), eof=True)

    assert in_pieces.seen == one_read.seen
    assert in_bytes.seen == one_read.seen
    assert one_read.exchange.over


@given(response=responses(), stream=st.booleans())
def test_a_caller_gets_either_a_proper_end_or_one_error(response, stream):
    run = feed(chat_exchange(stream=stream), [response], eof=True)

    if run.outcome.outcome == "served":
        assert not run.exchange.close_client
        assert run.body.endswith(b"data: [DONE]\n\n") if stream else run.body.startswith(b"{")
    else:
        assert b"[DONE]" not in run.body
        last = run.body.removesuffix(b"\n\n").rpartition(b"\n\n")[2].removeprefix(b"data: ")
        assert set(json.loads(last)["error"]) == {"message", "type", "param", "code"}
        assert run.exchange.close_client == (run.head is not None and run.head.streaming)
