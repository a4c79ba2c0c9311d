"""What has stopped is told once, and once more when it turns again."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from routing.router import Router
from routing.snapshot import validate_snapshot
from telemetry.decisions import DecisionLog
from telemetry.evidence import ProcessEvidence
from telemetry.pressure import ReplicaPressureCache
from telemetry.watchdog import Watchdog
from telemetry.writer import BoundedWriter

CONFIG = b"""
[router]
availability_probe_interval = 5.0
availability_probe_timeout = 3.0
[router.model_routes]
"llm.direct" = "direct"
[[router.tiers]]
id = "direct"
base_url = "http://127.0.0.1:8100/v1"
context_limit = 1000
model = "m"
"""


class Busy(BoundedWriter[Any]):
    seconds = 0.0

    @property
    def busy_seconds(self) -> float:
        return self.seconds


@pytest.fixture
def evidence() -> ProcessEvidence:
    return ProcessEvidence(DecisionLog())


@pytest.fixture
def router(evidence: ProcessEvidence) -> Iterator[Router]:
    made = Router(
        evidence=evidence, pressure_factory=lambda tiers, previous: ReplicaPressureCache(tiers), auth=False
    )
    yield made
    made.close()


def test_each_stop_is_told_once_with_its_end(
    router: Router,
    evidence: ProcessEvidence,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    router.install(validate_snapshot(CONFIG), snapshot_id=1)
    writer, seconds = Busy("busy"), {"prober": 0.0}
    evidence.writers = lambda: {"table": writer}
    monkeypatch.setattr(router.availability, "seconds_since_turn", lambda: seconds["prober"])
    watchdog = Watchdog()
    caplog.set_level(logging.WARNING, "anvil.watchdog")

    def told() -> list[tuple[str, str]]:
        caplog.clear()
        watchdog.run_once(router, evidence)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    seconds.update(prober=21.0)
    writer.seconds = 15.0
    assert told() == []
    seconds.update(prober=21.1)
    writer.seconds = 15.1
    assert told() == [
        ("ERROR", "the readiness prober has not turned for 21 s"),
        ("ERROR", "the writer of table has not turned for 15 s"),
    ]
    assert told() == []
    writer.seconds = 0.0
    assert told() == [("WARNING", "the writer of table turns again")]


def test_a_process_that_has_none_of_it(router: Router, evidence: ProcessEvidence) -> None:
    Watchdog().run_once(router, evidence)
