"""A front door that is full, and callers by the thousand that send next to nothing: nobody else notices."""

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.harness import (
    Engine,
    Router,
    await_rest,
    chat_body,
    direct_tier,
    documents,
    eventually,
)
from tests.live.raw import CHAT, RawConnection, build_request

pytestmark = pytest.mark.requirement("house 2", "contract 2 wire")

CAP = 32
PROMPT_ANSWER = 1.0
"""Seconds in which management must answer whatever callers do."""


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine(slots=512)


@pytest.fixture
def router(make_router: Callable[..., Router], engine: Engine) -> Router:
    environ = {"ANVIL_MAX_CONCURRENCY": str(CAP), "ANVIL_BODY_BUDGET": str(64 * 1024 * 1024)}
    return make_router(documents(direct_tier(engine)), environ=environ).start()


@pytest.fixture
def crowd() -> Iterator[list[RawConnection]]:
    """Connections that end with the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    with contextlib.ExitStack() as stack:
        connections: list[RawConnection] = []
        stack.callback(lambda: [each.close() for each in connections])
        yield connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def assert_management_answers(router: Router) -> None:
    for method, path in (
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("GET", "/v1/admin/transition"),
        ("GET", "/admin/login/"),
    ):
        began = time.monotonic()
        answer = router.request(method, path, timeout=10.0)
        assert answer.status == 200, path
        assert time.monotonic() - began < PROMPT_ANSWER, path


def memory(router: Router) -> int:
    """Bytes that the worker holds."""
    lines = Path(f"/proc/{router.worker_pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def test_silent_streams_that_take_every_place_stop_nobody_but_the_next_stream(
    router: Router, engine: Engine, crowd: list[RawConnection]
) -> None:
    assert_management_answers(router)
    engine.fault("stall_before_headers")
    for _ in range(CAP):
        connection = RawConnection(router.port)
        crowd.append(connection)
        connection.post(chat_body("live.direct", stream=True))
    engine.await_stats(stalled=CAP)

    assert_management_answers(router)
    began = time.monotonic()
    refused = router.chat("live.direct", stream=True)
    assert (refused.status, refused.json()["error"]["code"]) == (503, "server_busy")
    assert refused.headers["retry-after"] == "1"
    assert time.monotonic() - began < PROMPT_ANSWER
    body = {"action": "quiesce", "tier_id": "direct", "confirm": True, "dry_run": False}
    began = time.monotonic()
    assert router.request("POST", "/v1/admin/transition", body=body).status == 200
    assert time.monotonic() - began < PROMPT_ANSWER
    metrics = router.request("GET", "/metrics").body.decode()
    assert f"anvil_front_door_places {CAP}.0" in metrics
    assert 'anvil_refusals_total{reason="server_busy",tier=""} 1.0' in metrics

    for connection in crowd:
        connection.close()
    await_rest(router)


@pytest.mark.parametrize(
    ("beginning", "count"),
    [
        pytest.param(b"", 1000, id="that say nothing"),
        pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-", 1000, id="with half a head"),
        pytest.param(
            build_request("POST", CHAT, body=b"{" + b" " * 5000)[:-4000], 1000, id="with half a body"
        ),
    ],
)
def test_a_thousand_connections(
    router: Router, engine: Engine, crowd: list[RawConnection], beginning: bytes, count: int
) -> None:
    assert router.chat("live.direct").status == 200
    before = memory(router)
    for _ in range(count):
        connection = RawConnection(router.port)
        crowd.append(connection)
        connection.send(beginning)

    assert_management_answers(router)
    for _ in range(10):
        began = time.monotonic()
        assert router.chat("live.direct").status == 200
        assert time.monotonic() - began < PROMPT_ANSWER
    assert memory(router) - before < 64 * 1024 * 1024
    assert engine.stats()["running"] == 0


def test_bodies_beyond_the_budget_are_refused_and_cost_no_more_than_it(
    router: Router, crowd: list[RawConnection]
) -> None:
    """64 MiB of budget, and twice as much that is begun and never ended."""
    assert router.chat("live.direct").status == 200
    before = memory(router)
    size = 8 * 1024 * 1024
    head = build_request("POST", CHAT, body=b"x" * size)[:-size]
    for _ in range(16):
        connection = RawConnection(router.port)
        crowd.append(connection)
        # What is refused is read away for a moment only.
        with contextlib.suppress(OSError):
            connection.send(head + b"x" * (size - 1))

    assert_management_answers(router)
    metrics = router.request("GET", "/metrics").body.decode()
    assert 'anvil_refusals_total{reason="server_busy",tier=""}' in metrics
    assert memory(router) - before < 2 * 64 * 1024 * 1024
    for connection in crowd:
        connection.close()
    assert eventually(lambda: router.chat("live.direct").status == 200)
