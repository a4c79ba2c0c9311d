"""How full the members of capacity tiers are: the last completed reading of each, never waited for.

A request asks for a snapshot and gets what is known at once; what is due is queued, and two workers collect
it (replica scheduler contract, ReplicaPressureCache). Of a reading only the immutable normalised sample and
the time of its observation are kept, never the page or an error.

The life of a reading::

    due --snapshot()--> queued --worker--> running --> completed, due again a second later
                                              |
                                              +-- over a second: failed; a late result is discarded

Threads: at most two for a cache and all its successors, started when the first reading is due. One condition
guards all state; no clock is read, no page fetched and no sample normalised under it.

::

    PressureCacheError (ValueError)   fixed texts: not registrable, unknown tier, closed
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Final, TypeGuard

from admission.identifiers import is_safe_id
from admission.replica_scheduler import (
    FRESH_SECONDS,
    MAX_MEMBER_CONCURRENCY,
    MAX_MEMBERS,
    MIN_MEMBERS,
    UNKNOWN_PRESSURE,
    PressureFreshness,
    ReplicaPressure,
    ValidatedPressure,
    normalize_replica_pressure,
)
from routing.config import Tier
from telemetry.engine_metrics import FETCH_TIMEOUT, MetricsSnapshot, MetricsStatus, fetch_engine_metrics

MAX_WORKERS: Final = 2
MAX_REGISTERED_MEMBERS: Final = 256

REFRESH_SECONDS: Final = 1.0
"""Time from the completion of one reading until the next is due."""

_FAILED_PRESSURE = ReplicaPressure(PressureFreshness.FAILED)
_FAILED_STATUSES = frozenset({MetricsStatus.HTTP_ERROR, MetricsStatus.TRANSPORT_ERROR, MetricsStatus.TIMEOUT})

MetricsProvider = Callable[[Tier], MetricsSnapshot]
"""Reads the engine behind one member's view of its tier. May raise; may take as long as it likes."""


class PressureCacheError(ValueError):
    """The cache cannot do what was asked; the text is fixed and names nothing."""


