"""Drains as jobs of the process: whoever asked for one may wait for its end, or leave it running."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from admission.core import (
    MAX_WAIT_SECONDS,
    AdmissionError,
    DrainResult,
    ScopeConflictError,
    TierAdmission,
    UnknownScopeError,
)

logger = logging.getLogger("anvil.transitions")

DrainOutcome = Literal["drained", "timed_out", "reopened"]
"""How a drain ended; ``reopened``: the scope was readmitted or taken out of the configuration meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """One drain at one instant. Seconds; ``leases_left`` of its scope; ``outcome`` None while it runs."""

    timeout: float
    elapsed: float
    leases_left: int
    outcome: DrainOutcome | None


class Drain:
    """One drain of one scope. Made by `Drains.start`."""

    def __init__(
        self,
        ledger: TierAdmission,
        tier_id: str,
        member_id: str | None,
        *,
        timeout: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.tier_id: Final = tier_id
        self.member_id: Final = member_id
        self.timeout: Final = timeout
        self.result: DrainResult | None = None
        """None while the drain runs."""
        self._ledger = ledger
        self._monotonic = monotonic
        self._began = monotonic()
        self._elapsed = 0.0
        self._over = threading.Event()

    @property
    def outcome(self) -> DrainOutcome | None:
        if self.result is None:
            return None
        if self.result.drained:
            return "drained"
        return "timed_out" if self.result.timed_out else "reopened"

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for the end; whether it has come."""
        return self._over.wait(timeout)

    def progress(self) -> DrainProgress:
        result = self.result
        return DrainProgress(
            timeout=self.timeout,
            elapsed=self._monotonic() - self._began if result is None else self._elapsed,
            leases_left=self._leases_left(),
            outcome=self.outcome,
        )

    def _leases_left(self) -> int:
        try:
            snapshot = self._ledger.snapshot(self.tier_id)
        except UnknownScopeError:
            return 0
        if self.member_id is None:
            return snapshot.active_requests
        return dict(snapshot.member_active_requests).get(self.member_id, 0)

    def _end(self, result: DrainResult) -> None:
        self._elapsed = self._monotonic() - self._began
        self.result = result


class Drains:
    """The drains of one process: those that run, and of each scope the one that ended last."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._latest: dict[tuple[str, str | None], Drain] = {}
        self._lock = threading.Lock()

    def latest(self, tier_id: str, member_id: str | None) -> Drain | None:
        """The newest drain of the scope, running or over; None when there was none."""
        return self._latest.get((tier_id, member_id))

    def start(
        self,
        ledger: TierAdmission,
        tier_id: str,
        member_id: str | None,
        *,
        timeout: float,
        on_end: Callable[[Drain], None],
    ) -> Drain:
        """Begin to drain a quiesced scope in a thread of its own, for ``timeout`` seconds (over 0) at most.

        ``on_end`` is called once from that thread, when the result is there and before anybody who waits goes
        on. Raises AdmissionError: ScopeConflictError when the scope is open or being drained already.
        """
        if not 0 < timeout <= MAX_WAIT_SECONDS:
            raise AdmissionError("timeout_invalid")
        drain = Drain(ledger, tier_id, member_id, timeout=timeout, monotonic=self._monotonic)
        with self._lock:
            running = self._latest.get((tier_id, member_id))
            if running is not None and running.result is None:
                raise ScopeConflictError("drain_in_progress")
            first = ledger.drain(tier_id, 0.0, member_id)
            thread = threading.Thread(
                target=self._run, args=(drain, first, on_end), name="anvil-drain", daemon=True
            )
            thread.start()
            self._latest[tier_id, member_id] = drain
        return drain

    def _run(self, drain: Drain, first: DrainResult, on_end: Callable[[Drain], None]) -> None:
        result = first
        if not first.drained:
            try:
                result = drain._ledger.drain(drain.tier_id, drain.timeout, drain.member_id)
            except AdmissionError:
                # Readmitted, or no longer configured, before this thread came to it.
                result = DrainResult(drained=False, timed_out=False, snapshot=first.snapshot)
        drain._end(result)
        try:
            on_end(drain)
        except Exception:  # noqa: BLE001 - the drain is over whatever becomes of its record
            logger.error("the end of a drain could not be recorded")
        finally:
            drain._over.set()
