"""The main job end to end: which member is chosen, what a lease counts, who is noticed leaving."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.live.bench import FRONTS, Bench
from tests.live.harness import (
    Documents,
    Engine,
    Router,
    TierDocument,
    admission_counts,
    await_rest,
    chat_body,
    decisions,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.live.raw import CHAT, RawConnection, build_request

SLOW_PROBES = {"availability_probe_interval": 60.0}


def tiers(engines: Sequence[Engine]) -> list[TierDocument]:
    return [
        direct_tier(engines[0]),
        direct_tier(engines[0], tier_id="single", alias="live.single", max_concurrency=1),
        replica_tier(engines, tier_id="robin", alias="live.robin", strategy="round_robin", ceilings=8),
        replica_tier(engines, tier_id="chat", alias="live.chat", ceilings=8),
        replica_tier(engines, tier_id="one", alias="live.one", ceilings=1, max_concurrency=1),
    ]


@pytest.fixture(scope="module", params=FRONTS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp(request.param), tiers, front=request.param)
    yield bench
    bench.stop()


@pytest.fixture
def bench(shared: Bench) -> Bench:
    """Both drivers, one after the other."""
    shared.rest()
    return shared


@pytest.fixture(scope="module")
def shared_production(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("production"), tiers)
    yield bench
    bench.stop()


@pytest.fixture
def production(shared_production: Bench) -> Bench:
    """The production driver alone."""
    shared_production.rest()
    return shared_production


@pytest.fixture
def start_production(make_router: Callable[..., Router]) -> Callable[..., Router]:
    def begin(installed: Documents, **options: Any) -> Router:
        started: Router = make_router(installed, **options).start()
        return started

    return begin


@pytest.fixture
def members(make_engine: Callable[..., Engine]) -> list[Engine]:
    return [make_engine("a"), make_engine("b")]


@pytest.fixture
def streams(connect: Callable[..., RawConnection]) -> Callable[..., RawConnection]:
    """Opens a stream and reads its first event; the connection is held open by the engine's fault."""

    def begin(router: Router, alias: str, **fields: Any) -> RawConnection:
        connection: RawConnection = connect(router.port)
        connection.post(chat_body(alias, stream=True, **fields))
        response = connection.start_response()
        assert response.status == 200
        next(connection.events(response))
        return connection

    return begin


def member_of(router: Router, alias: str, **fields: object) -> str:
    answer = router.chat(alias, **fields)
    assert answer.status == 200, answer.body
    return answer.headers["x-anvil-member"]


def hold(*engines: Engine) -> None:
    """From now on every stream stands still after its second event, until the faults are cleared."""
    for engine in engines:
        engine.fault("stall_mid_stream")


# Choice


@pytest.mark.requirement("Q-A001", "Q-R008", "Q-T008")
def test_four_requests_over_two_idle_members_go_round(bench: Bench) -> None:
    if member_of(bench.router, "live.robin") == "member-a":
        member_of(bench.router, "live.robin")

    served = [member_of(bench.router, "live.robin", stream=bool(number % 2)) for number in range(4)]

    assert served == ["member-a", "member-b", "member-a", "member-b"]


@pytest.mark.requirement("C-A001", "C-R001", "C-T004", "case-10")
def test_capacity_prefers_the_member_with_more_room_and_alternates_between_equals(
    bench: Bench, streams: Callable[..., RawConnection]
) -> None:
    bench.fault("stall_mid_stream", count=1)
    held = streams(bench.router, "live.chat")
    (busy,) = [name for name, count in admission_counts(bench.router).items() if "/" in name and count]
    idle = {"chat/member-a": "member-b", "chat/member-b": "member-a"}[busy]
    bench.engines["ab".index(idle[-1])].clear()

    assert {member_of(bench.router, "live.chat") for _ in range(3)} == {idle}

    held.close()
    await_rest(bench.router)

    def alternate() -> bool:
        served = [member_of(bench.router, "live.chat") for _ in range(4)]
        return served[0] != served[1] and served[:2] == served[2:]

    # Once the engine's metrics have been read again: a sample from meanwhile is pressure, too.
    eventually(alternate)


