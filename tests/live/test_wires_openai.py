"""OpenAI's official client on every tier: chat completions and Responses, one upstream request each."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from tests.live.harness import await_rest
from tests.live.wires_fleet import (
    ALIASES,
    PNG,
    SCHEMA,
    SCHEMA_SAMPLE,
    TOOL_PROMPT,
    Fleet,
    spoken,
    upstream_path,
    wires_fleet,
)
from tests.unit.routing.wires_grammar import completion_of, response_of

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013", "C-T007")

EACH_ALIAS = pytest.mark.parametrize("alias", ALIASES)
USER: list[Any] = [{"role": "user", "content": "hi"}]
TEXTS = {spoken(name) for name in ("engine-d", "engine-a", "engine-b")}


class Trip(BaseModel):
    """What the structured answers hold."""

    city: str
    days: int


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with wires_fleet(tmp_path_factory.mktemp("wires")) as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def _one_at_a_time(fleet: Fleet) -> Iterator[None]:
    fleet.reset()
    yield
    await_rest(fleet.router)


def sent_to(fleet: Fleet, wire: str, alias: str) -> dict[str, Any]:
    """The one upstream request, which went to the tier's own wire."""
    request = fleet.sent()
    assert request["path"] == upstream_path(wire, alias)
    body: dict[str, Any] = json.loads(request["body"])
    assert body["model"] == "demo-model"
    return body


# Chat completions


@EACH_ALIAS
def test_a_plain_completion(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        raw = client.chat.completions.with_raw_response.create(model=alias, messages=USER)
    completion = raw.parse()

    assert completion.choices[0].message.content in TEXTS
    assert (completion.choices[0].finish_reason, completion.model) == ("stop", alias)
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (5, 12)
    sent_to(fleet, "chat", alias)
    record = fleet.record(raw.headers["x-request-id"])
    assert (record["kind"], record["route"], len(record["attempts"])) == ("chat", alias, 1)
    assert record["attempts"][0]["reason"] == "served"


@EACH_ALIAS
@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_completion_adds_up(fleet: Fleet, alias: str, usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    with fleet.openai() as client:
        chunks = list(client.chat.completions.create(model=alias, messages=USER, stream=True, **options))

    events: list[tuple[str | None, Any]] = [(None, chunk.model_dump(exclude_unset=True)) for chunk in chunks]
    if alias.endswith("anthropic"):
        told = completion_of([*events, (None, "[DONE]")])
        assert told["message"]["content"] in TEXTS
        assert told["finish_reason"] == "stop"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text in TEXTS
    assert {chunk.model for chunk in chunks} == {alias}
    counted = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert [(one.prompt_tokens, one.completion_tokens) for one in counted] == [(5, 12)] * usage
    assert sent_to(fleet, "chat", alias)["stream"] is True


CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "Tells.", "parameters": SCHEMA}}
    for name in ("get_weather", "get_time")
]


