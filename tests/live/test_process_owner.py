"""One ledger whatever ends: who owns it after a kill, a reload, or beside a second router."""

import os
import signal
import threading
import time
from collections.abc import Callable
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
    replica_tier,
    request,
)
from tests.live.raw import CHAT, TOKEN, RawConnection

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


class HeldStream:
    """A stream that stands still after its first events, until the engine's faults are cleared."""

    def __init__(self, engine: Engine, connection: RawConnection, alias: str = "live.direct") -> None:
        engine.fault("stall_mid_stream", count=1)
        connection.post(chat_body(alias, stream=True))
        self.response = connection.start_response()
        assert self.response.status == 200
        self._events = connection.events(self.response)
        self.first = next(self._events)

    def rest(self) -> list[str | None]:
        """The data of what is still to come."""
        return [event.data for event in self._events]


def replaced(router: Router, worker: int) -> bool:
    """Whether there is one worker, and another than before."""
    children = router._children()
    return len(children) == 1 and children != [str(worker)]


def ended_by_sigterm(router: Router, worker: int) -> bool:
    """Ask a worker to stop that may still be too young to have heard it; whether it is gone."""
    if str(worker) not in router._children():
        return True
    os.kill(worker, signal.SIGTERM)
    return False


def active_digest(router: Router) -> str:
    digest = router.request("GET", "/v1/router/status").json()["snapshot_sha256"]
    assert isinstance(digest, str)
    return digest


@pytest.fixture
def router(engine: Engine, make_router: Callable[..., Router]) -> Router:
    started: Router = make_router(
        documents(direct_tier(engine)), environ={"ANVIL_GRACEFUL_TIMEOUT": "8"}
    ).start()
    return started


@pytest.mark.requirement("house-1")
def test_after_the_worker_is_killed_its_successor_owns_the_ledger_and_has_the_snapshot(
    router: Router, engine: Engine, connect: Callable[..., RawConnection]
) -> None:
    before, digest = router.worker_pid, active_digest(router)
    stream = HeldStream(engine, connect(router.port))
    os.kill(before, signal.SIGKILL)

    assert "[DONE]" not in stream.rest()
    assert stream.response.ending in ("cut", "reset")
    eventually(lambda: replaced(router, before))
    router.await_ready()
    assert active_digest(router) == digest
    assert router.request("GET", "/v1/router/status").json()["owns_ledger"] is True
    assert router.chat("live.direct").status == 200
    await_rest(router)
    engine.await_stats(running=0, stalled=0)


@pytest.mark.requirement("house-1")
def test_after_a_power_cut_the_next_start_owns_the_ledger_and_has_the_snapshot(router: Router) -> None:
    digest = active_digest(router)
    router.kill()

    router.start()

    assert active_digest(router) == digest
    assert router.chat("live.direct").status == 200


@pytest.mark.requirement("house-1", "house-5", "case-18")
def test_a_worker_whose_master_was_killed_leaves_its_port_and_finishes_its_streams(
    router: Router, engine: Engine, connect: Callable[..., RawConnection]
) -> None:
    digest, worker = active_digest(router), router.worker_pid
    stream = HeldStream(engine, connect(router.port))
    os.kill(router.pid, signal.SIGKILL)
    router.await_exit()
    eventually(lambda: "draining: 1 requests are running" in router.log)

    # The port is free at once; the ledger is not, and nothing is dispatched beside it.
    router.start(wait=False)
    answer = eventually(lambda: try_chat(router.port))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "not_ledger_owner"
    assert engine.stats()["received"] == 1
    assert Path(f"/proc/{worker}").exists()

    engine.clear()
    assert stream.rest()[-1] == "[DONE]"
    router.await_ready()
    assert active_digest(router) == digest
    assert router.chat("live.direct").status == 200
    eventually(lambda: not Path(f"/proc/{worker}").exists())


def try_chat(port: int) -> Any:
    try:
        return request(port, "POST", CHAT, body=chat_body("live.direct"), headers=AUTHORISED)
    except OSError:
        return None


@pytest.fixture
def second(router: Router, make_router: Callable[..., Router]) -> Router:
    """Another router on the same data directory; it serves as soon as it can be asked."""
    other: Router = make_router(directory=router.directory.parent / "second")
    other._environ["ANVIL_DATA"] = str(router.directory / "data")
    other.start(wait=False)
    eventually(lambda: try_chat(other.port))
    return other


