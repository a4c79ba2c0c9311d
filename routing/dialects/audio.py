"""Speech to text and text to speech, passed through to upstreams that speak the same wires.

    POST /v1/audio/transcriptions   a form with the audio in ``file``, as OpenAI's clients send it, or JSON
                                    with the audio in base64 (below), which becomes such a form
    POST /v1/audio/speech           JSON with ``input``; the answer is audio, whatever the upstream calls it

The model may be left out: the configuration has a default for each purpose. A form goes on byte for byte, its
model put in or renamed where it must be; an answer's model comes back under the name that the caller used.

JSON holds the audio in one of three places, all in base64, and every other field as the form has it:

    {"file": "UklGR..."}                                  or a ``data:`` URL
    {"audio_b64": "UklGR...", "format": "wav"}
    {"input_audio": {"data": "UklGR...", "format": "wav"}}

Streams: transcriptions with ``stream`` and speech with ``stream_format = "sse"`` are server-sent events. They
end with ``[DONE]``, with a ``...done`` event, or with both; any of these is a proper end.
"""

import binascii
import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from routing.dialects.base import (
    JSON,
    Answer,
    CallerRequest,
    Failure,
    MalformedAnswer,
    RequestError,
    Target,
    Translator,
    UpstreamCall,
    Whole,
)
from routing.dialects.fields import (
    ARRAY,
    BOOLEAN,
    NULL,
    OBJECT,
    STRING,
    UNREADABLE,
    bad_body,
    bad_field,
    encode,
    is_unset,
    join,
    raise_if_error,
    read,
    read_object,
    split,
)
from routing.dialects.forms import MEDIA_TYPE as FORM
from routing.dialects.forms import Field, Form, parse_form, write_form
from routing.dialects.openai_chat import CHAT, OpenAIDialect
from routing.dialects.purposes import PurposePassThrough, PurposeRequest, read_name, usage_in

_MAX_NAME_BYTES: Final = 1024
_TEXT_TYPES: Final = frozenset({"text/vtt", "text/srt", "application/x-subrip"})
"""What a transcript that is not JSON may be called; anything else is plain text."""

_LAST_EVENTS: Final = frozenset({b'"transcript.text.done"', b'"speech.audio.done"'})
_FLAGS: Final = {b"true": True, b"1": True, b"false": False, b"0": False, b"": False}

_FIELD_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,128}")
_FORMAT = re.compile(r"[a-z0-9]{1,16}")
_DATA_URL = re.compile(r"data:audio/(?:x-)?([a-z0-9]{1,16})(?:;[a-z0-9=._-]{1,64})*;base64,", re.IGNORECASE)
_MEDIA_TYPES: Final = {
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "mpga": "audio/mpeg",
    "oga": "audio/ogg",
    "opus": "audio/ogg",
}
"""The media types of formats that are not called by them."""


class TranscriptionsDialect(OpenAIDialect):
    """The wire of ``POST /v1/audio/transcriptions``."""

    __slots__ = ()

    wire = "transcriptions"

    def parse(self, body: bytes, *, content_type: str = JSON) -> CallerRequest:
        """The request in ``body``, a form or JSON. Raises `RequestError` with status 400 or 415."""
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type == FORM:
            return FormTranscription(body, content_type)
        if media_type == JSON:
            return JsonTranscription(body)
        raise RequestError(
            Failure(
                status=415,
                code="unsupported_media_type",
                message=f"The request body must be {FORM} or {JSON}.",
            )
        )


class SpeechDialect(OpenAIDialect):
    """The wire of ``POST /v1/audio/speech``."""

    __slots__ = ()

    wire = "speech"

    def parse(self, body: bytes, *, content_type: str = JSON) -> "SpeechRequest":
        """The request in ``body``, whatever its media type says. Raises `RequestError` with status 400."""
        return SpeechRequest(body)


