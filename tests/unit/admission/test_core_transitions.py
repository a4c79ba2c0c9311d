"""Quiesce, drain and readmit: tier and member scopes, and drains by events."""

import pytest

from admission.core import (
    AdmissionError,
    AdmissionLease,
    DrainResult,
    ScopeConflictError,
    TierAdmission,
    TierScope,
    UnknownScopeError,
)

from .ledgers import DrainingLedger, counts, ledger_of, ready, replicas

AB = ready("a", "b")


def two_members() -> TierAdmission:
    return ledger_of(replicas({"a": 4, "b": 4}))


def chosen(ledger: TierAdmission) -> str | None:
    """Whom the next request would get."""
    lease = ledger.acquire_member("primary", AB)
    if lease is None:
        return None
    lease.release()
    return lease.member_id


def state(ledger: TierAdmission, member_id: str | None = None) -> tuple[str, str | None, bool]:
    snapshot = ledger.snapshot("primary")
    if member_id is None:
        return snapshot.state, snapshot.reason, snapshot.draining
    member = next(member for member in snapshot.members if member.member_id == member_id)
    return member.state, member.reason, member.draining


# Quiesce and readmit -----------------------------------------------------------------------------------


@pytest.mark.requirement("Q-R011", "C-R011", "C-T001", "Q-A005")
def test_a_quiesced_tier_takes_nobody_and_cancels_nobody() -> None:
    ledger = two_members()
    running = ledger.acquire_member("primary", AB)
    assert running is not None
    assert ledger.quiesce("primary", "kernel-upgrade") == ledger.snapshot("primary")
    assert state(ledger) == ("quiesced", "kernel-upgrade", True)
    assert state(ledger, "a") == ("admitting", None, False)
    assert chosen(ledger) is None
    assert counts(ledger) == (1, {"a": 1, "b": 0})
    assert running.release() is True
    assert state(ledger) == ("quiesced", "kernel-upgrade", False)
    assert ledger.readmit("primary").state == "admitting"
    assert chosen(ledger) == "b"


@pytest.mark.requirement("C-R011", "C-T001", "C-T008")
@pytest.mark.parametrize("strategy", ["round_robin", "capacity"])
def test_a_quiesced_member_leaves_its_peer_open(strategy: str) -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 4}, strategy))  # type: ignore[arg-type]
    ledger.quiesce("primary", member_id="a")
    assert state(ledger) == ("admitting", None, False)
    assert state(ledger, "a") == ("quiesced", "operator", False)
    assert [chosen(ledger) for _ in range(3)] == ["b", "b", "b"]
    ledger.readmit("primary", "a")
    assert [chosen(ledger) for _ in range(3)] == ["a", "b", "a"]


@pytest.mark.requirement("C-R011", "C-T008")
def test_tier_and_member_scopes_are_independent() -> None:
    ledger = two_members()
    ledger.quiesce("primary", "tier-work")
    ledger.quiesce("primary", "member-work", "a")
    ledger.readmit("primary")
    assert state(ledger) == ("admitting", None, False)
    assert state(ledger, "a") == ("quiesced", "member-work", False)
    assert chosen(ledger) == "b"
    ledger.quiesce("primary", "tier-work")
    ledger.readmit("primary", "a")
    assert state(ledger) == ("quiesced", "tier-work", False)
    assert state(ledger, "a") == ("admitting", None, False)
    assert chosen(ledger) is None


@pytest.mark.requirement("C-R011")
def test_all_members_quiesced_is_plain_unavailability() -> None:
    ledger = two_members()
    ledger.quiesce("primary", member_id="a")
    ledger.quiesce("primary", member_id="b")
    assert chosen(ledger) is None
    assert state(ledger) == ("admitting", None, False)


@pytest.mark.requirement("C-R004")
def test_a_lease_released_under_quiesce_does_not_open_its_member() -> None:
    ledger = two_members()
    lease = ledger.acquire_member("primary", AB)
    assert lease is not None
    ledger.quiesce("primary", member_id="a")
    lease.release()
    assert [chosen(ledger) for _ in range(4)] == ["b"] * 4


@pytest.mark.requirement("contract 3")
def test_quiescing_again_replaces_the_reason_and_readmitting_again_changes_nothing() -> None:
    ledger = two_members()
    ledger.quiesce("primary", "first")
    ledger.quiesce("primary", "second")
    assert state(ledger) == ("quiesced", "second", False)
    ledger.readmit("primary")
    assert ledger.readmit("primary") == ledger.snapshot("primary")


@pytest.mark.requirement("contract 3")
@pytest.mark.parametrize("reason", ["", "two words", "a" * 129, "naïve", None, 7, ["x"]])
def test_reasons_that_are_refused(reason: object) -> None:
    ledger = two_members()
    before = ledger.snapshot("primary")
    for member_id in (None, "a"):
        with pytest.raises(AdmissionError, match=r"\Athe reason is not a reason code\Z"):
            ledger.quiesce("primary", reason, member_id)  # type: ignore[arg-type]
    assert ledger.snapshot("primary") == before


