"""Answers in another wire: literal streams and bodies, stop reasons, usage, and answers that are none."""

import json
from typing import Any

import pytest

from routing.dialects import errors
from routing.dialects.base import MalformedAnswer, UpstreamRefusal, Usage
from tests.unit.routing.wires_kit import PAIRS, compact, named, told, whole

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013", "cases 30")

MESSAGES_FROM_CHAT = PAIRS["messages from chat"]
RESPONSES_FROM_CHAT = PAIRS["responses from chat"]
CHAT_FROM_MESSAGES = PAIRS["chat from messages"]
RESPONSES_FROM_MESSAGES = PAIRS["responses from messages"]
THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return compact({"id": "chatcmpl-c1", "created": 5, "model": "m", "choices": [choice], **fields})


def arguments(index: int, fragment: str, **start: Any) -> bytes:
    return chunk({"tool_calls": [{"index": index, **start, "function": {"arguments": fragment}}]})


def start(index: int, call_id: str | None, name: str, fragment: str = "") -> bytes:
    function = {"name": name, "arguments": fragment}
    return chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})


USAGE = compact(
    {
        "id": "chatcmpl-c1",
        "choices": [],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 5,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }
)
DONE = b"[DONE]"
ROUND = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Hm"}),
    chunk({"content": "Hi "}),
    chunk({"content": "你"}),
    start(0, "call_1", "f"),
    arguments(0, '{"x"'),
    arguments(0, ":1}"),
    start(1, "call_2", "g", "{}"),
    chunk(finish="tool_calls"),
    USAGE,
    DONE,
]
ROUND_WHOLE = compact(
    {
        "id": "chatcmpl-c1",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi 你",
                    "reasoning_content": "Hm",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"x":1}'},
                        },
                        {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": json.loads(USAGE)["usage"],
    }
)


def event(name: str, /, **fields: Any) -> tuple[str, dict[str, Any]]:
    return name, {"type": name, **fields}


# Literal streams


def test_a_stream_of_messages_from_chat_is_the_published_sequence():
    usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    message = {
        "id": "msg_c1",
        "type": "message",
        "role": "assistant",
        "model": "demo.chat",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, **usage, "output_tokens": 0},
    }

    def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[Any]:
        return [
            event("content_block_start", index=index, content_block=content),
            *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
            event("content_block_stop", index=index),
        ]

    assert told(MESSAGES_FROM_CHAT, ROUND, **THINKING) == [
        event("message_start", message=message),
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm"},
        ),
        *block(
            1,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "Hi "},
            {"type": "text_delta", "text": "你"},
        ),
        *block(
            2,
            {"type": "tool_use", "id": "call_1", "name": "f", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"x"'},
            {"type": "input_json_delta", "partial_json": ":1}"},
        ),
        *block(
            3,
            {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
            {"type": "input_json_delta", "partial_json": "{}"},
        ),
        event(
            "message_delta",
            delta={"stop_reason": "tool_use", "stop_sequence": None},
            usage={
                "input_tokens": 7,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4,
                "output_tokens": 5,
            },
        ),
        event("message_stop"),
    ]


def test_a_whole_message_from_chat():
    assert whole(MESSAGES_FROM_CHAT, ROUND_WHOLE, **THINKING) == {
        "id": "msg_c1",
        "type": "message",
        "role": "assistant",
        "model": "demo.chat",
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "text", "text": "Hi 你"},
            {"type": "tool_use", "id": "call_1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 5,
        },
    }


