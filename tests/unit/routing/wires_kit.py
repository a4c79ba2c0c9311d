"""What upstreams send in each wire, and the pairs of caller's and upstream's wire that there are."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from routing.dialects.anthropic_messages import MESSAGES
from routing.dialects.base import Dialect, Target, Translator, UpstreamCall
from routing.dialects.openai_chat import CHAT
from routing.dialects.openai_responses import RESPONSES
from routing.exchange import Exchange
from tests.unit.routing.exchange_kit import CHUNKS, STREAM, WHOLE

OPENAI = Target(dialect="openai")
ANTHROPIC = Target(dialect="anthropic")
NATIVE = Target(dialect="openai", wires=("responses", "messages"))


def named(name: str, /, **fields: Any) -> bytes:
    """One event with its name, compact."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), compact({"type": name, **fields}))


def compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One short answer in an upstream's wire; ``end`` is its terminal event."""

    first: bytes
    middle: bytes
    end: bytes
    whole: bytes
    error: bytes
    error_body: bytes

    @property
    def stream(self) -> bytes:
        return self.first + self.middle + self.end


_FIRST = b"data: " + CHUNKS[0] + b"\n\n"
_DONE = b"data: [DONE]\n\n"

CHAT_SAMPLE = Sample(
    first=_FIRST,
    middle=STREAM[len(_FIRST) : -len(_DONE)],
    end=_DONE,
    whole=WHOLE,
    error=b'data: {"error":{"message":"m"}}\n\n',
    error_body=b'{"error":{}}',
)

_MESSAGE = {
    "id": "msg_m1",
    "type": "message",
    "role": "assistant",
    "model": "qwen3-32b",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": 1},
}

MESSAGES_SAMPLE = Sample(
    first=named("message_start", message=_MESSAGE),
    middle=named("content_block_start", index=0, content_block={"type": "text", "text": ""})
    + named("ping")
    + named("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
    + named("content_block_stop", index=0)
    + named(
        "message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage={"output_tokens": 2},
    ),
    end=named("message_stop"),
    whole=compact(
        {
            **_MESSAGE,
            "content": [{"type": "text", "text": "Hi"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "output_tokens": 2},
        }
    ),
    error=named("error", error={"type": "api_error", "message": "m"}),
    error_body=b'{"type":"error","error":{"type":"api_error","message":"m"}}',
)

_ITEM = {"id": "msg_r1", "type": "message", "role": "assistant"}
_PART = {"type": "output_text", "text": "Hi", "annotations": []}
_RESPONSE = {"id": "resp_r1", "object": "response", "model": "qwen3-32b"}
_COMPLETED = {
    **_RESPONSE,
    "status": "completed",
    "error": None,
    "output": [{**_ITEM, "status": "completed", "content": [_PART]}],
    "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9},
}

RESPONSES_SAMPLE = Sample(
    first=named("response.created", sequence_number=0, response={**_RESPONSE, "status": "in_progress"}),
    middle=named("response.output_text.delta", sequence_number=1, item_id="msg_r1", delta="Hi"),
    end=named("response.completed", sequence_number=2, response=_COMPLETED),
    whole=compact(_COMPLETED),
    error=named("response.failed", sequence_number=2, response={"error": {"code": "x", "message": "m"}}),
    error_body=b'{"error":{"message":"m"}}',
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A caller's wire, and the upstream that answers it."""

    dialect: Dialect
    target: Target
    sample: Sample

    def request(self, **fields: Any) -> bytes:
        """The least request of the caller's wire, and ``fields``."""
        said: dict[str, Any]
        if self.dialect is RESPONSES:
            said = {"model": "demo.chat", "input": "Hi"}
        else:
            said = {"model": "demo.chat", "messages": [{"role": "user", "content": "Hi"}]}
            if self.dialect is MESSAGES:
                said["max_tokens"] = 64
        return compact({**said, **fields})

    def call(self, **fields: Any) -> UpstreamCall:
        return self.dialect.parse(self.request(**fields)).prepare(self.target, model="qwen3-32b")

    def translator(self, *, stream: bool, **fields: Any) -> Translator:
        return self.call(stream=stream, **fields).translator

    def exchange(self, *, stream: bool, **fields: Any) -> Exchange:
        return Exchange(self.translator(stream=stream, **fields))

    @property
    def end(self) -> bytes:
        """How the caller's stream ends."""
        return {"chat": b"[DONE]\n\n", "messages": b'{"type":"message_stop"}\n\n', "responses": b"}\n\n"}[
            self.dialect.wire
        ]

    def errors(self, body: bytes, *, stream: bool) -> int:
        """How many errors there are in what a caller got."""
        if stream and self.dialect is not CHAT:
            return body.count(b"event: error\ndata: {")
        return body.count(b'{"type":"error",' if self.dialect is MESSAGES else b'{"error":')

    def ends(self, body: bytes) -> int:
        """How many proper ends there are in a caller's stream."""
        markers = {"chat": rb"\[DONE\]", "messages": rb"event: message_stop"}
        return len(
            re.findall(markers.get(self.dialect.wire, rb"event: response\.(completed|incomplete)"), body)
        )


PAIRS = {
    "chat from chat": Pair(dialect=CHAT, target=OPENAI, sample=CHAT_SAMPLE),
    "responses from responses": Pair(dialect=RESPONSES, target=NATIVE, sample=RESPONSES_SAMPLE),
    "messages from messages": Pair(dialect=MESSAGES, target=ANTHROPIC, sample=MESSAGES_SAMPLE),
    "messages from openai's messages": Pair(dialect=MESSAGES, target=NATIVE, sample=MESSAGES_SAMPLE),
    "chat from messages": Pair(dialect=CHAT, target=ANTHROPIC, sample=MESSAGES_SAMPLE),
    "responses from chat": Pair(dialect=RESPONSES, target=OPENAI, sample=CHAT_SAMPLE),
    "responses from messages": Pair(dialect=RESPONSES, target=ANTHROPIC, sample=MESSAGES_SAMPLE),
    "messages from chat": Pair(dialect=MESSAGES, target=OPENAI, sample=CHAT_SAMPLE),
}


def read_events(body: bytes) -> list[tuple[str | None, Any]]:
    """The events of a caller's stream: name and JSON (or ``[DONE]``), comments left out."""
    told = []
    for block in body.removesuffix(b"\n\n").split(b"\n\n"):
        lines = block.decode().split("\n")
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = "\n".join(line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        if data:
            told.append((names[0] if names else None, data if data == "[DONE]" else json.loads(data)))
    return told


def told(pair: Pair, events: Iterable[bytes], **fields: Any) -> list[tuple[str | None, Any]]:
    """What a streaming caller is told for these events' data."""
    translator = pair.translator(stream=True, **fields)
    return read_events(b"".join(translator.event(data, b"") for data in events))


def whole(pair: Pair, body: bytes, **fields: Any) -> Any:
    """The whole answer that a caller gets for this body."""
    return json.loads(pair.translator(stream=False, **fields).whole(body, "application/json").body)
