"""Transitions of a tier or a member: one service for REST, command line and console.

    quiesce   the ledger closes first, then readiness is invalidated, then the intent is stored
    drain     waits for the leases of a quiesced scope, as a job of the process; cancels nothing
    readmit   readiness is invalidated, then shown anew; then the intent is removed, then the ledger opens

Tier and member scopes are independent: a member's readmit probes that member alone and never opens the tier;
a tier's never opens a member, and needs one verified member that is not quiesced.

Every verb takes ``actor`` (who asks) and ``through`` (by what way). What it changes leaves an audit entry;
what it refuses, one log line and a count. Refusals are TransitionErrors and have changed nothing, except
``intent_not_persisted``: whichever verb says so, the scope is quiesced, in memory at least.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import django.db
from django.db import transaction

from admission import intent_document, intents
from admission.core import (
    AdmissionSnapshot,
    DrainResult,
    MemberAdmissionSnapshot,
    QuiesceIntent,
    ScopeConflictError,
    UnknownScopeError,
)
from admission.identifiers import DEFAULT_REASON
from routing import audit
from routing.audit import Through
from routing.availability import AvailabilityResult
from routing.config import RouterConfig, Tier
from routing.drains import Drain, DrainProgress
from routing.operations import Overdue
from routing.orders import DEFAULT_DRAIN_TIMEOUT
from routing.projections import NOT_PROBED
from routing.refusals import SENTENCES, Refused

if TYPE_CHECKING:
    from routing.router import Router
    from routing.snapshot import ValidatedSnapshot

_STATUS: Final[Mapping[str, int]] = {
    "not_ledger_owner": 503,
    "not_configured": 503,
    "tier_required": 400,
    "unknown_tier": 404,
    "direct_tier": 400,
    "unknown_member": 404,
    "scope_not_quiesced": 409,
    "drain_in_progress": 409,
    "readmit_refused": 409,
    "identity_not_configured": 409,
    "intent_not_persisted": 503,
    "document_too_large": 413,
    "document_malformed": 400,
}

QUIESCED_AGAIN: Final = "quiesced_again"
"""Why a readmit was refused: the scope was quiesced once more while it was being verified."""
ALL_MEMBERS_QUIESCED: Final = "all_members_quiesced"
"""Why a tier's readmit was refused: no member of it could take a request."""


class TransitionError(Refused):
    """A transition was refused; see the module for what may have changed all the same.

    Where the refusal has a result, ``extra`` is the answer that the verb would have given, with it.
    """

    def __init__(self, code: str, *, extra: Mapping[str, object] | None = None) -> None:
        super().__init__(_STATUS[code], code, SENTENCES[code], extra=extra)


@dataclass(frozen=True, slots=True)
class Quiesced:
    """A scope that was quiesced: its row, and the reason for which it was quiesced until now, if another."""

    row: dict[str, object]
    previous_reason: str | None


# What is there -----------------------------------------------------------------------------------------


def active_config(router: "Router") -> RouterConfig:
    """The configuration whose scopes this process can act on. Raises TransitionError."""
    if not router.owns_ledger:
        raise TransitionError("not_ledger_owner")
    if router.active is None:
        raise TransitionError("not_configured")
    return router.active.config


def resolve(router: "Router", tier_id: str, member_id: str | None = None) -> Tier:
    """The tier of a scope that is configured here. Raises TransitionError."""
    try:
        tier = active_config(router).tier(tier_id)
    except KeyError:
        raise TransitionError("unknown_tier") from None
    if member_id is not None:
        if not tier.is_replica:
            raise TransitionError("direct_tier")
        if member_id not in tier.member_ids:
            raise TransitionError("unknown_member")
    return tier


def status(router: "Router", tier_id: str | None = None, member_id: str | None = None) -> dict[str, object]:
    """Every scope's row, or one tier's, or within it one member's alone. Raises TransitionError."""
    if tier_id is not None:
        return _status(router, resolve(router, tier_id, member_id), member_id)
    if member_id is not None:
        raise TransitionError("tier_required")
    return {"tiers": [_tier_row(router, tier) for tier in active_config(router).tiers]}


def drain_progress(router: "Router", tier_id: str, member_id: str | None = None) -> DrainProgress | None:
    """How the newest drain of a scope is getting on, or how it ended; None when there was none."""
    newest = router.operations.drains.latest(tier_id, member_id)
    return None if newest is None else newest.progress()


def previous_reason(router: "Router", tier_id: str, member_id: str | None, reason: str) -> str | None:
    """The reason that a quiesce for ``reason`` would replace; None where there is none, or the same."""
    held = _reason(router, tier_id, member_id)
    return None if held == reason else held


# Verbs -------------------------------------------------------------------------------------------------


