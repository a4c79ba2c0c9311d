"""The read-only JSON that callers see of aliases and members, built from explicit lists of keys.

Nothing here probes, reserves or refreshes: every value is a completed one, read once per payload. URLs, hosts
and the names of secrets never enter; an observed model is shown only where it equals the expected one.
"""

from typing import TYPE_CHECKING, Final

from admission.identifiers import normalise_alias
from routing.availability import AvailabilityResult, HttpHealthAvailability
from routing.config import RouterConfig, Tier

if TYPE_CHECKING:
    from routing.router import Router

CREATED: Final = 1_700_000_000
"""A fixed creation time: clients require one, and it must not look like news."""

NOT_PROBED: Final = AvailabilityResult(False, "probe_pending")


def model_list(router: "Router") -> dict[str, object]:
    """``GET /v1/models``: one entry per alias, in configuration order."""
    active = router.active
    if active is None:
        return {"object": "list", "data": []}
    replica_fields: dict[str, dict[str, object]] = {}
    cards = [
        _card(alias, active.config, router.availability, replica_fields)
        for alias in active.config.model_routes
    ]
    return {"object": "list", "data": cards}


def model_card(router: "Router", name: str) -> dict[str, object] | None:
    """``GET /v1/models/{id}``: the entry of one alias, or None when it is not configured."""
    active = router.active
    alias = normalise_alias(name)
    if active is None or alias not in active.config.model_routes:
        return None
    return _card(alias, active.config, router.availability, {})


def replica_metadata(tier: Tier, availability: HttpHealthAvailability) -> dict[str, object]:
    """Members in id order with their readiness, the declared identity, and where it comes from."""
    members = []
    for member_id in tier.member_ids:
        result = availability.cached(tier.id, member_id) or NOT_PROBED
        members.append(
            {
                "id": member_id,
                "ready": result.available,
                "state": result.state,
                "reason": result.reason,
                "expected_model": tier.model,
                "observed_model": result.observed_model,
            }
        )
    identity = tier.replica_identity
    return {
        "members": members,
        "replica_identity": None
        if identity is None
        else {
            "model_revision": identity.model_revision,
            "engine_version": identity.engine_version,
            "image_digest": identity.image_digest,
            "config_fingerprint": identity.config_fingerprint,
        },
        "deployment_identity_source": "declared",
        "runtime_deployment_identity_verified": False,
    }


def _card(
    alias: str,
    config: RouterConfig,
    availability: HttpHealthAvailability,
    replica_fields: dict[str, dict[str, object]],
) -> dict[str, object]:
    tier = config.tier(config.model_routes[alias])
    context_window = tier.context_limit
    if tier.metadata_source == "upstream":
        result = availability.cached(tier.id)
        if result is not None and result.metadata is not None:
            context_window = result.metadata.max_model_len
    card: dict[str, object] = {
        "id": alias,
        "object": "model",
        "name": alias,
        "description": tier.description,
        "owned_by": "anvil",
        "created": CREATED,
        "context_window": context_window,
        "max_output_tokens": tier.max_output_tokens,
    }
    if tier.is_replica:
        if tier.id not in replica_fields:
            replica_fields[tier.id] = replica_metadata(tier, availability)
        card |= {"logical_tier": tier.id, **replica_fields[tier.id]}
    return card