class ReplicaPressureCache:
    """The pressure of every member of the given capacity tiers.

    ``tiers`` are replica tiers in capacity mode with 2 to 16 members and a ceiling each, 256 members in all;
    anything else raises ``PressureCacheError``. An empty cache is valid and starts no thread.
    """

    def __init__(
        self,
        tiers: Iterable[Tier],
        *,
        metrics_provider: MetricsProvider = fetch_engine_metrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._closed = False
        self._views: dict[str, _View] = {}
        self._tiers = _register(tiers)
        self._collector = _Collector(metrics_provider, monotonic)
        self._collector.attach(self._members())

    def snapshot(self, tier_id: str) -> ValidatedPressure:
        """The pressure of all members of one tier, now; queues what is due. Never waits for a reading.

        The mapping is complete and immutable. Raises ``PressureCacheError`` for a tier that is not
        registered, before anything is queued. After ``close`` every member is unknown.
        """
        view = self._views.get(tier_id)
        if (
            view is not None
            and view.since <= self._collector.now() < view.until
            and view.version == self._collector.version
        ):
            return view.pressure
        return self._read(tier_id, schedule=True)

    def peek(self, tier_id: str) -> dict[str, ReplicaPressure]:
        """The same values as ``snapshot``, by member id, in a dict of the caller's own.

        For those who only look: queues nothing, starts nothing, wakes nobody.
        """
        return dict(self._read(tier_id, schedule=False))

    def ages(self, tier_id: str) -> dict[str, float | None]:
        """Seconds since each member's last completed reading began, None when there is none. Only looks."""
        members = self._registered(tier_id)
        with self._collector.moment() as now:
            return {member.id: None if self._closed else member.age(now) for member in members}

    def successor(self, tiers: Iterable[Tier]) -> "ReplicaPressureCache":
        """A cache for the tiers of the next configuration, with the same workers.

        Members whose ids, address, token variable and ceiling did not change keep their sample and a reading
        that is under way; others start unknown. Both caches work until one is closed: close the old one after
        the swap, or the new one when there is no swap. Raises ``PressureCacheError``.
        """
        known = {member.identity: member for member in self._members()}
        successor = ReplicaPressureCache(tiers)
        successor._collector = self._collector
        successor._tiers = {
            tier_id: tuple(known.get(member.identity, member) for member in members)
            for tier_id, members in successor._tiers.items()
        }
        with self._collector.condition:  # or the last owner might close in between
            if self._closed:
                raise PressureCacheError("replica pressure cache is closed")
            self._collector.attach(successor._members())
        return successor

    def close(self) -> None:
        """Let go of all members: nothing is queued any more, and a reading under way ends unheard.

        Waits for nothing, may be called again. The workers end with the last cache that shares them.
        """
        collector = self._collector
        with collector.condition:
            if self._closed:
                return
            self._closed = True
            self._views.clear()
            collector.detach(self._members())

    def _members(self) -> "tuple[_Member, ...]":
        return tuple(chain.from_iterable(self._tiers.values()))

    def _registered(self, tier_id: str) -> "tuple[_Member, ...]":
        members = self._tiers.get(tier_id)
        if members is None:
            raise PressureCacheError("unknown replica pressure tier")
        return members

    def _read(self, tier_id: str, *, schedule: bool) -> ValidatedPressure:
        members = self._registered(tier_id)
        collector = self._collector
        with collector.moment() as now:
            if self._closed:
                return ValidatedPressure({member.id: UNKNOWN_PRESSURE for member in members})
            starting = collector.enqueue(members, now) if schedule else 0
            pressure = ValidatedPressure({member.id: member.project(now) for member in members})
            if schedule and not math.isnan(now):
                until = min(member.steady_until(now) for member in members)
                self._views[tier_id] = _View(collector.version, now, until, pressure)
        collector.start_workers(starting)
        return pressure


@dataclass(frozen=True, slots=True)
class _View:
    """One tier's projection, and from when until when (clock readings) no member's part of it changes.

    It holds only at the collector's ``version`` at which it was made.
    """

    version: int
    since: float
    until: float
    pressure: ValidatedPressure


class _Member:
    """One registered member: where it is, its last sample, and where its next reading stands.

    Guarded by the collector's condition. A cache and its successor share it; ``owners`` counts them.
    """

    __slots__ = (
        "ceiling",
        "due_at",
        "id",
        "identity",
        "observed_at",
        "owners",
        "pending",
        "sample",
        "started_at",
        "view",
    )

    def __init__(self, view: Tier, member_id: str, ceiling: int) -> None:
        self.id = member_id
        self.view = view
        self.ceiling = ceiling
        self.identity = (view.id, member_id, view.base_url, view.auth_env, ceiling)
        self.owners = 0
        self.pending = False
        self.started_at: float | None = None
        self.sample: ReplicaPressure | None = None
        self.observed_at = math.nan
        self.due_at = -math.inf

    def project(self, now: float) -> ReplicaPressure:
        """What is known at ``now``; a reading that is overdue counts as failed without being awaited."""
        if self.started_at is not None and now - self.started_at > FETCH_TIMEOUT:
            return _FAILED_PRESSURE
        if self.sample is None:
            return UNKNOWN_PRESSURE
        if self.sample.freshness is not PressureFreshness.FRESH:
            return self.sample
        age = now - self.observed_at
        if 0 <= age <= FRESH_SECONDS:
            return self.sample
        late = PressureFreshness.STALE if age > FRESH_SECONDS else PressureFreshness.UNKNOWN
        return replace(self.sample, freshness=late, pressure_ppm=None)

    def age(self, now: float) -> float | None:
        age = now - self.observed_at
        return age if age >= 0 else None

    def steady_until(self, now: float) -> float:
        """The first moment after ``now`` at which the projection changes by itself, or a reading is due."""
        moments = [self.observed_at + FRESH_SECONDS]
        if self.observed_at > now:
            moments.append(self.observed_at)
        if not self.pending:
            moments.append(self.due_at)
        if self.started_at is not None:
            moments.append(self.started_at + FETCH_TIMEOUT)
        return min((moment for moment in moments if moment >= now), default=math.inf)


class _Collector:
    """The queue and the workers that a cache and its successors share.

    Members, queue and counters are guarded by ``condition``. ``version`` changes with every sample, start of
    a reading and change of owners, so that a projection made before can be told from one made after.
    """

    def __init__(self, provider: MetricsProvider, monotonic: Callable[[], float]) -> None:
        if not (callable(provider) and callable(monotonic)):
            raise PressureCacheError("invalid replica pressure registration")
        self.condition = threading.Condition()
        self.version = 0
        self._provider = provider
        self._monotonic = monotonic
        self._queue: deque[_Member] = deque()
        self._caches = 0
        self._workers = 0
        self._idle = 0

    def now(self) -> float:
        """The clock in seconds; NaN, which compares with nothing, where it gives no usable reading."""
        reading: object = self._monotonic()
        if type(reading) is int and reading < 2**53:
            reading = float(reading)
        return reading if type(reading) is float and 0 <= reading < math.inf else math.nan

    @contextmanager
    def moment(self) -> Iterator[float]:
        """Hold the condition with a clock reading from before, but from after every sample there is.

        A sample completed between the two would seem to come from the future; then the clock is read again.
        """
        while True:
            version, now = self.version, self.now()
            with self.condition:
                if version == self.version:
                    yield now
                    return

    def attach(self, members: Iterable[_Member]) -> None:
        with self.condition:
            self._caches += 1
            for member in members:
                member.owners += 1

    def detach(self, members: Iterable[_Member]) -> None:
        with self.condition:
            self._caches -= 1
            for member in members:
                member.owners -= 1
            self._queue = deque(member for member in self._queue if member.owners)
            self.version += 1
            if not self._caches:
                self.condition.notify_all()

    def enqueue(self, members: Iterable[_Member], now: float) -> int:
        """Queue what is due; returns how many workers the caller must start once it holds no lock."""
        for member in members:
            if not member.pending and member.due_at <= now:
                member.pending = True
                self._queue.append(member)
                self.condition.notify()
        starting = max(0, min(MAX_WORKERS - self._workers, len(self._queue) - self._idle))
        self._workers += starting
        return starting

    def start_workers(self, count: int) -> None:
        for _ in range(count):
            try:
                threading.Thread(target=self._work, name="anvil-pressure", daemon=True).start()
            except RuntimeError:  # no thread to be had: what is queued falls due again
                with self.condition:
                    self._workers -= 1
                    if not self._workers:
                        for member in self._queue:
                            member.pending = False
                        self._queue.clear()
                        self.version += 1

    def _work(self) -> None:
        try:
            while (member := self._take()) is not None:
                self._collect(member)
        finally:
            with self.condition:
                self._workers -= 1

    def _take(self) -> _Member | None:
        """The next member to read, waiting for one; None when the last cache is closed."""
        with self.condition:
            self._idle += 1
            try:
                self.condition.wait_for(lambda: self._queue or not self._caches)
            finally:
                self._idle -= 1
            return self._queue.popleft() if self._queue else None

    def _collect(self, member: _Member) -> None:
        """Read one member once and settle it, whatever happens. All but the settling is outside the lock."""
        started = self.now()
        with self.condition:
            member.started_at = started
            self.version += 1
        finished, sample = math.nan, _FAILED_PRESSURE
        try:
            snapshot = self._provider(member.view)
            finished = self.now()
            sample = _judge(snapshot, member.ceiling, started, finished)
        except Exception:  # noqa: BLE001 - whatever breaks a reading makes one sample failed and no more
            finished = self.now()
        finally:
            with self.condition:
                member.started_at = None
                member.pending = False
                if member.owners:
                    member.sample = sample
                    member.observed_at = started
                    member.due_at = -math.inf if math.isnan(finished) else finished + REFRESH_SECONDS
                self.version += 1


def _judge(snapshot: MetricsSnapshot, ceiling: int, started: float, finished: float) -> ReplicaPressure:
    """Normalise one reading; ``ceiling`` is the scheduler's capacity, for which no engine series is taken.

    Not reached, an HTTP error and anything that took over a second is failed; a page that said nothing usable
    is unknown.
    """
    if type(snapshot) is not MetricsSnapshot:
        snapshot = MetricsSnapshot(status=MetricsStatus.INVALID)
    if finished - started > FETCH_TIMEOUT or snapshot.status in _FAILED_STATUSES:
        return _FAILED_PRESSURE

    def signal(field: str) -> float | None:
        value: float | None = getattr(snapshot, field)
        unusable = snapshot.status is MetricsStatus.INVALID or field in snapshot.unreadable
        return math.nan if unusable else value

    return normalize_replica_pressure(
        observed_at=started,
        now_monotonic=finished,
        successful=True,
        requests_running=signal("requests_running"),
        requests_waiting=signal("requests_waiting"),
        scheduler_capacity=ceiling,
        kv_cache_usage_fraction=signal("kv_cache_usage_fraction"),
    )


def _register(tiers: Iterable[Tier]) -> dict[str, tuple[_Member, ...]]:
    """New members for every tier, in sorted order; raises ``PressureCacheError`` unless all are sound."""
    registered: dict[str, tuple[_Member, ...]] = {}
    for tier in tiers:
        if type(tier) is not Tier or tier.strategy != "capacity" or tier.id in registered:
            raise PressureCacheError("invalid replica pressure registration")
        registered[tier.id] = tuple(
            _Member(tier.member_view(member.id), member.id, member.max_concurrency)
            for member in sorted(tier.replicas, key=attrgetter("id"))
            if is_safe_id(member.id) and _is_ceiling(member.max_concurrency)
        )
        sound = (
            is_safe_id(tier.id)
            and MIN_MEMBERS <= len(tier.replicas) <= MAX_MEMBERS
            and len({member.id for member in registered[tier.id]}) == len(tier.replicas)
        )
        if not sound or sum(map(len, registered.values())) > MAX_REGISTERED_MEMBERS:
            raise PressureCacheError("invalid replica pressure registration")
    return registered


def _is_ceiling(value: object) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= MAX_MEMBER_CONCURRENCY
