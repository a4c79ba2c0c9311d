"""The wall clock jumps by hours, forwards and backwards, while everything goes on: only what names a moment
follows it. Every wait, age and deadline is on the monotonic clock."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from tests.live.harness import (
    ROOT,
    Answer,
    Engine,
    Repeating,
    Router,
    await_rest,
    chat_body,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.live.raw import RawConnection

pytestmark = pytest.mark.requirement("contract 3", "contract 4", "house 3")

JUMPS: Final = (5 * 3600, -7 * 3600, 0)
"""Seconds between the router's wall clock and the machine's, one after the other."""

TRANSITION: Final = "/v1/admin/transition"
BRIEF: Final = 4.0
"""Seconds of an upstream's silence that one of the tiers allows."""

SOURCE: Final = Path(__file__).with_name("wall_clock.c")
PASSWORD: Final = "a-password-of-tests"


class WallClock:
    """The wall clock of the processes that are started with ``environ``; their monotonic clock is real."""

    def __init__(self, directory: Path, compiler: str) -> None:
        library = directory / "wall_clock.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
        subprocess.run([*command, str(SOURCE)], check=True, timeout=60)
        self._file = directory / "wall-clock"
        self._file.write_bytes(bytes(8))
        self.offset = 0
        self.environ = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(self._file)}

    def jump(self, offset: int) -> None:
        """Be ``offset`` seconds ahead of the machine's clock from now on."""
        with self._file.open("r+b") as file:
            file.write(offset.to_bytes(8, sys.byteorder, signed=True))
        self.offset = offset

    def now(self) -> float:
        return time.time() + self.offset


@pytest.fixture
def wall(tmp_path: Path) -> WallClock:
    compiler = shutil.which("cc")
    if compiler is None:
        assert os.environ.get("CI") != "true", "a C compiler is missing: apt-get install gcc libc6-dev"
        pytest.skip("no C compiler is installed (Debian: gcc libc6-dev)")
    return WallClock(tmp_path, compiler)


@pytest.fixture
def engines(make_engine: Callable[..., Engine]) -> list[Engine]:
    return [make_engine("engine-a"), make_engine("engine-b")]


@pytest.fixture
def router(wall: WallClock, make_router: Callable[..., Router], engines: list[Engine]) -> Router:
    tiers = (
        replica_tier(engines, ceilings=4),
        direct_tier(engines[0]),
        direct_tier(engines[1], tier_id="brief", alias="live.brief", first_byte_timeout=BRIEF),
    )
    return make_router(
        documents(*tiers, server={"decision_log_path": "decisions.jsonl"}), environ=wall.environ
    ).start()


class Load(Repeating):
    """Requests one after another until it is left, and what became of them."""

    def __init__(self, router: Router, alias: str) -> None:
        super().__init__(2, patience=20.0)
        self._router = router
        self._alias = alias
        self.seen: list[int | str] = []

    def turn(self) -> None:
        try:
            self.seen.append(self._router.chat(self._alias).status)
        except OSError as error:
            self.seen.append(type(error).__name__)

    def await_more(self, count: int = 20) -> None:
        wanted = len(self.seen) + count
        eventually(lambda: len(self.seen) >= wanted, timeout=20.0)


@pytest.fixture
def person(router: Router) -> Iterator[requests.Session]:
    """Somebody who is logged in."""
    code = (
        f"from django.contrib.auth.models import User; User.objects.create_superuser('ada', '', {PASSWORD!r})"
    )
    made = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    subprocess.run(made, cwd=ROOT, env=router._environ, check=True, timeout=60, stdin=subprocess.DEVNULL)
    with requests.Session() as session:
        session.trust_env = False
        page = session.get(f"{router.url}/admin/login/", timeout=10)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert token is not None
        form = {"csrfmiddlewaretoken": token[1], "username": "ada", "password": PASSWORD, "next": "/fleet/"}
        assert session.post(f"{router.url}/admin/login/", data=form, timeout=10).url == f"{router.url}/fleet/"
        yield session


def do(router: Router, action: str, tier: str, **more: object) -> Answer:
    body = {"action": action, "tier_id": tier, "confirm": True, "dry_run": False, **more}
    return router.request("POST", TRANSITION, body=body, timeout=30.0)


def rows(router: Router) -> Any:
    return router.request("GET", TRANSITION).json()["tiers"]


def probed(router: Router) -> list[Any]:
    """The health of what is probed: tiers that are not quiesced."""
    found = router.request("GET", "/v1/health/tiers").json()["tiers"]
    return [row for row in found if row["id"] != "direct"]


def log_of_decisions(router: Router) -> list[dict[str, Any]]:
    """Every decision that is written down, with its time, oldest first. Raises AssertionError without any."""
    path = router.directory / "data" / "decisions.jsonl"
    written, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")
    assert written
    return [json.loads(line) for line in written.splitlines()]


def seconds_off(text: str, wall: WallClock) -> float:
    return abs(datetime.datetime.fromisoformat(text).timestamp() - wall.now())


def hold(connect: Callable[..., RawConnection], router: Router, engine: Engine, alias: str) -> Iterator[Any]:
    """A stream that stands still after its first event, until the engine's faults are cleared."""
    engine.fault("stall_mid_stream", count=1)
    connection = connect(router.port, timeout=30.0)
    connection.post(chat_body(alias, stream=True))
    events = connection.events(connection.start_response())
    next(events)
    return events


