"""OpenAI's chat completions: read from callers, passed through to upstreams that speak the same, else
translated.

A pass-through (see `passthrough`) changes this besides:

    request   ``stream_options.include_usage`` is set on a stream whose caller did not ask.
    response  Where usage was asked for on our own account, the chunk with nothing but usage is kept from the
              caller, and so is a ``usage`` of null in the other chunks, which engines add for that option
              alone.

For an upstream that does not serve chat completions a request is put into the wire that it does
(`translate`).
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

import msgspec
from msgspec import Raw

from routing.dialects import surrogates
from routing.dialects.base import (
    JSON,
    Answer,
    CallerRequest,
    Dialect,
    Failure,
    MalformedAnswer,
    Target,
    Translator,
    UpstreamCall,
    Usage,
    Whole,
)
from routing.dialects.chat_answers import ChatTeller
from routing.dialects.chat_requests import read_chat
from routing.dialects.document import Fields
from routing.dialects.errors import error_type
from routing.dialects.fields import (
    ARRAY,
    BOOLEAN,
    NULL,
    OBJECT,
    OBJECTS,
    STRING,
    UNREADABLE,
    bad_field,
    encode,
    is_unset,
    join,
    raise_if_error,
    read,
    read_alias,
    read_array,
    read_limit,
    read_object,
    token_count,
)
from routing.dialects.passthrough import settle
from routing.dialects.translate import CHAT_LIMITS, translate
from routing.dialects.weights import may_hold_media
from routing.gates import Demand

_IMAGE_PARTS: Final = frozenset({"image_url", "input_image", "image", "image_pil", "image_embeds"})
_VIDEO_PARTS: Final = frozenset({"video_url", "input_video", "video"})

_TRUE: Final = Raw(b"true")

_decode_object = OBJECT.decode


class OpenAIDialect(Dialect):
    """The error envelope of every OpenAI wire."""

    __slots__ = ()

    def error(self, failure: Failure) -> bytes:
        """``{"error": {"message", "type", "param", "code"}}``."""
        return encode(
            {
                "error": {
                    "message": failure.message,
                    "type": error_type(failure.status),
                    "param": failure.param,
                    "code": failure.code,
                }
            }
        )

    def error_event(self, failure: Failure) -> bytes:
        """The same envelope as a data event, which is how OpenAI's clients expect it in a stream."""
        return b"data: " + self.error(failure) + b"\n\n"


class ChatDialect(OpenAIDialect):
    """The wire of ``POST /v1/chat/completions``."""

    __slots__ = ()

    wire = "chat"

    def parse(self, body: bytes, *, content_type: str = JSON) -> "ChatRequest":
        """The request in ``body``, whatever its media type says. Raises `RequestError` with status 400."""
        return ChatRequest(body)


CHAT: Final = ChatDialect()