@pytest.mark.parametrize(
    "fields",
    [{}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive", "display": "omitted"}}],
    ids=["not asked for", "disabled", "omitted"],
)
def test_reasoning_is_kept_from_a_caller_of_messages_that_did_not_ask_for_it(fields):
    message = whole(MESSAGES_FROM_CHAT, ROUND_WHOLE, **fields)
    stream = told(MESSAGES_FROM_CHAT, ROUND, **fields)

    assert [block["type"] for block in message["content"]] == ["text", "tool_use", "tool_use"]
    assert message["usage"]["output_tokens"] == 5
    starts = [data["content_block"]["type"] for name, data in stream if name == "content_block_start"]
    assert starts == ["text", "tool_use", "tool_use"]


SETTINGS = {
    "background": False,
    "instructions": "Be brief.",
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {"run": "7"},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 0.5,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
ASKED = {"instructions": "Be brief.", "metadata": {"run": "7"}, "temperature": 0.5}
RESPONSE = {
    "id": "resp_c1",
    "object": "response",
    "created_at": 5,
    "error": None,
    "incomplete_details": None,
    "model": "demo.chat",
    "previous_response_id": None,
    "store": False,
    **SETTINGS,
}
REASONED = {
    "id": "rs_c1_0",
    "type": "reasoning",
    "status": "completed",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm"}],
    "encrypted_content": None,
}
SAID = {
    "id": "msg_c1_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi 你", "annotations": [], "logprobs": []}],
}
CALLED = {
    "id": "fc_c1_2",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "f",
    "arguments": '{"x":1}',
}
CALLED_TOO = {**CALLED, "id": "fc_c1_3", "call_id": "call_2", "name": "g", "arguments": "{}"}
COMPLETED = {
    **RESPONSE,
    "status": "completed",
    "output": [REASONED, SAID, CALLED, CALLED_TOO],
    "usage": {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    },
}


def test_a_stream_of_responses_from_chat_is_the_published_sequence():
    begun = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    text = {"item_id": "msg_c1_1", "output_index": 1, "content_index": 0}
    thought = {"item_id": "rs_c1_0", "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    expected = [
        event("response.created", response=begun),
        event("response.in_progress", response=begun),
        event(
            "response.output_item.added",
            output_index=0,
            item={**REASONED, "status": "in_progress", "content": []},
        ),
        event("response.content_part.added", **thought, part={"type": "reasoning_text", "text": ""}),
        event("response.reasoning_text.delta", **thought, delta="Hm"),
        event("response.reasoning_text.done", **thought, text="Hm"),
        event("response.content_part.done", **thought, part=REASONED["content"][0]),  # type: ignore[index]
        event("response.output_item.done", output_index=0, item=REASONED),
        event(
            "response.output_item.added",
            output_index=1,
            item={**SAID, "status": "in_progress", "content": []},
        ),
        event("response.content_part.added", **text, part=empty),
        event("response.output_text.delta", **text, delta="Hi ", logprobs=[]),
        event("response.output_text.delta", **text, delta="你", logprobs=[]),
        event("response.output_text.done", **text, text="Hi 你", logprobs=[]),
        event("response.content_part.done", **text, part=SAID["content"][0]),  # type: ignore[index]
        event("response.output_item.done", output_index=1, item=SAID),
    ]
    for index, item, pieces in ((2, CALLED, ['{"x"', ":1}"]), (3, CALLED_TOO, ["{}"])):
        place = {"item_id": item["id"], "output_index": index}
        untold = {**item, "status": "in_progress", "arguments": ""}
        expected += [
            event("response.output_item.added", output_index=index, item=untold),
            *(event("response.function_call_arguments.delta", **place, delta=piece) for piece in pieces),
            event(
                "response.function_call_arguments.done",
                **place,
                name=item["name"],
                arguments=item["arguments"],
            ),
            event("response.output_item.done", output_index=index, item=item),
        ]
    expected.append(event("response.completed", response=COMPLETED))

    stream = told(RESPONSES_FROM_CHAT, ROUND, **ASKED)

    assert [data.pop("sequence_number") for _, data in stream] == list(range(len(expected)))
    assert stream == expected


def test_a_whole_response_from_chat():
    assert whole(RESPONSES_FROM_CHAT, ROUND_WHOLE, **ASKED) == COMPLETED


MESSAGE = {
    "id": "msg_m1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "usage": {
        "input_tokens": 7,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 4,
        "output_tokens": 1,
    },
}


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        compact({"type": "content_block_start", "index": index, "content_block": content}),
        *(compact({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas),
        compact({"type": "content_block_stop", "index": index}),
    ]


def stopped(reason: str, sequence: str | None = None) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return compact({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}})


