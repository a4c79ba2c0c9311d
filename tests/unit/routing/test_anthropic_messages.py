"""Anthropic's messages from callers: what is read, refused, counted, and passed through untouched."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.config import Tier, parse_config
from routing.dialects import DIALECTS
from routing.dialects.anthropic_messages import MESSAGES
from routing.dialects.base import CallerRequest, Failure, MalformedAnswer, RequestError, Target, Usage
from routing.gates import Demand
from tests.unit.routing.test_exchange_properties import OBJECTS
from tests.unit.routing.wires_kit import ANTHROPIC, NATIVE, PAIRS, compact, named

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

PASSED = PAIRS["messages from messages"]
COUNT = DIALECTS["/v1/messages/count_tokens"]
USER = {"role": "user", "content": "Hi"}


def request(**fields: Any) -> CallerRequest:
    return MESSAGES.parse(compact({"model": "demo.chat", "messages": [USER], "max_tokens": 64, **fields}))


# What is read


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'{"messages":[{}]}', "model"),
        (b'{"model":"a"}', "messages"),
        (b'{"model":"a","messages":[]}', "messages"),
        (b'{"model":"a","messages":"Hi"}', "messages"),
        (b'{"model":"a","messages":[7]}', "messages"),
        (b'{"model":"a","messages":[{}],"stream":1}', "stream"),
        (b'{"model":"a","messages":[{}],"max_tokens":0}', "max_tokens"),
        (b'{"model":"a","messages":[{}],"tools":{}}', "tools"),
    ],
)
@pytest.mark.requirement("cases 28")
def test_a_body_that_is_no_request_is_refused(body, param):
    for dialect in (MESSAGES, COUNT):
        with pytest.raises(RequestError) as caught:
            dialect.parse(body)
        failure = caught.value.failure
        assert (failure.status, failure.param) == (400, param)
        error = json.loads(dialect.error(failure))
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")


def test_a_request_tells_the_path_what_it_needs_to_know():
    read = request(stream=True)

    assert (read.wire, read.alias, read.stream, read.requested_output) == ("messages", "demo.chat", True, 64)


RESULT = {
    "type": "tool_result",
    "tool_use_id": "t",
    "content": [{"type": "text", "text": "ab"}, {"type": "image", "source": {"type": "url", "url": "u"}}],
}


@pytest.mark.parametrize(
    ("fields", "text", "images"),
    [
        ({}, 2, 0),
        ({"system": "Be."}, 5, 0),
        ({"system": [{"type": "text", "text": "Be."}]}, 5, 0),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hé"}, RESULT]}]}, 5, 1),
        ({"messages": [{"role": "user", "content": 7}, {"role": "user"}]}, 0, 0),
    ],
)
@pytest.mark.requirement("cases 6")
def test_text_and_media_are_counted(fields, text, images):
    read = request(**fields)

    assert read.demand(count_text=True) == Demand(text_bytes=text, images=images)
    assert read.demand(count_text=False) == Demand(images=images)


def test_offered_tools_are_a_demand():
    assert request(tools=[{"name": "f"}]).demand(count_text=False).tools


def test_content_as_deep_as_json_goes_is_weighed():
    deep = b'[{"content":' * 400 + b'"x"' + b"}]" * 400
    body = b'{"model":"a","messages":[{"role":"user","content":%b}]}' % deep

    assert MESSAGES.parse(body).demand(count_text=True).text_bytes == 1


# What is passed through


def test_a_call_goes_to_messages_with_nothing_but_the_model_changed():
    body = b'{"model" : "demo.chat", "messages":[ {"role":"user"} ],"top_k":1e1,"x":{"b":1, "a":[]}}'
    sent = b'{"model":"served","messages":[ {"role":"user"} ],"top_k":1e1,"x":{"b":1, "a":[]}}'

    native = MESSAGES.parse(body).prepare(ANTHROPIC, model="served")
    served = MESSAGES.parse(body).prepare(NATIVE, model="served")

    assert (native.path, native.body, native.headers) == ("/messages", sent, ())
    # A server of another dialect is told which version of the wire this is.
    assert (served.path, served.body) == ("/messages", sent)
    assert served.headers == (("anthropic-version", "2023-06-01"),)


def test_the_cap_and_the_tiers_bodies_are_applied():
    target = Target(
        dialect="anthropic",
        max_output_tokens=10,
        extra_body={"top_k": msgspec.Raw(b"3")},
        extra_body_defaults={"temperature": msgspec.Raw(b"0.5")},
    )

    sent = json.loads(request().prepare(target, model="served").body)

    assert (sent["max_tokens"], sent["top_k"], sent["temperature"]) == (10, 3, 0.5)
    assert json.loads(request(max_tokens=None).prepare(target, model="m").body)["max_tokens"] == 10


@given(unknown=OBJECTS, escaped=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_a_request_arrives_as_it_was_sent_but_for_what_is_documented(unknown, escaped, indent):
    document = {**unknown, "model": "demo.chat", "messages": [unknown]}
    for name in ("tools", "stream", "max_tokens"):
        document.pop(name, None)

    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()

    for target in (ANTHROPIC, NATIVE):
        call = MESSAGES.parse(body).prepare(target, model="served")
        assert json.loads(call.body) == {**document, "model": "served"}


@given(
    answer=OBJECTS,
    model=st.none() | st.text(max_size=5),
    escaped=st.booleans(),
    indent=st.none() | st.integers(0, 2),
)
def test_an_answer_arrives_as_it_was_sent_but_for_the_model(answer, model, escaped, indent):
    answer.pop("error", None)
    answer.pop("type", None)
    document = {**answer, "model": model}
    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()

    whole = PASSED.translator(stream=False).whole(body, "")
    assert json.loads(whole.body) == {**document, "model": "demo.chat"}

    for name, field in (("message_start", "message"), ("content_block_delta", "delta")):
        event = {**answer, "type": name, field: document}
        line = json.dumps(event, ensure_ascii=escaped, indent=indent).encode()
        told = PASSED.translator(stream=True).event(line, b"event: %b\n" % name.encode())
        first, second = told.removesuffix(b"\n\n").split(b"\n")
        assert first == b"event: " + name.encode()
        expected = {**document, "model": "demo.chat"} if field == "message" else document
        assert json.loads(second.removeprefix(b"data: ")) == {**event, field: expected}


def test_an_event_that_names_no_model_goes_byte_for_byte():
    data = b'{"type":"content_block_delta" ,"delta":{"text":"\\u4f60 \xe4\xbd\xa0 \\ud83d"}}'

    assert PASSED.translator(stream=True).event(data, b"event: x\n") == b"event: x\ndata: " + data + b"\n\n"


def test_usage_is_what_the_last_event_that_told_it_said():
    translator = PASSED.translator(stream=True)
    counted = {"input_tokens": 7, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3}
    started = {"type": "message_start", "message": {"usage": {**counted, "output_tokens": 1}}}
    translator.event(compact(started), b"")
    assert translator.usage == Usage(14, 1)

    translator.event(compact({"type": "message_delta", "usage": {"output_tokens": 5}}), b"")
    assert translator.usage == Usage(14, 5)
    assert not translator.terminal

    translator.event(
        compact({"type": "message_delta", "usage": {"input_tokens": 9, "output_tokens": 6}}), b""
    )
    assert translator.usage == Usage(16, 6)
    translator.event(b'{"type":"message_stop"}', b"")
    assert translator.terminal


@pytest.mark.parametrize("data", [b"{", b"[DONE]", b"[]", b'{"type":"message_start","message":7}', b"\xff"])
def test_an_event_that_is_none(data):
    with pytest.raises(MalformedAnswer):
        PASSED.translator(stream=True).event(data, b"")


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_envelope(status, kind):
    failure = Failure(status=status, code="any", message="No.", param="model")
    expected = {"type": "error", "error": {"type": kind, "message": "No."}}

    assert json.loads(MESSAGES.error(failure)) == expected
    assert MESSAGES.error_event(failure) == named("error", error=expected["error"])


# Counting tokens


def tier(**capacity: object) -> Tier:
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in capacity.items())
    return parse_config(
        f"""
        [router.model_routes]
        a = "one"
        [[router.tiers]]
        id = "one"
        base_url = "http://127.0.0.1:1/v1"
        context_limit = 1000
        model = "m"
        [router.tiers.params.capacity]
        {lines}
        """.encode()
    ).tier("one")


IMAGE = {"type": "image", "source": {"type": "url", "url": "u"}}


@pytest.mark.parametrize(
    ("fields", "capacity", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "12345678"}]}, {}, 2),
        ({"messages": [{"role": "user", "content": "123456789"}]}, {}, 3),
        ({"system": "12345678"}, {}, 3),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, {}, 1000),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            {
                "media_admission_enabled": True,
                "image_limit": 1,
                "video_limit": 0,
                "image_tokens_estimate": 85,
                "video_tokens_estimate": 1,
            },
            85,
        ),
        ({"tools": [{"name": "f"}]}, {}, 4),
    ],
)
def test_a_count_is_an_estimate_and_says_so(fields, capacity, tokens):
    answer = COUNT.parse(compact({"model": "a", "messages": [USER], **fields})).answer(tier(**capacity))

    assert answer is not None
    assert json.loads(answer.body) == {"input_tokens": tokens, "estimate": True}
    assert answer.headers == (("Warning", '299 anvil "input_tokens is an estimate"'),)


def test_no_other_request_is_answered_here():
    assert request().answer(tier()) is None


@pytest.mark.parametrize("content", [b"1e400", b"[" * 3000 + b"]" * 3000])
def test_a_body_that_is_malformed_in_its_depths_is_refused_when_they_are_looked_at(content):
    body = b'{"model":"a","messages":[{"role":"user","content":%b}]}' % content

    with pytest.raises(RequestError):
        MESSAGES.parse(body).demand(count_text=True)
    with pytest.raises(RequestError):
        COUNT.parse(body).answer(tier())
