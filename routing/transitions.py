"""Transitions of a tier or a member: one service for REST, command line and console."""

from typing import TYPE_CHECKING

from admission.core import AdmissionSnapshot, MemberAdmissionSnapshot
from routing.availability import AvailabilityResult
from routing.config import Tier
from routing.projections import NOT_PROBED

if TYPE_CHECKING:
    from routing.router import Router


class TransitionError(Exception):
    """A transition was refused; nothing has changed. ``status`` is its HTTP status, ``code`` a fixed word."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def status(router: "Router", tier_id: str | None = None, member_id: str | None = None) -> dict[str, object]:
    """Every scope's row, or one tier's, or within it one member's alone.

    Raises TransitionError: 404 for an unknown tier or member, 400 for a member of a direct tier or without a
    tier.
    """
    active = router.active
    if active is None:
        raise TransitionError(503, "not_configured", "No configuration is active.")
    if tier_id is None:
        if member_id is not None:
            raise TransitionError(400, "tier_required", "A member is named within its tier.")
        return {"tiers": [_tier_row(router, tier) for tier in active.config.tiers]}
    try:
        tier = active.config.tier(tier_id)
    except KeyError:
        raise TransitionError(404, "unknown_tier", "No such tier.") from None
    if member_id is None:
        return {"tiers": [_tier_row(router, tier)]}
    if not tier.is_replica:
        raise TransitionError(400, "direct_tier", "A direct tier has no members.")
    if member_id not in tier.member_ids:
        raise TransitionError(404, "unknown_member", "No such member.")
    return {"tiers": [_tier_row(router, tier, only=member_id)]}


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
        "state": snapshot.state,
        "reason": snapshot.reason,
        "active_requests": snapshot.active_requests,
        "draining": snapshot.draining,
        "max_concurrency": snapshot.max_concurrency,
        "ready": result.available,
        "readiness_state": result.state,
        "readiness_reason": result.reason,
        "expected_model": tier.model,
        "observed_model": result.observed_model,
    }
