"""The exchange: what a caller gets for what an upstream sent, and the moment at which it is over."""

import gzip
import json

import pytest

from routing.exchange import MAX_ERROR_BYTES, Fault, Head
from tests.unit.routing.exchange_kit import (
    CHUNKS,
    DONE,
    STREAM,
    STREAM_HEAD,
    STREAM_SEEN,
    WHOLE,
    WHOLE_SEEN,
    bytewise,
    chat_exchange,
    chunked,
    events,
    feed,
    http,
    sse,
)

pytestmark = pytest.mark.requirement("contract 2")

REJECTED = "The upstream server rejected the request."
FAILED = "The upstream server failed to answer the request."
UNUSABLE = "The upstream server sent an answer that cannot be used."


def envelope(message: str, kind: str, code: str) -> bytes:
    return b'{"error":{"message":%b,"type":"%b","param":null,"code":"%b"}}' % (
        json.dumps(message, ensure_ascii=False).encode(),
        kind.encode(),
        code.encode(),
    )


def plain_head(status: int, body: bytes, *more: tuple[str, str]) -> Head:
    headers = (
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("x-should-retry", "false"),
        *more,
    )
    return Head(status=status, headers=headers, streaming=False)


FAILED_BODY = envelope(FAILED, "server_error", "upstream_error")
UNUSABLE_BODY = envelope(UNUSABLE, "server_error", "upstream_invalid_response")
INCOMPLETE_EVENT = (
    b'data: {"error":{"message":"The upstream server\'s answer ended before it was complete.",'
    b'"type":"server_error","param":null,"code":"upstream_incomplete"}}\n\n'
)
UNUSABLE_EVENT = b"data: " + UNUSABLE_BODY + b"\n\n"


# Success


@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
def test_a_whole_answer_is_given_when_it_is_complete(framing, split):
    run = feed(chat_exchange(stream=False), split(http(WHOLE, framing=framing)), eof=framing == "eof")

    assert run.head == Head(
        status=200,
        headers=(("Content-Type", "application/json"), ("Content-Length", str(len(WHOLE_SEEN)))),
        streaming=False,
    )
    assert run.body == WHOLE_SEEN
    assert (run.outcome.outcome, run.outcome.reason, run.outcome.status) == ("served", "served", 200)
    assert (run.outcome.usage.prompt_tokens, run.outcome.usage.completion_tokens) == (7, 2)
    assert (run.outcome.first_output, run.outcome.unreachable) == (True, False)
    assert run.exchange.complete
    assert run.exchange.reusable == (framing != "eof")


@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
def test_a_stream_is_given_as_it_comes(framing, split):
    run = feed(chat_exchange(stream=True), split(sse(STREAM, framing=framing)), eof=framing == "eof")

    assert run.head == STREAM_HEAD
    assert run.body == STREAM_SEEN
    assert (run.outcome.outcome, run.outcome.reason, run.outcome.status) == ("served", "served", 200)
    assert (run.outcome.usage.prompt_tokens, run.outcome.usage.completion_tokens) == (7, 2)
    assert run.exchange.complete
    assert run.exchange.reusable == (framing != "eof")
    assert not run.exchange.close_client


@pytest.mark.requirement("cases 23")
def test_a_length_is_that_of_the_rewritten_body():
    run = feed(chat_exchange(stream=False), [http(b'{"model":"a-much-longer-served-name"}')])

    assert run.head is not None
    assert dict(run.head.headers)["Content-Length"] == "21"
    assert run.body == b'{"model":"demo.chat"}'


def test_a_clamped_request_that_was_served_says_so():
    run = feed(chat_exchange(stream=False, clamped=True), [http(WHOLE)])

    assert run.outcome.reason == "served_output_clamped"


def test_upstream_headers_are_not_copied():
    headers = ("X-Request-Id: theirs", "Set-Cookie: a=b", "Server: uvicorn", "Keep-Alive: timeout=5")

    whole = feed(chat_exchange(stream=False), [http(WHOLE, headers=headers)])
    stream = feed(chat_exchange(stream=True), [sse(STREAM, headers=headers)])

    assert whole.head is not None
    assert [name for name, _ in whole.head.headers] == ["Content-Type", "Content-Length"]
    assert stream.head == STREAM_HEAD


