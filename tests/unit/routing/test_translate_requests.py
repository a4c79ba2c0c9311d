"""Requests in another wire: what they say stays the same, and what cannot be said is named."""

import json
from typing import Any

import msgspec
import pytest

from routing.dialects.anthropic_messages import MESSAGES
from routing.dialects.base import Dialect, RequestError, Target
from routing.dialects.openai_chat import CHAT
from routing.dialects.openai_responses import RESPONSES
from tests.unit.routing.wires_kit import ANTHROPIC, OPENAI, compact

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PNG = "data:image/png;base64,iVBORw0KGgo="
LEAST: dict[Dialect, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": [USER], "max_tokens": 64},
}


def sent(dialect: Dialect, target: Target, **fields: Any) -> dict[str, Any]:
    """The upstream's request, without the model."""
    body = compact({"model": "demo.chat", **LEAST[dialect], **fields})
    call = dialect.parse(body).prepare(target, model="served")
    assert call.path == ("/chat/completions" if target.dialect == "openai" else "/messages")
    document = json.loads(call.body)
    assert document.pop("model") == "served"
    return document  # type: ignore[no-any-return]


def refused(dialect: Dialect, target: Target, **fields: Any) -> str | None:
    """The field that a refusal names, in its param and in its message."""
    with pytest.raises(RequestError) as caught:
        sent(dialect, target, **fields)
    failure = caught.value.failure
    assert failure.status == 400
    assert failure.param is not None
    assert f"'{failure.param}'" in failure.message
    return failure.param


# The least, and a stream


def test_the_least_request_stays_the_least():
    assert sent(MESSAGES, OPENAI) == {"messages": [USER], "max_tokens": 64}
    assert sent(RESPONSES, OPENAI) == {"messages": [USER]}
    assert sent(RESPONSES, ANTHROPIC) == {"messages": [USER], "max_tokens": 4096}
    assert sent(CHAT, ANTHROPIC) == {"messages": [USER], "max_tokens": 4096}


def test_a_stream_asks_for_one_and_for_its_usage():
    asked = {"stream": True, "stream_options": {"include_usage": True}}

    assert sent(MESSAGES, OPENAI, stream=True) == {"messages": [USER], "max_tokens": 64, **asked}
    assert sent(RESPONSES, OPENAI, stream=True) == {"messages": [USER], **asked}
    assert sent(CHAT, ANTHROPIC, stream=True, stream_options={"include_usage": True})["stream"] is True
    assert "stream_options" not in sent(CHAT, ANTHROPIC, stream=True)


# Who speaks


