"""Power cuts at every point of a change, a full database, and a data directory that nobody may write."""

import base64
import http.client
import os
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.live.harness import (
    Answer,
    Documents,
    Engine,
    Router,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)

pytestmark = pytest.mark.requirement("contract 1 activation", "contract 3 intent", "house 7")

MakeEngine = Callable[..., Engine]
MakeRouter = Callable[..., Router]

TRANSITION = "/v1/admin/transition"
SNAPSHOTS = "/v1/admin/snapshots"
DYING = "python:tests.live.dying"


@pytest.fixture
def engines(make_engine: MakeEngine) -> list[Engine]:
    return [make_engine("engine-a"), make_engine("engine-b")]


def installed(engines: list[Engine], **settings: object) -> Documents:
    return documents(replica_tier(engines, **settings), direct_tier(engines[0]))


def do(router: Router, action: str, tier: str, **more: object) -> Answer:
    body = {"action": action, "tier_id": tier, "confirm": True, "dry_run": False, **more}
    return router.request("POST", TRANSITION, body=body, timeout=30.0)


def is_quiesced(router: Router, tier: str) -> bool:
    (row,) = router.request("GET", f"{TRANSITION}?tier_id={tier}").json()["tiers"]
    state: str = row["state"]
    return state == "quiesced"


def rows(router: Router, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(router.directory / "data" / "anvil.sqlite3")) as connection:
        return connection.execute(query).fetchall()


def killed_at(router: Router, point: str, order: Callable[[], Answer]) -> None:
    """Have the router killed at this point of what ``order`` asks for, and start it again."""
    kill = router.directory / "kill"
    kill.write_text(point)
    with pytest.raises((OSError, http.client.HTTPException)):
        order()
    router.await_exit()
    assert not kill.exists(), f"it never came to {point}"
    router.start()


# A power cut ----------------------------------------------------------------------------------------------

QUIESCE = {
    "before:close": False,
    "after:close": False,
    "before:row": False,
    "after:row": False,
    "after:audit": False,
    "after:store": True,
}
"""Whether the scope is quiesced after the restart: it is from the commit on."""

READMIT = {
    "before:verify": True,
    "after:verify": True,
    "before:no-row": True,
    "after:no-row": True,
    "after:open": False,
    "before:audit": False,
}


def test_killed_at_every_point_of_a_quiesce_and_a_readmit_the_scope_is_one_or_the_other(
    make_router: MakeRouter, engines: list[Engine]
) -> None:
    router = make_router(installed(engines), config=DYING).start()
    for action, points in (("quiesce", QUIESCE), ("readmit", READMIT)):
        for point, closed in points.items():
            if action == "readmit" and not is_quiesced(router, "direct"):
                assert do(router, "quiesce", "direct").status == 200
            killed_at(router, point, lambda action=action: do(router, action, "direct"))  # type: ignore[misc]
            assert is_quiesced(router, "direct") is closed, f"{action} {point}"
            assert router.chat("live.direct").status == (503 if closed else 200), f"{action} {point}"
            assert router.chat("live.chat").status == 200
            stored = rows(router, "SELECT tier_id, member_id FROM admission_admissionintent")
            assert stored == ([("direct", "")] if closed else [])
        # The trail has no entry of a change that is not there.
        entries = rows(router, "SELECT count(*) FROM routing_auditentry WHERE action = 'quiesce'")
        assert entries == [(1,)] if action == "quiesce" else entries[0][0] >= 2


ACTIVATE = {
    "before:pointer": "old",
    "after:pointer": "old",
    "after:audit": "old",
    "before:swap": "new",
    "after:swap": "new",
}


def test_killed_at_every_point_of_an_activation_one_whole_configuration_is_served(
    make_router: MakeRouter, engines: list[Engine]
) -> None:
    router = make_router(installed(engines), config=DYING).start()
    limits = {"old": 32_768, "new": 16_384}
    ids = {}
    for name, limit in limits.items():
        found = installed(engines, context_limit=limit)
        parts = {"config": found.config, "topology": found.topology}
        body = {key: base64.b64encode(data).decode() for key, data in parts.items()}
        ids[name] = router.request("POST", SNAPSHOTS, body=body).json()["id"]

    def activate(name: str) -> Answer:
        body = {"confirm": True, "dry_run": False, "drain_timeout": 5.0}
        return router.request("POST", f"{SNAPSHOTS}/{ids[name]}/activate", body=body, timeout=30.0)

    for point, served in ACTIVATE.items():
        assert activate("old").status == 200
        killed_at(router, point, lambda: activate("new"))
        (card,) = [
            each for each in router.request("GET", "/v1/models").json()["data"] if each["id"] == "live.chat"
        ]
        assert card["context_window"] == limits[served], point
        (active,) = [row for row in router.request("GET", SNAPSHOTS).json()["data"] if row["active"]]
        assert active["id"] == ids[served], point
        assert router.chat("live.chat").status == 200, point
        assert not is_quiesced(router, "chat")


# A full database ------------------------------------------------------------------------------------------


