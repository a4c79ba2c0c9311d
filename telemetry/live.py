"""What the engines of direct tiers say of themselves now, read in the background and shown from memory.

Capacity tiers have a pressure cache, whose readings decide something. A direct tier's readings are only
shown, so they are taken every few seconds by at most two threads, and whoever looks gets the last completed
one. Looking fetches nothing.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from routing.config import Tier
from telemetry.engine_metrics import MetricsSnapshot, MetricsStatus, fetch_engine_metrics

REFRESH_SECONDS: Final = 5.0
"""From the end of one reading until the next is due."""

STALE_SECONDS: Final = 15.0
"""A reading older than this is not shown any more."""

MAX_WORKERS: Final = 2

MetricsProvider = Callable[[Tier], MetricsSnapshot]


@dataclass(frozen=True, slots=True)
class LiveReading:
    """What is known of one direct tier's engine: ``metrics``, or the fixed word why there are none.

    The word is ``pending`` before the first reading, ``stale`` when the last one is too old, or the status
    of a reading that failed (`MetricsStatus`).
    """

    metrics: MetricsSnapshot | None
    reason: str | None


@dataclass(slots=True, eq=False)
class _Watched:
    tier: Tier
    due_at: float = -math.inf
    busy: bool = False
    snapshot: MetricsSnapshot | None = None
    observed_at: float = math.nan

    @property
    def identity(self) -> tuple[str, str, str | None]:
        return (self.tier.id, self.tier.base_url, self.tier.auth_env)


class EngineMetricsPoller:
    """Keeps one reading for each direct tier of the active configuration.

    ``reconfigure`` names the tiers, ``start`` begins; no thread exists without a direct tier. A tier whose
    address did not change keeps its reading. Every method may be called from any thread.
    """

    def __init__(
        self,
        *,
        provider: MetricsProvider = fetch_engine_metrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._watched: dict[str, _Watched] = {}
        self._workers = 0
        self._running = False

    def reconfigure(self, tiers: Iterable[Tier]) -> None:
        """Watch the direct tiers among ``tiers`` and nothing else from now on."""
        with self._changed:
            known = {entry.identity: entry for entry in self._watched.values()}
            entries = (_Watched(tier) for tier in tiers if not tier.is_replica)
            self._watched = {entry.tier.id: known.get(entry.identity, entry) for entry in entries}
            self._hire()
            self._changed.notify_all()

    def latest(self, tier_id: str) -> LiveReading:
        """The last completed reading of a direct tier. Only looks."""
        with self._changed:
            entry = self._watched.get(tier_id)
            snapshot = entry.snapshot if entry is not None else None
            age = self._monotonic() - entry.observed_at if entry is not None else math.nan
        if snapshot is None:
            return LiveReading(None, "pending")
        if not 0 <= age <= STALE_SECONDS:
            return LiveReading(None, "stale")
        if snapshot.status is not MetricsStatus.OK:
            return LiveReading(None, snapshot.status.value)
        return LiveReading(snapshot, None)

    def start(self) -> None:
        """Begin to read; a second call does nothing."""
        with self._changed:
            self._running = True
            self._hire()

    def stop(self) -> None:
        """Let the threads end after the reading they are at. Waits for nothing."""
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def run_once(self) -> float:
        """One turn of a thread: read the tier that has been due longest, if any is.

        Returns the seconds until the next one is due; 0.0 after a reading.
        """
        with self._changed:
            now = self._monotonic()
            idle = [entry for entry in self._watched.values() if not entry.busy]
            entry = min(idle, key=lambda each: each.due_at, default=None)
            if entry is None:
                return REFRESH_SECONDS
            if entry.due_at > now:
                return entry.due_at - now
            entry.busy = True
        snapshot = MetricsSnapshot(status=MetricsStatus.INVALID)
        try:
            result = self._provider(entry.tier)
            snapshot = result if type(result) is MetricsSnapshot else snapshot
        except Exception:  # noqa: BLE001 - whatever breaks a reading costs that reading and no more
            snapshot = MetricsSnapshot(status=MetricsStatus.TRANSPORT_ERROR)
        finally:
            with self._changed:
                entry.busy = False
                entry.snapshot = snapshot
                entry.observed_at = self._monotonic()
                entry.due_at = entry.observed_at + REFRESH_SECONDS
        return 0.0

    def _hire(self) -> None:
        """One thread a tier, up to the maximum. Holds the lock."""
        while self._running and self._workers < min(MAX_WORKERS, len(self._watched)):
            self._workers += 1
            name = f"anvil-engine-metrics-{self._workers}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            wait = self.run_once()
            with self._changed:
                if self._running and wait:
                    self._changed.wait(wait)
                if not self._running:
                    self._workers -= 1
                    return
