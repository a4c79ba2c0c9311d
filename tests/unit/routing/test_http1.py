"""HTTP/1.1 responses: what is read, what is refused, and that no cut of the bytes makes a difference."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.http1 import MAX_CHUNK_LINE_BYTES, MAX_HEAD_BYTES, ResponseParser
from tests.unit.routing.exchange_kit import PLACES, bytewise, chunked, cut

pytestmark = pytest.mark.requirement("contract 2")

LIMIT = 1 << 20


def parse(*reads: bytes, eof: bool = False, max_decoded: int = LIMIT) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser(max_decoded=max_decoded)
    body = b"".join(parser.feed(data) for data in reads)
    if eof:
        parser.feed_eof()
    return parser, body


def head(*fields: str, status: str = "200 OK", version: str = "1.1") -> bytes:
    return "\r\n".join([f"HTTP/{version} {status}", *fields, "", ""]).encode("latin-1")


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
@pytest.mark.parametrize(
    ("response", "body"),
    [
        (head("Content-Length: 5") + b"hello", b"hello"),
        (head("content-length:5") + b"hello", b"hello"),
        (head("CONTENT-LENGTH: \t 5\t ") + b"hello", b"hello"),
        (head("Content-Length: 0"), b""),
        (head("Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (head("Transfer-Encoding: Chunked") + b"005\r\nhello\r\n000\r\n\r\n", b"hello"),
        (
            head("Transfer-Encoding: chunked") + b"A;x=1;y\r\n0123456789\r\n1 ;z\r\n!\r\n0;end\r\n\r\n",
            b"0123456789!",
        ),
        (head("Transfer-Encoding: chunked") + b"2\r\nhi\r\n0\r\nX-Sum: 1\r\nOther:\r\n\r\n", b"hi"),
        (head("Transfer-Encoding: chunked") + b"4\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n"),
        (head(status="204 No Content"), b""),
        (head("Content-Length: 9", status="304 Not Modified"), b""),
        (head(status="103 Early Hints") + head(status="100") + head("Content-Length: 2") + b"ok", b"ok"),
        (head("Content-Length: 2", status="200") + b"ok", b"ok"),
        (head("Content-Length: 2", "Server: caf\xe9") + b"ok", b"ok"),
    ],
)
def test_a_complete_message_is_read_and_its_connection_can_be_used_again(split, response, body):
    parser, read = parse(*split(response))

    assert read == body
    assert (parser.complete, parser.reusable, parser.malformed) == (True, True, False)


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.2 200 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        head("Upgrade: h2c", status="101 Switching Protocols"),
        head("Content-Length: -1"),
        head("Content-Length: +5") + b"hello",
        head("Content-Length: 5, 5") + b"hello",
        head("Content-Length: 5", "Content-Length: 5") + b"hello",
        head("Content-Length: 5", "Content-Length: 6") + b"hello",
        head("Content-Length:"),
        head("Content-Length: 0x5"),
        head("Content-Length: 1_0"),
        head("Content-Length: " + "9" * 30),
        head("Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head("Transfer-Encoding: gzip, chunked"),
        head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        head("Transfer-Encoding: identity"),
        head("Transfer-Encoding: chunked", version="1.0"),
        head("Content-Encoding: br", "Content-Length: 5"),
        head("Content-Encoding: gzip", "Content-Encoding: gzip", "Content-Length: 5"),
        head("Transfer-Encoding: chunked") + b"g\r\n",
        head("Transfer-Encoding: chunked") + b"-1\r\n",
        head("Transfer-Encoding: chunked") + b"1_0\r\n",
        head("Transfer-Encoding: chunked") + b" 5\r\n",
        head("Transfer-Encoding: chunked") + b"\r\n",
        head("Transfer-Encoding: chunked") + b"5\nhello\r\n",
        head("Transfer-Encoding: chunked") + b"2\r\nhi!\r\n",
        head("Transfer-Encoding: chunked") + b"2\r\nhi\rx",
        head("Transfer-Encoding: chunked") + b"f" * 16,
        head("Transfer-Encoding: chunked") + b"5;" + b"x" * MAX_CHUNK_LINE_BYTES + b"\r\nhello",
        head("Transfer-Encoding: chunked") + b"0\r\nbad trailer\r\n\r\n",
        head("Transfer-Encoding: chunked") + b"0\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        head("X: " + "x" * MAX_HEAD_BYTES),
        head(*[f"X-{number}: 1" for number in range(101)]),
        head("X: " + "x" * 40_000, status="103 Early Hints") * 2,
    ],
)
def test_what_two_readers_could_read_differently_is_refused(split, response):
    parser, _ = parse(*split(response))

    assert (parser.malformed, parser.complete, parser.reusable) == (True, False, False)
    assert parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") == b""


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
@pytest.mark.parametrize(
    "beginning",
    [
        b"HTTP/1.1 200 OK\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\nX: a\n",
        b"HTTP/1.1 200 OK\rX",
        head(status="103 Early Hints") + b"HTTP/1.1 200 OK\n",
        head("Transfer-Encoding: chunked") + b"0\r\n\n",
        head("Transfer-Encoding: chunked") + b"0\r\nX: y\n\n",
    ],
)
def test_what_can_never_become_a_head_or_trailer_is_refused_without_waiting_for_its_end(split, beginning):
    """Lines that end in a bare LF or CR used to be kept until the upstream's silence had lasted too long."""
    parser, body = parse(*split(beginning))

    assert (parser.malformed, parser.complete, body) == (True, False, b"")