STARTED = compact({"type": "message_start", "message": MESSAGE})
STOP = compact({"type": "message_stop"})
PING = compact({"type": "ping"})
MESSAGE_ROUND = [
    STARTED,
    PING,
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "signature_delta", "signature": "sealed"},
    ),
    *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi 你"}),
    *block(
        2,
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        {"type": "input_json_delta", "partial_json": ""},
        {"type": "input_json_delta", "partial_json": '{"x"'},
        {"type": "input_json_delta", "partial_json": ":1}"},
    ),
    *block(3, {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}),
    stopped("tool_use"),
    STOP,
]
MESSAGE_WHOLE = compact(
    {
        **MESSAGE,
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": "sealed"},
            {"type": "text", "text": "Hi 你"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "usage": {**MESSAGE["usage"], "output_tokens": 5},  # type: ignore[dict-item]
    }
)


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr("routing.dialects.narration.time.time", lambda: 5.5)


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_of_chat_from_messages(usage):
    head = {"id": "chatcmpl-m1", "object": "chat.completion.chunk", "created": 5, "model": "demo.chat"}

    def says(delta: dict[str, Any], finish: str | None = None) -> tuple[None, dict[str, Any]]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return None, {**head, "choices": [choice], **({"usage": None} if usage else {})}

    def calls(index: int, fragment: str, **start: Any) -> tuple[None, dict[str, Any]]:
        function = {**({"name": start.pop("name")} if start else {}), "arguments": fragment}
        return says({"tool_calls": [{"index": index, **start, "function": function}]})

    expected = [
        says({"role": "assistant", "content": ""}),
        says({"reasoning_content": "Hm"}),
        says({"content": "Hi 你"}),
        calls(0, "", id="toolu_1", type="function", name="f"),
        calls(0, '{"x"'),
        calls(0, ":1}"),
        calls(1, "", id="toolu_2", type="function", name="g"),
        calls(1, "{}"),
        says({}, "tool_calls"),
    ]
    if usage:
        counted = {
            "prompt_tokens": 14,
            "completion_tokens": 5,
            "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }
        expected.append((None, {**head, "choices": [], "usage": counted}))
    asked = {"stream_options": {"include_usage": True}} if usage else {}

    assert told(CHAT_FROM_MESSAGES, MESSAGE_ROUND, **asked) == [*expected, (None, "[DONE]")]


def test_a_whole_completion_from_a_message():
    assert whole(CHAT_FROM_MESSAGES, MESSAGE_WHOLE) == {
        "id": "chatcmpl-m1",
        "object": "chat.completion",
        "created": 5,
        "model": "demo.chat",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi 你",
                    "refusal": None,
                    "reasoning_content": "Hm",
                    "tool_calls": [
                        {
                            "id": "toolu_1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"x":1}'},
                        },
                        {"id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                    ],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 14,
            "completion_tokens": 5,
            "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_a_response_from_a_message_keeps_the_seal_of_its_reasoning():
    response = whole(RESPONSES_FROM_MESSAGES, MESSAGE_WHOLE)
    streamed = told(RESPONSES_FROM_MESSAGES, MESSAGE_ROUND)[-1][1]["response"]

    assert response == streamed
    assert response["output"][0]["encrypted_content"] == "sealed"
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 3}
    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]


@pytest.mark.parametrize(
    ("pair", "events"),
    [
        (MESSAGES_FROM_CHAT, ROUND),
        (RESPONSES_FROM_CHAT, ROUND),
        (CHAT_FROM_MESSAGES, MESSAGE_ROUND),
        (RESPONSES_FROM_MESSAGES, MESSAGE_ROUND),
    ],
)
def test_usage_is_noted_for_the_record(pair, events):
    translator = pair.translator(stream=True)
    for data in events:
        assert not translator.terminal
        translator.event(data, b"")

    assert translator.terminal
    prompt = 11 if events is ROUND else 14
    assert translator.usage == Usage(prompt, 5)


def test_an_event_that_says_nothing_keeps_the_line_busy():
    translator = CHAT_FROM_MESSAGES.translator(stream=True)

    assert translator.event(PING, b"event: ping\n") == b": ping\n\n"


# Why it stopped


@pytest.mark.parametrize(
    ("finish", "met", "message", "response", "chat_back"),
    [
        ("stop", None, ("end_turn", None), ("completed", None), "stop"),
        ("stop", "END", ("stop_sequence", "END"), ("completed", None), "stop"),
        ("stop", 151645, ("end_turn", None), ("completed", None), "stop"),
        ("length", None, ("max_tokens", None), ("incomplete", "max_output_tokens"), "length"),
        ("content_filter", None, ("refusal", None), ("incomplete", "content_filter"), "content_filter"),
        ("tool_calls", None, ("end_turn", None), ("completed", None), "stop"),
        ("abort", None, ("end_turn", None), ("completed", None), "stop"),
    ],
)
def test_stop_reasons(finish, met, message, response, chat_back):
    ended = compact(
        {
            "id": "c",
            "choices": [
                {"index": 0, "message": {"content": "Hi"}, "finish_reason": finish, "stop_reason": met}
            ],
        }
    )
    last = chunk({}, finish, choices=[{"index": 0, "delta": {}, "finish_reason": finish, "stop_reason": met}])
    events = [chunk({"content": "Hi"}), last, DONE]

    got = whole(MESSAGES_FROM_CHAT, ended)
    assert (got["stop_reason"], got["stop_sequence"]) == message
    delta = told(MESSAGES_FROM_CHAT, events)[-2][1]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == message

    status, reason = response
    details = {"reason": reason} if reason else None
    for got in (whole(RESPONSES_FROM_CHAT, ended), told(RESPONSES_FROM_CHAT, events)[-1][1]["response"]):
        assert (got["status"], got["incomplete_details"]) == (status, details)
        cut = status == "incomplete" and reason == "max_output_tokens"
        assert got["output"][0]["status"] == ("incomplete" if cut else "completed")
    assert told(RESPONSES_FROM_CHAT, events)[-1][0] == f"response.{status}"

    said = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi"})
    back = [STARTED, *said, stopped(*message), STOP]
    assert told(CHAT_FROM_MESSAGES, back)[-2][1]["choices"][0]["finish_reason"] == chat_back


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", None])
def test_an_answer_with_calls_stopped_for_them_whatever_the_engine_says(finish):
    events = [start(0, "c", "f", "{}"), chunk(finish=finish), DONE]

    assert told(MESSAGES_FROM_CHAT, events)[-2][1]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("pause_turn", "stop"), ("model_context_window_exceeded", "length"), ("refusal", "content_filter")],
)
def test_anthropics_other_stop_reasons(reason, finish):
    message = {**MESSAGE, "content": [{"type": "text", "text": "x"}], "stop_reason": reason}

    assert whole(CHAT_FROM_MESSAGES, compact(message))["choices"][0]["finish_reason"] == finish


def test_a_refusal_is_told_as_one():
    events = [chunk({"refusal": "I "}), chunk({"refusal": "won't."}), chunk(finish="stop"), DONE]

    response = told(RESPONSES_FROM_CHAT, events)
    assert [name for name, _ in response[2:-1]] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert response[-1][1]["response"]["output"][0]["content"] == [{"type": "refusal", "refusal": "I won't."}]
    message = told(MESSAGES_FROM_CHAT, events)
    assert message[1][1]["content_block"] == {"type": "text", "text": ""}
    assert message[-2][1]["delta"]["stop_reason"] == "refusal"


# Blocks


def test_there_is_no_empty_block():
    events = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": None}),
        chunk(finish="stop"),
        DONE,
    ]

    assert [name for name, _ in told(MESSAGES_FROM_CHAT, events)] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    empty = {"choices": [{"message": {"content": "", "tool_calls": []}, "finish_reason": "stop"}]}
    assert whole(MESSAGES_FROM_CHAT, compact(empty))["content"] == []
    assert whole(RESPONSES_FROM_CHAT, compact(empty))["output"] == []


