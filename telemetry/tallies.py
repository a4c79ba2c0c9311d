"""Counters and histograms of finished requests since the process started: they outlive the ring.

Plain dictionaries, made for one thread at a time (`telemetry.evidence` sees to that), since the counters of
prometheus_client take a lock for each value. Label values come from configured names alone; key names, which
people make at any time, are bounded.
"""

from bisect import bisect_left
from collections import Counter
from typing import Final

from routing.passage import Observation

MAX_KEY_NAMES: Final = 256
OTHER_KEYS: Final = "(other)"
"""The label of every key name beyond the bound."""

REQUEST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
FIRST_TOKEN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
OVERHEAD_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
"""Upper bounds in seconds. The first request of a cold member may wait for a probe: hence the last two."""


class Histogram:
    """Counts of values by upper bound, the last of them without one, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> "Histogram":
        """The same counts, to be read while this one goes on counting."""
        other = Histogram(self.bounds)
        other.counts = list(self.counts)
        other.total = self.total
        return other

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of ``le`` and the count up to it, the last ``+Inf``."""
        pairs, running = [], 0
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            pairs.append((bound, float(running)))
        return pairs


class Tallies:
    """What has been counted so far. Not thread-safe."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """By route, tier and outcome (served, error, skipped)."""
        self.tokens: Counter[tuple[str, str]] = Counter()
        """By route and kind (prompt, completion)."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        """By tier ("" before one was known) and reason."""
        self.key_requests: Counter[str] = Counter()
        self.key_tokens: Counter[tuple[str, str]] = Counter()
        self.request_seconds: dict[str, Histogram] = {}
        """By tier, of requests that were dispatched."""
        self.first_token_seconds: dict[str, Histogram] = {}
        self.overhead_seconds = Histogram(OVERHEAD_BUCKETS)
        self._key_names: set[str] = set()

    def observe(self, observation: Observation) -> None:
        """Count one finished request; one that was never dispatched is in no histogram."""
        route, tier, outcome = observation.route, observation.tier, observation.outcome
        self.requests[route, tier, outcome] += 1
        key = self.key_label(observation.key_name)
        self.key_requests[key] += 1
        for kind, count in (
            ("prompt", observation.prompt_tokens),
            ("completion", observation.completion_tokens),
        ):
            if count:
                self.tokens[route, kind] += count
                self.key_tokens[key, kind] += count
        if observation.overhead_seconds is None:
            return
        self.overhead_seconds.observe(observation.overhead_seconds)
        _of_tier(self.request_seconds, tier, REQUEST_BUCKETS).observe(observation.seconds)
        if observation.first_token_seconds is not None:
            histogram = _of_tier(self.first_token_seconds, tier, FIRST_TOKEN_BUCKETS)
            histogram.observe(observation.first_token_seconds)

    def refuse(self, tier_id: str, reason: str, key_name: str | None) -> None:
        """Count one refusal; with ``key_name`` as a request of that key, too: no record will follow it."""
        self.refusals[tier_id, reason] += 1
        if key_name is not None:
            self.key_requests[self.key_label(key_name)] += 1

    def key_label(self, name: str) -> str:
        """The label of a key name: the name itself for the first of them, then `OTHER_KEYS`."""
        if name not in self._key_names:
            if len(self._key_names) >= MAX_KEY_NAMES - 1:
                return OTHER_KEYS
            self._key_names.add(name)
        return name


def _of_tier(histograms: dict[str, Histogram], tier: str, bounds: tuple[float, ...]) -> Histogram:
    histogram = histograms.get(tier)
    if histogram is None:
        histogram = histograms[tier] = Histogram(bounds)
    return histogram
