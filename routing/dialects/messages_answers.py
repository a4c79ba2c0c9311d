"""Answers of Anthropic's messages: told from an upstream's, and written for callers.

The order of a stream is the published one: ``message_start``; for each content block ``content_block_start``,
its deltas (a thought's signature last), ``content_block_stop``; ``message_delta``, ``message_stop``.
"""

from typing import Any, Final

import msgspec

from routing.dialects.base import Dialect, MalformedAnswer
from routing.dialects.document import encode_json
from routing.dialects.errors import refusal_in
from routing.dialects.fields import token_count
from routing.dialects.narration import (
    Block,
    BlockTeller,
    Reader,
    Stop,
    Teller,
    Tokens,
    named_event,
    read_answer,
)


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class _Usage(msgspec.Struct):
    input_tokens: object = None
    cache_creation_input_tokens: object = None
    cache_read_input_tokens: object = None
    output_tokens: object = None


class _Message(msgspec.Struct):
    """A whole message, or the one that a stream starts with."""

    type: str = ""
    id: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None
    error: object = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: object = None


_STOPS: Final = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.END,
    "pause_turn": Stop.END,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "tool_use": Stop.TOOLS,
    "refusal": Stop.REFUSED,
}


class MessagesReader(Reader):
    """Tells a message. Kinds of events and blocks that it does not know it passes over, as the wire asks."""

    def __init__(self) -> None:
        self._usage = _Usage()
        self._open_call: int | None = None
        self._has_arguments = False

    def event(self, data: bytes, *, named_error: bool, teller: Teller) -> bool:
        """Tell one event; ``message_stop`` ends the stream."""
        if named_error:
            raise refusal_in(data)
        event = read_answer(data, _Event)
        if event.type == "error" or event.error is not None:
            raise refusal_in(data)
        if event.type == "message_start":
            message = event.message or _Message()
            teller.begin(message.id, None)
            self._add_usage(message.usage, teller)
        elif event.type == "content_block_start" and event.content_block is not None:
            self._tell_block(event.content_block, event.index, teller)
        elif event.type == "content_block_delta" and event.delta is not None:
            self._tell_delta(event.delta, event.index, teller)
        elif event.type == "content_block_stop":
            self._close_call(teller)
        elif event.type == "message_delta":
            self._tell_stop(event.delta or _Delta(), teller)
            self._add_usage(event.usage, teller)
        elif event.type == "message_stop":
            teller.begin(None, None)
            return True
        return False

    def whole(self, body: bytes, teller: Teller) -> None:
        """Tell a message."""
        message = read_answer(body, _Message)
        if message.type == "error" or message.error is not None:
            raise refusal_in(body)
        if message.content is None:
            raise MalformedAnswer
        teller.begin(message.id, None)
        for index, block in enumerate(message.content):
            self._tell_block(block, index, teller)
            self._close_call(teller)
        self._tell_stop(message, teller)
        self._add_usage(message.usage, teller)

    def _tell_block(self, block: _Block, index: int, teller: Teller) -> None:
        if block.type == "text":
            teller.text(block.text or "")
        elif block.type == "thinking":
            teller.thought(block.thinking or "")
            teller.signature(block.signature or "")
        elif block.type == "tool_use":
            if not block.name:
                raise MalformedAnswer
            self._open_call, self._has_arguments = index, bool(block.input)
            teller.call(index, block.id, block.name)
            if block.input:
                teller.arguments(index, encode_json(block.input).decode())

    def _tell_delta(self, delta: _Delta, index: int, teller: Teller) -> None:
        if delta.type == "text_delta":
            teller.text(delta.text or "")
        elif delta.type == "thinking_delta":
            teller.thought(delta.thinking or "")
        elif delta.type == "signature_delta":
            teller.signature(delta.signature or "")
        elif delta.type == "input_json_delta" and delta.partial_json and index == self._open_call:
            self._has_arguments = True
            teller.arguments(index, delta.partial_json)

    def _close_call(self, teller: Teller) -> None:
        if self._open_call is not None and not self._has_arguments:
            teller.arguments(self._open_call, "{}")
        self._open_call = None

    def _tell_stop(self, told: _Message | _Delta, teller: Teller) -> None:
        if told.stop_reason is not None:
            teller.stop(_STOPS.get(told.stop_reason, Stop.END), told.stop_sequence)

    def _add_usage(self, usage: _Usage | None, teller: Teller) -> None:
        """Counts are totals so far; the later event repeats only those that changed."""
        if usage is None:
            return
        known = self._usage
        for name in _Usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(known, name, value)
        cached = token_count(known.cache_read_input_tokens)
        written = token_count(known.cache_creation_input_tokens)
        teller.tokens = Tokens(
            prompt=token_count(known.input_tokens) + cached + written,
            cached=cached,
            written=written,
            completion=token_count(known.output_tokens),
        )


