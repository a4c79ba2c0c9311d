"""What the demo engine says: vLLM's shapes, streamed and whole, and the same words in both."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.replies import Answer, RequestError, parse_chat

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer"},
            },
        },
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}


def make(tokens: int = 12, *, content: object = "hi", **fields: object) -> Answer:
    data = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    request = parse_chat(json.dumps(data).encode(), model="m", max_model_len=1000, tokens=tokens)
    return Answer(request, label="a", model="m", request_id="r-1")


def whole(answer: Answer) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(answer.body())
    return parsed


def events(answer: Answer) -> list[dict[str, Any]]:
    """The parsed events of the stream, which must end in [DONE]."""
    text = b"".join(item for item in answer.script() if isinstance(item, bytes)).decode()
    *parts, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_a_whole_answer_says_who_answered_in_words_of_every_width() -> None:
    answer = whole(make())
    assert answer["id"] == "chatcmpl-r-1"
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "m"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "Hello from a: one token per word, 你好 and 🙂 too, naïve"
    assert choice["message"]["tool_calls"] == []
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == ("stop", None, None)
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "total_tokens": 17,
        "completion_tokens": 12,
        "prompt_tokens_details": None,
    }


def test_a_stream_is_role_deltas_finish_and_no_usage_unless_asked() -> None:
    chunks = events(make(tokens=2, stream=True))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " from"},
        {"content": ""},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-r-1", "chat.completion.chunk", "m")
    }
    assert not any("usage" in chunk for chunk in chunks)


def test_the_usage_chunk_comes_last_without_choices() -> None:
    *chunks, usage = events(make(tokens=2, stream=True, stream_options={"include_usage": True}))
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}
    assert not any("usage" in chunk for chunk in chunks)


def test_continuous_usage_counts_along() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(make(tokens=2, stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 2, 2]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_on_tokens_cuts_the_answer(field: str) -> None:
    answer = whole(make(**{field: 3}))
    assert answer["choices"][0]["message"]["content"] == "Hello from a:"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_a_limit_above_the_natural_length_changes_nothing() -> None:
    answer = whole(make(tokens=3, max_tokens=100))
    assert answer["choices"][0]["message"]["content"] == "Hello from a:"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_ignore_eos_goes_on_up_to_the_limit() -> None:
    answer = whole(make(tokens=3, max_tokens=40, ignore_eos=True))
    assert answer["usage"]["completion_tokens"] == 40
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stop_sequence_cuts_inside_a_token() -> None:
    answer = whole(make(stop=["never", "好"]))
    assert answer["choices"][0]["message"]["content"] == "Hello from a: one token per word, 你"
    assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("stop", "好")


def test_several_choices_differ_and_are_streamed_side_by_side() -> None:
    answer = whole(make(tokens=4, n=2))
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == ["Hello from a: one", "Choice 1 from a:"]
    assert answer["usage"]["completion_tokens"] == 8
    chunks = events(make(tokens=4, n=2, stream=True))
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1] * 6


def test_logprobs_come_with_every_token_and_no_other_time() -> None:
    answer = whole(make(tokens=2, logprobs=True, top_logprobs=2))
    content = answer["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "Hello",
        "logprob": -0.25,
        "bytes": [72, 101, 108, 108, 111],
        "top_logprobs": [
            {"token": "Hello", "logprob": -0.25, "bytes": [72, 101, 108, 108, 111]},
            {"token": "", "logprob": -0.5, "bytes": []},
        ],
    }
    streamed = [
        token
        for chunk in events(make(tokens=2, logprobs=True, top_logprobs=2, stream=True))
        for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_functions_named_in_the_prompt_are_called_in_parallel() -> None:
    prompt = "please call get_time and get_weather"
    answer = whole(make(content=prompt, tools=[WEATHER, TIME]))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather", "get_time"]
    assert json.loads(calls[0]["function"]["arguments"]) == {
        "city": "Zürich 你好",
        "unit": "celsius",
        "days": 1,
    }
    assert calls[1]["function"]["arguments"] == "{}"
    assert calls[0]["id"] != calls[1]["id"]


def test_streamed_calls_start_with_id_and_name_and_go_on_with_pieces_of_arguments() -> None:
    chunks = events(make(content="get_weather get_time", tools=[WEATHER, TIME], stream=True))
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    starts = [delta for delta in deltas if "id" in delta]
    assert [(one["index"], one["type"], one["function"]) for one in starts] == [
        (0, "function", {"name": "get_weather", "arguments": ""}),
        (1, "function", {"name": "get_time", "arguments": ""}),
    ]
    pieces = [one["function"]["arguments"] for one in deltas if one["index"] == 0]
    assert len(pieces) > 3
    assert json.loads("".join(pieces))["city"] == "Zürich 你好"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"tool_choice": "none", "content": "get_time"}, []),
        ({"content": "no function is named"}, []),
        ({"tool_choice": "required", "content": "hi"}, ["get_weather"]),
        ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}}, ["get_time"]),
        ({"content": "get_time get_weather", "parallel_tool_calls": False}, ["get_weather"]),
    ],
)
def test_tool_choice_is_honoured(fields: dict[str, Any], called: list[str]) -> None:
    answer = whole(make(tools=[WEATHER, TIME], **fields))
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == called


def test_tool_results_are_answered_in_words() -> None:
    messages = [
        {"role": "user", "content": "get_time"},
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "雨"}]},
    ]
    answer = whole(make(messages=messages, tools=[TIME]))
    assert answer["choices"][0]["message"]["content"].startswith(
        "Hello from a: the tools said noon and 雨; one"
    )


def test_reasoning_comes_before_the_text_when_it_is_asked_for() -> None:
    answer = whole(make(tokens=2, chat_template_kwargs={"enable_thinking": True}))
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (" The question is 简单.", "Hello from")
    chunks = events(make(tokens=2, stream=True, reasoning_effort="low"))
    assert [list(chunk["choices"][0]["delta"]) for chunk in chunks[1:-1]] == (
        [["reasoning_content"]] * 5 + [["content"]] * 2
    )


def test_a_json_schema_is_answered_in_json() -> None:
    schema = {
        "$defs": {"Kind": {"enum": ["big", "small"]}},
        "type": "object",
        "properties": {
            "kinds": {"type": "array", "items": {"$ref": "#/$defs/Kind"}},
            "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "sure": {"type": "boolean"},
        },
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = whole(make(response_format=wanted))
    content = answer["choices"][0]["message"]["content"]
    assert json.loads(content) == {"kinds": ["big"], "size": 1.5, "sure": True}


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads(whole(make(response_format=wanted))["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        (b"{", 400, None, "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error'}]"),
        (b"\xff", 400, None, "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error'}]"),
        (
            b"[" * 100_000,
            400,
            None,
            "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error'}]",
        ),
        (b"[]", 400, None, "[{'type': 'model_attributes_type', 'loc': ('body',)}]"),
        (b'{"model":"other","messages":[]}', 404, "model", "The model `other` does not exist."),
        (b'{"model":7}', 400, "model", "[{'type': 'str_type', 'loc': ('body', 'model')}]"),
        (b'{"model":"m"}', 400, "messages", "messages must be a non-empty list of messages"),
        (b'{"model":"m","messages":[1]}', 400, "messages", "messages must be a non-empty list of messages"),
    ],
)
def test_a_malformed_request_is_refused(body: bytes, status: int, param: str | None, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat(body, model="m", max_model_len=1000, tokens=1)
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    assert json.loads(refused.value.body()) == {
        "error": {"message": message, "type": kind, "param": param, "code": status}
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 17}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tools": [TIME], "tool_choice": {"function": {"name": "nope"}}}, "tool_choice"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        make(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_prompt_over_the_context_is_refused_in_vllms_words() -> None:
    with pytest.raises(RequestError) as alone:
        make(content="x" * 3984)
    assert alone.value.message == (
        "This model's maximum context length is 1000 tokens. However, your request has 1000 input tokens. "
        "Please reduce the length of the input messages."
    )
    with pytest.raises(RequestError) as together:
        make(content="x" * 400, max_tokens=900)
    assert together.value.message == (
        "This model's maximum context length is 1000 tokens. However, you requested 1004 tokens "
        "(104 in the messages, 900 in the completion). "
        "Please reduce the length of the messages or completion."
    )


def test_media_parts_count_as_tokens() -> None:
    parts = [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert whole(make(content=parts))["usage"]["prompt_tokens"] == 4 + 1 + 85


@given(
    tokens=st.integers(1, 30),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "n": st.integers(1, 3),
            "max_tokens": st.integers(1, 40),
            "stop": st.sampled_from(["好", "🙂 ", "Hello", ["word,", " per"], "absent"]),
            "logprobs": st.just(True),
            "reasoning_effort": st.just("low"),
            "tool_choice": st.just("required"),
        },
    ),
)
def test_the_deltas_of_a_stream_add_up_to_the_whole_answer(tokens: int, fields: dict[str, Any]) -> None:
    fields = {**fields, "tools": [WEATHER]}
    expected = whole(make(tokens, **fields))
    added: dict[int, dict[str, Any]] = {}
    for chunk in events(make(tokens, stream=True, stream_options={"include_usage": True}, **fields)):
        if chunk.get("usage"):
            assert chunk["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            sums = added.setdefault(choice["index"], {"content": "", "reasoning": "", "arguments": ""})
            delta = choice["delta"]
            sums["content"] += delta.get("content") or ""
            sums["reasoning"] += delta.get("reasoning_content") or ""
            sums["arguments"] += "".join(one["function"]["arguments"] for one in delta.get("tool_calls", ()))
            sums["finish_reason"] = choice["finish_reason"]
    for choice in expected["choices"]:
        message = choice["message"]
        assert added[choice["index"]] == {
            "content": message["content"] or "",
            "reasoning": message["reasoning_content"] or "",
            "arguments": "".join(call["function"]["arguments"] for call in message["tool_calls"]),
            "finish_reason": choice["finish_reason"],
        }