@pytest.mark.parametrize("stream", [False, True])
def test_gzip_that_was_not_asked_for_is_undone(stream):
    body = gzip.compress(STREAM if stream else WHOLE)
    kind = "text/event-stream" if stream else "application/json"

    run = feed(
        chat_exchange(stream=stream), [http(body, content_type=kind, headers=["Content-Encoding: gzip"])]
    )

    assert run.body == (STREAM_SEEN if stream else WHOLE_SEEN)
    assert run.outcome.reason == "served"


# The end of a stream


@pytest.mark.requirement("C-R010", "Q-T009", "contract 3")
def test_a_stream_is_over_in_the_call_that_gives_its_terminal_event():
    exchange = chat_exchange(stream=True)
    head = sse(b"")[: -len(b"0\r\n\r\n")]
    exchange.receive(head + chunked(events(CHUNKS[0]))[: -len(b"0\r\n\r\n")])
    assert not exchange.over

    assert exchange.receive(b"e\r\n" + DONE + b"\r\n") == DONE
    assert (exchange.over, exchange.complete, exchange.reusable, exchange.drainable) == (
        True,
        False,
        False,
        True,
    )

    assert exchange.receive(b"0\r\n\r\n") == b""
    assert (exchange.complete, exchange.reusable, exchange.drainable) == (True, True, False)


@pytest.mark.parametrize("after", [b"data: {}\n\n", b"x", b": late\n\n"])
@pytest.mark.parametrize("apart", [False, True])
def test_bytes_after_the_terminal_event_are_dropped_and_spoil_the_connection(after, apart):
    stream = sse(STREAM + after)
    reads = [stream[: -len(after) - 7], stream[-len(after) - 7 :]] if apart else [stream]

    run = feed(chat_exchange(stream=True), reads)

    assert run.body == STREAM_SEEN
    assert run.outcome.reason == "served"
    assert (run.exchange.complete, run.exchange.reusable, run.exchange.drainable) == (True, False, False)


def test_blank_lines_after_the_terminal_event_are_harmless():
    run = feed(chat_exchange(stream=True), bytewise(sse(STREAM + b"\n\r\n")))

    assert run.exchange.reusable


@pytest.mark.parametrize("missing", [b"\n\n", b"\n"])
@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
def test_a_missing_blank_line_after_the_terminal_event_is_forgiven_at_the_end(missing, framing):
    stream = sse(STREAM.removesuffix(missing), framing=framing)

    run = feed(chat_exchange(stream=True), [stream], eof=framing == "eof")

    assert run.body == STREAM_SEEN
    assert run.outcome.reason == "served"
    assert run.exchange.reusable == (framing != "eof")


def test_a_cut_after_the_terminal_event_is_no_error_even_without_its_blank_line():
    stream = sse(STREAM)
    cut_short = stream[: stream.index(b"[DONE]") + len(b"[DONE]")]

    run = feed(chat_exchange(stream=True), [cut_short], eof=True)

    assert run.body == STREAM_SEEN
    assert run.outcome.reason == "served"
    assert not run.exchange.reusable


@pytest.mark.requirement("cases 21")
@pytest.mark.parametrize("rest", [b"", b"data: {", b'data: {"id"', b"data: [DON", b"data: \xf0\x9f", b"\n"])
@pytest.mark.parametrize("framing", ["length", "chunked", "eof"])
@pytest.mark.parametrize("cut_off", [False, True])
def test_a_stream_that_ends_without_its_terminal_event_ends_in_one_error_event(rest, framing, cut_off):
    stream = sse(events(*CHUNKS[:2]) + rest, framing=framing)
    if cut_off and framing == "length":
        stream = stream.replace(b"Content-Length: ", b"Content-Length: 9")
    elif cut_off and framing == "chunked":
        stream = stream.removesuffix(b"\r\n0\r\n\r\n")

    run = feed(chat_exchange(stream=True), [stream], eof=True)

    first_two = STREAM_SEEN.split(b"\n\n")[:2]
    assert run.body == b"\n\n".join(first_two) + b"\n\n" + INCOMPLETE_EVENT
    assert run.head == STREAM_HEAD
    assert run.exchange.close_client
    assert not run.exchange.reusable
    assert not run.exchange.drainable
    assert (run.outcome.outcome, run.outcome.reason) == ("error", "completion_error")


