"""What the fleet page shows: one reading of everything that serves, as plain values.

Nothing here probes, refreshes or reserves. The ledger's counts of one tier are of one instant; readiness and
pressure are the last completed ones.
"""

import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from django.utils import timezone

from admission.core import AdmissionSnapshot, MemberAdmissionSnapshot, UnknownScopeError
from admission.models import AdmissionIntent
from admission.replica_scheduler import ReplicaPressure
from routing import transitions, wording
from routing.config import Tier
from routing.console import history as history_module
from routing.console.history import Figures, HistorySource, Sparkline, sparkline
from routing.drains import DrainProgress
from routing.probes import AvailabilityResult
from routing.projections import completed
from routing.router import Router
from routing.scopes import ScopeId
from routing.wording import ago, count, listed, sentence

State = Literal["admitting", "quiesced", "draining", "not ready"]

PPM: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why a scope is quiesced; who did it and when is unknown where its intent could not be stored."""

    reason: str
    actor: str | None
    since: datetime.datetime | None

    def in_words(self, now: datetime.datetime) -> str:
        """``by ada, reason kernel-upgrade, 12 min ago``."""
        by = [f"by {self.actor}"] if self.actor else []
        when = [ago(self.since, now)] if self.since else []
        return ", ".join([*by, f"reason {self.reason}", *when])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How full a member's engine says it is. ``ppm`` is there exactly when ``freshness`` is fresh."""

    freshness: str
    ppm: int | None

    @property
    def percent(self) -> float | None:
        return None if self.ppm is None else self.ppm * 100 / PPM