@pytest.mark.requirement("house-1")
def test_a_second_router_on_the_same_data_answers_503_and_never_dispatches(
    router: Router, second: Router, engine: Engine
) -> None:
    engine.reset()
    for stream in (True, False):
        answer = second.chat("live.direct", stream=stream)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "not_ledger_owner"

    assert second.request("GET", "/healthz").status == 200
    ready = second.request("GET", "/readyz")
    assert (ready.status, ready.json()["reason"]) == (503, "not_ledger_owner")
    order = {"action": "quiesce", "tier_id": "direct", "confirm": True, "dry_run": False}
    assert second.request("POST", "/v1/admin/transition", body=order).status in (401, 503)
    assert engine.stats()["received"] == 0
    assert router.chat("live.direct").status == 200
    assert admission_counts(router) == {"direct": 0}


@pytest.mark.requirement("house-1")
def test_a_second_router_takes_over_when_the_first_ends(
    router: Router, second: Router, engine: Engine
) -> None:
    digest = active_digest(router)
    assert router.terminate() == 0

    second.await_ready()

    assert active_digest(second) == digest
    assert second.chat("live.direct").status == 200


@pytest.mark.requirement("house-1", "house-5", "case-18", "case-19")
@pytest.mark.parametrize("config", ["python:anvil_site.gunicorn", "anvil_site/gunicorn.py"])
def test_a_reload_lets_new_callers_wait_and_never_passes_a_ceiling(
    engine: Engine,
    make_engine: Callable[..., Engine],
    make_router: Callable[..., Router],
    connect: Callable[..., RawConnection],
    config: str,
) -> None:
    """The successor does not accept before it owns the ledger, so old and new never count apart."""
    other = make_engine("b")
    tier = replica_tier([engine, other], ceilings=2)
    installed = documents(tier, router={"availability_probe_timeout": 4.0})
    router = make_router(installed, environ={"ANVIL_GRACEFUL_TIMEOUT": "20"}, config=config).start()
    old = router.worker_pid
    for each in (engine, other):
        each.fault("stall_mid_stream")
    running = [connect(router.port) for _ in range(4)]
    responses = []
    for connection in running:
        connection.post(chat_body("live.chat", stream=True))
        responses.append(connection.start_response())
    idle = connect(router.port)
    idle.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert idle.read_response().status == 200

    router.signal(signal.SIGHUP)
    eventually(lambda: "draining" in router.log)
    assert idle.await_end() == "cut"
    newcomers = [connect(router.port, timeout=30.0) for _ in range(8)]
    for connection in newcomers:
        connection.post(chat_body("live.chat", stream=True))
    # They wait: nobody accepts for them while the old streams run.
    threading.Event().wait(0.5)
    assert sum(each.stats()["received"] for each in (engine, other)) == 4
    for each in (engine, other):
        each.clear("stall_mid_stream")
        each.change(token=0.02, tokens=20)
        each.clear()

    for connection, response in zip(running, responses, strict=True):
        assert list(connection.events(response))[-1].data == "[DONE]"
    answers = [connection.read_response() for connection in newcomers]
    assert {answer.status for answer in answers} <= {200, 503}
    # Its first probes were done before it accepted: it refuses for want of room alone.
    assert [answer.status for answer in answers].count(200) >= 4
    assert router.worker_pid != old
    for each in (engine, other):
        assert each.stats()["peak_concurrency"] <= 2
    await_rest(router)


@pytest.mark.requirement("house-1")
def test_a_reload_at_rest_is_over_in_a_moment(router: Router) -> None:
    old, digest = router.worker_pid, active_digest(router)
    began = time.monotonic()
    router.signal(signal.SIGHUP)

    eventually(lambda: replaced(router, old), timeout=10.0)
    router.await_ready()

    assert time.monotonic() - began < 10.0
    assert active_digest(router) == digest
    assert router.chat("live.direct").status == 200
    assert router.terminate() == 0


@pytest.mark.requirement("house-1", "house-5")
def test_a_stop_during_a_reload_ends_both_workers(
    router: Router, engine: Engine, connect: Callable[..., RawConnection]
) -> None:
    old = str(router.worker_pid)
    stream = HeldStream(engine, connect(router.port))
    router.signal(signal.SIGHUP)
    eventually(lambda: len(router._children()) == 2)
    (successor,) = (int(pid) for pid in router._children() if pid != old)
    # The master itself waits for the old worker; what it would send comes from here.
    eventually(lambda: ended_by_sigterm(router, successor))

    engine.clear()
    assert stream.rest()[-1] == "[DONE]"
    router.signal(signal.SIGTERM)
    assert router.await_exit() == 0