@pytest.mark.requirement("case-11", "Q-A003")
def test_the_next_healthy_member_by_rank_replaces_an_unhealthy_one(
    make_engine: Callable[..., Engine], start_production: Callable[..., Router]
) -> None:
    engines = [make_engine(name) for name in "abc"]
    router = start_production(documents(replica_tier(engines, ceilings=4)))
    engines[0].fault("health_500")
    await_readiness(router, "member-a", ready=False)
    hold(engines[1], engines[2])
    with ExitStack() as stack:
        # One on each of the healthy two, then one more: c is at 2, b at 1 or the other way round.
        for _ in range(3):
            connection = stack.enter_context(RawConnection(router.port))
            connection.post(chat_body("live.chat", stream=True))
            assert connection.start_response().status == 200
        counts = admission_counts(router)
        fuller, emptier = (
            ("member-b", "member-c") if counts["chat/member-b"] == 2 else ("member-c", "member-b")
        )
        assert (counts[f"chat/{fuller}"], counts[f"chat/{emptier}"], counts["chat/member-a"]) == (2, 1, 0)
        for engine in engines:
            engine.clear("stall_mid_stream")

        assert member_of(router, "live.chat") == emptier
    record = eventually(lambda: decisions(router)[-1])
    assert record["replica_scheduler"]["eligible_member_ids"] == ["member-b", "member-c"]


def await_readiness(router: Router, member: str, *, ready: bool) -> None:
    def reached() -> bool:
        (tier,) = router.request("GET", "/v1/admin/transition").json()["tiers"]
        return any(row["member_id"] == member and row["ready"] is ready for row in tier["members"])

    eventually(reached)


@pytest.mark.requirement("case-12")
def test_a_restarted_member_takes_its_share_and_never_more_than_its_ceiling(
    tmp_path: Path,
    make_engine: Callable[..., Engine],
    start_production: Callable[..., Router],
    connect: Callable[..., RawConnection],
) -> None:
    first = Engine.start(tmp_path / "first", "a")
    steady = make_engine("b")
    router = start_production(documents(replica_tier([first, steady], ceilings=4)))
    port = first.port
    first.kill()
    await_readiness(router, "member-a", ready=False)
    hold(steady)

    def open_streams(count: int) -> list[int]:
        statuses = []
        for _ in range(count):
            connection = connect(router.port)
            connection.post(chat_body("live.chat", stream=True))
            statuses.append(connection.start_response().status)
        return statuses

    assert open_streams(3) == [200] * 3
    restarted = Engine.start(tmp_path / "second", "a", port=port)
    try:
        hold(restarted)
        await_readiness(router, "member-a", ready=True)

        assert open_streams(6) == [200] * 5 + [503]
        assert restarted.stats()["peak_concurrency"] == 4
        assert steady.stats()["peak_concurrency"] == 4
    finally:
        restarted.stop()


@pytest.mark.requirement("contract 2")
@pytest.mark.parametrize("strategy", ["round_robin", "capacity"])
def test_a_member_that_refuses_connections_loses_one_request_at_most(
    members: list[Engine], start_production: Callable[..., Router], strategy: str
) -> None:
    """Its probes would not tell for a minute: always idle, it would win every request until then."""
    router = start_production(
        documents(replica_tier(members, strategy=strategy, ceilings=4), router=SLOW_PROBES)
    )
    members[1].fault("refuse")

    statuses = [router.chat("live.chat", stream=bool(number % 2)).status for number in range(12)]

    assert statuses.count(502) <= 1
    assert statuses.count(200) == len(statuses) - statuses.count(502)


@pytest.mark.requirement("Q-A003", "contract 2")
def test_with_no_member_left_the_answer_is_the_fixed_refusal(
    members: list[Engine], start_production: Callable[..., Router]
) -> None:
    router = start_production(documents(replica_tier(members), direct_tier(members[0])))
    for engine in members:
        engine.fault("health_500")
    await_all_down(router)
    before = [engine.stats()["received"] for engine in members]

    answer = router.chat("live.chat")

    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "model_unavailable"
    assert "x-should-retry" not in answer.headers
    assert [engine.stats()["received"] for engine in members] == before
    record = eventually(lambda: decisions(router)[-1])
    assert record["attempts"] == []
    assert record["replica_selection"] == "not_admitted"


