"""What the process refuses to start with, and the signals that would make it two."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.harness import Engine, Router, direct_tier, documents, eventually

ONE_LEDGER = "the admission ledger lives in one process"


@pytest.mark.requirement("house-1", "house-10")
@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"GUNICORN_CMD_ARGS": "--workers 3"}, f"workers must be 1: {ONE_LEDGER}"),
        ({"GUNICORN_CMD_ARGS": "--preload"}, f"preload_app must be off: {ONE_LEDGER}"),
        ({"GUNICORN_CMD_ARGS": "--max-requests 100"}, "max_requests must be 0: a recycled worker would cut"),
        ({"GUNICORN_CMD_ARGS": "--certfile cert.pem"}, "TLS is the reverse proxy's"),
        ({"GUNICORN_CMD_ARGS": "--reload"}, "reload must be off"),
        ({"GUNICORN_CMD_ARGS": "--reuse-port"}, "reuse_port must be off"),
        (
            {"GUNICORN_CMD_ARGS": "--worker-class gthread"},
            "worker_class must be anvil_site.worker.AnvilWorker",
        ),
        ({"GUNICORN_CMD_ARGS": "--threads 8"}, "ANVIL_MAX_CONCURRENCY sets them"),
        ({"WEB_CONCURRENCY": "3"}, f"WEB_CONCURRENCY must be 1 or unset: {ONE_LEDGER}"),
        (
            {"GUNICORN_CMD_ARGS": "--worker-connections 4000000000"},
            "descriptors and RLIMIT_NOFILE allows fewer",
        ),
    ],
)
def test_a_start_that_would_break_the_process_is_refused_in_one_line(
    make_router: Callable[..., Router], environ: dict[str, str], message: str
) -> None:
    router = make_router(environ=environ)
    router.start(wait=False)

    assert router.await_exit(timeout=30.0) == 2

    (line,) = [line for line in router.log.splitlines() if "refusing to start" in line]
    assert message in line
    assert "Traceback" not in router.log
    # Nothing was loaded, so nothing was locked or written.
    assert not (router.directory / "data").exists()


@pytest.mark.requirement("house-1")
@pytest.mark.parametrize("config", ["python:anvil_site.gunicorn", "anvil_site/gunicorn.py"])
def test_signals_that_would_fork_a_second_ledger_are_answered_with_a_line(
    engine: Engine, make_router: Callable[..., Router], config: str
) -> None:
    router = make_router(documents(direct_tier(engine)), config=config).start()
    master, worker = router.pid, router.worker_pid

    for name in ("TTIN", "TTOU", "USR2"):
        router.signal(signal.Signals[f"SIG{name}"])
        eventually(lambda name=name: f"SIG{name} is ignored: {ONE_LEDGER}" in router.log)

    assert (router.pid, router.worker_pid) == (master, worker)
    assert router.chat("live.direct").status == 200
    assert router.terminate() == 0


@pytest.mark.requirement("house-2")
def test_the_descriptor_limit_follows_from_the_cap(
    engine: Engine, make_router: Callable[..., Router]
) -> None:
    router = make_router(documents(direct_tier(engine)), environ={"ANVIL_MAX_CONCURRENCY": "600"})
    router.start()

    limits = Path(f"/proc/{router.worker_pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert int(line.split()[3]) >= 2 * 600 + 1024 + 600


@pytest.mark.requirement("house-6")
def test_the_master_keeps_nothing_of_its_workers(engine: Engine, make_router: Callable[..., Router]) -> None:
    """Each worker that was made in the master once left an event descriptor and an epoll there."""
    router = make_router(documents(direct_tier(engine))).start()

    def descriptors() -> list[str]:
        links = [each.readlink().name for each in Path(f"/proc/{router.pid}/fd").iterdir()]
        return [link for link in links if "event" in link]

    assert descriptors() == []


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            {"ANVIL_CONFIG": "config.toml"},
            "ANVIL_CONFIG is refused (router_config_invalid): The router configuration is not valid. "
            "`anvil router check` shows each fault",
        ),
        (
            {"ANVIL_CONFIG": "nowhere.toml"},
            "ANVIL_CONFIG is refused (router_config_invalid): the file can't be read",
        ),
        (
            {"ANVIL_AUTH": "maybe"},
            "Environment variable \"ANVIL_AUTH\" invalid: ['Must be one of: on, off.']",
        ),
        (
            {"DATABASE_URL": "bogus://user:secret@host/name"},
            'Environment variable "DATABASE_URL" invalid: not a database URL',
        ),
        ({"ANVIL_DATA": "config.toml"}, "the data directory ANVIL_DATA can't be used: file exists"),
    ],
)
def test_a_start_that_its_operator_can_mend_ends_in_one_sentence(
    make_router: Callable[..., Router], tmp_path: Path, environ: dict[str, str], sentence: str
) -> None:
    """The sentence stood above a traceback of thirty lines, and again below it."""
    (tmp_path / "config.toml").write_text("[router]\nbad = 1\n")
    here = {name: str(tmp_path / text) if text.endswith(".toml") else text for name, text in environ.items()}
    router = make_router(environ=here)
    router.start(wait=False)

    assert router.await_exit(timeout=30.0) == 3

    lines = router.log.splitlines()
    assert lines[-1].endswith(f"[ERROR] refusing to start: {sentence}")
    assert "Traceback" not in router.log
    assert router.log.count(sentence) == 1
    assert "secret" not in router.log


@pytest.mark.parametrize("name", ["ANVIL_MAX_CONCURRENCY", "ANVIL_GRACEFUL_TIMEOUT"])
def test_a_number_that_is_none_is_refused_before_there_is_a_master(
    make_router: Callable[..., Router], name: str
) -> None:
    router = make_router(environ={name: "many"})
    router.start(wait=False)

    assert router.await_exit(timeout=30.0) == 2
    assert router.log.splitlines() == [f"refusing to start: {name} must be a whole number"]