def test_system_prompts_become_one_system_message():
    system = [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    expected = [{"role": "system", "content": "Be brief.\n\nBe kind."}, USER]

    assert sent(MESSAGES, OPENAI, system=system)["messages"] == expected
    assert sent(MESSAGES, OPENAI, system="Be brief.\n\nBe kind.")["messages"] == expected
    spoken = [{"role": "developer", "content": "Be kind."}, USER]
    assert sent(RESPONSES, OPENAI, instructions="Be brief.", input=spoken)["messages"] == expected


def test_system_and_developer_messages_become_the_system_prompt():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}]

    request = sent(CHAT, ANTHROPIC, messages=[*messages, USER])

    assert request["system"] == [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    assert request["messages"] == [USER]
    assert sent(RESPONSES, ANTHROPIC, instructions="Be brief.")["system"] == "Be brief."


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_in_the_midst_stays_there(role):
    late = [USER, {"role": role, "content": "Now in French."}, USER]
    expected = [USER, {"role": "system", "content": "Now in French."}, USER]

    assert sent(CHAT, ANTHROPIC, messages=late)["messages"] == expected
    assert sent(RESPONSES, ANTHROPIC, input=late)["messages"] == expected
    assert sent(RESPONSES, OPENAI, input=late)["messages"] == expected


def test_a_conversation_keeps_its_turns():
    chat = [USER, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Why?"}]

    assert sent(CHAT, ANTHROPIC, messages=chat)["messages"] == chat
    assert sent(MESSAGES, OPENAI, messages=chat)["messages"] == chat
    assert sent(RESPONSES, OPENAI, input=chat)["messages"] == chat
    assert sent(RESPONSES, ANTHROPIC, input=chat)["messages"] == chat


def test_empty_text_makes_no_empty_block():
    chat = [
        USER,
        {"role": "assistant", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": ""}]},
    ]

    assert sent(CHAT, ANTHROPIC, messages=[*chat, USER])["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "Hi"}]}
    ]


def test_half_a_character_is_carried():
    body = b'{"model":"a","max_tokens":9,"messages":[{"role":"user","content":"\\ud83d \xc3\xa9"}]}'

    call = MESSAGES.parse(body).prepare(OPENAI, model="a")

    assert b'{"role":"user","content":"\\ud83d \\u00e9"}' in call.body


# Images


def test_images_are_carried_both_ways():
    from_chat = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "auto"}},
        {"type": "image_url", "image_url": {"url": "https://images.test/a.png"}},
    ]
    from_messages = [
        {"type": "text", "text": "What is it?"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
        },
        {"type": "image", "source": {"type": "url", "url": "https://images.test/a.png"}},
    ]
    from_responses = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": PNG, "detail": "auto"},
        {"type": "input_image", "image_url": "https://images.test/a.png", "detail": "auto"},
    ]

    assert sent(CHAT, ANTHROPIC, messages=[{"role": "user", "content": from_chat}])["messages"] == [
        {"role": "user", "content": from_messages}
    ]
    assert sent(RESPONSES, ANTHROPIC, input=[{"role": "user", "content": from_responses}])["messages"] == [
        {"role": "user", "content": from_messages}
    ]
    seen = [from_chat[0], {"type": "image_url", "image_url": {"url": PNG}}, from_chat[2]]
    assert sent(MESSAGES, OPENAI, messages=[{"role": "user", "content": from_messages}])["messages"] == [
        {"role": "user", "content": seen}
    ]
    assert sent(RESPONSES, OPENAI, input=[{"role": "user", "content": from_responses}])["messages"] == [
        {"role": "user", "content": seen}
    ]


def test_an_images_detail_is_carried_where_there_is_a_place_for_it():
    detailed = [{"type": "input_image", "image_url": PNG, "detail": "high"}]
    image = {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}

    assert sent(RESPONSES, OPENAI, input=[{"role": "user", "content": detailed}])["messages"] == [
        {"role": "user", "content": [image]}
    ]
    assert refused(RESPONSES, ANTHROPIC, input=[{"role": "user", "content": detailed}]) == (
        "input[0].content[0].detail"
    )
    assert refused(CHAT, ANTHROPIC, messages=[{"role": "user", "content": [image]}]) == (
        "messages[0].content[0].image_url.detail"
    )


# Tools


def test_tools_are_carried_both_ways():
    function = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA, "strict": True}
    tool = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA, "strict": True}

    assert sent(CHAT, ANTHROPIC, tools=[{"type": "function", "function": function}])["tools"] == [tool]
    assert sent(RESPONSES, ANTHROPIC, tools=[{"type": "function", **function}])["tools"] == [tool]
    assert sent(RESPONSES, OPENAI, tools=[{"type": "function", **function}])["tools"] == [
        {"type": "function", "function": function}
    ]
    for entry in (tool, {**tool, "type": "custom", "cache_control": {"type": "ephemeral"}}):
        assert sent(MESSAGES, OPENAI, tools=[entry])["tools"] == [{"type": "function", "function": function}]


