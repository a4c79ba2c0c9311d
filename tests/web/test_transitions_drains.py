"""Drains as jobs of the process: whom they wait for, who may wait for them, and what goes on meanwhile."""

import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from routing import api, transitions
from routing.audit import Through
from tests.web.control_support import PATIENCE, Control, Reply, audit_rows, in_thread

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 3 transitions", "C-R011", "C-T008"),
]

FOUR = ("solo", "plain", "healthy", "dynamic")


def begin(control: Control, *scope: str, timeout: float = 60.0) -> transitions.Drain:
    control.do("quiesce", *scope)
    return transitions.drain(control.router, *scope, timeout=timeout, actor="ada", through=Through.CONSOLE)


def test_a_member_waits_for_that_member_alone(control: Control) -> None:
    a, b = control.run_request("chat", "member-a"), control.run_request("chat", "member-b")
    drain = begin(control, "chat", "member-a")
    assert drain.result is None
    a.release()
    assert drain.wait(PATIENCE)
    assert drain.outcome == "drained"
    assert control.router.ledger.snapshot("chat").active_requests == 1
    assert b.release()


def test_a_tier_waits_for_all_of_its_members(control: Control) -> None:
    leases = [control.run_request("chat", "member-a"), control.run_request("chat", "member-b")]
    drain = begin(control, "chat")
    leases[0].release()
    assert not drain.wait(0.0)
    progress = transitions.drain_progress(control.router, "chat")
    assert progress is not None
    assert (progress.leases_left, progress.outcome, progress.timeout) == (1, None, 60.0)
    assert progress.elapsed >= 0.0
    leases[1].release()
    assert drain.wait(PATIENCE)
    ended = transitions.drain_progress(control.router, "chat")
    assert ended is not None
    assert (ended.leases_left, ended.outcome) == (0, "drained")
    assert transitions.drain_progress(control.router, "chat") == ended
    assert transitions.drain_progress(control.router, "chat", "member-a") is None


def test_a_drain_cancels_nothing(control: Control) -> None:
    lease = control.run_request("solo")
    drain = begin(control, "solo", timeout=0.05)
    assert drain.wait(PATIENCE)
    assert drain.outcome == "timed_out"
    assert control.router.ledger.snapshot("solo").active_requests == 1
    assert lease.release()


def test_after_one_ended_the_next_may_begin(control: Control) -> None:
    lease = control.run_request("solo")
    assert begin(control, "solo", timeout=0.05).wait(PATIENCE)
    again = begin(control, "solo")
    lease.release()
    assert again.wait(PATIENCE)
    assert [row[2:4] + row[6:] for row in audit_rows() if row[2] == "drain"] == [
        ("drain", "solo", "timed_out"),
        ("drain", "solo", "drained"),
    ]
    assert {row[:2] for row in audit_rows() if row[2] == "drain"} == {("ada", "console")}


def test_a_timeout_out_of_bounds_starts_nothing(control: Control) -> None:
    control.do("quiesce", "solo")
    for timeout in (0.0, -1.0, 3600.5, float("nan")):
        with pytest.raises(ValueError, match="out of bounds"):
            transitions.drain(control.router, "solo", timeout=timeout, actor="ada", through=Through.CONSOLE)
    assert transitions.drain_progress(control.router, "solo") is None


def test_no_thread_stays_behind(control: Control) -> None:
    assert begin(control, "solo").wait(PATIENCE)
    for thread in threading.enumerate():
        if thread.name == "anvil-drain":
            thread.join(PATIENCE)
            assert not thread.is_alive()


# Requests that wait -------------------------------------------------------------------------------------


def post_drain(control: Control, tier_id: str, timeout: float = 60.0) -> Reply:
    try:
        return control.do("drain", tier_id, timeout=timeout)
    finally:
        connection.close()


def test_four_long_drains_do_not_stop_an_emergency_quiesce(control: Control) -> None:
    leases = [control.run_request(tier_id) for tier_id in FOUR]
    for tier_id in FOUR:
        control.do("quiesce", tier_id)
    with ThreadPoolExecutor(4) as pool:
        drains: list[Future[Reply]] = [pool.submit(post_drain, control, tier_id) for tier_id in FOUR]
        try:
            for tier_id in FOUR:
                _await_drain(control, tier_id)
            emergency = control.do("quiesce", "chat", "member-a", reason="emergency")
            assert emergency.status == 200
            assert emergency.json["result"]["state"] == "quiesced"
        finally:
            for lease in leases:
                lease.release()
        for drain in drains:
            reply = drain.result(PATIENCE)
            assert (reply.status, reply.json["result"]["drained"]) == (200, True)


def _await_drain(control: Control, tier_id: str) -> None:
    """Until the drain that a request in another thread asked for has begun, and the request waits for it."""
    deadline = threading.Event()
    for _ in range(1000):
        waiting = control.router.operations.waiting
        if transitions.drain_progress(control.router, tier_id) is not None and waiting._value < 8:
            return
        deadline.wait(0.01)
    raise AssertionError("the drain has not begun")


def test_the_ninth_request_does_not_wait_and_polls(control: Control) -> None:
    control.run_request("solo")
    control.do("quiesce", "solo", reason="kernel-upgrade")
    for _ in range(8):
        assert control.router.operations.waiting.acquire(blocking=False)
    reply = control.do("drain", "solo")
    assert reply.status == 202
    assert reply.json == {
        "applied": True,
        "action": "drain",
        "tier_id": "solo",
        "member_id": None,
        "result": None,
    }
    (row,) = control.request("GET", "/v1/admin/transition?tier_id=solo").json["tiers"]
    assert (row["draining"], row["active_requests"]) == (True, 1)
    control.end_requests()
    drain = control.router.operations.drains.latest("solo", None)
    assert drain is not None
    assert drain.wait(PATIENCE)
    (row,) = control.request("GET", "/v1/admin/transition?tier_id=solo").json["tiers"]
    assert (row["state"], row["draining"], row["active_requests"]) == ("quiesced", False, 0)


def test_a_caller_that_leaves_does_not_stop_its_drain(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "WAIT_TICK", 0.01)
    lease = control.run_request("solo")
    control.do("quiesce", "solo")
    caller, server = socket.socketpair()

    def ask() -> Reply:
        body: dict[str, Any] = {"action": "drain", "tier_id": "solo"}
        return control.request("POST", "/v1/admin/transition", body, **{"gunicorn.socket": server})

    with server, in_thread(ask) as reply:
        _await_drain(control, "solo")
        caller.close()
        assert reply().status == 202  # to nobody
    drain = control.router.operations.drains.latest("solo", None)
    assert drain is not None
    assert drain.result is None
    assert control.router.operations.waiting._value == 8
    lease.release()
    assert drain.wait(PATIENCE)
    assert drain.outcome == "drained"


def test_a_process_that_begins_to_stop_lets_waiting_requests_go(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "WAIT_TICK", 0.01)
    control.run_request("solo")
    control.do("quiesce", "solo")
    with in_thread(lambda: post_drain(control, "solo")) as reply:
        _await_drain(control, "solo")
        control.router.draining = True
        assert reply().status == 202
    control.end_requests()


def test_places_come_back_after_refusals_and_faults(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a fault of ours")

    for _ in range(6):
        assert control.do("quiesce", "nowhere").status == 404
    monkeypatch.setattr(transitions, "quiesce", fail)
    for _ in range(6):
        with pytest.raises(RuntimeError, match="a fault of ours"):
            control.do("quiesce", "solo")
    assert control.router.operations.at_work._value == 4