class FormTranscription(PurposeRequest):
    """A transcription request as a form: a non-empty ``file``, at most one ``model`` and ``stream``."""

    __slots__ = ("_form", "_name")

    wire = "transcriptions"

    def __init__(self, body: bytes, content_type: str) -> None:
        self.body_bytes = len(body)
        self.requested_output = None
        self._form = form = parse_form(body, content_type)
        self._name = name = _only(form, "model")
        try:
            self.alias = name.decode().strip() if name is not None else ""
        except UnicodeDecodeError:
            self.alias = ""
        if name is not None and not (self.alias and len(name) <= _MAX_NAME_BYTES):
            raise bad_field("model", "a non-empty string")
        stream = _FLAGS.get((_only(form, "stream") or b"").strip().lower())
        if stream is None:
            raise bad_field("stream", "true or false")
        self.stream = stream
        if not any(part.end > part.start for part in form.named("file")):
            raise bad_field("file", "an audio file")

    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """The form as it came; the model is put in where the caller named none, or another name of it."""
        form = self._form
        served = model.encode()
        return UpstreamCall(
            path="/audio/transcriptions",
            body=form.body if self._name == served else form.with_field("model", served),
            content_type=form.content_type,
            translator=_transcript(named=self.alias or model, stream=self.stream),
        )


def _only(form: Form, name: str) -> bytes | None:
    """What the only part of a field holds, None when there is none. Raises `RequestError` for several."""
    parts = form.named(name)
    if len(parts) > 1:
        raise bad_field(name, "given once")
    return form.value(parts[0]) if parts else None


class JsonTranscription(PurposeRequest):
    """A transcription request as JSON: audio in base64 and, beside it, whatever fields the form has."""

    __slots__ = ("_audio", "_fields", "_format")

    wire = "transcriptions"

    def __init__(self, body: bytes) -> None:
        self.body_bytes = len(body)
        self.requested_output = None
        fields, mark = read_object(body)
        if mark:
            raise bad_body("malformed_json", "The request body is not valid JSON.")
        self.alias = _optional_name(fields)
        self.stream = read(fields, "stream", BOOLEAN, "a boolean or null") or False
        self._audio, self._format = _take_audio(fields)
        self._fields = [one for name, value in fields.items() for one in _form_fields(name, bytes(value))]

    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """The same request as the form that upstreams take."""
        kind = _MEDIA_TYPES.get(self._format, f"audio/{self._format}")
        audio = Field(name="file", value=self._audio, filename=f"audio.{self._format}", content_type=kind)
        body, content_type = write_form([Field(name="model", value=model.encode()), *self._fields, audio])
        return UpstreamCall(
            path="/audio/transcriptions",
            body=body,
            content_type=content_type,
            translator=_transcript(named=self.alias or model, stream=self.stream),
        )


def _take_audio(fields: dict[str, Raw]) -> tuple[bytes, str]:
    """The audio and its format (a file name's ending), both taken out of ``fields`` with the model."""
    expected = "audio in base64"
    given = [name for name in ("file", "audio_b64", "input_audio") if not is_unset(fields, name)]
    if len(given) != 1:
        raise bad_field(given[1] if given else "file", "given once" if given else expected)
    place, source = given[0], fields
    if place == "input_audio":
        source = read(fields, place, OBJECT, "an object with data and format") or {}
        place = "data"
    text = read(source, place, STRING, expected) or ""
    shape = read(source, "format", STRING, "the name of an audio format")
    if url := _DATA_URL.match(text):
        text, shape = text[url.end() :], shape or url[1]
    shape = (shape or "wav").lower()
    if _FORMAT.fullmatch(shape) is None:
        raise bad_field("format", "the name of an audio format")
    try:
        audio = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        audio = b""
    if not audio:
        raise bad_field(given[0], expected)
    for name in (given[0], "format", "model"):
        fields.pop(name, None)
    return audio, shape


