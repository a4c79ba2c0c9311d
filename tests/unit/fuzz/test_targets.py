# ruff: noqa: E501  # tables of literal pieces
"""Every target over its corpus, over corpora that were damaged, and over bytes that never were anything."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.fuzz.targets import TARGETS, corpus, incoming, order, wires

pytestmark = pytest.mark.requirement("contract 1", "contract 2", "cases 28")

EXAMPLES = 150

HOSTILE = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b'"', b"{", b"}", b"[",
    b"]", b"=", b"NaN", b"Infinity", b"1e999", b"-1", b"9" * 40, b"9" * 5000, b"null", b"true", b'""', b"[[", b"]]",
    b"{" * 600, b"[" * 6000, b"'''", b'"""', b"\\u0000", b"data:", b"0\r\n", b"ffffffff\r\n", b"#", b",",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b" ", b"\t", b"\xc3\xa9", b"%00", b"A" * 5000,
)  # fmt: skip
"""Pieces that parsers are known to stumble over."""


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """A document of the corpus with pieces cut out, doubled, or put in."""
    data = draw(st.sampled_from(corpus(name)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.sampled_from((0, 0, 1, 2, 8, 50))))
        piece = draw(st.sampled_from(HOSTILE) | st.binary(max_size=4) | st.just(data[at:to] * 2))
        data = data[:at] + piece + data[to:]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    documents = corpus(name)
    assert documents
    for data in documents:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_damaged_documents(name: str, data: st.DataObject) -> None:
    TARGETS[name](data.draw(damaged(name)))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=50)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x00" * 100)
@example(b"\xef\xbb\xbf")
def test_bytes_that_are_nothing(name: str, data: bytes) -> None:
    TARGETS[name](data)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["user", "text", "function", "tool", "a", "\ud800", "\x00"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "id",
                    "name",
                    "function",
                    "arguments",
                    "input",
                    "source",
                    "\ud83d",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["model", "messages", "input", "stream", "max_tokens", "tools", "tool_choice", "system", "stop", "n", "documents",
     "query", "instructions", "max_output_tokens", "stream_options", "response_format", "temperature"]
)  # fmt: skip


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(FIELDS, VALUES, max_size=6), st.booleans())
def test_json_of_every_kind_in_every_field(body: dict[str, object], keep_model: bool) -> None:
    """NaN, infinities, huge integers and lone surrogates among it, as Python writes them."""
    if keep_model:
        body = {**body, "model": "a"}
    wires(json.dumps(body).encode())


@pytest.mark.parametrize("depth", [100, 1_000, 100_000])
@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_nesting_without_end(depth: int, opening: str) -> None:
    data = (opening * depth).encode()
    wires(b'{"model":"a","messages":' + data)
    order(data)
    wires(b'{"model":"a","x":' + data + b"1" + (b"}" if opening != "[" else b"]") * depth + b"}")


@pytest.mark.parametrize(
    "line",
    [
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "Transfer-Encoding: chunked\r\n folded: yes",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: 5, 5",
        "Content-Length: 5 5",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "X: a\nContent-Length: 5",
        "X: a\rContent-Length: 5",
        "X: a\x00b",
        "X y: a",
        ": a",
        "Host: b",
        "Authorization: Bearer a\r\nAuthorization: Bearer b",
    ],
)
def test_heads_that_two_readers_could_read_in_two_ways_are_refused(line: str) -> None:
    from anvil_site.incoming import BadRequest, parse_head

    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n".encode("latin-1")
    with pytest.raises(BadRequest) as refused:
        parse_head(head)
    assert refused.value.status in (400, 501)
    incoming(head)
