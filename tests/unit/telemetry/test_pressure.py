"""The pressure cache under fake clocks and collectors that wait for events: nothing sleeps or connects."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from admission.core import MemberScope, TierAdmission, TierScope
from admission.replica_scheduler import (
    PressureFreshness,
    PressureSignalState,
    ReplicaPressure,
    ValidatedPressure,
)
from routing.config import ReplicaIdentity, ReplicaMember, Tier
from telemetry import pressure as pressure_module
from telemetry.engine_metrics import MetricsSnapshot, MetricsStatus
from telemetry.pressure import PressureCacheError, ReplicaPressureCache

FRESH, STALE = PressureFreshness.FRESH, PressureFreshness.STALE
FAILED, UNKNOWN = PressureFreshness.FAILED, PressureFreshness.UNKNOWN
VALID, MISSING = PressureSignalState.VALID, PressureSignalState.MISSING
INVALID = PressureSignalState.INVALID

NOTHING_KNOWN = ReplicaPressure(UNKNOWN, None, MISSING, MISSING)
NOT_REACHED = ReplicaPressure(FAILED, None, MISSING, MISSING)
HALF_FULL = ReplicaPressure(FRESH, 500_000, VALID, VALID)

TIMEOUT = 10.0
"""Seconds after which a test gives up waiting for an event that should have come."""

WORKER = "anvil-pressure"


def capacity_tier(*member_ids: str, tier_id: str = "primary", ceiling: int | None = 8) -> Tier:
    return Tier(
        id=tier_id,
        context_limit=32_768,
        model="qwen3-32b",
        auth_env="ENGINE_TOKEN",
        replica_strategy="capacity",
        replica_identity=ReplicaIdentity(
            model_revision="r1",
            engine_version="0.11.0",
            image_digest="sha256:" + "a" * 64,
            config_fingerprint="sha256:" + "b" * 64,
        ),
        replicas=tuple(
            ReplicaMember(
                id=member_id,
                base_url=f"http://{tier_id}-{member_id}.invalid/v1",
                host_id="gpu-host-1",
                resource_id=f"llm-{member_id}",
                qualification_ref="bench:run-7",
                max_concurrency=ceiling,
            )
            for member_id in member_ids
        ),
    )


def usage(running: int = 3, waiting: int = 1, kv: float | None = 0.25) -> MetricsSnapshot:
    """By default half of a ceiling of eight."""
    return MetricsSnapshot(
        status=MetricsStatus.OK,
        requests_running=running,
        requests_waiting=waiting,
        kv_cache_usage_fraction=kv,
    )


class Clock:
    def __init__(self) -> None:
        self.now: object = 100.0

    def __call__(self) -> float:
        return self.now  # type: ignore[return-value]


class Engines:
    """A collector whose readings the test scripts by member id, and can hold until it lets them go."""

    def __init__(self) -> None:
        self.says: dict[str, MetricsSnapshot | Exception] = {}
        self.gates: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        self.entered = threading.Semaphore(0)

    def hold(self, *member_ids: str) -> None:
        for member_id in member_ids:
            self.gates[member_id] = threading.Event()

    def release(self, *member_ids: str) -> None:
        for member_id in member_ids:
            self.gates[member_id].set()
            del self.gates[member_id]

    def __call__(self, view: Tier) -> MetricsSnapshot:
        member_id = view.base_url.removeprefix("http://").removesuffix(".invalid/v1").split("-", 1)[1]
        self.asked.append(member_id)
        gate = self.gates.get(member_id)
        self.entered.release()
        if gate is not None:
            assert gate.wait(TIMEOUT)
        said = self.says.get(member_id, usage())
        if isinstance(said, Exception):
            raise said
        return said

    def await_entered(self, count: int) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=TIMEOUT)


@dataclass
class Rig:
    """The clock, the engines and the caches of one test."""

    clock: Clock = field(default_factory=Clock)
    engines: Engines = field(default_factory=Engines)
    caches: list[ReplicaPressureCache] = field(default_factory=list)
    settled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def cache(self, *tiers: Tier) -> ReplicaPressureCache:
        cache = ReplicaPressureCache(tiers, metrics_provider=self.engines, monotonic=self.clock)
        self.caches.append(cache)
        return cache

    def collected(self, *tiers: Tier) -> ReplicaPressureCache:
        """A cache of these tiers that has read all members of the first one once."""
        cache = self.cache(*tiers)
        cache.snapshot(tiers[0].id)
        self.completed(len(tiers[0].replicas))
        return cache

    def completed(self, count: int) -> None:
        """Wait until so many more readings have been settled, late ones included."""
        for _ in range(count):
            assert self.settled.acquire(timeout=TIMEOUT)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig()
    collect = pressure_module._Collector._collect

    def counted(self: pressure_module._Collector, member: pressure_module._Member) -> None:
        collect(self, member)
        rig.settled.release()

    monkeypatch.setattr(pressure_module._Collector, "_collect", counted)
    yield rig
    for cache in rig.caches:
        cache.close()
    rig.engines.release(*list(rig.engines.gates))
    for thread in workers():
        thread.join(TIMEOUT)
    assert workers() == []


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == WORKER]


def queued(cache: ReplicaPressureCache) -> int:
    return len(cache._collector._queue)


@pytest.mark.requirement("C-T003", "C-R009")
class TestCollection:
    def test_a_cold_member_is_unknown_and_its_reading_follows(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b"))
        rig.engines.says["b"] = usage(running=9, waiting=7, kv=0.29)
        assert dict(cache.snapshot("primary")) == {"a": NOTHING_KNOWN, "b": NOTHING_KNOWN}
        rig.completed(2)
        assert dict(cache.snapshot("primary")) == {
            "a": ReplicaPressure(FRESH, 500_000, VALID, VALID),
            "b": ReplicaPressure(FRESH, 2_000_000, VALID, VALID),
        }
        assert sorted(rig.engines.asked) == ["a", "b"]

    def test_the_ceiling_of_the_member_is_the_capacity(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b", ceiling=3))
        assert cache.snapshot("primary")["a"].pressure_ppm == 1_333_334

    def test_a_fresh_hit_reads_nothing_and_one_second_after_completion_brings_one_reading(
        self, rig: Rig
    ) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        for now in (100.0, 100.5, 100.999):
            rig.clock.now = now
            assert dict(cache.snapshot("primary")) == {"a": HALF_FULL, "b": HALF_FULL}
        assert len(rig.engines.asked) == 2
        rig.engines.hold("a", "b")
        rig.clock.now = 101.0
        for _ in range(10):
            assert dict(cache.snapshot("primary")) == {"a": HALF_FULL, "b": HALF_FULL}
        rig.engines.says = {"a": usage(running=8, waiting=0), "b": usage(running=0, waiting=0, kv=0.0)}
        rig.engines.release("a", "b")
        rig.completed(2)
        assert len(rig.engines.asked) == 4
        ppm = {member: value.pressure_ppm for member, value in cache.snapshot("primary").items()}
        assert ppm == {"a": 1_000_000, "b": 0}

    def test_until_something_changes_callers_share_one_immutable_mapping(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        first = cache.snapshot("primary")
        assert type(first) is ValidatedPressure
        assert cache.snapshot("primary") is first

    def test_sixty_four_threads_at_once_cause_one_reading_per_member(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b", "c", "d"))
        rig.engines.hold("a", "b", "c", "d")
        barrier = threading.Barrier(64)
        answers: list[ValidatedPressure] = []

        def ask() -> None:
            barrier.wait(TIMEOUT)
            answers.append(cache.snapshot("primary"))

        threads = [threading.Thread(target=ask) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert len(answers) == 64
        assert len(workers()) == 2
        rig.engines.release("a", "b", "c", "d")
        rig.completed(4)
        assert sorted(rig.engines.asked) == ["a", "b", "c", "d"]
        assert dict(cache.snapshot("primary")) == dict.fromkeys("abcd", HALF_FULL)

    def test_equal_member_ids_of_two_tiers_share_nothing(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b", tier_id="one"), capacity_tier("a", "b", tier_id="two"))
        cache.snapshot("one")
        rig.completed(2)
        assert cache.peek("one") == {"a": HALF_FULL, "b": HALF_FULL}
        assert cache.peek("two") == {"a": NOTHING_KNOWN, "b": NOTHING_KNOWN}

    def test_the_provider_gets_the_view_of_the_member(self, rig: Rig) -> None:
        views: list[Tier] = []

        def provider(view: Tier) -> MetricsSnapshot:
            views.append(view)
            return usage()

        cache = ReplicaPressureCache(
            [capacity_tier("b", "a")], metrics_provider=provider, monotonic=rig.clock
        )
        cache.snapshot("primary")
        rig.completed(2)
        cache.close()
        assert sorted((view.base_url, view.auth_env, view.replicas) for view in views) == [
            ("http://primary-a.invalid/v1", "ENGINE_TOKEN", ()),
            ("http://primary-b.invalid/v1", "ENGINE_TOKEN", ()),
        ]

    def test_threads_start_with_the_first_reading_that_is_due(self, rig: Rig) -> None:
        rig.cache()
        cache = rig.cache(capacity_tier("a", "b"))
        cache.peek("primary")
        cache.ages("primary")
        assert workers() == []
        cache.snapshot("primary")
        rig.completed(2)
        assert 1 <= len(workers()) <= 2
        assert all(thread.daemon for thread in workers())

    def test_readings_that_no_thread_could_be_started_for_fall_due_again(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        cache = rig.cache(capacity_tier("a", "b"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert dict(cache.snapshot("primary")) == {"a": NOTHING_KNOWN, "b": NOTHING_KNOWN}
        assert rig.engines.asked == []
        cache.snapshot("primary")
        rig.completed(2)
        assert dict(cache.snapshot("primary")) == {"a": HALF_FULL, "b": HALF_FULL}


@pytest.mark.requirement("C-R007", "C-T003")
class TestFreshness:
    @pytest.mark.parametrize(
        ("age", "expected"),
        [
            (5.0, HALF_FULL),
            (5.001, ReplicaPressure(STALE, None, VALID, VALID)),
            (3_600.0, ReplicaPressure(STALE, None, VALID, VALID)),
            (-0.001, ReplicaPressure(UNKNOWN, None, VALID, VALID)),
        ],
    )
    def test_a_sample_is_fresh_for_five_seconds_and_then_stale(
        self, rig: Rig, age: float, expected: ReplicaPressure
    ) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        rig.engines.hold("a", "b")
        rig.clock.now = 100.0 + age
        assert cache.peek("primary")["a"] == expected
        assert cache.snapshot("primary")["a"] == expected

    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            (usage(kv=None), ReplicaPressure(FRESH, 500_000, VALID, MISSING)),
            (
                MetricsSnapshot(status=MetricsStatus.OK, kv_cache_usage_fraction=0.5),
                ReplicaPressure(FRESH, 500_000, MISSING, VALID),
            ),
            (
                MetricsSnapshot(status=MetricsStatus.OK, requests_running=3, kv_cache_usage_fraction=0.5),
                ReplicaPressure(FRESH, 500_000, MISSING, VALID),
            ),
            (
                MetricsSnapshot(status=MetricsStatus.OK, requests_running=3),
                ReplicaPressure(UNKNOWN, None, MISSING, MISSING),
            ),
            (
                replace(usage(kv=None), unreadable=frozenset({"kv_cache_usage_fraction"})),
                ReplicaPressure(UNKNOWN, None, VALID, INVALID),
            ),
            (
                MetricsSnapshot(
                    status=MetricsStatus.OK,
                    requests_waiting=1,
                    kv_cache_usage_fraction=0.5,
                    unreadable=frozenset({"requests_running"}),
                ),
                ReplicaPressure(UNKNOWN, None, INVALID, VALID),
            ),
            (usage(running=1_000_000_001), ReplicaPressure(UNKNOWN, None, INVALID, VALID)),
            (
                MetricsSnapshot(status=MetricsStatus.MISSING),
                ReplicaPressure(UNKNOWN, None, MISSING, MISSING),
            ),
            (
                MetricsSnapshot(status=MetricsStatus.OVERSIZED),
                ReplicaPressure(UNKNOWN, None, MISSING, MISSING),
            ),
            (
                MetricsSnapshot(status=MetricsStatus.INVALID),
                ReplicaPressure(UNKNOWN, None, INVALID, INVALID),
            ),
            ({"requests_running": 3}, ReplicaPressure(UNKNOWN, None, INVALID, INVALID)),
            (None, ReplicaPressure(UNKNOWN, None, INVALID, INVALID)),
            (MetricsSnapshot(status=MetricsStatus.HTTP_ERROR), NOT_REACHED),
            (MetricsSnapshot(status=MetricsStatus.TRANSPORT_ERROR), NOT_REACHED),
            (MetricsSnapshot(status=MetricsStatus.TIMEOUT), NOT_REACHED),
            (RuntimeError("http://10.0.0.1 said no"), NOT_REACHED),
            (replace(usage(), unreadable=None), NOT_REACHED),
        ],
    )
    def test_every_outcome_of_a_reading_has_its_class(self, rig: Rig, said: object, expected: object) -> None:
        """Not reached is failed, nothing usable is unknown, and neither has a pressure."""
        cache = rig.cache(capacity_tier("a", "b"))
        rig.engines.says["a"] = said  # type: ignore[assignment]
        cache.snapshot("primary")
        rig.completed(2)
        assert dict(cache.snapshot("primary")) == {"a": expected, "b": HALF_FULL}

    def test_a_failed_reading_replaces_a_fresh_one_and_a_good_one_replaces_it(self, rig: Rig) -> None:
        """Case 8 of the trackers: a last "0 waiting" must not keep winning."""
        cache = rig.collected(capacity_tier("a", "b"))
        rig.engines.says["a"] = MetricsSnapshot(status=MetricsStatus.TRANSPORT_ERROR)
        rig.clock.now = 101.0
        cache.snapshot("primary")
        rig.completed(2)
        assert dict(cache.snapshot("primary")) == {"a": NOT_REACHED, "b": HALF_FULL}
        del rig.engines.says["a"]
        rig.clock.now = 102.0
        cache.snapshot("primary")
        rig.completed(2)
        assert dict(cache.snapshot("primary")) == {"a": HALF_FULL, "b": HALF_FULL}

    @pytest.mark.parametrize(
        "reading", [float("nan"), float("inf"), -1.0, True, "100", None, 10**400], ids=repr
    )
    def test_a_clock_without_a_usable_reading_makes_all_unknown_and_queues_nothing(
        self, rig: Rig, reading: object
    ) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        rig.clock.now = reading
        unknown = ReplicaPressure(UNKNOWN, None, VALID, VALID)
        assert dict(cache.snapshot("primary")) == {"a": unknown, "b": unknown}
        assert cache.ages("primary") == {"a": None, "b": None}
        assert len(rig.engines.asked) == 2

    def test_a_clock_that_fails_during_a_reading_makes_it_unknown(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b"))
        rig.engines.hold("a", "b")
        cache.snapshot("primary")
        rig.engines.await_entered(2)
        rig.clock.now = float("nan")
        rig.engines.release("a", "b")
        rig.completed(2)
        rig.clock.now = 100.0
        assert cache.peek("primary")["a"] == ReplicaPressure(UNKNOWN, None, VALID, VALID)

    def test_an_integer_clock_will_do(self, rig: Rig) -> None:
        rig.clock.now = 100
        cache = rig.collected(capacity_tier("a", "b"))
        rig.clock.now = 105
        assert cache.peek("primary") == {"a": HALF_FULL, "b": HALF_FULL}

    def test_ages_count_from_the_start_of_the_last_completed_reading(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b", "c"))
        rig.engines.hold("c")
        cache.snapshot("primary")
        rig.completed(2)
        rig.clock.now = 102.5
        assert cache.ages("primary") == {"a": 2.5, "b": 2.5, "c": None}


@pytest.mark.requirement("C-T003", "C-R009", "C-R007", "C-A004")
class TestSlowCollectors:
    def test_two_stalled_collectors_stall_nobody_else(self, rig: Rig) -> None:
        tier = capacity_tier("a", "b", "c", "d")
        cache = rig.collected(tier, capacity_tier("e", "f", tier_id="other"))
        rig.engines.await_entered(4)
        rig.engines.hold("a", "b")
        rig.clock.now = 101.0
        assert dict(cache.snapshot("primary")) == dict.fromkeys("abcd", HALF_FULL)
        rig.engines.await_entered(2)

        rig.clock.now = 102.0
        assert dict(cache.snapshot("primary")) == dict.fromkeys("abcd", HALF_FULL)
        rig.clock.now = 102.001
        assert dict(cache.snapshot("primary")) == {
            "a": NOT_REACHED,
            "b": NOT_REACHED,
            "c": HALF_FULL,
            "d": HALF_FULL,
        }
        rig.clock.now = 106.0
        stale = ReplicaPressure(STALE, None, VALID, VALID)
        for _ in range(20):
            assert dict(cache.snapshot("primary")) == {
                "a": NOT_REACHED,
                "b": NOT_REACHED,
                "c": stale,
                "d": stale,
            }
            assert dict(cache.snapshot("other")) == {"e": NOTHING_KNOWN, "f": NOTHING_KNOWN}
        assert len(workers()) == 2
        assert queued(cache) == 4
        assert sorted(rig.engines.asked[4:]) == ["a", "b"]

        rig.engines.release("a", "b")
        rig.completed(6)
        assert cache.peek("primary") == {
            "a": NOT_REACHED,
            "b": NOT_REACHED,
            "c": HALF_FULL,
            "d": HALF_FULL,
        }
        assert dict(cache.peek("other")) == {"e": HALF_FULL, "f": HALF_FULL}
        assert sorted(rig.engines.asked[4:]) == ["a", "b", "c", "d", "e", "f"]
        assert len(workers()) == 2

    def test_one_stalled_member_leaves_the_other_worker_to_its_peers(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b", "c", "d"))
        rig.engines.hold("a")
        cache.snapshot("primary")
        rig.completed(3)
        assert dict(cache.snapshot("primary")) == {
            "a": NOTHING_KNOWN,
            "b": HALF_FULL,
            "c": HALF_FULL,
            "d": HALF_FULL,
        }

    @pytest.mark.parametrize(("seconds", "expected"), [(1.0, HALF_FULL), (1.001, NOT_REACHED)])
    def test_a_reading_that_ends_after_its_second_is_discarded(
        self, rig: Rig, seconds: float, expected: ReplicaPressure
    ) -> None:
        cache = rig.cache(capacity_tier("a", "b"))
        rig.engines.hold("a", "b")
        cache.snapshot("primary")
        rig.engines.await_entered(2)
        rig.clock.now = 100.0 + seconds
        rig.engines.release("a", "b")
        rig.completed(2)
        assert cache.peek("primary") == {"a": expected, "b": expected}
        assert cache.snapshot("primary")["a"] == expected

    def test_a_late_error_is_failed_and_falls_due_a_second_after_it(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b"))
        rig.engines.says["a"] = OSError()
        rig.engines.hold("a")
        cache.snapshot("primary")
        rig.completed(1)
        rig.clock.now = 103.0
        rig.engines.hold("b")
        rig.engines.release("a")
        rig.completed(1)
        asked = len(rig.engines.asked)
        rig.clock.now = 103.999
        assert cache.snapshot("primary")["a"] == NOT_REACHED
        assert rig.engines.asked[asked:].count("a") == 0
        rig.clock.now = 104.0
        cache.snapshot("primary")
        rig.completed(1)
        assert rig.engines.asked.count("a") == 2

    @pytest.mark.requirement("C-R004")
    def test_the_ledger_selects_while_collectors_stall(self, rig: Rig) -> None:
        """No lock of the ledger or of the cache is held during a reading."""
        cache = rig.cache(capacity_tier("a", "b"))
        ledger = TierAdmission(
            [TierScope("primary", None, "capacity", (MemberScope("a", 8), MemberScope("b", 8)))]
        )
        rig.engines.hold("a", "b")
        cache.snapshot("primary")
        rig.engines.await_entered(2)
        lease = ledger.acquire_member("primary", {"a": True, "b": True}, cache.snapshot("primary"))
        assert lease is not None
        assert lease.selection is not None
        assert [score.freshness for score in lease.selection.scores] == [UNKNOWN, UNKNOWN]
        assert lease.release()

    @pytest.mark.requirement("C-R008")
    def test_pressure_of_the_cache_decides_between_equal_members(self, rig: Rig) -> None:
        """At equal local load fresh zero beats unknown; a lower local load beats fresh pressure."""
        cache = rig.cache(capacity_tier("a", "b", ceiling=2))
        ledger = TierAdmission(
            [TierScope("primary", None, "capacity", (MemberScope("a", 2), MemberScope("b", 2)))]
        )
        rig.engines.says = {
            "a": MetricsSnapshot(status=MetricsStatus.MISSING),
            "b": usage(running=0, waiting=0, kv=0.0),
        }
        cache.snapshot("primary")
        rig.completed(2)
        ready = {"a": True, "b": True}
        chosen = [
            lease.member_id
            for _ in range(2)
            if (lease := ledger.acquire_member("primary", ready, cache.snapshot("primary"))) is not None
        ]
        assert chosen == ["b", "a"]


@pytest.mark.requirement("C-T011")
class TestPeek:
    def test_it_shows_what_a_snapshot_shows_and_sets_nothing_in_motion(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b"))
        assert cache.peek("primary") == {"a": NOTHING_KNOWN, "b": NOTHING_KNOWN}
        assert (workers(), queued(cache)) == ([], 0)
        cache.snapshot("primary")
        rig.completed(2)
        rig.clock.now = 104.0
        assert cache.peek("primary") == {"a": HALF_FULL, "b": HALF_FULL}
        rig.clock.now = 106.0
        stale = ReplicaPressure(STALE, None, VALID, VALID)
        assert cache.peek("primary") == {"a": stale, "b": stale}
        assert queued(cache) == 0
        assert len(rig.engines.asked) == 2

    def test_an_overdue_reading_shows_as_failed(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b"))
        rig.engines.hold("a", "b")
        cache.snapshot("primary")
        rig.engines.await_entered(2)
        rig.clock.now = 101.5
        assert cache.peek("primary") == {"a": NOT_REACHED, "b": NOT_REACHED}

    def test_the_dict_is_the_callers_own(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        peeked = cache.peek("primary")
        assert type(peeked) is dict
        peeked.clear()
        assert cache.peek("primary") == {"a": HALF_FULL, "b": HALF_FULL}
        assert dict(cache.snapshot("primary")) == {"a": HALF_FULL, "b": HALF_FULL}


@pytest.mark.requirement("C-T003")
class TestRegistration:
    def test_an_unknown_tier_is_refused_before_anything_is_queued(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b"))
        for ask in (cache.snapshot, cache.peek, cache.ages):
            for name in ("secondary", "", "primary/a"):
                with pytest.raises(PressureCacheError, match=r"^unknown replica pressure tier$"):
                    ask(name)
        assert (workers(), queued(cache)) == ([], 0)

    @pytest.mark.parametrize(
        "tiers",
        [
            [Tier(id="direct", context_limit=1, base_url="http://127.0.0.1:1/v1", model="m")],
            [replace(capacity_tier("a", "b"), replica_strategy="round_robin")],
            [replace(capacity_tier("a", "b"), replica_strategy=None)],
            [capacity_tier("a", "b"), capacity_tier("c", "d")],
            [capacity_tier("a", "a")],
            [capacity_tier("a")],
            [capacity_tier(*(f"m{number}" for number in range(17)))],
            [capacity_tier("a", "b", ceiling=None)],
            [capacity_tier("a", "b", ceiling=0)],
            [capacity_tier("a", "b", ceiling=100_001)],
            [capacity_tier("a", "b", ceiling=True)],
            [capacity_tier("a", "b", ceiling=8.0)],  # type: ignore[arg-type]
            [capacity_tier("a", "b/c")],
            [capacity_tier("a", "b", tier_id="no tier")],
            [{"id": "primary"}],
            [capacity_tier(*(f"m{number}" for number in range(16)), tier_id=f"t{tier}") for tier in range(16)]
            + [capacity_tier("a", "b")],
        ],
        ids=[
            "direct",
            "round robin",
            "no strategy",
            "same tier twice",
            "same member twice",
            "one member",
            "17 members",
            "no ceiling",
            "zero",
            "too high",
            "bool",
            "float",
            "unsafe member",
            "unsafe tier",
            "no tier",
            "258 members",
        ],
    )
    def test_what_cannot_be_read_is_refused_with_a_fixed_text(self, tiers: list[Tier]) -> None:
        with pytest.raises(PressureCacheError, match=r"^invalid replica pressure registration$"):
            ReplicaPressureCache(tiers)

    def test_256_members_are_accepted(self) -> None:
        tiers = [
            capacity_tier(*(f"m{number}" for number in range(16)), tier_id=f"t{tier}") for tier in range(16)
        ]
        cache = ReplicaPressureCache(tiers)
        assert len(cache.peek("t15")) == 16
        cache.close()

    @pytest.mark.parametrize("broken", [{"metrics_provider": None}, {"monotonic": 5.0}])
    def test_parts_that_cannot_be_called_are_refused(self, broken: dict[str, object]) -> None:
        with pytest.raises(PressureCacheError):
            ReplicaPressureCache([], **broken)  # type: ignore[arg-type]


@pytest.mark.requirement("C-T003")
class TestClose:
    def test_a_closed_cache_knows_nothing_and_reads_nothing(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        cache.snapshot("primary")
        cache.close()
        cache.close()
        nothing = {"a": NOTHING_KNOWN, "b": NOTHING_KNOWN}
        for now in (100.0, 101.0, 200.0):
            rig.clock.now = now
            assert dict(cache.snapshot("primary")) == nothing
            assert cache.peek("primary") == nothing
            assert cache.ages("primary") == {"a": None, "b": None}
        assert len(rig.engines.asked) == 2
        with pytest.raises(PressureCacheError):
            cache.snapshot("secondary")

    def test_idle_workers_end(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        running = workers()
        cache.close()
        for thread in running:
            thread.join(TIMEOUT)
        assert workers() == []

    def test_it_waits_for_no_reading_drops_the_queue_and_ignores_what_comes_late(self, rig: Rig) -> None:
        cache = rig.cache(capacity_tier("a", "b", "c", "d"))
        rig.engines.hold("a", "b")
        cache.snapshot("primary")
        rig.engines.await_entered(2)
        cache.close()
        assert queued(cache) == 0
        rig.engines.release("a", "b")
        rig.completed(2)
        for thread in workers():
            thread.join(TIMEOUT)
        assert workers() == []
        assert sorted(rig.engines.asked) == ["a", "b"]
        assert cache.peek("primary") == dict.fromkeys("abcd", NOTHING_KNOWN)


@pytest.mark.requirement("contract 1", "C-T003")
class TestSuccession:
    def test_samples_of_unchanged_members_carry_over(self, rig: Rig) -> None:
        tier = capacity_tier("a", "b", "c", "d", "e")
        cache = rig.collected(tier, capacity_tier("a", "b", tier_id="other"))
        a, b, c, d, _ = tier.replicas
        changed = replace(
            tier,
            max_output_tokens=77,
            replicas=(
                replace(a, qualification_ref="bench:run-8"),
                replace(b, base_url="http://primary-b2.invalid/v1"),
                replace(c, max_concurrency=4),
                d,
                replace(d, id="f", base_url="http://primary-f.invalid/v1"),
            ),
        )
        successor = cache.successor([changed])
        cache.close()
        rig.engines.hold("b2", "c", "f")
        rig.clock.now = 100.5
        assert dict(successor.snapshot("primary")) == {
            "a": HALF_FULL,
            "b": NOTHING_KNOWN,
            "c": NOTHING_KNOWN,
            "d": HALF_FULL,
            "f": NOTHING_KNOWN,
        }
        assert successor.ages("primary") == {"a": 0.5, "b": None, "c": None, "d": 0.5, "f": None}
        rig.engines.release("b2", "c", "f")
        rig.completed(3)
        assert sorted(rig.engines.asked[5:]) == ["b2", "c", "f"]
        assert successor.snapshot("primary")["c"].pressure_ppm == 1_000_000
        with pytest.raises(PressureCacheError):
            successor.snapshot("other")
        assert len(workers()) <= 2
        successor.close()

    def test_another_token_variable_is_another_member(self, rig: Rig) -> None:
        tier = capacity_tier("a", "b")
        cache = rig.collected(tier)
        successor = cache.successor([replace(tier, auth_env="OTHER_TOKEN")])
        assert successor.peek("primary") == {"a": NOTHING_KNOWN, "b": NOTHING_KNOWN}
        successor.close()

    def test_a_reading_under_way_serves_the_successor_and_no_worker_is_stranded(self, rig: Rig) -> None:
        tier = capacity_tier("a", "b", "c", "d")
        cache = rig.cache(tier)
        rig.engines.hold("a", "b")
        cache.snapshot("primary")
        rig.engines.await_entered(2)
        kept = replace(tier, replicas=(tier.replicas[0], tier.replicas[2]))
        successor = cache.successor([kept])
        cache.close()
        assert queued(successor) == 1
        assert dict(successor.snapshot("primary")) == {"a": NOTHING_KNOWN, "c": NOTHING_KNOWN}
        assert len(workers()) == 2
        rig.engines.release("a", "b")
        rig.completed(3)
        assert sorted(rig.engines.asked) == ["a", "b", "c"]
        assert dict(successor.snapshot("primary")) == {"a": HALF_FULL, "c": HALF_FULL}
        assert cache.peek("primary") == dict.fromkeys("abcd", NOTHING_KNOWN)
        successor.close()

    def test_closing_the_successor_undoes_it(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        successor = cache.successor([capacity_tier("a", "b"), capacity_tier("c", "d", tier_id="new")])
        successor.close()
        rig.clock.now = 101.0
        assert dict(cache.snapshot("primary")) == {"a": HALF_FULL, "b": HALF_FULL}
        rig.completed(2)
        assert cache.ages("primary") == {"a": 0.0, "b": 0.0}

    def test_a_sample_of_one_is_seen_by_the_other_at_once(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        successor = cache.successor([capacity_tier("a", "b")])
        successor.snapshot("primary")
        cache.snapshot("primary")
        rig.engines.says["a"] = usage(running=8, waiting=0)
        rig.clock.now = 101.0
        successor.snapshot("primary")
        rig.completed(2)
        for either in (cache, successor):
            assert either.snapshot("primary")["a"].pressure_ppm == 1_000_000
        successor.close()

    def test_a_refused_successor_leaves_everything_as_it_was(self, rig: Rig) -> None:
        cache = rig.collected(capacity_tier("a", "b"))
        with pytest.raises(PressureCacheError):
            cache.successor([capacity_tier("a")])
        assert dict(cache.snapshot("primary")) == {"a": HALF_FULL, "b": HALF_FULL}
        cache.close()
        with pytest.raises(PressureCacheError, match=r"^replica pressure cache is closed$"):
            cache.successor([capacity_tier("a", "b")])


@pytest.mark.requirement("C-R012", "contract 4")
def test_nothing_of_an_engine_shows_in_the_cache_or_its_values(rig: Rig) -> None:
    cache = rig.cache(capacity_tier("a", "b"))
    rig.engines.says["a"] = RuntimeError("http://10.0.0.1:8000 vllm:num_requests_running token=s3cret")
    cache.snapshot("primary")
    rig.completed(2)
    shown = repr(cache.snapshot("primary")) + repr(cache.peek("primary")) + repr(cache) + repr(vars(cache))
    for secret in ("invalid/v1", "10.0.0.1", "vllm:", "s3cret", "ENGINE_TOKEN", "RuntimeError"):
        assert secret not in shown
