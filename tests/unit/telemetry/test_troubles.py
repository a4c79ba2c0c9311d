"""Trouble is told once when it begins and once when it is over."""

import logging
from collections.abc import Callable, Iterator

import pytest

from routing.gateway import Refused
from routing.router import Router
from routing.snapshot import validate_snapshot
from telemetry.decisions import DecisionLog
from telemetry.evidence import ProcessEvidence
from telemetry.pressure import ReplicaPressureCache
from telemetry.troubles import Troubles
from tests.unit.routing.availability_support import PATIENCE, Script

CONFIG = b"""
[router.model_routes]
"llm.direct" = "direct"
[[router.tiers]]
id = "direct"
base_url = "http://127.0.0.1:8100/v1"
context_limit = 1000
model = "m"
health_path = "/health"
"""


class Clocks:
    def __init__(self) -> None:
        self.wall, self.steady = 1_767_225_600.0, 100.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def evidence() -> ProcessEvidence:
    return ProcessEvidence(DecisionLog())


@pytest.fixture
def upstream() -> Script:
    return Script(**{"127.0.0.1": (200, b"")})


@pytest.fixture
def router(evidence: ProcessEvidence, upstream: Script) -> Iterator[Router]:
    made = Router(
        evidence=evidence,
        pressure_factory=lambda tiers, previous: ReplicaPressureCache(tiers),
        auth=False,
        probe_transport=upstream,
    )
    made.install(validate_snapshot(CONFIG), snapshot_id=1)
    assert made.availability.first_round_done.wait(PATIENCE)
    yield made
    made.close()


Told = Callable[[], list[tuple[str, str]]]


@pytest.fixture
def told(clocks: Clocks, router: Router, evidence: ProcessEvidence, caplog: pytest.LogCaptureFixture) -> Told:
    """What is told of the second that has passed, as (level, line)."""
    troubles = Troubles(wall_clock=lambda: clocks.wall, monotonic=lambda: clocks.steady)
    caplog.set_level(logging.INFO, "anvil.troubles")

    def run() -> list[tuple[str, str]]:
        caplog.clear()
        clocks.pass_by(1.0)
        troubles.run_once(router, evidence)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    assert run() == []
    return run


def test_a_wall_clock_that_is_set_is_told_and_counted(
    told: Told, clocks: Clocks, evidence: ProcessEvidence
) -> None:
    clocks.wall += 4.9
    assert told() == []
    clocks.wall += 3600.0
    assert told() == [("WARNING", "the wall clock jumped by +3600 s: times of evidence jump with it")]
    assert told() == []
    clocks.wall -= 7200.0
    assert told() == [("WARNING", "the wall clock jumped by -7200 s: times of evidence jump with it")]
    assert evidence.wall_clock_jumps == 2


def test_a_scope_that_comes_and_goes_is_told_with_its_reason(
    told: Told, router: Router, upstream: Script
) -> None:
    upstream.answers["127.0.0.1"] = "refused"
    router.availability.probe_now("direct")
    assert told() == [("WARNING", "tier=direct is not ready: health_transport_refused")]
    assert told() == []
    upstream.answers["127.0.0.1"] = (200, b"")
    router.availability.probe_now("direct")
    assert told() == [("INFO", "tier=direct is ready")]


def test_nothing_is_told_of_what_is_quiesced(told: Told, router: Router) -> None:
    router.ledger.quiesce("direct")
    router.availability.invalidate("direct")
    assert told() == []
    router.availability.probe_now("direct")
    router.ledger.readmit("direct")
    assert told() == []


def test_a_front_door_that_turns_requests_away_is_told_until_it_is_quiet(
    told: Told, clocks: Clocks, evidence: ProcessEvidence
) -> None:
    def refuse(count: int) -> None:
        for _ in range(count):
            evidence.refused(None, Refused.SERVER_BUSY)

    refuse(3)
    beginning = ("WARNING", "requests are turned away: every place or the whole body budget is taken")
    assert told() == [beginning]
    clocks.pass_by(8.0)
    refuse(2)
    assert told() == []
    clocks.pass_by(8.0)
    assert told() == []
    clocks.pass_by(1.0)
    assert told() == [("INFO", "there is room again: 5 requests were turned away")]
    assert told() == []
    refuse(1)
    assert told() == [beginning]
