"""Small ledgers and snapshots for the tests of the admission room."""

from threading import Semaphore, Thread, local

from admission.core import DrainResult, MemberScope, Strategy, TierAdmission, TierScope
from admission.replica_scheduler import PressureFreshness, PressureSignalState, ReplicaPressure

WAIT_SECONDS = 30.0
"""How long a test waits for what must happen; it is reached only when it does not."""


def fresh(ppm: int = 0) -> ReplicaPressure:
    return ReplicaPressure(PressureFreshness.FRESH, ppm, PressureSignalState.VALID, PressureSignalState.VALID)


def replicas(
    ceilings: dict[str, int | None],
    strategy: Strategy = "capacity",
    max_concurrency: int | None = None,
    tier_id: str = "primary",
) -> TierScope:
    members = tuple(MemberScope(member_id, ceiling) for member_id, ceiling in ceilings.items())
    return TierScope(tier_id, max_concurrency, strategy, members)


def ledger_of(*scopes: TierScope) -> TierAdmission:
    return TierAdmission(scopes)


def ready(*member_ids: str, down: tuple[str, ...] = ()) -> dict[str, bool]:
    return {**dict.fromkeys(member_ids, True), **dict.fromkeys(down, False)}


def counts(ledger: TierAdmission, tier_id: str = "primary") -> tuple[int, dict[str, int]]:
    """A tier's active count and those of its members, which must add up."""
    snapshot = ledger.snapshot(tier_id)
    members = dict(snapshot.member_active_requests)
    assert {member.member_id: member.active_requests for member in snapshot.members} == members
    assert not members or sum(members.values()) == snapshot.active_requests
    return snapshot.active_requests, members


class Drain(Thread):
    """A drain in a thread; ``result`` is None until it ended."""

    def __init__(self, ledger: TierAdmission, tier_id: str, member_id: str | None) -> None:
        super().__init__(daemon=True)
        # More patience than the test has: only what the ledger does ends the drain.
        self.work = lambda: ledger.drain(tier_id, 3600, member_id)
        self.result: DrainResult | None = None

    def run(self) -> None:
        self.result = self.work()

    def end(self) -> DrainResult:
        self.join(WAIT_SECONDS)
        assert self.result is not None
        return self.result


class DrainingLedger(TierAdmission):
    """A ledger whose clock stands still and tells when a drain has begun to wait.

    A drain reads the clock for its deadline, and again once its scope knows of it.
    """

    def __init__(self, *scopes: TierScope) -> None:
        self._readings = local()
        self._standing = Semaphore(0)
        super().__init__(scopes, monotonic=self._read)

    def _read(self) -> float:
        self._readings.count = getattr(self._readings, "count", 0) + 1
        if self._readings.count == 2:
            self._standing.release()
        return 0.0

    def begin_drain(self, tier_id: str = "primary", member_id: str | None = None) -> Drain:
        """Start a drain and return when it waits for its scope."""
        drain = Drain(self, tier_id, member_id)
        drain.start()
        assert self._standing.acquire(timeout=WAIT_SECONDS)
        return drain
