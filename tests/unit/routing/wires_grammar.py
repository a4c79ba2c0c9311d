"""The vendors' published event sequences, to the letter; each reader returns what the deltas add up to."""

from collections.abc import Iterator, Sequence
from typing import Any

Events = Sequence[tuple[str | None, Any]]


def message_of(events: Events) -> dict[str, Any]:
    """The message that a stream of Anthropic's adds up to. Tool input stays the text that was streamed."""
    left = iter([(name, data) for name, data in events if name != "ping"])
    assert all(name == data["type"] for name, data in events)
    message: dict[str, Any] = dict(_next(left, "message_start")["message"])
    assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
    assert message["stop_reason"] is None
    content: list[dict[str, Any]] = []
    for name, data in left:
        if name == "message_delta":
            assert set(data["delta"]) >= {"stop_reason", "stop_sequence"}
            assert data["delta"]["stop_reason"] is not None
            message |= data["delta"]
            message["usage"] = {**message["usage"], **data["usage"]}
            break
        assert (name, data["index"]) == ("content_block_start", len(content))
        content.append(_block_of(data["content_block"], data["index"], left))
    else:
        raise AssertionError("no message_delta")
    assert _next(left, "message_stop") == {"type": "message_stop"}
    assert next(left, None) is None
    return {**message, "content": content}


_BLOCK_DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


def _block_of(start: dict[str, Any], index: int, left: Iterator[tuple[str | None, Any]]) -> dict[str, Any]:
    fields = _BLOCK_DELTAS[start["type"]]
    block = dict(start)
    if start["type"] == "tool_use":
        assert block["input"] == {}
        block["partial_json"] = ""
    seen: list[str] = []
    for name, data in left:
        assert data["index"] == index
        if name == "content_block_stop":
            break
        assert name == "content_block_delta"
        delta = data["delta"]
        block[fields[delta["type"]]] += delta[fields[delta["type"]]]
        seen.append(delta["type"])
    assert seen, "an empty block"
    assert "signature_delta" not in seen[:-1], "the seal comes last"
    if start["type"] == "tool_use":
        block["input"] = block.pop("partial_json")
        assert block["input"], "no input"
    else:
        assert block[start["type"]], "an empty block"
    return block


def _next(left: Iterator[tuple[str | None, Any]], name: str) -> Any:
    found, data = next(left)
    assert found == name
    return data


def response_of(events: Events) -> dict[str, Any]:
    """The response that a stream of OpenAI's ends with, after its deltas were found to add up to it."""
    assert all(name == data["type"] for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    left = iter(events)
    begun = _next(left, "response.created")["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert _next(left, "response.in_progress")["response"] == begun
    output: list[dict[str, Any]] = []
    for name, data in left:
        if name in ("response.completed", "response.incomplete"):
            assert next(left, None) is None
            response: dict[str, Any] = data["response"]
            assert name == f"response.{response['status']}"
            assert response["output"] == output
            changed = ("status", "output", "usage", "incomplete_details")
            unchanged = {key: value for key, value in response.items() if key not in changed}
            assert unchanged == {key: value for key, value in begun.items() if key not in changed}
            return response
        assert (name, data["output_index"]) == ("response.output_item.added", len(output))
        output.append(_item_of(data["item"], data["output_index"], left))
    raise AssertionError("no end")


_PARTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}


def _item_of(added: dict[str, Any], index: int, left: Iterator[tuple[str | None, Any]]) -> dict[str, Any]:
    place = {"item_id": added["id"], "output_index": index}
    assert added["status"] == "in_progress"
    part: dict[str, Any] = {}
    if added["type"] == "function_call":
        assert added["arguments"] == ""
        stream, field = "response.function_call_arguments", "arguments"
    else:
        assert added["content"] == []
        place["content_index"] = 0
        part = _at(left, "response.content_part.added", place)["part"]
        stream, field = _PARTS[part["type"]]
        assert part[field] == ""
    pieces = []
    for name, data in left:
        assert {key: data[key] for key in place} == place
        if name == f"{stream}.done":
            assert data[field] == "".join(pieces)
            break
        assert name == f"{stream}.delta"
        assert data["delta"], "an empty delta"
        pieces.append(data["delta"])
    assert pieces, "an empty item"
    if part:
        done = _at(left, "response.content_part.done", place)["part"]
        assert done == {**part, field: "".join(pieces)}
    finished = _next(left, "response.output_item.done")
    assert finished["output_index"] == index
    item: dict[str, Any] = finished["item"]
    grown = {"content": [{**part, field: "".join(pieces)}]} if part else {"arguments": "".join(pieces)}
    if "encrypted_content" in item:
        # The seal comes when all of it has been thought.
        grown["encrypted_content"] = item["encrypted_content"]
    assert item == {**added, **grown, "status": item["status"]}
    return item


def _at(left: Iterator[tuple[str | None, Any]], name: str, place: dict[str, Any]) -> Any:
    data = _next(left, name)
    assert {key: data[key] for key in place} == place
    return data


def completion_of(events: Events) -> dict[str, Any]:
    """The choice that a stream of chat chunks adds up to, with ``usage`` where it was told."""
    *chunks, (_, done) = events
    assert done == "[DONE]"
    assert all(name is None for name, _ in events)
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    told: dict[str, Any] = {"message": message, "finish_reason": None}
    heads = {(data["id"], data["object"], data["created"], data["model"]) for _, data in chunks}
    assert len(heads) == 1
    assert chunks[0][1]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    for _, data in chunks[1:]:
        if not data["choices"]:
            told["usage"] = data["usage"]
            continue
        assert told["finish_reason"] is None, "something after the end"
        (choice,) = data["choices"]
        told["finish_reason"] = choice["finish_reason"]
        for name, value in choice["delta"].items():
            if name != "tool_calls":
                message[name] += value
                continue
            (call,) = value
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({**call, "function": dict(call["function"])})
                assert call["function"]["arguments"] == ""
            else:
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert told["finish_reason"] is not None
    return told
