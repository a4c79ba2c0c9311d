"""A router configuration joined with its topology, offline, from bytes that were read once.

The join (replica contract R004, T006): each member's resource exists, is used by one member only, is on the
member's declared host, has an endpoint, which is the member's URL after normalisation, and the members of
one tier share one host. URLs are compared as text; no name is resolved and no socket opened.

A refusal has one of nine fixed codes and a fixed text without any input. Where several things are wrong, the
code that comes first in ``CODES`` is the answer: the documents are judged before the join, and each rule of
the join over all tiers and members before the next rule. What exactly is wrong is for the document's owner:
``parse_config``, ``parse_topology`` and ``join_faults`` tell every fault with its place.

What is validated is what the operator declares. It is never evidence of what runs.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from routing.config import ReplicaMember, RouterConfig, Tier, normalise_url, read_config, thaw
from routing.documents import MAX_DOCUMENT_BYTES, Fault, Path, read_bounded, render_path
from routing.topology import Resource, Topology, TopologyError, parse_topology

SnapshotCode: TypeAlias = Literal[
    "config_too_large",
    "router_config_invalid",
    "topology_invalid",
    "replica_resource_missing",
    "replica_resource_reused",
    "replica_host_mismatch",
    "replica_endpoint_missing",
    "replica_endpoint_mismatch",
    "replica_host_split",
]

CODES: Final[tuple[SnapshotCode, ...]] = get_args(SnapshotCode)
"""The complete error vocabulary, in order of precedence."""

VALIDATION_SCHEMA: Final = "replica-topology-validation/v1"

CODE_TEXTS: Final[dict[SnapshotCode, str]] = {
    "config_too_large": "The router configuration is larger than 1 MiB.",
    "router_config_invalid": "The router configuration is not valid.",
    "topology_invalid": "The topology is not valid.",
    "replica_resource_missing": "A replica member's resource is not in the topology.",
    "replica_resource_reused": "A resource is used by more than one replica member.",
    "replica_host_mismatch": "A replica member's resource is not on its declared host.",
    "replica_endpoint_missing": "A replica member's resource has no endpoint.",
    "replica_endpoint_mismatch": "A replica member's URL is not its resource's endpoint.",
    "replica_host_split": "The members of a replica tier are not all on one host.",
}

Source: TypeAlias = str | os.PathLike[str] | int
"""A path, or an open descriptor, which stays open."""


class SnapshotError(ValueError):
    """A snapshot was refused: a fixed code and its fixed text.

    ``config_sha256`` is the digest of the configuration's bytes when all of them had been captured. The
    error carries no path, URL, id or value, and neither a cause nor a context that could.
    """

    code: SnapshotCode
    config_sha256: str | None

    def __init__(self, code: SnapshotCode, *, config_sha256: str | None = None) -> None:
        super().__init__(CODE_TEXTS[code])
        self.code = code
        self.config_sha256 = config_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedSnapshot:
    """The exact bytes that were captured, and what they were found to say. Only counts show in its repr.

    Digests are SHA-256 in lower-case hex, of the bytes as captured.
    """

    config_bytes: bytes = field(repr=False)
    config_sha256: str = field(repr=False)
    topology_bytes: bytes | None = field(default=None, repr=False)
    topology_sha256: str | None = field(default=None, repr=False)
    overlay_bytes: bytes | None = field(default=None, repr=False)
    overlay_sha256: str | None = field(default=None, repr=False)
    config: RouterConfig = field(repr=False)
    topology: Topology | None = field(default=None, repr=False)
    tier_count: int
    replica_tier_count: int
    replica_member_count: int
    deployment_identity_source: Literal["declared"] = "declared"
    runtime_deployment_identity_verified: Literal[False] = False


def capture(source: Source, *, unreadable: SnapshotCode = "router_config_invalid") -> bytes:
    """Read a document once, at most one byte over the limit (what validation then refuses).

    Raises SnapshotError with the code ``unreadable`` when it can't be read.
    """
    data = _read(source)
    if data is None:
        raise SnapshotError(unreadable)
    return data


def validate_snapshot(
    config_bytes: bytes, topology_bytes: bytes | None = None, overlay_bytes: bytes | None = None
) -> ValidatedSnapshot:
    """The snapshot of those exact bytes. Raises SnapshotError.

    Without replica tiers the topology is optional; when given, it must be valid. An overlay needs a
    topology below it.
    """
    return _snapshot_or_raise(config_bytes, _validate(config_bytes, topology_bytes, overlay_bytes))


def validate_files(
    config: Source, topology: Source | None = None, overlay: Source | None = None
) -> ValidatedSnapshot:
    """Capture each document once and validate what was captured. Raises SnapshotError.

    A topology or overlay that can't be read is an invalid one; a fault of the configuration comes first.
    """
    config_bytes = capture(config)
    topology_bytes = None if topology is None else _read(topology)
    overlay_bytes = None if overlay is None else _read(overlay)
    readable = (topology is None) == (topology_bytes is None) and (overlay is None) == (overlay_bytes is None)
    outcome = _validate(config_bytes, topology_bytes, overlay_bytes, topology_readable=readable)
    return _snapshot_or_raise(config_bytes, outcome)


def validation_result(outcome: ValidatedSnapshot | SnapshotError) -> dict[str, str | int | bool | None]:
    """The closed result of ``topology validate-router-config``: nine keys, the same for a refusal (T014)."""
    if isinstance(outcome, SnapshotError):
        return {
            "schema_version": VALIDATION_SCHEMA,
            "valid": False,
            "error_code": outcome.code,
            "config_sha256": outcome.config_sha256,
            "tier_count": None,
            "replica_tier_count": None,
            "replica_member_count": None,
            "deployment_identity_source": None,
            "runtime_deployment_identity_verified": False,
        }
    return {
        "schema_version": VALIDATION_SCHEMA,
        "valid": True,
        "error_code": None,
        "config_sha256": outcome.config_sha256,
        "tier_count": outcome.tier_count,
        "replica_tier_count": outcome.replica_tier_count,
        "replica_member_count": outcome.replica_member_count,
        "deployment_identity_source": outcome.deployment_identity_source,
        "runtime_deployment_identity_verified": outcome.runtime_deployment_identity_verified,
    }


def _snapshot_or_raise(config_bytes: bytes, outcome: ValidatedSnapshot | SnapshotCode) -> ValidatedSnapshot:
    """Raise from here, outside of any except block, so that no exception is chained."""
    if isinstance(outcome, ValidatedSnapshot):
        return outcome
    complete = len(config_bytes) <= MAX_DOCUMENT_BYTES
    raise SnapshotError(outcome, config_sha256=_sha256(config_bytes) if complete else None)


def _read(source: Source) -> bytes | None:
    try:
        return read_bounded(source)
    except (OSError, ValueError):
        # ValueError: a path with a null character.
        return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _validate(
    config_bytes: bytes,
    topology_bytes: bytes | None,
    overlay_bytes: bytes | None,
    *,
    topology_readable: bool = True,
) -> ValidatedSnapshot | SnapshotCode:
    if len(config_bytes) > MAX_DOCUMENT_BYTES:
        return "config_too_large"
    reading = read_config(config_bytes)
    config = reading.config
    if config is None:
        return "router_config_invalid"
    if not topology_readable or (topology_bytes is None and overlay_bytes is not None):
        return "topology_invalid"
    topology = None
    if topology_bytes is not None:
        try:
            topology = parse_topology(topology_bytes, overlay_bytes)
        except TopologyError:
            return "topology_invalid"
    refused = _join(config, topology)
    if refused is not None:
        return refused
    if reading.faults:
        # What the reading leaves to the join, the join refuses; this holds should that ever not be so.
        return "router_config_invalid"
    replica_tiers = [tier for tier in config.tiers if tier.is_replica]
    return ValidatedSnapshot(
        config_bytes=config_bytes,
        config_sha256=_sha256(config_bytes),
        topology_bytes=topology_bytes,
        topology_sha256=None if topology_bytes is None else _sha256(topology_bytes),
        overlay_bytes=overlay_bytes,
        overlay_sha256=None if overlay_bytes is None else _sha256(overlay_bytes),
        config=config,
        topology=topology,
        tier_count=len(config.tiers),
        replica_tier_count=len(replica_tiers),
        replica_member_count=sum(len(tier.replicas) for tier in replica_tiers),
    )


def _join(config: RouterConfig, topology: Topology | None) -> SnapshotCode | None:
    """The code of the first rule that any member breaks, or None; rules in the order of ``CODES``."""
    codes = [code for code, _ in join_faults(config, topology)]
    return min(codes, key=CODES.index, default=None)


def join_faults(config: RouterConfig, topology: Topology | None) -> tuple[tuple[SnapshotCode, Fault], ...]:
    """Every rule of the join that a member breaks, with its place, member by member: for the owner alone."""
    found: list[tuple[SnapshotCode, Fault]] = []
    places: dict[str, Path] = {}

    def add(code: SnapshotCode, place: Path, message: str) -> None:
        found.append((code, Fault(render_path(place), message, place)))

    for tier_number, tier in enumerate(config.tiers):
        for number, member in enumerate(tier.replicas):
            here: Path = ("router", "tiers", tier_number, "replicas", number)
            resource_place, host_place = (*here, "resource_id"), (*here, "host_id")
            first = places.setdefault(member.resource_id, resource_place)
            if first != resource_place:
                add("replica_resource_reused", resource_place, f"is the same as {render_path(first)}")
            if member.host_id != tier.replicas[0].host_id:
                same = f"must be the same as router.tiers[{tier_number}].replicas[0].host_id"
                add("replica_host_split", host_place, same)
            resource = None if topology is None else topology.resource(member.resource_id)
            if resource is None:
                unknown = "can't be found: no topology is given"
                missing = unknown if topology is None else f"{member.resource_id!r} is not in the topology"
                add("replica_resource_missing", resource_place, missing)
                continue
            if resource.host != member.host_id:
                other = f"is {member.host_id!r}, but the resource is on {resource.host!r}"
                add("replica_host_mismatch", host_place, other)
            if resource.endpoint is None:
                add("replica_endpoint_missing", resource_place, "names a resource without an endpoint")
            elif not _same_endpoint(member, resource):
                endpoint = f"is {member.base_url!r}, but the resource's endpoint is {resource.endpoint!r}"
                add("replica_endpoint_mismatch", (*here, "base_url"), endpoint)
    return tuple(found)


def _same_endpoint(member: ReplicaMember, resource: Resource) -> bool:
    endpoint = resource.endpoint
    return endpoint is not None and normalise_url(endpoint) == normalise_url(member.base_url)


def safe_projection(config: RouterConfig) -> dict[str, object]:
    """The configuration as plain JSON without anything that says where or with what secret.

    Left out: URLs, paths, hosts, resources, names of environment variables, and the two free-form
    ``extra_body`` tables, whose contents nobody has vetted.
    """
    settings = config.router
    return {
        "router": {
            "exhaustion_status": settings.exhaustion_status,
            "connect_timeout": settings.connect_timeout,
            "first_byte_timeout": settings.first_byte_timeout,
            "relay_timeout": settings.relay_timeout,
            "availability_probe_interval": settings.availability_probe_interval,
            "availability_probe_timeout": settings.availability_probe_timeout,
            "availability_probe_max_bytes": settings.availability_probe_max_bytes,
        },
        "model_routes": dict(config.model_routes),
        "tiers": [_safe_tier(tier) for tier in config.tiers],
        "purpose_models": [
            {"id": model.id, "kind": model.kind, "model": model.model, "timeout": model.timeout}
            for model in config.purpose_models
        ],
        "audio_routes": [
            {
                "id": route.id,
                "purpose": route.purpose,
                "model": route.model,
                "source_sample_rate": route.source_sample_rate,
                "default": route.default,
                "timeout": route.timeout,
            }
            for route in config.audio_routes
        ],
    }


def _safe_tier(tier: Tier) -> dict[str, object]:
    identity = tier.replica_identity
    return {
        "id": tier.id,
        "description": tier.description,
        "dialect": tier.dialect,
        "context_limit": tier.context_limit,
        "privacy": tier.privacy,
        "tool_support": tier.tool_support,
        "model": tier.model,
        "model_identity": tier.model_identity,
        "metadata_source": tier.metadata_source,
        "strategy": tier.strategy,
        "max_concurrency": tier.max_concurrency,
        "max_output_tokens": tier.max_output_tokens,
        "timeout": tier.timeout,
        "first_byte_timeout": tier.first_byte_timeout,
        "wires": list(tier.wires),
        "engine": tier.engine,
        "quantization": tier.quantization,
        "params": thaw(tier.params),
        "replica_identity": None
        if identity is None
        else {
            "model_revision": identity.model_revision,
            "engine_version": identity.engine_version,
            "image_digest": identity.image_digest,
            "config_fingerprint": identity.config_fingerprint,
        },
        "members": [
            {
                "id": member.id,
                "qualification_ref": member.qualification_ref,
                "max_concurrency": member.max_concurrency,
            }
            for member in tier.replicas
        ],
    }


def projection_sha256(config: RouterConfig) -> str:
    """SHA-256, in lower-case hex, of the safe projection as canonical JSON: what a status may show."""
    canonical = json.dumps(safe_projection(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _sha256(canonical.encode("ascii"))