def await_all_down(router: Router) -> None:
    def down() -> bool:
        tiers = router.request("GET", "/v1/admin/transition").json()["tiers"]
        rows = [row for tier in tiers for row in tier.get("members", [tier])]
        return not any(row["ready"] for row in rows)

    eventually(down)


# Counts


class SequentialClient:
    """Starts its next request the moment it has read ``[DONE]``, on the connection that it is not reading."""

    def __init__(self, port: int, request: bytes) -> None:
        self._connections = [RawConnection(port), RawConnection(port)]
        self._request = request
        self._left = [b"", b""]
        self._turn = 0

    def once(self) -> bool:
        """Whether the answer was served; returns before its message has ended."""
        turn = self._turn = 1 - self._turn
        connection = self._connections[turn]
        while self._left[turn] and not self._left[turn].endswith(b"0\r\n\r\n"):
            self._left[turn] += connection.receive()
        connection.send(self._request)
        data = b""
        while b"data: [DONE]\n\n" not in data:
            if b"503 Service Unavailable" in data:
                return False
            more = connection.receive()
            assert more, data
            data += more
        self._left[turn] = data
        return True

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.mark.requirement("house-3", "C-T007")
def test_a_sequential_caller_at_ceiling_one_never_meets_its_own_lease(bench: Bench) -> None:
    streamed = SequentialClient(
        bench.router.port, build_request("POST", CHAT, body=chat_body("live.one", stream=True))
    )
    served = sum(streamed.once() for _ in range(1000))
    streamed.close()
    assert served == 1000

    served = 0
    with RawConnection(bench.router.port) as connection:
        for _ in range(1000):
            connection.post(chat_body("live.one"))
            served += connection.read_response().status == 200
    assert served == 1000
    assert bench.total("received") == 2000
    await_rest(bench.router)


@pytest.mark.requirement("case-4", "case-5", "case-7", "C-T001")
def test_a_stream_counts_as_one_for_all_of_its_life(
    production: Bench, streams: Callable[..., RawConnection]
) -> None:
    """Longer than the housekeeping, the sweep, the reaper and the probes take for a round."""
    router = production.router
    production.fault("stall_mid_stream")
    held, held_directly = streams(router, "live.one"), streams(router, "live.single")

    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        counts = admission_counts(router)
        assert (counts["one"], counts["single"]) == (1, 1)
        began = time.monotonic()
        answer = router.chat("live.one")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert time.monotonic() - began < 1.0
        threading.Event().wait(0.1)

    production.clear()
    for connection in (held, held_directly):
        while b"[DONE]" not in connection.receive():
            pass
    assert router.chat("live.one").status == 200
    await_rest(router)


@pytest.mark.requirement("contract 3", "house-4")
def test_a_direct_tier_waits_for_a_place_until_its_caller_is_gone(
    production: Bench, streams: Callable[..., RawConnection], connect: Callable[..., RawConnection]
) -> None:
    router = production.router
    production.fault("stall_mid_stream")
    held = streams(router, "live.single")
    waiting, leaving = connect(router.port), connect(router.port)
    leaving.post(chat_body("live.single"))
    eventually(lambda: places_taken(router) == 2)
    waiting.post(chat_body("live.single"))
    eventually(lambda: places_taken(router) == 3)

    leaving.close()
    eventually(lambda: places_taken(router) == 2)
    production.clear()
    while b"[DONE]" not in held.receive():
        pass

    assert waiting.read_response().status == 200
    assert production.total("received") == 2
    await_rest(router)


def places_taken(router: Router) -> int:
    text = router.request("GET", "/metrics").body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith("anvil_front_door_places ")]
    return int(float(line.split()[1]))


