"""One log line when trouble begins and one when it is over, of what metrics show all the time.

Called once a second by the process's housekeeping: scopes that are no longer ready, a front door that turns
requests away, and a wall clock that was set. Nothing is told of what an operator has quiesced.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from routing.gateway import Refused
from routing.probes import AvailabilityResult
from routing.projections import completed
from routing.router import Router
from telemetry.evidence import ProcessEvidence

JUMP_SECONDS: Final = 5.0
"""By which the wall clock must have left the monotonic one within a second: what slews it stays far below."""

QUIET_SECONDS: Final = 10.0
"""Without a refusal, after which the front door has room again."""

logger = logging.getLogger("anvil.troubles")

_Scope = tuple[str, str | None]

_TURNED_AWAY: Final = ("", Refused.SERVER_BUSY.value)
"""The refusal that tells of a full front door: its tier, not known yet, and its reason."""


class Troubles:
    """Compares what is so now with what was so a second ago. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        *,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._ahead = wall_clock() - monotonic()
        self._ready: dict[_Scope, bool] = {}
        self._turned_away = 0
        self._since = 0
        """What had been turned away when the front door became full."""
        self._last_at: float | None = None
        """When somebody was turned away last; None while there is room."""

    def run_once(self, router: Router, evidence: ProcessEvidence) -> None:
        """Tell of what has changed since the last call."""
        self._tell_of_the_clock(evidence)
        self._tell_of_scopes(router)
        self._tell_of_the_front_door(evidence)

    def _tell_of_the_clock(self, evidence: ProcessEvidence) -> None:
        ahead = self._wall_clock() - self._monotonic()
        jump, self._ahead = ahead - self._ahead, ahead
        if abs(jump) >= JUMP_SECONDS:
            evidence.wall_clock_jumps += 1
            logger.warning("the wall clock jumped by %+.0f s: times of evidence jump with it", jump)

    def _tell_of_scopes(self, router: Router) -> None:
        before, self._ready = self._ready, {}
        for scope, result in _probed(router):
            self._ready[scope] = result.available
            if before.get(scope, result.available) == result.available:
                continue
            name = f"tier={scope[0]}" + (f" member={scope[1]}" if scope[1] is not None else "")
            if result.available:
                logger.info("%s is ready", name)
            else:
                logger.warning("%s is not ready: %s", name, result.reason)

    def _tell_of_the_front_door(self, evidence: ProcessEvidence) -> None:
        before, self._turned_away = self._turned_away, evidence.refusals().get(_TURNED_AWAY, 0)
        now = self._monotonic()
        if self._turned_away > before:
            if self._last_at is None:
                self._since = before
                logger.warning("requests are turned away: every place or the whole body budget is taken")
            self._last_at = now
        elif self._last_at is not None and now - self._last_at >= QUIET_SECONDS:
            self._last_at = None
            logger.info("there is room again: %d requests were turned away", self._turned_away - self._since)


def _probed(router: Router) -> list[tuple[_Scope, AvailabilityResult]]:
    """Every scope with a readiness of its own that is not quiesced, and its last completed result."""
    active = router.active
    if active is None:
        return []
    quiesced = router.quiesced_scopes()
    return [
        ((tier.id, member_id), completed(router.availability, tier.id, member_id))
        for tier in active.config.tiers
        for member_id in (tier.member_ids or (None,))
        if not quiesced & {(tier.id, None), (tier.id, member_id)}
    ]