# Before the first event


def test_the_head_waits_for_the_first_complete_frame():
    exchange = chat_exchange(stream=True)

    exchange.receive(sse(b"", framing="eof"))
    assert (exchange.head, exchange.answering) == (None, False)
    exchange.receive(b"data: {}\n")
    assert (exchange.head, exchange.answering, exchange.first_output) == (None, True, False)
    assert exchange.receive(b"\n") == b"data: {}\n\n"
    assert (exchange.head, exchange.first_output) == (STREAM_HEAD, True)


def test_a_comment_is_a_frame_but_no_output():
    exchange = chat_exchange(stream=True)

    assert exchange.receive(sse(b": queued\r\n\r\n", framing="eof")) == b": queued\n\n"
    assert (exchange.head, exchange.first_output) == (STREAM_HEAD, False)
    assert exchange.receive(b"data: {}\n\n") == b"data: {}\n\n"
    assert exchange.first_output


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "status", [300, 301, 302, 307, 401, 402, 403, 404, 405, 408, 500, 502, 503, 504, 599]
)
@pytest.mark.requirement("C-T007", "Q-T009")
def test_a_fault_that_is_ours_is_a_502_as_soon_as_its_head_has_come(stream, status):
    response = http(b'{"error":{"message":"secret"}}', status=status, headers=["Location: http://elsewhere/"])
    at = response.index(b"\r\n\r\n") + 4
    exchange = chat_exchange(stream=stream)

    run = feed(exchange, [response[:at]])

    assert run.body == FAILED_BODY
    assert run.head == plain_head(502, FAILED_BODY)
    assert (run.outcome.outcome, run.outcome.reason, run.outcome.status) == ("error", "backend_error", 502)
    assert (exchange.reusable, exchange.drainable, exchange.close_client) == (False, True, False)
    assert exchange.receive(response[at:]) == b""
    assert exchange.reusable


@pytest.mark.requirement("cases 20", "C-T007")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "fixed", "kind", "code"),
    [
        (400, REJECTED, "invalid_request_error", "upstream_rejected"),
        (
            413,
            "The request is too large for the upstream server.",
            "invalid_request_error",
            "upstream_rejected",
        ),
        (
            415,
            "The upstream server does not support this kind of content.",
            "invalid_request_error",
            "upstream_rejected",
        ),
        (
            422,
            "The upstream server could not process the request.",
            "invalid_request_error",
            "upstream_rejected",
        ),
        (429, "The upstream server is at its limit.", "rate_limit_error", "upstream_rate_limited"),
    ],
)
def test_a_fault_that_is_the_callers_keeps_its_status(stream, status, fixed, kind, code):
    said = feed(chat_exchange(stream=stream), [http(b'{"error":{"message":"too hot"}}', status=status)])
    silent = feed(chat_exchange(stream=stream), [http(b"", status=status)])

    body = envelope("too hot", kind, code)
    assert (said.head, said.body) == (plain_head(status, body), body)
    assert (said.outcome.reason, said.outcome.status) == ("backend_error", status)
    assert said.exchange.reusable
    body = envelope(fixed, kind, code)
    assert (silent.head, silent.body) == (plain_head(status, body), body)


@pytest.mark.requirement("cases 27")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"nested","code":500}}', "nested"),
        (b'{"object":"error","message":"flat","type":"BadRequestError","code":400}', "flat"),
        (b'{"error":"a string"}', "a string"),
        (b'{"detail":"a detail"}', "a detail"),
        (b'{"detail":[{"loc":["body"],"msg":"first","type":"missing"},{"msg":"second"}]}', "first"),
        (b'{"type":"error","error":{"type":"invalid_request_error","message":"anthropic"}}', "anthropic"),
        (b'{"error":{"message":"  trimmed\\n"}}', "trimmed"),
        (b'{"error":{"message":"\\u4f60 \xf0\x9f\x99\x82"}}', "你 🙂"),
        (b'{"error":{"message":7}}', REJECTED),
        (b'{"error":{"message":" "}}', REJECTED),
        (b'{"detail":[]}', REJECTED),
        (b'{"detail":["first"]}', REJECTED),
        (b'["error"]', REJECTED),
        (b"Bad Request: plain text", REJECTED),
        (b"\xff\xfe", REJECTED),
        (b"{" * 5000, REJECTED),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, REJECTED),
    ],
)
def test_the_upstreams_own_message_is_found_in_the_forms_that_engines_use(body, message):
    run = feed(chat_exchange(stream=False), bytewise(http(body, status=400, framing="chunked")))

    assert run.body == envelope(message, "invalid_request_error", "upstream_rejected")


