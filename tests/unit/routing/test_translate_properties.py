"""However an answer is chunked, interleaved and cut: the deltas add up to the whole answer, in the vendors'
published order."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.exchange import Exchange
from tests.unit.routing.exchange_kit import PLACES, bytewise, cut, feed, http, sse
from tests.unit.routing.wires_grammar import completion_of, message_of, response_of
from tests.unit.routing.wires_kit import PAIRS, Pair, compact, read_events

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "cases 22", "cases 30")

TEXT = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from('"\\{}[],你🙂é\n ')), min_size=1, max_size=12
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
INPUTS = st.dictionaries(TEXT, VALUES, max_size=3)
SHOWN = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@dataclass
class Story:
    """An answer: what is thought, said and called, and why it ends."""

    thought: str
    text: str
    inputs: list[dict[str, Any]]
    ending: str
    sequence: str | None = None


@st.composite
def stories(draw: st.DrawFn) -> Story:
    inputs = draw(st.lists(INPUTS, max_size=3))
    ending = draw(st.sampled_from(["tool", "length"] if inputs else ["end", "length", "sequence", "refusal"]))
    return Story(
        thought=draw(st.just("") | TEXT),
        text=draw(st.just("") | TEXT),
        inputs=inputs,
        ending=ending,
        sequence=draw(TEXT) if ending == "sequence" else None,
    )


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """``text`` in pieces of any size, empty ones too."""
    bounds = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *bounds], [*bounds, len(text)], strict=True)]


def spelled(draw: st.DrawFn, value: dict[str, Any]) -> str:
    """``value`` as a model might write it."""
    return json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))


CHAT_FINISH = {
    "end": "stop",
    "tool": "tool_calls",
    "length": "length",
    "sequence": "stop",
    "refusal": "content_filter",
}
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
}


@st.composite
def told_in_chat(draw: st.DrawFn) -> tuple[Story, bytes, bytes]:
    """A story, as a stream of chunks and as a whole completion."""
    story = draw(stories())
    given_inputs = [spelled(draw, one) for one in story.inputs]
    lines: list[list[dict[str, Any]]] = [[{"content": piece} for piece in pieces(draw, story.text)]]
    for index, text in enumerate(given_inputs):
        first = {"index": index, "id": f"call_{index}", "type": "function"}
        start = [{"tool_calls": [{**first, "function": {"name": f"f{index}", "arguments": ""}}]}]
        lines.append(
            start
            + [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
                for piece in pieces(draw, text)
            ]
        )
    key = draw(st.sampled_from(["reasoning_content", "reasoning"]))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{key: piece} for piece in pieces(draw, story.thought)]
    deltas += interleaved(draw, lines)
    finish = {"finish_reason": CHAT_FINISH[story.ending], "stop_reason": story.sequence}
    head = {"id": "chatcmpl-c1", "created": 5, "model": "m"}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, **finish}]})
    chunks.append({**head, "choices": [], "usage": USAGE})
    stream = b"".join(b"data: " + compact(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": f"f{index}", "arguments": text}}
        for index, text in enumerate(given_inputs)
    ]
    message = {"role": "assistant", "content": story.text, key: story.thought, "tool_calls": calls}
    whole = {**head, "choices": [{"index": 0, "message": message, **finish}], "usage": USAGE}
    return story, stream, compact(whole)


def interleaved(draw: st.DrawFn, lines: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The lines' elements in any order that keeps each line's own."""
    order = draw(st.permutations([index for index, line in enumerate(lines) for _ in line]))
    left = [iter(line) for line in lines]
    return [next(left[index]) for index in order]


MESSAGES_STOP = {
    "end": "end_turn",
    "tool": "tool_use",
    "length": "max_tokens",
    "sequence": "stop_sequence",
    "refusal": "refusal",
}


@st.composite
def told_in_messages(draw: st.DrawFn) -> tuple[Story, bytes, bytes]:
    """A story, as a stream of Anthropic's events and as a whole message."""
    story = draw(stories())
    blocks: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = []
    if story.thought:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(draw, story.thought)]
        seal = {"type": "signature_delta", "signature": "sealed"}
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        whole = {"type": "thinking", "thinking": story.thought, "signature": "sealed"}
        blocks.append((empty, whole, [*deltas, seal]))
    if story.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(draw, story.text)]
        blocks.append(({"type": "text", "text": ""}, {"type": "text", "text": story.text}, deltas))
    for index, value in enumerate(story.inputs):
        parts = pieces(draw, spelled(draw, value)) if value or draw(st.booleans()) else []
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        tool = {"type": "tool_use", "id": f"toolu_{index}", "name": f"f{index}"}
        blocks.append(({**tool, "input": {}}, {**tool, "input": value}, deltas))
    stopped = {"stop_reason": MESSAGES_STOP[story.ending], "stop_sequence": story.sequence}
    message = {"id": "msg_m1", "type": "message", "role": "assistant", "model": "m"}
    counted = {"input_tokens": 7, "cache_read_input_tokens": 4, "output_tokens": 1}
    untold = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": counted}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, **untold}}]
    for index, (start, _, deltas) in enumerate(blocks):
        if draw(st.booleans()):
            events.append({"type": "ping"})
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 5}})
    events.append({"type": "message_stop"})
    stream = b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), compact(event)) for event in events
    )
    body = {**message, "content": [whole for _, whole, _ in blocks], **stopped}
    return story, stream, compact({**body, "usage": {**counted, "output_tokens": 5}})


