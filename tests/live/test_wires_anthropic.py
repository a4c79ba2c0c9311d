"""Anthropic's official client on every tier: messages, one upstream request each."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
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
from tests.unit.routing.wires_grammar import message_of

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013", "cases 30")

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


def sent_to(fleet: Fleet, alias: str) -> dict[str, Any]:
    """The one upstream request, which went to the tier's own wire."""
    request = fleet.sent()
    assert request["path"] == upstream_path("messages", alias)
    body: dict[str, Any] = json.loads(request["body"])
    assert body["model"] == "demo-model"
    return body


@EACH_ALIAS
def test_a_plain_message(fleet: Fleet, alias: str) -> None:
    with fleet.anthropic() as client:
        raw = client.messages.with_raw_response.create(
            model=alias, max_tokens=64, messages=USER, system="Be brief."
        )
    message = raw.parse()

    (block,) = message.content
    assert block.type == "text"
    assert block.text in TEXTS
    assert (message.stop_reason, message.model, message.role) == ("end_turn", alias, "assistant")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (12, 12)
    sent_to(fleet, alias)
    record = fleet.record(raw.headers["x-request-id"])
    assert (record["kind"], record["route"], record["attempts"][0]["reason"]) == ("messages", alias, "served")


@EACH_ALIAS
def test_a_streamed_message_adds_up(fleet: Fleet, alias: str) -> None:
    with fleet.anthropic() as client:
        asked: dict[str, Any] = {"model": alias, "max_tokens": 64, "messages": USER}
        events = list(client.messages.create(stream=True, **asked))
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()

    told = [(event.type, event.model_dump(exclude_unset=True)) for event in events]
    message = message_of(told)
    assert message["content"][0]["text"] in TEXTS
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert text in TEXTS
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert (final.usage.input_tokens, final.usage.output_tokens) == (5, 12)


TOOLS: list[Any] = [
    {"name": name, "description": "Tells.", "input_schema": SCHEMA} for name in ("get_weather", "get_time")
]


@EACH_ALIAS
@pytest.mark.parametrize("stream", [False, True])
def test_a_round_of_two_parallel_calls(fleet: Fleet, alias: str, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": TOOL_PROMPT}]
    asked: dict[str, Any] = {"model": alias, "max_tokens": 64, "tools": TOOLS}
    with fleet.anthropic() as client:
        if stream:
            with client.messages.stream(messages=messages, **asked) as events:
                answer: Any = events.get_final_message()
        else:
            answer = client.messages.create(messages=messages, **asked)
        assert answer.stop_reason == "tool_use"
        assert [(block.type, block.name) for block in answer.content] == [
            ("tool_use", "get_weather"),
            ("tool_use", "get_time"),
        ]
        assert [block.input for block in answer.content] == [SCHEMA_SAMPLE] * 2

        fleet.reset()
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": text}
            for block, text in zip(answer.content, ["rain", "noon"], strict=True)
        ]
        messages += [
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": results},
        ]
        told = client.messages.create(messages=messages, **asked)

    assert told.content[0].type == "text"
    assert "the tools said rain and noon;" in told.content[0].text
    sent_to(fleet, alias)


@EACH_ALIAS
def test_one_tool_at_a_time(fleet: Fleet, alias: str) -> None:
    with fleet.anthropic() as client:
        answer = client.messages.create(
            model=alias,
            max_tokens=64,
            messages=[{"role": "user", "content": TOOL_PROMPT}],
            tools=TOOLS,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )

    assert [block.type for block in answer.content] == ["tool_use"]


@EACH_ALIAS
def test_a_structured_message(fleet: Fleet, alias: str) -> None:
    with fleet.anthropic() as client:
        message = client.messages.parse(model=alias, max_tokens=64, messages=USER, output_format=Trip)

    assert message.parsed_output == Trip(**SCHEMA_SAMPLE)
    sent_to(fleet, alias)


@EACH_ALIAS
def test_an_image(fleet: Fleet, alias: str) -> None:
    source: Any = {"type": "base64", "media_type": "image/png", "data": PNG}
    content: Any = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    with fleet.anthropic() as client:
        message = client.messages.create(
            model=alias, max_tokens=64, messages=[{"role": "user", "content": content}]
        )

    assert message.usage.input_tokens == 4 + 1 + 85
    (said,) = sent_to(fleet, alias)["messages"]
    if alias.endswith("openai"):
        assert said["content"][1]["image_url"] == {"url": f"data:image/png;base64,{PNG}"}
    else:
        assert said["content"] == content


