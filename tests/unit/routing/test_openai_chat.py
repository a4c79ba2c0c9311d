"""Chat completions: what is read from callers, sent to upstreams, and handed back."""

import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.config import parse_config
from routing.dialects.base import (
    Answer,
    Failure,
    MalformedAnswer,
    RequestError,
    Target,
    UpstreamRefusal,
    Usage,
    encode_values,
)
from routing.dialects.openai_chat import CHAT, ChatRequest
from routing.gates import Demand
from tests.unit.routing.exchange_kit import OPENAI

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

MESSAGES = b'"messages":[{"role":"user","content":"Hi"}]'


def request(*fields: bytes, messages: bytes = MESSAGES) -> ChatRequest:
    return CHAT.parse(b"{" + b",".join([b'"model":"demo.chat"', messages, *fields]) + b"}")


def sent(*fields: bytes, **target: object) -> dict[str, object]:
    call = request(*fields).prepare(Target(dialect="openai", **target), model="served")  # type: ignore[arg-type]
    return json.loads(call.body)  # type: ignore[no-any-return]


# What is read


@pytest.mark.requirement("cases 28")
@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        (b"", "malformed_json", None, "The request body is not valid JSON."),
        (b"{", "malformed_json", None, "The request body is not valid JSON."),
        (b'{"model":"\xff"}', "malformed_json", None, "The request body is not valid JSON."),
        (b'{"model":NaN}', "malformed_json", None, "The request body is not valid JSON."),
        (b'\xef\xbb\xbf{"model":"a"}', "malformed_json", None, "The request body is not valid JSON."),
        (b'{"a":' + b"[" * 100_000, "malformed_json", None, "The request body is not valid JSON."),
        (b"[]", "not_an_object", None, "The request body must be a JSON object."),
        (b"null", "not_an_object", None, "The request body must be a JSON object."),
        (b"{}", "invalid_request", "model", "'model' must be a non-empty string."),
        (b'{"model":null}', "invalid_request", "model", "'model' must be a non-empty string."),
        (b'{"model":" "}', "invalid_request", "model", "'model' must be a non-empty string."),
        (b'{"model":7}', "invalid_request", "model", "'model' must be a non-empty string."),
        (
            b'{"model":"a"}',
            "invalid_request",
            "messages",
            "'messages' must be a non-empty array of objects.",
        ),
        (
            b'{"model":"a","messages":[]}',
            "invalid_request",
            "messages",
            "'messages' must be a non-empty array of objects.",
        ),
        (
            b'{"model":"a","messages":["Hi"]}',
            "invalid_request",
            "messages",
            "'messages' must be a non-empty array of objects.",
        ),
        (
            b'{"model":"a","messages":{"role":"user"}}',
            "invalid_request",
            "messages",
            "'messages' must be a non-empty array of objects.",
        ),
    ],
)
def test_a_body_that_is_no_chat_request_is_refused(body, code, param, message):
    with pytest.raises(RequestError) as caught:
        CHAT.parse(body)

    assert caught.value.failure == Failure(status=400, code=code, message=message, param=param)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (b'"stream":"yes"', "a boolean or null"),
        (b'"stream":1', "a boolean or null"),
        (b'"stream_options":true', "an object or null"),
        (b'"stream_options":[]', "an object or null"),
        (b'"max_tokens":0', "a positive integer or null"),
        (b'"max_tokens":-1', "a positive integer or null"),
        (b'"max_tokens":1.0', "a positive integer or null"),
        (b'"max_tokens":"5"', "a positive integer or null"),
        (b'"max_tokens":true', "a positive integer or null"),
        (b'"max_completion_tokens":0', "a positive integer or null"),
        (b'"tools":{}', "an array or null"),
        (b'"functions":"f"', "an array or null"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(field, expected):
    name = field.split(b'"')[1].decode()

    with pytest.raises(RequestError) as caught:
        request(field)

    assert caught.value.failure == Failure(
        status=400, code="invalid_request", message=f"'{name}' must be {expected}.", param=name
    )


def test_a_request_tells_the_path_what_it_needs_to_know():
    body = b'{"model":" Demo.Chat","messages":[{}],"stream":true,"max_tokens":5,"max_completion_tokens":9}'
    read = CHAT.parse(body)

    assert (read.wire, read.alias, read.stream) == ("chat", " Demo.Chat", True)
    assert (read.requested_output, read.body_bytes) == (9, len(body))


@pytest.mark.parametrize(
    "fields", [(), (b'"stream":null', b'"max_tokens":null', b'"tools":null', b'"stream_options":null')]
)
def test_null_is_as_good_as_absent(fields):
    read = request(*fields)

    assert (read.stream, read.requested_output) == (False, None)
    assert read.demand(count_text=True).tools is False


@pytest.mark.parametrize(
    ("fields", "tools"),
    [
        ([], False),
        ([b'"tools":[]'], False),
        ([b'"functions":[]'], False),
        ([b'"tools":[{}]'], True),
        ([b'"functions":[{}]'], True),
    ],
)
def test_offered_tools_are_a_demand(fields, tools):
    assert request(*fields).demand(count_text=False) == Demand(tools=tools)


@pytest.mark.parametrize(
    ("contents", "text", "images", "videos"),
    [
        ([b'"Hi"'], 2, 0, 0),
        (['"你🙂"'.encode()], 7, 0, 0),
        ([b'"\\u4f60\\ud83d\\ude42\\n"'], 8, 0, 0),
        ([b"null"], 0, 0, 0),
        ([b"7"], 0, 0, 0),
        ([b'"ab"', b'[{"type":"text","text":"cde"},"fg"]'], 7, 0, 0),
        ([b'[{"type":"image_url","image_url":{"url":"data:x"}},{"type":"input_image"}]'], 0, 2, 0),
        ([b'[{"type":"video_url","video_url":{}},{"type":"video"}]'], 0, 0, 2),
        ([b'[{"image_url":"x"},{"type":null,"video_url":"x"}]'], 0, 1, 1),
        ([b'[{"type":"\\u0069mage_url"}]'], 0, 1, 0),
        ([b'[{"type":"text","text":7},{"type":7},[],null,1e999,{"text":"x","image_url":"y"}]'], 0, 1, 0),
        ([b'"image and video"'], 15, 0, 0),
    ],
)
def test_text_and_media_are_counted(contents, text, images, videos):
    messages = b'"messages":[' + b",".join(b'{"content":' + content + b"}" for content in contents) + b"]"
    read = request(messages=messages)

    assert read.demand(count_text=True) == Demand(text_bytes=text, images=images, videos=videos)
    assert read.demand(count_text=False) == Demand(text_bytes=0, images=images, videos=videos)
    assert text <= read.body_bytes


# What is sent


def test_a_call_goes_to_chat_completions_with_nothing_but_the_model_changed():
    body = b'{"model" : "demo.chat", "n":2 ,"messages":[ {"role":"user"} ],"seed":1e3,"x":{"b":1, "a":[]}}'

    call = CHAT.parse(body).prepare(OPENAI, model="org/Served-7B")

    assert call.path == "/chat/completions"
    assert call.content_type == "application/json"
    assert call.body == (
        b'{"model":"org/Served-7B","n":2,"messages":[ {"role":"user"} ],"seed":1e3,"x":{"b":1, "a":[]}}'
    )
    assert call.translator.answer is Answer.WHOLE


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ([], {"max_tokens": 100}),
        ([b'"max_tokens":null'], {"max_tokens": 100}),
        ([b'"max_tokens":7'], {"max_tokens": 7}),
        ([b'"max_tokens":100'], {"max_tokens": 100}),
        ([b'"max_tokens":101'], {"max_tokens": 100}),
        ([b'"max_tokens":99999999999999999999999'], {"max_tokens": 100}),
        ([b'"max_completion_tokens":7'], {"max_completion_tokens": 7}),
        ([b'"max_completion_tokens":101'], {"max_completion_tokens": 100}),
        (
            [b'"max_tokens":101', b'"max_completion_tokens":7'],
            {"max_tokens": 100, "max_completion_tokens": 7},
        ),
        (
            [b'"max_tokens":500', b'"max_completion_tokens":600'],
            {"max_tokens": 100, "max_completion_tokens": 100},
        ),
        (
            [b'"max_tokens":null', b'"max_completion_tokens":600'],
            {"max_tokens": None, "max_completion_tokens": 100},
        ),
    ],
)
def test_the_cap_lowers_what_is_set_and_stands_in_for_what_is_not(fields, limits):
    body = sent(*fields, max_output_tokens=100)

    assert {name: value for name, value in body.items() if name.startswith("max_")} == limits