@pytest.mark.requirement("case-1", "C-T007", "C-A005")
def test_callers_that_vanish_at_every_stage_leave_all_counts_at_zero(bench: Bench) -> None:
    router = bench.router
    with ExitStack() as stack:
        bench.fault("cut_mid_stream", after=3)
        assert "[DONE]" not in router.chat("live.chat", stream=True).body.decode()
        bench.clear()
        bench.fault("stall_before_headers")
        early = [stack.enter_context(RawConnection(router.port)) for _ in range(4)]
        for connection in early:
            connection.post(chat_body("live.chat", stream=True))
        eventually(lambda: bench.total("stalled") == 4)
        for engine in bench.engines:
            # One by its name: clearing all would let the stalled ones go on.
            engine.clear("stall_before_headers")
        bench.fault("stall_mid_stream")
        late = [stack.enter_context(RawConnection(router.port)) for _ in range(4)]
        for connection in late:
            connection.post(chat_body("live.chat", stream=True))
            next(connection.events(connection.start_response()))
        assert admission_counts(router)["chat"] == 8

    await_rest(router)
    assert bench.total("cancelled") == 8


@pytest.mark.requirement("case-6")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_every_wire_counts_as_chat_does(
    production: Bench, connect: Callable[..., RawConnection], path: str, body: dict[str, Any]
) -> None:
    router = production.router
    production.fault("stall_mid_stream")
    connection = connect(router.port)
    connection.post({"model": "live.one", "stream": True, **body}, path=path)
    assert connection.start_response().status == 200
    assert admission_counts(router)["one"] == 1
    assert router.chat("live.one").status == 503

    connection.close()
    await_rest(router)


# Callers that leave


@pytest.mark.requirement("case-2", "case-26", "house-4")
@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_during_a_silent_prefill_is_noticed_within_a_second(
    bench: Bench, stream: bool
) -> None:
    engine = bench.engines[0]
    engine.change(prefill=10.0)
    with RawConnection(bench.router.port) as connection:
        connection.post(chat_body("live.direct", stream=stream))
        engine.await_stats(running=1)
        # Silence on every wire for a while: nobody writes, nobody reads.
        threading.Event().wait(0.3)
        assert engine.stats()["running"] == 1
        connection.close()

    engine.await_stats(timeout=1.0, running=0, cancelled=1)
    await_rest(bench.router, timeout=1.0)


# Small things of the wire


@pytest.mark.requirement("case-28", "case-29", "contract 2")
@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b'{"model": "live.direct", "messages": [', 400, "malformed_json", None),
        (b"not json", 400, "malformed_json", None),
        (b"[]", 400, None, None),
        (
            b'{"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}',
            404,
            "model_not_found",
            "model",
        ),
        (
            b'{"model": "direct", "messages": [{"role": "user", "content": "hi"}]}',
            404,
            "model_not_found",
            "model",
        ),
    ],
)
def test_faults_of_the_caller_are_told_as_json_and_reach_no_engine(
    production: Bench, body: bytes, status: int, code: str | None, param: str | None
) -> None:
    answer = production.router.request("POST", CHAT, body=body)

    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert code is None or error["code"] == code
    assert param is None or error["param"] == param
    assert production.total("received") == 0


@pytest.mark.requirement("contract 2")
def test_another_method_is_refused_with_the_one_that_is_taken(production: Bench) -> None:
    router = production.router
    for method in ("GET", "PUT", "DELETE"):
        answer = router.request(method, CHAT)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.requirement("contract 2")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer live-test-token"}, 200),
        ({"x-api-key": "live-test-token"}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"Authorization": "Basic live-test-token"}, 401),
        ({}, 401),
    ],
)
def test_who_may_ask(production: Bench, headers: dict[str, str], status: int) -> None:
    router = production.router
    with RawConnection(router.port) as connection:
        connection.post(chat_body("live.direct"), headers=headers, token=None)
        assert connection.read_response().status == status


