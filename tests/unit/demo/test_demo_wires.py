"""The demo engine on the wires besides chat: shapes, strictness, and faults in the wire's own words."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from demo.delivery import Final
from demo.faults import FaultBoard
from demo.messages import count_tokens, messages
from demo.replies import RequestError
from demo.responses import responses
from demo.wire import Request
from tests.unit.routing.wires_grammar import message_of
from tests.unit.routing.wires_kit import read_events

VERSION = {"anthropic-version": "2023-06-01"}
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}}
TOOLS = [{"name": name, "input_schema": SCHEMA} for name in ("get_weather", "get_time")]
ANSWER = "Hello from e: one token"


def request(path: str, body: object, headers: dict[str, str] | None = None) -> Request:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = VERSION if headers is None else headers
    return Request(method="POST", path=path, query="", version="HTTP/1.1", headers=sent, body=data)


def message(**fields: Any) -> Any:
    body = {"model": "m", "max_tokens": 64, "messages": [USER], **fields}
    work = messages(request("/v1/messages", body), label="e", model="m", max_model_len=4096, tokens=5)
    return work.delivery


def response(**fields: Any) -> Any:
    body = {"model": "m", "input": "hi", **fields}
    work = responses(request("/v1/responses", body), label="e", model="m", max_model_len=4096, tokens=5)
    return work.delivery


def stream(delivery: Any) -> bytes:
    return b"".join(delivery.items())


def test_a_message_whole_and_streamed() -> None:
    whole = json.loads(message().body)
    streamed = message_of(read_events(stream(message(stream=True))))

    assert whole["content"] == streamed["content"] == [{"type": "text", "text": ANSWER}]
    assert (whole["stop_reason"], streamed["stop_reason"]) == ("end_turn", "end_turn")
    assert whole["usage"]["output_tokens"] == streamed["usage"]["output_tokens"] == 5


def test_a_message_with_thinking_and_calls() -> None:
    asked: dict[str, Any] = {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 2048,
        "tools": TOOLS,
        "messages": [{"role": "user", "content": "get_weather and get_time"}],
    }
    whole = json.loads(message(**asked).body)
    streamed = message_of(read_events(stream(message(stream=True, **asked))))

    assert [block["type"] for block in whole["content"]] == ["thinking", "tool_use", "tool_use"]
    assert whole["content"][0]["signature"] == streamed["content"][0]["signature"] == "c2lnbmVk"
    assert [block["input"] for block in whole["content"][1:]] == [{"days": 1}] * 2
    assert [json.loads(block["input"]) for block in streamed["content"][1:]] == [{"days": 1}] * 2
    assert whole["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": [" token"]}, "stop_sequence", " token"),
    ],
)
def test_why_a_message_stops(fields: Any, reason: str, sequence: str | None) -> None:
    whole = json.loads(message(**fields).body)

    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("fields", "message_part"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"stream_options": {}}, "stream_options: Extra inputs are not permitted"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "roles"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "non-empty"),
        ({"messages": [{"role": "user", "content": []}]}, "content must be text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "unexpected `tool_use_id`",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "budget_tokens"),
        ({"tools": [{"name": "f"}]}, "input_schema"),
        ({"model": "other"}, "does not exist"),
    ],
)
def test_what_a_client_gets_wrong_is_refused_in_anthropics_shape(fields: Any, message_part: str) -> None:
    with pytest.raises(RequestError) as caught:
        message(**fields)

    body = json.loads(caught.value.body())
    assert body["type"] == "error"
    assert message_part in body["error"]["message"]


def test_the_version_header_is_required() -> None:
    with pytest.raises(RequestError, match="anthropic-version"):
        messages(request("/v1/messages", {}, {}), label="e", model="m", max_model_len=9, tokens=1)


def test_tokens_are_counted_without_an_output_limit() -> None:
    body = {"model": "m", "messages": [USER]}
    work = count_tokens(request("/v1/messages/count_tokens", body), model="m", max_model_len=99)

    assert json.loads(work.delivery.body or b"") == {"input_tokens": 5}


def test_a_response_whole_and_streamed() -> None:
    whole = json.loads(response(reasoning={"effort": "low"}).body)
    events = read_events(stream(response(reasoning={"effort": "low"}, stream=True)))

    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][1]["content"][0]["text"] == ANSWER
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    last = events[-1][1]["response"]
    assert (last["status"], last["usage"]) == ("completed", whole["usage"])
    texts = [item["content"][0]["text"] for item in last["output"]]
    assert texts == [item["content"][0]["text"] for item in whole["output"]]


def test_a_response_that_is_cut_short_is_incomplete() -> None:
    assert json.loads(response(max_output_tokens=2).body)["incomplete_details"] == {
        "reason": "max_output_tokens"
    }
    assert stream(response(max_output_tokens=2, stream=True)).count(b"event: response.incomplete") == 1


@pytest.mark.parametrize("make", [message, response], ids=["messages", "responses"])
def test_faults_speak_the_wire(make: Callable[..., Any]) -> None:
    def struck(fault: str, **params: object) -> Any:
        board = FaultBoard()
        board.arm(fault, params=params)
        delivery = make(stream=True)
        assert board.strike(delivery, path="", is_work=True)
        return delivery

    whole = stream(make(stream=True))
    end = b'{"type":"message_stop"}\n\n' if make is message else b"event: response.completed\n"
    assert end in whole
    assert end not in stream(struck("no_terminal_event"))
    assert stream(struck("no_final_blank_line")).endswith(b"}")
    error = struck("error_event_mid_stream", message="Boom.")
    *_, last = error.items()
    assert isinstance(last, Final)
    assert b"Boom." in last
    assert last.startswith(b"event: error\n" if make is message else b"event: response.failed\n")
    body = json.loads(struck("http_500").body)
    assert ("type" in body) == (make is message)
    crlf = stream(struck("crlf_and_comments"))
    assert crlf.replace(b": keep-alive\r\n", b"").startswith(b"event: ")
    assert b"event: message\r\n" not in crlf
