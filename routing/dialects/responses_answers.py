"""Answers of OpenAI's Responses, written for callers.

The order of a stream is the published one: ``response.created``, ``response.in_progress``; for each output
item ``response.output_item.added``, its part and deltas, each closed by a ``done`` event that repeats all of
it, ``response.output_item.done``; ``response.completed`` or ``response.incomplete`` with the whole response.
"""

from collections.abc import Mapping
from typing import Final

from routing.dialects.base import Dialect, Failure
from routing.dialects.document import Fields, encode_json
from routing.dialects.errors import error_type
from routing.dialects.narration import Block, BlockTeller, Stop, named_event

_ECHOED: Final[Mapping[str, object]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, and what stands for a field that was not set."""

_STREAMS: Final = {
    "text": "response.output_text",
    "refusal": "response.refusal",
    "thought": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
_ID_PREFIXES: Final = {"text": "msg", "refusal": "msg", "thought": "rs", "call": "fc"}
_UNTOLD: Final[Mapping[str, dict[str, object]]] = {
    "text": {"content": []},
    "refusal": {"content": []},
    "thought": {"content": []},
    "call": {},
}
"""What differs in an item that is only announced."""

_INCOMPLETE: Final = {Stop.LENGTH: "max_output_tokens", Stop.REFUSED: "content_filter"}


def echo(request: Fields) -> dict[str, object]:
    """The settings that a response repeats."""
    given = {name: request[name].value for name in _ECHOED}
    return {name: default if given[name] is None else given[name] for name, default in _ECHOED.items()}


class ResponsesTeller(BlockTeller):
    """Writes responses. ``settings`` is the request's `echo`."""

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool, settings: Mapping[str, object]) -> None:
        super().__init__(dialect=dialect, alias=alias, stream=stream)
        self._settings = settings
        self._base = ""
        self._created = 0
        self._numbered = 0

    def started(self, base_id: str, created: int) -> None:
        self._base = base_id
        self._created = created
        self._emit("response.created", {"response": self._response("in_progress")})
        self._emit("response.in_progress", {"response": self._response("in_progress")})

    def opened(self, block: Block) -> None:
        if block.kind == "call":
            block.call_id = block.call_id or f"call_{self._base}_{block.index}"
        item = {**self._item(block, "in_progress", ""), **_UNTOLD[block.kind]}
        self._emit("response.output_item.added", {"output_index": block.index, "item": item})
        if block.kind != "call":
            self._emit("response.content_part.added", {**self._place(block), "part": _part(block, "")})

    def grew(self, block: Block, piece: str) -> None:
        told = {**self._place(block), "delta": piece}
        if block.kind == "text":
            told["logprobs"] = []
        self._emit(f"{_STREAMS[block.kind]}.delta", told)

    def closed(self, block: Block) -> None:
        place, content = self._place(block), block.content
        if block.kind == "call":
            done = {**place, "name": block.name, "arguments": content}
        elif block.kind == "refusal":
            done = {**place, "refusal": content}
        else:
            done = {**place, "text": content}
            if block.kind == "text":
                done["logprobs"] = []
        self._emit(f"{_STREAMS[block.kind]}.done", done)
        if block.kind != "call":
            self._emit("response.content_part.done", {**place, "part": _part(block, content)})
        item = self._item(block, self._status(block), content)
        self._emit("response.output_item.done", {"output_index": block.index, "item": item})

    def end(self) -> None:
        super().end()
        status = self._end_status
        self._emit(f"response.{status}", {"response": self._response(status)})

    def whole(self) -> bytes:
        return encode_json(self._response(self._end_status))

    def error_event(self, failure: Failure) -> bytes:
        """The error event, numbered where the stream stands."""
        return error_event(failure, self._numbered)

    @property
    def _end_status(self) -> str:
        return "incomplete" if self.ending in _INCOMPLETE else "completed"

    def _status(self, block: Block) -> str:
        """The output limit leaves the last item incomplete."""
        is_last = block is self.blocks[-1] and len(self._queue) <= 1
        return "incomplete" if is_last and self.ending is Stop.LENGTH else "completed"

    def _place(self, block: Block) -> dict[str, object]:
        """Where an event belongs."""
        place: dict[str, object] = {"item_id": self._item_id(block), "output_index": block.index}
        return place if block.kind == "call" else {**place, "content_index": 0}

    def _item_id(self, block: Block) -> str:
        return f"{_ID_PREFIXES[block.kind]}_{self._base}_{block.index}"

    def _item(self, block: Block, status: str, content: str) -> dict[str, object]:
        item: dict[str, object] = {"id": self._item_id(block), "status": status}
        if block.kind == "call":
            called = {"call_id": block.call_id, "name": block.name, "arguments": content}
            return {**item, "type": "function_call", **called}
        parts = [_part(block, content)]
        if block.kind == "thought":
            seal = block.signature or None
            return {**item, "type": "reasoning", "summary": [], "content": parts, "encrypted_content": seal}
        return {**item, "type": "message", "role": "assistant", "content": parts}

    def _response(self, status: str) -> dict[str, object]:
        response: dict[str, object] = {
            "id": f"resp_{self._base}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.alias,
            "output": [],
            "previous_response_id": None,
            "store": False,
            "usage": None,
            **self._settings,
        }
        if status != "in_progress":
            response["output"] = [
                self._item(block, self._status(block), block.content) for block in self.blocks
            ]
            response["usage"] = self._usage()
            if self.ending in _INCOMPLETE:
                response["incomplete_details"] = {"reason": _INCOMPLETE[self.ending]}
        return response

    def _usage(self) -> dict[str, object]:
        tokens = self.tokens
        return {
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.written},
            "output_tokens": tokens.completion,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.prompt + tokens.completion,
        }

    def _emit(self, name: str, fields: dict[str, object]) -> None:
        if self.stream:
            numbered = {"type": name, "sequence_number": self._numbered, **fields}
            self._events.append(named_event(name, numbered))
            self._numbered += 1


def _part(block: Block, content: str) -> dict[str, object]:
    if block.kind == "refusal":
        return {"type": "refusal", "refusal": content}
    if block.kind == "thought":
        return {"type": "reasoning_text", "text": content}
    return {"type": "output_text", "text": content, "annotations": [], "logprobs": []}


def error_event(failure: Failure, number: int) -> bytes:
    """The wire's error event, and OpenAI's error envelope beside its fields: the official client raises an
    error for the one and hands the other on as an event like any other."""
    told = {"code": failure.code, "message": failure.message, "param": failure.param}
    envelope = {**told, "type": error_type(failure.status)}
    return named_event("error", {"type": "error", "sequence_number": number, **told, "error": envelope})