def test_the_largest_allowed_head_is_read():
    fields = [f"X-{number}: 1" for number in range(99)]
    plain = head(*fields, "Content-Length: 0", "Y: ")
    response = head(*fields[:98], "Content-Length: 0", "Y: " + "y" * (MAX_HEAD_BYTES - len(plain) + 9))
    assert len(response) == MAX_HEAD_BYTES

    parser, _ = parse(response)

    assert parser.complete


def test_a_body_without_length_ends_with_the_connection():
    parser, body = parse(head() + b"hel", b"lo")
    assert (body, parser.complete, parser.will_be_reusable) == (b"hello", False, False)

    parser.feed_eof()
    assert (parser.complete, parser.reusable) == (True, False)


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTT",
        head("Content-Length: 5")[:-1],
        head("Content-Length: 5") + b"hell",
        head("Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n",
    ],
)
def test_an_end_of_file_in_the_middle_does_not_complete_a_message(response):
    parser, _ = parse(response, eof=True)

    assert (parser.complete, parser.reusable) == (False, False)


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", [], True),
        ("1.1", ["Connection: keep-alive"], True),
        ("1.1", ["Connection: close"], False),
        ("1.1", ["Connection: Upgrade, Close"], False),
        ("1.1", ["Connection: x", "Connection: close"], False),
        ("1.0", [], False),
        ("1.0", ["Connection: Keep-Alive"], True),
        ("1.0", ["Connection: keep-alive, close"], False),
    ],
)
def test_the_server_says_whether_the_connection_may_be_used_again(version, connection, kept):
    parser, _ = parse(head("Content-Length: 2", *connection, version=version) + b"o")
    assert (parser.will_be_reusable, parser.reusable) == (kept, False)

    parser.feed(b"k")
    assert (parser.complete, parser.reusable, parser.will_be_reusable) == (True, kept, False)


