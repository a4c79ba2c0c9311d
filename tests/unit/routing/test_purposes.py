"""Embeddings and rerank: what is read from callers, sent to the model's server, and handed back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.dialects.base import Answer, Failure, MalformedAnswer, RequestError, UpstreamRefusal, Usage
from routing.dialects.purposes import OPENAI, EmbeddingsDialect, PurposePassThrough, RerankDialect
from routing.gates import Demand

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

EMBEDDINGS = EmbeddingsDialect()
RERANK = RerankDialect()

EMBED = b'{"model":"bge-m3","input":"Hi"}'
SORT = b'{"model":"bge-reranker","query":"q","documents":["d"]}'


def refusal(dialect: EmbeddingsDialect | RerankDialect, body: bytes) -> Failure:
    with pytest.raises(RequestError) as caught:
        dialect.parse(body)
    return caught.value.failure


@pytest.mark.parametrize("dialect", [EMBEDDINGS, RERANK], ids=["embeddings", "rerank"])
@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        (b"", "malformed_json", None, "The request body is not valid JSON."),
        (b'{"model":"\xff"}', "malformed_json", None, "The request body is not valid JSON."),
        (b'["model"]', "not_an_object", None, "The request body must be a JSON object."),
        (b"{}", "invalid_request", "model", "'model' must be a non-empty string."),
        (b'{"model":null}', "invalid_request", "model", "'model' must be a non-empty string."),
        (b'{"model":"  "}', "invalid_request", "model", "'model' must be a non-empty string."),
        (b'{"model":3}', "invalid_request", "model", "'model' must be a non-empty string."),
    ],
)
def test_a_malformed_request_is_refused_with_400(dialect, body, code, param, message):
    assert refusal(dialect, body) == Failure(status=400, code=code, message=message, param=param)


@pytest.mark.parametrize(
    ("dialect", "body", "param", "message"),
    [
        (EMBEDDINGS, b'{"model":"m"}', "input", "'input' must be a string or an array."),
        (EMBEDDINGS, b'{"model":"m","input":null}', "input", "'input' must be a string or an array."),
        (RERANK, b'{"model":"m","documents":["d"]}', "query", "'query' must be a string or an object."),
        (RERANK, b'{"model":"m","query":"q"}', "documents", "'documents' must be a non-empty array."),
        (
            RERANK,
            b'{"model":"m","query":"q","documents":[]}',
            "documents",
            "'documents' must be a non-empty array.",
        ),
        (
            RERANK,
            b'{"model":"m","query":"q","documents":"d"}',
            "documents",
            "'documents' must be a non-empty array.",
        ),
    ],
)
def test_what_the_wire_cannot_do_without_is_named(dialect, body, param, message):
    assert refusal(dialect, body) == Failure(status=400, code="invalid_request", message=message, param=param)


def test_a_request_asks_nothing_of_a_gate():
    request = EMBEDDINGS.parse(EMBED)
    assert (request.wire, request.alias, request.stream) == ("embeddings", "bge-m3", False)
    assert (request.requested_output, request.body_bytes) == (None, len(EMBED))
    assert request.demand(count_text=True) == Demand()
    assert RERANK.parse(SORT).wire == "rerank"


def test_the_name_is_trimmed_and_its_case_kept():
    assert EMBEDDINGS.parse(b'{"model":" BAAI/bge-M3 ","input":"Hi"}').alias == "BAAI/bge-M3"


@pytest.mark.parametrize(
    ("dialect", "body", "path"),
    [(EMBEDDINGS, EMBED, "/embeddings"), (RERANK, SORT, "/rerank")],
)
def test_a_request_goes_on_as_it_came(dialect, body, path):
    request = dialect.parse(body)
    call = request.prepare(OPENAI, model=request.alias)
    assert (call.path, call.content_type, call.headers) == (path, "application/json", ())
    assert call.body == body
    assert call.translator.answer is Answer.WHOLE


@given(
    st.dictionaries(
        st.text().filter(lambda name: name not in ("model", "input")),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_unknown_fields_arrive_as_they_were_sent(fields):
    document = {"model": "a", "input": ["Hi", "你好"], **fields}
    call = EMBEDDINGS.parse(json.dumps(document).encode()).prepare(OPENAI, model="b")
    assert json.loads(call.body) == {**document, "model": "b"}


def test_of_a_repeated_field_one_goes_on():
    """Else the upstream could take another model than the one that was looked up."""
    call = EMBEDDINGS.parse(b'{"model":"x","model":"m","input":"Hi"}').prepare(OPENAI, model="m")
    assert call.body == b'{"model":"m","input":"Hi"}'


def test_half_a_surrogate_pair_is_carried_both_ways():
    call = EMBEDDINGS.parse(b'{"model":"m","input":"\\ud83d"}').prepare(OPENAI, model="m")
    assert call.body == b'{"model":"m","input":"\\ud83d"}'
    answer = b'{"model":"m","results":[{"document":{"text":"\\ud83d"}}]}'
    assert call.translator.whole(answer, "application/json").body == answer


def test_an_answer_is_renamed_and_counted():
    translator = PurposePassThrough(named="bge-m3")
    whole = translator.whole(
        b'{"object":"list","data":[{"embedding":[0.10,1e-3]}],"model":"/models/bge",'
        b'"usage":{"prompt_tokens":7,"total_tokens":7},"new":1}',
        "application/json",
    )
    assert whole.body == (
        b'{"object":"list","data":[{"embedding":[0.10,1e-3]}],"model":"bge-m3",'
        b'"usage":{"prompt_tokens":7,"total_tokens":7},"new":1}'
    )
    assert whole.content_type == "application/json"
    assert translator.usage == Usage(7, 0)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (b'{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}', Usage(3, 2)),
        (b'{"input_tokens":3,"output_tokens":2}', Usage(3, 2)),
        (b'{"total_tokens":56}', Usage(56, 0)),
        (b'{"total_tokens":5,"completion_tokens":7}', Usage(0, 7)),
        (b'{"prompt_tokens":-1,"total_tokens":1.5}', Usage(0, 0)),
        (b'{"prompt_tokens":9007199254740992}', Usage(0, 0)),
        (b'{"prompt_tokens":true}', Usage(0, 0)),
        (b'{"type":"duration","seconds":9}', Usage(0, 0)),
        (b"null", Usage(0, 0)),
        (b"[3]", Usage(0, 0)),
    ],
)
def test_tokens_are_counted_under_either_name_and_believed_within_bounds(usage, counted):
    translator = PurposePassThrough(named="m")
    translator.whole(b'{"usage":' + usage + b"}", "application/json")
    assert translator.usage == counted


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"<html>", b'{"a":"\xff"}', b"null"])
def test_an_answer_that_is_no_object_cannot_be_used(body):
    with pytest.raises(MalformedAnswer):
        PurposePassThrough(named="m").whole(body, "application/json")


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"no","code":400}}',
        b'{"object":"error","message":"no","code":400}',
        b'{"error":"no","status":400}',
    ],
)
def test_an_error_in_place_of_an_answer_is_one(body):
    with pytest.raises(UpstreamRefusal) as caught:
        PurposePassThrough(named="m").whole(body, "application/json")
    assert (caught.value.status, caught.value.message) == (400, "no")


def test_errors_are_openai_envelopes():
    failure = Failure(status=404, code="model_not_found", message="no", param="model")
    envelope = (
        b'{"error":{"message":"no","type":"invalid_request_error","param":"model","code":"model_not_found"}}'
    )
    assert RERANK.error(failure) == envelope
    assert RERANK.error_event(failure) == b"data: " + envelope + b"\n\n"