def test_a_call_without_arguments_has_an_empty_object_for_input():
    events = [start(0, "c", "f"), chunk(finish="tool_calls"), DONE]

    deltas = [
        data["delta"] for name, data in told(MESSAGES_FROM_CHAT, events) if name == "content_block_delta"
    ]
    assert deltas == [{"type": "input_json_delta", "partial_json": "{}"}]
    last = told(RESPONSES_FROM_CHAT, events)[-1][1]["response"]["output"][0]
    assert last["arguments"] == "{}"


def test_interleaved_calls_are_told_one_after_the_other():
    events = [
        start(0, "a", "f"),
        start(1, "b", "g"),
        arguments(0, '{"x":"}'),
        arguments(1, '{"y"'),
        arguments(0, '{\\"'),
        arguments(1, ":[2]}"),
        arguments(0, '"}'),
        chunk({"content": "so"}),
        chunk(finish="tool_calls"),
        DONE,
    ]

    stream = [(name, data["index"]) for name, data in told(MESSAGES_FROM_CHAT, events) if "index" in data]

    assert stream == [
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
    ]


def test_a_call_is_streamed_while_it_comes():
    translator = MESSAGES_FROM_CHAT.translator(stream=True)
    translator.event(start(0, "a", "f"), b"")

    assert b'"partial_json":"{\\"x\\""' in translator.event(arguments(0, '{"x"'), b"")


