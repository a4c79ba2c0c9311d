"""OpenAI's Responses from callers: what is read, refused, counted, and passed through untouched."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.dialects.base import Failure, MalformedAnswer, RequestError, Target, UpstreamRefusal, Usage
from routing.dialects.openai_responses import RESPONSES, ResponsesRequest
from routing.gates import Demand
from tests.unit.routing.test_exchange_properties import OBJECTS
from tests.unit.routing.wires_kit import NATIVE, PAIRS, RESPONSES_SAMPLE, compact, named

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

PASSED = PAIRS["responses from responses"]


def request(**fields: object) -> ResponsesRequest:
    return RESPONSES.parse(compact({"model": "demo.chat", "input": "Hi", **fields}))


# What is read


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "malformed_json", None),
        (b"{", "malformed_json", None),
        (b'{"model":"\xff"}', "malformed_json", None),
        (b"[]", "not_an_object", None),
        (b'{"input":"Hi"}', "invalid_request", "model"),
        (b'{"model":" ","input":"Hi"}', "invalid_request", "model"),
        (b'{"model":"a"}', "invalid_request", "input"),
        (b'{"model":"a","input":null}', "invalid_request", "input"),
        (b'{"model":"a","input":[]}', "invalid_request", "input"),
        (b'{"model":"a","input":{}}', "invalid_request", "input"),
        (b'{"model":"a","input":"Hi","stream":"yes"}', "invalid_request", "stream"),
        (b'{"model":"a","input":"Hi","max_output_tokens":0}', "invalid_request", "max_output_tokens"),
        (b'{"model":"a","input":"Hi","max_output_tokens":"9"}', "invalid_request", "max_output_tokens"),
        (b'{"model":"a","input":"Hi","tools":{}}', "invalid_request", "tools"),
        (b'{"model":"a","input":"Hi","store":"no"}', "invalid_request", "store"),
    ],
)
@pytest.mark.requirement("cases 28")
def test_a_body_that_is_no_request_is_refused(body, code, param):
    with pytest.raises(RequestError) as caught:
        RESPONSES.parse(body)

    failure = caught.value.failure
    assert (failure.status, failure.code, failure.param) == (400, code, param)


@pytest.mark.parametrize(
    ("name", "value"),
    [("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("store", True), ("background", True)],
)
def test_what_needs_a_stored_response_is_refused_whatever_the_upstream_serves(name, value):
    with pytest.raises(RequestError) as caught:
        request(**{name: value})

    assert caught.value.failure == Failure(
        status=400,
        code="unsupported_parameter",
        message=f"'{name}' is not supported: no responses are stored here.",
        param=name,
    )


def test_a_request_tells_the_path_what_it_needs_to_know():
    read = request(stream=True, max_output_tokens=9, store=False, previous_response_id=None)

    assert (read.wire, read.alias, read.stream, read.requested_output) == ("responses", "demo.chat", True, 9)
    assert (request().stream, request().requested_output) == (False, None)


@pytest.mark.parametrize(
    ("given", "text", "images", "videos"),
    [
        ("Hé", 3, 0, 0),
        ([{"role": "user", "content": "Hi"}], 2, 0, 0),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What?"},
                        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                        {"type": "input_video", "video_url": "u"},
                    ],
                }
            ],
            5,
            1,
            1,
        ),
        (
            [
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [
                        {"type": "input_image", "image_url": "u"},
                        {"type": "input_text", "text": "ab"},
                    ],
                }
            ],
            2,
            1,
            0,
        ),
    ],
)
@pytest.mark.requirement("cases 6")
def test_text_and_media_are_counted(given, text, images, videos):
    read = request(input=given, instructions="Be brief.")

    assert read.demand(count_text=True) == Demand(text_bytes=text + 9, images=images, videos=videos)
    assert read.demand(count_text=False) == Demand(images=images, videos=videos)


def test_an_escaped_word_is_still_counted():
    body = b'{"model":"a","input":[{"content":[{"type":"input_\\u0069mage","image_url":"u"}]}]}'

    assert RESPONSES.parse(body).demand(count_text=False) == Demand(images=1)


def test_offered_tools_are_a_demand():
    assert request(tools=[{"type": "function", "name": "f"}]).demand(count_text=False).tools
    assert not request(tools=[]).demand(count_text=False).tools


# What is passed through


def test_a_call_goes_to_responses_with_nothing_but_the_model_changed():
    body = b'{"model" : "demo.chat", "input":[ {"role":"user"} ],"seed":1e3,"x":{"b":1, "a":[]}}'

    call = RESPONSES.parse(body).prepare(NATIVE, model="served")

    assert call.path == "/responses"
    assert call.headers == ()
    assert call.body == b'{"model":"served","input":[ {"role":"user"} ],"seed":1e3,"x":{"b":1, "a":[]}}'


def test_the_cap_and_the_tiers_bodies_are_applied():
    target = Target(
        dialect="openai",
        wires=("responses",),
        max_output_tokens=10,
        extra_body={"top_k": msgspec.Raw(b"3")},
        extra_body_defaults={"temperature": msgspec.Raw(b"0.5")},
    )

    sent = json.loads(request(max_output_tokens=99).prepare(target, model="served").body)
    unset = json.loads(request().prepare(target, model="served").body)

    assert (sent["max_output_tokens"], sent["top_k"], sent["temperature"]) == (10, 3, 0.5)
    assert unset["max_output_tokens"] == 10


@given(unknown=OBJECTS, escaped=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_a_request_arrives_as_it_was_sent_but_for_what_is_documented(unknown, escaped, indent):
    document = {**unknown, "model": "demo.chat", "input": [unknown]}
    for name in ("tools", "stream", "max_output_tokens", "store", "background", "conversation"):
        document.pop(name, None)

    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()
    call = RESPONSES.parse(body).prepare(NATIVE, model="served")

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

    event = {**answer, "type": "response.in_progress", "sequence_number": 3, "response": document}
    line = json.dumps(event, ensure_ascii=escaped, indent=indent).encode()
    told = PASSED.translator(stream=True).event(line, b"event: response.in_progress\n")
    name, data = told.removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: response.in_progress"
    assert json.loads(data.removeprefix(b"data: ")) == {
        **event,
        "response": {**document, "model": "demo.chat"},
    }


def test_an_event_that_names_no_model_goes_byte_for_byte():
    data = (
        b'{"type":"response.output_text.delta" ,"delta":"\\u4f60 \xe4\xbd\xa0 \\ud83d","sequence_number":1}'
    )

    assert PASSED.translator(stream=True).event(data, b"id: 1\n") == b"id: 1\ndata: " + data + b"\n\n"


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete"])
def test_the_end_is_told_by_its_type_and_tells_the_usage(end):
    translator = PASSED.translator(stream=True)
    response = {"model": "served", "usage": {"input_tokens": 7, "output_tokens": 2}}

    told = translator.event(compact({"type": end, "response": response}), b"")

    assert translator.terminal
    assert translator.usage == Usage(7, 2)
    assert b'"model":"demo.chat"' in told


@pytest.mark.parametrize("usage", [None, 7, {"input_tokens": -1, "output_tokens": "2"}])
def test_usage_of_another_shape_counts_as_none(usage):
    translator = PASSED.translator(stream=False)
    translator.whole(compact({"usage": usage}), "")

    assert translator.usage == Usage(0, 0)


@pytest.mark.parametrize(
    ("event", "status", "message"),
    [
        ({"type": "error", "code": "server_error", "message": "m", "param": None}, None, "m"),
        ({"type": "error", "error": {"message": "m", "code": 429}}, 429, "m"),
        ({"error": {"message": "m"}}, None, "m"),
        ({"type": "response.failed", "response": {"error": {"code": "x", "message": "m"}}}, None, "m"),
        ({"type": "response.failed"}, None, None),
    ],
)
def test_a_reported_failure_is_an_error(event, status, message):
    with pytest.raises(UpstreamRefusal) as caught:
        PASSED.translator(stream=True).event(compact(event), b"")

    assert (caught.value.status, caught.value.message) == (status, message)


@pytest.mark.parametrize(
    "data", [b"{", b"[DONE]", b"[]", b'{"type":"response.created","response":7}', b"\xff"]
)
def test_an_event_that_is_none(data):
    with pytest.raises(MalformedAnswer):
        PASSED.translator(stream=True).event(data, b"")


def test_several_data_lines_become_one():
    told = PASSED.translator(stream=True).event(b'{"type":\n"x"}', b"")

    assert told == b'data: {"type": "x"}\n\n'


# Errors


def test_errors_have_the_envelope_of_every_openai_wire():
    failure = Failure(status=429, code="limit", message="No.", param="input")

    assert json.loads(RESPONSES.error(failure)) == {
        "error": {"message": "No.", "type": "rate_limit_error", "param": "input", "code": "limit"}
    }


def test_an_error_event_is_numbered_where_the_stream_stands():
    failure = Failure(status=502, code="upstream_error", message="No.")
    translator = PASSED.translator(stream=True)
    translator.event(RESPONSES_SAMPLE.first.split(b"data: ")[1].strip(), b"")

    told = {"code": "upstream_error", "message": "No.", "param": None}
    assert translator.error_event(failure) == named(
        "error", sequence_number=1, **told, error={**told, "type": "server_error"}
    )
    assert RESPONSES.error_event(failure) == named(
        "error", sequence_number=0, **told, error={**told, "type": "server_error"}
    )
