"""Transcriptions and speech: what is read from callers, sent upstream, and handed back."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.dialects.audio import (
    AudioBytes,
    AudioEvents,
    SpeechDialect,
    Transcript,
    TranscriptionsDialect,
)
from routing.dialects.base import (
    Answer,
    CallerRequest,
    Failure,
    MalformedAnswer,
    RequestError,
    UpstreamCall,
    UpstreamRefusal,
    Usage,
)
from routing.dialects.forms import parse_form
from routing.dialects.purposes import OPENAI
from routing.exchange import Exchange, Fault, Head
from routing.gates import Demand
from tests.unit.routing.exchange_kit import PLACES, STREAM_HEAD, bytewise, cut, feed, http, sse

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

TRANSCRIPTIONS = TranscriptionsDialect()
SPEECH = SpeechDialect()

HEADER = "multipart/form-data; boundary=bnd"
AUDIO = b"RIFF\x00\r\n\xff--bnd"


def form(*fields: tuple[str, bytes], audio: bytes | None = AUDIO) -> bytes:
    parts = [
        b'--bnd\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in fields
    ]
    if audio is not None:
        parts.append(
            b'--bnd\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
            b"Content-Type: audio/wav\r\n\r\n" + audio + b"\r\n"
        )
    return b"".join(parts) + b"--bnd--\r\n"


def transcription(*fields: tuple[str, bytes], audio: bytes | None = AUDIO) -> CallerRequest:
    return TRANSCRIPTIONS.parse(form(*fields, audio=audio), content_type=HEADER)


def from_json(document: object) -> CallerRequest:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return TRANSCRIPTIONS.parse(body, content_type="application/json; charset=utf-8")


def in_base64(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


def refused(parse: object, *arguments: object, **more: object) -> Failure:
    with pytest.raises(RequestError) as caught:
        parse(*arguments, **more)  # type: ignore[operator]
    return caught.value.failure


def fields_of(call: UpstreamCall) -> list[tuple[str, bytes]]:
    sent = parse_form(call.body, call.content_type)
    return [(part.name, sent.value(part)) for part in sent.parts]


# Transcriptions as forms


def test_a_form_that_names_the_served_model_goes_on_byte_for_byte():
    body = form(("model", b"whisper"), ("language", b"de"), ("timestamp_granularities[]", b"word"))
    request = TRANSCRIPTIONS.parse(body, content_type=HEADER)
    call = request.prepare(OPENAI, model="whisper")
    assert (request.wire, request.alias, request.stream) == ("transcriptions", "whisper", False)
    assert (request.requested_output, request.body_bytes) == (None, len(body))
    assert request.demand(count_text=True) == Demand()
    assert (call.path, call.content_type, call.headers) == ("/audio/transcriptions", HEADER, ())
    assert call.body is body
    assert call.translator.answer is Answer.WHOLE


@pytest.mark.parametrize("name", [b"stt-fast", b" whisper\t"])
def test_a_form_that_names_its_model_otherwise_gets_the_served_name(name):
    call = transcription(("model", name), ("language", b"de")).prepare(OPENAI, model="whisper")
    assert call.body == form(("model", b"whisper"), ("language", b"de"))


def test_a_form_without_a_model_gets_one():
    request = transcription(("language", b"de"))
    assert request.alias == ""
    assert request.prepare(OPENAI, model="whisper").body == form(("model", b"whisper"), ("language", b"de"))


@pytest.mark.parametrize(
    ("flag", "streams"),
    [(b"true", True), (b"True", True), (b"1", True), (b"false", False), (b"0", False), (b"", False)],
)
def test_a_form_says_whether_it_wants_a_stream(flag, streams):
    request = transcription(("stream", flag))
    assert request.stream is streams
    answer = request.prepare(OPENAI, model="m").translator.answer
    assert answer is (Answer.EVENTS if streams else Answer.WHOLE)


@pytest.mark.parametrize(
    ("fields", "audio", "param", "message"),
    [
        ([("model", b"")], AUDIO, "model", "'model' must be a non-empty string."),
        ([("model", b" ")], AUDIO, "model", "'model' must be a non-empty string."),
        ([("model", b"\xff")], AUDIO, "model", "'model' must be a non-empty string."),
        ([("model", b"m" * 1025)], AUDIO, "model", "'model' must be a non-empty string."),
        ([("model", b"m"), ("model", b"n")], AUDIO, "model", "'model' must be given once."),
        ([("stream", b"yes")], AUDIO, "stream", "'stream' must be true or false."),
        ([("stream", b"true"), ("stream", b"false")], AUDIO, "stream", "'stream' must be given once."),
        ([("model", b"m")], None, "file", "'file' must be an audio file."),
        ([("model", b"m")], b"", "file", "'file' must be an audio file."),
    ],
)
def test_a_form_that_cannot_be_served_is_refused(fields, audio, param, message):
    failure = refused(transcription, *fields, audio=audio)
    assert failure == Failure(status=400, code="invalid_request", message=message, param=param)


def test_a_body_that_is_no_form_is_refused():
    assert refused(TRANSCRIPTIONS.parse, b"--bnd", content_type=HEADER).code == "malformed_form"


@pytest.mark.parametrize("content_type", ["text/plain", "audio/wav", "multipart/mixed; boundary=bnd", "é"])
def test_other_media_types_are_refused(content_type):
    assert refused(TRANSCRIPTIONS.parse, form(), content_type=content_type) == Failure(
        status=415,
        code="unsupported_media_type",
        message="The request body must be multipart/form-data or application/json.",
    )


@given(st.binary(min_size=1).filter(lambda audio: b"\r\n--bnd" not in b"\r\n" + audio))
def test_audio_arrives_as_it_was_sent(audio):
    call = transcription(("model", b"a"), audio=audio).prepare(OPENAI, model="b")
    assert fields_of(call) == [("model", b"b"), ("file", audio)]


# Transcriptions as JSON


@pytest.mark.parametrize(
    ("document", "filename", "kind"),
    [
        ({"file": in_base64(AUDIO)}, b"audio.wav", b"audio/wav"),
        ({"file": in_base64(AUDIO), "format": "MP3"}, b"audio.mp3", b"audio/mpeg"),
        ({"file": "data:audio/flac;base64," + in_base64(AUDIO)}, b"audio.flac", b"audio/flac"),
        ({"file": "data:audio/x-m4a;base64," + in_base64(AUDIO)}, b"audio.m4a", b"audio/mp4"),
        ({"file": "data:audio/webm;codecs=opus;base64," + in_base64(AUDIO)}, b"audio.webm", b"audio/webm"),
        ({"audio_b64": in_base64(AUDIO), "format": "ogg"}, b"audio.ogg", b"audio/ogg"),
        (
            {"input_audio": {"data": in_base64(AUDIO), "format": "wav"}},
            b"audio.wav",
            b"audio/wav",
        ),
    ],
)
def test_audio_in_base64_becomes_a_file(document, filename, kind):
    request = from_json({"model": "whisper", **document})
    call = request.prepare(OPENAI, model="whisper")
    assert (request.wire, request.alias, request.stream) == ("transcriptions", "whisper", False)
    assert call.path == "/audio/transcriptions"
    assert fields_of(call) == [("model", b"whisper"), ("file", AUDIO)]
    head = b'name="file"; filename="%b"\r\nContent-Type: %b\r\n\r\n' % (filename, kind)
    assert head in call.body


def test_other_fields_become_those_of_the_form():
    request = from_json(
        {
            "file": in_base64(AUDIO),
            "language": "de",
            "prompt": "你好",
            "temperature": 0.2,
            "stream": True,
            "timestamp_granularities": ["word", "segment"],
            "include[]": ["logprobs"],
            "chunking_strategy": {"type": "server_vad"},
            "response_format": None,
        }
    )
    assert (request.alias, request.stream) == ("", True)
    call = request.prepare(OPENAI, model="whisper")
    assert fields_of(call) == [
        ("model", b"whisper"),
        ("language", b"de"),
        ("prompt", "你好".encode()),
        ("temperature", b"0.2"),
        ("stream", b"true"),
        ("timestamp_granularities[]", b"word"),
        ("timestamp_granularities[]", b"segment"),
        ("include[]", b"logprobs"),
        ("chunking_strategy", b'{"type": "server_vad"}'),
        ("file", AUDIO),
    ]
    assert call.translator.answer is Answer.EVENTS


@pytest.mark.parametrize(
    ("document", "param", "message"),
    [
        ({}, "file", "'file' must be audio in base64."),
        ({"file": ""}, "file", "'file' must be audio in base64."),
        ({"file": "%%%"}, "file", "'file' must be audio in base64."),
        ({"file": "QUJ"}, "file", "'file' must be audio in base64."),
        ({"file": "QUJD\n"}, "file", "'file' must be audio in base64."),
        ({"file": "你"}, "file", "'file' must be audio in base64."),
        ({"file": ["QUJD"]}, "file", "'file' must be audio in base64."),
        ({"audio_b64": 7}, "audio_b64", "'audio_b64' must be audio in base64."),
        ({"file": "QUJD", "audio_b64": "QUJD"}, "audio_b64", "'audio_b64' must be given once."),
        ({"input_audio": "QUJD"}, "input_audio", "'input_audio' must be an object with data and format."),
        ({"input_audio": {"format": "wav"}}, "input_audio", "'input_audio' must be audio in base64."),
        ({"file": "QUJD", "format": "a/b"}, "format", "'format' must be the name of an audio format."),
        ({"file": "QUJD", "format": 3}, "format", "'format' must be the name of an audio format."),
        ({"file": "QUJD", "model": ""}, "model", "'model' must be a non-empty string."),
        ({"file": "QUJD", "stream": "true"}, "stream", "'stream' must be a boolean or null."),
        ({"file": "QUJD", 'a"b': 1}, 'a"b', "'a\"b' must be a field of this endpoint."),
        ({"file": "QUJD", "a\r\nb": 1}, "a\r\nb", "'a\r\nb' must be a field of this endpoint."),
    ],
)
def test_json_that_cannot_be_served_is_refused(document, param, message):
    assert refused(from_json, document) == Failure(
        status=400, code="invalid_request", message=message, param=param
    )


@pytest.mark.parametrize("body", [b"", b"{", b'{"file":"QUJD","prompt":"\\ud83d"}'])
def test_json_that_is_none_is_refused(body):
    assert refused(from_json, body).code == "malformed_json"


@given(st.binary(min_size=1), st.text(max_size=40).filter(lambda text: text.isprintable()))
def test_what_was_in_json_is_in_the_form(audio, prompt):
    call = from_json({"file": in_base64(audio), "prompt": prompt}).prepare(OPENAI, model="m")
    assert fields_of(call) == [("model", b"m"), ("prompt", prompt.encode()), ("file", audio)]


# Speech


def test_speech_goes_on_as_it_came_and_comes_back_as_bytes():
    body = b'{"model":"kokoro","input":"Hi","voice":"af","speed":1.10,"new":{"a":[1]}}'
    request = SPEECH.parse(body)
    call = request.prepare(OPENAI, model="kokoro")
    assert (request.wire, request.alias) == ("speech", "kokoro")
    assert (request.requested_output, request.body_bytes) == (None, len(body))
    assert (call.path, call.content_type, call.body) == ("/audio/speech", "application/json", body)
    assert call.translator.answer is Answer.OPAQUE


@pytest.mark.parametrize("body", [b'{"input":"Hi"}', b'{"model":null,"input":"Hi"}'])
def test_speech_without_a_model_gets_one(body):
    request = SPEECH.parse(body)
    assert request.alias == ""
    assert json.loads(request.prepare(OPENAI, model="kokoro").body) == {"input": "Hi", "model": "kokoro"}


def test_speech_may_be_asked_for_as_events():
    call = SPEECH.parse(b'{"input":"Hi","stream_format":"sse"}').prepare(OPENAI, model="m")
    assert call.translator.answer is Answer.EVENTS


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "input"),
        (b'{"input":""}', "input"),
        (b'{"input":["Hi"]}', "input"),
        (b'{"input":"Hi","model":""}', "model"),
        (b'{"input":"Hi","model":7}', "model"),
        (b'{"input":"Hi","stream_format":7}', "stream_format"),
    ],
)
def test_speech_that_cannot_be_served_is_refused(body, param):
    failure = refused(SPEECH.parse, body)
    assert (failure.status, failure.code, failure.param) == (400, "invalid_request", param)


# Answers


@pytest.mark.parametrize(
    ("body", "content_type", "seen", "seen_type"),
    [
        (
            b'{"text":"Hi","model":"/m"}',
            "application/json",
            b'{"text":"Hi","model":"stt"}',
            "application/json",
        ),
        (b'"Hi"', "application/json", b'"Hi"', "application/json"),
        (b"Hi\n", "text/plain", b"Hi\n", "text/plain; charset=utf-8"),
        ("1\nÄ".encode(), "application/x-subrip", "1\nÄ".encode(), "application/x-subrip; charset=utf-8"),
        (b"WEBVTT", "text/vtt", b"WEBVTT", "text/vtt; charset=utf-8"),
        (b"<b>", "text/html", b"<b>", "text/plain; charset=utf-8"),
        (b"", "", b"", "text/plain; charset=utf-8"),
    ],
)
def test_a_transcript_is_json_or_text(body, content_type, seen, seen_type):
    whole = Transcript(named="stt").whole(body, content_type)
    assert (whole.body, whole.content_type) == (seen, seen_type)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"", "application/json"), (b"{", "application/json"), (b'"Hi', "application/json"), (b"\xff", "")],
)
def test_a_transcript_that_is_neither_cannot_be_used(body, content_type):
    with pytest.raises(MalformedAnswer):
        Transcript(named="stt").whole(body, content_type)


def test_a_transcript_may_be_an_error():
    with pytest.raises(UpstreamRefusal):
        Transcript(named="stt").whole(b'{"error":{"message":"no"}}', "application/json")


def test_a_transcript_counts_its_tokens():
    translator = Transcript(named="stt")
    translator.whole(
        b'{"text":"Hi","usage":{"type":"tokens","input_tokens":9,"output_tokens":2}}', "application/json"
    )
    assert translator.usage == Usage(9, 2)


DELTA = b'data: {"type":"transcript.text.delta","delta":"Hi"}\n\n'
LAST = b'data: {"type":"transcript.text.done","text":"Hi","usage":{"input_tokens":9,"output_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
CHUNK = b'data: {"object":"transcription.chunk","model":"/m","choices":[{"delta":{"content":"Hi"}}]}\n\n'
SPOKEN = b'data: {"type":"speech.audio.delta","audio":"QUJD"}\n\n'
SPOKEN_LAST = b'data: {"type":"speech.audio.done","usage":{"input_tokens":1,"output_tokens":3}}\n\n'


def events_exchange() -> Exchange:
    return Exchange(AudioEvents(named="stt"))


@pytest.mark.parametrize(
    ("sent", "seen", "usage"),
    [
        (DELTA + LAST + DONE, DELTA + LAST + DONE, Usage(9, 2)),
        (DELTA + LAST, DELTA + LAST, Usage(9, 2)),
        (CHUNK + DONE, CHUNK.replace(b'"/m"', b'"stt"') + DONE, Usage()),
        (SPOKEN + SPOKEN_LAST, SPOKEN + SPOKEN_LAST, Usage(1, 3)),
        (DELTA + LAST[:-2], DELTA + LAST, Usage(9, 2)),
        (
            b'event: transcript.text.done\ndata: {"type":\ndata: "transcript.text.done"}\n\n',
            b'event: transcript.text.done\ndata: {"type":"transcript.text.done"}\n\n',
            Usage(),
        ),
    ],
    ids=["both ends", "a last event alone", "a terminal event alone", "speech", "no blank line", "two lines"],
)
@pytest.mark.parametrize("framing", ["chunked", "length", "eof"])
def test_a_stream_ends_with_a_last_event_or_a_terminal_one(sent, seen, usage, framing):
    run = feed(events_exchange(), bytewise(sse(sent, framing=framing)), eof=framing == "eof")
    assert (run.head, run.body) == (STREAM_HEAD, seen)
    assert (run.outcome.outcome, run.outcome.reason, run.outcome.usage) == ("served", "served", usage)
    assert not run.exchange.close_client
    assert run.exchange.reusable == (framing != "eof")


@given(PLACES)
def test_how_a_stream_is_cut_changes_nothing(places):
    run = feed(events_exchange(), cut(sse(DELTA + CHUNK + LAST + DONE), places))
    assert run.body == DELTA + CHUNK.replace(b'"/m"', b'"stt"') + LAST + DONE
    assert run.outcome.outcome == "served"


@pytest.mark.parametrize(
    "sent",
    [DELTA, DELTA + b"data: {\n\n" + LAST, DELTA + b'data: {"error":{"message":"no"}}\n\n', CHUNK],
    ids=["cut", "malformed", "error", "no end"],
)
def test_a_stream_without_an_end_ends_in_one_error_event(sent):
    run = feed(events_exchange(), [sse(sent)])
    assert run.body.startswith(sent.partition(b"\n\n")[0][:20])
    assert run.body.count(b'data: {"error":') == 1
    assert b"[DONE]" not in run.body
    assert run.exchange.close_client
    assert (run.outcome.outcome, run.outcome.reason) == ("error", "completion_error")


def test_json_in_place_of_a_stream_is_an_error_before_any_event():
    run = feed(events_exchange(), [http(b'{"text":"Hi"}')])
    assert run.head is not None
    assert (run.head.status, run.head.streaming) == (502, False)


# Audio bytes


def test_audio_passes_as_it_comes_under_its_own_type():
    exchange = Exchange(AudioBytes())
    head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert exchange.receive(head) == b""
    assert exchange.head is None
    assert exchange.receive(b"3\r\nID3\r\n") == b"ID3"
    assert exchange.head == Head(status=200, headers=(("Content-Type", "audio/mpeg"),), streaming=True)
    assert exchange.receive(b"2\r\n\xff\xfb\r\n") == b"\xff\xfb"
    assert not exchange.over
    assert exchange.receive(b"0\r\n\r\n") == b""
    assert exchange.over
    assert exchange.reusable
    assert exchange.outcome is not None
    assert (exchange.outcome.outcome, exchange.outcome.response_bytes) == ("served", 5)


@pytest.mark.parametrize("end", ["cut", "reset", "timeout", "stopping"])
def test_audio_that_breaks_off_is_left_without_its_end(end):
    """An error event in the middle of audio would be noise; a message without its end is no audio file."""
    exchange = Exchange(AudioBytes())
    exchange.receive(b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 9\r\n\r\nID3")
    body = exchange.receive_eof() if end == "cut" else exchange.fail(Fault(end))
    assert body == b""
    assert exchange.over
    assert exchange.truncated
    assert exchange.close_client
    assert not exchange.reusable
    assert exchange.outcome is not None
    assert (exchange.outcome.outcome, exchange.outcome.reason) == ("error", "completion_error")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (http(b'{"error":{"message":"no such voice"}}', status=400), 400),
        (http(b"", status=500), 502),
        (http(b"", content_type="audio/mpeg"), 502),
    ],
    ids=["refusal", "failure", "no byte"],
)
def test_speech_that_never_begins_is_a_plain_error(answer, status):
    run = feed(Exchange(AudioBytes()), [answer])
    assert run.head is not None
    assert (run.head.status, run.head.streaming) == (status, False)
    assert dict(run.head.headers)["x-should-retry"] == "false"
    assert json.loads(run.body)["error"]["type"] in ("invalid_request_error", "server_error")
