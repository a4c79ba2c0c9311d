"""The orderly end: two phases, nothing cut without a word, exit 0."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.live.harness import (
    Engine,
    Router,
    chat_body,
    direct_tier,
    documents,
    eventually,
)
from tests.live.raw import Event, RawConnection, Response


class Stream:
    """A stream whose first event has been read."""

    def __init__(self, connection: RawConnection, alias: str = "live.direct", **fields: Any) -> None:
        self.connection = connection
        connection.post(chat_body(alias, stream=True, **fields))
        self.response: Response = connection.start_response()
        assert self.response.status == 200
        self._events = connection.events(self.response)
        self.events: list[Event] = [next(self._events)]

    def read_on(self) -> str | None:
        """Read to the end; the data of the last event."""
        self.events.extend(self._events)
        return self.events[-1].data


def open_streams(connect: Callable[..., RawConnection], router: Router, count: int) -> list[Stream]:
    return [Stream(connect(router.port)) for _ in range(count)]


@pytest.fixture
def start(engine: Engine, make_router: Callable[..., Router]) -> Callable[..., Router]:
    def begin(grace: int) -> Router:
        router: Router = make_router(
            documents(direct_tier(engine)), environ={"ANVIL_GRACEFUL_TIMEOUT": str(grace)}
        )
        return router.start()

    return begin


def read_all(streams: Sequence[Stream]) -> list[str | None]:
    """Read every stream to its end, all at once."""
    lasts: list[str | None] = [None] * len(streams)

    def read(index: int) -> None:
        lasts[index] = streams[index].read_on()

    threads = [threading.Thread(target=read, args=(index,)) for index in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive()
    return lasts


@pytest.mark.requirement("house-5", "case-18")
def test_sigterm_refuses_new_work_lets_streams_finish_and_ends_the_rest_with_a_word(
    engine: Engine, start: Callable[..., Router], connect: Callable[..., RawConnection]
) -> None:
    router = start(grace=6)
    engine.change(token=0.1, tokens=15)
    finishing = open_streams(connect, router, 25)
    engine.fault("stall_mid_stream")
    stalling = open_streams(connect, router, 25)
    engine.fault("stall_before_headers")
    engine.clear("stall_mid_stream")
    whole, silent = connect(router.port), connect(router.port)
    whole.post(chat_body("live.direct"))
    silent.post(chat_body("live.direct", stream=True))
    engine.await_stats(stalled=27)
    kept = connect(router.port)
    kept.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert kept.read_response().status == 200

    began = time.monotonic()
    router.signal(signal.SIGTERM)
    ready = eventually(lambda: not_ready(router))
    assert ready.json() == {"status": "not_ready", "reason": "draining"}
    assert router.request("GET", "/healthz").status == 200
    assert kept.await_end() == "cut"
    for stream in (True, False):
        asked = time.monotonic()
        answer = router.chat("live.direct", stream=stream)
        assert time.monotonic() - asked < 1.0
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.headers["connection"] == "close"
        assert answer.json()["error"]["code"] == "server_draining"
    status = router.request("GET", "/v1/admin/transition").json()
    assert status["tiers"][0]["active_requests"] > 0
    assert engine.stats()["received"] == 52

    assert read_all(finishing) == ["[DONE]"] * 25
    assert time.monotonic() - began < 6.0
    for last in read_all(stalling):
        assert last is not None
        assert '"code":"server_stopping"' in last
    for stream in stalling:
        assert stream.response.ending == "chunked"
        assert all(event.data != "[DONE]" for event in stream.events)
    for connection in (whole, silent):
        answer = connection.read_response()
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "server_stopping"
    # They were left alone until three seconds before the end.
    assert time.monotonic() - began >= 3.0
    assert router.await_exit(timeout=10.0) == 0
    engine.await_stats(running=0, stalled=0)


def not_ready(router: Router) -> Any:
    answer = router.request("GET", "/readyz")
    return answer if answer.status == 503 else None


@pytest.mark.requirement("house-5")
def test_sigterm_at_rest_ends_at_once(start: Callable[..., Router]) -> None:
    router = start(grace=30)
    began = time.monotonic()

    assert router.terminate(timeout=15.0) == 0
    assert time.monotonic() - began < 10.0


@pytest.mark.requirement("house-5")
def test_the_process_ends_as_soon_as_its_last_stream_does(
    engine: Engine, start: Callable[..., Router], connect: Callable[..., RawConnection]
) -> None:
    router = start(grace=60)
    engine.fault("stall_mid_stream")
    (stream,) = open_streams(connect, router, 1)
    router.signal(signal.SIGTERM)
    eventually(lambda: not_ready(router))
    engine.clear()

    assert stream.read_on() == "[DONE]"
    assert router.await_exit(timeout=15.0) == 0


@pytest.mark.requirement("house-5")
def test_a_waiting_request_ends_with_the_process(
    engine: Engine, make_router: Callable[..., Router], connect: Callable[..., RawConnection]
) -> None:
    """A direct tier's queue may be waited in for a minute: not by a process that ends in four seconds."""
    tier = direct_tier(engine, max_concurrency=1, timeout=60.0)
    router = make_router(documents(tier), environ={"ANVIL_GRACEFUL_TIMEOUT": "4"}).start()
    engine.fault("stall_mid_stream")
    (stream,) = open_streams(connect, router, 1)
    waiting = connect(router.port)
    waiting.post(chat_body("live.direct"))
    eventually(lambda: metric(router, "anvil_front_door_places") == 2)

    began = time.monotonic()
    router.signal(signal.SIGTERM)

    assert waiting.read_response().status == 503
    assert '"code":"server_stopping"' in (stream.read_on() or "")
    assert router.await_exit(timeout=10.0) == 0
    assert time.monotonic() - began < 4.0
    assert engine.stats()["received"] == 1


def metric(router: Router, name: str) -> float:
    text = router.request("GET", "/metrics").body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


@pytest.mark.requirement("house-5")
def test_a_caller_that_does_not_read_does_not_hold_the_end_up(
    engine: Engine, start: Callable[..., Router], connect: Callable[..., RawConnection]
) -> None:
    router = start(grace=4)
    engine.change(tokens=200_000)
    deaf = connect(router.port, receive_buffer=4096)
    deaf.post(chat_body("live.direct", stream=True))
    eventually(lambda: metric(router, "anvil_relay_buffered_bytes") > 100_000)
    began = time.monotonic()
    router.signal(signal.SIGTERM)

    assert router.await_exit(timeout=10.0) == 0
    assert time.monotonic() - began < 6.0
    assert "was sent SIGKILL" not in router.log


@pytest.mark.requirement("house-5")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_an_interrupt_ends_what_runs_with_a_word_and_leaves(
    engine: Engine,
    start: Callable[..., Router],
    connect: Callable[..., RawConnection],
    number: signal.Signals,
) -> None:
    router = start(grace=30)
    engine.fault("stall_mid_stream")
    (stream,) = open_streams(connect, router, 1)
    engine.fault("stall_before_headers")
    engine.clear("stall_mid_stream")
    whole = connect(router.port)
    whole.post(chat_body("live.direct"))
    engine.await_stats(stalled=2)
    began = time.monotonic()
    router.signal(number)

    assert '"code":"server_stopping"' in (stream.read_on() or "")
    assert router.await_exit(timeout=20.0) == 0
    assert time.monotonic() - began < 10.0