STRIKE = ("http://gpu-1.internal:8101/v1", "gpu-1.internal", "gpu-1.internal:8101", "")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("see http://gpu-1.internal:8101/v1/models now", "see [removed] now"),
        ("see HTTPS://Other.Host/x?y=z#w, please", "see [removed] please"),
        ("at GPU-1.internal:8101: refused", "at [removed]: refused"),
        ("at gpu-1.internal: refused", "at [removed]: refused"),
        ("my-gpu-1.internal-x stays", "my-gpu-1.internal-x stays"),
        ('"http://a/b" and <ws://c>', '"[removed]" and <[removed]>'),
        ("gpu-1.internal:81010", "[removed]:81010"),
        ("x" * 3000, "x" * 2048),
        ("é" * 1500, "é" * 1024),
        ("a" + "é" * 1500, "a" + "é" * 1023),
        ("🙂" * 600, "🙂" * 512),
        ("y" * 2040 + " gpu-1.internal", "y" * 2040 + " [remove"),
    ],
)
def test_addresses_are_struck_out_of_a_message_and_it_is_cut_between_characters(message, shown):
    body = json.dumps({"error": {"message": message}}).encode()

    run = feed(chat_exchange(stream=True, strike=STRIKE), [http(body, status=400)])

    assert json.loads(run.body)["error"]["message"] == shown


@pytest.mark.parametrize(
    ("value", "passed"),
    [
        ("0", True),
        ("7", True),
        ("3600", True),
        ("3601", False),
        ("99999", False),
        ("-1", False),
        ("1.5", False),
        ("+1", False),
        ("soon", False),
        ("", False),
        ("Wed, 21 Oct 2026 07:28:00 GMT", True),
        ("Wed, 31 Feb 2026 07:28:00 GMT", False),
        ("Wed, 21 Oct 2026 27:28:00 GMT", False),
        ("Wed, 21 Oct 2026 07:28:00 +0000", False),
    ],
)
def test_a_wait_is_passed_on_when_it_is_a_sane_one(value, passed):
    run = feed(chat_exchange(stream=False), [http(b"{}", status=429, headers=[f"Retry-After: {value}"])])

    more = (("Retry-After", value),) if passed else ()
    assert run.head == plain_head(429, run.body, *more)


def test_only_a_429_passes_a_wait_on():
    run = feed(chat_exchange(stream=False), [http(b"{}", status=400, headers=["Retry-After: 7"])])

    assert run.head == plain_head(400, run.body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "rest",
    ["eof", "timeout", "reset", "endless", "malformed"],
)
def test_a_refusal_stands_whatever_becomes_of_its_body(stream, rest):
    exchange = chat_exchange(stream=stream)
    start = http(b"", status=400, framing="eof", headers=["Transfer-Encoding: chunked"])
    exchange.receive(start + b'7\r\n{"error')

    if rest == "eof":
        body = exchange.receive_eof()
    elif rest == "endless":
        body = exchange.receive(b"\r\nffffff\r\n" + b" " * MAX_ERROR_BYTES)
    elif rest == "malformed":
        body = exchange.receive(b"nonsense")
    else:
        body = exchange.fail(Fault.TIMEOUT if rest == "timeout" else Fault.RESET)

    assert body == envelope(REJECTED, "invalid_request_error", "upstream_rejected")
    assert exchange.head == plain_head(400, body)
    assert exchange.over
    assert not exchange.reusable
    assert not exchange.drainable