@EACH_ALIAS
@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_shown_to_who_asks_for_it(fleet: Fleet, alias: str, stream: bool) -> None:
    asked: dict[str, Any] = {"model": alias, "max_tokens": 4096, "messages": USER}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 2048}
    with fleet.anthropic() as client:
        if stream:
            with client.messages.stream(**asked) as events:
                message: Any = events.get_final_message()
        else:
            message = client.messages.create(**asked)

    thought, said = message.content
    assert (thought.type, thought.thinking) == ("thinking", " The question is 简单.")
    assert thought.signature == ("" if alias.endswith("openai") else "c2lnbmVk")
    assert said.text in TEXTS


@EACH_ALIAS
def test_stop_sequences_and_output_limits(fleet: Fleet, alias: str) -> None:
    with fleet.anthropic() as client:
        stopped = client.messages.create(
            model=alias, max_tokens=64, messages=USER, stop_sequences=[" word", "never"]
        )
        limited = client.messages.create(model=alias, max_tokens=4, messages=USER)

    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " word")
    assert (limited.stop_reason, limited.stop_sequence) == ("max_tokens", None)


@EACH_ALIAS
def test_counting_tokens_is_an_estimate_that_no_upstream_is_asked_for(fleet: Fleet, alias: str) -> None:
    with fleet.anthropic() as client:
        raw = client.messages.with_raw_response.count_tokens(
            model=alias, messages=[{"role": "user", "content": "Twelve bytes"}]
        )

    assert raw.parse().input_tokens == 3
    assert raw.headers["warning"] == '299 anvil "input_tokens is an estimate"'
    assert fleet.received() == []


# Errors and ends


@pytest.mark.requirement("cases 29")
def test_an_unknown_model_is_not_found(fleet: Fleet) -> None:
    with fleet.anthropic() as client:
        for ask in (client.messages.create, client.messages.count_tokens):
            limit = {"max_tokens": 9} if ask == client.messages.create else {}
            with pytest.raises(anthropic.NotFoundError) as caught:
                ask(model="nobody", messages=USER, **limit)  # type: ignore[operator]
            assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert fleet.received() == []


def test_a_wrong_key_is_told(fleet: Fleet) -> None:
    with fleet.anthropic(api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError) as caught:
        client.messages.create(model="direct.openai", max_tokens=9, messages=USER)

    assert caught.value.body == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "A valid API key is required."},
    }


def test_a_field_without_a_counterpart_is_named(fleet: Fleet) -> None:
    with fleet.anthropic() as client, pytest.raises(anthropic.BadRequestError, match="'container'"):
        client.messages.create(model="direct.openai", max_tokens=9, messages=USER, container="c")
    assert fleet.received() == []


@EACH_ALIAS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.requirement("cases 20", "cases 27")
def test_the_upstreams_refusal_keeps_its_status_and_message(fleet: Fleet, alias: str, stream: bool) -> None:
    fleet.fault("http_error", status=400, message="The engine says no.", type="BadRequestError")
    with fleet.anthropic() as client, pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=alias, max_tokens=9, messages=USER, stream=stream)

    assert caught.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "The engine says no."},
    }
    assert len(fleet.received()) == 1


@EACH_ALIAS
@pytest.mark.parametrize(
    ("fault", "params", "message"),
    [
        ("cut_mid_stream", {"after": 4}, "ended before it was complete"),
        ("error_event_mid_stream", {"after": 3}, "EngineCore encountered an issue"),
        ("malformed_event", {"after": 3}, "cannot be used"),
    ],
)
@pytest.mark.requirement("cases 21")
def test_a_stream_that_breaks_ends_in_an_error_that_the_client_raises(
    fleet: Fleet, alias: str, fault: str, params: dict[str, Any], message: str
) -> None:
    fleet.fault(fault, **params)
    with fleet.anthropic() as client:
        stream = client.messages.create(model=alias, max_tokens=64, messages=USER, stream=True)
        with pytest.raises(anthropic.APIError, match=message):
            for _ in stream:
                pass

    assert len(fleet.received()) == 1


@EACH_ALIAS
@pytest.mark.requirement("cases 1", "cases 6")
def test_a_client_that_leaves_a_stream_frees_its_lease(fleet: Fleet, alias: str) -> None:
    fleet.fault("stall_mid_stream", after=3)
    with fleet.anthropic() as client:
        stream = client.messages.create(model=alias, max_tokens=64, messages=USER, stream=True)
        next(iter(stream))
        stream.close()
        await_rest(fleet.router)

    fleet.await_counts(cancelled=1, running=0)


@pytest.mark.parametrize("alias", ["direct.openai", "direct.anthropic"])
@pytest.mark.parametrize("fault", ["http_500", "reset"])
def test_a_failure_after_dispatch_is_not_tried_again(fleet: Fleet, alias: str, fault: str) -> None:
    for engine in fleet.engines:
        engine.fault(fault, path=upstream_path("messages", alias))
    with fleet.anthropic(max_retries=2) as client, pytest.raises(anthropic.InternalServerError) as caught:
        client.messages.create(model=alias, max_tokens=9, messages=USER)

    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(fleet.received()) == 1
