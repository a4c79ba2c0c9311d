"""Whatever a caller or an upstream sends, nothing is raised but what the path knows how to answer."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.dialects.anthropic_messages import MESSAGES
from routing.dialects.base import Dialect, Failure, RequestError, Target
from routing.dialects.openai_chat import CHAT
from routing.dialects.openai_responses import RESPONSES
from tests.unit.routing import test_translate_answers as answers
from tests.unit.routing import test_translate_requests as requests
from tests.unit.routing.exchange_kit import feed, http, sse
from tests.unit.routing.wires_kit import ANTHROPIC, NATIVE, OPENAI, PAIRS, compact

pytestmark = pytest.mark.requirement("contract 2", "cases 28")

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner)
    ),
    max_leaves=3,
)
CHAT_BODY = {
    "model": "a",
    "stream": True,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": requests.PNG}},
            ],
        },
        *requests.CHAT_ROUND,
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": requests.SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": requests.SCHEMA}},
    "stop": ["x"],
    "max_tokens": 4000,
    "reasoning_effort": "low",
    "stream_options": {"include_usage": True},
}
RESPONSES_BODY = {
    "model": "a",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": requests.PNG, "detail": "auto"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        *requests.RESPONSES_ROUND,
    ],
    "tools": [{"type": "function", "name": "f", "parameters": requests.SCHEMA, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": requests.SCHEMA}},
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 4000,
}
MESSAGES_BODY = {
    "model": "a",
    "max_tokens": 4000,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
            ],
        },
        *requests.MESSAGES_ROUND,
    ],
    "tools": [{"name": "f", "input_schema": requests.SCHEMA}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": requests.SCHEMA}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
}


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, as the keys that lead to it."""
    found = [path] if path else []
    entries = document.items() if isinstance(document, dict) else ()
    entries = enumerate(document) if isinstance(document, list) else entries
    for key, value in entries:
        found += places(value, (*path, key))
    return found


@st.composite
def spoiled(draw: st.DrawFn, document: Any) -> bytes:
    """The document with one or two of its values replaced, or taken out."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(places(document)))
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if isinstance(holder, dict) and draw(st.booleans()):
            del holder[path[-1]]
            holder |= {draw(st.sampled_from(["type", "role", "extra"])): draw(JUNK)}
        else:
            holder[path[-1]] = draw(JUNK)
    return compact(document)


BODIES: list[tuple[Dialect, Any]] = [
    (CHAT, CHAT_BODY),
    (RESPONSES, RESPONSES_BODY),
    (MESSAGES, MESSAGES_BODY),
]
TARGETS: list[Target] = [OPENAI, ANTHROPIC, NATIVE, Target(dialect="anthropic", max_output_tokens=9)]


@pytest.mark.parametrize(("dialect", "document"), BODIES, ids=["chat", "responses", "messages"])
@given(data=st.data())
def test_a_spoiled_request_is_carried_or_refused_by_a_field(dialect, document, data):
    body = data.draw(spoiled(document))
    try:
        request = dialect.parse(body)
        request.demand(count_text=True)
    except RequestError as error:
        check_refusal(error.failure)
        return
    for target in TARGETS:
        try:
            call = request.prepare(target, model="m")
        except RequestError as error:
            check_refusal(error.failure)
        else:
            json.loads(call.body)


def check_refusal(failure: Failure) -> None:
    """A refusal names a field, and is the caller's fault."""
    assert (failure.status, bool(failure.param)) == (400, True)


@pytest.mark.parametrize(("dialect", "document"), BODIES, ids=["chat", "responses", "messages"])
def test_the_request_that_is_spoiled_is_carried_everywhere(dialect, document):
    for target in TARGETS[:3]:
        dialect.parse(compact(document)).prepare(target, model="m")


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@given(data=st.data())
def test_a_spoiled_answer_is_an_answer_or_an_error(pair, data):
    messages = pair.sample is not PAIRS["chat from chat"].sample
    whole = answers.MESSAGE_WHOLE if messages else answers.ROUND_WHOLE
    events = answers.MESSAGE_ROUND if messages else answers.ROUND[:-1]
    at = data.draw(st.integers(0, len(events) - 1))
    event = data.draw(spoiled(json.loads(events[at])))
    stream = b"".join(b"data: " + one + b"\n\n" for one in [*events[:at], event, *events[at + 1 :]])

    streamed = feed(pair.exchange(stream=True), [sse(stream + pair.sample.end)], eof=True)
    answered = feed(pair.exchange(stream=False), [http(data.draw(spoiled(json.loads(whole))))], eof=True)

    for run in (streamed, answered):
        assert run.exchange.over
        begun = run.head is not None and run.head.streaming
        assert pair.errors(run.body, stream=begun) == (run.outcome.outcome == "error")
