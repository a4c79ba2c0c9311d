"""Requests as they come in: what is taken, what is refused, however the bytes are cut."""

import contextlib
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anvil_site.incoming import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_TRAILER_BYTES,
    BadRequest,
    ChunkedBody,
    RequestHead,
    cannot_become_head,
    parse_head,
)


def head(*lines: str, request: str = "POST /v1/chat/completions HTTP/1.1") -> bytes:
    return "\r\n".join([request, *lines, "", ""]).encode("latin-1")


def parsed(*lines: str, request: str = "POST /v1/chat/completions HTTP/1.1") -> RequestHead:
    return parse_head(head(*lines, request=request))


def refusal(data: bytes) -> int:
    with pytest.raises(BadRequest) as refused:
        parse_head(data)
    return refused.value.status


# Heads


def test_a_head_in_its_parts() -> None:
    assert parsed("Host: anvil", "Content-Length: 12", "X-Name:\t café ") == RequestHead(
        method="POST",
        path="/v1/chat/completions",
        query="",
        http11=True,
        keep_alive=True,
        content_length=12,
        expects_continue=False,
        fields=(("host", "anvil"), ("content-length", "12"), ("x-name", "café")),
    )


def test_the_target_keeps_its_query_and_its_escapes() -> None:
    request = parsed("Host: a", request="GET /v1/requests/a%20b?x=%3F&y=? HTTP/1.1")

    assert (request.path, request.query) == ("/v1/requests/a%20b", "x=%3F&y=?")
    assert request.target == "/v1/requests/a%20b?x=%3F&y=?"
    assert request.decoded_path == "/v1/requests/a b"
    assert parsed("Host: a", request="GET / HTTP/1.1").target == "/"


@pytest.mark.requirement("house-2")
def test_an_escaped_path_decodes_to_the_one_that_it_stands_for() -> None:
    request = parsed("Host: a", request="POST /v1/chat%2Fcompletion%73 HTTP/1.1")

    assert request.decoded_path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("version", "lines", "kept"),
    [
        ("1.1", (), True),
        ("1.1", ("Connection: close",), False),
        ("1.1", ("Connection: Upgrade, Close",), False),
        ("1.1", ("Connection: keep-alive",), True),
        ("1.0", (), False),
        ("1.0", ("Connection: Keep-Alive",), True),
        ("1.0", ("Connection: close",), False),
    ],
)
def test_who_keeps_the_connection(version: str, lines: Sequence[str], kept: bool) -> None:
    assert parsed("Host: a", *lines, request=f"GET / HTTP/{version}").keep_alive is kept


def test_http_1_0_needs_no_host() -> None:
    assert parsed(request="GET / HTTP/1.0").http11 is False
    assert refusal(head(request="GET / HTTP/1.1")) == 400


def test_a_client_that_waits_for_leave_to_go_on() -> None:
    assert parsed("Host: a", "Expect: 100-Continue").expects_continue
    assert not parsed("Expect: 100-continue", request="POST / HTTP/1.0").expects_continue
    assert refusal(head("Host: a", "Expect: tea")) == 417


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        ((), 0),
        (("Content-Length: 0",), 0),
        (("Content-Length: 007",), 7),
        (("Transfer-Encoding: chunked",), None),
        (("Transfer-Encoding: Chunked",), None),
    ],
)
def test_how_long_the_body_is(lines: Sequence[str], length: int | None) -> None:
    assert parsed("Host: a", *lines).content_length == length


