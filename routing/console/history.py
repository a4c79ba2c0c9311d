"""Where the fleet page's figures come from: whoever keeps the history registers here (`bind`).

Routing keeps no history of its own. Without a source the pages leave the figures' places empty.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

BUCKETS: Final = 90
BUCKET_SECONDS: Final = 10.0
"""A sparkline shows the last 15 minutes, ten seconds to a point."""

WIDTH: Final = 180.0
HEIGHT: Final = 24.0
"""Of a sparkline's drawing, in its own units."""


class Figures(Protocol):
    """One scope's last minute. Seconds; shares are 0 to 1; None where there was no request."""

    @property
    def requests_per_second(self) -> float: ...

    @property
    def refused_per_second(self) -> float: ...

    @property
    def error_share(self) -> float | None: ...

    @property
    def first_token_p50(self) -> float | None: ...

    @property
    def first_token_p95(self) -> float | None: ...


class Reading(Protocol):
    """One second of one scope: its time on the monotonic clock, and requests that were running."""

    @property
    def at(self) -> float: ...

    @property
    def active(self) -> int: ...


class HistorySource(Protocol):
    """The last 15 minutes of every scope; telemetry's `History` is one. Reading it must be cheap."""

    def minute(self, tier_id: str, member_id: str | None = None) -> Figures: ...

    def samples(self, tier_id: str, member_id: str | None = None) -> Sequence[Reading]: ...

    def selected_total(self, tier_id: str, member_id: str) -> int: ...


_source: Callable[[], HistorySource | None] = lambda: None  # noqa: E731 - a default that `bind` replaces


def bind(source: Callable[[], HistorySource | None]) -> None:
    """Make ``source`` the way to this process's history; it answers None while there is none."""
    global _source
    _source = source


def current() -> HistorySource | None:
    """This process's history, or None."""
    return _source()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkline:
    """Running requests over time as polylines of `WIDTH` by `HEIGHT`; a gap in the samples is a gap here."""

    lines: tuple[str, ...]
    latest: int
    peak: int


def sparkline(samples: Sequence[Reading], *, now: float, ceiling: int | None) -> Sparkline | None:
    """The samples of the last 15 minutes before ``now``, the most of each ten seconds; None without any.

    ``now`` is the monotonic clock's, as the samples' times are: a wall clock that is set loses no history.
    The full height is the ceiling, or the peak where there is none.
    """
    most: dict[int, int] = {}
    for sample in samples:
        place = BUCKETS - 1 - int((now - sample.at) // BUCKET_SECONDS)
        if 0 <= place < BUCKETS:
            most[place] = max(sample.active, most.get(place, 0))
    if not most:
        return None
    peak = max(most.values())
    top = max(ceiling or peak, peak, 1)
    lines: list[list[str]] = []
    previous = -2
    for place in sorted(most):
        x = place * WIDTH / (BUCKETS - 1)
        y = 1 + (HEIGHT - 2) * (1 - most[place] / top)
        point = f"{x:.1f},{y:.1f}"
        if place == previous + 1:
            lines[-1].append(point)
        else:
            # A short level stroke, so that a single point shows at all.
            lines.append([f"{max(0.0, x - 3):.1f},{y:.1f}", point])
        previous = place
    return Sparkline(lines=tuple(" ".join(line) for line in lines), latest=most[max(most)], peak=peak)
