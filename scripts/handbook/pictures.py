"""The pictures of docs/scheduling.md, as SVG: each is a run of the scheduler itself, drawn.

No picture holds a number of its own. What a member is given, how it ranks and when its pressure is no longer
believed comes from the ledger and the rank as they are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from admission.core import MemberScope, TierAdmission, TierScope
from admission.replica_scheduler import (
    FRESH_SECONDS,
    PPM,
    PressureFreshness,
    ReplicaCandidate,
    ReplicaPressure,
    normalize_replica_pressure,
    rank_replicas,
)

WIDTH: Final = 720
_INK, _FAINT, _LINE, _PAPER = "#1f2933", "#5a6772", "#c9d1d9", "#ffffff"
_COLOURS: Final = {"member-a": "#2f6f9f", "member-b": "#b5651d", "member-c": "#4f7f3f", "member-d": "#7b4f9f"}
_MEMBERS: Final = ("member-a", "member-b", "member-c")


def files(directory: Path) -> dict[Path, str]:
    """Every picture by its place."""
    drawn = {"rank": rank(), "filling": filling(), "restart": restart(), "freshness": freshness()}
    return {directory / f"{name}.svg": text for name, text in drawn.items()}


# Drawing -----------------------------------------------------------------------------------------------


class _Picture:
    def __init__(self, height: int, title: str) -> None:
        self._height = height
        self._parts = [
            f"<title>{escape(title)}</title>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="{_PAPER}" '
            f'stroke="{_LINE}"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        bold: bool = False,
        faint: bool = False,
        end: bool = False,
        fill: str = "",
        middle: bool = False,
    ) -> None:
        anchor = "end" if end else "middle" if middle else "start"
        weight = ' font-weight="600"' if bold else ""
        colour = fill or (_FAINT if faint else _INK)
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
        )

    def bar(self, x: float, y: float, width: float, height: float, fill: str, *, frame: str = "none") -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" '
            f'stroke="{frame}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, colour: str = _LINE) -> None:
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1"/>'
        )

    def render(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" '
            f'height="{self._height}" role="img" font-family="system-ui, sans-serif" font-size="13">'
        )
        return "\n".join([head, *self._parts, "</svg>", ""])


# One choice --------------------------------------------------------------------------------------------


def rank() -> str:
    """Four members that could be chosen and a full one, in the order of the rank."""
    fresh, stale = PressureFreshness.FRESH, PressureFreshness.STALE
    state = {
        "member-a": (4, 8, _pressure(fresh, 620_000)),
        "member-b": (2, 4, _pressure(fresh, 350_000)),
        "member-c": (4, 8, _pressure(stale, None)),
        "member-d": (5, 8, _pressure(fresh, 0)),
        "member-e": (8, 8, _pressure(fresh, 1_000_000)),
    }
    decision = rank_replicas(
        tuple(
            ReplicaCandidate(member_id, True, active, ceiling, pressure)
            for member_id, (active, ceiling, pressure) in state.items()
        ),
        cursor=0,
    )
    picture = _Picture(70 + 40 * len(state), "One choice, in the order of the rank")
    for x, words in ((24, "place"), (80, "member"), (180, "local load"), (400, "pressure"), (580, "turn")):
        picture.text(x, 32, words, faint=True)
    picture.line(20, 44, WIDTH - 20, 44)
    order = [score.member_id for score in decision.scores]
    order += [member_id for member_id in state if member_id not in order]
    scores = {score.member_id: score for score in decision.scores}
    for number, member_id in enumerate(order):
        y = 70 + 40 * number
        active, ceiling, pressure = state[member_id]
        score = scores.get(member_id)
        chosen = member_id == decision.selected_member_id
        picture.text(24, y, str(number + 1) if score else "-", bold=chosen, faint=not score)
        picture.text(80, y, member_id, bold=chosen, faint=not score)
        picture.bar(180, y - 11, 120, 14, "#eef1f4", frame=_LINE)
        picture.bar(180, y - 11, 120 * active / ceiling, 14, _COLOURS["member-a"] if score else _LINE)
        picture.text(310, y, f"{active} / {ceiling}", bold=chosen, faint=not score)
        known = pressure.pressure_ppm is not None
        words = f"{pressure.pressure_ppm:,} ppm" if known else f"{pressure.freshness}: unknown"
        picture.text(400, y, words, bold=chosen, faint=not score)
        picture.text(
            580, y, str(score.rotating_rank) if score else "full: no candidate", bold=chosen, faint=not score
        )
    return picture.render()


def _pressure(freshness: PressureFreshness, ppm: int | None) -> ReplicaPressure:
    made = normalize_replica_pressure(
        observed_at=0.0,
        now_monotonic=0.0 if freshness is PressureFreshness.FRESH else FRESH_SECONDS + 1,
        successful=True,
        kv_cache_usage_fraction=(ppm or 0) / PPM,
    )
    assert (made.freshness, made.pressure_ppm) == (freshness, ppm), "the sample is not what is to be drawn"
    return made


# Many choices ------------------------------------------------------------------------------------------


def filling() -> str:
    """Three members with different ceilings, from empty to full."""
    ceilings = {"member-a": 8, "member-b": 4, "member-c": 2}
    ledger = _ledger(ceilings)
    return _strip(
        "Ceilings 8, 4 and 2: requests come and none ends",
        ceilings,
        _take(ledger, sum(ceilings.values()) + 1),
    )


def restart() -> str:
    """A member that comes back empty beside two that are three quarters full."""
    ceilings = dict.fromkeys(_MEMBERS, 8)
    ledger = _ledger(ceilings)
    before = _take(ledger, 12, ready=("member-a", "member-b"))
    assert before.count("member-a") == before.count("member-b") == 6, "the peers are to be equally full"
    taken = _take(ledger, sum(ceilings.values()) - len(before) + 1)
    return _strip(
        "member-c comes back at 0 beside two at 6 of 8",
        ceilings,
        taken,
        before={"member-a": 6, "member-b": 6},
    )


def _ledger(ceilings: dict[str, int]) -> TierAdmission:
    members = tuple(MemberScope(member_id, ceiling) for member_id, ceiling in ceilings.items())
    return TierAdmission([TierScope("tier", None, "capacity", members)])


def _take(ledger: TierAdmission, count: int, *, ready: Sequence[str] = _MEMBERS) -> list[str | None]:
    """``count`` requests that stay; which member each was given, None for a refusal."""
    readiness = {member_id: member_id in ready for member_id in _MEMBERS}
    pressure = dict.fromkeys(_MEMBERS, ReplicaPressure())
    chosen: list[str | None] = []
    for _ in range(count):
        lease = ledger.acquire_member("tier", readiness, pressure)
        chosen.append(None if lease is None else lease.member_id)
        _KEPT.append(lease)
    return chosen


_KEPT: Final[list[object]] = []
"""Leases that last as long as the process: one that is dropped is given back."""


def _strip(
    title: str,
    ceilings: dict[str, int],
    chosen: Sequence[str | None],
    *,
    before: dict[str, int] | None = None,
) -> str:
    picture = _Picture(78 + 34 * len(ceilings), title)
    picture.text(24, 30, title, bold=True)
    left, step = 150.0, (WIDTH - 150.0 - 70.0) / len(chosen)
    for row, (member_id, ceiling) in enumerate(ceilings.items()):
        y = 62 + 34 * row
        start = (before or {}).get(member_id, 0)
        picture.text(24, y, f"{member_id}  {start}/{ceiling}")
        picture.line(left, y - 4, WIDTH - 70, y - 4)
        count = start
        for number, taker in enumerate(chosen):
            if taker == member_id:
                count += 1
                x = left + step * number
                picture.bar(x + 1, y - 16, step - 2, 24, _COLOURS[member_id])
                picture.text(x + step / 2, y + 1, str(count), fill=_PAPER, middle=True)
        picture.text(WIDTH - 24, y, f"{count}/{ceiling}", end=True)
    y = 62 + 34 * len(ceilings)
    picture.text(24, y, "request", faint=True)
    for number, taker in enumerate(chosen):
        if taker:
            picture.text(left + step * (number + 0.5), y, str(number + 1), faint=True, middle=True)
        else:
            picture.text(left + step * number + 6, y, "refused", bold=True)
    return picture.render()


# Freshness ---------------------------------------------------------------------------------------------


def freshness() -> str:
    """What one good reading counts as while it grows old, and what a failed one does."""
    horizon = 8.0
    picture = _Picture(150, "How long a reading is believed")
    left, scale = 150.0, (WIDTH - 200.0) / horizon
    edges = [n / 100 for n in range(int(horizon * 100) + 1)]
    for row, (name, successful) in enumerate((("read well", True), ("read failed", False))):
        y = 40 + 40 * row
        picture.text(24, y, name)
        levels = [
            normalize_replica_pressure(
                observed_at=0.0, now_monotonic=edge, successful=successful, kv_cache_usage_fraction=0.5
            ).freshness
            for edge in edges
        ]
        begin = 0.0
        for edge, level, following in zip(edges, levels, [*levels[1:], None], strict=True):
            if level is not following:
                width = (edge - begin) * scale
                known = level is PressureFreshness.FRESH
                picture.bar(
                    left + begin * scale, y - 16, width, 24, _COLOURS["member-c"] if known else "#e4e8ec"
                )
                words = f"{level}: its pressure counts" if known else f"{level}: ranks as unknown"
                colour = _PAPER if known else _INK
                picture.text(left + begin * scale + 8, y, words, fill=colour)
                begin = edge
    picture.line(left, 104, left + horizon * scale, 104)
    for second in range(int(horizon) + 1):
        x = left + second * scale
        picture.line(x, 104, x, 110)
        picture.text(x, 126, str(second), faint=True, middle=True)
    picture.text(24, 126, "seconds old", faint=True)
    return picture.render()
