"""The ledger: who may come in, how many are in, and which member takes the next request.

One ``TierAdmission`` lives in the process. Each tier has one lock with the conditions that wait on it, and
that lock owns everything of the tier: ceilings, counts, quiesce, the cursor, the queue of waiting direct
requests and the drains. Under it runs no I/O, clock, caller's callable or look at a caller's mapping; what
comes in is checked and copied before, and what goes out is spelled out after.

    tier ceiling      configured, or in capacity mode the sum of the member ceilings when none is
    member ceiling    enforced in either mode when there is one
    tier active       always the sum of its members' active
    quiesced          takes no new lease; running ones go on. Tier and member scopes are independent
    draining          quiesced, and leases still run

A replica tier never waits for a place. A direct tier may, first come, first served.

Errors: malformed arguments, unknown scopes and conflicts raise one of

    AdmissionError(ValueError)      .code and a fixed text that repeats no input
      UnknownScopeError             no such tier or member
      ScopeConflictError            the scope's state does not allow it

while plain unavailability (quiesced, full, no eligible member) is an ordinary None.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition, Lock, RLock
from typing import Final, Literal

from admission.identifiers import DEFAULT_REASON, is_reason_code, is_safe_id
from admission.replica_scheduler import (
    MAX_MEMBER_CONCURRENCY,
    MAX_MEMBERS,
    MIN_MEMBERS,
    RANK_MASK,
    PressureFreshness,
    RankScale,
    ReplicaDecision,
    ReplicaPressure,
    check_pressure,
    check_readiness,
    decision_from_keys,
    rank,
    upstream_key,
)

MAX_COUNT: Final = 2**53 - 1
"""The ceiling of a scope that has none: counts stay exact in every JSON reader."""

MAX_TIER_CONCURRENCY: Final = MAX_MEMBERS * MAX_MEMBER_CONCURRENCY
MAX_WAIT_SECONDS: Final = 3600.0
POLL_SECONDS: Final = 0.25
"""How often a waiting direct request asks whether its caller is gone."""

Strategy = Literal["direct", "round_robin", "capacity"]
QuiesceIntent = tuple[str, str | None, str]
"""Tier id, member id or None for the tier itself, reason code."""


class AdmissionError(ValueError):
    """A refusal that is not plain unavailability; ``code`` is one of the keys below, the text fixed."""

    _TEXTS: Final = {
        "scopes_invalid": "the admission scopes are invalid",
        "intents_invalid": "the quiesce intents are invalid",
        "unknown_tier": "the tier is not configured",
        "unknown_member": "the member is not configured",
        "tier_is_direct": "the tier has no members",
        "tier_has_members": "the tier needs a member selection",
        "readiness_invalid": "the readiness snapshot is invalid",
        "pressure_invalid": "the pressure snapshot is invalid",
        "reason_invalid": "the reason is not a reason code",
        "timeout_invalid": "the timeout is out of bounds",
        "scope_not_quiesced": "the scope is not quiesced",
        "drain_in_progress": "the scope is being drained already",
    }

    def __init__(self, code: str) -> None:
        super().__init__(self._TEXTS[code])
        self.code = code


class UnknownScopeError(AdmissionError):
    """No such tier (``unknown_tier``), or no such member in it (``unknown_member``)."""


class ScopeConflictError(AdmissionError):
    """A drain of an open scope (``scope_not_quiesced``), or a second one (``drain_in_progress``)."""


# What comes in and goes out ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberScope:
    """A member to admit to: its safe id, and its ceiling (1 to 100,000) or None."""

    member_id: str
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        if not (is_safe_id(self.member_id) and _is_ceiling(self.max_concurrency, MAX_MEMBER_CONCURRENCY)):
            raise AdmissionError("scopes_invalid")


@dataclass(frozen=True, slots=True)
class TierScope:
    """A tier to admit to.

    A direct tier has no members, a replica tier 2 to 16 with unique ids, in any order; each has a ceiling
    in capacity mode. ``max_concurrency`` is the aggregate ceiling or None, 1 to 1,600,000: as large as a sum
    of member ceilings can be.
    """

    tier_id: str
    max_concurrency: int | None = None
    strategy: Strategy = "direct"
    members: tuple[MemberScope, ...] = ()

    def __post_init__(self) -> None:
        if not (
            is_safe_id(self.tier_id)
            and _is_ceiling(self.max_concurrency, MAX_TIER_CONCURRENCY)
            and type(self.members) is tuple
            and all(type(member) is MemberScope for member in self.members)
            and len({member.member_id for member in self.members}) == len(self.members)
            and self._shape_is_sound()
        ):
            raise AdmissionError("scopes_invalid")

    def _shape_is_sound(self) -> bool:
        if self.strategy == "direct":
            return not self.members
        if not MIN_MEMBERS <= len(self.members) <= MAX_MEMBERS:
            return False
        if self.strategy == "capacity":
            return all(member.max_concurrency is not None for member in self.members)
        return self.strategy == "round_robin"

    @property
    def effective_ceiling(self) -> int | None:
        """The configured ceiling, or in capacity mode the sum of the member ceilings when none is."""
        if self.max_concurrency is None and self.strategy == "capacity":
            return sum(member.max_concurrency or 0 for member in self.members)
        return self.max_concurrency


def _is_ceiling(value: object, most: int) -> bool:
    return value is None or (type(value) is int and 1 <= value <= most)


@dataclass(frozen=True, slots=True)
class MemberAdmissionSnapshot:
    """One member at one instant; ``reason`` is None while it is admitting."""

    member_id: str
    state: Literal["admitting", "quiesced"]
    reason: str | None
    active_requests: int
    max_concurrency: int | None
    draining: bool


@dataclass(frozen=True, slots=True)
class AdmissionSnapshot:
    """One tier at one instant, read in one piece: ``active_requests`` is the sum over the members.

    ``max_concurrency`` is the effective ceiling. ``members`` and ``member_active_requests`` (pairs of id and
    count) are in id order, and empty for a direct tier. Counts lie in 0..2**53-1. ``draining`` says that the
    scope is quiesced while leases of it still run.
    """

    tier_id: str
    state: Literal["admitting", "quiesced"]
    reason: str | None
    active_requests: int
    draining: bool
    max_concurrency: int | None
    member_active_requests: tuple[tuple[str, int], ...]
    members: tuple[MemberAdmissionSnapshot, ...]


@dataclass(frozen=True, slots=True)
class DrainResult:
    """How a drain ended: drained, timed out, or neither.

    Neither means that the scope was readmitted or taken out of the configuration meanwhile. ``snapshot``
    is the tier at the very moment of the end.
    """

    drained: bool
    timed_out: bool
    snapshot: AdmissionSnapshot


class AdmissionLease:
    """One place in a direct tier, held until ``release``.

    One that is garbage-collected unreleased waits for TierAdmission.reap. That may happen anywhere, even
    under the tier's own lock, so ``__del__`` only puts the place on a queue.
    """

    __slots__ = ("_place", "tier_id")

    def __init__(self, place: "_Place") -> None:
        self._place = place
        self.tier_id: Final = place.tier.tier_id

    def release(self) -> bool:
        """Give the place back to the very scope it came from; True the first time, False ever after.

        Any thread may call it, several at once too.
        """
        return self._place.give_back()

    def __del__(self) -> None:
        if self._place.held:
            self._place.tier.lost_places.put(self._place)


class MemberAdmissionLease(AdmissionLease):
    """One place in a member and, with it, in the member's tier.

    ``selection`` is the capacity decision that chose the member, or None for round robin.
    """

    __slots__ = ("member_id", "selection")

    def __init__(self, place: "_Place", member_id: str) -> None:
        super().__init__(place)
        self.member_id: Final = member_id
        self.selection: ReplicaDecision | None = None


# State, all of it under the tier's lock ----------------------------------------------------------------


class _Drain:
    """A drain that waits for its scope."""

    __slots__ = ("ended", "result")

    def __init__(self, lock: RLock) -> None:
        self.ended = Condition(lock)
        self.result: DrainResult | None = None


class _Ticket:
    """A direct request that waits for a place: ``granted`` is None until it is granted or refused."""

    __slots__ = ("granted", "settled")

    def __init__(self, lock: RLock) -> None:
        self.settled = Condition(lock)
        self.granted: bool | None = None

    def settle(self, granted: bool) -> None:
        self.granted = granted
        self.settled.notify()


class _Scope:
    """What a tier and a member have in common."""

    __slots__ = ("active", "ceiling", "drain", "reason", "retired")

    def __init__(self) -> None:
        self.active = 0
        self.ceiling = MAX_COUNT
        self.reason: str | None = None
        self.drain: _Drain | None = None
        self.retired = False

    @property
    def state(self) -> Literal["admitting", "quiesced"]:
        return "admitting" if self.reason is None else "quiesced"

    @property
    def draining(self) -> bool:
        return self.reason is not None and self.active > 0


class _Member(_Scope):
    __slots__ = ("index", "member_id", "weight")

    def __init__(self, member_id: str) -> None:
        super().__init__()
        self.member_id: Final = member_id
        self.index = 0
        self.weight = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one configuration of a tier gives the hot path; a new configuration brings a new plan.

    ``local`` holds each member's part of the rank, ``rotation`` the rotating ranks for the cursor. Both
    change under the tier's lock, together with what they are made from.
    """

    scope: TierScope
    size: int
    ranked: bool
    scale: RankScale
    unknown: tuple[tuple[int, ...], tuple[PressureFreshness, ...]]
    """Upstream keys and freshness of a tier about whose upstreams nothing is known."""
    local: list[int]
    rotation: list[int]

    @staticmethod
    def of(scope: TierScope) -> "_Plan":
        members = sorted(scope.members, key=lambda member: member.member_id)
        ranked = scope.strategy == "capacity"
        ceilings = tuple(member.max_concurrency for member in members if member.max_concurrency is not None)
        return _Plan(
            scope=scope,
            size=len(members),
            ranked=ranked,
            scale=RankScale(tuple(member.member_id for member in members), ceilings if ranked else None),
            unknown=(
                (upstream_key(None),) * len(members),
                (PressureFreshness.UNKNOWN,) * len(members),
            ),
            local=[0] * len(members),
            rotation=[0] * len(members),
        )

    def completed(
        self, readiness: object, pressure: object
    ) -> tuple[Sequence[int], Sequence[PressureFreshness]]:
        """Check and copy both snapshots: the upstream keys, and the freshness beside them."""
        scale = self.scale
        try:
            flags = check_readiness(readiness, scale.member_ids)
        except ValueError:
            raise AdmissionError("readiness_invalid") from None
        keys: Sequence[int]
        freshness: Sequence[PressureFreshness]
        keys, freshness = self.unknown
        if pressure is not None:
            try:
                keys, freshness = check_pressure(pressure, scale.member_ids)
            except ValueError:
                raise AdmissionError("pressure_invalid") from None
        if not self.ranked:
            keys = (0,) * len(flags)
        if False in flags:
            blocked = scale.blocked
            keys = [key if ready else blocked for key, ready in zip(keys, flags, strict=True)]
        return keys, freshness


