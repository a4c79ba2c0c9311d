"""Small ledgers and snapshots for the tests of the admission room."""

from admission.core import MemberScope, Strategy, TierAdmission, TierScope
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