@pytest.mark.requirement("contract 3")
def test_the_longest_reason() -> None:
    assert two_members().quiesce("primary", "a" * 128).reason == "a" * 128


@pytest.mark.requirement("C-T008", "C-T001")
@pytest.mark.parametrize("member_id", ["c", "", 0, ["a"], "http://secret"])
def test_unknown_members_are_refused_before_anything_changes(member_id: object) -> None:
    ledger = two_members()
    before = ledger.snapshot("primary")
    for attempt in (
        lambda: ledger.quiesce("primary", member_id=member_id),  # type: ignore[arg-type]
        lambda: ledger.readmit("primary", member_id),  # type: ignore[arg-type]
        lambda: ledger.drain("primary", 1, member_id),  # type: ignore[arg-type]
    ):
        with pytest.raises(UnknownScopeError, match=r"\Athe member is not configured\Z"):
            attempt()
    assert ledger.snapshot("primary") == before


@pytest.mark.requirement("C-T008", "C-T001")
def test_a_direct_tier_has_no_member_scope() -> None:
    ledger = ledger_of(TierScope("solo", 1))
    for attempt in (
        lambda: ledger.quiesce("solo", member_id="a"),
        lambda: ledger.readmit("solo", "a"),
        lambda: ledger.drain("solo", 1, "a"),
    ):
        with pytest.raises(AdmissionError, match=r"\Athe tier has no members\Z") as refusal:
            attempt()
        assert refusal.value.code == "tier_is_direct"
    assert ledger.snapshot("solo").state == "admitting"


# Drains ------------------------------------------------------------------------------------------------


def held(ledger: TierAdmission, *wanted: str) -> dict[str, AdmissionLease]:
    """One lease of each member named."""
    leases = {}
    for member_id in wanted:
        lease = ledger.acquire_member("primary", ready(member_id, down=tuple({"a", "b"} - {member_id})))
        assert lease is not None
        leases[member_id] = lease
    return leases


@pytest.mark.requirement("C-R011", "C-T008", "contract 3")
@pytest.mark.parametrize("member_id", [None, "a"])
def test_an_open_scope_is_not_drained(member_id: str | None) -> None:
    ledger = two_members()
    # Quiescing the other scope does not make this one drainable.
    ledger.quiesce("primary", member_id="a" if member_id is None else None)
    with pytest.raises(ScopeConflictError, match=r"\Athe scope is not quiesced\Z") as conflict:
        ledger.drain("primary", 1, member_id)
    assert conflict.value.code == "scope_not_quiesced"


@pytest.mark.requirement("C-R011")
def test_an_idle_scope_is_drained_at_once() -> None:
    ledger = two_members()
    snapshot = ledger.quiesce("primary")
    assert ledger.drain("primary", 0) == DrainResult(drained=True, timed_out=False, snapshot=snapshot)


@pytest.mark.requirement("Q-R011", "C-R011", "Q-T004", "C-T001", "Q-A005", "C-A006")
def test_a_tier_drain_waits_for_every_member() -> None:
    ledger = DrainingLedger(replicas({"a": 4, "b": 4}))
    leases = held(ledger, "a", "b")
    ledger.quiesce("primary")
    drain = ledger.begin_drain("primary")
    assert ledger.snapshot("primary").draining is True
    leases["a"].release()
    assert drain.result is None
    assert ledger.snapshot("primary").draining is True
    leases["b"].release()
    result = drain.end()
    assert (result.drained, result.timed_out) == (True, False)
    assert result.snapshot.active_requests == 0
    assert result.snapshot.draining is False
    assert result.snapshot.state == "quiesced"


@pytest.mark.requirement("C-R011", "C-T001", "C-T008", "C-A006")
def test_a_member_drain_waits_for_that_member_only() -> None:
    ledger = DrainingLedger(replicas({"a": 4, "b": 4}))
    leases = held(ledger, "a", "b")
    ledger.quiesce("primary", member_id="a")
    drain = ledger.begin_drain("primary", "a")
    assert chosen(ledger) == "b"
    leases["a"].release()
    result = drain.end()
    assert (result.drained, result.timed_out) == (True, False)
    assert result.snapshot.member_active_requests == (("a", 0), ("b", 1))
    assert leases["b"].release() is True


@pytest.mark.requirement("C-R011", "C-T008")
def test_a_drain_of_a_direct_tier() -> None:
    ledger = DrainingLedger(TierScope("solo", 2))
    lease = ledger.acquire("solo")
    assert lease is not None
    ledger.quiesce("solo")
    drain = ledger.begin_drain("solo")
    lease.release()
    assert drain.end().drained is True


