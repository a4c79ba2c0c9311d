"""The demo engine's reading of requests: however they are cut, and never two ways at once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.wire import BadRequest, Request, RequestParser, compact_json, frame_chunk, render_head

GET = b"GET /v1/models?limit=1 HTTP/1.1\r\nHost: x\r\nAccept: a\r\nAccept: b\r\n\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nContent-Length: 7\r\n\r\n" + "你好!".encode()
CHUNKED = (
    b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3;name="v"\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n'
)


def take_all(parser: RequestParser) -> list[Request]:
    taken = []
    while (request := parser.take()) is not None:
        taken.append(request)
    return taken


def test_a_request_is_taken_with_its_query_and_repeated_headers() -> None:
    parser = RequestParser()
    parser.feed(GET)
    assert parser.take() == Request(
        method="GET",
        path="/v1/models",
        query="limit=1",
        version="HTTP/1.1",
        headers={"host": "x", "accept": "a, b"},
        body=b"",
    )
    assert parser.take() is None


@given(st.lists(st.integers(0, len(GET + POST + CHUNKED)), max_size=12))
def test_pipelined_requests_survive_any_cutting(cuts: list[int]) -> None:
    data = GET + POST + CHUNKED
    bounds = [0, *sorted(cuts), len(data)]
    parser = RequestParser()
    taken = []
    for start, end in pairwise(bounds):
        parser.feed(data[start:end])
        taken += take_all(parser)
    assert [(one.method, one.path, one.body) for one in taken] == [
        ("GET", "/v1/models", b""),
        ("POST", "/v1/chat/completions", "你好!".encode()),
        ("POST", "/p", b"abcde"),
    ]


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"nonsense\r\n\r\n", 400, "malformed request line"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400, "malformed request line"),
        (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed request line"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "malformed header"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400, "malformed header"),
        (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400, "malformed header"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "missing host"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            400,
            "repeated content-length",
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400, "malformed content-length"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "unsupported framing",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            400,
            "unsupported framing",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
            400,
            "chunk size is not hexadecimal",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
            400,
            "chunk is not closed",
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 134217729\r\n\r\n", 413, "request body too large"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 65_536, 431, "request header fields too large"),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int, message: str) -> None:
    parser = RequestParser()
    parser.feed(data)
    with pytest.raises(BadRequest) as refused:
        parser.take()
    assert (refused.value.status, str(refused.value)) == (status, message)


@pytest.mark.parametrize(
    ("version", "connection", "keeps"),
    [
        ("HTTP/1.1", None, True),
        ("HTTP/1.1", "close", False),
        ("HTTP/1.0", None, False),
        ("HTTP/1.0", "Keep-Alive", True),
    ],
)
def test_who_closes_the_connection(version: str, connection: str | None, keeps: bool) -> None:
    line = f"Connection: {connection}\r\n" if connection else ""
    parser = RequestParser()
    parser.feed(f"GET / {version}\r\nHost: x\r\n{line}\r\n".encode())
    (request,) = take_all(parser)
    assert request.keep_alive is keeps


def test_a_client_that_waits_to_be_told_to_go_on_is_noticed() -> None:
    parser = RequestParser()
    parser.feed(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert parser.take() is None
    assert parser.waits_for_continue
    parser.feed(b"ok")
    assert not parser.waits_for_continue
    (request,) = take_all(parser)
    assert request.body == b"ok"


def test_what_is_written_is_http() -> None:
    assert (
        render_head(429, [("retry-after", "7")])
        == b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\n\r\n"
    )
    assert render_head(299, [], version="HTTP/1.0") == b"HTTP/1.0 299 Unknown\r\n\r\n"
    assert frame_chunk(b"0123456789abcdef") == b"10\r\n0123456789abcdef\r\n"
    assert frame_chunk(b"") == b""
    assert compact_json({"a": "你", "b": "\ud800"}) == '{"a":"你","b":"?"}'.encode()