def test_a_function_without_parameters_takes_none():
    tools = [{"type": "function", "function": {"name": "now"}}]

    assert sent(CHAT, ANTHROPIC, tools=tools)["tools"] == [
        {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    ]


CHAT_TOOLS = [{"type": "function", "function": {"name": "now"}}]
FLAT_TOOLS = [{"type": "function", "name": "now"}]
ANTHROPIC_TOOLS = [{"name": "now", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize(
    ("openai", "anthropic"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ({"type": "function", "function": {"name": "now"}}, {"type": "tool", "name": "now"}),
    ],
)
def test_the_choice_of_tools_is_carried_both_ways(openai, anthropic):
    flat = {"type": "function", "name": "now"} if isinstance(openai, dict) else openai

    assert sent(CHAT, ANTHROPIC, tools=CHAT_TOOLS, tool_choice=openai)["tool_choice"] == anthropic
    assert sent(RESPONSES, ANTHROPIC, tools=FLAT_TOOLS, tool_choice=flat)["tool_choice"] == anthropic
    assert sent(RESPONSES, OPENAI, tools=FLAT_TOOLS, tool_choice=flat)["tool_choice"] == openai
    assert sent(MESSAGES, OPENAI, tools=ANTHROPIC_TOOLS, tool_choice=anthropic)["tool_choice"] == openai


def test_one_call_at_a_time_is_carried_both_ways():
    single = {"type": "auto", "disable_parallel_tool_use": True}

    assert sent(CHAT, ANTHROPIC, tools=CHAT_TOOLS, parallel_tool_calls=False)["tool_choice"] == single
    assert sent(RESPONSES, ANTHROPIC, tools=FLAT_TOOLS, parallel_tool_calls=False)["tool_choice"] == single
    assert (
        sent(RESPONSES, OPENAI, tools=FLAT_TOOLS, parallel_tool_calls=False)["parallel_tool_calls"] is False
    )
    request = sent(MESSAGES, OPENAI, tools=ANTHROPIC_TOOLS, tool_choice=single)
    assert (request["tool_choice"], request["parallel_tool_calls"]) == ("auto", False)
    # Several is what every wire does by itself, and without tools there is nothing to choose.
    assert "tool_choice" not in sent(CHAT, ANTHROPIC, tools=CHAT_TOOLS, parallel_tool_calls=True)
    assert "tool_choice" not in sent(CHAT, ANTHROPIC, tool_choice="auto", parallel_tool_calls=False)


CHAT_ROUND = [
    USER,
    {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
]
MESSAGES_ROUND = [
    USER,
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "call_1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "call_2", "name": "g", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "call_2", "content": "two"},
        ],
    },
]
RESPONSES_ROUND = [
    USER,
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"x":1}'},
    {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "call_1", "output": "one"},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "two"}]},
]


def test_a_round_of_two_parallel_calls_is_carried_both_ways():
    assert sent(CHAT, ANTHROPIC, messages=CHAT_ROUND)["messages"] == MESSAGES_ROUND
    assert sent(MESSAGES, OPENAI, messages=MESSAGES_ROUND)["messages"] == CHAT_ROUND
    assert sent(RESPONSES, ANTHROPIC, input=RESPONSES_ROUND)["messages"] == MESSAGES_ROUND
    assert sent(RESPONSES, OPENAI, input=RESPONSES_ROUND)["messages"] == CHAT_ROUND


def test_what_the_user_says_beside_a_result_follows_it():
    beside = [*MESSAGES_ROUND[2]["content"], {"type": "text", "text": "Thanks."}]  # type: ignore[misc]

    request = sent(MESSAGES, OPENAI, messages=[*MESSAGES_ROUND[:2], {"role": "user", "content": beside}])

    assert request["messages"] == [*CHAT_ROUND, {"role": "user", "content": "Thanks."}]
    back = sent(CHAT, ANTHROPIC, messages=[*CHAT_ROUND, {"role": "user", "content": "Thanks."}])
    assert back["messages"] == [*MESSAGES_ROUND[:2], {"role": "user", "content": beside}]


def test_an_image_that_a_tool_returned_follows_in_the_users_message():
    image = {"type": "image", "source": {"type": "url", "url": "https://images.test/a.png"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "call_1",
        "content": [{"type": "text", "text": "here"}, image],
    }

    messages = sent(MESSAGES, OPENAI, messages=[*MESSAGES_ROUND[:2], {"role": "user", "content": [result]}])[
        "messages"
    ]

    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "here"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "https://images.test/a.png"}}],
        },
    ]


def test_a_tools_failure_is_told_in_words():
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "no such city", "is_error": True}

    messages = sent(MESSAGES, OPENAI, messages=[*MESSAGES_ROUND[:2], {"role": "user", "content": [result]}])[
        "messages"
    ]

    assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "Error: no such city"}


