"""Tells when a writer or the prober has stopped turning: one log line when it does, one when it goes on.

Called once a second by the process's housekeeping; metrics show the same figures all the time. The relay loop
is watched by the server's own poller.
"""

import logging
from collections.abc import Mapping
from typing import Final

from routing.router import Router
from telemetry.evidence import ProcessEvidence

WRITER_SECONDS: Final = 15.0
"""Longer than a database's own timeout for a lock."""

PROBER_MARGIN: Final = 10.0
"""Beyond the interval and two timeouts, after which a turn of the prober is due whatever its probes do."""

logger = logging.getLogger("anvil.watchdog")


class Watchdog:
    """Compares how long things have been at their current turn with how long they may be."""

    def __init__(self) -> None:
        self._stuck: set[str] = set()

    def run_once(self, router: Router, evidence: ProcessEvidence) -> None:
        """Tell of what has stopped since the last call, and of what goes on again."""
        limits = _limits(router, evidence)
        stuck = {name for name, (seconds, limit) in limits.items() if seconds > limit}
        for name in sorted(stuck - self._stuck):
            logger.error("%s has not turned for %.0f s", name, limits[name][0])
        for name in sorted(self._stuck - stuck):
            logger.warning("%s turns again", name)
        self._stuck = stuck


def _limits(router: Router, evidence: ProcessEvidence) -> Mapping[str, tuple[float, float]]:
    """What is watched by name: seconds at the current turn, and how many there may be."""
    limits: dict[str, tuple[float, float]] = {}
    for name, writer in evidence.writers().items():
        limits[f"the writer of {name}"] = (writer.busy_seconds, WRITER_SECONDS)
    active = router.active
    if active is not None:
        settings = active.config.router
        allowed = settings.availability_probe_interval + 2 * settings.availability_probe_timeout
        limits["the readiness prober"] = (
            router.availability.seconds_since_turn(),
            allowed + PROBER_MARGIN,
        )
    return limits
