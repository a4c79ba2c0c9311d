"""The whole ledger against a model that a reader can check: plain objects, plain arithmetic, no locks."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from admission.core import (
    AdmissionError,
    AdmissionLease,
    MemberAdmissionLease,
    MemberScope,
    ScopeConflictError,
    Strategy,
    TierAdmission,
    TierScope,
    UnknownScopeError,
)
from admission.replica_scheduler import (
    PressureFreshness,
    ReplicaPressure,
    ValidatedPressure,
    ValidatedReadiness,
)

from .ledgers import fresh

# The model ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ModelScope:
    """A tier or a member: its ceiling, why it is closed, how many are in."""

    ceiling: int | None = None
    reason: str | None = None
    active: int = 0

    @property
    def is_open(self) -> bool:
        return self.reason is None and (self.ceiling is None or self.active < self.ceiling)


@dataclass(eq=False)
class ModelTier(ModelScope):
    strategy: Strategy = "direct"
    members: dict[str, ModelScope] = field(default_factory=dict)
    turn: str = ""
    """The member at which rotation starts, or what came before the next one."""

    @property
    def ids(self) -> list[str]:
        return sorted(self.members)

    def rank(self, member_id: str) -> int:
        start = next((index for index, known in enumerate(self.ids) if known >= self.turn), 0)
        return (self.ids.index(member_id) - start) % len(self.ids)

    def choose(self, readiness: dict[str, bool], pressure: dict[str, ReplicaPressure] | None) -> list[str]:
        """The members that may be chosen, best first; the order of the replica scheduler contract."""
        if not self.is_open:
            return []
        candidates = [name for name in self.ids if readiness[name] and self.members[name].is_open]

        def score(name: str) -> tuple[object, ...]:
            if self.strategy == "round_robin":
                return (self.rank(name),)
            member = self.members[name]
            known = pressure[name] if pressure else ReplicaPressure()
            return (
                Fraction(member.active, member.ceiling or 1),
                known.freshness is not PressureFreshness.FRESH,
                known.pressure_ppm or 0,
                self.rank(name),
            )

        return sorted(candidates, key=score)


@dataclass(eq=False)
class ModelLease:
    lease: AdmissionLease
    scopes: tuple[ModelScope, ...]
    """What the lease counts in: its member and its tier, as they were when it was given."""
    member: ModelScope | None
    released: bool = False


# Inputs ------------------------------------------------------------------------------------------------

TIERS = ("alpha", "beta")
MEMBERS = ("a", "b", "c", "d")
REASONS = ("operator", "upgrade", "promotion")

tier_ids = st.sampled_from([*TIERS, *TIERS, "gone"])
member_ids = st.sampled_from([None, *MEMBERS])
some_ceilings = st.none() | st.integers(1, 4)


@st.composite
def tier_scopes(draw: st.DrawFn, tier_id: str) -> TierScope:
    strategy: Strategy = draw(st.sampled_from(["direct", "round_robin", "capacity", "capacity"]))
    if strategy == "direct":
        return TierScope(tier_id, draw(some_ceilings))
    names = draw(st.lists(st.sampled_from(MEMBERS), min_size=2, max_size=4, unique=True))
    ceilings = some_ceilings if strategy == "round_robin" else st.integers(1, 3)
    members = tuple(MemberScope(name, draw(ceilings)) for name in names)
    return TierScope(tier_id, draw(st.none() | st.integers(1, 7)), strategy, members)


configurations = st.lists(st.sampled_from(TIERS), unique=True, max_size=2).flatmap(
    lambda names: st.tuples(*[tier_scopes(name) for name in names])
)
intents = st.lists(
    st.tuples(st.sampled_from([*TIERS, "gone"]), member_ids, st.sampled_from(REASONS)), max_size=2
)
pressures = st.sampled_from(
    [fresh(0), fresh(1), fresh(2_000_000), ReplicaPressure(), ReplicaPressure(PressureFreshness.FAILED)]
)


@pytest.mark.requirement(
    "C-R003", "C-R004", "C-R011", "C-T001", "C-T002", "C-A002", "Q-R009", "Q-T004", "contract 1"
)
class Ledger(RuleBasedStateMachine):
    leases: Bundle[ModelLease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.tiers: dict[str, ModelTier] = {}

    @initialize(scopes=configurations, quiesced=intents)
    def start(self, scopes: tuple[TierScope, ...], quiesced: list[tuple[str, str | None, str]]) -> None:
        self.ledger = TierAdmission(scopes, quiesced=quiesced)
        self._configure(scopes, quiesced)

    # Configuration

    @rule(scopes=configurations, quiesced=intents)
    def reconfigure(self, scopes: tuple[TierScope, ...], quiesced: list[tuple[str, str | None, str]]) -> None:
        self.ledger.reconfigure(scopes, quiesced=quiesced)
        self._configure(scopes, quiesced)

    @rule(data=st.data())
    def change_ceilings(self, data: st.DataObject) -> None:
        """The change that activations make most often: everything stays but the numbers."""
        scopes = []
        for tier_id, tier in self.tiers.items():
            members = tuple(MemberScope(name, data.draw(st.integers(1, 4))) for name in tier.ids)
            scopes.append(TierScope(tier_id, data.draw(some_ceilings), tier.strategy, members))
        self.ledger.reconfigure(scopes)
        self._configure(tuple(scopes), [])

    def _configure(self, scopes: tuple[TierScope, ...], quiesced: list[tuple[str, str | None, str]]) -> None:
        before, self.tiers = self.tiers, {}
        # Of two intents for one scope the later one counts.
        reasons = {(tier_id, member_id): reason for tier_id, member_id, reason in quiesced}
        for scope in scopes:
            tier = before.get(scope.tier_id, ModelTier())
            if bool(tier.members) != bool(scope.members):
                tier = ModelTier(reason=tier.reason)
            tier.strategy, tier.ceiling = scope.strategy, scope.effective_ceiling
            tier.reason = tier.reason or reasons.get((scope.tier_id, None))
            wanted = {member.member_id: member.max_concurrency for member in scope.members}
            if tier.members:
                # Whose turn it was; when that one is gone, the next in the old rotation's place.
                tier.turn = min(tier.members, key=tier.rank)
            for name in [name for name in tier.members if name not in wanted]:
                tier.active -= tier.members.pop(name).active
            for name, ceiling in wanted.items():
                member = tier.members.setdefault(name, ModelScope())
                member.ceiling = ceiling
                member.reason = member.reason or reasons.get((scope.tier_id, name))
            self.tiers[scope.tier_id] = tier

    # Places

    @rule(target=leases, tier_id=tier_ids)
    def acquire(self, tier_id: str) -> object:
        tier = self.tiers.get(tier_id)
        if tier is None or tier.members:
            with pytest.raises(AdmissionError) as refusal:
                self.ledger.acquire(tier_id)
            assert refusal.value.code == ("unknown_tier" if tier is None else "tier_has_members")
            return multiple()
        admitted = tier.is_open
        lease = self.ledger.acquire(tier_id)
        assert (lease is not None) is admitted
        if lease is None:
            return multiple()
        tier.active += 1
        return ModelLease(lease, (tier,), None)

    @rule(target=leases, data=st.data(), tier_id=tier_ids, checked=st.booleans())
    def acquire_member(self, data: st.DataObject, tier_id: str, checked: bool) -> object:
        tier = self.tiers.get(tier_id)
        if tier is None or not tier.members:
            with pytest.raises(AdmissionError) as refusal:
                self.ledger.acquire_member(tier_id, {"a": True, "b": True})
            assert refusal.value.code == ("unknown_tier" if tier is None else "tier_is_direct")
            return multiple()
        readiness = {name: data.draw(st.sampled_from([True, True, True, False])) for name in tier.ids}
        pressure = data.draw(st.none() | st.fixed_dictionaries(dict.fromkeys(tier.ids, pressures)))
        expected = tier.choose(readiness, pressure)
        numerators = [tier.members[name].active for name in expected]
        ranks = [tier.rank(name) for name in expected]
        if checked:
            lease = self.ledger.acquire_member(
                tier_id,
                ValidatedReadiness(readiness),
                None if pressure is None else ValidatedPressure(pressure),
            )
        else:
            lease = self.ledger.acquire_member(tier_id, readiness, pressure)
        if lease is None:
            assert expected == []
            return multiple()
        assert lease.member_id == expected[0]
        self._check_selection(lease, tier, expected, numerators, ranks)
        member = tier.members[lease.member_id]
        member.active += 1
        tier.active += 1
        tier.turn = lease.member_id + "\0"
        return ModelLease(lease, (member, tier), member)

    @staticmethod
    def _check_selection(
        lease: MemberAdmissionLease,
        tier: ModelTier,
        expected: list[str],
        numerators: list[int],
        ranks: list[int],
    ) -> None:
        if tier.strategy == "round_robin":
            assert lease.selection is None
            return
        assert lease.selection is not None
        rows = lease.selection.scores
        assert replace(lease.selection) == lease.selection
        assert [row.member_id for row in rows] == expected
        assert [row.local_active for row in rows] == numerators
        assert [row.local_capacity for row in rows] == [tier.members[name].ceiling for name in expected]
        assert [row.rotating_rank for row in rows] == ranks

    @rule(tier_id=tier_ids, broken=st.sampled_from([{}, {"a": True}, {"a": 1, "b": True}, None, {"x": True}]))
    def acquire_with_a_malformed_snapshot(self, tier_id: str, broken: object) -> None:
        with pytest.raises(AdmissionError):
            self.ledger.acquire_member(tier_id, broken)  # type: ignore[arg-type]

    @rule(held=leases)
    def release(self, held: ModelLease) -> None:
        """Once or again, of what is still configured or long gone."""
        assert held.lease.release() is not held.released
        self._count_out(held)

    @rule(held=consumes(leases))
    def lose(self, held: ModelLease) -> None:
        """The lease is forgotten; the reaper gives it back."""
        del held.lease
        assert self.ledger.reap() == (0 if held.released else 1)
        self._count_out(held)

    @staticmethod
    def _count_out(held: ModelLease) -> None:
        if held.released:
            return
        held.released = True
        member, tier = held.member, held.scopes[-1]
        assert isinstance(tier, ModelTier)
        if member is None:
            tier.active -= 1
            return
        member.active -= 1
        # A member that left took its count out of the tier when it went.
        if member in tier.members.values():
            tier.active -= 1

    # Transitions

    def _scope(self, tier_id: str, member_id: str | None) -> ModelScope | str:
        """The scope, or the code with which it is refused."""
        tier = self.tiers.get(tier_id)
        if tier is None:
            return "unknown_tier"
        if member_id is None:
            return tier
        if not tier.members:
            return "tier_is_direct"
        return tier.members.get(member_id, "unknown_member")

    @rule(tier_id=tier_ids, member_id=member_ids, reason=st.sampled_from(REASONS))
    def quiesce(self, tier_id: str, member_id: str | None, reason: str) -> None:
        scope = self._scope(tier_id, member_id)
        if isinstance(scope, str):
            with pytest.raises(AdmissionError) as refusal:
                self.ledger.quiesce(tier_id, reason, member_id)
            assert refusal.value.code == scope
            return
        scope.reason = reason
        assert self.ledger.quiesce(tier_id, reason, member_id) == self.ledger.snapshot(tier_id)

    @rule(tier_id=tier_ids, member_id=member_ids)
    def readmit(self, tier_id: str, member_id: str | None) -> None:
        scope = self._scope(tier_id, member_id)
        if isinstance(scope, str):
            with pytest.raises(AdmissionError) as refusal:
                self.ledger.readmit(tier_id, member_id)
            assert refusal.value.code == scope
            return
        scope.reason = None
        assert self.ledger.readmit(tier_id, member_id) == self.ledger.snapshot(tier_id)

    @rule(tier_id=tier_ids, member_id=member_ids)
    def drain(self, tier_id: str, member_id: str | None) -> None:
        """Without waiting; the waiting ones are tested by events elsewhere."""
        scope = self._scope(tier_id, member_id)
        if isinstance(scope, str):
            with pytest.raises(AdmissionError) as refusal:
                self.ledger.drain(tier_id, 0, member_id)
            assert refusal.value.code == scope
        elif scope.reason is None:
            with pytest.raises(ScopeConflictError):
                self.ledger.drain(tier_id, 0, member_id)
        else:
            result = self.ledger.drain(tier_id, 0, member_id)
            assert result.drained is (scope.active == 0)
            assert result.timed_out is (scope.active > 0)
            assert result.snapshot == self.ledger.snapshot(tier_id)

    # What always holds

    @invariant()
    def the_ledger_reads_as_the_model(self) -> None:
        snapshots = self.ledger.snapshots()
        assert [snapshot.tier_id for snapshot in snapshots] == list(self.tiers)
        for snapshot in snapshots:
            tier = self.tiers[snapshot.tier_id]
            assert snapshot == self.ledger.snapshot(snapshot.tier_id)
            rows = [(snapshot, tier), *zip(snapshot.members, map(tier.members.get, tier.ids), strict=True)]
            for row, scope in rows:
                assert scope is not None
                assert row.active_requests == scope.active >= 0
                assert row.state == ("admitting" if scope.reason is None else "quiesced")
                assert row.reason == scope.reason
                assert row.max_concurrency == scope.ceiling
                assert row.draining is (scope.reason is not None and scope.active > 0)
            assert [row.member_id for row in snapshot.members] == tier.ids
            assert snapshot.member_active_requests == tuple(
                (name, tier.members[name].active) for name in tier.ids
            )
            if tier.members:
                assert snapshot.active_requests == sum(count for _, count in snapshot.member_active_requests)
        with pytest.raises(UnknownScopeError):
            self.ledger.snapshot("gone")


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
