"""The last 15 minutes of every tier and member, a sample a second, in memory: what sparklines are drawn from.

For pages::

    history = telemetry.process.evidence().history
    history.samples("primary")                  every sample of a tier, oldest first (at most 900)
    history.samples("primary", "member-a")      of one member
    history.minute("primary", "member-a")       rates and percentiles over the last minute
    history.selected_total("primary", "member-a")   how often a member was selected since the process started

``run_once`` closes the current second; the process's housekeeping calls it once a second and tests call it
alone. A second in which nobody called it has no sample, so a gap shows as a gap: samples carry their time.
All methods may be called from any thread; reading copies and holds nobody up.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from admission.replica_scheduler import PressureFreshness, ReplicaPressure
from routing.passage import Observation
from telemetry.stats import nearest_rank

SECONDS: Final = 900
MINUTE: Final = 60.0
MAX_TIMES: Final = 4_096
"""Times to first token that a scope keeps for its minute; at more than that the newest count."""

Scope = tuple[str, str | None]
"""Tier id, and a member of it or None for the tier itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeReading:
    """What a scope is like at the end of a second. ``pressure`` is of members of capacity tiers alone."""

    tier_id: str
    member_id: str | None
    active: int
    ceiling: int | None
    pressure: ReplicaPressure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One second of one scope; ``at`` is its end in seconds of the monotonic clock.

    ``requests`` counts dispatched requests that ended in it, ``errors`` those of them that failed,
    ``refused`` those that were never dispatched. Times to first token are in seconds, None without one.
    """

    at: float
    active: int
    ceiling: int | None
    pressure_ppm: int | None
    freshness: PressureFreshness | None
    requests: int
    errors: int
    refused: int
    first_token_p50: float | None
    first_token_p95: float | None

    @property
    def selected(self) -> int:
        """How often the scope was chosen for a request that ended in this second: once for each of them."""
        return self.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """The last minute of one scope. ``error_share`` is 0 to 1, None without a request."""

    requests_per_second: float
    refused_per_second: float
    error_share: float | None
    first_token_p50: float | None
    first_token_p95: float | None
    selected: int


class _Second:
    """What has ended since the last sample."""

    __slots__ = ("errors", "first_tokens", "refused", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.refused = 0
        self.first_tokens: list[float] = []


class _Track:
    __slots__ = ("current", "samples", "selected_total", "times")

    def __init__(self, seconds: int) -> None:
        self.samples: deque[Sample] = deque(maxlen=seconds)
        self.times: deque[tuple[float, float]] = deque(maxlen=MAX_TIMES)
        """When (monotonic), and the time to first token."""
        self.current = _Second()
        self.selected_total = 0


class History:
    """A ring of ``seconds`` samples for each scope. ``monotonic`` gives seconds."""

    def __init__(
        self,
        *,
        seconds: int = SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._tracks: dict[Scope, _Track] = {}
        self._lock = threading.Lock()

    def observe(self, observation: Observation) -> None:
        """Count a finished request into the current second of its tier, and of its member if it had one."""
        now = self._monotonic()
        with self._lock:
            self._count((observation.tier, None), observation, now)
            if observation.member is not None:
                self._count((observation.tier, observation.member), observation, now)

    def run_once(self, readings: Iterable[ScopeReading]) -> None:
        """Close the current second: one sample for each reading. A scope without one is forgotten."""
        at = self._monotonic()
        with self._lock:
            tracks: dict[Scope, _Track] = {}
            for reading in readings:
                scope = (reading.tier_id, reading.member_id)
                track = self._tracks.get(scope) or _Track(self._seconds)
                track.samples.append(_sample(at, reading, track.current))
                track.current = _Second()
                tracks[scope] = track
            self._tracks = tracks

    def samples(self, tier_id: str, member_id: str | None = None) -> tuple[Sample, ...]:
        """The samples of one scope, oldest first; none for a scope that is not known."""
        with self._lock:
            track = self._tracks.get((tier_id, member_id))
            return tuple(track.samples) if track is not None else ()

    def minute(self, tier_id: str, member_id: str | None = None) -> Minute:
        """Rates and percentiles over the samples of the last 60 seconds; zeros and None without any."""
        since = self._monotonic() - MINUTE
        with self._lock:
            track = self._tracks.get((tier_id, member_id))
            samples = [each for each in track.samples if each.at > since] if track is not None else []
            times = [value for at, value in track.times if at > since] if track is not None else []
        times.sort()
        requests = sum(sample.requests for sample in samples)
        seconds = samples[-1].at - samples[0].at + 1.0 if samples else 1.0
        return Minute(
            requests_per_second=requests / seconds,
            refused_per_second=sum(sample.refused for sample in samples) / seconds,
            error_share=sum(sample.errors for sample in samples) / requests if requests else None,
            first_token_p50=nearest_rank(times, 50),
            first_token_p95=nearest_rank(times, 95),
            selected=requests,
        )

    def selected_total(self, tier_id: str, member_id: str) -> int:
        """How many requests that a member took have ended since it was configured."""
        with self._lock:
            track = self._tracks.get((tier_id, member_id))
            return track.selected_total if track is not None else 0

    def _count(self, scope: Scope, observation: Observation, now: float) -> None:
        track = self._tracks.get(scope)
        if track is None:
            track = self._tracks[scope] = _Track(self._seconds)
        second = track.current
        if observation.outcome == "skipped":
            second.refused += 1
            return
        second.requests += 1
        second.errors += observation.outcome == "error"
        track.selected_total += 1
        if observation.first_token_seconds is not None:
            second.first_tokens.append(observation.first_token_seconds)
            track.times.append((now, observation.first_token_seconds))


def _sample(at: float, reading: ScopeReading, second: _Second) -> Sample:
    times = sorted(second.first_tokens)
    pressure = reading.pressure
    return Sample(
        at=at,
        active=reading.active,
        ceiling=reading.ceiling,
        pressure_ppm=pressure.pressure_ppm if pressure is not None else None,
        freshness=pressure.freshness if pressure is not None else None,
        requests=second.requests,
        errors=second.errors,
        refused=second.refused,
        first_token_p50=nearest_rank(times, 50),
        first_token_p95=nearest_rank(times, 95),
    )