class _Tier(_Scope):
    """One tier's state. Every method but ``__init__`` needs ``lock`` to be held."""

    __slots__ = ("cursor", "lock", "lost_places", "members", "plan", "tier_id", "waiting")

    def __init__(self, tier_id: str, lost_places: "SimpleQueue[_Place]") -> None:
        super().__init__()
        self.tier_id: Final = tier_id
        self.lost_places: Final = lost_places
        # Re-entrant: where cyclic garbage is collected while the lock is held, a finalizer that releases a
        # lease after all (a forgotten generator's ``finally``) must not stop the tier for good.
        self.lock: Final = RLock()
        self.plan = _Plan.of(TierScope(tier_id))
        self.members: tuple[_Member, ...] = ()
        self.cursor = 0
        self.waiting: deque[_Ticket] = deque()

    # Configuration

    def configure(self, scope: TierScope, intents: Mapping[tuple[str, str | None], str]) -> None:
        """Take on ``scope``; what stays keeps its counts, its quiesce and, by id, the cursor."""
        start = self.members[self.cursor].member_id if self.members else ""
        leaving = {member.member_id: member for member in self.members}
        ceilings = {member.member_id: member.max_concurrency for member in scope.members}
        self.plan = plan = _Plan.of(scope)
        self.ceiling = scope.effective_ceiling or MAX_COUNT
        self.members = tuple(
            leaving.pop(name) if name in leaving else _Member(name) for name in plan.scale.member_ids
        )
        for index, member in enumerate(self.members):
            member.index = index
            member.weight = plan.scale.weights[index]
            member.ceiling = ceilings[member.member_id] or MAX_COUNT
            self.refresh(member)
        if self.members:
            self.cursor = bisect_left(plan.scale.member_ids, start) % plan.size
            plan.rotation[:] = plan.scale.rotations[self.cursor]
        for scope_id, state in ((None, self), *((member.member_id, member) for member in self.members)):
            reason = intents.get((self.tier_id, scope_id))
            if state.reason is None and reason is not None:
                self.set_reason(state, reason)
        for member in leaving.values():
            member.retired = True
            self.active -= member.active
        for member in leaving.values():
            self.end_drain(member, drained=False)
        self.settle()

    def retire(self) -> None:
        """The tier is no longer configured; leases of it still release into this object."""
        self.retired = True
        self.refuse_waiting()
        for scope in (self, *self.members):
            self.end_drain(scope, drained=False)

    def scope(self, member_id: object) -> _Scope:
        if member_id is None:
            return self
        if not self.members:
            raise AdmissionError("tier_is_direct")
        for member in self.members:
            if type(member_id) is str and member.member_id == member_id:
                return member
        raise UnknownScopeError("unknown_member")

    def set_reason(self, scope: _Scope, reason: str | None) -> None:
        """Quiesce ``scope`` for ``reason``, or open it."""
        scope.reason = reason
        if isinstance(scope, _Member):
            self.refresh(scope)
        elif reason is not None:
            self.refuse_waiting()

    # Places

    def refresh(self, member: _Member) -> None:
        """Bring a member's part of the rank up to date after its count, ceiling or quiesce changed."""
        is_open = member.reason is None and member.active < member.ceiling
        plan = self.plan
        plan.local[member.index] = member.active * member.weight if is_open else plan.scale.blocked

    def settle(self) -> None:
        """Hand free places to those who wait, in their order, and end the drains that are at zero."""
        while self.waiting and self.active < self.ceiling:
            self.active += 1
            self.waiting.popleft().settle(True)
        for scope in (self, *self.members):
            if scope.active == 0:
                self.end_drain(scope, drained=True)

    def refuse_waiting(self) -> None:
        while self.waiting:
            self.waiting.popleft().settle(False)

    def end_wait(self, ticket: _Ticket, *, keep: bool) -> bool:
        """Whether the ticket's owner has a place now; one that it is not to ``keep`` is passed on."""
        if ticket.granted is None:
            self.waiting.remove(ticket)
        elif ticket.granted and keep:
            return True
        elif ticket.granted:
            self.active -= 1
            self.settle()
        ticket.granted = False
        return False

    # Drains and reading

    def end_drain(self, scope: _Scope, *, drained: bool, timed_out: bool = False) -> None:
        drain, scope.drain = scope.drain, None
        if drain is not None:
            drain.result = DrainResult(drained, timed_out, self.snapshot())
            drain.ended.notify()

    def snapshot(self) -> AdmissionSnapshot:
        ceilings = {member.member_id: member.max_concurrency for member in self.plan.scope.members}
        return AdmissionSnapshot(
            tier_id=self.tier_id,
            state=self.state,
            reason=self.reason,
            active_requests=self.active,
            draining=self.draining,
            max_concurrency=self.plan.scope.effective_ceiling,
            member_active_requests=tuple((member.member_id, member.active) for member in self.members),
            members=tuple(
                MemberAdmissionSnapshot(
                    member_id=member.member_id,
                    state=member.state,
                    reason=member.reason,
                    active_requests=member.active,
                    max_concurrency=ceilings[member.member_id],
                    draining=member.draining,
                )
                for member in self.members
            ),
        )