def quiesce(
    router: "Router",
    tier_id: str,
    member_id: str | None = None,
    *,
    reason: str = DEFAULT_REASON,
    actor: str,
    through: Through,
) -> Quiesced:
    """Stop new requests to a scope, now and after a restart; running ones go on.

    Quiescing again replaces the reason, and says which one it was. Raises TransitionError:
    ``intent_not_persisted``, with the row.
    """
    with _telling("quiesce", actor, through):
        tier = resolve(router, tier_id, member_id)
        intent = (tier_id, member_id, reason)
        before = _close(router, intent)
        row = _scope_row(router, tier, member_id)
        try:
            _store(router, [intent], "quiesce", actor=actor, through=through, previous=[before])
        except (django.db.Error, Overdue):
            extra = answer("quiesce", tier_id, member_id, row)
            raise TransitionError("intent_not_persisted", extra=extra) from None
        return Quiesced(row, before)


def drain(
    router: "Router",
    tier_id: str,
    member_id: str | None = None,
    *,
    timeout: float = DEFAULT_DRAIN_TIMEOUT,
    reason: str = DEFAULT_REASON,
    actor: str,
    through: Through,
) -> Drain:
    """Begin to drain a quiesced scope for at most ``timeout`` seconds (over 0, at most 3,600).

    Returns at once: the drain goes on by itself, and `Drain.wait` or `drain_progress` tell of its end. Raises
    TransitionError: ``scope_not_quiesced`` or ``drain_in_progress``, with the result so far.
    """

    def record(ended: Drain) -> None:
        try:
            with audit.after_the_fact("drain"):
                audit.record(
                    actor=actor,
                    through=through,
                    action="drain",
                    tier_id=tier_id,
                    member_id=member_id,
                    reason=reason,
                    result=ended.outcome or "",
                )
        finally:
            # This runs in the drain's own thread, which ends here.
            django.db.connection.close()

    with _telling("drain", actor, through):
        resolve(router, tier_id, member_id)
        try:
            return router.operations.drains.start(
                router.ledger, tier_id, member_id, timeout=timeout, on_end=record
            )
        except ScopeConflictError as conflict:
            unchanged = DrainResult(drained=False, timed_out=False, snapshot=router.ledger.snapshot(tier_id))
            extra = answer("drain", tier_id, member_id, drain_result(unchanged, member_id), applied=False)
            raise TransitionError(conflict.code, extra=extra) from None


def readmit(
    router: "Router",
    tier_id: str,
    member_id: str | None = None,
    *,
    accept_unverified: bool = False,
    reason: str = DEFAULT_REASON,
    actor: str,
    through: Through,
) -> dict[str, object]:
    """Verify a quiesced scope and let requests in again: ``{readmitted, reason, status}``.

    Takes as long as a probe may. ``accept_unverified`` readmits a tier that has no identity settings; it does
    not overrule a probe that failed. Raises TransitionError, with the result.
    """
    with _telling("readmit", actor, through):
        tier = resolve(router, tier_id, member_id)
        scope = (tier_id, member_id)
        since = router.operations.quiesces(scope)

        def refusal(code: str, why: str) -> TransitionError:
            result = {"readmitted": False, "reason": why, "status": _status(router, tier, member_id)}
            extra = answer("readmit", tier_id, member_id, result, applied=False)
            return TransitionError(code, extra=extra)

        if _snapshot(router, tier_id, member_id).state != "quiesced":
            raise refusal("scope_not_quiesced", "scope_not_quiesced")
        verifiable = tier.model_identity or tier.metadata_source == "upstream"
        if not verifiable and not accept_unverified:
            raise refusal("identity_not_configured", "identity_not_configured")
        fault = _verify(router, tier, member_id)
        if fault is not None:
            raise refusal("readmit_refused", fault)
        try:
            opened = _open(router, scope, since=since)
        except (django.db.Error, Overdue):
            raise refusal("intent_not_persisted", "intent_not_persisted") from None
        if not opened:
            raise refusal("readmit_refused", QUIESCED_AGAIN)
        word = "readiness_passed" if verifiable else "readmitted_unverified"
        with audit.after_the_fact("readmit"):
            audit.record(
                actor=actor,
                through=through,
                action="readmit",
                tier_id=tier_id,
                member_id=member_id,
                reason=reason,
                result=word,
            )
        return {"readmitted": True, "reason": word, "status": _status(router, tier, member_id)}


# Intent as a whole -------------------------------------------------------------------------------------


