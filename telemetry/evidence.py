"""Where the one path leaves what happened: the decision log and whoever counts.

Called by request threads; hands everything on to memory or to a bounded queue and never waits.
"""

import threading
from collections import Counter

from routing.gateway import Observation, Refused
from routing.records import DecisionRecord
from telemetry.decisions import DecisionLog


class ProcessEvidence:
    """The evidence of one process: its decision log, and the refusals by tier and reason."""

    def __init__(self, log: DecisionLog) -> None:
        self.log = log
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def record(self, record: DecisionRecord, observation: Observation) -> None:
        self.log.append(record)

    def refused(self, tier_id: str | None, reason: Refused) -> None:
        with self._lock:
            self._refusals[tier_id or "", reason.value] += 1

    def refusals(self) -> dict[tuple[str, str], int]:
        """Requests refused so far, by tier id ("" before a tier was known) and reason."""
        with self._lock:
            return dict(self._refusals)