@pytest.mark.requirement("cases 20")
@pytest.mark.parametrize(
    ("body", "status", "seen"),
    [
        (WHOLE, 502, UNUSABLE_BODY),
        (b"", 502, UNUSABLE_BODY),
        (b"not json", 502, UNUSABLE_BODY),
        (b'{"error":{"message":"secret","code":500}}', 502, UNUSABLE_BODY),
        (
            b'{"error":{"message":"too long","code":400}}',
            400,
            envelope("too long", "invalid_request_error", "upstream_rejected"),
        ),
        (
            b'{"object":"error","message":"busy","code":429}',
            429,
            envelope("busy", "rate_limit_error", "upstream_rate_limited"),
        ),
    ],
)
def test_json_where_a_stream_was_asked_for_is_a_plain_error(body, status, seen):
    run = feed(chat_exchange(stream=True), [http(body)])

    assert (run.head, run.body) == (plain_head(status, seen), seen)
    assert (run.outcome.outcome, run.outcome.reason) == ("error", "completion_error")


@pytest.mark.parametrize("content_type", ["text/html", "text/plain", "application/x-ndjson", None])
def test_other_media_where_a_stream_was_asked_for_are_refused_at_the_head(content_type):
    response = http(b"", content_type=content_type, framing="eof")

    run = feed(chat_exchange(stream=True), [response])

    assert (run.head, run.body) == (plain_head(502, UNUSABLE_BODY), UNUSABLE_BODY)
    assert not run.exchange.drainable


def test_a_stream_where_a_whole_answer_was_asked_for_is_refused_at_the_head():
    run = feed(chat_exchange(stream=False), [sse(b"", framing="eof")])

    assert (run.head, run.body) == (plain_head(502, UNUSABLE_BODY), UNUSABLE_BODY)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"a":1} x',
        b'{"a":"\xff"}',
        b"[" * 5000,
        b'{"a":' + b"[" * 100_000,
    ],
    ids=["empty", "null", "array", "string", "cut", "more", "not UTF-8", "deep", "deeper"],
)
def test_a_whole_answer_that_is_no_json_object_is_a_502(body):
    run = feed(chat_exchange(stream=False), [http(body)])

    assert (run.head, run.body) == (plain_head(502, UNUSABLE_BODY), UNUSABLE_BODY)
    assert (run.outcome.reason, run.outcome.status) == ("completion_error", 502)
    assert not run.exchange.reusable


@pytest.mark.parametrize(
    ("body", "status", "seen"),
    [
        (b'{"error":{"message":"secret"}}', 502, FAILED_BODY),
        (b'{"object":"error","message":"secret","code":500}', 502, FAILED_BODY),
        (
            b'{"error":{"message":"bad field","code":422}}',
            422,
            envelope("bad field", "invalid_request_error", "upstream_rejected"),
        ),
    ],
)
def test_an_error_inside_a_whole_200_is_an_error(body, status, seen):
    run = feed(chat_exchange(stream=False), [http(body)])

    assert (run.head, run.body) == (plain_head(status, seen), seen)
    assert run.outcome.reason == "completion_error"


def test_an_answer_over_the_bound_is_a_502():
    body = b'{"a":"' + b"x" * 100 + b'"}'

    assert feed(chat_exchange(stream=False, max_body=108), [http(body)]).outcome.status == 200
    run = feed(chat_exchange(stream=False, max_body=107), [http(body)])

    assert (run.head, run.body) == (plain_head(502, UNUSABLE_BODY), UNUSABLE_BODY)
    assert not run.exchange.reusable


# Inside a stream


@pytest.mark.parametrize(
    "bad",
    [
        b"data: {\n\n",
        b"data: \n\n",
        b"data: null\n\n",
        b"data: [1]\n\n",
        b"data: [DONE] x\n\n",
        b'data: {"a":"\xff"}\n\n',
        b'data: {"a":"\xe4\xbd"}\n\n',
        b'data: {"\xff":1}\n\n',
        b": \xff\n\n",
        b'event: e\ndata: {"a":NaN}\n\n',
        b'data: {"a":\n\ndata: 1}\n\n',
        b'data: {"a":"' + b"x" * 300 + b'"}\n\n',
    ],
)
@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
@pytest.mark.requirement("C-T007", "Q-T009")
def test_a_malformed_event_ends_the_stream_in_one_error_event(bad, split):
    exchange = chat_exchange(stream=True, max_event=300)

    run = feed(exchange, split(sse(events(CHUNKS[0]) + bad + events(*CHUNKS[1:]) + DONE)))

    assert run.body == STREAM_SEEN.split(b"\n\n")[0] + b"\n\n" + UNUSABLE_EVENT
    assert exchange.close_client
    assert not exchange.truncated
    assert (exchange.reusable, exchange.drainable) == (False, False)
    assert (run.outcome.outcome, run.outcome.reason, run.outcome.status) == ("error", "completion_error", 200)