class _Place:
    """What a lease holds: the state objects captured when it was given, and whether it still counts."""

    __slots__ = ("held", "member", "tier")

    def __init__(self, tier: _Tier, member: _Member | None) -> None:
        self.tier: Final = tier
        self.member: Final = member
        self.held = True

    def give_back(self) -> bool:
        tier, member = self.tier, self.member
        with tier.lock:
            # Like the acquires, this makes no call on the ordinary way (see ``acquire_member``).
            if not self.held:
                return False
            self.held = False
            if member is None:
                tier.active -= 1
                watched = tier.waiting or tier.drain is not None
            else:
                member.active = active = member.active - 1
                if member.retired:
                    return True
                tier.active -= 1
                if member.reason is None and active < member.ceiling:
                    tier.plan.local[member.index] = active * member.weight
                watched = tier.drain is not None or member.drain is not None
            if watched:
                tier.settle()
        return True


# The ledger --------------------------------------------------------------------------------------------


class TierAdmission:
    """The process's one ledger. Every method may be called from any thread.

    ``quiesced`` are intents that hold before anything can be acquired; well-formed ones of scopes that are
    not configured are passed over. ``monotonic`` gives seconds and is read outside the locks only.
    """

    def __init__(
        self,
        scopes: Iterable[TierScope],
        *,
        quiesced: Iterable[QuiesceIntent] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._lost_places: SimpleQueue[_Place] = SimpleQueue()
        self._reconfiguring = Lock()
        self._tiers: dict[str, _Tier] = {}
        self.reconfigure(scopes, quiesced=quiesced)

    def reconfigure(self, scopes: Iterable[TierScope], *, quiesced: Iterable[QuiesceIntent] = ()) -> None:
        """Take on a new configuration while requests run; raises AdmissionError before any change.

        Tiers and members that stay keep their counts, quiesce and cursor (by member id). A ceiling below
        the running count only stops new leases; a raised one serves those who wait. Leases of what is gone
        release into the old state, waiting requests of a removed tier are refused, drains of a removed scope
        end undrained. A tier that changes between direct and replica starts anew but stays quiesced.
        ``quiesced`` closes scopes that are open before the new configuration can be acquired from; it never
        changes the reason of a scope that is closed already.
        """
        wanted = _checked_scopes(scopes)
        intents = _checked_intents(quiesced)
        with self._reconfiguring:
            tiers = {}
            for scope in wanted:
                tier = self._tiers.get(scope.tier_id)
                if tier is not None and bool(tier.members) == bool(scope.members):
                    with tier.lock:
                        tier.configure(scope, intents)
                else:
                    fresh = _Tier(scope.tier_id, self._lost_places)
                    if tier is not None:
                        with tier.lock:
                            tier.retire()
                            fresh.reason = tier.reason
                    with fresh.lock:
                        fresh.configure(scope, intents)
                    tier = fresh
                tiers[scope.tier_id] = tier
            previous, self._tiers = self._tiers, tiers
            for tier_id, tier in previous.items():
                if tier_id not in tiers:
                    with tier.lock:
                        tier.retire()

    # Acquiring

    def acquire(
        self, tier_id: str, *, timeout: float = 0.0, abandoned: Callable[[], bool] | None = None
    ) -> AdmissionLease | None:
        """Take a place in a direct tier, waiting at most ``timeout`` seconds (0 to 3,600) for a free one.

        Those who wait are served in their order. ``abandoned`` says that the caller is gone: it is asked
        outside the lock, at least every 0.25 s, and what it raises ends the wait. None when there is no
        place in time, the caller is gone, or the tier is quiesced or removed, before or while waiting.
        """
        seconds = _checked_timeout(timeout)
        deadline = self._monotonic() + seconds if seconds else 0.0
        while True:
            tier = self._find(tier_id)
            if tier.members:
                raise AdmissionError("tier_has_members")
            ticket = None
            with tier.lock:
                if not tier.retired:
                    if tier.reason is not None:
                        return None
                    # Free places go to those who wait at once, so a free one means that nobody waits.
                    if tier.active < tier.ceiling:
                        tier.active += 1
                    elif seconds:
                        ticket = _Ticket(tier.lock)
                        tier.waiting.append(ticket)
                    else:
                        return None
                    break
            self._await_reconfiguration()
        if ticket is not None and not self._wait(tier, ticket, deadline, abandoned):
            return None
        return AdmissionLease(_Place(tier, None))

    def _wait(
        self, tier: _Tier, ticket: _Ticket, deadline: float, abandoned: Callable[[], bool] | None
    ) -> bool:
        """Whether ``ticket`` got its place; if not, it is out of the queue and holds none."""
        try:
            while True:
                gone = abandoned is not None and abandoned()
                remaining = deadline - self._monotonic()
                with tier.lock:
                    if ticket.granted is None and remaining > 0 and not gone:
                        ticket.settled.wait(min(remaining, POLL_SECONDS))
                        if ticket.granted is None:
                            continue
                    return tier.end_wait(ticket, keep=not gone)
        except BaseException:
            with tier.lock:
                tier.end_wait(ticket, keep=False)
            raise

    def acquire_member(
        self,
        tier_id: str,
        readiness: Mapping[str, bool],
        pressure: Mapping[str, ReplicaPressure] | None = None,
    ) -> MemberAdmissionLease | None:
        """Choose a member of a replica tier and take a place in both, in one step; never waits.

        ``readiness`` and ``pressure`` are completed snapshots of exactly the configured members: exact dicts
        (``bool``; ReplicaPressure), or ValidatedReadiness and ValidatedPressure, which are checked when they
        are made. No pressure means that all of it is unknown. Both are checked and copied before the lock is
        taken; what is incomplete, unknown or malformed raises AdmissionError and changes nothing. None when
        the tier is quiesced or full, or has no member that is ready, open and below its ceiling.

        The cursor moves past the chosen member, and only when one was chosen.
        """
        while True:
            tier = self._find(tier_id)
            plan = tier.plan
            scale = plan.scale
            if not scale.member_ids:
                raise AdmissionError("tier_is_direct")
            upstream, freshness = plan.completed(readiness, pressure)
            ranking = rank(plan.local, upstream, plan.rotation)
            with tier.lock:
                # No call and no loop in here: CPython switches threads at those, and 32 threads queueing
                # for a lock whose holder waits for its turn would take milliseconds.
                if tier.plan is plan and not tier.retired:
                    if tier.reason is not None or tier.active >= tier.ceiling:
                        return None
                    (keys,) = ranking
                    winner = keys[0]
                    if winner >= scale.blocked:
                        return None
                    cursor = tier.cursor
                    index = ((winner & RANK_MASK) + cursor) % plan.size
                    member = tier.members[index]
                    tier.active += 1
                    member.active = active = member.active + 1
                    plan.local[index] = active * member.weight if active < member.ceiling else scale.blocked
                    tier.cursor = following = (index + 1) % plan.size
                    plan.rotation[:] = scale.rotations[following]
                    break
            # The configuration changed between the check and the lock: check against the new one.
            self._await_reconfiguration()
        lease = MemberAdmissionLease(_Place(tier, member), member.member_id)
        if plan.ranked:
            lease.selection = decision_from_keys(scale, keys, cursor, freshness)
        return lease

    # Transitions

    def quiesce(
        self, tier_id: str, reason: str = DEFAULT_REASON, member_id: str | None = None
    ) -> AdmissionSnapshot:
        """Stop new leases of a tier, or of one member of it; those who wait for the tier are refused.

        ``reason`` is a reason code; quiescing again replaces it. Running leases go on.
        """
        if not is_reason_code(reason):
            raise AdmissionError("reason_invalid")
        with self._held(tier_id) as tier:
            scope = tier.scope(member_id)
            tier.set_reason(scope, reason)
            return tier.snapshot()

    def readmit(self, tier_id: str, member_id: str | None = None) -> AdmissionSnapshot:
        """Let new leases of the scope in again; a tier's readmit leaves its members' quiesce alone.

        A drain of the scope ends undrained. Readmitting an open scope changes nothing.
        """
        with self._held(tier_id) as tier:
            scope = tier.scope(member_id)
            tier.set_reason(scope, None)
            tier.end_drain(scope, drained=False)
            return tier.snapshot()

    def drain(self, tier_id: str, timeout: float, member_id: str | None = None) -> DrainResult:
        """Wait at most ``timeout`` seconds (0 to 3,600) until no lease of a quiesced scope runs.

        Waits for that scope only and cancels nothing. Raises ScopeConflictError when the scope is open, or
        is being drained already. A readmit, or the removal of the scope, ends the drain at once, undrained
        and not timed out.
        """
        seconds = _checked_timeout(timeout)
        deadline = self._monotonic() + seconds
        with self._held(tier_id) as tier:
            scope = tier.scope(member_id)
            if scope.reason is None:
                raise ScopeConflictError("scope_not_quiesced")
            if scope.drain is not None:
                raise ScopeConflictError("drain_in_progress")
            if scope.active == 0:
                return DrainResult(drained=True, timed_out=False, snapshot=tier.snapshot())
            scope.drain = drain = _Drain(tier.lock)
        try:
            while True:
                remaining = deadline - self._monotonic()
                with tier.lock:
                    if drain.result is None and remaining > 0:
                        drain.ended.wait(remaining)
                    elif drain.result is None:
                        tier.end_drain(scope, drained=False, timed_out=True)
                    if drain.result is not None:
                        return drain.result
        finally:
            with tier.lock:
                if scope.drain is drain:
                    scope.drain = None

    # Reading

    def snapshot(self, tier_id: str) -> AdmissionSnapshot:
        """One tier, read in one piece."""
        with self._held(tier_id) as tier:
            return tier.snapshot()

    def snapshots(self) -> tuple[AdmissionSnapshot, ...]:
        """All tiers in configuration order; each is read in one piece, one after another."""
        readings = []
        for tier in self._tiers.values():
            with tier.lock:
                readings.append(tier.snapshot())
        return tuple(readings)

    # Lost leases

    def reap(self, timeout: float = 0.0) -> int:
        """Give back the places of leases that were garbage-collected unreleased; how many there were.

        The last net: each of them is a fault of whoever let its lease go. Waits at most ``timeout`` seconds
        for a first one, so that a thread of the ledger's owner can call it over and over.
        """
        count = 0
        try:
            place = self._lost_places.get(timeout=timeout) if timeout > 0 else self._lost_places.get_nowait()
            while True:
                count += place.give_back()
                place = self._lost_places.get_nowait()
        except Empty:
            return count

    # Look-up

    def _find(self, tier_id: object) -> _Tier:
        tier = self._tiers.get(tier_id) if type(tier_id) is str else None
        if tier is None:
            raise UnknownScopeError("unknown_tier")
        return tier

    @contextmanager
    def _held(self, tier_id: object) -> Iterator[_Tier]:
        """The configured tier, with its lock held."""
        while True:
            tier = self._find(tier_id)
            with tier.lock:
                if not tier.retired:
                    yield tier
                    return
            self._await_reconfiguration()

    def _await_reconfiguration(self) -> None:
        """Return when no reconfiguration is half done."""
        with self._reconfiguring:
            return


# Checking ----------------------------------------------------------------------------------------------


def _checked_scopes(scopes: Iterable[TierScope]) -> tuple[TierScope, ...]:
    wanted = tuple(scopes)
    if not all(type(scope) is TierScope for scope in wanted):
        raise AdmissionError("scopes_invalid")
    if len({scope.tier_id for scope in wanted}) != len(wanted):
        raise AdmissionError("scopes_invalid")
    return wanted


def _checked_intents(quiesced: Iterable[QuiesceIntent]) -> dict[tuple[str, str | None], str]:
    intents = {}
    for intent in quiesced:
        if type(intent) is not tuple or len(intent) != 3:
            raise AdmissionError("intents_invalid")
        tier_id, member_id, reason = intent
        if not (
            is_safe_id(tier_id) and (member_id is None or is_safe_id(member_id)) and is_reason_code(reason)
        ):
            raise AdmissionError("intents_invalid")
        intents[tier_id, member_id] = reason
    return intents


def _checked_timeout(timeout: object) -> float:
    if (type(timeout) is int or type(timeout) is float) and 0 <= timeout <= MAX_WAIT_SECONDS:
        return float(timeout)
    raise AdmissionError("timeout_invalid")
