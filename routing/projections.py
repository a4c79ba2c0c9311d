"""The read-only JSON that callers see of aliases and members, built from explicit lists of keys.

Nothing here probes, reserves or refreshes: every value is a completed one, read once per payload. URLs, hosts
and the names of secrets never enter; an observed model is shown only where it equals the expected one.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from admission.identifiers import normalise_alias
from routing.availability import AvailabilityResult
from routing.config import RouterConfig, Tier
from routing.rules import FrozenJSON

if TYPE_CHECKING:
    from routing.router import Router

CREATED: Final = 1_700_000_000
"""A fixed creation time: clients require one, and it must not look like news."""

NOT_PROBED: Final = AvailabilityResult(False, "probe_pending")

_PROBED_GOOD: Final = frozenset({"health_passed", "identity_passed"})
_NO_ANSWER: Final = frozenset(
    {"availability_not_configured", "probe_pending", "probe_invalidated", "probe_superseded"}
)
"""Reasons behind which there is no probe's answer."""


class ReadinessSource(Protocol):
    """Who holds completed readiness; `HttpHealthAvailability` is one."""

    def cached(self, tier_id: str, member_id: str | None = None) -> AvailabilityResult | None: ...


class UnknownModelError(LookupError):
    """The alias that was asked for is not configured; the text does not repeat it."""

    def __init__(self) -> None:
        super().__init__("no such model")


# Readiness -----------------------------------------------------------------------------------------------


def completed(
    source: ReadinessSource | None, tier_id: str, member_id: str | None = None
) -> AvailabilityResult:
    """The held result; ``probe_pending`` where there is none, or no source that can be believed."""
    try:
        result = source.cached(tier_id, member_id) if source is not None else None
    except Exception:  # noqa: BLE001  # whatever broke the source, nothing is known then
        return NOT_PROBED
    return result if type(result) is AvailabilityResult else NOT_PROBED


def tier_readiness(source: ReadinessSource | None, tier: Tier) -> AvailabilityResult:
    """A tier's own result; of a replica tier that of its first ready member, else of its first member."""
    if not tier.is_replica:
        return completed(source, tier.id)
    results = [completed(source, tier.id, member_id) for member_id in tier.member_ids]
    return next((result for result in results if result.available), results[0])


def readiness_of(result: AvailabilityResult) -> dict[str, object]:
    return {"state": result.state, "reason": result.reason}


def observed_model(result: AvailabilityResult, tier: Tier) -> str | None:
    """The observed model where it is the expected one. Anything else a server said stays out."""
    return result.observed_model if result.observed_model == tier.model else None


def is_loaded(result: AvailabilityResult) -> bool | None:
    """Whether a probe found the model served; None where no probe has answered."""
    if result.reason in _NO_ANSWER:
        return None
    return result.reason in _PROBED_GOOD


def context_limit(tier: Tier, result: AvailabilityResult) -> int:
    """The tier's limit in tokens: the configured one, or what its upstream reported where that is wanted."""
    if tier.metadata_source == "upstream" and result.metadata is not None:
        return result.metadata.max_model_len
    return tier.context_limit


# GET /v1/models ------------------------------------------------------------------------------------------


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


def replica_metadata(tier: Tier, source: ReadinessSource | None) -> dict[str, object]:
    """Members in id order with their readiness, the declared identity, and where it comes from."""
    members = []
    for member_id in tier.member_ids:
        result = completed(source, tier.id, member_id)
        members.append(
            {
                "id": member_id,
                "ready": result.available,
                "state": result.state,
                "reason": result.reason,
                "expected_model": tier.model,
                "observed_model": observed_model(result, tier),
            }
        )
    return {
        "members": members,
        "replica_identity": _declared_identity(tier),
        "deployment_identity_source": "declared",
        "runtime_deployment_identity_verified": False,
    }


def _declared_identity(tier: Tier) -> dict[str, object] | None:
    identity = tier.replica_identity
    if identity is None:
        return None
    return {
        "model_revision": identity.model_revision,
        "engine_version": identity.engine_version,
        "image_digest": identity.image_digest,
        "config_fingerprint": identity.config_fingerprint,
    }


def _card(
    alias: str,
    config: RouterConfig,
    source: ReadinessSource | None,
    replica_fields: dict[str, dict[str, object]],
) -> dict[str, object]:
    tier = config.tier(config.model_routes[alias])
    card: dict[str, object] = {
        "id": alias,
        "object": "model",
        "name": alias,
        "description": tier.description,
        "owned_by": "anvil",
        "created": CREATED,
        "context_window": context_limit(tier, completed(source, tier.id)),
        "max_output_tokens": tier.max_output_tokens,
    }
    if tier.is_replica:
        if tier.id not in replica_fields:
            replica_fields[tier.id] = replica_metadata(tier, source)
        card |= {"logical_tier": tier.id, **replica_fields[tier.id]}
    return card


# GET /v1/models/capabilities, /v1/models/fingerprints ----------------------------------------------------


