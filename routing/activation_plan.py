"""What an activation changes, and what must be at rest before it: decided from two configurations alone.

    aliases, ceilings, limits, timeouts, labels, ...       nothing: applies to the next request
    a tier or member added                                 nothing
    a member removed, or its place changed                 that member drained
    a tier removed, or what its answers come from changed  that tier drained

A drained scope is quiesced and holds no lease. Source: the activation table of the configuration contract.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from admission.core import AdmissionSnapshot
from routing.config import AudioRoute, PurposeModel, RouterConfig, Tier, thaw
from routing.documents import render_path
from routing.scopes import ScopeId

TIER_DRAIN_KEYS: Final = (
    "dialect",
    "auth_env",
    "model",
    "health_path",
    "model_identity",
    "metadata_source",
    "replica_strategy",
    "replica_identity",
)
"""Keys of a tier that say what its answers come from; so do its shape and a direct tier's ``base_url``."""

TIER_FREE_KEYS: Final = (
    "description",
    "context_limit",
    "privacy",
    "tool_support",
    "max_concurrency",
    "max_output_tokens",
    "timeout",
    "first_byte_timeout",
    "wires",
    "extra_body",
    "extra_body_defaults",
    "engine",
    "quantization",
    "params",
)
MEMBER_DRAIN_KEYS: Final = ("base_url", "host_id", "resource_id")
MEMBER_FREE_KEYS: Final = ("qualification_ref", "max_concurrency")

