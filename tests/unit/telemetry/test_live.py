"""The background readings of direct tiers, turn by turn under a clock set by hand."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from routing.config import Tier
from telemetry.engine_metrics import MetricsSnapshot, MetricsStatus
from telemetry.live import MAX_WORKERS, EngineMetricsPoller, LiveReading
from tests.unit.telemetry.capacity_support import CONFIG

PATIENCE = 10.0
OK = MetricsSnapshot(status=MetricsStatus.OK, requests_running=3)


def tier(tier_id: str, url: str = "http://127.0.0.1:8100/v1") -> Tier:
    return Tier(id=tier_id, base_url=url, context_limit=1000, model="m")


class Engines:
    """Answers each tier with what ``answers`` holds for it; records who was asked."""

    def __init__(self, **answers: MetricsSnapshot) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, target: Tier) -> MetricsSnapshot:
        self.asked.append(target.id)
        return self.answers[target.id]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Iterator[Callable[..., EngineMetricsPoller]]:
    made: list[EngineMetricsPoller] = []

    def build(provider: Callable[[Tier], Any], *tiers: Tier) -> EngineMetricsPoller:
        poller = EngineMetricsPoller(provider=provider, monotonic=clock)
        poller.reconfigure(tiers)
        made.append(poller)
        return poller

    yield build
    for poller in made:
        poller.stop()


def test_a_reading_is_pending_then_shown_then_stale(
    make: Callable[..., EngineMetricsPoller], clock: Clock
) -> None:
    engines = Engines(solo=OK)
    poller = make(engines, tier("solo"))
    assert poller.latest("solo") == LiveReading(None, "pending")
    assert poller.run_once() == 0.0
    assert poller.latest("solo") == LiveReading(OK, None)
    clock.now += 15.0
    assert poller.latest("solo") == LiveReading(OK, None)
    clock.now += 0.5
    assert poller.latest("solo") == LiveReading(None, "stale")
    assert engines.asked == ["solo"]


def test_looking_fetches_nothing(make: Callable[..., EngineMetricsPoller]) -> None:
    engines = Engines(solo=OK)
    poller = make(engines, tier("solo"))
    for _ in range(100):
        poller.latest("solo")
        poller.latest("made-up")
    assert engines.asked == []


def test_each_tier_is_read_every_five_seconds_the_longest_due_first(
    make: Callable[..., EngineMetricsPoller], clock: Clock
) -> None:
    engines = Engines(one=OK, two=OK)
    poller = make(engines, tier("one"), tier("two"))
    assert poller.run_once() == poller.run_once() == 0.0
    assert poller.run_once() == 5.0
    clock.now += 3.0
    assert poller.run_once() == 2.0
    clock.now += 2.0
    assert poller.run_once() == poller.run_once() == 0.0
    assert engines.asked == ["one", "two", "one", "two"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (MetricsSnapshot(status=MetricsStatus.TIMEOUT), "timeout"),
        (MetricsSnapshot(status=MetricsStatus.HTTP_ERROR), "http_error"),
        (MetricsSnapshot(status=MetricsStatus.OVERSIZED), "oversized"),
        (MetricsSnapshot(status=MetricsStatus.MISSING), "missing"),
        ("planted-secret", "invalid"),
        (None, "invalid"),
    ],
)
def test_a_failed_reading_is_a_fixed_word(
    make: Callable[..., EngineMetricsPoller], answer: Any, reason: str
) -> None:
    poller = make(Engines(solo=answer), tier("solo"))
    poller.run_once()
    assert poller.latest("solo") == LiveReading(None, reason)


def test_an_exception_costs_its_reading_alone(make: Callable[..., EngineMetricsPoller]) -> None:
    def provider(target: Tier) -> MetricsSnapshot:
        if target.id == "broken":
            raise RuntimeError("planted-secret")
        return OK

    poller = make(provider, tier("broken"), tier("solo"))
    poller.run_once()
    poller.run_once()
    assert poller.latest("broken") == LiveReading(None, "transport_error")
    assert poller.latest("solo") == LiveReading(OK, None)


def test_replica_tiers_are_not_read(make: Callable[..., EngineMetricsPoller]) -> None:
    engines = Engines(direct=OK)
    poller = make(engines, *CONFIG.tiers)
    poller.run_once()
    assert poller.run_once() == 5.0
    assert engines.asked == ["direct"]


def test_a_new_configuration_keeps_what_did_not_change(
    make: Callable[..., EngineMetricsPoller],
) -> None:
    engines = Engines(one=OK, two=OK)
    poller = make(engines, tier("one"), tier("two"))
    poller.run_once()
    poller.run_once()
    poller.reconfigure([replace(tier("one"), context_limit=5), tier("two", "http://127.0.0.1:9999/v1")])
    assert poller.latest("one") == LiveReading(OK, None)
    assert poller.latest("two") == LiveReading(None, "pending")
    poller.reconfigure([])
    assert poller.latest("one") == LiveReading(None, "pending")


def test_no_thread_without_a_direct_tier_and_never_more_than_two(
    make: Callable[..., EngineMetricsPoller],
) -> None:
    """Both workers hang in a fetch: a third tier waits, and whoever looks is not held up."""
    entered = threading.Semaphore(0)
    release = threading.Event()

    def hanging(target: Tier) -> MetricsSnapshot:
        entered.release()
        release.wait(PATIENCE)
        return OK

    def running() -> int:
        return sum(thread.name.startswith("anvil-engine-metrics") for thread in threading.enumerate())

    before = running()
    poller = make(hanging)
    poller.start()
    assert running() == before
    poller.reconfigure([tier("one"), tier("two"), tier("three")])
    assert all(entered.acquire(timeout=PATIENCE) for _ in range(MAX_WORKERS))
    assert running() == before + MAX_WORKERS
    assert [poller.latest(name).reason for name in ("one", "two", "three")] == ["pending"] * 3
    poller.stop()
    release.set()