@pytest.mark.parametrize("split", [lambda data: [data], bytewise], ids=["one read", "byte by byte"])
@pytest.mark.parametrize(
    ("error", "event"),
    [
        (
            b'data: {"error":{"message":"CUDA died on gpu-1.internal","code":500}}\n\n',
            b'{"error":{"message":"CUDA died on [removed]","type":"server_error","param":null,'
            b'"code":"upstream_error"}}',
        ),
        (
            b'data: {"object":"error","message":"too long","code":400}\n\n',
            b'{"error":{"message":"too long","type":"invalid_request_error","param":null,'
            b'"code":"upstream_rejected"}}',
        ),
        (
            b'event: error\ndata: {"detail":"gone"}\n\n',
            b'{"error":{"message":"gone","type":"server_error","param":null,"code":"upstream_error"}}',
        ),
        (b'data: {"error":{}}\n\n', FAILED_BODY),
        (b'data: {"error":true,"choices":[]}\n\n', FAILED_BODY),
    ],
)
def test_an_error_event_of_the_upstreams_becomes_one_of_ours_and_the_end(split, error, event):
    exchange = chat_exchange(stream=True, strike=STRIKE)

    run = feed(exchange, split(sse(events(CHUNKS[0]) + error + DONE)))

    assert run.body == STREAM_SEEN.split(b"\n\n")[0] + b"\n\ndata: " + event + b"\n\n"
    assert exchange.close_client
    assert not exchange.reusable
    assert (run.outcome.outcome, run.outcome.reason) == ("error", "completion_error")


def test_a_null_error_is_none():
    run = feed(chat_exchange(stream=True), [sse(events(b'{"error":null,"choices":[]}') + DONE)])

    assert run.body == b'data: {"error":null,"choices":[]}\n\n' + DONE


@pytest.mark.requirement("cases 20")
@pytest.mark.parametrize(
    ("first", "status", "message"),
    [
        (b'data: {"error":{"message":"too long","code":400}}\n\n', 400, "too long"),
        (b'data: {"error":{"message":"it broke"}}\n\n', 502, "it broke"),
        (b"data: {\n\n", 502, UNUSABLE),
    ],
)
def test_while_nothing_has_gone_out_a_bad_first_event_is_a_plain_error(first, status, message):
    run = feed(chat_exchange(stream=True), [sse(first + DONE)])

    assert run.head == plain_head(status, run.body)
    assert json.loads(run.body)["error"]["message"] == message
    assert not run.exchange.close_client


def test_a_stream_that_ends_before_its_first_event_is_a_plain_error():
    run = feed(chat_exchange(stream=True), [sse(b"")])

    assert run.head == plain_head(502, run.body)
    assert json.loads(run.body)["error"]["code"] == "upstream_incomplete"


@pytest.mark.requirement("cases 22")
def test_characters_split_over_segments_arrive_whole():
    event = 'data: {"model":"qwen3-32b","choices":[{"delta":{"content":"你🙂"}}]}\n\n'.encode()
    seen = 'data: {"model":"demo.chat","choices":[{"delta":{"content":"你🙂"}}]}\n\n'.encode()

    run = feed(chat_exchange(stream=True), bytewise(sse(event * 2 + DONE)))

    assert run.body == seen * 2 + DONE


@pytest.mark.requirement("cases 22")
def test_an_emoji_escaped_in_halves_over_two_events_arrives_as_it_came():
    one = b'{"choices":[{"delta":{"content":"<half0> \\\\ud83d \\ud83d"}}]}'
    two = b'{"choices":[{"delta":{"content":"\\ude42\\ud83d\\ude42"}}]}'

    run = feed(chat_exchange(stream=True), [sse(events(one, two) + DONE)])

    assert run.body == events(one, two) + DONE


