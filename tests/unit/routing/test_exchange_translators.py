"""The exchange carries wires that it knows nothing of: several events for one, bodies that are not JSON."""

import json

import pytest
from hypothesis import given

from routing.dialects.base import (
    JSON,
    Answer,
    CallerRequest,
    Dialect,
    Failure,
    MalformedAnswer,
    Translator,
    Usage,
    Whole,
)
from routing.exchange import Exchange, Fault, Head
from tests.unit.routing.exchange_kit import CHUNKS, PLACES, STREAM, bytewise, cut, events, feed, http, sse

pytestmark = pytest.mark.requirement("contract 2", "C-R013")


class Typed(Dialect):
    """A wire with named events and its own error envelope."""

    wire = "messages"

    def parse(self, body: bytes, *, content_type: str = JSON) -> CallerRequest:
        raise NotImplementedError

    def error(self, failure: Failure) -> bytes:
        return b'{"type":"error","error":{"type":"%b"}}' % failure.code.encode()

    def error_event(self, failure: Failure) -> bytes:
        return b"event: error\ndata: " + self.error(failure) + b"\n\n"


class Renarrated(Translator):
    """Chat chunks told as started, delta ... delta, stopped: one upstream event makes none, one or three."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        super().__init__(dialect=Typed(), answer=Answer.EVENTS)
        self._begun = False

    def event(self, data: bytes, prefix: bytes) -> bytes:
        if data == b"[DONE]":
            self.terminal = True
            return b"event: stopped\ndata: {}\n\nevent: bye\ndata: {}\n\n"
        try:
            chunk = json.loads(data)
        except ValueError:
            raise MalformedAnswer from None
        if usage := chunk.get("usage"):
            self.usage = Usage(usage["prompt_tokens"], usage["completion_tokens"])
        out = b""
        if not self._begun:
            self._begun = True
            out = b"event: started\ndata: {}\n\nevent: block\ndata: {}\n\n"
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                out += b"event: delta\ndata: " + json.dumps(text).encode() + b"\n\n"
        return out


TOLD = (
    b"event: started\ndata: {}\n\n"
    b"event: block\ndata: {}\n\n"
    b'event: delta\ndata: "Hi"\n\n'
    b"event: stopped\ndata: {}\n\n"
    b"event: bye\ndata: {}\n\n"
)


@given(places=PLACES)
def test_one_upstream_event_may_become_any_number_of_the_callers(places):
    run = feed(Exchange(Renarrated()), cut(sse(STREAM), places))

    assert run.body == TOLD
    assert run.outcome.reason == "served"
    assert run.outcome.usage == Usage(7, 2)
    assert run.exchange.reusable


def test_the_lease_ends_with_the_callers_last_event():
    response = sse(STREAM)
    at = response.index(b"[DONE]") + len(b"[DONE]\n")
    exchange = Exchange(Renarrated())
    exchange.receive(response[:at])
    assert not exchange.over

    assert exchange.receive(response[at : at + 1]) == b"event: stopped\ndata: {}\n\nevent: bye\ndata: {}\n\n"
    assert exchange.over


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
def test_errors_are_the_callers_in_a_stream_and_before_it(split):
    late = feed(Exchange(Renarrated()), split(sse(events(CHUNKS[1]) + b"data: {\n\n")))
    early = feed(Exchange(Renarrated()), split(http(b"", status=503)))

    assert late.body == TOLD.split(b"event: stopped")[0] + (
        b'event: error\ndata: {"type":"error","error":{"type":"upstream_invalid_response"}}\n\n'
    )
    assert late.exchange.close_client
    assert early.body == b'{"type":"error","error":{"type":"upstream_error"}}'
    assert early.head is not None
    assert early.head.status == 502


class Text(Translator):
    """An answer that is not JSON, such as a transcription."""

    def __init__(self) -> None:
        super().__init__(dialect=Typed(), answer=Answer.WHOLE)

    def whole(self, body: bytes, content_type: str) -> Whole:
        return Whole(body=body.upper(), content_type=content_type)


def test_a_whole_answer_has_the_media_type_that_its_translator_gives_it():
    run = feed(Exchange(Text()), [http(b"hello", content_type="Text/VTT; charset=utf-8")])

    assert run.head == Head(
        status=200, headers=(("Content-Type", "text/vtt"), ("Content-Length", "5")), streaming=False
    )
    assert run.body == b"HELLO"


def opaque() -> Exchange:
    return Exchange(Translator(dialect=Typed(), answer=Answer.OPAQUE))


@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
@pytest.mark.parametrize(
    ("content_type", "passed"),
    [
        ("audio/mpeg", "audio/mpeg"),
        ('audio/pcm; rate=24000; x="y"', 'audio/pcm; rate=24000; x="y"'),
        ("caf\xe9", "application/octet-stream"),
        (None, "application/octet-stream"),
    ],
)
def test_opaque_bytes_are_passed_on_as_they_come(framing, content_type, passed):
    response = http(b"\x00\xffID3", content_type=content_type, framing=framing)

    run = feed(opaque(), bytewise(response), eof=framing == "eof")

    assert run.head == Head(status=200, headers=(("Content-Type", passed),), streaming=True)
    assert run.body == b"\x00\xffID3"
    assert (run.outcome.reason, run.outcome.first_output) == ("served", True)
    assert run.exchange.reusable == (framing != "eof")


def test_opaque_bytes_that_break_off_are_left_without_an_end():
    exchange = opaque()
    exchange.receive(http(b"12345", content_type="audio/mpeg")[:-1])

    assert exchange.fail(Fault.TIMEOUT) == b""
    assert exchange.truncated
    assert exchange.close_client
    assert exchange.outcome is not None
    assert exchange.outcome.reason == "completion_error"


def test_an_opaque_answer_that_never_began_is_a_plain_error():
    run = feed(opaque(), [http(b"")])

    assert run.head is not None
    assert run.head.status == 502
    assert run.body == b'{"type":"error","error":{"type":"upstream_invalid_response"}}'
    assert not run.exchange.truncated