@dataclass(frozen=True, slots=True)
class Places:
    """The places that are open to traffic: how many of them are taken, of how many (None: no ceiling)."""

    taken: int
    usable: int | None

    @property
    def is_full(self) -> bool:
        return self.usable is not None and self.taken >= self.usable


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeView:
    """One tier or member at one instant. ``readiness`` of a replica tier is its best member's.

    ``ceiling`` is what is configured; ``places`` counts only what members that serve now still offer of it.
    ``drain`` is the newest drain of the scope while the scope is still quiesced.
    """

    id: ScopeId
    state: State
    hold: Hold | None
    active: int
    ceiling: int | None
    places: Places
    readiness: AvailabilityResult
    drain: DrainProgress | None
    flaps: int
    expected_model: str | None
    trend: Sparkline | None
    figures: Figures | None
    selected: int | None = None
    pressure: Pressure | None = None

    @property
    def is_quiesced(self) -> bool:
        return self.hold is not None

    @property
    def is_draining_now(self) -> bool:
        """Whether a drain of the scope is running."""
        return self.drain is not None and self.drain.outcome is None

    @property
    def is_full(self) -> bool:
        """Whether it is open, and no place in it is left."""
        return self.state == "admitting" and self.places.is_full

    @property
    def elsewhere(self) -> int:
        """Requests that still run at members which take no new ones."""
        return self.active - self.places.taken

    @property
    def can_serve(self) -> bool:
        """Whether the scope, on its own, would let a request in but for its ceiling."""
        return self.hold is None and self.readiness.available

    @property
    def is_unprobed(self) -> bool:
        """Whether nothing is known of its readiness since the prober leaves quiesced scopes alone."""
        return self.hold is not None and self.readiness.reason in ("probe_pending", "probe_invalidated")

    @property
    def readiness_word(self) -> str:
        """``ready``, ``unavailable`` or ``not probed``."""
        return "not probed" if self.is_unprobed else self.readiness.state

    @property
    def readiness_in_words(self) -> str:
        if self.is_unprobed:
            return "it is probed again when it is readmitted"
        return wording.readiness(self.readiness.reason)

    @property
    def checked_at(self) -> datetime.datetime | None:
        """When the probe behind ``readiness`` ended."""
        at = self.readiness.checked_at
        return None if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCard:
    """A tier with its members. ``trouble`` says in a sentence why it can't be served now."""

    scope: ScopeView
    aliases: tuple[str, ...]
    strategy: str
    model: str | None
    members: tuple[ScopeView, ...]
    trouble: str | None

    @property
    def runbook(self) -> str:
        """What in the runbook to read about ``trouble``."""
        able = any(scope.can_serve for scope in self.members or (self.scope,))
        return "anviltieratceiling" if able and self.scope.hold is None else "anviltierout"

    @property
    def serving(self) -> int:
        """How many members would let a request in but for their ceiling."""
        return sum(member.can_serve for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Every tier, in configuration order, at ``at``."""

    at: datetime.datetime
    cards: tuple[TierCard, ...]


def read_fleet(router: Router) -> Fleet:
    """Everything now. Raises TransitionError when this process has nothing to show."""
    config = transitions.active_config(router)
    reader = _Reader(router)
    aliases: dict[str, list[str]] = {}
    for alias, tier_id in config.model_routes.items():
        aliases.setdefault(tier_id, []).append(alias)
    cards = []
    for tier in config.tiers:
        try:
            cards.append(reader.card(tier, tuple(aliases.get(tier.id, ()))))
        except UnknownScopeError:
            continue  # taken out of the configuration a moment ago
    return Fleet(at=reader.now, cards=tuple(cards))


def read_tier(router: Router, tier_id: str) -> TierCard:
    """One tier now. Raises TransitionError."""
    tier = transitions.resolve(router, tier_id)
    routes = transitions.active_config(router).model_routes
    try:
        return _Reader(router).card(tier, tuple(alias for alias, to in routes.items() if to == tier_id))
    except UnknownScopeError as error:
        raise transitions.TransitionError(error.code) from None


class _Reader:
    """One reading: the intents and the time are the same for all of it."""

    def __init__(self, router: Router) -> None:
        self.now = timezone.now()
        self._router = router
        self._history: HistorySource | None = history_module.current()
        self._intents = {(row.tier_id, row.member_id): row for row in AdmissionIntent.objects.all()}

    def card(self, tier: Tier, aliases: tuple[str, ...]) -> TierCard:
        snapshot = self._router.ledger.snapshot(tier.id)
        pressures = self._pressures(tier)
        members = tuple(
            self._scope(tier, member, pressures.get(member.member_id)) for member in snapshot.members
        )
        scope = self._scope(tier, snapshot, None, members)
        return TierCard(
            scope=scope,
            aliases=aliases,
            strategy=tier.strategy,
            model=tier.model,
            members=members,
            trouble=_trouble(scope, members, self.now),
        )

    def _scope(
        self,
        tier: Tier,
        snapshot: AdmissionSnapshot | MemberAdmissionSnapshot,
        pressure: ReplicaPressure | None,
        members: tuple[ScopeView, ...] = (),
    ) -> ScopeView:
        member_id = snapshot.member_id if isinstance(snapshot, MemberAdmissionSnapshot) else None
        scope = ScopeId(tier.id, member_id)
        if members:
            # A tier is as ready as the first member that lets requests in; else as the first one.
            best = next((member for member in members if member.can_serve), members[0])
            readiness, can_serve = best.readiness, best.can_serve
        else:
            readiness = completed(self._router.availability, tier.id, member_id)
            can_serve = readiness.available
        hold = self._hold(scope, snapshot.reason) if snapshot.state == "quiesced" else None
        drain = transitions.drain_progress(self._router, tier.id, member_id) if hold is not None else None
        history = self._history
        return ScopeView(
            id=scope,
            state=_state(snapshot, can_serve),
            hold=hold,
            active=snapshot.active_requests,
            ceiling=snapshot.max_concurrency,
            places=_places(snapshot.active_requests, snapshot.max_concurrency, members),
            readiness=readiness,
            drain=drain,
            flaps=self._router.availability.flaps(tier.id, member_id),
            expected_model=tier.model if tier.model_identity else None,
            trend=None
            if history is None
            else sparkline(
                history.samples(tier.id, member_id),
                now=time.monotonic(),
                ceiling=snapshot.max_concurrency,
            ),
            figures=None if history is None else history.minute(tier.id, member_id),
            selected=None
            if history is None or member_id is None
            else history.selected_total(tier.id, member_id),
            pressure=None
            if pressure is None
            else Pressure(freshness=pressure.freshness.value, ppm=pressure.pressure_ppm),
        )

    def _hold(self, scope: ScopeId, reason: str | None) -> Hold:
        row = self._intents.get((scope.tier_id, scope.member_id or ""))
        if row is None or row.reason != reason:
            return Hold(reason=reason or "", actor=None, since=None)
        return Hold(reason=row.reason, actor=row.actor, since=row.since)

    def _pressures(self, tier: Tier) -> Mapping[str, ReplicaPressure]:
        source = self._router.pressure
        if source is None or tier.strategy != "capacity":
            return {}
        try:
            return source.peek(tier.id)
        except ValueError:
            return {}  # the configuration changed a moment ago


def _state(snapshot: AdmissionSnapshot | MemberAdmissionSnapshot, can_serve: bool) -> State:
    if snapshot.state == "quiesced":
        return "draining" if snapshot.draining else "quiesced"
    return "admitting" if can_serve else "not ready"


def _places(active: int, ceiling: int | None, members: tuple[ScopeView, ...]) -> Places:
    """What a scope offers: with members, no more than those of them that serve, nor than its own ceiling."""
    able = [member for member in members if member.can_serve]
    if not able:
        return Places(active, ceiling)
    taken = sum(member.active for member in able)
    left = [] if ceiling is None else [max(0, ceiling - active)]
    of_members = [max(0, member.ceiling - member.active) for member in able if member.ceiling is not None]
    if len(of_members) == len(able):
        left.append(sum(of_members))
    return Places(taken, taken + min(left) if left else None)


def _trouble(tier: ScopeView, members: tuple[ScopeView, ...], now: datetime.datetime) -> str | None:
    """Why no request to the tier would be let in now, in a sentence; None when one would."""
    if tier.hold is not None:
        running = f"; {count(tier.active, 'request is', 'requests are')} still running" if tier.active else ""
        return sentence(f"the tier is quiesced {tier.hold.in_words(now)}{running}")
    if not members:
        if not tier.readiness.available:
            return sentence(f"the upstream is not ready: {tier.readiness_in_words}")
        return _fullness(tier, (tier,))
    able = tuple(member for member in members if member.can_serve)
    if able:
        return _fullness(tier, able)
    everybody = "both members" if len(members) == 2 else f"all {count(len(members), 'member')}"
    if all(member.hold is not None for member in members):
        lead = f"{everybody} are quiesced"
        parts = [f"{member.id.member_id} {member.hold.in_words(now)}" for member in members if member.hold]
    elif all(member.hold is None for member in members):
        lead = f"{everybody} are not ready"
        parts = [f"{member.id.member_id}: {member.readiness_in_words}" for member in members]
        if len({member.readiness.reason for member in members}) == 1:
            names = listed([str(member.id.member_id) for member in members])
            parts = [f"{names}: {members[0].readiness_in_words}"]
    else:
        lead = "no member can take a request"
        parts = [
            f"{member.id.member_id} is quiesced {member.hold.in_words(now)}"
            if member.hold
            else f"{member.id.member_id} is not ready: {member.readiness_in_words}"
            for member in members
        ]
    return sentence(f"{lead}: {'; '.join(parts)}")


def _fullness(tier: ScopeView, able: tuple[ScopeView, ...]) -> str | None:
    if tier.ceiling is not None and tier.active >= tier.ceiling:
        waits = "wait" if tier.id == able[0].id else "are refused"
        return sentence(f"all {count(tier.ceiling, 'place')} of the tier are taken: new requests {waits}")
    if tier.places.is_full:
        return sentence("every member that is ready is at its ceiling: new requests are refused")
    return None
