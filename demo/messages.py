"""Anthropic's messages as the engine answers them: ``POST /v1/messages`` and ``/v1/messages/count_tokens``.

It is as strict as the vendor's server about what a client must get right (the version header, unknown fields,
empty text, the place of tool results), so that a translation that gets it wrong is noticed by the first test
that meets it. What is said is what the same request would be told as a chat completion (`demo.replies`).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from demo.delivery import STREAM_HEADERS, Delivery, Final, Item, WireErrors, Work
from demo.replies import Answer, ChatRequest, RequestError, read_chat
from demo.wire import Request, compact_json

SIGNATURE = "c2lnbmVk"
"""What seals a thought."""

_FIELDS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "metadata",
        "output_config",
        "service_tier",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "cache_control",
    }
)
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}


class MessagesError(RequestError):
    """A request that the engine refuses, told in Anthropic's shape."""

    def body(self) -> bytes:
        """The answer's body."""
        return _error_body(self.message, "", self.status)


def _error_body(message: str, kind: str, status: int) -> bytes:
    error = {"type": _ERROR_TYPES.get(status, "api_error"), "message": message}
    return compact_json({"type": "error", "error": error})


def _error_events(message: str) -> bytes:
    return b"event: error\ndata: %b\n\n" % _error_body(message, "", 500)


ERRORS = WireErrors(_error_body, _error_events)


def messages(request: Request, *, label: str, model: str, max_model_len: int, tokens: int) -> Work:
    """``POST /v1/messages``. Raises RequestError."""
    data, chat = _read(request, model, max_model_len, tokens)
    answer = MessagesAnswer(
        chat, label=label, model=model, request_id=request.headers.get("x-request-id"), request_fields=data
    )
    if chat.stream:
        delivery = Delivery(headers=list(STREAM_HEADERS), script=answer.script(), whole=answer.body)
        delivery.early_head = True
    else:
        delivery = Delivery(body=answer.body())
    delivery.errors = ERRORS
    return Work(delivery=delivery, prompt_tokens=chat.prompt_tokens, steps=answer.steps)


def count_tokens(request: Request, *, model: str, max_model_len: int) -> Work:
    """``POST /v1/messages/count_tokens``. Raises RequestError."""
    _, chat = _read(request, model, max_model_len, 1, counts=True)
    delivery = Delivery(body=compact_json({"input_tokens": chat.prompt_tokens}), errors=ERRORS)
    return Work(delivery=delivery, prompt_tokens=chat.prompt_tokens, steps=0)


def _read(
    request: Request, model: str, max_model_len: int, tokens: int, *, counts: bool = False
) -> tuple[dict[str, Any], ChatRequest]:
    if "anthropic-version" not in request.headers:
        raise MessagesError("anthropic-version: header is required")
    try:
        data = json.loads(request.body)
    except (ValueError, RecursionError):
        raise MessagesError("The request body is not valid JSON.") from None
    if not isinstance(data, dict):
        raise MessagesError("Input should be an object")
    if unknown := sorted(set(data) - _FIELDS):
        raise MessagesError(f"{unknown[0]}: Extra inputs are not permitted")
    limit = data.get("max_tokens")
    if not counts and (type(limit) is not int or limit < 1):
        raise MessagesError("max_tokens: Field required")
    thinking = data.get("thinking") or {}
    if thinking.get("type") == "enabled" and not 1024 <= thinking.get("budget_tokens", 0) < limit:
        raise MessagesError("max_tokens must be greater than thinking.budget_tokens, which is at least 1024")
    try:
        return data, read_chat(_as_chat(data), model, max_model_len, tokens)
    except RequestError as error:
        raise MessagesError(error.message, status=error.status) from None


