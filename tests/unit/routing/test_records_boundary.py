"""The routing boundary on its fast way: the ledger's own decision is trusted, whatever else is not."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from admission.core import AdmissionLease, MemberAdmissionLease, MemberScope, TierAdmission, TierScope
from admission.replica_scheduler import (
    PressureFreshness,
    PressureSignalState,
    ReplicaDecision,
    ReplicaPressure,
    ReplicaScore,
    copy_replica_decision,
)
from routing.records import DecisionRecord, RecordBoundary, canonical_record
from tests.unit.routing.records_samples import CAPACITY, CONFIG, DIRECT, ROUND_ROBIN

MEMBERS = {"member-a": 2, "member-b": 4, "member-c": 8}
BOUNDARY = RecordBoundary(CONFIG)


def ledger(ceilings: dict[str, int] | None = None) -> TierAdmission:
    members = tuple(MemberScope(name, ceiling) for name, ceiling in (ceilings or MEMBERS).items())
    return TierAdmission([TierScope("primary", strategy="capacity", members=members)])


def acquire(
    source: TierAdmission, pressure: dict[str, ReplicaPressure] | None = None
) -> MemberAdmissionLease:
    lease = source.acquire_member("primary", dict.fromkeys(MEMBERS, True), pressure)
    assert lease is not None
    return lease


def record_of(lease: MemberAdmissionLease) -> DecisionRecord:
    return replace(CAPACITY, replica_member_id=lease.member_id, replica_scheduler=lease.selection)


def random_pressure(source: random.Random) -> dict[str, ReplicaPressure]:
    def one() -> ReplicaPressure:
        freshness = source.choice(list(PressureFreshness))
        if freshness is PressureFreshness.FRESH:
            return ReplicaPressure(freshness, source.randrange(3_000_000), PressureSignalState.VALID)
        if freshness is PressureFreshness.STALE:
            return ReplicaPressure(freshness, None, PressureSignalState.VALID)
        return ReplicaPressure(freshness)

    return {name: one() for name in MEMBERS}


@pytest.mark.requirement("C-T005", "C-R012")
def test_whatever_the_ledger_attaches_is_what_its_constructors_would_make() -> None:
    """The ground of the trust: 500 decisions under random load and pressure, fast and checked, are equal."""
    source = random.Random(5)
    admission = ledger()
    held: list[MemberAdmissionLease] = []
    for _ in range(500):
        if len(held) == 13:
            held.pop(source.randrange(13)).release()
        lease = acquire(admission, random_pressure(source))
        held.append(lease)
        record = record_of(lease)
        fast = BOUNDARY.canonical(record, lease=lease)
        assert fast.replica_scheduler is lease.selection
        assert fast == canonical_record(record, config=CONFIG)
        assert fast.replica_scheduler == copy_replica_decision(lease.selection)


@pytest.mark.requirement("C-T005")
def test_the_ledgers_decision_is_held_against_the_configuration() -> None:
    """A request that ran under another configuration than it is recorded under keeps its pair alone."""
    lease = acquire(ledger({"member-a": 2, "member-b": 5, "member-c": 8}))
    kept = BOUNDARY.canonical(record_of(lease), lease=lease)
    assert (kept.replica_member_id, kept.replica_selection) == (lease.member_id, "identity_passed")
    assert kept.replica_scheduler is None


class _OwnLease(MemberAdmissionLease):
    __slots__ = ()


def forgeries() -> Iterator[tuple[str, AdmissionLease | None]]:
    yield "no lease", None
    admission = ledger()
    other = acquire(admission)
    yield "a lease with another decision", other
    subclassed = _OwnLease(other._place, "member-b")
    subclassed.selection = CAPACITY.replica_scheduler
    yield "a lease of another class", subclassed
    elsewhere = MemberAdmissionLease(other._place, "member-a")
    elsewhere.selection = CAPACITY.replica_scheduler
    yield "a lease of another member", elsewhere


@pytest.mark.requirement("C-T005")
@pytest.mark.parametrize(("name", "lease"), list(forgeries()), ids=lambda value: str(value)[:40])
def test_a_decision_that_the_lease_does_not_vouch_for_is_checked_and_copied(
    name: str, lease: AdmissionLease | None
) -> None:
    kept = BOUNDARY.canonical(CAPACITY, lease=lease)
    assert kept.replica_scheduler == CAPACITY.replica_scheduler, name
    assert kept.replica_scheduler is not CAPACITY.replica_scheduler, name
    tampered = copy_replica_decision(CAPACITY.replica_scheduler)
    object.__setattr__(tampered, "eligible_member_ids", ("member-a", "http://10.0.0.1/secret"))
    dropped = BOUNDARY.canonical(replace(CAPACITY, replica_scheduler=tampered), lease=lease)
    assert (dropped.replica_member_id, dropped.replica_scheduler) == ("member-b", None), name


@pytest.mark.requirement("C-T005")
def test_a_lookalike_on_a_genuine_lease_is_dropped() -> None:
    class Lookalike(ReplicaDecision):
        __slots__ = ()

    lease = acquire(ledger())
    genuine = lease.selection
    assert genuine is not None
    lookalike = Lookalike(
        genuine.selected_member_id, genuine.reason, genuine.eligible_member_ids, genuine.scores
    )
    lease.selection = lookalike
    kept = BOUNDARY.canonical(record_of(lease), lease=lease)
    assert (kept.replica_member_id, kept.replica_scheduler) == (lease.member_id, None)


def test_a_boundary_serves_records_of_every_kind() -> None:
    for record in (DIRECT, ROUND_ROBIN, CAPACITY):
        assert BOUNDARY.canonical(record) == canonical_record(record, config=CONFIG) == record
    unknown = BOUNDARY.canonical(replace(DIRECT, route="made-up"))
    assert (unknown.route, unknown.requested_tier, unknown.served_tier) == (None, None, None)
    with pytest.raises(TypeError):
        BOUNDARY.canonical("not a record")  # type: ignore[arg-type]


def test_scores_stay_what_they_were() -> None:
    """A score row cannot be changed after the fact: the values are frozen."""
    lease = acquire(ledger())
    assert lease.selection is not None
    row: ReplicaScore = lease.selection.scores[0]
    with pytest.raises(AttributeError):
        row.local_active = 7  # type: ignore[misc]