def test_a_full_database_stops_no_request_and_a_quiesce_holds_all_the_same(
    make_router: MakeRouter, engines: list[Engine]
) -> None:
    router = make_router(installed(engines), config=DYING).start()
    # Migrations leave free pages behind.
    rows(router, "VACUUM")
    full = router.directory / "full"
    full.touch()
    answer = do(router, "quiesce", "direct", reason="x" * 128)
    for _ in range(300):
        if answer.status != 200:
            break
        # Its audit entries fill the page that is left.
        answer = do(router, "quiesce", "direct", reason="x" * 128)
    assert (answer.status, answer.json()["error"]["code"]) == (503, "intent_not_persisted")
    assert answer.json()["result"]["state"] == "quiesced"
    assert is_quiesced(router, "direct")
    assert router.chat("live.direct").status == 503
    for _ in range(20):
        assert router.chat("live.chat").status == 200
    for number in range(100):
        made = router.request("POST", "/v1/admin/keys", body={"name": f"key-{number}", "scopes": ["infer"]})
        if made.status != 201:
            break
    assert (made.status, made.json()["error"]["code"]) == (503, "not_persisted")
    metrics = router.request("GET", "/metrics").body.decode()
    assert 'anvil_management_refusals_total{action="quiesce",code="intent_not_persisted"} 1.0' in metrics
    assert "refused action=quiesce code=intent_not_persisted actor=bootstrap through=rest" in router.log
    assert "Traceback" not in router.log

    full.unlink()
    assert do(router, "quiesce", "direct", reason="again").status == 200
    assert do(router, "readmit", "direct").status == 200
    assert router.chat("live.direct").status == 200


# A database that somebody else has locked -----------------------------------------------------------------


def test_a_database_locked_by_another_process_stops_no_request_and_a_quiesce_holds_all_the_same(
    make_router: MakeRouter, engines: list[Engine]
) -> None:
    router = make_router(installed(engines)).start()
    path = router.directory / "data" / "anvil.sqlite3"
    answers: list[Answer] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        order = threading.Thread(target=lambda: answers.append(do(router, "quiesce", "direct")))
        order.start()
        # It is closed at once; what waits for the database is its row.
        eventually(lambda: is_quiesced(router, "direct"))
        assert router.chat("live.direct").status == 503
        for _ in range(20):
            assert router.chat("live.chat").status == 200
        order.join(20.0)
        other.rollback()
    (answer,) = answers
    assert (answer.status, answer.json()["error"]["code"]) == (503, "intent_not_persisted")
    assert router.chat("live.direct").status == 503
    metrics = router.request("GET", "/metrics").body.decode()
    assert 'anvil_management_refusals_total{action="quiesce",code="intent_not_persisted"} 1.0' in metrics
    assert router.log.count("refused action=quiesce code=intent_not_persisted") == 1
    assert do(router, "quiesce", "direct").status == 200
    assert do(router, "readmit", "direct").status == 200
    assert router.chat("live.direct").status == 200
    assert "Traceback" not in router.log


# A data directory that nobody may write -------------------------------------------------------------------


@pytest.fixture
def unprivileged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start routers as a user whom file permissions bind: root's exemption is taken from them."""
    if os.geteuid() != 0:
        return
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("run as root without setpriv (Debian: util-linux)")
    python = tmp_path / "python"
    drop = "--bounding-set=-dac_override,-dac_read_search,-fowner"
    python.write_text(f'#!/bin/sh\nexec {setpriv} {drop} {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))


@contextmanager
def read_only(data: Path) -> Iterator[None]:
    paths = [*data.iterdir(), data]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    for path in paths:
        path.chmod(0o500 if path == data else 0o400)
    try:
        yield
    finally:
        for path in reversed(paths):
            path.chmod(modes[path])


@pytest.mark.usefixtures("unprivileged")
def test_a_data_directory_that_turns_read_only_stops_no_request(
    make_router: MakeRouter, engines: list[Engine]
) -> None:
    router = make_router(installed(engines)).start()
    data = router.directory / "data"
    with read_only(data):
        answer = do(router, "quiesce", "direct")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "intent_not_persisted")
        assert router.chat("live.direct").status == 503
        for _ in range(20):
            assert router.chat("live.chat").status == 200
        assert router.request("GET", "/readyz").status == 200
        metrics = router.request("GET", "/metrics").body.decode()
        assert 'anvil_management_refusals_total{action="quiesce",code="intent_not_persisted"} 1.0' in metrics
    assert do(router, "quiesce", "direct").status == 200
    assert do(router, "readmit", "direct").status == 200
    assert router.log.count("refused action=quiesce code=intent_not_persisted") == 1
    assert "Traceback" not in router.log


@pytest.mark.usefixtures("unprivileged")
def test_a_router_does_not_start_on_a_data_directory_that_it_may_not_write(
    make_router: MakeRouter, engines: list[Engine]
) -> None:
    router = make_router(installed(engines)).start()
    assert router.terminate() == 0
    with read_only(router.directory / "data"):
        router.start(wait=False)
        assert router.await_exit(timeout=60.0) != 0
    router.start()
    assert eventually(lambda: router.chat("live.chat").status == 200)
