"""Where the one path leaves what happened: the decision log, counters, history, and who writes it all down.

A request costs an append to the ring and one to a queue. Counting is done by whoever settles the queue: the
process's housekeeping once a second, and every scrape before it reads.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from routing.loop import LoopStats
from routing.passage import Observation, Refused
from routing.records import DecisionRecord
from routing.router import Router
from telemetry.decisions import DecisionLog
from telemetry.history import History, ScopeReading
from telemetry.live import EngineMetricsPoller
from telemetry.tallies import Tallies
from telemetry.writer import BoundedWriter

SETTLE_AT: Final = 20_000
"""Queued observations at which a request counts them itself: the queue stays bounded and nothing is lost."""

_Refusal = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True)
class ExecutorReading:
    """One executor: threads that are serving, and requests that wait for one."""

    busy: int
    waiting: int


@dataclass(slots=True, kw_only=True)
class ServerReadings:
    """What the server that carries the process tells of itself, each as a callable that is cheap to call.

    A server fills in what it has; what it has not is not shown. ``places`` gives those taken and their limit.
    """

    loop: Callable[[], LoopStats] | None = None
    places: Callable[[], tuple[int, int]] | None = None
    executors: dict[str, Callable[[], ExecutorReading]] = field(default_factory=dict)


class ProcessEvidence:
    """The evidence of one process. Every method may be called from any thread."""

    def __init__(self, log: DecisionLog) -> None:
        self.started_at = time.time()
        """Unix time, for people."""
        self.began = time.monotonic()
        """What the uptime is counted from."""
        self.wall_clock_jumps = 0
        """How often the wall clock was found set."""
        self.log = log
        self.history = History()
        self.live = EngineMetricsPoller()
        self.server = ServerReadings()
        self.writers: Callable[[], Mapping[str, BoundedWriter[Any]]] = dict
        """Tells who writes evidence to slow places, by the word that names each in metrics."""
        self.management_refusals: Callable[[], Mapping[tuple[str, str], int]] = dict
        """Tells how many changes of the control plane were refused, by action and code."""
        self._tallies = Tallies()
        self._queue: deque[Observation | _Refusal] = deque()
        self._settling = threading.Lock()

    def record(self, record: DecisionRecord, observation: Observation) -> None:
        """Keep the record of a finished request and queue it for counting. Neither waits."""
        self.log.append(record)
        self._enqueue(observation)

    def refused(self, tier_id: str | None, reason: Refused, key_name: str | None = None) -> None:
        """Queue a refusal for counting. ``key_name`` is given where no record will follow it."""
        self._enqueue((tier_id or "", reason.value, key_name))

    @contextmanager
    def settled(self) -> Iterator[Tallies]:
        """The counters with everything queued counted in; nobody changes them while the context is held."""
        with self._settling:
            tallies, history, queue = self._tallies, self.history, self._queue
            for _ in range(len(queue)):
                item = queue.popleft()
                if isinstance(item, Observation):
                    tallies.observe(item)
                    history.observe(item)
                else:
                    tallies.refuse(*item)
            yield tallies

    def settle(self) -> None:
        """Count what is queued."""
        with self.settled():
            pass

    def refusals(self) -> dict[tuple[str, str], int]:
        """Requests refused so far, by tier id ("" before a tier was known) and reason."""
        with self.settled() as tallies:
            return dict(tallies.refusals)

    def sample(self, router: Router) -> None:
        """Count what is queued and close the history's current second."""
        self.settle()
        self.history.run_once(scope_readings(router))

    def _enqueue(self, item: Observation | _Refusal) -> None:
        queue = self._queue
        queue.append(item)
        if len(queue) >= SETTLE_AT:
            self.settle()


def scope_readings(router: Router) -> Iterator[ScopeReading]:
    """How full every tier and member is now; nothing without an active configuration. Only looks."""
    active = router.active
    if active is None:
        return
    pressure = router.pressure
    for snapshot in router.ledger.snapshots():
        yield ScopeReading(
            tier_id=snapshot.tier_id,
            member_id=None,
            active=snapshot.active_requests,
            ceiling=snapshot.max_concurrency,
        )
        known: Mapping[str, Any] = {}
        if pressure is not None and snapshot.members:
            try:
                known = pressure.peek(snapshot.tier_id)
            except ValueError:
                known = {}  # a round-robin tier, or a swap in between
        for member in snapshot.members:
            yield ScopeReading(
                tier_id=snapshot.tier_id,
                member_id=member.member_id,
                active=member.active_requests,
                ceiling=member.max_concurrency,
                pressure=known.get(member.member_id),
            )