_STOP_REASONS: Final = {
    Stop.END: "end_turn",
    Stop.LENGTH: "max_tokens",
    Stop.TOOLS: "tool_use",
    Stop.REFUSED: "refusal",
}


class MessagesTeller(BlockTeller):
    """Writes messages. ``thinking``: the caller asked to be shown reasoning; without, the wire has none."""

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool, thinking: bool) -> None:
        super().__init__(dialect=dialect, alias=alias, stream=stream)
        self._thinking = thinking
        self._id = ""

    def started(self, base_id: str, created: int) -> None:
        self._id = f"msg_{base_id}"
        message = self._message([], None, None)
        self._emit("message_start", {"message": message})

    def thought(self, text: str) -> None:
        if self._thinking:
            super().thought(text)

    def refusal(self, text: str) -> None:
        """The wire has no blocks for refusals: their text is text."""
        if text:
            self._refused = True
            self.text(text)

    def opened(self, block: Block) -> None:
        start: dict[str, object]
        if block.kind == "call":
            block.call_id = block.call_id or f"toolu_{self._id.removeprefix('msg_')}_{block.index}"
            start = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
        elif block.kind == "thought":
            start = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            start = {"type": "text", "text": ""}
        self._emit("content_block_start", {"index": block.index, "content_block": start})

    def grew(self, block: Block, piece: str) -> None:
        if block.kind == "call":
            self._emit_delta(block, {"type": "input_json_delta", "partial_json": piece})
        elif block.kind == "thought":
            self._emit_delta(block, {"type": "thinking_delta", "thinking": piece})
        else:
            self._emit_delta(block, {"type": "text_delta", "text": piece})

    def closed(self, block: Block) -> None:
        if block.kind == "call":
            self.input_of(block)
        elif block.signature:
            self._emit_delta(block, {"type": "signature_delta", "signature": block.signature})
        self._emit("content_block_stop", {"index": block.index})

    def end(self) -> None:
        super().end()
        stop_reason, sequence = self._stopped()
        delta = {"stop_reason": stop_reason, "stop_sequence": sequence}
        self._emit("message_delta", {"delta": delta, "usage": self._usage()})
        self._emit("message_stop", {})

    def whole(self) -> bytes:
        return encode_json(self._message([self._block(block) for block in self.blocks], *self._stopped()))

    def _stopped(self) -> tuple[str, str | None]:
        ending = self.ending
        if ending is Stop.END and self.sequence is not None:
            return "stop_sequence", self.sequence
        return _STOP_REASONS[ending], None

    def _block(self, block: Block) -> dict[str, object]:
        if block.kind == "call":
            given = self.input_of(block)
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": given}
        if block.kind == "thought":
            return {"type": "thinking", "thinking": block.content, "signature": block.signature}
        return {"type": "text", "text": block.content}

    def _message(
        self, content: list[dict[str, object]], stop_reason: str | None, sequence: str | None
    ) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.alias,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": sequence,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, object]:
        """Anthropic counts what came from or went into a cache apart from the rest of the input."""
        tokens = self.tokens
        return {
            "input_tokens": max(tokens.prompt - tokens.cached - tokens.written, 0),
            "cache_creation_input_tokens": tokens.written,
            "cache_read_input_tokens": tokens.cached,
            "output_tokens": tokens.completion,
        }

    def _emit_delta(self, block: Block, delta: dict[str, object]) -> None:
        self._emit("content_block_delta", {"index": block.index, "delta": delta})

    def _emit(self, name: str, fields: dict[str, object]) -> None:
        if self.stream:
            self._events.append(named_event(name, {"type": name, **fields}))
