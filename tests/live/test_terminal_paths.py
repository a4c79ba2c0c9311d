"""Every way in which a request can end, through real processes and sockets, on both drivers.

However it ends: one upstream request, one lease that is given back, one decision, and nothing left at the
engine. The strategy alternates over the rest of the matrix, so that every pair of path, strategy, mode and
driver is met; the full matrix runs on the exchange by itself (tests/unit/routing).
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.live.bench import FRONTS, Bench
from tests.live.harness import (
    MODEL,
    Engine,
    Router,
    TierDocument,
    await_rest,
    chat_body,
    decisions,
    direct_tier,
    eventually,
    replica_tier,
)
from tests.live.raw import RawConnection, Response

STRATEGIES = ("direct", "round_robin", "capacity")
HASTY = {"first_byte_timeout": 0.4, "timeout": 0.4}
SPEECH = f"""
[[router.audio_routes]]
id = "voice"
purpose = "tts"
default = true
model = "{MODEL}"
base_url = "{{url}}"
"""


def tiers(engines: Sequence[Engine]) -> list[TierDocument]:
    """A tier of each strategy, and one of each that has little patience."""
    made = []
    for strategy in STRATEGIES:
        for name, settings in ((strategy, {}), (f"{strategy}-hasty", HASTY)):
            common: dict[str, Any] = {"tier_id": name, "alias": f"live.{name}", "max_concurrency": 2}
            if strategy == "direct":
                made.append(direct_tier(engines[0], **common, **settings))
            else:
                made.append(replica_tier(engines, strategy=strategy, ceilings=2, **common, **settings))
    return made


@pytest.fixture(scope="module", params=FRONTS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp(request.param), tiers, front=request.param, more=SPEECH)
    yield bench
    bench.stop()


@pytest.fixture
def bench(shared: Bench) -> Bench:
    shared.rest()
    return shared


Client = Callable[[Bench, RawConnection], Response | None]


def reads(bench: Bench, connection: RawConnection) -> Response | None:
    """A caller that reads to the end."""
    return connection.read_response()


def leaves_before_the_head(bench: Bench, connection: RawConnection) -> Response | None:
    eventually(lambda: bench.total("stalled"))
    connection.close()
    return None


def resets_before_the_head(bench: Bench, connection: RawConnection) -> Response | None:
    eventually(lambda: bench.total("stalled"))
    connection.reset()
    return None


def leaves_in_mid_stream(bench: Bench, connection: RawConnection) -> Response | None:
    response = connection.start_response()
    assert response.status == 200
    assert next(connection.events(response)).data is not None
    connection.close()
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """One way to end: the engine's fault, what the caller does, and what both then see.

    ``status`` is 0 where the caller saw none; ``code`` is that of its error, plain or in the stream;
    ``reason`` is the attempt's.
    """

    name: str
    status: int
    reason: str
    code: str | None = None
    fault: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    client: Client = reads
    hasty: bool = False

    @property
    def served(self) -> bool:
        return self.reason == "served"


BOTH = [
    Ending(name="success", status=200, reason="served"),
    Ending(
        name="an error of the engine",
        fault="http_500",
        status=502,
        code="upstream_error",
        reason="backend_error",
    ),
    Ending(
        name="an engine that does not know us",
        fault="http_error",
        params={"status": 401},
        status=502,
        code="upstream_error",
        reason="backend_error",
    ),
    Ending(
        name="a refusal in plain text",
        fault="plain_error",
        status=502,
        code="upstream_error",
        reason="backend_error",
    ),
    Ending(
        name="a flat refusal",
        fault="flat_error",
        status=400,
        code="upstream_rejected",
        reason="backend_error",
    ),
    Ending(
        name="an engine at its limit",
        fault="http_429",
        status=429,
        code="upstream_rate_limited",
        reason="backend_error",
    ),
    Ending(
        name="silence",
        fault="stall_before_headers",
        status=504,
        code="upstream_timeout",
        reason="backend_error",
        hasty=True,
    ),
    Ending(
        name="a reset before the answer",
        fault="reset",
        status=502,
        code="upstream_unreachable",
        reason="backend_error",
    ),
    Ending(
        name="a caller that leaves before the head",
        fault="stall_before_headers",
        client=leaves_before_the_head,
        status=0,
        reason="client_disconnected",
    ),
    Ending(
        name="a caller that resets before the head",
        fault="stall_before_headers",
        client=resets_before_the_head,
        status=0,
        reason="client_disconnected",
    ),
    Ending(
        name="an answer without a length",
        fault="eof_delimited",
        status=200,
        reason="served",
    ),
    Ending(
        name="an answer that was compressed unasked",
        fault="gzip_unasked",
        status=200,
        reason="served",
    ),
    Ending(
        name="interim answers before the real one",
        fault="extra_1xx",
        status=200,
        reason="served",
    ),
]
STREAMED = [
    Ending(
        name="silence after the head",
        fault="stall_after_headers",
        status=504,
        code="upstream_timeout",
        reason="completion_error",
        hasty=True,
    ),
    Ending(
        name="silence in mid-stream",
        fault="stall_mid_stream",
        status=200,
        code="upstream_timeout",
        reason="completion_error",
        hasty=True,
    ),
    Ending(
        name="a caller that leaves before the first event",
        fault="stall_after_headers",
        client=leaves_before_the_head,
        status=0,
        reason="client_disconnected",
    ),
    Ending(
        name="a caller that leaves in mid-stream",
        fault="stall_mid_stream",
        client=leaves_in_mid_stream,
        status=0,
        reason="client_disconnected",
    ),
    Ending(
        name="a cut in mid-stream",
        fault="cut_mid_stream",
        params={"after": 4},
        status=200,
        code="upstream_incomplete",
        reason="completion_error",
    ),
    Ending(
        name="a malformed event",
        fault="malformed_event",
        status=200,
        code="upstream_invalid_response",
        reason="completion_error",
    ),
    Ending(
        name="a malformed first event",
        fault="malformed_event",
        params={"after": 0},
        status=502,
        code="upstream_invalid_response",
        reason="completion_error",
    ),
    Ending(
        name="no terminal event",
        fault="no_terminal_event",
        status=200,
        code="upstream_incomplete",
        reason="completion_error",
    ),
    Ending(
        name="an error of the engine in mid-stream",
        fault="error_event_mid_stream",
        status=200,
        code="upstream_error",
        reason="completion_error",
    ),
    Ending(
        name="a refusal where a stream was asked for",
        fault="json_400_on_stream",
        status=400,
        code="upstream_rejected",
        reason="backend_error",
    ),
    Ending(
        name="a whole answer where a stream was asked for",
        fault="json_200_on_stream",
        status=502,
        code="upstream_invalid_response",
        reason="completion_error",
    ),
    Ending(
        name="events cut in pieces",
        fault="split_events",
        status=200,
        reason="served",
    ),
    Ending(
        name="characters cut in pieces",
        fault="split_utf8",
        status=200,
        reason="served",
    ),
    Ending(
        name="line ends and comments of all kinds",
        fault="crlf_and_comments",
        status=200,
        reason="served",
    ),
    Ending(
        name="no blank line at the end",
        fault="no_final_blank_line",
        status=200,
        reason="served",
    ),
    Ending(
        name="chunks with extensions and trailers",
        fault="chunk_extras",
        status=200,
        reason="served",
    ),
]
WHOLE = [
    Ending(
        name="a cut in the body",
        fault="cut_mid_stream",
        status=502,
        code="upstream_incomplete",
        reason="completion_error",
    ),
    Ending(
        name="silence in the body",
        fault="stall_mid_stream",
        status=504,
        code="upstream_timeout",
        reason="completion_error",
        hasty=True,
    ),
    Ending(
        name="a body that is no answer",
        fault="http_error",
        params={"status": 200, "body": '{"choices":['},
        status=502,
        code="upstream_invalid_response",
        reason="completion_error",
    ),
]


def matrix() -> list[Any]:
    cases = [(True, ending) for ending in BOTH + STREAMED] + [(False, ending) for ending in BOTH + WHOLE]
    return [
        pytest.param(
            ending,
            stream,
            number,
            id=f"{'streamed' if stream else 'whole'}: {ending.name}",
        )
        for number, (stream, ending) in enumerate(cases)
    ]


@pytest.mark.requirement("Q-R009", "Q-T008", "Q-T009", "Q-A004", "C-R010", "C-T007", "C-A005", "contract 2")
@pytest.mark.requirement("case-1", "case-2", "case-20", "case-21", "case-22", "case-25", "case-26", "case-27")
@pytest.mark.parametrize(("ending", "stream", "number"), matrix())
def test_every_end_costs_one_attempt_and_leaves_nothing(
    bench: Bench, ending: Ending, stream: bool, number: int
) -> None:
    strategy = STRATEGIES[(number + list(FRONTS).index(bench.front)) % len(STRATEGIES)]
    tier = f"{strategy}-hasty" if ending.hasty else strategy
    if ending.fault is not None:
        bench.fault(ending.fault, **ending.params)
    request_id = uuid.uuid4().hex
    body = chat_body(f"live.{tier}", stream=stream, messages=[{"role": "user", "content": "说 你好 🙂"}])
    with RawConnection(bench.router.port) as connection:
        connection.post(body, headers={"X-Request-Id": request_id})
        response = ending.client(bench, connection)

        if response is not None:
            check_answer(response, ending, stream=stream, strategy=strategy, request_id=request_id)

    await_rest(bench.router)
    for engine in bench.engines:
        engine.await_stats(running=0, waiting=0, stalled=0)
    assert bench.total("received") == 1
    record = eventually(lambda: the_decision(bench.router, request_id))
    (attempt,) = record["attempts"]
    assert (attempt["tier_id"], attempt["reason"]) == (tier, ending.reason)
    assert attempt["outcome"] == ("served" if ending.served else "error")
    assert record["served_tier"] == (tier if ending.served else "-")
    if strategy != "direct":
        assert record["replica_selection"] == "identity_passed"
        served_by = [stats["name"] for stats in bench.stats() if stats["received"]]
        assert [f"member-{name}" for name in served_by] == [record["replica_member_id"]]


def the_decision(router: Router, request_id: str) -> dict[str, Any]:
    (record,) = [record for record in decisions(router) if record["request_id"] == request_id]
    return record


def check_answer(response: Response, ending: Ending, *, stream: bool, strategy: str, request_id: str) -> None:
    head = response.head
    assert head.status == ending.status
    assert head.get("x-request-id") == request_id
    assert head.get("x-anvil-tier") in (strategy, f"{strategy}-hasty")
    assert (head.get("x-anvil-member") is None) == (strategy == "direct")
    streams = stream and ending.status == 200
    if not streams:
        assert response.ending == "length"
        assert head.get("content-type") == "application/json"
    else:
        assert response.ending == "chunked"
        assert head.get("x-accel-buffering") == "no"
        assert head.get("cache-control") == "no-cache"
        assert head.get("content-type") == "text/event-stream; charset=utf-8"
    if ending.code is None:
        if streams:
            assert response.data[-1] == "[DONE]"
            assert response.text.startswith("Hello from ")
        else:
            assert response.json()["choices"][0]["message"]["content"].startswith("Hello from ")
        return
    if streams:
        assert "[DONE]" not in response.data
        events = [event for event in response.data if '"error"' in event]
        assert events == response.data[-1:]
        assert f'"code":"{ending.code}"' in events[0]
        assert len(response.data) > 1
    else:
        assert response.json()["error"]["code"] == ending.code
        assert head.get("x-should-retry") == "false"
        assert head.get("retry-after") == ("7" if ending.status == 429 else None)


@pytest.mark.requirement("contract 2", "case-21")
@pytest.mark.parametrize("fault", ["cut_mid_stream", "malformed_event", "no_terminal_event"])
def test_a_stream_that_ends_in_an_error_closes_its_connection(bench: Bench, fault: str) -> None:
    bench.fault(fault)
    with RawConnection(bench.router.port) as connection:
        connection.post(chat_body("live.capacity", stream=True))
        assert connection.read_response().ending == "chunked"
        assert connection.await_end() == "cut"


@pytest.mark.requirement("contract 2")
def test_a_connection_is_used_again_after_a_stream_and_after_an_error(bench: Bench) -> None:
    with RawConnection(bench.router.port) as connection:
        for _ in range(2):
            connection.post(chat_body("live.capacity", stream=True))
            assert connection.read_response().data[-1] == "[DONE]"
            bench.fault("http_500", count=1)
            connection.post(chat_body("live.direct", stream=True))
            assert connection.read_response().status == 502
            bench.engines[1].clear()
            connection.post(chat_body("live.direct"))
            assert connection.read_response().status == 200


@pytest.mark.requirement("Q-R008", "Q-T008", "C-R010")
def test_no_failure_reaches_for_the_other_member(bench: Bench) -> None:
    """Four failures over two members: each is told to its caller, and nobody is asked twice."""
    for _ in range(4):
        bench.fault("http_500", count=1)
        assert bench.router.chat("live.round_robin").status == 502
        for engine in bench.engines:
            engine.clear()

    assert [stats["received"] for stats in bench.stats()] == [2, 2]


@pytest.mark.requirement("case-23")
def test_a_rewritten_body_has_its_own_length(bench: Bench) -> None:
    bench.fault("extra_headers", headers={"set-cookie": "a=1", "x-engine": "secret", "etag": "x"})
    answer = bench.router.chat("live.direct")

    assert answer.json()["model"] == "live.direct"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert not {"set-cookie", "x-engine", "etag"} & set(answer.headers)
    assert answer.headers.get("server") != "uvicorn"


@pytest.mark.requirement("contract 2")
def test_a_caller_of_http_1_0_gets_a_stream_that_the_close_ends(bench: Bench) -> None:
    with RawConnection(bench.router.port) as connection:
        body = b'{"model":"live.capacity","stream":true,"messages":[{"role":"user","content":"hi"}]}'
        connection.send(
            b"POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer live-test-token\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        response = connection.read_response()

    assert response.head.get("transfer-encoding") is None
    assert response.ending == "eof"
    assert response.data[-1] == "[DONE]"


@pytest.mark.requirement("case-24")
def test_a_pooled_connection_that_its_engine_has_closed_costs_no_request(bench: Bench) -> None:
    bench.engines[0].fault("close_idle")
    for _ in range(10):
        assert bench.router.chat("live.direct").status == 200
    stats = bench.engines[0].stats()

    assert stats["received"] == 10


@pytest.mark.requirement("house-2", "contract 2")
@pytest.mark.parametrize(("version", "ending"), [("1.1", "cut"), ("1.0", "reset")])
def test_sound_that_breaks_off_is_not_given_a_proper_end(bench: Bench, version: str, ending: str) -> None:
    """No event can say so: the framing has to, and without framing the connection."""
    bench.engines[0].fault("cut_mid_stream", path="/v1/audio/speech", after=1)
    body = b'{"input":"one two three four","voice":"v"}'
    with RawConnection(bench.router.port) as connection:
        connection.send(
            b"POST /v1/audio/speech HTTP/%b\r\nHost: a\r\nAuthorization: Bearer live-test-token\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (version.encode(), len(body), body)
        )
        response = connection.read_response()

    assert response.status == 200
    assert response.head.get("transfer-encoding") == ("chunked" if version == "1.1" else None)
    assert response.ending in (ending, "reset")