def install(
    router: "Router",
    snapshot: "ValidatedSnapshot",
    *,
    snapshot_id: int,
    first: Callable[[], None] = lambda: None,
) -> None:
    """Make ``snapshot`` the active configuration, with the stored intents held before anything opens.

    No intent is stored or removed between their reading and the swap, and nothing is readmitted; ``first`` is
    called in between, and what it raises ends it. Raises IntentError, Overdue or django.db.Error before
    anything has changed.
    """
    with router.operations.persisting():
        held = intents.load()
        first()
        router.install(snapshot, snapshot_id=snapshot_id, intents=held)


def export_intent(router: "Router") -> bytes:
    """The legacy document of what is quiesced in memory, from one reading of the ledger."""
    active_config(router)
    return intent_document.serialise_document(router.ledger.snapshots())


def import_intent(router: "Router", document: bytes, *, actor: str, through: Through) -> dict[str, object]:
    """Quiesce every configured scope that a legacy document names; opens nothing.

    ``{quiesced: [{tier_id, member_id}], ignored}``: the scopes, and how many entries are about none. Raises
    TransitionError before anything has changed, or ``intent_not_persisted`` with what is quiesced in memory.
    """
    with _telling("import_intent", actor, through):
        try:
            wanted = intent_document.parse_document(document).intents
        except intent_document.IntentError as error:
            raise TransitionError(error.code) from None
        configured = {
            (tier.id, member_id)
            for tier in active_config(router).tiers
            for member_id in (None, *tier.member_ids)
        }
        applied = [intent for intent in wanted if intent[:2] in configured]
        previous = [_close(router, intent) for intent in applied]
        imported: dict[str, object] = {
            "quiesced": [{"tier_id": tier_id, "member_id": member_id} for tier_id, member_id, _ in applied],
            "ignored": len(wanted) - len(applied),
        }
        try:
            _store(router, applied, "import_intent", actor=actor, through=through, previous=previous)
        except (django.db.Error, Overdue):
            raise TransitionError("intent_not_persisted", extra=imported) from None
        return imported


# Steps -------------------------------------------------------------------------------------------------


@contextmanager
def _telling(action: str, actor: str, through: Through) -> Iterator[None]:
    with audit.telling_refusals(action, actor=actor, through=through):
        try:
            yield
        except UnknownScopeError as error:
            # The configuration changed while the verb was at work.
            raise TransitionError(error.code) from None


def _close(router: "Router", intent: QuiesceIntent) -> str | None:
    """Quiesce in memory: admission closes before readiness is invalidated (readiness fencing R008).

    The reason that this has replaced, as `previous_reason` has it.
    """
    tier_id, member_id, reason = intent
    with router.operations.closing((tier_id, member_id)):
        # No other quiesce comes in between.
        before = previous_reason(router, tier_id, member_id, reason)
        router.ledger.quiesce(tier_id, reason, member_id)
    router.availability.invalidate(tier_id, member_id)
    return before


def _store(
    router: "Router",
    applied: Iterable[QuiesceIntent],
    action: str,
    *,
    actor: str,
    through: Through,
    previous: Iterable[str | None],
) -> None:
    """Store the intents of scopes that were quiesced in memory, with their audit entries: all or none.

    ``previous`` are the reasons that they had until then.
    """
    with router.operations.persisting(), transaction.atomic(durable=True):
        for (tier_id, member_id, reason), before in zip(applied, previous, strict=True):
            # Of changes that came in one after another the ledger knows the last, whichever is stored first.
            held = _reason(router, tier_id, member_id)
            if held is not None:
                intents.store(tier_id, member_id, held, actor=actor)
            audit.record(
                actor=actor,
                through=through,
                action=action,
                tier_id=tier_id,
                member_id=member_id,
                subject="" if before is None else f"reason was {before}",
                reason=reason,
                result="quiesced",
            )


def _open(router: "Router", scope: tuple[str, str | None], *, since: int) -> bool:
    """Remove the intent, then open the ledger; False when the scope was quiesced again meanwhile."""
    with router.operations.persisting():
        if router.operations.quiesces(scope) != since:
            return False
        with transaction.atomic(durable=True):
            intents.remove(*scope)
        with router.operations.opening(scope, since=since) as undisturbed:
            if undisturbed:
                router.ledger.readmit(*scope)
        # If not: whoever quiesced it waits for what is held here, and will store the intent again.
        return undisturbed


def _verify(router: "Router", tier: Tier, member_id: str | None) -> str | None:
    """Invalidate, then probe: why the scope can't be readmitted, or None when it can."""
    availability = router.availability
    availability.invalidate(tier.id, member_id)
    if member_id is not None or not tier.is_replica:
        result = availability.check(tier.id, member_id)
        return None if result.available else result.reason
    candidates = [
        member.member_id for member in router.ledger.snapshot(tier.id).members if member.state == "admitting"
    ]
    if not candidates:
        return ALL_MEMBERS_QUIESCED
    # All of them, so that each one that is ready takes requests from the first moment on.
    with ThreadPoolExecutor(len(candidates), thread_name_prefix="anvil-verify") as pool:
        results = list(pool.map(lambda candidate: availability.check(tier.id, candidate), candidates))
    return None if any(result.available for result in results) else results[0].reason