class ChatRequest(CallerRequest):
    """A chat completion request: an object with a model, at least one message, and well-typed limits."""

    __slots__ = ("_body", "_fields", "_mark", "_messages", "_tools")

    wire = "chat"

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.body_bytes = len(body)
        fields, self._mark = read_object(body)
        self._fields = fields
        self.alias = read_alias(fields)
        messages = read(fields, "messages", OBJECTS, "a non-empty array of objects")
        if not messages:
            raise bad_field("messages", "a non-empty array of objects")
        self._messages = messages
        self.stream = read(fields, "stream", BOOLEAN, "a boolean or null") or False
        read(fields, "stream_options", OBJECT, "an object or null")
        limits = [limit for name in CHAT_LIMITS if (limit := read_limit(fields, name)) is not None]
        self.requested_output = max(limits, default=None)
        self._tools = bool(read_array(fields, "tools")) | bool(read_array(fields, "functions"))

    def demand(self, *, count_text: bool) -> Demand:
        """Text is the messages' contents and text parts; images and videos are parts of those kinds."""
        text = images = videos = 0
        if count_text or may_hold_media(self._body):
            for message in self._messages:
                for part in _parts(message):
                    if isinstance(part, str):
                        text += len(part.encode())
                        continue
                    kinds = {part["type"]} if part.get("type") else set(part)
                    if kinds & _IMAGE_PARTS:
                        images += 1
                    elif kinds & _VIDEO_PARTS:
                        videos += 1
                    else:
                        text += len(part.get("text", "").encode())
        return Demand(text_bytes=text if count_text else 0, images=images, videos=videos, tools=self._tools)

    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """A pass-through call (see the module's text), or one that speaks the target's own wire."""
        if target.dialect != "openai" and "chat" not in target.wires:
            return self._translate(target, model)
        fields = dict(self._fields)
        settle(fields, target, model=model, limits=CHAT_LIMITS)
        usage = _ask_for_usage(fields) if self.stream else ShowUsage.ALL
        return UpstreamCall(
            path="/chat/completions",
            body=join(fields, self._mark),
            translator=ChatPassThrough(alias=self.alias, stream=self.stream, usage=usage),
        )

    def _translate(self, target: Target, model: str) -> UpstreamCall:
        options = read(self._fields, "stream_options", OBJECT, "an object or null") or {}
        usage = read(options, "include_usage", BOOLEAN, "a boolean or null") or False
        conversation = read_chat(Fields.of_body(self._body))
        teller = ChatTeller(dialect=CHAT, alias=self.alias, stream=self.stream, usage=usage)
        return translate(conversation, target, model=model, teller=teller)


class ShowUsage(Enum):
    """Which of an upstream's usage figures reach the caller of a stream."""

    ALL = "all"
    """The caller asked, or nobody did: everything as it comes."""
    OWN = "own"
    """We asked: neither the chunk that holds nothing else, nor nulls in the others."""
    NONE = "none"
    """We asked, and by that switched on running figures which the caller had set without effect."""


class _Plain(msgspec.Struct):
    """A chunk with nothing in it that asks for a decision."""

    choices: Raw
    usage: Raw | msgspec.UnsetType = msgspec.UNSET
    error: Raw | msgspec.UnsetType = msgspec.UNSET


_decode_plain: Final = msgspec.json.Decoder(_Plain).decode
_MODEL_KEY: Final = b'"model"'


