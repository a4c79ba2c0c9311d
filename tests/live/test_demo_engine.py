"""The demo engine met over real sockets: what it answers, what it counts, and every fault it can be told."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, NotFoundError, RateLimitError

from demo.fleet import EngineFailure, start_engines
from tests.live.harness import (
    MODEL,
    PROMPT,
    Engine,
    ReservedPorts,
    chat_body,
    eventually,
    openai_client,
    request,
)
from tests.live.raw import CHAT, RawConnection, Response, build_request

Connect = Callable[..., RawConnection]
MakeEngine = Callable[..., Engine]

TEXT = "Hello from engine: one token"
HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"


def ask(connection: RawConnection, **fields: Any) -> Response:
    """One chat completion on a connection, read to its end."""
    connection.post(chat_body(**fields))
    return connection.read_response()


def stream(connection: RawConnection, **fields: Any) -> Response:
    return ask(connection, stream=True, **fields)


def gauges(engine: Engine) -> dict[str, float]:
    page = request(engine.port, "GET", "/metrics").body.decode()
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name.partition("{")[0].removeprefix("vllm:"): float(value) for name, _, value in lines}


# What it answers.


def test_health_version_and_models(engine: Engine) -> None:
    health = request(engine.port, "GET", "/health")
    assert (health.status, health.body) == (200, b"")
    assert request(engine.port, "GET", "/version").json() == {"version": "0.11.0"}
    models = request(engine.port, "GET", "/v1/models").json()
    assert models["object"] == "list"
    (model,) = models["data"]
    assert (model["id"], model["object"], model["owned_by"], model["max_model_len"]) == (
        "demo-model",
        "model",
        "vllm",
        32_768,
    )


def test_an_answer_that_is_not_streamed(engine: Engine, connect: Connect) -> None:
    response = ask(connect(engine.port))
    assert (response.status, response.ending) == (200, "length")
    answer = response.json()
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["usage"]["total_tokens"] == 10


def test_a_stream_is_chunked_events_and_leaves_the_connection_open(engine: Engine, connect: Connect) -> None:
    connection = connect(engine.port)
    for _ in range(2):
        response = stream(connection, stream_options={"include_usage": True})
        assert (response.status, response.ending) == (200, "chunked")
        assert response.head.get("content-type") == "text/event-stream; charset=utf-8"
        assert response.text == TEXT
        assert json.loads(response.data[-2])["usage"]["completion_tokens"] == 5
        assert response.data[-1] == "[DONE]"
    assert engine.stats()["connections_total"] == 1


def test_pipelined_requests_are_answered_in_order(engine: Engine, connect: Connect) -> None:
    connection = connect(engine.port)
    requests = [
        build_request("POST", CHAT, body=chat_body(max_tokens=1)),
        build_request("POST", CHAT, body=chat_body(stream=True)),
        build_request("GET", "/health"),
        build_request("POST", CHAT, body=chat_body(max_tokens=2)),
    ]
    connection.send(b"".join(requests))
    assert connection.read_response().json()["choices"][0]["message"]["content"] == "Hello"
    assert connection.read_response().text == TEXT
    assert connection.read_response().body == b""
    assert connection.read_response().json()["choices"][0]["message"]["content"] == "Hello from"


def test_a_chunked_request_and_one_that_waits_to_go_on(engine: Engine, connect: Connect) -> None:
    connection = connect(engine.port)
    body = json.dumps(chat_body()).encode()
    connection.send(build_request("POST", CHAT, headers={"Transfer-Encoding": "chunked"}))
    connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert connection.read_response().status == 200
    headers = {"Expect": "100-continue", "Content-Length": str(len(body))}
    connection.send(build_request("POST", CHAT, headers=headers))
    assert connection.read_head().status == 100
    connection.send(body)
    assert connection.read_response().status == 200


def test_connection_close_is_honoured(engine: Engine, connect: Connect) -> None:
    connection = connect(engine.port)
    connection.post(chat_body(), headers={"Connection": "close"})
    response = connection.read_response()
    assert response.head.get("connection") == "close"
    assert connection.await_end() == "cut"


def test_a_client_of_http_1_0_gets_no_chunks(engine: Engine, connect: Connect) -> None:
    connection = connect(engine.port)
    connection.send(
        build_request("POST", CHAT, body=chat_body(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0")
    )
    response = connection.read_response()
    assert (response.head.version, response.ending, response.text) == ("HTTP/1.0", "eof", TEXT)


def test_an_idle_connection_is_closed_after_its_time(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(keep_alive=0.2)
    connection = connect(engine.port)
    assert ask(connection).status == 200
    start = time.monotonic()
    assert connection.await_end() == "cut"
    assert 0.1 < time.monotonic() - start < 3.0


def test_a_long_answer_is_no_idle_time(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(keep_alive=0.1)
    connection = connect(engine.port)
    assert ask(connection).status == 200
    engine.change(prefill=0.4)
    assert ask(connection).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "answer"),
    [
        ("GET", "/nothing", None, 404, {"detail": "Not Found"}),
        ("GET", CHAT, None, 405, {"detail": "Method Not Allowed"}),
        (
            "POST",
            CHAT,
            chat_body("other"),
            404,
            {
                "error": {
                    "message": "The model `other` does not exist.",
                    "type": "NotFoundError",
                    "param": "model",
                    "code": 404,
                }
            },
        ),
    ],
)
def test_what_it_does_not_serve(
    engine: Engine, method: str, path: str, body: object, status: int, answer: object
) -> None:
    response = request(engine.port, method, path, body=body)
    assert (response.status, response.json()) == (status, answer)


def test_malformed_json_and_too_long_a_prompt_are_rejected_and_counted(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=100)
    malformed = request(engine.port, "POST", CHAT, body=b"{")
    assert (malformed.status, malformed.json()["error"]["type"]) == (400, "BadRequestError")
    long = request(engine.port, "POST", CHAT, body=chat_body(max_tokens=96))
    assert long.status == 400
    assert long.json()["error"]["message"].startswith(
        "This model's maximum context length is 100 tokens. However, you requested 101 tokens"
    )
    stats = engine.stats()
    assert (stats["received"], stats["rejected"], stats["completed"]) == (2, 2, 0)


def test_a_smuggled_request_is_refused_and_the_connection_closed(engine: Engine, connect: Connect) -> None:
    connection = connect(engine.port)
    connection.post(chat_body(), headers={"Transfer-Encoding": "chunked"})
    response = connection.read_response()
    assert (response.status, response.json()) == (400, {"detail": "unsupported framing"})
    assert connection.await_end() in ("cut", "reset")


# The official client.


def test_the_official_client_reads_answers_streams_and_models(engine: Engine) -> None:
    with openai_client(engine.url) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        whole = client.chat.completions.create(model=MODEL, messages=PROMPT, n=2)
        assert [choice.message.content for choice in whole.choices] == [TEXT, "Choice 1 from engine: one"]
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=PROMPT,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5


def test_the_official_client_assembles_parallel_tool_calls_and_sends_their_results(engine: Engine) -> None:
    tools: list[Any] = [
        {
            "type": "function",
            "function": {
                "name": name,
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
        for name in ("get_weather", "get_time")
    ]
    messages: list[Any] = [{"role": "user", "content": "get_weather and get_time, please"}]
    with openai_client(engine.url) as client:
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as streamed:
            message = streamed.get_final_completion().choices[0].message
        calls = message.tool_calls or []
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("get_weather", '{"city": "Zürich 你好"}'),
            ("get_time", '{"city": "Zürich 你好"}'),
        ]
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in calls]
        engine.change(tokens=12)
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        said = answer.choices[0].message.content or ""
        assert said.startswith("Hello from engine: the tools said fine and fine;")


def test_the_official_client_reads_logprobs(engine: Engine) -> None:
    with openai_client(engine.url) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=PROMPT,
            logprobs=True,
            top_logprobs=3,
            max_tokens=2,
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(token.token, token.logprob, len(token.top_logprobs)) for token in logprobs.content] == [
        ("Hello", -0.25, 3),
        (" from", -0.25, 3),
    ]


def test_the_official_client_raises_what_the_status_says(engine: Engine) -> None:
    engine.fault("http_429", count=1)
    with openai_client(engine.url) as client:
        with pytest.raises(RateLimitError) as limited:
            client.chat.completions.create(model=MODEL, messages=PROMPT)
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(NotFoundError):
            client.chat.completions.create(model="other", messages=PROMPT)
        engine.fault("json_400_on_stream", count=1)
        with pytest.raises(APIStatusError) as refused:
            client.chat.completions.create(model=MODEL, messages=PROMPT, stream=True)
        assert (refused.value.status_code, refused.value.type) == (400, "BadRequestError")


# Slots, counts, metrics.


def test_tokens_come_at_their_pace(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(prefill=0.2, token=0.05, tokens=4)
    connection = connect(engine.port)
    start = time.monotonic()
    connection.post(chat_body(stream=True))
    response = connection.start_response()
    head_at = time.monotonic() - start
    times = [event.at - start for event in connection.events(response)]
    assert head_at < 0.15, "the head comes before the prefill is over"
    assert times[0] >= 0.2
    assert times[-1] >= 0.2 + 4 * 0.05
    assert times == sorted(times)


def test_requests_wait_for_slots_in_order_of_arrival(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(slots=1)
    engine.fault("stall_before_headers", count=1)
    connections = []
    for waiting in range(4):
        connection = connect(engine.port)
        connection.post(chat_body(), headers={"X-Request-Id": f"n{waiting}"})
        engine.await_stats(running=1, waiting=waiting)
        connections.append(connection)
    engine.clear()
    ids = [connection.read_response().json()["id"] for connection in connections]
    assert ids == ["chatcmpl-n0", "chatcmpl-n1", "chatcmpl-n2", "chatcmpl-n3"]
    stats = engine.stats()
    assert (stats["peak_concurrency"], stats["peak_running"]) == (4, 1)
    assert (stats["running"], stats["waiting"], stats["completed"]) == (0, 0, 4)


def test_more_slots_let_waiting_requests_in(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(slots=1, prefill=30)
    for _ in range(3):
        connect(engine.port).post(chat_body(stream=True))
    engine.await_stats(running=1, waiting=2)
    engine.change(slots=3)
    engine.await_stats(running=3, waiting=0)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("leave", ["close", "half_close", "reset"])
def test_a_client_that_leaves_during_prefill_is_noticed_at_once(
    make_engine: MakeEngine, connect: Connect, leave: str, streaming: bool
) -> None:
    engine = make_engine(prefill=30)
    connection = connect(engine.port)
    connection.post(chat_body(stream=streaming))
    engine.await_stats(running=1)
    if streaming:
        connection.start_response()
    start = time.monotonic()
    getattr(connection, leave)()
    engine.await_stats(running=0, cancelled=1, connections_open=0)
    assert time.monotonic() - start < 1.0


def test_a_client_that_leaves_the_queue_is_noticed_and_skipped(
    make_engine: MakeEngine, connect: Connect
) -> None:
    engine = make_engine(slots=1)
    engine.fault("stall_before_headers", count=1)
    first, leaver, last = (connect(engine.port) for _ in range(3))
    for waiting, connection in enumerate((first, leaver, last)):
        connection.post(chat_body())
        engine.await_stats(running=1, waiting=waiting)
    leaver.close()
    engine.await_stats(running=1, waiting=1, cancelled=1)
    engine.clear()
    assert first.read_response().status == 200
    assert last.read_response().status == 200
    engine.await_stats(completed=2, cancelled=1, running=0, waiting=0)


def test_a_client_that_leaves_mid_stream_is_noticed(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(token=0.05, tokens=1000)
    connection = connect(engine.port)
    connection.post(chat_body(stream=True))
    response = connection.start_response()
    next(connection.events(response))
    connection.reset()
    engine.await_stats(running=0, cancelled=1, completed=0)


def test_a_slow_reader_gets_every_byte(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(tokens=30_000)
    connection = connect(engine.port, receive_buffer=65_536)
    connection.post(chat_body(stream=True))
    engine.await_stats(running=1)  # held back by the full socket
    response = connection.start_response()
    response.body = b"".join(connection.pieces(response))
    assert response.ending == "chunked"
    assert response.body.count(b"data: ") == 30_003


def test_a_client_that_goes_on_at_done_never_meets_itself(engine: Engine, connect: Connect) -> None:
    connections = [connect(engine.port) for _ in range(8)]
    for number in range(400):
        connection = connections[number % 8]
        connection.post(chat_body(stream=number % 2 == 0, max_tokens=2))
        response = connection.start_response()
        for piece in connection.pieces(response):
            response.body += piece
            if b"[DONE]" in piece:
                break  # at [DONE], before the body's own end
        if number % 2 == 0:
            connection.close()
            connections[number % 8] = connect(engine.port)
    stats = engine.stats()
    assert (stats["completed"], stats["peak_concurrency"], stats["cancelled"]) == (400, 1, 0)


def test_peak_concurrency_counts_requests_in_work_at_once(engine: Engine) -> None:
    engine.fault("stall_before_headers", count=6)
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(request, engine.port, "POST", CHAT, body=chat_body()) for _ in range(6)]
        engine.await_stats(stalled=6)
        engine.clear()
        assert [answer.result(timeout=10).status for answer in answers] == [200] * 6
    assert request(engine.port, "POST", CHAT, body=chat_body()).status == 200
    stats = engine.stats()
    assert (stats["peak_concurrency"], stats["running"], stats["completed"]) == (6, 0, 7)
    engine.reset()
    stats = engine.stats()
    assert (stats["peak_concurrency"], stats["completed"], stats["received"]) == (0, 0, 0)


def test_metrics_follow_the_load(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(slots=2)
    assert [gauges(engine)[name] for name in ("num_requests_running", "num_requests_waiting")] == [0, 0]
    engine.fault("stall_mid_stream")
    connections = [connect(engine.port) for _ in range(3)]
    for connection in connections:
        connection.post(chat_body(stream=True))
    engine.await_stats(running=2, waiting=1, stalled=2)
    loaded = gauges(engine)
    assert (loaded["num_requests_running"], loaded["num_requests_waiting"]) == (2, 1)
    # Two prompts of five tokens and two generated tokens each, of two times 4096.
    assert loaded["kv_cache_usage_perc"] == 14 / 8192
    engine.clear()
    for connection in connections:
        assert connection.read_response().text == TEXT
    idle = gauges(engine)
    assert (idle["num_requests_running"], idle["num_requests_waiting"], idle["kv_cache_usage_perc"]) == (
        0,
        0,
        0,
    )
    assert (idle["prompt_tokens_total"], idle["generation_tokens_total"]) == (15, 15)
    assert idle["time_to_first_token_seconds_count"] == 3


def test_it_remembers_what_it_was_asked(engine: Engine, connect: Connect) -> None:
    connection = connect(engine.port)
    for number in range(70):
        connection.post(chat_body(user=f"u{number}"), headers={"X-Test": str(number)})
        assert connection.read_response().status == 200
    assert request(engine.port, "GET", "/health").status == 200
    stats = engine.stats()
    assert stats["requests"] == {CHAT: 70, "/health": 1}
    assert stats["received"] == 70
    last = stats["last_requests"]
    assert len(last) == 64
    assert (last[-1]["path"], last[-1]["headers"]["x-test"], last[-1]["connection"]) == (CHAT, "69", 1)
    assert json.loads(last[-1]["body"])["user"] == "u69"
    connection.close()
    engine.await_stats(connections_open=0, connections_total=2)


def test_control_on_the_same_port_and_its_refusals(engine: Engine) -> None:
    armed = request(engine.port, "POST", "/control/faults", body={"fault": "http_500", "count": 1})
    assert armed.json()["armed"][0]["fault"] == "http_500"
    for body, text in (
        ({"fault": "nonsense"}, "unknown fault"),
        ({"fault": "refuse", "count": 1}, "refuse takes no count"),
        (b"[]", "the body is not an object"),
        (b"{", "the body is not JSON"),
    ):
        refused = request(engine.port, "POST", "/control/faults", body=body)
        assert refused.status == 400
        assert refused.json()["error"].startswith(text)
    for settings in ({"name": "x"}, {"slots": "2"}, {"slots": True}, {"token": -1}, {"slots": 1.5}):
        assert request(engine.port, "POST", "/control/settings", body=settings).status == 400
    assert request(engine.port, "GET", "/control/nothing").status == 404
    assert request(engine.port, "DELETE", "/control/faults?fault=http_500").json() == {"armed": []}


def test_a_setting_of_seconds_takes_whole_and_broken_numbers_in_turn(engine: Engine) -> None:
    """A whole number came to stay as an integer, and fractions were refused from then on."""
    for token, shown in ((0, b'"token":0.0,'), (0.5, b'"token":0.5,'), (1, b'"token":1.0,')):
        answer = request(engine.port, "POST", "/control/settings", body={"token": token})
        assert (answer.status, shown in answer.body) == (200, True)


# Faults: the connection.


def test_refuse_turns_connections_away_until_cleared(engine: Engine, connect: Connect) -> None:
    idle, busy = connect(engine.port), connect(engine.port)
    assert ask(idle).status == 200
    engine.fault("stall_mid_stream", count=1)
    busy.post(chat_body(stream=True))
    engine.await_stats(stalled=1)
    engine.fault("refuse")
    with pytest.raises(ConnectionRefusedError):
        RawConnection(engine.port)
    assert idle.await_end() == "cut"
    engine.clear("refuse")
    assert ask(connect(engine.port)).status == 200
    engine.clear()
    assert busy.read_response().text == TEXT, "what runs goes on"


def test_refuse_may_cut_what_runs(engine: Engine, connect: Connect) -> None:
    engine.fault("stall_after_headers")
    busy = connect(engine.port)
    busy.post(chat_body(stream=True))
    engine.await_stats(stalled=1)
    engine.fault("refuse", cut=True)
    assert busy.read_response().ending == "reset"
    engine.clear()
    assert ask(connect(engine.port)).status == 200


def test_refuse_may_end_by_itself(engine: Engine) -> None:
    engine.fault("refuse", seconds=0.3)
    with pytest.raises(ConnectionRefusedError):
        RawConnection(engine.port)

    def accepts() -> bool:
        try:
            return request(engine.port, "GET", "/health").status == 200
        except ConnectionRefusedError:
            return False

    assert eventually(accepts)
    assert engine.stats()["faults"] == []


def test_reset_before_any_byte(engine: Engine, connect: Connect) -> None:
    engine.fault("reset", count=1)
    connection = connect(engine.port)
    connection.post(chat_body())
    with pytest.raises(ConnectionError, match="no head: reset"):
        connection.read_response()
    stats = engine.stats()
    assert (stats["received"], stats["failed"], stats["running"], stats["struck"]) == (1, 1, 0, {"reset": 1})
    assert ask(connect(engine.port)).status == 200


def test_close_idle_says_keep_alive_and_closes(engine: Engine, connect: Connect) -> None:
    engine.fault("close_idle", count=1)
    connection = connect(engine.port)
    response = ask(connection)
    assert (response.status, response.ending, response.head.get("connection")) == (200, "length", None)
    assert connection.await_end() == "cut"


# Faults: another answer.


@pytest.mark.parametrize(
    ("fault", "params", "status", "content_type", "body"),
    [
        (
            "http_500",
            {},
            500,
            "application/json",
            b'{"error":{"message":"Internal server error","type":"InternalServerError",'
            b'"param":null,"code":500}}',
        ),
        (
            "http_error",
            {
                "status": 302,
                "body": "moved",
                "content_type": "text/html",
                "headers": {"Location": "http://x/"},
            },
            302,
            "text/html",
            b"moved",
        ),
        (
            "http_error",
            {"status": 422, "body": {"detail": ["no"]}},
            422,
            "application/json",
            b'{"detail":["no"]}',
        ),
        (
            "http_429",
            {},
            429,
            "application/json",
            b'{"error":{"message":"Too many requests","type":"RateLimitError","param":null,"code":429}}',
        ),
        ("plain_error", {}, 500, "text/plain; charset=utf-8", b"Internal Server Error"),
        (
            "flat_error",
            {},
            400,
            "application/json",
            b'{"object":"error","message":"The engine says no.","type":"BadRequestError",'
            b'"param":null,"code":400}',
        ),
        (
            "json_400_on_stream",
            {},
            400,
            "application/json",
            b'{"error":{"message":"The engine says no.","type":"BadRequestError","param":null,"code":400}}',
        ),
    ],
)
def test_error_answers(
    engine: Engine,
    connect: Connect,
    fault: str,
    params: dict[str, object],
    status: int,
    content_type: str,
    body: bytes,
) -> None:
    engine.fault(fault, count=1, **params)
    connection = connect(engine.port)
    response = stream(connection)
    assert (response.status, response.ending, response.body) == (status, "length", body)
    assert response.head.get("content-type") == content_type
    assert response.head.get("retry-after") == ("7" if fault == "http_429" else None)
    assert response.head.get("location") == ("http://x/" if status == 302 else None)
    stats = engine.stats()
    assert (stats["failed" if status >= 400 else "completed"], stats["running"]) == (1, 0)
    assert stream(connection).text == TEXT, "the connection is good for another request"


def test_json_200_on_stream(engine: Engine, connect: Connect) -> None:
    engine.fault("json_200_on_stream", count=1)
    response = stream(connect(engine.port))
    assert (response.status, response.head.get("content-type")) == (200, "application/json")
    assert response.json()["choices"][0]["message"]["content"] == TEXT


# Faults: silence.


@pytest.mark.parametrize("streaming", [True, False])
def test_stall_before_headers(engine: Engine, connect: Connect, streaming: bool) -> None:
    engine.fault("stall_before_headers")
    connection = connect(engine.port, timeout=0.2)
    connection.post(chat_body(stream=streaming))
    engine.await_stats(running=1, stalled=1)
    with pytest.raises(TimeoutError):
        connection.receive()
    connection.close()
    engine.await_stats(running=0, stalled=0, cancelled=1)


def test_stall_after_headers_and_an_end_to_it(engine: Engine, connect: Connect) -> None:
    engine.fault("stall_after_headers")
    connection = connect(engine.port, timeout=0.5)
    connection.post(chat_body(stream=True))
    response = connection.start_response()
    assert response.status == 200
    with pytest.raises(TimeoutError):
        connection.receive()
    engine.clear()
    response.body = b"".join(connection.pieces(response))
    assert (response.text, response.ending) == (TEXT, "chunked")


def test_stall_mid_stream_for_a_time(engine: Engine, connect: Connect) -> None:
    engine.fault("stall_mid_stream", count=1, after=2, seconds=0.3)
    connection = connect(engine.port)
    connection.post(chat_body(stream=True))
    response = connection.start_response()
    times = [event.at for event in connection.events(response)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # Role and first token go out together, so the silence follows the third event.
    assert max(gaps) == gaps[2] >= 0.25
    assert response.text == TEXT


def test_stall_in_the_middle_of_a_whole_body(engine: Engine, connect: Connect) -> None:
    engine.fault("stall_mid_stream")
    connection = connect(engine.port)
    connection.post(chat_body())
    response = connection.start_response()
    length = int(response.head.get("content-length") or 0)
    engine.await_stats(stalled=1)
    first = connection.receive()
    assert len(first) == length // 2
    engine.clear()
    rest = connection.receive()
    assert json.loads(first + rest)["choices"][0]["message"]["content"] == TEXT


# Faults: a broken end.


@pytest.mark.parametrize(("fault", "ending"), [("cut_mid_stream", "cut"), ("reset_mid_stream", "reset")])
def test_the_connection_ends_after_so_many_events(
    engine: Engine, connect: Connect, fault: str, ending: str
) -> None:
    engine.fault(fault, count=1, after=4)
    response = stream(connect(engine.port))
    assert (response.status, response.ending) == (200, ending)
    assert response.text == "Hello from engine: one"
    stats = engine.stats()
    assert (stats["failed"], stats["running"], stats["cancelled"]) == (1, 0, 0)


@pytest.mark.parametrize(("fault", "ending"), [("cut_mid_stream", "cut"), ("reset_mid_stream", "reset")])
def test_the_connection_ends_in_the_middle_of_a_whole_body(
    engine: Engine, connect: Connect, fault: str, ending: str
) -> None:
    engine.fault(fault, count=1)
    response = ask(connect(engine.port))
    length = int(response.head.get("content-length") or 0)
    assert (response.ending, len(response.body)) == (ending, length // 2)


def test_a_malformed_event_in_a_stream_that_goes_on(engine: Engine, connect: Connect) -> None:
    engine.fault("malformed_event", count=1, after=1)
    response = stream(connect(engine.port))
    assert response.data[2] == '{"id":"chatcmpl-broken","choices":['
    assert (response.data[-1], response.ending) == ("[DONE]", "chunked")


@pytest.mark.parametrize("done", [True, False])
def test_an_error_event_mid_stream(engine: Engine, connect: Connect, done: bool) -> None:
    engine.fault("error_event_mid_stream", count=1, after=1, done=done)
    response = stream(connect(engine.port))
    assert response.ending == "chunked"
    assert response.data[2:] == [
        '{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError",'
        '"param":null,"code":500}}',
        *(["[DONE]"] if done else []),
    ]


def test_no_terminal_event(engine: Engine, connect: Connect) -> None:
    engine.fault("no_terminal_event", count=1)
    response = stream(connect(engine.port))
    assert (response.text, response.ending) == (TEXT, "chunked")
    assert json.loads(response.data[-1])["choices"][0]["finish_reason"] == "stop"


def test_no_final_blank_line(engine: Engine, connect: Connect) -> None:
    engine.fault("no_final_blank_line", count=1)
    response = stream(connect(engine.port))
    assert response.body.endswith(b"\n\ndata: [DONE]")
    assert (response.text, response.ending) == (TEXT, "chunked")


# Faults: the same bytes, harder to read.


def test_crlf_comments_and_data_over_several_lines(engine: Engine, connect: Connect) -> None:
    engine.fault("crlf_and_comments", count=1)
    response = stream(connect(engine.port))
    assert response.body.count(b": keep-alive\r\n") == 8
    assert response.body.count(b"\ndata: ") == 7 * 2 + 1
    assert response.body.endswith(b"data: [DONE]\r\n\r\n")
    assert response.text == TEXT


def test_events_split_over_http_chunks(engine: Engine, connect: Connect) -> None:
    engine.fault("split_events", count=1)
    connection = connect(engine.port)
    connection.post(chat_body(stream=True))
    response = connection.start_response()
    pieces = list(connection.pieces(response))
    response.body = b"".join(pieces)
    assert len(pieces) == 3 * 8
    assert pieces[1].endswith(b"\n")
    assert pieces[2] == b"\n"
    assert response.text == TEXT


def test_characters_split_over_segments(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(tokens=12)
    engine.fault("split_utf8", count=1, gap=0.02)
    connection = connect(engine.port)
    connection.post(chat_body(stream=True))
    segments: list[bytes] = []
    while not segments or not segments[-1].endswith(b"0\r\n\r\n"):
        segments.append(connection.receive())
    broken = [segment for segment in segments if segment.decode(errors="replace").endswith("\ufffd")]
    # One for each of 你, 好, 🙂 and ï.
    assert [segment[-1:] for segment in broken] == [b"\xe4", b"\xe5", b"\xf0", b"\xc3"]
    assert any(segment.count(b"data: ") > 1 for segment in segments), "a segment spans events"
    assert "naïve" in b"".join(segments).decode()


def test_one_byte_per_segment(engine: Engine, connect: Connect) -> None:
    engine.fault("split_utf8", count=1, bytes=1, gap=0.001)
    connection = connect(engine.port)
    connection.post(chat_body(max_tokens=1))
    reads = 0
    data = b""
    while b'"kv_transfer_params":null}' not in data:
        data += connection.receive()
        reads += 1
    assert reads > 100
    engine.await_stats(completed=1, running=0)
    assert ask(connection).status == 200


@pytest.mark.parametrize("streaming", [True, False])
def test_gzip_that_nobody_asked_for(engine: Engine, streaming: bool) -> None:
    engine.fault("gzip_unasked", count=1)
    answer = request(engine.port, "POST", CHAT, body=chat_body(stream=streaming))
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.body[:2] == b"\x1f\x8b"
    engine.fault("gzip_unasked", count=1)
    with openai_client(engine.url) as client:
        if streaming:
            chunks = client.chat.completions.create(model=MODEL, messages=PROMPT, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
        else:
            whole = client.chat.completions.create(model=MODEL, messages=PROMPT)
            assert whole.choices[0].message.content == TEXT


@pytest.mark.parametrize("streaming", [True, False])
def test_a_body_that_ends_with_the_connection(engine: Engine, connect: Connect, streaming: bool) -> None:
    engine.fault("eof_delimited", count=1)
    response = ask(connect(engine.port), stream=streaming)
    assert (response.head.version, response.ending) == ("HTTP/1.0", "eof")
    assert response.head.get("transfer-encoding") is None
    assert response.head.get("content-length") is None
    assert TEXT in (response.text if streaming else response.body.decode())


def test_chunk_extensions_and_trailers(engine: Engine, connect: Connect) -> None:
    engine.fault("chunk_extras", count=1)
    connection = connect(engine.port)
    connection.post(chat_body(stream=True))
    raw = b""
    while not raw.endswith(b"\r\n\r\n") or b"[DONE]" not in raw:
        raw += connection.receive()
    assert raw.startswith(HEAD)
    assert b';demo="1"\r\ndata: ' in raw
    assert raw.endswith(b"0\r\nx-demo-trailer: 1\r\n\r\n")
    engine.fault("chunk_extras", count=1)
    response = stream(connection)
    assert (response.text, response.trailers) == (TEXT, (("x-demo-trailer", "1"),))


def test_interim_answers(engine: Engine, connect: Connect) -> None:
    engine.fault("extra_1xx", count=1)
    response = ask(connect(engine.port))
    assert [head.status for head in response.interim] == [100, 103]
    assert (response.status, response.json()["object"]) == (200, "chat.completion")


def test_headers_that_nobody_needs(engine: Engine, connect: Connect) -> None:
    engine.fault("extra_headers", count=1, headers={"Set-Cookie": "a=b", "X-Secret": "s"})
    response = stream(connect(engine.port))
    assert (response.head.get("set-cookie"), response.head.get("x-secret")) == ("a=b", "s")
    assert response.text == TEXT


# Faults: health, identity, metrics.


def test_health_faults(engine: Engine, connect: Connect) -> None:
    engine.fault("health_500", count=1)
    assert request(engine.port, "GET", "/health").status == 500
    engine.fault("slow_health", count=1, seconds=30)
    connection = connect(engine.port, timeout=0.2)
    connection.send(build_request("GET", "/health"))
    with pytest.raises(TimeoutError):
        connection.receive()
    engine.clear()
    assert connection.read_response().status == 200
    stats = engine.stats()
    assert (stats["received"], stats["peak_concurrency"]) == (0, 0), "health is no work"


def test_identity_faults(engine: Engine) -> None:
    engine.fault("wrong_model", count=1)
    assert [one["id"] for one in request(engine.port, "GET", "/v1/models").json()["data"]] == [
        "another-model"
    ]
    engine.fault("models_malformed", count=1)
    assert request(engine.port, "GET", "/v1/models").body == b'{"object":"list","data":[{"id":'
    engine.fault("models_oversized", count=1, bytes=100_000)
    assert len(request(engine.port, "GET", "/v1/models").body) > 100_000
    assert request(engine.port, "GET", "/v1/models").json()["data"][0]["id"] == MODEL


def test_metrics_faults(engine: Engine, connect: Connect) -> None:
    engine.fault("metrics_500", count=1)
    assert request(engine.port, "GET", "/metrics").status == 500
    engine.fault("metrics_nan", count=1)
    assert b'vllm:num_requests_waiting{engine="0",model_name="demo-model"} NaN\n' in (
        request(engine.port, "GET", "/metrics").body
    )
    engine.fault("metrics_missing", count=1, series="vllm:num_requests_running")
    page = request(engine.port, "GET", "/metrics").body
    assert b"num_requests_running" not in page
    assert b"num_requests_waiting" in page
    engine.fault("metrics_text", count=1, text="vllm:kv_cache_usage_perc 7\n")
    assert request(engine.port, "GET", "/metrics").body == b"vllm:kv_cache_usage_perc 7\n"
    engine.fault("trickling_metrics", count=1, gap=0.05)
    connection = connect(engine.port)
    connection.send(build_request("GET", "/metrics"))
    start = time.monotonic()
    assert connection.receive(at_most=2) == b"H"
    assert connection.receive(at_most=2) == b"T"
    assert time.monotonic() - start >= 0.04


def test_any_fault_may_be_moved_to_another_path(engine: Engine, connect: Connect) -> None:
    engine.fault("reset", count=1, path="/health")
    assert ask(connect(engine.port)).status == 200
    connection = connect(engine.port)
    connection.send(build_request("GET", "/health"))
    with pytest.raises(ConnectionError, match="no head: reset"):
        connection.read_response()


# Processes.


def test_the_demo_engines_start_together_say_who_they_are_and_stop(tmp_path: Path) -> None:
    options = ["--prefill", "0", "--token", "0"]
    with ReservedPorts(3) as ports, start_engines(ports.first, tmp_path, options) as engines:
        names = []
        for process in engines.engines:
            answer = request(process.port, "POST", CHAT, body=chat_body(max_tokens=3)).json()
            names.append(answer["choices"][0]["message"]["content"])
        assert names == ["Hello from member-a:", "Hello from member-b:", "Hello from direct:"]
        with pytest.raises(EngineFailure, match="engine member-a ended at once: cannot listen"):
            start_engines(ports.first, tmp_path / "second")
        engines.stop()
        assert not any(process.is_running for process in engines.engines)
        with pytest.raises(ConnectionRefusedError):
            request(ports.first, "GET", "/health")


def test_an_engine_ends_in_order_while_it_works(make_engine: MakeEngine, connect: Connect) -> None:
    engine = make_engine(prefill=30)
    connect(engine.port).post(chat_body())
    engine.await_stats(running=1)
    engine.stop()
    assert engine.log == ""