def _form_fields(name: str, value: bytes) -> list[Field]:
    """A JSON field as the form has it: an array as one field each, null as none."""
    if value == NULL:
        return []
    if _FIELD_NAME.fullmatch(name) is None:
        raise bad_field(name[:128], "a field of this endpoint")
    if not value.startswith(b"["):
        return [Field(name=name, value=_form_value(name, value))]
    each = name if name.endswith("[]") else f"{name}[]"
    return [Field(name=each, value=_form_value(name, bytes(item))) for item in ARRAY.decode(value)]


def _form_value(name: str, value: bytes) -> bytes:
    """Text as it is, anything else as JSON."""
    if not value.startswith(b'"'):
        return value
    try:
        return STRING.decode(value).encode()
    except UNREADABLE:
        raise bad_field(name, "a string") from None


class SpeechRequest(PurposeRequest):
    """A speech request: something to say."""

    __slots__ = ("_as_events", "_fields", "_mark")

    wire = "speech"

    def __init__(self, body: bytes) -> None:
        self.body_bytes = len(body)
        self.requested_output = None
        fields, self._mark = read_object(body)
        self._fields = fields
        self.alias = _optional_name(fields)
        if not read(fields, "input", STRING, "a non-empty string"):
            raise bad_field("input", "a non-empty string")
        self._as_events = read(fields, "stream_format", STRING, "a string or null") == "sse"
        self.stream = True

    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """Everything as it came, but for the model."""
        return UpstreamCall(
            path="/audio/speech",
            body=join({**self._fields, "model": Raw(encode(model))}, self._mark),
            translator=AudioEvents(named=self.alias or model) if self._as_events else AudioBytes(),
        )


def _optional_name(fields: Mapping[str, Raw]) -> str:
    name = read_name(fields)
    if not name and not is_unset(fields, "model"):
        raise bad_field("model", "a non-empty string")
    return name


class AudioBytes(Translator):
    """Audio, passed on as it comes."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(dialect=CHAT, answer=Answer.OPAQUE)


class AudioEvents(Translator):
    """The events of a transcription or of speech, passed on with the model renamed where they name one."""

    __slots__ = ("_model",)

    def __init__(self, *, named: str) -> None:
        super().__init__(dialect=CHAT, answer=Answer.EVENTS)
        self._model = Raw(encode(named))

    def event(self, data: bytes, prefix: bytes) -> bytes:
        """One event; ``[DONE]`` ends the stream, and after a ``...done`` event it may end."""
        if data.startswith(b"[") and data.strip() == b"[DONE]":
            self.terminal = True
            return prefix + b"data: [DONE]\n\n"
        try:
            event, mark = split(data)
        except UNREADABLE:
            raise MalformedAnswer from None
        raise_if_error(event, data, named=b"event: error\n" in prefix)
        if "usage" in event and bytes(event["usage"]) != NULL:
            self.usage = usage_in(event)
        if "model" in event:
            event["model"] = self._model
        if bytes(event.get("type", NULL)) in _LAST_EVENTS:
            self.may_end = True
        # White space between tokens may hold line ends; a string can hold none.
        return prefix + b"data: " + join(event, mark).replace(b"\n", b" ") + b"\n\n"


class Transcript(PurposePassThrough):
    """A whole transcript: JSON, with the model renamed where it names one, or text."""

    __slots__ = ()

    def whole(self, body: bytes, content_type: str) -> Whole:
        """The transcript; what is not called JSON is text in UTF-8."""
        if content_type == JSON and body.lstrip().startswith(b"{"):
            return super().whole(body, content_type)
        try:
            if content_type == JSON:
                # A server that was asked for text and said it as a JSON string.
                msgspec.json.decode(body)
                return Whole(body=body)
            body.decode()
        except UNREADABLE:
            raise MalformedAnswer from None
        kind = content_type if content_type in _TEXT_TYPES else "text/plain"
        return Whole(body=body, content_type=f"{kind}; charset=utf-8")


def _transcript(*, named: str, stream: bool) -> Translator:
    return AudioEvents(named=named) if stream else Transcript(named=named)
