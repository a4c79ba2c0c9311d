"""The decision table behind a real router: what is written, and what a locked database costs."""

import contextlib
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.harness import Engine, Router, direct_tier, documents, eventually, replica_tier

ROUNDS = 3
BURST = 60


@pytest.fixture
def router(make_engine: Callable[..., Engine], make_router: Callable[..., Router]) -> Router:
    members = [make_engine("member-a"), make_engine("member-b")]
    started: Router = make_router(
        documents(replica_tier(members, ceilings=4), direct_tier(make_engine("direct")))
    ).start()
    return started


def database(router: Router) -> Path:
    return router.directory / "data" / "anvil.sqlite3"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else can write meanwhile."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.rollback()
        connection.close()


def rows(router: Router) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(database(router))) as connection:
        return connection.execute(
            "SELECT route, requested_tier, outcome, reason, replica_member_id, freshness"
            " FROM telemetry_decisionentry ORDER BY id"
        ).fetchall()


def written(router: Router, word: str) -> int:
    name = f'anvil_writer_entries_{word}_total{{writer="table"}} '
    text = router.request("GET", "/metrics").body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return int(float(line.removeprefix(name)))


def test_decisions_arrive_in_the_table(router: Router) -> None:
    for alias in ("live.chat", "live.direct"):
        assert router.chat(alias).status == 200
    assert router.chat("made-up").status == 404
    eventually(lambda: len(rows(router)) == 2, timeout=10.0)
    chat, direct = rows(router)
    assert chat[:5] == ("live.chat", "chat", "served", "served", "member-a")
    assert chat[5] in ("fresh", "unknown")
    assert direct == ("live.direct", "direct", "served", "served", "", "")


@pytest.mark.requirement("C-R012")
def test_a_locked_database_slows_no_request_and_costs_counted_entries(router: Router) -> None:
    """Rounds without and with the lock alternate in one run, so that a busy machine slows both alike."""

    def burst() -> float:
        began = time.perf_counter()
        for _ in range(BURST):
            assert router.chat("live.direct").status == 200
        return time.perf_counter() - began

    burst()
    free, held = [], []
    for number in range(ROUNDS):
        free.append(burst())
        with locked(database(router)):
            held.append(burst())
            if number == ROUNDS - 1:
                # SQLite gives up after five seconds; then the batch is lost and counted.
                eventually(lambda: written(router, "failed") > 0, timeout=20.0, interval=0.1)
    assert statistics.median(held) < statistics.median(free) * 1.5
    assert router.chat("live.direct").status == 200
    total = BURST * (2 * ROUNDS + 1) + 1

    def settled() -> bool:
        counts = {word: written(router, word) for word in ("written", "failed", "dropped")}
        assert sum(counts.values()) == total, counts
        assert len(rows(router)) == counts["written"]
        return True

    eventually(settled, timeout=15.0, interval=0.1)
    assert router.log.count("cannot write: entries are lost until it can") == 1
    assert router.log.count("writes again, ") == 1