_SERVER_KEYS: Final = ("auth_env", "decision_log_path")
_ROUTER_KEYS: Final = (
    "exhaustion_status",
    "connect_timeout",
    "first_byte_timeout",
    "relay_timeout",
    "availability_probe_interval",
    "availability_probe_timeout",
    "availability_probe_max_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeChange:
    """What happens to one scope. ``keys`` are what differs in a changed one.

    ``needs_drain``: it must be quiesced and hold no lease before. ``starts_cold``: no readiness carries over,
    so it serves once its own first probe has passed. Members of an added, removed or reshaped tier are not
    listed beside it.
    """

    scope: ScopeId
    kind: Literal["added", "removed", "changed"]
    keys: tuple[str, ...] = ()
    needs_drain: bool = False

    @property
    def starts_cold(self) -> bool:
        return self.kind == "added" or (self.kind == "changed" and self.needs_drain)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """All that differs between two configurations.

    ``changes`` has the old configuration's tiers in its order, then the added ones; ``settings`` the paths of
    whatever else differs (settings, aliases, purpose models, audio routes), all of it without a drain.
    """

    changes: tuple[ScopeChange, ...]
    settings: tuple[str, ...]

    @property
    def must_drain(self) -> tuple[ScopeId, ...]:
        """The scopes that must be at rest; a tier stands for its members."""
        tiers = {
            change.scope.tier_id
            for change in self.changes
            if change.needs_drain and change.scope.member_id is None
        }
        return tuple(
            change.scope
            for change in self.changes
            if change.needs_drain and (change.scope.member_id is None or change.scope.tier_id not in tiers)
        )

    @property
    def is_empty(self) -> bool:
        """Whether both configurations mean the same."""
        return not self.changes and not self.settings


def plan_activation(old: RouterConfig | None, new: RouterConfig) -> ActivationPlan:
    """What changes when ``new`` takes the place of ``old`` (None: nothing was active)."""
    new_tiers = {tier.id: tier for tier in new.tiers}
    old_tiers = {tier.id: tier for tier in old.tiers} if old is not None else {}
    changes: list[ScopeChange] = []
    for tier_id, tier in old_tiers.items():
        if tier_id in new_tiers:
            changes.extend(_tier_changes(tier, new_tiers[tier_id]))
        else:
            changes.append(ScopeChange(scope=ScopeId(tier_id), kind="removed", needs_drain=True))
    changes.extend(
        ScopeChange(scope=ScopeId(tier_id), kind="added") for tier_id in new_tiers if tier_id not in old_tiers
    )
    settings = () if old is None else tuple(_setting_changes(old, new))
    return ActivationPlan(changes=tuple(changes), settings=settings)


def undrained(scopes: Iterable[ScopeId], readings: Iterable[AdmissionSnapshot]) -> tuple[ScopeId, ...]:
    """Those of ``scopes`` that are not at rest in the ledger's ``readings``, in their order.

    A member of a quiesced tier is as closed as a quiesced member. What the ledger does not know holds no
    lease.
    """
    by_tier = {reading.tier_id: reading for reading in readings}
    return tuple(scope for scope in scopes if not _is_at_rest(scope, by_tier.get(scope.tier_id)))


def is_closed(scope: ScopeId, reading: AdmissionSnapshot | None) -> bool:
    """Whether the scope takes no new lease, be it that its tier does not."""
    return reading is None or reading.state == "quiesced" or is_quiesced(scope, reading)


def is_quiesced(scope: ScopeId, reading: AdmissionSnapshot | None) -> bool:
    """Whether the scope itself is quiesced; what the ledger does not know counts as if it were."""
    if reading is None:
        return True
    if scope.member_id is None:
        return reading.state == "quiesced"
    return any(
        member.member_id == scope.member_id and member.state == "quiesced" for member in reading.members
    )


def _is_at_rest(scope: ScopeId, reading: AdmissionSnapshot | None) -> bool:
    if reading is None:
        return True
    active = reading.active_requests
    if scope.member_id is not None:
        active = dict(reading.member_active_requests).get(scope.member_id, 0)
    return active == 0 and is_closed(scope, reading)


def _tier_changes(old: Tier, new: Tier) -> Iterator[ScopeChange]:
    keys = list(_differing(old, new, (*TIER_DRAIN_KEYS, *TIER_FREE_KEYS)))
    needs_drain = any(key in TIER_DRAIN_KEYS for key in keys)
    if old.base_url != new.base_url:
        keys.append("base_url")
        needs_drain = True
    reshaped = old.is_replica != new.is_replica
    if reshaped:
        keys.append("replicas")
        needs_drain = True
    if keys:
        yield ScopeChange(scope=ScopeId(new.id), kind="changed", keys=tuple(keys), needs_drain=needs_drain)
    if not reshaped:
        yield from _member_changes(old, new)


def _member_changes(old: Tier, new: Tier) -> Iterator[ScopeChange]:
    after = {member.id: member for member in new.replicas}
    for member in old.replicas:
        scope = ScopeId(new.id, member.id)
        if member.id not in after:
            yield ScopeChange(scope=scope, kind="removed", needs_drain=True)
            continue
        keys = tuple(_differing(member, after[member.id], (*MEMBER_DRAIN_KEYS, *MEMBER_FREE_KEYS)))
        if keys:
            needs_drain = any(key in MEMBER_DRAIN_KEYS for key in keys)
            yield ScopeChange(scope=scope, kind="changed", keys=keys, needs_drain=needs_drain)
    before = {member.id for member in old.replicas}
    for member in new.replicas:
        if member.id not in before:
            yield ScopeChange(scope=ScopeId(new.id, member.id), kind="added")


def _setting_changes(old: RouterConfig, new: RouterConfig) -> Iterator[str]:
    for key in _differing(old.server, new.server, _SERVER_KEYS):
        yield render_path(("server", key))
    for key in _differing(old.router, new.router, _ROUTER_KEYS):
        yield render_path(("router", key))
    for alias in _differing_keys(old.model_routes, new.model_routes):
        yield render_path(("router", "model_routes", alias))
    for kind in ("purpose_models", "audio_routes"):
        for entry in _differing_keys(_by_id(getattr(old, kind)), _by_id(getattr(new, kind))):
            yield render_path(("router", kind, entry))


def _differing(old: object, new: object, keys: tuple[str, ...]) -> Iterator[str]:
    return (key for key in keys if _comparable(getattr(old, key)) != _comparable(getattr(new, key)))


def _comparable(value: object) -> object:
    """JSON by its text: to Python 1, 1.0 and true are equal."""
    return json.dumps(thaw(value), sort_keys=True) if isinstance(value, Mapping) else value


def _differing_keys(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    for key in (*old, *(key for key in new if key not in old)):
        if old.get(key) != new.get(key):
            yield key


def _by_id(entries: Iterable[PurposeModel | AudioRoute]) -> dict[str, PurposeModel | AudioRoute]:
    return {entry.id: entry for entry in entries}
