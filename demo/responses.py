"""OpenAI's Responses as the engine answers them: ``POST /v1/responses``, nothing stored.

What is said is what the same request would be told as a chat completion (`demo.replies`).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from demo.delivery import STREAM_HEADERS, Delivery, Final, Item, WireErrors, Work
from demo.replies import Answer, ChatRequest, RequestError, error_body, read_chat
from demo.wire import Request, compact_json


def _error_events(message: str) -> bytes:
    failed = {"type": "response.failed", "sequence_number": 99}
    response = {"status": "failed", "error": {"code": "server_error", "message": message}}
    return b"event: response.failed\ndata: %b\n\n" % compact_json({**failed, "response": response})


ERRORS = WireErrors(error_body, _error_events)


def responses(request: Request, *, label: str, model: str, max_model_len: int, tokens: int) -> Work:
    """``POST /v1/responses``. Raises RequestError."""
    try:
        data = json.loads(request.body)
    except (ValueError, RecursionError):
        raise RequestError("The request body is not valid JSON.") from None
    if not isinstance(data, dict) or not data.get("input"):
        raise RequestError("input is missing", param="input")
    chat = read_chat(_as_chat(data), model, max_model_len, tokens)
    answer = ResponsesAnswer(
        chat, label=label, model=model, request_id=request.headers.get("x-request-id"), settings=data
    )
    if chat.stream:
        delivery = Delivery(headers=list(STREAM_HEADERS), script=answer.script(), whole=answer.body)
        delivery.early_head = True
    else:
        delivery = Delivery(body=answer.body())
    delivery.errors = ERRORS
    return Work(delivery=delivery, prompt_tokens=chat.prompt_tokens, steps=answer.steps)


def _as_chat(data: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that asks for the same."""
    said: list[dict[str, Any]] = []
    if data.get("instructions"):
        said.append({"role": "system", "content": data["instructions"]})
    given = data["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "message":
            said.append({"role": item["role"], "content": _as_parts(item["content"])})
        elif kind == "function_call_output":
            said.append({"role": "tool", "content": _as_parts(item["output"])})
        elif kind not in ("function_call", "reasoning"):
            raise RequestError(f"unknown item type: {kind}", param="input")
    wanted = (data.get("text") or {}).get("format") or {"type": "text"}
    if wanted["type"] == "json_schema":
        wanted = {"type": "json_schema", "json_schema": {"schema": wanted["schema"]}}
    choice = data.get("tool_choice") or "auto"
    return {
        "model": data.get("model"),
        "messages": said,
        "max_tokens": data.get("max_output_tokens"),
        "stream": data.get("stream"),
        "tools": [{"function": tool} for tool in data.get("tools") or []] or None,
        "tool_choice": {"function": choice} if isinstance(choice, dict) else choice,
        "parallel_tool_calls": data.get("parallel_tool_calls"),
        "reasoning_effort": (data.get("reasoning") or {}).get("effort"),
        "response_format": wanted,
    }


def _as_parts(content: Any) -> Any:
    """Content with its texts named as chat has them."""
    if isinstance(content, str):
        return content
    texts = ("input_text", "output_text")
    return [{**part, "type": "text"} if part.get("type") in texts else part for part in content]


class ResponsesAnswer(Answer):
    """One response, to be streamed or sent whole."""

    __slots__ = ("_settings",)

    def __init__(
        self,
        request: ChatRequest,
        *,
        label: str,
        model: str,
        request_id: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(request, label=label, model=model, request_id=request_id)
        self.id = f"resp_{self.id.removeprefix('chatcmpl-')}"
        self._settings = settings

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        prompt = self.request.prompt_tokens
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": len(self.choice.reasoning)},
            "total_tokens": prompt + self.completion_tokens,
        }
        cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": self._settings.get("tool_choice") or "auto",
            "tools": self._settings.get("tools") or [],
            "usage": None if status == "in_progress" else usage,
        }

    def _items(self) -> Iterator[tuple[dict[str, Any], str, tuple[str, ...]]]:
        """Each output item when it is complete, the name of its deltas, and these."""
        choice, tail = self.choice, self.id.removeprefix("resp_")
        if choice.reasoning:
            part = {"type": "reasoning_text", "text": "".join(choice.reasoning)}
            item = {"id": f"rs_{tail}", "type": "reasoning", "summary": [], "content": [part]}
            yield item, "reasoning_text", choice.reasoning
        if choice.text:
            text = {"type": "output_text", "text": "".join(choice.text), "annotations": [], "logprobs": []}
            item = {"id": f"msg_{tail}", "type": "message", "role": "assistant", "status": "completed"}
            yield {**item, "content": [text]}, "output_text", choice.text
        for index, call in enumerate(choice.calls):
            item = {"id": f"fc_{tail}_{index}", "type": "function_call", "status": "completed"}
            item.update({"call_id": call.id, "name": call.name, "arguments": call.arguments})
            yield item, "function_call_arguments", tuple(call.fragments())

    @property
    def _status(self) -> str:
        return "incomplete" if self.choice.finish_reason == "length" else "completed"

    def body(self) -> bytes:
        """The whole response as JSON."""
        return compact_json(self._response(self._status, [item for item, _, _ in self._items()]))

    def script(self) -> Iterator[Item]:
        """The response as named events, one item per decode step, and the closing events last."""
        events = _Numbered()
        begun = self._response("in_progress", [])
        pending = events.write("response.created", response=begun)
        pending += events.write("response.in_progress", response=begun)
        output = []
        for index, (item, stream, deltas) in enumerate(self._items()):
            output.append(item)
            place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
            untold = {**item, "status": "in_progress"}
            parts = item.get("content")
            untold["content" if parts else "arguments"] = [] if parts else ""
            pending += events.write("response.output_item.added", output_index=index, item=untold)
            if parts:
                place["content_index"] = 0
                empty = {**parts[0], "text": ""}
                pending += events.write("response.content_part.added", **place, part=empty)
            for delta in deltas:
                yield pending + events.write(f"response.{stream}.delta", **place, delta=delta)
                pending = b""
            done = {"text": parts[0]["text"]} if parts else {"arguments": item["arguments"]}
            pending += events.write(f"response.{stream}.done", **place, **done)
            if parts:
                pending += events.write("response.content_part.done", **place, part=parts[0])
            pending += events.write("response.output_item.done", output_index=index, item=item)
        end = self._response(self._status, output)
        yield Final(pending + events.write(f"response.{self._status}", response=end))


class _Numbered:
    """Writes events one after the other."""

    def __init__(self) -> None:
        self._number = 0

    def write(self, name: str, **fields: Any) -> bytes:
        payload = compact_json({"type": name, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), payload)
