"""The settings of the process: what would make a second ledger, or break its worker, is refused."""

import logging
import os
import resource
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.errors import HaltServer

from anvil_site import gunicorn as process
from anvil_site import reloads


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEB_CONCURRENCY", "ANVIL_AUTH"):
        monkeypatch.delenv(name, raising=False)


def config(**changes: Any) -> Config:
    """gunicorn's configuration as this file sets it, and what the command line then changed."""
    cfg = Config()
    for name, value in [*vars(process).items(), *changes.items()]:
        if name in cfg.settings:
            cfg.set(name, value)
    return cfg


def arbiter(**changes: Any) -> Any:
    return SimpleNamespace(cfg=config(**changes))


def test_our_own_settings_are_accepted() -> None:
    assert process.refusals(config()) == []


ONE_LEDGER = "the admission ledger lives in one process"


@pytest.mark.requirement("house-1", "house-10")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 3}, f"workers must be 1: {ONE_LEDGER}"),
        ({"workers": 0}, f"workers must be 1: {ONE_LEDGER}"),
        ({"preload_app": True}, f"preload_app must be off: {ONE_LEDGER}"),
        ({"max_requests": 10}, "max_requests must be 0: a recycled worker would cut its streams"),
        ({"reload": True}, "reload must be off: a reload would cut every stream"),
        ({"control_socket_disable": False}, "the control socket must be off: it can add workers"),
        ({"certfile": "/a/cert.pem"}, "certfile and keyfile are refused: TLS is the reverse proxy's"),
        ({"keyfile": "/a/key.pem"}, "certfile and keyfile are refused: TLS is the reverse proxy's"),
        ({"http_protocols": "h1,h2"}, "HTTP/2 must be off"),
        ({"reuse_port": True}, "reuse_port must be off: a second process would take connections unseen"),
        ({"worker_class": "gthread"}, "worker_class must be anvil_site.worker.AnvilWorker"),
        ({"threads": 7}, "threads must be left alone: ANVIL_MAX_CONCURRENCY sets them"),
        ({"proxy_protocol": "v1"}, "proxy_protocol must be off: the worker reads heads itself"),
        ({"protocol": "uwsgi"}, "protocol must be http: the worker reads heads itself"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    assert process.refusals(config(**changes)) == [message]


@pytest.mark.requirement("house-1")
@pytest.mark.parametrize(("value", "refused"), [("1", False), ("3", True), ("0", True), ("many", True)])
def test_web_concurrency_must_not_ask_for_more(
    monkeypatch: pytest.MonkeyPatch, value: str, refused: bool
) -> None:
    cfg = config()
    monkeypatch.setenv("WEB_CONCURRENCY", value)

    assert process.refusals(cfg) == [f"WEB_CONCURRENCY must be 1 or unset: {ONE_LEDGER}"] * refused


@pytest.mark.requirement("contract 2 authentication")
@pytest.mark.parametrize("auth", ["on", "off"])
def test_without_authentication_no_socket_is_taken_over(monkeypatch: pytest.MonkeyPatch, auth: str) -> None:
    monkeypatch.setenv("ANVIL_AUTH", auth)
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    refused = "ANVIL_AUTH=off is refused under socket activation: the address is not ours to check"
    assert process.refusals(config()) == [refused] * (auth == "off")
    monkeypatch.setenv("LISTEN_PID", "1")
    assert process.refusals(config()) == []


def test_every_fault_is_told_at_once() -> None:
    assert len(process.refusals(config(workers=3, preload_app=True, certfile="/a"))) == 3


@pytest.mark.requirement("house-1")
def test_a_start_with_unsafe_settings_ends_before_anything_is_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(SystemExit) as end:
        process.nworkers_changed(arbiter(workers=3), 3, None)

    assert end.value.code == process.REFUSED_TO_START == 2
    assert caplog.messages == [f"refusing to start: workers must be 1: {ONE_LEDGER}"]


def test_a_reload_with_unsafe_settings_halts_in_order() -> None:
    with pytest.raises(HaltServer) as end:
        process.nworkers_changed(arbiter(preload_app=True), 1, 1)

    assert end.value.exit_status == 2
    assert end.value.reason == f"refusing to start: preload_app must be off: {ONE_LEDGER}"


def test_safe_settings_pass() -> None:
    process.nworkers_changed(arbiter(), 1, None)
    process.nworkers_changed(arbiter(), 1, 1)


# Descriptors


def test_descriptors_follow_from_the_cap() -> None:
    cfg = config()
    assert cfg.worker_connections == 2 * cfg.threads + 1024
    assert process.descriptors_needed(cfg) == cfg.worker_connections + cfg.threads + 512


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """RLIMIT_NOFILE as a value in the test's hands."""
    state = {"now": (1024, 4096)}

    def change(kind: int, limit: tuple[int, int]) -> None:
        state["now"] = limit

    monkeypatch.setattr(resource, "getrlimit", lambda kind: state["now"])
    monkeypatch.setattr(resource, "setrlimit", change)
    return state


@pytest.mark.requirement("house-2")
def test_the_soft_limit_is_raised_as_far_as_the_cap_needs(limits: dict[str, tuple[int, int]]) -> None:
    process.nworkers_changed(arbiter(), 1, None)

    assert limits["now"] == (process.descriptors_needed(config()), 4096)


@pytest.mark.requirement("house-2")
def test_a_cap_that_the_limit_cannot_carry_is_refused(
    limits: dict[str, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    limits["now"] = (1024, 2000)
    with pytest.raises(SystemExit):
        process.nworkers_changed(arbiter(), 1, None)

    needed = process.descriptors_needed(config())
    assert caplog.messages == [
        f"refusing to start: ANVIL_MAX_CONCURRENCY needs {needed} descriptors and RLIMIT_NOFILE allows fewer"
    ]
    assert limits["now"] == (1024, 2000)


def test_a_limit_that_suffices_is_left_alone(limits: dict[str, tuple[int, int]]) -> None:
    for now in ((1 << 20, 1 << 20), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)):
        limits["now"] = now
        process.nworkers_changed(arbiter(), 1, None)
        assert limits["now"] == now


# Signals and reloads


@pytest.mark.requirement("house-1")
@pytest.mark.parametrize("name", ["ttin", "ttou", "usr2"])
def test_signals_that_would_fork_are_answered_with_a_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = arbiter()
    process.on_starting(server)

    with caplog.at_level(logging.WARNING):
        getattr(server, f"handle_{name}")()

    assert caplog.messages == [f"SIG{name.upper()} is ignored: {ONE_LEDGER}"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.requirement("house-1")
def test_a_forked_process_sees_the_reloads_of_its_master() -> None:
    before = reloads.generation()
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:  # the worker: waits for the master's word, then tells what it sees
        os.read(ours, 1)
        os._exit(reloads.generation() - before)
    process.on_reload(arbiter())
    process.on_reload(arbiter())
    os.write(theirs, b"!")
    _, status = os.waitpid(pid, 0)
    os.close(ours)
    os.close(theirs)

    assert os.waitstatus_to_exitcode(status) == 2
    assert reloads.generation() == before + 2


@pytest.mark.requirement("house-5")
def test_a_worker_without_handlers_yet_is_ended_by_a_signal_to_stop() -> None:
    """It has its master's, which only make a note for a master that it is not."""
    numbers = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)
    before = {number: signal.signal(number, lambda *given: None) for number in numbers}
    try:
        process.post_fork(arbiter(), SimpleNamespace())  # type: ignore[arg-type]
        assert {signal.getsignal(number) for number in numbers} == {signal.SIG_DFL}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