def test_comments_fields_and_several_data_lines_survive():
    stream = (
        b": hello\n\n"
        b"retry: 100\n\n"
        b'event: chunk\nid: 1\ndata: {"model":"x",\ndata:  "choices": [\ndata: 1]}\n\n'
        b": late\nevent: end\ndata: [DONE]\n\n"
    )

    run = feed(chat_exchange(stream=True), bytewise(sse(stream.replace(b"\n", b"\r\n"))))

    assert run.body == (
        b": hello\n\n"
        b"retry: 100\n\n"
        b'event: chunk\nid: 1\ndata: {"model":"demo.chat","choices":[ 1]}\n\n'
        b": late\n\n"
        b"event: end\ndata: [DONE]\n\n"
    )
    assert run.outcome.reason == "served"


def test_framing_that_breaks_in_a_stream_ends_it_after_the_events_before():
    start = sse(events(CHUNKS[0]))[: -len(b"0\r\n\r\n")]

    run = feed(chat_exchange(stream=True), [start + b"zz\r\n" + DONE])

    assert run.body == STREAM_SEEN.split(b"\n\n")[0] + b"\n\n" + UNUSABLE_EVENT
    assert run.exchange.close_client


# Faults of the connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code", "message", "unreachable"),
    [
        (Fault.REFUSED, 502, "upstream_unreachable", "The upstream server could not be reached.", True),
        (Fault.RESET, 502, "upstream_unreachable", "The upstream server could not be reached.", True),
        (Fault.TIMEOUT, 504, "upstream_timeout", "The upstream server did not answer in time.", False),
        (None, 502, "upstream_unreachable", "The upstream server could not be reached.", True),
    ],
)
@pytest.mark.requirement("C-T007", "Q-T009", "cases 25")
def test_a_fault_before_any_byte_is_a_plain_error(stream, fault, status, code, message, unreachable):
    exchange = chat_exchange(stream=stream)

    body = exchange.receive_eof() if fault is None else exchange.fail(fault)

    assert body == envelope(message, "server_error", code)
    assert exchange.head == plain_head(status, body)
    assert exchange.over
    assert exchange.outcome is not None
    assert (exchange.outcome.reason, exchange.outcome.unreachable) == ("backend_error", unreachable)
    assert not exchange.reusable
    assert exchange.receive(b"HTTP/1.1 200 OK\r\n\r\n") == b""
    assert exchange.fail(Fault.RESET) == b""
    assert exchange.receive_eof() == b""


def test_a_member_that_sent_a_byte_was_reached():
    exchange = chat_exchange(stream=False)
    exchange.receive(b"H")
    exchange.fail(Fault.RESET)

    assert exchange.outcome is not None
    assert not exchange.outcome.unreachable


def test_an_answer_that_is_not_http_is_a_502_at_its_first_byte():
    run = feed(chat_exchange(stream=True), [b"S"])

    assert (run.head, run.body) == (plain_head(502, UNUSABLE_BODY), UNUSABLE_BODY)
    assert run.outcome.reason == "backend_error"


@pytest.mark.requirement("cases 25")
def test_a_silent_upstream_in_the_middle_of_a_stream_ends_it_in_one_error_event():
    exchange = chat_exchange(stream=True)
    exchange.receive(sse(events(CHUNKS[0]))[: -len(b"0\r\n\r\n")])

    assert exchange.fail(Fault.TIMEOUT) == (
        b'data: {"error":{"message":"The upstream server did not answer in time.",'
        b'"type":"server_error","param":null,"code":"upstream_timeout"}}\n\n'
    )
    assert exchange.close_client


def test_interim_answers_do_not_start_the_answer():
    exchange = chat_exchange(stream=False)

    exchange.receive(b"HTTP/1.1 103 Early Hints\r\n\r\n")
    assert not exchange.answering
    exchange.receive(http(WHOLE)[:-1])
    assert exchange.answering
    assert exchange.receive(WHOLE[-1:]) == WHOLE_SEEN


@pytest.mark.parametrize(("stream", "answer"), [(False, http(WHOLE)), (True, sse(STREAM))])
def test_a_connection_that_did_not_take_the_whole_request_carries_no_other(
    stream: bool, answer: bytes
) -> None:
    exchange = chat_exchange(stream=stream)
    exchange.spoil()
    exchange.receive(answer)

    assert exchange.outcome is not None
    assert exchange.outcome.reason == "served"
    assert (exchange.complete, exchange.reusable, exchange.drainable) == (True, False, False)