@EACH_ALIAS
@pytest.mark.parametrize("stream", [False, True])
def test_a_round_of_two_parallel_calls_in_chat(fleet: Fleet, alias: str, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": TOOL_PROMPT}]
    asked: dict[str, Any] = {"model": alias, "tools": CHAT_TOOLS}
    with fleet.openai() as client:
        if stream:
            with client.chat.completions.stream(messages=messages, **asked) as events:
                for _ in events:
                    pass
                choice: Any = events.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(messages=messages, **asked).choices[0]
        calls = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        assert [call.function.name for call in calls] == ["get_weather", "get_time"]
        assert [json.loads(call.function.arguments) for call in calls] == [SCHEMA_SAMPLE] * 2

        fleet.reset()
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, ["rain", "noon"], strict=True)
        ]
        said = choice.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        for call in said["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        answer = client.chat.completions.create(messages=[*messages, said, *results], **asked)

    assert answer.choices[0].message.content is not None
    assert "the tools said rain and noon;" in answer.choices[0].message.content
    sent_to(fleet, "chat", alias)


@EACH_ALIAS
def test_a_structured_completion(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        completion = client.chat.completions.parse(model=alias, messages=USER, response_format=Trip)

    assert completion.choices[0].message.parsed == Trip(**SCHEMA_SAMPLE)
    sent_to(fleet, "chat", alias)


@EACH_ALIAS
def test_an_image_in_chat(fleet: Fleet, alias: str) -> None:
    url = f"data:image/png;base64,{PNG}"
    content: Any = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
    with fleet.openai() as client:
        answer = client.chat.completions.create(model=alias, messages=[{"role": "user", "content": content}])

    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4 + 1 + 85
    (message,) = sent_to(fleet, "chat", alias)["messages"]
    if alias.endswith("anthropic"):
        assert message["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
    else:
        assert message["content"] == content


@EACH_ALIAS
def test_reasoning_in_chat(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        answer = client.chat.completions.create(model=alias, messages=USER, reasoning_effort="low")
        with client.chat.completions.stream(model=alias, messages=USER, reasoning_effort="low") as events:
            for _ in events:
                pass
            streamed = events.get_final_completion()

    for one in (answer, streamed):
        message: Any = one.choices[0].message
        assert message.reasoning_content == " The question is 简单."
        assert message.content in TEXTS


@EACH_ALIAS
def test_a_stop_sequence_and_an_output_limit_in_chat(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        stopped = client.chat.completions.create(model=alias, messages=USER, stop=[" word"])
        limited = client.chat.completions.create(model=alias, messages=USER, max_tokens=4)

    assert stopped.choices[0].finish_reason == "stop"
    assert (stopped.choices[0].message.content or "").endswith(": one token per")
    assert limited.choices[0].finish_reason == "length"


# Responses


@EACH_ALIAS
def test_a_plain_response(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        raw = client.responses.with_raw_response.create(model=alias, input="hi", instructions="Be brief.")
    response = raw.parse()

    assert response.output_text in TEXTS
    assert (response.status, response.model, response.object) == ("completed", alias, "response")
    assert response.usage is not None
    assert response.usage.output_tokens == 12
    sent_to(fleet, "responses", alias)
    record = fleet.record(raw.headers["x-request-id"])
    assert (record["kind"], record["route"], record["attempts"][0]["reason"]) == (
        "responses",
        alias,
        "served",
    )


@EACH_ALIAS
def test_a_streamed_response_adds_up(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        asked = {"model": alias, "input": "hi"}
        events = list(client.responses.create(stream=True, **asked))  # type: ignore[call-overload]
        with client.responses.stream(**asked) as stream:  # type: ignore[arg-type]
            for _ in stream:
                pass
            final = stream.get_final_response()

    told = [(event.type, event.model_dump(exclude_unset=True)) for event in events]
    if not alias.endswith("native"):
        assert response_of(told)["output"][0]["content"][0]["text"] in TEXTS
    assert final.output_text in TEXTS
    assert [event.type for event in events][-1] == "response.completed"
    assert {event.response.model for event in events if hasattr(event, "response")} == {alias}


FLAT_TOOLS: list[FunctionToolParam] = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": True}
    for name in ("get_weather", "get_time")
]


@EACH_ALIAS
@pytest.mark.parametrize("stream", [False, True])
def test_a_round_of_two_parallel_calls_in_responses(fleet: Fleet, alias: str, stream: bool) -> None:
    said: list[Any] = [{"role": "user", "content": TOOL_PROMPT}]
    asked: dict[str, Any] = {"model": alias, "tools": FLAT_TOOLS}
    with fleet.openai() as client:
        if stream:
            with client.responses.stream(input=said, **asked) as events:
                for _ in events:
                    pass
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(input=said, **asked)
        calls = [item for item in response.output if item.type == "function_call"]
        assert [call.name for call in calls] == ["get_weather", "get_time"]
        assert [json.loads(call.arguments) for call in calls] == [SCHEMA_SAMPLE] * 2

        fleet.reset()
        said += [
            {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            for call in calls
        ]
        said += [
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
            for call, text in zip(calls, ["rain", "noon"], strict=True)
        ]
        answer = client.responses.create(input=said, **asked)

    assert "the tools said rain and noon;" in answer.output_text
    sent_to(fleet, "responses", alias)


@EACH_ALIAS
def test_a_structured_response(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        response = client.responses.parse(model=alias, input="hi", text_format=Trip)

    assert response.output_parsed == Trip(**SCHEMA_SAMPLE)
    sent_to(fleet, "responses", alias)


@EACH_ALIAS
def test_an_image_in_responses(fleet: Fleet, alias: str) -> None:
    content: Any = [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
    ]
    with fleet.openai() as client:
        response = client.responses.create(model=alias, input=[{"role": "user", "content": content}])

    assert response.usage is not None
    assert response.usage.input_tokens == 4 + 1 + 85


@EACH_ALIAS
def test_reasoning_comes_back_as_it_was_given(fleet: Fleet, alias: str) -> None:
    asked: dict[str, Any] = {"model": alias, "reasoning": {"effort": "low"}}
    with fleet.openai() as client:
        response = client.responses.create(input="hi", **asked)
        thought: Any = response.output[0]
        assert (thought.type, thought.content[0].text) == ("reasoning", " The question is 简单.")
        assert response.output_text in TEXTS

        fleet.reset()
        again: list[Any] = [{"role": "user", "content": "hi"}, *response.output, *USER]
        client.responses.create(input=again, **asked)

    messages = sent_to(fleet, "responses", alias).get("messages")
    if alias.endswith("anthropic"):
        assert messages[1]["content"][0] == {
            "type": "thinking",
            "thinking": " The question is 简单.",
            "signature": "c2lnbmVk",
        }
    elif alias.endswith("openai"):
        assert messages[1]["reasoning_content"] == " The question is 简单."


@EACH_ALIAS
def test_an_output_limit_leaves_a_response_incomplete(fleet: Fleet, alias: str) -> None:
    with fleet.openai() as client:
        response = client.responses.create(model=alias, input="hi", max_output_tokens=4)

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@EACH_ALIAS
@pytest.mark.parametrize("fields", [{"previous_response_id": "resp_1"}, {"store": True}], ids=str)
def test_stored_responses_are_refused_by_name(fleet: Fleet, alias: str, fields: Any) -> None:
    with fleet.openai() as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=alias, input="hi", **fields)

    assert caught.value.param == next(iter(fields))
    assert fleet.received() == []


# Errors and ends


def ask(client: openai.OpenAI, wire: str, alias: str, *, stream: bool = False) -> Any:
    if wire == "chat":
        return client.chat.completions.create(model=alias, messages=USER, stream=stream)
    return client.responses.create(model=alias, input="hi", stream=stream)


EACH_WIRE = pytest.mark.parametrize("wire", ["chat", "responses"])


@EACH_WIRE
@pytest.mark.requirement("cases 29")
def test_an_unknown_model_is_not_found(fleet: Fleet, wire: str) -> None:
    with fleet.openai() as client, pytest.raises(openai.NotFoundError) as caught:
        ask(client, wire, "nobody")

    assert caught.value.code == "model_not_found"
    assert fleet.received() == []


@EACH_WIRE
def test_a_wrong_key_is_told(fleet: Fleet, wire: str) -> None:
    with fleet.openai(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        ask(client, wire, "direct.openai")


@EACH_ALIAS
@EACH_WIRE
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.requirement("cases 20", "cases 27")
def test_the_upstreams_refusal_keeps_its_status_and_message(
    fleet: Fleet, alias: str, wire: str, stream: bool
) -> None:
    fleet.fault("http_error", status=400, message="The engine says no.", type="BadRequestError")
    with fleet.openai() as client, pytest.raises(openai.BadRequestError) as caught:
        ask(client, wire, alias, stream=stream)

    assert caught.value.body == {
        "message": "The engine says no.",
        "type": "invalid_request_error",
        "param": None,
        "code": "upstream_rejected",
    }
    assert len(fleet.received()) == 1


@EACH_ALIAS
@EACH_WIRE
def test_a_rate_limit_keeps_its_retry_after(fleet: Fleet, alias: str, wire: str) -> None:
    fleet.fault("http_429")
    with fleet.openai() as client, pytest.raises(openai.RateLimitError) as caught:
        ask(client, wire, alias)

    assert caught.value.response.headers["retry-after"] == "7"


@EACH_ALIAS
@EACH_WIRE
@pytest.mark.requirement("cases 21")
def test_a_stream_that_is_cut_ends_in_an_error_that_the_client_raises(
    fleet: Fleet, alias: str, wire: str
) -> None:
    fleet.fault("cut_mid_stream", after=4)
    with fleet.openai() as client:
        stream = ask(client, wire, alias, stream=True)
        with pytest.raises(openai.APIError, match="ended before it was complete"):
            for _ in stream:
                pass

    assert len(fleet.received()) == 1


@EACH_ALIAS
@EACH_WIRE
def test_an_error_inside_a_stream_is_one_for_the_caller(fleet: Fleet, alias: str, wire: str) -> None:
    fleet.fault("error_event_mid_stream", after=3, message="EngineCore at http://10.0.0.1/x broke.")
    with fleet.openai() as client:
        stream = ask(client, wire, alias, stream=True)
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass

    assert caught.value.message == "EngineCore at [removed] broke."


@EACH_ALIAS
@EACH_WIRE
@pytest.mark.requirement("cases 1", "cases 6")
def test_a_client_that_leaves_a_stream_frees_its_lease(fleet: Fleet, alias: str, wire: str) -> None:
    fleet.fault("stall_mid_stream", after=3)
    with fleet.openai() as client:
        stream = ask(client, wire, alias, stream=True)
        next(iter(stream))
        stream.close()
        await_rest(fleet.router)

    fleet.await_counts(cancelled=1, running=0)


@EACH_WIRE
@pytest.mark.parametrize("fault", ["http_500", "reset"])
def test_a_failure_after_dispatch_is_not_tried_again(fleet: Fleet, wire: str, fault: str) -> None:
    for engine in fleet.engines:
        engine.fault(fault, path=upstream_path(wire, "direct.openai"))
    with fleet.openai(max_retries=2) as client, pytest.raises(openai.InternalServerError) as caught:
        ask(client, wire, "direct.openai")

    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(fleet.received()) == 1