@pytest.mark.requirement("house-2")
@pytest.mark.parametrize(
    ("lines", "status"),
    [
        # Two readers could believe two different things of these.
        (("Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (("Transfer-Encoding: chunked", "Content-Length: 1"), 400),
        (("Content-Length: 1", "Content-Length: 1"), 400),
        (("Content-Length: 1", "Content-Length: 2"), 400),
        (("Content-Length: 1, 1",), 400),
        (("Content-Length: +1",), 400),
        (("Content-Length: -1",), 400),
        (("Content-Length: 0x1",), 400),
        (("Content-Length: 1 1",), 400),
        (("Content-Length: \u00b2",), 400),
        (("Content-Length:",), 400),
        (("Content-Length: 1" + "0" * 15,), 400),
        (("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
        (("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), 400),
        (("Transfer-Encoding: chunked, chunked",), 501),
        (("Transfer-Encoding: gzip, chunked",), 501),
        (("Transfer-Encoding: identity",), 501),
        (("Transfer-Encoding: xchunked",), 501),
        (("Transfer-Encoding:",), 501),
        (("Transfer-Encoding : chunked",), 400),
        ((" Transfer-Encoding: chunked",), 400),
        (("Transfer-Encoding\t: chunked",), 400),
        (("Transfer\x0bEncoding: chunked",), 400),
        (("X: a\x00b",), 400),
        (("X: a\rTransfer-Encoding: chunked",), 400),
        (("X: a\nTransfer-Encoding: chunked",), 400),
        (("X: a", " folded"), 400),
        (("X: a", "\tfolded"), 400),
        (("NoColon",), 400),
        ((": nameless",), 400),
        (("Host: b",), 400),
        (("Authorization: Bearer a", "Authorization: Bearer b"), 400),
        (("X-Api-Key: a", "x-api-key: b"), 400),
    ],
)
def test_ambiguous_heads_are_refused_not_repaired(lines: Sequence[str], status: int) -> None:
    assert refusal(head("Host: a", *lines)) == status


def test_a_chunked_body_needs_http_1_1() -> None:
    assert refusal(head("Transfer-Encoding: chunked", request="POST / HTTP/1.0")) == 400


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/2.0",
        "GET / HTTP/1.2",
        "GET / HTTP/0.9",
        "GET / http/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "get / HTTP/1.1",
        "GET HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET * HTTP/1.1",
        "GET anvil HTTP/1.1",
        "GET /\x80 HTTP/1.1",
        "GET /\x00 HTTP/1.1",
        "GE / HTTP/1.1",
        "",
    ],
)
def test_request_lines_that_are_refused(line: str) -> None:
    assert refusal(head("Host: a", request=line)) == 400


def test_a_target_in_absolute_form_is_taken_by_its_path() -> None:
    taken = parse_head(head("Host: a", request="POST http://127.0.0.1:8000/v1/models?x=1 HTTP/1.1"))
    assert (taken.path, taken.query) == ("/v1/models", "x=1")


def test_too_many_fields_are_refused() -> None:
    lines = [f"X-{number}: a" for number in range(MAX_FIELDS - 1)]

    assert len(parsed("Host: a", *lines).fields) == MAX_FIELDS
    assert refusal(head("Host: a", "X: a", *lines)) == 431


def test_a_refusal_repeats_nothing_of_the_request() -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(head("Host: a", "Authorization: Bearer secret\x00"))

    assert "secret" not in repr(refused.value)


@given(st.binary(max_size=300))
@example(b"GET / HTTP/1.1\r\n\r\n")
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert parse_head(data + b"\r\n\r\n").path.startswith("/")


@pytest.mark.requirement("house-2")
@pytest.mark.parametrize(
    ("beginning", "hopeless"),
    [
        (b"", False),
        (b"\r", False),
        (b"G", False),
        (b"GET / HTTP/1.1\r\nHost: a\r", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r", False),
        (b"GET / HTTP/1.1\nHost: a\n\n", True),
        (b"GET / HTTP/1.1\r\nHost: a\n\r\n", True),
        (b"GET / HTTP/1.1\r\nX: a\rb", True),
        (b"\x16\x03\x01\x02\x00\x01", True),
        (b"\n", True),
        (b" GET", True),
        (b"get / HTTP/1.1", True),
    ],
)
def test_a_beginning_that_no_more_bytes_can_mend(beginning: bytes, hopeless: bool) -> None:
    assert cannot_become_head(beginning) is hopeless


@given(st.integers(min_value=0, max_value=200))
def test_no_beginning_of_a_good_head_is_given_up(size: int) -> None:
    data = head("Host: anvil", "Content-Length: 12", "X-Name: café", "Accept: */*")

    assert not cannot_become_head(data[: min(size, len(data) - 1)])


@pytest.mark.parametrize(
    "beginning", [b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nHost: a\rb", b"\x16\x03\x01", b"get"]
)
def test_what_is_hopeless_is_so_at_its_last_byte_however_it_came(beginning: bytes) -> None:
    """A head that comes byte by byte is not looked at from its start each time: 64 KiB took seconds."""
    found = [cannot_become_head(beginning[:size], size - 1) for size in range(1, len(beginning) + 1)]
    assert True in found
    assert found.index(True) + 1 == next(
        size for size in range(1, len(beginning) + 1) if cannot_become_head(beginning[:size])
    )


def test_a_head_that_comes_byte_by_byte_costs_each_byte_once() -> None:
    head = bytearray(b"POST / HTTP/1.1\r\nHost: a\r\nX: ")
    began = time.process_time()
    while len(head) < MAX_HEAD_BYTES:
        head += b"y"
        assert not cannot_become_head(head, len(head) - 1)
    assert time.process_time() - began < 1.0


# Chunked bodies


def take(*parts: bytes) -> tuple[ChunkedBody, bytearray, bool]:
    body, buffer, complete = ChunkedBody(), bytearray(), False
    for part in parts:
        assert not complete
        buffer += part
        complete = body.take(buffer)
        while body.unfinished:
            complete = body.take(buffer)
    return body, buffer, complete


def test_a_chunked_body_is_joined() -> None:
    body, buffer, complete = take(b'5\r\nhello\r\n0006;ext="1"\r\n world\r\n0\r\nTrailer: x\r\n\r\nGET /')

    assert complete
    assert body.body == b"hello world"
    assert buffer == b"GET /"


CHUNKED = b'5\r\nhello\r\nA;x="y"\r\n0123456789\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n'


@given(st.lists(st.integers(min_value=0, max_value=len(CHUNKED)), max_size=12))
def test_a_chunked_body_may_be_cut_anywhere(places: list[int]) -> None:
    bounds = [0, *sorted(places), len(CHUNKED)]
    parts = [CHUNKED[start:end] for start, end in pairwise(bounds) if start < end]

    body, buffer, complete = take(*parts)

    assert complete
    assert body.body == b"hello0123456789"
    assert buffer == b""


@pytest.mark.requirement("house-2")
@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\n",
        b"5 \r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5;a=\x00\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"FFFFFFFFF\r\n",
        b"5\r\nhello\r\n\r\n0\r\n\r\n",
        b"0\r\n" + b"T: " + b"x" * MAX_TRAILER_BYTES + b"\r\n\r\n",
        b"0\r\n" + (b"T: x\r\n" * MAX_TRAILER_BYTES),
        b"5;" + b"x" * (MAX_TRAILER_BYTES + 1),
        # Where the line has no end yet: these used to be waited for.
        b"5\nhello\n",
        b"5\nhel",
        b"5\rx",
        b"5\r\nhelloX",
        b"5\r\nhello\n",
        b"0\r\n\n",
        b"0\r\nT: x\n",
        # These used to be taken for trailers.
        b"0\r\nT: x\nU: y\r\n\r\n",
        b"0\r\nT: x\rU: y\r\n\r\n",
        b"0\r\nT: \x00\r\n\r\n",
        b"0\r\n T: x\r\n\r\n",
        b"0\r\nGET / HTTP/1.1\r\n\r\n",
    ],
)
def test_chunks_that_are_refused(data: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        take(data)

    assert refused.value.status == 400


def test_a_large_chunk_is_taken_as_it_comes() -> None:
    body, buffer, complete = take(b"FFFFFFFF\r\n", b"x" * 100_000, b"y" * 100_000)

    assert not complete
    assert len(body.body) == 200_000
    assert buffer == b""