def test_without_a_cap_limits_go_as_they_came():
    assert sent(b'"max_tokens":500')["max_tokens"] == 500
    assert "max_tokens" not in sent()


def test_the_tiers_bodies_fill_and_replace():
    body = sent(
        b'"temperature":0.5',
        b'"top_p":null',
        b'"kwargs":{"a":1}',
        extra_body_defaults=encode_values({"temperature": 1, "top_p": 0.9, "top_k": 40, "kwargs": {"b": 2}}),
        extra_body=encode_values({"top_k": 20, "kwargs": MappingProxyType({"c": (3, MappingProxyType({}))})}),
    )

    assert body["temperature"] == 0.5
    assert body["top_p"] == 0.9
    assert body["top_k"] == 20
    assert body["kwargs"] == {"c": [3, {}]}


def test_the_cap_holds_over_the_tiers_own_bodies():
    defaults = encode_values({"max_tokens": 50})
    extra = encode_values({"max_tokens": 500, "max_completion_tokens": "many"})

    assert sent(max_output_tokens=100, extra_body_defaults=defaults)["max_tokens"] == 50
    body = sent(max_output_tokens=100, extra_body=extra)
    assert (body["max_tokens"], body["max_completion_tokens"]) == (100, 100)


@pytest.mark.parametrize(
    ("options", "upstream"),
    [
        ([], {"include_usage": True}),
        ([b'"stream_options":null'], {"include_usage": True}),
        ([b'"stream_options":{}'], {"include_usage": True}),
        ([b'"stream_options":{"include_usage":null}'], {"include_usage": True}),
        ([b'"stream_options":{"include_usage":false,"x":[1]}'], {"include_usage": True, "x": [1]}),
        ([b'"stream_options":{"include_usage":true,"x":1}'], {"include_usage": True, "x": 1}),
        ([b'"stream_options":{"include_usage":"yes"}'], {"include_usage": "yes"}),
    ],
)
def test_a_stream_is_asked_to_end_with_usage(options, upstream):
    assert sent(b'"stream":true', *options)["stream_options"] == upstream


