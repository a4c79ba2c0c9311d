"""The control plane on PostgreSQL: every web test again, migrations both ways, a server that restarts."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.live.harness import (
    Documents,
    Engine,
    Router,
    await_rest,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.postgres.server import PostgresServer, running_server

pytestmark = pytest.mark.requirement("house 7")

ROOT = Path(__file__).resolve().parents[2]
WEB: Final = "tests/web"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as started:
        yield started


def on(url: str, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "DATABASE_URL": url, "ANVIL_DATA": str(tmp_path / "data")}


def test_the_web_tests_pass_on_postgresql(server: PostgresServer, tmp_path: Path) -> None:
    """All of them, or those that ``ANVIL_POSTGRES_TESTS`` names, to look for one that fails."""
    selection = os.environ.get("ANVIL_POSTGRES_TESTS", WEB).split()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selection],
        cwd=ROOT,
        env=on(server.create_database("web"), tmp_path),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    if selection == [WEB]:
        # None was left out: the last line counts nothing but what passed.
        assert re.search(r"^\d{3,} passed in ", done.stdout, re.MULTILINE), done.stdout[-500:]


def test_migrations_go_forwards_backwards_and_forwards_again(server: PostgresServer, tmp_path: Path) -> None:
    environ = on(server.create_database("migrations"), tmp_path)

    def manage(*words: str) -> str:
        command = [sys.executable, "manage.py", *words]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    manage("migrate", "-v", "0")
    for app in ("telemetry", "routing", "admission"):
        manage("migrate", app, "zero", "-v", "0")
    assert "[X]" not in manage("showmigrations", "telemetry", "routing", "admission")
    manage("migrate", "-v", "0")
    assert "[ ]" not in manage("showmigrations")


def test_a_restart_of_the_server_under_load_costs_no_request_and_no_intent(
    server: PostgresServer,
    make_engine: Callable[..., Engine],
    make_router: Callable[..., Router],
) -> None:
    """Inference knows no database. A quiesce meanwhile is answered 503, holds, and can be repeated."""
    engines = [make_engine("engine-a"), make_engine("engine-b")]
    installed: Documents = documents(replica_tier(engines), direct_tier(engines[0]))
    router = make_router(installed, environ={"DATABASE_URL": server.create_database("live")}).start()
    statuses: list[int] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            statuses.append(router.chat("live.chat").status)

    def quiesce() -> tuple[int, str | None]:
        body = {"action": "quiesce", "tier_id": "direct", "confirm": True, "dry_run": False}
        answer = router.request("POST", "/v1/admin/transition", body=body, timeout=30.0)
        return answer.status, answer.json().get("error", {}).get("code")

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(statuses) > 50, timeout=20.0)
        server.stop(immediately=True)
        assert quiesce() == (503, "intent_not_persisted")
        assert router.chat("live.direct").status == 503
        before = len(statuses)
        eventually(lambda: len(statuses) > before + 50, timeout=20.0)
        metrics = router.request("GET", "/metrics").body.decode()
        counted = 'anvil_management_refusals_total{action="quiesce",code="intent_not_persisted"} 1.0'
        assert counted in metrics
        server.start()
        assert eventually(lambda: quiesce() == (200, None), timeout=20.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20.0)
    assert set(statuses) == {200}
    await_rest(router)
    router.kill()
    router.start()
    assert router.chat("live.direct").status == 503
    assert router.log.count("refused action=quiesce code=intent_not_persisted") == 1
