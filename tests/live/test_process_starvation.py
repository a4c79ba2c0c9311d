"""Callers that take everything and send or read next to nothing, through the real process."""

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import (
    Engine,
    Router,
    admission_counts,
    await_rest,
    chat_body,
    direct_tier,
    documents,
    eventually,
)
from tests.live.raw import CHAT, RawConnection, build_request

PROMPTLY = 1.0
"""Seconds within which health, people and management are answered whatever callers do."""


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """Room for callers by the hundred in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def crowd() -> Iterator[Callable[..., list[RawConnection]]]:
    """``crowd(port, count, data)``: connections that have sent ``data``, closed with the test."""
    with contextlib.ExitStack() as stack:

        def gather(port: int, count: int, data: bytes = b"", **options: Any) -> list[RawConnection]:
            connections = []
            for _ in range(count):
                connection = stack.enter_context(RawConnection(port, **options))
                connections.append(connection)
                if data:
                    connection.send(data)
            return connections

        yield gather


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine(slots=2048)


@pytest.fixture
def router(engine: Engine, make_router: Callable[..., Router]) -> Router:
    started: Router = make_router(
        documents(direct_tier(engine)), environ={"ANVIL_MAX_CONCURRENCY": "64"}
    ).start()
    return started


def assert_prompt(router: Router) -> None:
    status = {"action": "status"}
    for method, path, body in (
        ("GET", "/healthz", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
        ("GET", "/v1/decisions", None),
        ("GET", "/admin/login/", None),
        ("GET", "/v1/admin/transition", None),
        ("POST", "/v1/admin/transition", status),
    ):
        began = time.monotonic()
        answer = router.request(method, path, body=body)
        assert answer.status == 200, (path, answer.body)
        assert time.monotonic() - began < PROMPTLY, path


def metrics(router: Router) -> dict[str, float]:
    lines = router.request("GET", "/metrics").body.decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("anvil_"))
    return {name: float(value) for name, _, value in pairs}


def descriptors_of(router: Router) -> int:
    return len(list(Path(f"/proc/{router.worker_pid}/fd").iterdir()))


@pytest.mark.requirement("house-2")
def test_everything_taken_at_once_stops_nobody_but_the_next_stream(
    router: Router, engine: Engine, crowd: Callable[..., list[RawConnection]]
) -> None:
    assert_prompt(router)
    at_rest = descriptors_of(router)
    request = build_request("POST", CHAT, body=chat_body("live.direct", stream=True))
    half_bodies = crowd(router.port, 200, request[:-20])
    half_heads = crowd(router.port, 200, b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthor")
    idle = crowd(router.port, 200)
    engine.fault("stall_after_headers")
    streams = crowd(router.port, 64, request)
    engine.await_stats(stalled=64)

    assert_prompt(router)
    for stream in (True, False):
        began = time.monotonic()
        refused = router.chat("live.direct", stream=stream)
        assert time.monotonic() - began < PROMPTLY
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "server_busy"
    assert engine.stats()["received"] == 64

    engine.clear()
    for connection in streams:
        assert connection.read_response().data[-1] == "[DONE]"
    # Whoever only took its time is served as if nothing had been.
    for connection in half_bodies[:10]:
        connection.send(request[-20:])
        assert connection.read_response().data[-1] == "[DONE]"
    for connection in (*streams, *half_bodies, *half_heads, *idle):
        connection.close()
    await_rest(router)
    eventually(lambda: descriptors_of(router) <= at_rest + 16, timeout=10.0)
    seen = metrics(router)
    assert seen["anvil_relay_streams"] == seen["anvil_front_door_places"] == 0


@pytest.mark.requirement("house-2")
def test_callers_that_read_no_answer_hold_no_thread_of_management(
    router: Router, crowd: Callable[..., list[RawConnection]]
) -> None:
    """Two for each thread: a page is kept for whoever reads it slowly, and the thread goes on."""
    path = "/static/admin/js/vendor/jquery/jquery.js"
    assert len(router.request("GET", path).body) > 200_000
    # Several pages in a row: the kernel itself keeps a few for them.
    readers = crowd(router.port, 48, build_request("GET", path) * 32, receive_buffer=4096)
    eventually(lambda: metrics(router)["anvil_relay_streams"] == 48)

    assert_prompt(router)
    assert metrics(router)['anvil_executor_busy{executor="management"}'] == 1
    # Each gets all of it when it reads after all.
    response = readers[0].read_response()
    assert (response.status, response.ending) == (200, "length")
    assert len(response.body) > 200_000


@pytest.mark.requirement("house-2")
def test_streams_under_an_escaped_path_take_places_and_not_managements_threads(
    router: Router, engine: Engine, crowd: Callable[..., list[RawConnection]]
) -> None:
    engine.fault("stall_after_headers")
    request = build_request("POST", "/v1/chat/completion%73", body=chat_body("live.direct", stream=True))
    crowd(router.port, 30, request)
    engine.await_stats(stalled=30)

    assert_prompt(router)
    seen = metrics(router)
    assert seen['anvil_executor_busy{executor="management"}'] == 1
    assert seen["anvil_front_door_places"] == 30


@pytest.mark.requirement("house-2")
def test_more_connections_than_there_is_room_for_shut_nobody_out(
    engine: Engine, make_router: Callable[..., Router], crowd: Callable[..., list[RawConnection]]
) -> None:
    environ = {"ANVIL_MAX_CONCURRENCY": "8", "GUNICORN_CMD_ARGS": "--worker-connections 100"}
    router = make_router(documents(direct_tier(engine)), environ=environ).start()
    engine.fault("stall_mid_stream")
    streams = crowd(router.port, 4, build_request("POST", CHAT, body=chat_body("live.direct", stream=True)))
    engine.await_stats(stalled=4)
    body = build_request("POST", "/v1/admin/transition", body={"action": "status"})
    for data in (b"", b"GET / HTT", body[:-5]):
        crowd(router.port, 150, data)

    assert_prompt(router)
    engine.clear()
    for connection in streams:
        assert connection.read_response().data[-1] == "[DONE]"


@pytest.mark.requirement("house-2")
def test_without_descriptors_no_stream_ends_and_the_worker_lives(
    router: Router, engine: Engine, crowd: Callable[..., list[RawConnection]]
) -> None:
    engine.change(token=0.02, tokens=100)
    request = build_request("POST", CHAT, body=chat_body("live.direct", stream=True))
    streams = crowd(router.port, 20, request)
    engine.await_stats(running=20)
    worker = router.worker_pid
    limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    # What is open stays open; nothing more can be.
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (descriptors_of(router), limits[1]))
    late = crowd(router.port, 50, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    eventually(lambda: "accepting pauses: no descriptor is free" in router.log)

    for connection in streams:
        assert connection.read_response().data[-1] == "[DONE]"
    resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
    for connection in late:
        assert connection.read_response().status == 200
    assert router.worker_pid == worker
    # Probes had no descriptors either.
    eventually(lambda: router.chat("live.direct", max_tokens=1).status == 200)
    assert router.log.count("accepting pauses") < 5
    await_rest(router)


def memory(router: Router) -> int:
    """Bytes that the worker holds."""
    lines = Path(f"/proc/{router.worker_pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


@pytest.mark.requirement("house-2")
def test_a_reader_of_a_kibibyte_a_second_gets_all_its_bytes_and_delays_nobody(
    router: Router, engine: Engine, crowd: Callable[..., list[RawConnection]]
) -> None:
    request = build_request("POST", CHAT, body=chat_body("live.direct", stream=True))
    assert router.chat("live.direct", stream=True).status == 200
    engine.change(tokens=32_000)
    before = memory(router)
    (slow,) = crowd(router.port, 1, request, receive_buffer=4096)
    eventually(lambda: metrics(router)["anvil_relay_buffered_bytes"] > 200_000)
    head = slow.start_response()
    body = bytearray()
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.1):
            body.extend(slow.receive(at_most=102))

    reader = threading.Thread(target=trickle)
    reader.start()
    engine.change(token=0.01, tokens=150)
    normal = crowd(router.port, 30, request)
    began = time.monotonic()
    for connection in normal:
        assert connection.read_response().data[-1] == "[DONE]"
    took = time.monotonic() - began
    stop.set()
    reader.join(5.0)

    # A stream takes one and a half seconds by its own pace; the machine may be busy.
    assert took < 6.0
    assert metrics(router)["anvil_relay_buffered_bytes"] < 512 * 1024
    assert memory(router) - before < 32 * 1024 * 1024
    assert admission_counts(router) == {"direct": 1}
    assert 100 < len(body) < 100_000
    # What it had read in small bites is the beginning of what it reads at last.
    while not body.endswith(b"\r\n0\r\n\r\n"):
        body += slow.receive()
    assert body.count(b"data: ") == 32_000 + 3
    assert b"data: [DONE]" in body
    assert head.head.get("transfer-encoding") == "chunked"
    await_rest(router)