def test_a_whole_answer_is_not():
    assert "stream_options" not in sent()
    assert sent(b'"stream_options":{"x":1}')["stream_options"] == {"x": 1}


def test_half_an_emoji_goes_as_it_came():
    body = (
        b'{"model":"a","messages":[{"content":"<half0>\\ud83d \\\\ud83d \\uD83D\\uDE42"}],"stop":"\\ude42"}'
    )

    call = CHAT.parse(body).prepare(OPENAI, model="a")

    assert call.body == body


@pytest.mark.parametrize("wires", [(), ("messages",)])
def test_a_target_that_speaks_no_chat_gets_its_own_wire(wires):
    target = Target(dialect="anthropic", wires=wires)

    assert request().prepare(target, model="served").path == "/messages"


def test_a_target_that_serves_chat_natively_is_not():
    assert request().prepare(Target(dialect="anthropic", wires=("chat",)), model="served").body


def test_a_target_is_made_of_a_tier():
    tier = parse_config(
        b"""
        [router.model_routes]
        a = "one"
        [[router.tiers]]
        id = "one"
        base_url = "http://127.0.0.1:1/v1"
        context_limit = 1000
        max_output_tokens = 10
        model = "m"
        wires = ["responses"]
        extra_body = { kwargs = { thinking = false, list = [1, { x = 1 }] } }
        extra_body_defaults = { top_k = 3 }
        """
    ).tier("one")

    target = Target.of(tier)

    assert (target.dialect, target.wires, target.max_output_tokens) == (
        "openai",
        frozenset({"responses"}),
        10,
    )
    assert {name: bytes(value) for name, value in target.extra_body.items()} == {
        "kwargs": b'{"thinking":false,"list":[1,{"x":1}]}'
    }
    assert {name: bytes(value) for name, value in target.extra_body_defaults.items()} == {"top_k": b"3"}