def test_calls_that_are_not_numbered_are_told_apart_by_their_names():
    def unnumbered(**function: Any) -> bytes:
        return chunk({"tool_calls": [{"function": function}]})

    events = [
        unnumbered(name="f", arguments='{"x":'),
        unnumbered(arguments="1}"),
        unnumbered(name="g", arguments="{}"),
        chunk(finish="tool_calls"),
        DONE,
    ]

    output = told(RESPONSES_FROM_CHAT, events)[-1][1]["response"]["output"]
    assert [(item["name"], item["arguments"], item["call_id"]) for item in output] == [
        ("f", '{"x":1}', "call_c1_0"),
        ("g", "{}", "call_c1_1"),
    ]


@pytest.mark.parametrize(
    ("cut", "given"),
    [
        ('{"x":1,"y":"lo', {"x": 1}),
        ('{"x":{"a":[1,2],"b', {"x": {"a": [1, 2]}}),
        ('{"x":[1,{"a":"}"},', {"x": [1, {"a": "}"}]}),
        ('{"x"', {}),
        ("{", {}),
        ("", {}),
    ],
)
def test_a_call_that_the_limit_broke_off_is_closed_where_it_was_sound(cut, given):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": cut}}
    body = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "length"}]}

    message = whole(MESSAGES_FROM_CHAT, compact(body))
    assert (message["content"][0]["input"], message["stop_reason"]) == (given, "max_tokens")

    stream = told(MESSAGES_FROM_CHAT, [start(0, "c", "f", cut), chunk(finish="length"), DONE])
    told_input = "".join(d["delta"]["partial_json"] for n, d in stream if n == "content_block_delta")
    assert told_input == (cut or "{}")
    assert [name for name, _ in stream[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


# Answers that are none


@pytest.mark.parametrize("broken", ['{"x" 1}', "[1]", '{"x":1', '"x"'])
def test_input_that_is_no_object_is_no_answer_to_a_caller_of_messages(broken):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": broken}}
    body = compact({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})

    with pytest.raises(MalformedAnswer):
        whole(MESSAGES_FROM_CHAT, body)
    with pytest.raises(MalformedAnswer):
        told(MESSAGES_FROM_CHAT, [start(0, "c", "f", broken), chunk(finish="tool_calls"), DONE])
    # The other wires hand on what the model wrote.
    assert whole(RESPONSES_FROM_CHAT, body)["output"][0]["arguments"] == broken


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b'{"choices":{}}',
        b'{"choices":[{"delta":{"content":["x"]}}]}',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}',
        b"[" * 5000,
        b"[DONE",
    ],
)
@pytest.mark.parametrize("pair", [MESSAGES_FROM_CHAT, RESPONSES_FROM_CHAT])
def test_chunks_that_are_none(pair, data):
    with pytest.raises(MalformedAnswer):
        told(pair, [data])


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"type":"content_block_start","content_block":{"type":"tool_use","id":"x"}}',
        b'{"type":"content_block_delta","delta":{"type":"text_delta","text":7}}',
        b"[DONE]",
    ],
)
@pytest.mark.parametrize("pair", [CHAT_FROM_MESSAGES, RESPONSES_FROM_MESSAGES])
def test_events_that_are_none(pair, data):
    with pytest.raises(MalformedAnswer):
        told(pair, [STARTED, data])