def test_ids_are_put_into_the_characters_that_the_wire_allows():
    calls = [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": ""}}]
    result = {"role": "tool", "tool_call_id": "functions.f:0", "content": "x"}

    messages = sent(
        CHAT, ANTHROPIC, messages=[USER, {"role": "assistant", "content": None, "tool_calls": calls}, result]
    )["messages"]

    assert messages[1]["content"] == [{"type": "tool_use", "id": "functions_f_0", "name": "f", "input": {}}]
    assert messages[2]["content"] == [{"type": "tool_result", "tool_use_id": "functions_f_0", "content": "x"}]


@pytest.mark.parametrize("arguments", ["{", "[]", "1", '"x"', "nonsense"])
def test_arguments_that_are_no_object_are_named(arguments):
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]

    said = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    assert refused(CHAT, ANTHROPIC, messages=said) == "messages[1].tool_calls[0].function.arguments"
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    assert refused(RESPONSES, ANTHROPIC, input=[USER, item]) == "input[1].arguments"
    assert sent(RESPONSES, OPENAI, input=[USER, item])["messages"][1]["tool_calls"] == calls


# Reasoning


def test_reasoning_of_earlier_answers_is_carried():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "sealed"}
    said = [USER, {"role": "assistant", "content": [thought, {"type": "text", "text": "Hello"}]}, USER]
    item = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": "sealed",
    }
    reasoned = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."}
    answered = {"role": "assistant", "content": "Hello"}

    assert sent(MESSAGES, OPENAI, messages=said)["messages"] == [USER, reasoned, USER]
    assert sent(RESPONSES, OPENAI, input=[USER, item, answered, USER])["messages"] == [USER, reasoned, USER]
    assert sent(RESPONSES, ANTHROPIC, input=[USER, item, answered, USER])["messages"] == said
    unsealed = {**thought, "signature": ""}
    assert sent(CHAT, ANTHROPIC, messages=[USER, reasoned, USER])["messages"][1]["content"][0] == unsealed


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        ({"type": "disabled"}, "none"),
        ({"type": "enabled", "budget_tokens": 1024}, "low"),
        ({"type": "enabled", "budget_tokens": 4096}, "medium"),
        ({"type": "enabled", "budget_tokens": 32_000, "display": "summarized"}, "high"),
    ],
)
def test_a_budget_for_thinking_becomes_an_effort(thinking, effort):
    assert sent(MESSAGES, OPENAI, thinking=thinking, max_tokens=64_000)["reasoning_effort"] == effort


def test_adaptive_thinking_goes_by_the_effort():
    adaptive = {"type": "adaptive"}

    assert "reasoning_effort" not in sent(MESSAGES, OPENAI, thinking=adaptive)
    request = sent(MESSAGES, OPENAI, thinking=adaptive, output_config={"effort": "max"})
    assert request["reasoning_effort"] == "xhigh"
    request = sent(MESSAGES, OPENAI, thinking={"type": "disabled"}, output_config={"effort": "low"})
    assert request["reasoning_effort"] == "none"


@pytest.mark.parametrize(
    ("effort", "limits", "thinking", "max_tokens"),
    [
        ("none", {}, {"type": "disabled"}, 4096),
        ("minimal", {}, {"type": "enabled", "budget_tokens": 1024}, 5120),
        ("high", {}, {"type": "enabled", "budget_tokens": 16_384}, 20_480),
        ("high", {"limit": 2000}, {"type": "enabled", "budget_tokens": 1999}, 2000),
    ],
)
def test_an_effort_becomes_a_budget_below_the_limit(effort, limits, thinking, max_tokens):
    limit = limits.get("limit")
    for dialect, fields in (
        (CHAT, {"reasoning_effort": effort, "max_completion_tokens": limit}),
        (RESPONSES, {"reasoning": {"effort": effort, "summary": "auto"}, "max_output_tokens": limit}),
    ):
        request = sent(dialect, ANTHROPIC, **fields)
        assert (request["thinking"], request["max_tokens"]) == (thinking, max_tokens)


