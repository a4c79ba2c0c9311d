"""Answers of chat completions: told from an upstream's, and written for callers."""

from typing import Final

import msgspec

from routing.dialects.base import Dialect, MalformedAnswer
from routing.dialects.document import encode_json
from routing.dialects.errors import refusal_in
from routing.dialects.fields import token_count
from routing.dialects.narration import Halves, Reader, Stop, Teller, Tokens, read_answer


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(msgspec.Struct):
    """A message, or a delta of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM: the stop sequence, or the number of the token, that ended it."""


class _Details(msgspec.Struct):
    cached_tokens: object = 0
    reasoning_tokens: object = 0


class _Usage(msgspec.Struct):
    prompt_tokens: object = 0
    completion_tokens: object = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Completion(msgspec.Struct):
    """A completion, or a chunk of one."""

    id: str | None = None
    created: float | None = None
    kind: str | None = msgspec.field(name="object", default=None)
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


_STOPS: Final = {
    "stop": Stop.END,
    "length": Stop.LENGTH,
    "tool_calls": Stop.TOOLS,
    "function_call": Stop.TOOLS,
    "content_filter": Stop.REFUSED,
}


class ChatReader(Reader):
    """Tells the first choice of a chat completion; no translated request asks for more."""

    def __init__(self) -> None:
        self._calls: set[int] = set()
        self._last_call = 0
        self._text = Halves()
        self._thoughts = Halves()

    def event(self, data: bytes, *, named_error: bool, teller: Teller) -> bool:
        """Tell one chunk; ``[DONE]`` ends the stream."""
        if data.strip() == b"[DONE]":
            teller.begin(None, None)
            return True
        if named_error:
            raise refusal_in(data)
        self._tell(read_answer(data, _Completion), data, teller)
        return False

    def whole(self, body: bytes, teller: Teller) -> None:
        """Tell a completion, which has a choice."""
        completion = read_answer(body, _Completion)
        self._tell(completion, body, teller)
        if not completion.choices:
            raise MalformedAnswer

    def _tell(self, completion: _Completion, data: bytes, teller: Teller) -> None:
        if completion.error is not None or completion.kind == "error":
            raise refusal_in(data)
        teller.begin(completion.id, completion.created)
        if completion.usage is not None:
            teller.tokens = _tokens(completion.usage)
        for choice in completion.choices or ():
            if choice.index:
                continue
            said = choice.delta or choice.message
            if said is not None:
                self._tell_said(said, teller)
            if choice.finish_reason is not None:
                met = choice.stop_reason if isinstance(choice.stop_reason, str) else None
                teller.stop(_STOPS.get(choice.finish_reason, Stop.END), met)

    def _tell_said(self, said: _Said, teller: Teller) -> None:
        teller.thought(self._thoughts.join(said.reasoning_content or said.reasoning or ""))
        teller.text(self._text.join(said.content or ""))
        if said.refusal:
            teller.refusal(said.refusal)
        for call in said.tool_calls or ():
            self._tell_call(call, teller)

    def _tell_call(self, call: _Call, teller: Teller) -> None:
        function = call.function or _Function()
        key = call.index
        if key is None:
            # Engines that number nothing send calls whole, one after the other.
            key = len(self._calls) if function.name else self._last_call
        self._last_call = key
        if function.name and key not in self._calls:
            self._calls.add(key)
            teller.call(key, call.id, function.name)
        if function.arguments:
            teller.arguments(key, function.arguments)


def _tokens(usage: _Usage) -> Tokens:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Tokens(
        prompt=token_count(usage.prompt_tokens),
        cached=token_count(prompt.cached_tokens) if prompt is not None else 0,
        completion=token_count(usage.completion_tokens),
        reasoning=token_count(completion.reasoning_tokens) if completion is not None else 0,
    )


_FINISH_REASONS: Final = {
    Stop.END: "stop",
    Stop.LENGTH: "length",
    Stop.TOOLS: "tool_calls",
    Stop.REFUSED: "content_filter",
}


class ChatTeller(Teller):
    """Writes chat completions. ``usage``: the caller asked for it at the end of a stream."""

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool, usage: bool) -> None:
        super().__init__(dialect=dialect, alias=alias, stream=stream)
        self._usage_asked = usage
        self._id = ""
        self._created = 0
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, dict[str, object]] = {}
        self._arguments: dict[int, list[str]] = {}

    def started(self, base_id: str, created: int) -> None:
        self._id = f"chatcmpl-{base_id}"
        self._created = created
        self._say({"role": "assistant", "content": ""})

    def text(self, text: str) -> None:
        if text:
            self._keep(self._text, text)
            self._say({"content": text})

    def thought(self, text: str) -> None:
        if text:
            self._keep(self._thoughts, text)
            self._say({"reasoning_content": text})

    def signature(self, signature: str) -> None:
        """The wire has no place for it."""

    def _keep(self, pieces: list[str], piece: str) -> None:
        """What a whole answer will be made of; a stream has told it already."""
        if not self.stream:
            pieces.append(piece)

    def called(self, key: int, call_id: str | None, name: str) -> None:
        index = len(self._calls)
        given = call_id or f"call_{self._id.removeprefix('chatcmpl-')}_{index}"
        start = {"id": given, "type": "function", "function": {"name": name, "arguments": ""}}
        self._calls[key] = {"index": index, **start}
        self._arguments[key] = []
        self._say({"tool_calls": [self._calls[key]]})

    def arguments(self, key: int, fragment: str) -> None:
        if key not in self._calls:
            raise MalformedAnswer
        if fragment:
            self._keep(self._arguments[key], fragment)
            index = self._calls[key]["index"]
            self._say({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]})

    def end(self) -> None:
        if not self.stream:
            return
        self._say({}, finish_reason=_FINISH_REASONS[self.ending])
        if self._usage_asked:
            self._emit({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()})
        self._events.append(b"data: [DONE]\n\n")

    def whole(self) -> bytes:
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": _name(call), "arguments": "".join(self._arguments[key])},
            }
            for key, call in self._calls.items()
        ]
        message: dict[str, object] = {
            "role": "assistant",
            "content": "".join(self._text) if self._text or not calls else None,
            "refusal": None,
        }
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _FINISH_REASONS[self.ending],
        }
        return encode_json({**self._head("chat.completion"), "choices": [choice], "usage": self._usage()})

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self.alias}

    def _say(self, delta: dict[str, object], finish_reason: str | None = None) -> None:
        if self.stream:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            chunk: dict[str, object] = {**self._head("chat.completion.chunk"), "choices": [choice]}
            if self._usage_asked:
                chunk["usage"] = None
            self._emit(chunk)

    def _emit(self, chunk: dict[str, object]) -> None:
        self._events.append(b"data: " + encode_json(chunk) + b"\n\n")

    def _usage(self) -> dict[str, object]:
        tokens = self.tokens
        return {
            "prompt_tokens": tokens.prompt,
            "completion_tokens": tokens.completion,
            "total_tokens": tokens.prompt + tokens.completion,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        }


def _name(call: dict[str, object]) -> object:
    function = call["function"]
    return function["name"] if isinstance(function, dict) else None