@pytest.mark.requirement("contract 2")
def test_a_safe_request_id_is_kept_and_another_replaced(production: Bench) -> None:
    router = production.router
    own = uuid.uuid4().hex
    headers = {"X-Request-Id": own, "X-Anvil-Workbench-Run-Id": "run-1", "X-Anvil-Task-Id": "bad id"}
    answer = router.request("POST", CHAT, body=chat_body("live.direct"), headers=headers)
    assert answer.headers["x-request-id"] == own
    (record,) = [one for one in decisions(router) if one["request_id"] == own]
    assert (record["workbench_run_id"], record["task_id"]) == ("run-1", "-")

    answer = router.request("POST", CHAT, body=chat_body("live.direct"), headers={"X-Request-Id": "a b\tc"})
    assert answer.headers["x-request-id"] != "a b\tc"
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.requirement("case-15")
def test_probes_work_while_every_place_of_a_member_is_taken(
    members: list[Engine], start_production: Callable[..., Router], streams: Callable[..., RawConnection]
) -> None:
    router = start_production(documents(replica_tier(members, ceilings=2)))
    hold(*members)
    for _ in range(4):
        streams(router, "live.chat")
    before = [engine.stats()["requests"]["/health"] for engine in members]

    def probed_again() -> bool:
        now = [engine.stats()["requests"]["/health"] for engine in members]
        return all(later >= earlier + 2 for earlier, later in zip(before, now, strict=True))

    eventually(probed_again)
    (tier,) = router.request("GET", "/v1/admin/transition").json()["tiers"]
    assert [row["ready"] for row in tier["members"]] == [True, True]
    assert tier["active_requests"] == 4


@pytest.mark.requirement("case-24", "contract 2")
def test_a_pooled_connection_that_its_engine_closed_meanwhile_is_not_used(bench: Bench) -> None:
    engine, router = bench.engines[0], bench.router
    engine.change(keep_alive=0.2)
    assert router.chat("live.direct").status == 200
    # Its connection is in our pool, young enough to be used, and the engine hangs up on it.
    connections = engine.stats()["connections_open"]
    eventually(lambda: engine.stats()["connections_open"] < connections, interval=0.002)

    assert [router.chat("live.direct").status for _ in range(3)] == [200] * 3
    assert engine.stats()["received"] == 4


@pytest.mark.requirement("contract 2", "case-22")
def test_a_body_that_comes_in_chunks_is_read_whole(production: Bench) -> None:
    router, engine = production.router, production.engines[0]
    body = json.dumps(chat_body("live.direct", user="你好🙂")).encode()
    parts = [body[at : at + 3] for at in range(0, len(body), 3)]
    with RawConnection(router.port) as connection:
        connection.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer live-test-token\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.read_head().status == 100
        for part in parts:
            connection.send(b"%x;a=b\r\n%b\r\n" % (len(part), part))
        connection.send(b"0\r\nX-Trailer: 1\r\n\r\n")
        assert connection.read_response().status == 200

    sent = json.loads(engine.stats()["last_requests"][-1]["body"])
    assert sent["user"] == "你好🙂"
    assert engine.stats()["last_requests"][-1]["headers"]["content-length"].isdigit()


@pytest.mark.requirement("contract 2")
def test_nothing_of_the_callers_headers_goes_upstream(production: Bench) -> None:
    router, engine = production.router, production.engines[0]
    headers = {"Cookie": "a=1", "X-Forwarded-For": "10.0.0.1", "Accept-Encoding": "gzip", "X-Own": "1"}
    assert router.request("POST", CHAT, body=chat_body("live.direct"), headers=headers).status == 200

    seen = engine.stats()["last_requests"][-1]["headers"]
    assert set(seen) == {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"}
    assert seen["accept-encoding"] == "identity"


@pytest.mark.requirement("contract 2")
def test_a_large_whole_answer_arrives_whole(bench: Bench) -> None:
    """Larger than what the relay loop judges by itself."""
    for engine in bench.engines:
        engine.change(tokens=60_000)
    answer = bench.router.chat("live.chat", timeout=30)
    assert answer.status == 200
    content = answer.json()["choices"][0]["message"]["content"]
    assert len(content) > 200_000
    assert answer.json()["usage"]["completion_tokens"] == 60_000
    await_rest(bench.router)
    (record,) = decisions(bench.router, limit=1)
    assert (record["served_tier"], record["response_bytes"]) == ("chat", len(answer.body))