def test_an_effort_that_the_limit_leaves_no_room_for_is_named():
    assert refused(CHAT, ANTHROPIC, reasoning_effort="low", max_tokens=1024) == "reasoning_effort"
    tight = Target(dialect="anthropic", max_output_tokens=512)
    assert refused(RESPONSES, tight, reasoning={"effort": "low"}) == "reasoning.effort"


# Everything else that is carried


def test_sampling_limits_and_stop_sequences_are_carried():
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 40}

    assert sent(CHAT, ANTHROPIC, **sampling, max_tokens=9, stop="END", user="u-1") == {
        "messages": [USER],
        "max_tokens": 9,
        **sampling,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u-1"},
    }
    request = sent(MESSAGES, OPENAI, **sampling, stop_sequences=["END", "STOP"], metadata={"user_id": "u-1"})
    assert request == {
        "messages": [USER],
        "max_tokens": 64,
        **sampling,
        "stop": ["END", "STOP"],
        "user": "u-1",
    }
    asked = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "safety_identifier": "u-1"}
    assert sent(RESPONSES, OPENAI, **asked) == {
        "messages": [USER],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "user": "u-1",
    }


def test_json_schemas_are_carried():
    schema = {"name": "place", "schema": SCHEMA, "strict": True}
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}

    chat = {"type": "json_schema", "json_schema": schema}
    assert sent(CHAT, ANTHROPIC, response_format=chat)["output_config"] == config
    text = {"format": {"type": "json_schema", **schema}}
    assert sent(RESPONSES, ANTHROPIC, text=text)["output_config"] == config
    assert sent(RESPONSES, OPENAI, text=text)["response_format"] == chat
    assert sent(MESSAGES, OPENAI, output_config=config)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
    }
    described = {**chat, "json_schema": {**schema, "description": "A place."}}
    assert sent(CHAT, ANTHROPIC, response_format=described)["output_config"]["format"]["schema"] == {
        **SCHEMA,
        "description": "A place.",
    }


def test_a_json_object_is_carried_where_the_wire_knows_it():
    assert sent(RESPONSES, OPENAI, text={"format": {"type": "json_object"}})["response_format"] == {
        "type": "json_object"
    }
    assert refused(RESPONSES, ANTHROPIC, text={"format": {"type": "json_object"}}) == "text.format"
    assert refused(CHAT, ANTHROPIC, response_format={"type": "json_object"}) == "response_format"


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=["chat", "responses"])
def test_defaults_that_are_spelled_out_are_no_demand(dialect):
    fields: dict[str, Any] = {
        "store": False,
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "top_logprobs": 0,
        "user": None,
    }
    if dialect is CHAT:
        fields |= {
            "n": 1,
            "logprobs": False,
            "frequency_penalty": 0,
            "presence_penalty": 0.0,
            "logit_bias": {},
            "response_format": {"type": "text"},
            "modalities": ["text"],
            "seed": None,
        }
    else:
        fields |= {
            "background": False,
            "truncation": "disabled",
            "include": ["reasoning.encrypted_content"],
            "metadata": {"run": "7"},
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "stream_options": {"include_obfuscation": False},
        }

    assert sent(dialect, ANTHROPIC, **fields) == {"messages": [USER], "max_tokens": 4096}


# The tier's own bodies, in the wire that is sent


def test_the_tiers_bodies_and_cap_apply_to_what_is_sent():
    raw = {name: msgspec.Raw(value) for name, value in (("temperature", b"0.1"), ("top_p", b"0.2"))}
    target = Target(
        dialect="openai",
        max_output_tokens=32,
        extra_body={"seed": msgspec.Raw(b"7")},
        extra_body_defaults=raw,
    )

    assert sent(MESSAGES, target, temperature=0.9) == {
        "messages": [USER],
        "max_tokens": 32,
        "temperature": 0.9,
        "top_p": 0.2,
        "seed": 7,
    }
    capped = Target(dialect="anthropic", max_output_tokens=32, extra_body_defaults=raw)
    assert sent(CHAT, capped) == {"messages": [USER], "temperature": 0.1, "top_p": 0.2, "max_tokens": 32}
    own = Target(dialect="anthropic", extra_body_defaults={"max_tokens": msgspec.Raw(b"99")})
    assert sent(CHAT, own)["max_tokens"] == 99