def _as_chat(data: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that asks for the same."""
    said: list[dict[str, Any]] = []
    if data.get("system"):
        said.append({"role": "system", "content": _blocks(data["system"])})
    called: set[str] = set()
    for message in data.get("messages") or []:
        called = _add_message(said, message, called)
    choice = data.get("tool_choice") or {"type": "auto"}
    if choice["type"] == "tool":
        chosen: Any = {"function": {"name": choice["name"]}}
    else:
        chosen = "required" if choice["type"] == "any" else choice["type"]
    wanted = (data.get("output_config") or {}).get("format")
    chat: dict[str, Any] = {
        "model": data.get("model"),
        "messages": said,
        "max_tokens": data.get("max_tokens"),
        "stream": data.get("stream"),
        "stop": data.get("stop_sequences"),
        "tools": [_as_tool(tool) for tool in data.get("tools") or []] or None,
        "tool_choice": chosen,
        "parallel_tool_calls": not choice.get("disable_parallel_tool_use", False),
        "reasoning_effort": "high" if _thinks(data) else None,
        "response_format": wanted and {"type": "json_schema", "json_schema": {"schema": wanted["schema"]}},
    }
    return chat


def _thinks(data: Mapping[str, Any]) -> bool:
    return (data.get("thinking") or {}).get("type") in ("enabled", "adaptive")


def _as_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(tool.get("input_schema"), dict):
        raise MessagesError("tools.0.custom.input_schema: Field required")
    return {"function": {"name": tool.get("name"), "parameters": tool["input_schema"]}}


def _add_message(said: list[dict[str, Any]], message: Mapping[str, Any], called: set[str]) -> set[str]:
    """Append what a message becomes as chat messages; the ids of its calls."""
    role = message.get("role")
    if role not in ("user", "assistant", "system"):
        raise MessagesError("messages: roles must be user, assistant or system")
    ids: set[str] = set()
    rest: list[dict[str, Any]] = []
    for block in _blocks(message.get("content")):
        if block["type"] == "tool_result":
            if block["tool_use_id"] not in called:
                raise MessagesError("messages: unexpected `tool_use_id` found in `tool_result` blocks")
            said.append({"role": "tool", "content": _blocks(block.get("content") or "-")})
        elif block["type"] == "tool_use":
            if _TOOL_ID.fullmatch(block["id"]) is None or not isinstance(block["input"], dict):
                raise MessagesError("messages: not a valid tool_use block")
            ids.add(block["id"])
        elif block["type"] in ("text", "image"):
            rest.append(block)
    if rest or ids:
        said.append({"role": role, "content": rest})
    return ids


def _blocks(content: Any) -> list[dict[str, Any]]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not blocks or not all(isinstance(one, dict) for one in blocks):
        raise MessagesError("messages: content must be text or a list of blocks")
    for block in blocks:
        if block.get("type") == "text" and not block.get("text"):
            raise MessagesError("messages: text content blocks must be non-empty")
        if block.get("type") == "image" and block["source"]["type"] not in ("base64", "url"):
            raise MessagesError("messages: unknown image source")
    return blocks


class MessagesAnswer(Answer):
    """One message, to be streamed or sent whole."""

    __slots__ = ("_shows_thoughts",)

    def __init__(
        self,
        request: ChatRequest,
        *,
        label: str,
        model: str,
        request_id: str | None,
        request_fields: Mapping[str, Any],
    ) -> None:
        super().__init__(request, label=label, model=model, request_id=request_id)
        self.id = f"msg_{self.id.removeprefix('chatcmpl-')}"
        self._shows_thoughts = _thinks(request_fields)

    def _message(self, **fields: Any) -> dict[str, Any]:
        usage = {"input_tokens": self.request.prompt_tokens, "output_tokens": 1}
        usage.update({"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0})
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
            **fields,
        }

    def _stopped(self) -> dict[str, Any]:
        choice = self.choice
        if choice.stop_reason is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
        reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        return {"stop_reason": reasons[choice.finish_reason], "stop_sequence": None}

    def body(self) -> bytes:
        """The whole message as JSON."""
        choice = self.choice
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            thought = "".join(choice.reasoning)
            content.append({"type": "thinking", "thinking": thought, "signature": SIGNATURE})
        if choice.text:
            content.append({"type": "text", "text": "".join(choice.text)})
        for call in choice.calls:
            given = json.loads(call.arguments)
            content.append({"type": "tool_use", "id": _tool_id(call.id), "name": call.name, "input": given})
        message = self._message(content=content, **self._stopped())
        message["usage"]["output_tokens"] = self.completion_tokens
        return compact_json(message)

    def script(self) -> Iterator[Item]:
        """The message as named events, one item per decode step, and the closing events last."""
        pending = _event("message_start", message=self._message()) + _event("ping")
        for index, (block, deltas, last) in enumerate(self._streamed()):
            pending += _event("content_block_start", index=index, content_block=block)
            for delta in deltas:
                yield pending + _event("content_block_delta", index=index, delta=delta)
                pending = b""
            if last is not None:
                pending += _event("content_block_delta", index=index, delta=last)
            pending += _event("content_block_stop", index=index)
        usage = {"output_tokens": self.completion_tokens}
        pending += _event("message_delta", delta=self._stopped(), usage=usage)
        yield Final(pending + _event("message_stop"))

    def _streamed(self) -> Iterator[tuple[dict[str, Any], Iterator[dict[str, Any]], dict[str, Any] | None]]:
        """Each block as it starts, its deltas by decode step, and one that closes it."""
        choice = self.choice
        if choice.reasoning:
            thoughts = ({"type": "thinking_delta", "thinking": token} for token in choice.reasoning)
            seal = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "thinking", "thinking": "", "signature": ""}, thoughts, seal
        if choice.text:
            texts = ({"type": "text_delta", "text": token} for token in choice.text)
            yield {"type": "text", "text": ""}, texts, None
        for call in choice.calls:
            # The first fragment is empty, as the vendor's is.
            pieces = ["", *call.fragments()]
            parts = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
            yield {"type": "tool_use", "id": _tool_id(call.id), "name": call.name, "input": {}}, parts, None


def _tool_id(call_id: str) -> str:
    return f"toolu_{call_id.rpartition('-')[2]}"


def _event(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), compact_json({"type": name, **fields}))