def run(pair: Pair, stream: bytes, whole: bytes, places: list[int]) -> tuple[Any, Any]:
    """The events of a streaming caller and the whole answer of another; cutting changes neither."""
    fields = SHOWN if pair.dialect.wire == "messages" else {}
    asked = {"stream_options": {"include_usage": True}} if pair.dialect.wire == "chat" else fields
    response = sse(stream)
    seen = []
    for reads in ([response], cut(response, places), bytewise(response)):
        streamed = feed(Exchange(pair.translator(stream=True, **asked)), reads)
        assert streamed.outcome.reason == "served"
        assert streamed.exchange.reusable
        seen.append(without_times(streamed.body))
    assert seen[0] == seen[1] == seen[2]
    answered = feed(Exchange(pair.translator(stream=False, **fields)), [http(whole)])
    assert answered.outcome.reason == "served"
    assert streamed.outcome.usage == answered.outcome.usage
    return read_events(streamed.body), json.loads(answered.body)


def without_times(body: bytes) -> list[Any]:
    events = read_events(body)
    for _, data in events:
        if isinstance(data, dict):
            data.pop("created", None)
            data.get("response", {}).pop("created_at", None)
    return events


def by_kind(content: list[dict[str, Any]]) -> tuple[str, str, list[Any]]:
    """What the blocks of a message hold, whatever their order: thought, text, calls."""
    calls = [
        (block["id"], block["name"], parsed(block["input"]))
        for block in content
        if block["type"] == "tool_use"
    ]
    thought = "".join(block["thinking"] for block in content if block["type"] == "thinking")
    text = "".join(block["text"] for block in content if block["type"] == "text")
    return thought, text, sorted(calls, key=lambda call: call[0])


def parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@given(told=told_in_chat(), places=PLACES)
def test_messages_from_chat(told, places):
    story, stream, whole = told
    events, message = run(PAIRS["messages from chat"], stream, whole, places)

    added_up = message_of(events)
    calls = [(f"call_{index}", f"f{index}", value) for index, value in enumerate(story.inputs)]
    assert by_kind(added_up["content"]) == (story.thought, story.text, calls)
    assert by_kind(message["content"]) == (story.thought, story.text, calls)
    stop = MESSAGES_STOP[story.ending]
    for one in (added_up, message):
        assert (one["stop_reason"], one["stop_sequence"]) == (stop, story.sequence)
    assert {**added_up, "content": None} == {**message, "content": None}


@given(told=told_in_chat(), places=PLACES)
def test_responses_from_chat(told, places):
    story, stream, whole = told
    events, response = run(PAIRS["responses from chat"], stream, whole, places)

    streamed = response_of(events)
    for one in (streamed, response):
        said: dict[str, str] = {"reasoning": "", "message": ""}
        calls = []
        for item in one["output"]:
            if item["type"] == "function_call":
                calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
            else:
                said[item["type"]] += item["content"][0]["text"]
        expected = [(f"call_{index}", f"f{index}", value) for index, value in enumerate(story.inputs)]
        assert (said["reasoning"], said["message"], sorted(calls, key=lambda call: call[0])) == (
            story.thought,
            story.text,
            expected,
        )
    reason = {"length": "max_output_tokens", "refusal": "content_filter"}.get(story.ending)
    assert response["incomplete_details"] == ({"reason": reason} if reason else None)
    assert {**streamed, "output": None} == {**response, "output": None}


@given(told=told_in_messages(), places=PLACES)
def test_chat_from_messages(told, places):
    story, stream, whole = told
    events, completion = run(PAIRS["chat from messages"], stream, whole, places)

    streamed = completion_of(events)
    (choice,) = completion["choices"]
    for one in (streamed, choice):
        message = one["message"]
        assert (message["content"] or "", message.get("reasoning_content", "")) == (story.text, story.thought)
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        assert calls == [(f"toolu_{index}", f"f{index}", value) for index, value in enumerate(story.inputs)]
        assert one["finish_reason"] == CHAT_FINISH[story.ending]
    assert streamed["usage"] == completion["usage"]


@given(told=told_in_messages(), places=PLACES)
def test_responses_from_messages(told, places):
    story, stream, whole = told
    events, response = run(PAIRS["responses from messages"], stream, whole, places)

    streamed = response_of(events)
    for one in (streamed, response):
        for item in one["output"]:
            if item["type"] == "function_call":
                item["arguments"] = json.loads(item["arguments"])
        one.pop("created_at")
    assert streamed == response
    kinds = ["reasoning"] * bool(story.thought) + ["message"] * bool(story.text)
    assert [item["type"] for item in response["output"]] == kinds + ["function_call"] * len(story.inputs)


@given(told=told_in_messages(), places=PLACES)
def test_messages_from_messages_are_told_by_the_same_grammar(told, places):
    story, stream, whole = told
    events, message = run(PAIRS["messages from messages"], stream, whole, places)

    if all(story.inputs):
        added_up = message_of(events)
        for block in added_up["content"]:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["input"])
        assert added_up == message