class ChatPassThrough(Translator):
    """The answer of an upstream that speaks chat completions, for a caller that does.

    The chunks of one stream begin alike, up to and including the model's name. Once a chunk has shown how,
    the others need their beginning exchanged and not their whole object written anew.
    """

    __slots__ = ("_alias", "_lead", "_lead_out", "_usage_shown")

    def __init__(self, *, alias: str, stream: bool, usage: ShowUsage) -> None:
        super().__init__(dialect=CHAT, answer=Answer.EVENTS if stream else Answer.WHOLE)
        self._alias = Raw(encode(alias))
        self._usage_shown = usage
        self._lead = b""
        self._lead_out = b""

    def event(self, data: bytes, prefix: bytes) -> bytes:
        """One chunk, renamed; ``[DONE]`` ends the stream."""
        lead = self._lead
        if (
            lead
            and data.startswith(lead)
            and not prefix
            # Once: a second one, nested or repeated, might be the one that counts.
            and data.count(_MODEL_KEY) == 1
            and b"\n" not in data
            and self._is_plain(data)
        ):
            return self._lead_out + data[len(lead) :] + b"\n\n"
        return self._event(data, prefix)

    @staticmethod
    def _is_plain(data: bytes) -> bool:
        """Whether ``data`` is a valid chunk that needs no more than its model renamed."""
        try:
            if not data.isascii():
                data.decode()
            chunk = _decode_plain(data)
        except UNREADABLE:
            return False
        return chunk.usage is msgspec.UNSET and chunk.error is msgspec.UNSET

    def _learn(self, data: bytes, model: bytes) -> None:
        """Remember how a chunk begins, when it is clear which bytes are its model's name."""
        if data.count(_MODEL_KEY) == 1:
            key_end = data.index(_MODEL_KEY) + len(_MODEL_KEY)
            at = data.find(model, key_end)
            if at >= 0 and not data[key_end:at].strip(b" \t:"):
                self._lead = data[: at + len(model)]
                self._lead_out = b"data: " + data[:at] + bytes(self._alias)

    def _event(self, data: bytes, prefix: bytes) -> bytes:
        if data.startswith(b"[") and data.strip() == b"[DONE]":
            self.terminal = True
            return prefix + b"data: [DONE]\n\n"
        try:
            if not data.isascii():
                data.decode()
            chunk = _decode_object(data)
        except UNREADABLE:
            masked = surrogates.mask(data)
            if masked is None:
                raise MalformedAnswer from None
            return surrogates.unmask(self.event(masked[0], prefix), masked[1])
        if "error" in chunk or "choices" not in chunk or b"event: error\n" in prefix:
            raise_if_error(chunk, data, named=b"event: error\n" in prefix)
        if "usage" in chunk and not self._take_usage(chunk):
            return b""
        if "model" in chunk:
            self._learn(data, bytes(chunk["model"]))
            chunk["model"] = self._alias
        payload = encode(chunk)
        if b"\n" in data:
            # White space between tokens of an event of several data lines; a string can hold none.
            payload = payload.replace(b"\n", b" ")
        return prefix + b"data: " + payload + b"\n\n"

    def whole(self, body: bytes, content_type: str) -> Whole:
        """The completion, renamed."""
        try:
            if not body.isascii():
                body.decode()
            completion = _decode_object(body)
        except UNREADABLE:
            masked = surrogates.mask(body)
            if masked is None:
                raise MalformedAnswer from None
            return Whole(body=surrogates.unmask(self.whole(masked[0], content_type).body, masked[1]))
        if "choices" not in completion:
            raise_if_error(completion, body, named=False)
        if "usage" in completion:
            self._read_usage(completion["usage"])
        if "model" in completion:
            completion["model"] = self._alias
        return Whole(body=encode(completion))

    def _take_usage(self, chunk: dict[str, Raw]) -> bool:
        """Read a chunk's usage, and take it out where it is not for the caller. False: so is the chunk."""
        usage = bytes(chunk["usage"])
        if usage != NULL:
            self._read_usage(usage)
        if self._usage_shown is ShowUsage.ALL:
            return True
        if usage == NULL:
            del chunk["usage"]
            return True
        if "choices" in chunk and not bytes(chunk["choices"]).strip(b"[] \t\r\n"):
            return False
        if self._usage_shown is ShowUsage.NONE:
            del chunk["usage"]
        return True

    def _read_usage(self, usage: bytes | Raw) -> None:
        try:
            tokens = _tokens.decode(usage)
        except UNREADABLE:
            return
        self.usage = Usage(token_count(tokens.prompt_tokens), token_count(tokens.completion_tokens))


class _Tokens(msgspec.Struct):
    prompt_tokens: object = 0
    completion_tokens: object = 0


_tokens = msgspec.json.Decoder(_Tokens)


def _parts(message: Mapping[str, Raw]) -> Iterator[str | dict[str, str]]:
    """What a message's content consists of: texts, and objects with those of their fields that are strings.

    Content of another shape is the engine's to refuse.
    """
    content = bytes(message.get("content", NULL))
    if content.startswith(b'"'):
        yield STRING.decode(content)
    elif content.startswith(b"["):
        for raw in ARRAY.decode(content):
            part = bytes(raw)
            if part.startswith(b'"'):
                yield STRING.decode(part)
            elif part.startswith(b"{"):
                yield {
                    name: STRING.decode(value) if bytes(value).startswith(b'"') else ""
                    for name, value in OBJECT.decode(part).items()
                }


def _ask_for_usage(fields: dict[str, Raw]) -> ShowUsage:
    """Have the upstream end a stream with its usage, and say what of it is the caller's to see."""
    options = {} if is_unset(fields, "stream_options") else OBJECT.decode(fields["stream_options"])
    if not is_unset(options, "include_usage") and bytes(options["include_usage"]) != b"false":
        return ShowUsage.ALL
    options["include_usage"] = _TRUE
    fields["stream_options"] = Raw(encode(options))
    running = bytes(options.get("continuous_usage_stats", NULL))
    return ShowUsage.OWN if running in (NULL, b"false") else ShowUsage.NONE