@pytest.mark.parametrize("body", [b"{}", b"[]", b"", b'{"choices":[]}', b'{"choices":null}', b"null"])
def test_bodies_that_are_no_completion(body):
    for pair in (MESSAGES_FROM_CHAT, RESPONSES_FROM_CHAT):
        with pytest.raises(MalformedAnswer):
            whole(pair, body)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"", b'{"content":"x"}'])
def test_bodies_that_are_no_message(body):
    for pair in (CHAT_FROM_MESSAGES, RESPONSES_FROM_MESSAGES):
        with pytest.raises(MalformedAnswer):
            whole(pair, body)


def test_events_and_blocks_that_nobody_knows_are_passed_over():
    events = [
        STARTED,
        compact({"type": "weather_report", "delta": None}),
        *block(0, {"type": "server_tool_use", "id": "x", "name": "web_search", "input": {}}),
        *block(1, {"type": "text", "text": "", "citations": []}, {"type": "citations_delta", "citation": {}}),
        stopped("end_turn"),
        STOP,
    ]

    assert told(RESPONSES_FROM_MESSAGES, events)[-1][1]["response"]["output"] == []


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("rate_limit_error", 429),
        ("invalid_request_error", 400),
        ("request_too_large", 413),
        ("overloaded_error", None),
        ("api_error", None),
    ],
)
def test_an_error_of_anthropics_tells_its_status_by_name(kind, status):
    error = {"type": "error", "error": {"type": kind, "message": "No."}}
    for pair in (CHAT_FROM_MESSAGES, RESPONSES_FROM_MESSAGES, PAIRS["messages from messages"]):
        with pytest.raises(UpstreamRefusal) as caught:
            told(pair, [STARTED, compact(error)])
        assert (caught.value.status, caught.value.message) == (status, "No.")
        with pytest.raises(UpstreamRefusal):
            whole(pair, compact(error))


def test_an_event_is_an_error_by_its_name_too():
    translator = CHAT_FROM_MESSAGES.translator(stream=True)
    with pytest.raises(UpstreamRefusal):
        translator.event(b'{"message":"m"}', b"event: error\n")


def test_half_characters_are_joined():
    events = [
        chunk(choices=[]),
        b'{"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\\ude42b"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}',
        DONE,
    ]

    stream = told(MESSAGES_FROM_CHAT, events)
    texts = [data["delta"]["text"] for name, data in stream if name == "content_block_delta"]
    assert texts == ["a", "🙂b"]


def test_ids_are_made_of_plain_ones_only():
    events = [chunk({"content": "x"}, id='chatcmpl-a"b'), DONE]

    first = told(MESSAGES_FROM_CHAT, events)[0][1]["message"]["id"]
    assert first.startswith("msg_")
    assert first.removeprefix("msg_").isalnum()


def test_an_error_in_a_stream_of_responses_is_numbered_and_has_the_envelope_beside_it():
    translator = RESPONSES_FROM_CHAT.translator(stream=True)
    translator.event(chunk({"content": "x"}), b"")

    message = "The upstream server's answer ended before it was complete."
    envelope = {"code": "upstream_incomplete", "message": message, "param": None, "type": "server_error"}
    assert translator.error_event(errors.INCOMPLETE) == named(
        "error",
        sequence_number=5,
        code="upstream_incomplete",
        message=message,
        param=None,
        error=envelope,
    )