@pytest.mark.parametrize(
    "response",
    [
        head("Content-Length: 2") + b"ok",
        head("Transfer-Encoding: chunked") + b"2\r\nok\r\n0\r\n\r\n",
        head(status="204"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_bytes_after_the_end_spoil_the_connection_and_nothing_else(response, later):
    parser, body = parse(response, b"HTTP/1.1 200") if later else parse(response + b"HTTP/1.1 200")

    assert body in (b"ok", b"")
    assert (parser.complete, parser.malformed, parser.reusable) == (True, False, False)


def test_the_head_names_what_the_exchange_needs():
    parser, _ = parse(
        head(
            "Content-Type: Application/JSON; charset=UTF-8",
            "Retry-After: 7",
            "Content-Length: 0",
            status="429",
        )
    )

    assert parser.head is not None
    assert parser.head.status == 429
    assert parser.head.media_type == "application/json"
    assert parser.head.content_type == "Application/JSON; charset=UTF-8"
    assert parser.head.retry_after == "7"


def test_a_field_that_came_twice_names_no_wait():
    parser, _ = parse(head("Retry-After: 7", "Retry-After: 8", "Content-Length: 0", status="429"))

    assert parser.head is not None
    assert parser.head.retry_after is None


TEXT = b"data: {}\n\n" * 500

RAW_DEFLATE = zlib.compressobj(wbits=-15)
CODED = {
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    "Deflate": RAW_DEFLATE.compress(TEXT) + RAW_DEFLATE.flush(),
}


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
def test_a_coding_that_was_not_asked_for_is_undone(coding, framing, split):
    coded = CODED[coding]
    fields = {
        "length": f"Content-Length: {len(coded)}",
        "chunked": "Transfer-Encoding: chunked",
        "eof": "X: y",
    }
    response = head(f"Content-Encoding: {coding}", fields[framing])
    response += chunked(coded[:9], coded[9:]) if framing == "chunked" else coded

    parser, body = parse(*split(response), eof=framing == "eof")

    assert body == TEXT
    assert (parser.complete, parser.malformed) == (True, False)


def test_a_coded_body_comes_out_as_far_as_the_server_flushed_it():
    stream = zlib.compressobj(wbits=31)
    first = stream.compress(b"data: 1\n\n") + stream.flush(zlib.Z_SYNC_FLUSH)
    parser, _ = parse(head("Content-Encoding: gzip"))

    assert parser.feed(first) == b"data: 1\n\n"
    assert parser.feed(stream.compress(b"data: 2\n\n") + stream.flush()) == b"data: 2\n\n"


@pytest.mark.parametrize(
    "coded",
    [
        gzip.compress(TEXT)[:-1],
        b"not gzip at all",
        gzip.compress(TEXT) + b"more",
        gzip.compress(TEXT)[:-8] + b"8" * 8,
        b"\x1f",
    ],
    ids=["cut", "not coded", "more after its end", "wrong sum", "one byte"],
)
@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
def test_a_corrupt_coding_is_refused(coded, split):
    parser, _ = parse(*split(head("Content-Encoding: gzip", f"Content-Length: {len(coded)}") + coded))

    assert (parser.malformed, parser.complete, parser.reusable) == (True, False, False)


def test_an_empty_coded_body_is_an_empty_body():
    parser, body = parse(head("Content-Encoding: gzip", "Transfer-Encoding: chunked") + b"0\r\n\r\n")

    assert (body, parser.complete, parser.malformed) == (b"", True, False)


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
def test_a_bomb_stops_at_the_limit(split):
    bomb = gzip.compress(bytes(10_000_000))

    parser, body = parse(
        *split(head("Content-Encoding: gzip", "Transfer-Encoding: chunked") + chunked(bomb)), max_decoded=4096
    )

    assert len(body) == 4096
    assert parser.malformed


@given(
    parts=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    interim=st.integers(0, 2),
    excess=st.binary(max_size=3),
    places=PLACES,
)
def test_no_cut_of_a_chunked_message_makes_a_difference(parts, interim, excess, places):
    response = head(status="100 Continue") * interim + head("Transfer-Encoding: chunked")
    response += chunked(*parts, trailer=b"X: y\r\n") + excess

    parser, body = parse(*cut(response, places))

    assert body == b"".join(parts)
    assert (parser.complete, parser.reusable) == (True, not excess)


@given(
    response=st.binary(max_size=200),
    prefix=st.sampled_from(
        [
            b"",
            b"HTTP/1.1 200 OK\r\n",
            head("Transfer-Encoding: chunked"),
            head("Transfer-Encoding: chunked") + b"3\r\nabc\r\n",
        ]
    ),
    places=PLACES,
)
def test_no_cut_of_any_bytes_makes_a_difference(response, prefix, places):
    whole, body = parse(prefix + response, eof=True)
    pieces, same_body = parse(*cut(prefix + response, places), eof=True)

    assert same_body == body
    assert pieces.head == whole.head
    assert (pieces.complete, pieces.malformed, pieces.reusable) == (
        whole.complete,
        whole.malformed,
        whole.reusable,
    )