# What is handed back


def translate(*payloads: bytes, fields: tuple[bytes, ...] = ()) -> tuple[list[bytes], Usage]:
    translator = request(b'"stream":true', *fields).prepare(OPENAI, model="served").translator
    return [translator.event(payload, b"") for payload in payloads], translator.usage


USAGE = b'"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}'
ASKED = (b'"stream_options":{"include_usage":true}',)
RUNNING = (b'"stream_options":{"continuous_usage_stats":true}',)


@pytest.mark.parametrize(
    ("fields", "chunk", "seen"),
    [
        ((), b'{"model":"x","choices":[],%b}' % USAGE, b""),
        ((), b'{"choices":[ ],%b}' % USAGE, b""),
        ((), b'{"model":"x","choices":[{}],"usage":null}', b'{"model":"demo.chat","choices":[{}]}'),
        ((), b'{"choices":[{}],%b}' % USAGE, b'{"choices":[{}],%b}' % USAGE),
        ((), b'{"choices":[]}', b'{"choices":[]}'),
        (RUNNING, b'{"choices":[{}],%b}' % USAGE, b'{"choices":[{}]}'),
        (RUNNING, b'{"choices":[],%b}' % USAGE, b""),
        (ASKED, b'{"choices":[],%b}' % USAGE, b'{"choices":[],%b}' % USAGE),
        (ASKED, b'{"choices":[{}],"usage":null}', b'{"choices":[{}],"usage":null}'),
    ],
)
def test_usage_reaches_the_caller_as_if_we_had_not_asked(fields, chunk, seen):
    (event,), usage = translate(chunk, fields=fields)

    assert event == (b"data: " + seen + b"\n\n" if seen else b"")
    assert usage == (Usage(3, 2) if USAGE in chunk else Usage())


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (b"{}", Usage()),
        (b"[]", Usage()),
        (b'{"prompt_tokens":-1,"completion_tokens":2}', Usage(0, 2)),
        (b'{"prompt_tokens":1.5,"completion_tokens":true}', Usage()),
        (b'{"prompt_tokens":9007199254740991,"completion_tokens":9007199254740992}', Usage(2**53 - 1, 0)),
        (b'{"prompt_tokens":"7","completion_tokens":null}', Usage()),
    ],
)
def test_figures_that_are_none_count_as_zero(usage, counted):
    translator = request().prepare(OPENAI, model="served").translator
    translator.whole(b'{"choices":[],"usage":' + usage + b"}", "")

    assert translator.usage == counted


def test_an_answer_keeps_all_but_the_model():
    body = b'{"id":"x", "model":"served","choices":[ {"logprobs":{"a":1.0}} ],"new":{"f":1e2},"usage":null}'

    whole = request().prepare(OPENAI, model="served").translator.whole(body, "application/json")

    assert whole.content_type == "application/json"
    assert whole.body == (
        b'{"id":"x","model":"demo.chat","choices":[ {"logprobs":{"a":1.0}} ],"new":{"f":1e2},"usage":null}'
    )