# Answers -----------------------------------------------------------------------------------------------


def answer(
    action: str,
    tier_id: str,
    member_id: str | None,
    result: object,
    *,
    applied: bool = True,
) -> dict[str, object]:
    """What a verb that was carried out is answered with."""
    return {
        "applied": applied,
        "action": action,
        "tier_id": tier_id,
        "member_id": member_id,
        "result": result,
    }


def preview(action: str, tier_id: str, member_id: str | None) -> dict[str, object]:
    """What a verb that was only to be checked is answered with."""
    return {
        "applied": False,
        "dry_run": True,
        "action": action,
        "tier_id": tier_id,
        "member_id": member_id,
    }


def drain_result(result: DrainResult, member_id: str | None) -> dict[str, object]:
    """``{drained, timed_out, snapshot}``, of the member alone where it was the member's.

    The snapshot is null when the member is not configured any more.
    """
    snapshot: dict[str, object] | None
    if member_id is None:
        snapshot = _tier_snapshot(result.snapshot)
    else:
        members = [member for member in result.snapshot.members if member.member_id == member_id]
        snapshot = {"member_id": member_id, **_admission_fields(members[0])} if members else None
    return {"drained": result.drained, "timed_out": result.timed_out, "snapshot": snapshot}


def _tier_snapshot(snapshot: AdmissionSnapshot) -> dict[str, object]:
    return {
        "tier_id": snapshot.tier_id,
        **_admission_fields(snapshot),
        "member_active_requests": dict(snapshot.member_active_requests),
        "members": [
            {"member_id": member.member_id, **_admission_fields(member)} for member in snapshot.members
        ],
    }


def _snapshot(
    router: "Router", tier_id: str, member_id: str | None
) -> AdmissionSnapshot | MemberAdmissionSnapshot:
    """One scope of the ledger. Raises UnknownScopeError."""
    snapshot = router.ledger.snapshot(tier_id)
    if member_id is None:
        return snapshot
    for member in snapshot.members:
        if member.member_id == member_id:
            return member
    raise UnknownScopeError("unknown_member")


def _reason(router: "Router", tier_id: str, member_id: str | None) -> str | None:
    """Why a scope is quiesced; None when it is not, or is gone."""
    try:
        return _snapshot(router, tier_id, member_id).reason
    except UnknownScopeError:
        return None


def _status(router: "Router", tier: Tier, member_id: str | None) -> dict[str, object]:
    return {"tiers": [_tier_row(router, tier, only=member_id)]}


def _scope_row(router: "Router", tier: Tier, member_id: str | None) -> dict[str, object]:
    if member_id is None:
        return _tier_row(router, tier)
    snapshot = _snapshot(router, tier.id, member_id)
    result = router.availability.cached(tier.id, member_id) or NOT_PROBED
    return {"member_id": member_id, **_scope_fields(snapshot, tier, result)}


def _tier_row(router: "Router", tier: Tier, *, only: str | None = None) -> dict[str, object]:
    snapshot = router.ledger.snapshot(tier.id)
    if not tier.is_replica:
        result = router.availability.cached(tier.id) or NOT_PROBED
        return {"tier_id": tier.id, **_scope_fields(snapshot, tier, result)}
    results = {
        member_id: router.availability.cached(tier.id, member_id) or NOT_PROBED
        for member_id in tier.member_ids
    }
    best = next((result for result in results.values() if result.available), None)
    shown = best or next(iter(results.values()))
    members = [
        {"member_id": member.member_id, **_scope_fields(member, tier, results[member.member_id])}
        for member in snapshot.members
        if only in (None, member.member_id) and member.member_id in results
    ]
    return {"tier_id": tier.id, **_scope_fields(snapshot, tier, shown), "members": members}


def _scope_fields(
    snapshot: AdmissionSnapshot | MemberAdmissionSnapshot, tier: Tier, result: AvailabilityResult
) -> dict[str, object]:
    return {
        **_admission_fields(snapshot),
        "ready": result.available,
        "readiness_state": result.state,
        "readiness_reason": result.reason,
        "expected_model": tier.model,
        "observed_model": result.observed_model,
    }


def _admission_fields(snapshot: AdmissionSnapshot | MemberAdmissionSnapshot) -> dict[str, object]:
    return {
        "state": snapshot.state,
        "reason": snapshot.reason,
        "active_requests": snapshot.active_requests,
        "draining": snapshot.draining,
        "max_concurrency": snapshot.max_concurrency,
    }