def selected_tiers(config: RouterConfig, model: str | None) -> Iterator[tuple[Tier, list[str]]]:
    """Every tier with its aliases, in configuration order; with ``model`` (an alias) its tier alone.

    Raises `UnknownModelError` for an alias that is not configured.
    """
    aliases: dict[str, list[str]] = {tier.id: [] for tier in config.tiers}
    for alias, tier_id in config.model_routes.items():
        aliases[tier_id].append(alias)
    wanted = None if model is None else config.model_routes.get(normalise_alias(model))
    if model is not None and wanted is None:
        raise UnknownModelError
    return ((tier, aliases[tier.id]) for tier in config.tiers if wanted in (None, tier.id))


def route_names(config: RouterConfig) -> frozenset[str]:
    """Whatever a record may name as its route: aliases, ids of purpose models and of audio routes."""
    others = {model.id for model in config.purpose_models} | {route.id for route in config.audio_routes}
    return frozenset(config.model_routes) | others


def declared(tier: Tier, table: str) -> Mapping[str, FrozenJSON]:
    """One table of a tier's ``params``; the configuration's grammar has vetted its keys and values."""
    return _table(tier.params, table)


def capabilities(
    config: RouterConfig, source: ReadinessSource | None, *, model: str | None = None
) -> dict[str, object]:
    """``GET /v1/models/capabilities``: what is declared of each tier. Raises `UnknownModelError`."""
    return {
        "object": "list",
        "data": [_capabilities(tier, names, source) for tier, names in selected_tiers(config, model)],
    }


def _capabilities(tier: Tier, aliases: list[str], source: ReadinessSource | None) -> dict[str, object]:
    known, media = declared(tier, "capabilities"), declared(tier, "capacity")
    thinking, compat = _table(known, "thinking"), _table(known, "compat")
    result = tier_readiness(source, tier)
    return {
        "object": "model_capabilities",
        "id": tier.id,
        "aliases": aliases,
        "model": tier.model,
        "context_limit_tokens": context_limit(tier, result),
        "tools": {"supported": tier.tool_support},
        "modalities": _words(known, "modalities"),
        "thinking": {
            "supported": flag(thinking, "supported"),
            "default": flag(thinking, "default"),
            "caller_override": flag(thinking, "caller_override"),
            "max_tokens": whole(thinking, "max_tokens"),
        },
        "compat": {
            "supportsUsageInStreaming": flag(compat, "supportsUsageInStreaming"),
            "supportsStrictMode": flag(compat, "supportsStrictMode"),
            "supportedReasoningEfforts": _words(compat, "supportedReasoningEfforts"),
        },
        "limits": {
            "max_output_tokens": tier.max_output_tokens,
            "images_per_request": whole(media, "image_limit"),
            "video_per_request": whole(media, "video_limit"),
        },
        "readiness": readiness_of(result),
    }


def fingerprints(
    config: RouterConfig, source: ReadinessSource | None, *, model: str | None = None
) -> dict[str, object]:
    """``GET /v1/models/fingerprints``: the declared deployment beside what a probe saw served.

    Raises `UnknownModelError`.
    """
    return {
        "object": "list",
        "data": [_fingerprint(tier, names, source) for tier, names in selected_tiers(config, model)],
    }


def _fingerprint(tier: Tier, aliases: list[str], source: ReadinessSource | None) -> dict[str, object]:
    known = declared(tier, "fingerprint")
    result = tier_readiness(source, tier)
    return {
        "object": "model_fingerprint",
        "id": tier.id,
        "aliases": aliases,
        "model": tier.model,
        "fingerprint": _declared_identity(tier)
        or {
            key: text(known, key)
            for key in ("model_revision", "engine_version", "image_digest", "config_fingerprint")
        },
        "served_identity": {"expected": tier.model, "observed": observed_model(result, tier)},
        "readiness": readiness_of(result),
    }


# Declared values: of their type, or null -----------------------------------------------------------------

_NOTHING: Final[Mapping[str, FrozenJSON]] = {}


def _table(values: Mapping[str, FrozenJSON], key: str) -> Mapping[str, FrozenJSON]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else _NOTHING


def text(values: Mapping[str, FrozenJSON], key: str) -> str | None:
    value = values.get(key)
    return value if type(value) is str else None


def whole(values: Mapping[str, FrozenJSON], key: str) -> int | None:
    value = values.get(key)
    return value if type(value) is int else None


def number(values: Mapping[str, FrozenJSON], key: str) -> float | None:
    value = values.get(key)
    return value if type(value) is int or type(value) is float else None


def flag(values: Mapping[str, FrozenJSON], key: str) -> bool | None:
    value = values.get(key)
    return value if type(value) is bool else None


def _words(values: Mapping[str, FrozenJSON], key: str) -> list[str] | None:
    value = values.get(key)
    if type(value) is not tuple:
        return None
    return [word for word in value if type(word) is str]