# What cannot be carried


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"seed": 7},
        {"store": True},
        {"metadata": {"run": "7"}},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"logit_bias": {"50256": -100}},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -1},
        {"service_tier": "flex"},
        {"verbosity": "low"},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"prediction": {"type": "content", "content": "x"}},
        {"web_search_options": {}},
        {"functions": [{"name": "f"}]},
        {"function_call": "auto"},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"guided_json": {}},
        {"anything": 0},
    ],
    ids=str,
)
def test_a_chat_field_without_a_counterpart_is_named(fields):
    (name,) = fields
    assert refused(CHAT, ANTHROPIC, **fields) == name
    assert CHAT.parse(compact({"model": "a", **LEAST[CHAT], **fields})).prepare(OPENAI, model="a")


@pytest.mark.parametrize("target", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{}]}, "context_management"),
        ({"moderation": {}}, "moderation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f"}, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": PNG}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"anything": 0}, "anything"),
    ],
    ids=str,
)
def test_a_responses_field_without_a_counterpart_is_named(target, fields, name):
    assert refused(RESPONSES, target, **fields) == name


def _said(block: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [block]}]}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"context_management": {"edits": []}}, "context_management"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"metadata": {"user_id": "u", "team": "t"}}, "metadata.team"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "some"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format.type"),
        ({"output_config": {"task_budget": 1}}, "output_config.task_budget"),
        ({"tool_choice": {"type": "best"}}, "tool_choice.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        (_said({"type": "document", "source": {}}), "messages[0].content[0].type"),
        (_said({"type": "search_result"}), "messages[0].content[0].type"),
        (
            _said({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[0].content[0].source.type",
        ),
        (_said({"type": "text", "text": "x", "citations": [{}]}), "messages[0].content[0].citations"),
        (_said({"type": "redacted_thinking", "data": "x"}, "assistant"), "messages[0].content[0].type"),
        (_said({"type": "server_tool_use"}, "assistant"), "messages[0].content[0].type"),
        (_said({"type": "text", "text": "x", "tone": "dry"}), "messages[0].content[0].tone"),
        (
            _said({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document"}]}),
            "messages[0].content[0].content[0].type",
        ),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "messages[0].name"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"system": [{"type": "image", "source": {"type": "url", "url": "u"}}]}, "system"),
        ({"anything": 0}, "anything"),
    ],
    ids=str,
)
def test_a_messages_field_without_a_counterpart_is_named(fields, name):
    assert refused(MESSAGES, OPENAI, **fields) == name


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ({"role": "function", "name": "f", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "name": "Ann"}, "messages[0].name"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": [7]}, "messages[0].content[0]"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "assistant", "content": "x", "function_call": {}}, "messages[0].function_call"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls[0].type"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,x"}}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "extra": 1}, "messages[0].extra"),
    ],
    ids=str,
)
def test_a_chat_message_without_a_counterpart_is_named(message, name):
    assert refused(CHAT, ANTHROPIC, messages=[message]) == name


@pytest.mark.parametrize(
    ("dialect", "target", "fields", "name"),
    [
        (CHAT, ANTHROPIC, {"temperature": "hot"}, "temperature"),
        (CHAT, ANTHROPIC, {"temperature": True}, "temperature"),
        (CHAT, ANTHROPIC, {"top_k": 1.5}, "top_k"),
        (CHAT, ANTHROPIC, {"stop": [1]}, "stop[0]"),
        (
            CHAT,
            ANTHROPIC,
            {"tools": [{"type": "function", "function": {"name": 1}}]},
            "tools[0].function.name",
        ),
        (CHAT, ANTHROPIC, {"response_format": "json"}, "response_format"),
        (MESSAGES, OPENAI, {"stop_sequences": "END"}, "stop_sequences"),
        (MESSAGES, OPENAI, {"thinking": "hard"}, "thinking"),
        (RESPONSES, OPENAI, {"instructions": ["x"]}, "instructions"),
        (RESPONSES, OPENAI, {"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_named(dialect, target, fields, name):
    assert refused(dialect, target, **fields) == name