@pytest.mark.requirement("contract 3")
def test_tier_and_member_drains_run_side_by_side() -> None:
    ledger = DrainingLedger(replicas({"a": 4, "b": 4}))
    leases = held(ledger, "a", "b")
    ledger.quiesce("primary")
    for member_id in ("a", "b"):
        ledger.quiesce("primary", member_id=member_id)
    of_tier, of_a, of_b = (ledger.begin_drain("primary", scope) for scope in (None, "a", "b"))
    leases["a"].release()
    assert of_a.end().drained is True
    assert (of_tier.result, of_b.result) == (None, None)
    leases["b"].release()
    assert of_b.end().drained is True
    assert of_tier.end().drained is True


@pytest.mark.requirement("contract 3")
@pytest.mark.parametrize("member_id", [None, "a"])
def test_a_second_drain_of_a_scope_is_a_conflict(member_id: str | None) -> None:
    ledger = DrainingLedger(replicas({"a": 4, "b": 4}))
    leases = held(ledger, "a")
    ledger.quiesce("primary", member_id=member_id)
    drain = ledger.begin_drain("primary", member_id)
    with pytest.raises(ScopeConflictError, match=r"\Athe scope is being drained already\Z") as conflict:
        ledger.drain("primary", 1, member_id)
    assert conflict.value.code == "drain_in_progress"
    leases["a"].release()
    assert drain.end().drained is True
    # The place of the drain is free again.
    assert ledger.drain("primary", 0, member_id).drained is True


@pytest.mark.requirement("contract 3", "case 7", "C-A006")
@pytest.mark.parametrize("member_id", [None, "a"])
def test_a_drain_answers_a_timeout_honestly_and_cancels_nothing(member_id: str | None) -> None:
    readings = iter([100.0, 105.0])
    ledger = TierAdmission([replicas({"a": 4, "b": 4})], monotonic=lambda: next(readings))
    leases = held(ledger, "a")
    ledger.quiesce("primary", "upgrade", member_id)
    result = ledger.drain("primary", 5, member_id)
    assert (result.drained, result.timed_out) == (False, True)
    assert result.snapshot == ledger.snapshot("primary")
    assert result.snapshot.active_requests == 1
    assert state(ledger, member_id) == ("quiesced", "upgrade", True)
    assert leases["a"].release() is True


@pytest.mark.requirement("contract 3")
def test_a_real_timeout_ends_a_drain() -> None:
    ledger = two_members()
    leases = held(ledger, "a")
    ledger.quiesce("primary")
    assert ledger.drain("primary", 0.01).timed_out is True
    assert ledger.drain("primary", 0).timed_out is True
    leases["a"].release()
    assert ledger.drain("primary", 0.01).drained is True


@pytest.mark.requirement("contract 3")
@pytest.mark.parametrize("member_id", [None, "a"])
def test_a_readmit_ends_the_drain_undrained(member_id: str | None) -> None:
    ledger = DrainingLedger(replicas({"a": 4, "b": 4}))
    leases = held(ledger, "a")
    ledger.quiesce("primary", member_id=member_id)
    drain = ledger.begin_drain("primary", member_id)
    ledger.readmit("primary", member_id)
    # Quiescing again does not bring the ended drain back, and another one may start.
    ledger.quiesce("primary", member_id=member_id)
    assert ledger.drain("primary", 0, member_id).timed_out is True
    leases["a"].release()
    result = drain.end()
    assert (result.drained, result.timed_out) == (False, False)
    scope = result.snapshot if member_id is None else result.snapshot.members[0]
    assert (scope.state, scope.active_requests) == ("admitting", 1)


@pytest.mark.requirement("C-R011")
def test_the_readmit_of_another_scope_leaves_a_drain_alone() -> None:
    ledger = DrainingLedger(replicas({"a": 4, "b": 4}))
    leases = held(ledger, "a")
    ledger.quiesce("primary")
    ledger.quiesce("primary", member_id="a")
    drain = ledger.begin_drain("primary")
    ledger.readmit("primary", "a")
    assert drain.result is None
    leases["a"].release()
    assert drain.end().drained is True


@pytest.mark.requirement("contract 3")
def test_an_interrupted_drain_frees_its_scope() -> None:
    readings = iter([0.0])

    def clock_that_breaks() -> float:
        return next(readings)

    ledger = TierAdmission([replicas({"a": 4, "b": 4})], monotonic=clock_that_breaks)
    leases = held(ledger, "a")
    ledger.quiesce("primary")
    with pytest.raises(StopIteration):
        ledger.drain("primary", 1)
    readings = iter([0.0, 1.0])
    assert ledger.drain("primary", 1).timed_out is True
    assert leases["a"].release() is True