def test_an_answer_with_half_an_emoji_is_an_answer():
    body = b'{"model":"x","choices":[{"message":{"content":"\\ud83d"}}]}'

    whole = request().prepare(OPENAI, model="served").translator.whole(body, "")

    assert whole.body == b'{"model":"demo.chat","choices":[{"message":{"content":"\\ud83d"}}]}'


@pytest.mark.parametrize("bad", [b"", b"[]", b'{"a":"\xff"}', b'{"a":"\\ud83d"', b'{"a":"\\ud83d","b":\xff}'])
def test_an_answer_that_is_no_object_is_malformed(bad):
    translator = request().prepare(OPENAI, model="served").translator

    with pytest.raises(MalformedAnswer):
        translator.whole(bad, "application/json")
    with pytest.raises(MalformedAnswer):
        translator.event(bad, b"")


def test_the_terminal_event_ends_the_stream():
    translator = request(b'"stream":true').prepare(OPENAI, model="served").translator

    assert translator.event(b"{}", b"") == b"data: {}\n\n"
    assert not translator.terminal
    assert translator.event(b"[DONE] ", b"id: 1\n") == b"id: 1\ndata: [DONE]\n\n"
    assert translator.terminal


def test_an_error_inside_an_answer_is_the_upstreams_refusal():
    translator = request().prepare(OPENAI, model="served").translator

    with pytest.raises(UpstreamRefusal) as caught:
        translator.whole(b'{"error":{"message":"m","code":429}}', "")
    assert (caught.value.status, caught.value.message) == (429, "m")
    # An answer that has choices is one, whatever else it holds.
    assert translator.whole(b'{"choices":[],"error":{}}', "").body == b'{"choices":[],"error":{}}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (502, "server_error"),
        (503, "server_error"),
    ],
)
def test_errors_wear_the_envelope_of_openai(status, kind):
    failure = Failure(status=status, code="a_code", message='what "happened"', param="model")
    body = (
        b'{"error":{"message":"what \\"happened\\"","type":"%b","param":"model","code":"a_code"}}'
        % kind.encode()
    )

    assert CHAT.error(failure) == body
    assert CHAT.error_event(failure) == b"data: " + body + b"\n\n"


# Nothing is lost

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name not in ("error", "object", "usage", "model")), JSON_VALUES
)


@given(
    unknown=OBJECTS,
    stream=st.none() | st.booleans(),
    message=OBJECTS,
    cap=st.none() | st.integers(1, 1000),
    asked=st.none() | st.integers(1, 2000),
    escaped=st.booleans(),
    indent=st.none() | st.integers(0, 2),
)
def test_a_request_arrives_as_it_was_sent_but_for_what_is_documented(
    unknown, stream, message, cap, asked, escaped, indent
):
    document = {**unknown, "model": "demo.chat", "messages": [message], "stream": stream}
    for name in ("max_completion_tokens", "tools", "functions", "stream_options"):
        document.pop(name, None)
    document["max_tokens"] = asked

    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()
    call = CHAT.parse(body).prepare(Target(dialect="openai", max_output_tokens=cap), model="served")

    expected = {**document, "model": "served"}
    if cap is not None:
        expected["max_tokens"] = min(asked or cap, cap)
    if stream:
        expected["stream_options"] = {"include_usage": True}
    assert json.loads(call.body) == expected


@given(
    answer=OBJECTS,
    model=st.none() | st.text(max_size=5),
    escaped=st.booleans(),
    indent=st.none() | st.integers(0, 2),
)
def test_an_answer_arrives_as_it_was_sent_but_for_the_model(answer, model, escaped, indent):
    document = {**answer, "model": model}
    body = json.dumps(document, ensure_ascii=escaped, indent=indent).encode()
    translator = request(b'"stream":true').prepare(OPENAI, model="served").translator

    expected = {**answer, "model": "demo.chat"}
    assert json.loads(translator.whole(body, "").body) == expected
    event = translator.event(body, b"")
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:]) == expected