def begin_drain(
    connect: Callable[..., RawConnection], router: Router, tier: str, **more: object
) -> RawConnection:
    """Quiesce and drain: the connection on which the drain's end will be told."""
    assert do(router, "quiesce", tier).status == 200
    asker = connect(router.port, timeout=30.0)
    asker.post({"action": "drain", "tier_id": tier, **more}, path=TRANSITION)
    eventually(lambda: any(row["draining"] for row in rows(router)))
    return asker


def busiest(person: requests.Session, router: Router) -> float:
    """Requests a second of the busiest tier, as the fleet page shows them beside five sparklines."""
    page = person.get(f"{router.url}/fleet/live", timeout=10, allow_redirects=False)
    assert page.status_code == 200
    assert page.text.count('<svg class="sparkline"') == 5
    return max(map(float, re.findall(r"<dt>Requests</dt><dd>([0-9.]+)/s</dd>", page.text)))


def gauges(router: Router, name: str) -> list[float]:
    page = router.request("GET", "/metrics").body.decode()
    return [float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)]


def test_a_wall_clock_that_jumps_by_hours_stops_nothing_and_loses_nothing(
    wall: WallClock,
    router: Router,
    engines: list[Engine],
    connect: Callable[..., RawConnection],
    person: requests.Session,
) -> None:
    worker = router.worker_pid
    events = hold(connect, router, engines[0], "live.direct")
    asker = begin_drain(connect, router, "direct", timeout=600.0)

    with Load(router, "live.chat") as load:
        for number, offset in enumerate(JUMPS, start=1):
            load.await_more()
            wall.jump(offset)
            load.await_more()
            eventually(lambda number=number: gauges(router, "anvil_wall_clock_jumps_total") == [number])  # type: ignore[misc]

            # Moments are the new clock's, probes go on, and what is an age or a duration knows no jump.
            eventually(lambda: seconds_off(log_of_decisions(router)[-1]["timestamp"], wall) < 5)
            eventually(lambda: all(seconds_off(row["last_check"], wall) < 5 for row in probed(router)))
            assert {row["status"] for row in probed(router)} == {"up"}
            assert 0 <= router.request("GET", "/v1/router/status").json()["uptime_seconds"] < 120
            assert router.request("GET", "/readyz").status == 200
            (direct,) = [row for row in rows(router) if row["tier_id"] == "direct"]
            assert (direct["active_requests"], direct["draining"]) == (1, True)
            eventually(lambda: 1.0 < busiest(person, router) < 5000.0)

    assert set(load.seen) == {200}
    engines[0].clear()
    assert [event.data for event in events][-1] == "[DONE]"
    result = asker.read_response().json()["result"]
    assert (result["drained"], result["timed_out"]) == (True, False)
    await_rest(router)
    eventually(lambda: len(log_of_decisions(router)) == len(load.seen) + 1)
    records = log_of_decisions(router)
    assert all(0 <= record["latency_ms"] < 120_000 for record in records)
    assert max(gauges(router, "anvil_request_seconds_sum")) < 120 * len(records)
    assert set(gauges(router, "anvil_member_flaps_total")) == {0.0}
    assert router.worker_pid == worker
    told = re.findall(r"the wall clock jumped by ([+-]\d+) s", router.log)
    assert told == ["+18000", "-43200", "+25200"]
    assert "TIMEOUT" not in router.log
    assert "has not turned" not in router.log


@pytest.mark.parametrize(
    "offset", [pytest.param(JUMPS[0], id="forwards"), pytest.param(JUMPS[1], id="backwards")]
)
def test_a_time_out_and_the_end_of_a_drain_come_when_they_should(
    wall: WallClock,
    router: Router,
    engines: list[Engine],
    connect: Callable[..., RawConnection],
    offset: int,
) -> None:
    """Neither at once, because the deadline seems long past, nor hours later."""
    engines[1].fault("stall_before_headers")
    caller = connect(router.port, timeout=30.0)
    sent = time.monotonic()
    caller.post(chat_body("live.brief"))
    engines[1].await_stats(stalled=1)
    began = time.monotonic()
    asker = begin_drain(connect, router, "brief", timeout=BRIEF / 2)

    wall.jump(offset)

    result = asker.read_response().json()["result"]
    assert (result["drained"], result["timed_out"]) == (False, True)
    assert BRIEF / 2 <= time.monotonic() - began < BRIEF
    answer = caller.read_response()
    assert (answer.status, BRIEF <= time.monotonic() - sent < BRIEF + 2.0) == (504, True)
    await_rest(router)


def test_a_key_lapses_by_the_wall_clock(wall: WallClock, router: Router) -> None:
    """Its end is a moment, so it is the one thing that a jump may bring about."""
    expires = datetime.datetime.fromtimestamp(wall.now() + 3600, datetime.UTC).isoformat()
    made = router.request(
        "POST", "/v1/admin/keys", body={"name": "an-hour", "scopes": ["observe"], "expires_at": expires}
    )
    assert made.status == 201, made.body
    key = {"Authorization": f"Bearer {made.json()['key']}"}
    seen = []
    for offset in (0, *JUMPS):
        wall.jump(offset)
        seen.append(router.request("GET", "/v1/models", headers=key).status)
    assert seen == [200, 401, 200, 200]
