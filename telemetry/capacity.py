"""``GET /v1/models/capacity``: how large each tier is, how full it is, and what a request would need.

Everything is read once and completed before: the ledger's snapshot of a tier in one piece, then the pressure
cache's ``peek``, readiness and the poller's last reading. Nothing is probed, fetched, reserved or ranked, no
two locks are held at once, and a source that is missing, forged or inconsistent gives nulls, never a zero.

Sources: replica contract T005.1 and T005.2 (admission, members), capacity contract T011 and T011.1 (members
and telemetry of capacity tiers), projections (shapes). `telemetry.capacity_series` shows the same payload to
Prometheus.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard

from admission.core import AdmissionSnapshot, MemberAdmissionSnapshot
from admission.identifiers import is_safe_id
from admission.replica_scheduler import (
    MAX_MEMBERS,
    UNKNOWN_PRESSURE,
    ReplicaPressure,
    copy_replica_pressure,
)
from routing.config import RouterConfig, Tier
from routing.projections import (
    ReadinessSource,
    context_limit,
    declared,
    flag,
    is_loaded,
    number,
    readiness_of,
    replica_metadata,
    selected_tiers,
    text,
    tier_readiness,
    whole,
)
from routing.records import MAX_EXACT
from telemetry.live import LiveReading

MAX_MEDIA: Final = 10_000
MAX_TOKENS: Final = 10_000_000

_SCENARIO_BOUNDS: Final[Mapping[str, int]] = {
    "images": MAX_MEDIA,
    "videos": MAX_MEDIA,
    "input_tokens": MAX_TOKENS,
    "image_tokens": MAX_TOKENS,
    "video_tokens": MAX_TOKENS,
    "output_tokens": MAX_TOKENS,
}
PARAMETERS: Final = frozenset({"model", "gpu_role", *_SCENARIO_BOUNDS})

NOTE_ALLOWED: Final = "Within the declared limits. Arithmetic only: nothing was measured or reserved."
NOTE_REFUSED: Final = "Over a declared limit. Arithmetic only: nothing was measured or reserved."
NOTE_UNKNOWN: Final = "A limit or an estimate that this needs is not declared."


class AdmissionSource(Protocol):
    """The ledger, as far as it is looked at."""

    def snapshot(self, tier_id: str) -> AdmissionSnapshot: ...


class PressurePeek(Protocol):
    """The pressure cache as far as it is looked at; its ``snapshot`` would queue readings."""

    def peek(self, tier_id: str) -> Mapping[str, ReplicaPressure]: ...


class LiveSource(Protocol):
    """Who keeps the readings of direct tiers' engines."""

    def latest(self, tier_id: str) -> LiveReading: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuery:
    """What is asked: one alias, one role of a GPU, and a request to reckon with; None is not asked.

    Numbers are 0 to 10,000 (images, videos) and 0 to 10,000,000 (tokens; ``image_tokens`` and
    ``video_tokens`` for one of them each).
    """

    model: str | None = None
    gpu_role: str | None = None
    images: int | None = None
    videos: int | None = None
    input_tokens: int | None = None
    image_tokens: int | None = None
    video_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def has_scenario(self) -> bool:
        return any(getattr(self, name) is not None for name in _SCENARIO_BOUNDS)


def parse_query(parameters: Mapping[str, str]) -> CapacityQuery:
    """The query of these parameters. Raises ValueError, with a text that repeats none of them."""
    if set(parameters) - PARAMETERS:
        raise ValueError("unknown query parameter")
    gpu_role = parameters.get("gpu_role")
    if gpu_role is not None and not is_safe_id(gpu_role):
        raise ValueError("gpu_role is malformed")
    return CapacityQuery(
        model=parameters.get("model"),
        gpu_role=gpu_role,
        **{
            name: _bounded(parameters[name], bound)
            for name, bound in _SCENARIO_BOUNDS.items()
            if name in parameters
        },
    )


def _bounded(given: str, bound: int) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= 8 and int(given) <= bound):
        raise ValueError("a number is malformed or out of bounds")
    return int(given)


def build_model_capacity(
    config: RouterConfig,
    *,
    availability: ReadinessSource | None,
    admission: AdmissionSource | None = None,
    replica_pressure: PressurePeek | None = None,
    live: LiveSource | None = None,
    query: CapacityQuery | None = None,
) -> dict[str, object]:
    """One row a tier, in configuration order. Raises `UnknownModelError` for an alias that is not configured.

    A source that is None is unavailable: nulls for the ledger, unknown for pressure, pending for the rest.
    """
    query = query or CapacityQuery()
    rows = [
        _row(tier, aliases, availability, admission, replica_pressure, live, query)
        for tier, aliases in selected_tiers(config, query.model)
        if query.gpu_role is None or text(declared(tier, "capacity"), "gpu_role") == query.gpu_role
    ]
    return {"object": "list", "data": rows}


def _row(
    tier: Tier,
    aliases: list[str],
    availability: ReadinessSource | None,
    admission: AdmissionSource | None,
    replica_pressure: PressurePeek | None,
    live: LiveSource | None,
    query: CapacityQuery,
) -> dict[str, object]:
    known = declared(tier, "capacity")
    result = tier_readiness(availability, tier)
    context = context_limit(tier, result)
    cache_tokens = whole(known, "kv_cache_capacity_tokens")
    row: dict[str, object] = {
        "object": "model_capacity",
        "id": tier.id,
        "aliases": aliases,
        "model": tier.model,
        "loaded": is_loaded(result),
        "readiness": readiness_of(result),
        "engine": {"name": tier.engine, "quantization": tier.quantization},
        "gpu": {
            "role": text(known, "gpu_role"),
            "name": text(known, "gpu_name"),
            "memory_total_mib": whole(known, "gpu_memory_total_mib"),
        },
        "capacity": {
            "context_limit_tokens": context,
            "kv_cache_capacity_tokens": cache_tokens,
            "full_context_concurrency": None if cache_tokens is None else round(cache_tokens / context, 2),
            "configured_max_concurrency": tier.max_concurrency,
            "scheduler_max_num_seqs": whole(known, "scheduler_max_num_seqs"),
            "model_memory_gib": number(known, "model_memory_gib"),
        },
        "multimodal": {
            "admission_enabled": flag(known, "media_admission_enabled"),
            "image_limit": whole(known, "image_limit"),
            "video_limit": whole(known, "video_limit"),
            "image_tokens_estimate": whole(known, "image_tokens_estimate"),
            "video_tokens_estimate": whole(known, "video_tokens_estimate"),
        },
        "live": _live(tier, live, cache_tokens),
        "scenario": _scenario(tier, context, query) if query.has_scenario else None,
    }
    if tier.is_replica:
        row["admission"] = _admission(tier, admission)
        metadata = replica_metadata(tier, availability)
        if tier.strategy == "capacity":
            telemetry = _telemetry(tier, replica_pressure)
            metadata["members"] = [
                {**member, "telemetry": telemetry[member["id"]]} for member in _members_of(metadata)
            ]
        row["metadata"] = metadata
    return row


def _members_of(metadata: Mapping[str, object]) -> list[dict[str, str]]:
    members = metadata["members"]
    assert isinstance(members, list)
    return members


# Direct tiers: what the engine says -----------------------------------------------------------------------


def _live(tier: Tier, source: LiveSource | None, cache_tokens: int | None) -> dict[str, object]:
    reading = LiveReading(None, "pending")
    if tier.is_replica:
        reading = LiveReading(None, "replica_members")
    elif source is not None:
        reading = source.latest(tier.id)
    metrics = reading.metrics
    fraction = metrics.kv_cache_usage_fraction if metrics is not None else None
    used = None if fraction is None or cache_tokens is None else round(fraction * cache_tokens)
    return {
        "status": "unavailable" if metrics is None else "available",
        "reason": reading.reason,
        "requests_running": metrics.requests_running if metrics is not None else None,
        "requests_waiting": metrics.requests_waiting if metrics is not None else None,
        "kv_cache_usage_fraction": fraction,
        "kv_cache_used_tokens_estimate": used,
        "kv_cache_remaining_tokens_estimate": (
            None if used is None or cache_tokens is None else cache_tokens - used
        ),
        "preemptions_total": metrics.preemptions_total if metrics is not None else None,
        "multimodal_cache_queries_total": (
            metrics.multimodal_cache_queries_total if metrics is not None else None
        ),
        "multimodal_cache_hits_total": metrics.multimodal_cache_hits_total if metrics is not None else None,
    }


# The scenario ---------------------------------------------------------------------------------------------


def _scenario(tier: Tier, context: int, query: CapacityQuery) -> dict[str, object]:
    """What a request of these numbers would need, against what is declared; None where that is not."""
    known = declared(tier, "capacity")
    images, videos = query.images or 0, query.videos or 0
    image_tokens, image_source = _estimate(query.image_tokens, whole(known, "image_tokens_estimate"))
    video_tokens, video_source = _estimate(query.video_tokens, whole(known, "video_tokens_estimate"))
    needed: int | None = None
    if (not images or image_tokens is not None) and (not videos or video_tokens is not None):
        media = images * (image_tokens or 0) + videos * (video_tokens or 0)
        needed = (query.input_tokens or 0) + media + (query.output_tokens or 0)
    verdicts = {
        "within_image_limit": _within(images, whole(known, "image_limit")),
        "within_video_limit": _within(videos, whole(known, "video_limit")),
        "within_context_limit": None if needed is None else needed <= context,
    }
    allowed = _all(verdicts.values())
    notes = {True: NOTE_ALLOWED, False: NOTE_REFUSED, None: NOTE_UNKNOWN}
    return {
        "images": images,
        "videos": videos,
        "input_tokens": query.input_tokens or 0,
        "image_tokens": image_tokens,
        "image_tokens_source": image_source,
        "video_tokens": video_tokens,
        "video_tokens_source": video_source,
        "output_tokens": query.output_tokens or 0,
        "context_tokens": needed,
        **verdicts,
        "allowed": allowed,
        "note": notes[allowed],
    }


def _estimate(given: int | None, configured: int | None) -> tuple[int | None, str | None]:
    if given is not None:
        return given, "request"
    return configured, None if configured is None else "configured_estimate"


def _within(count: int, limit: int | None) -> bool | None:
    """None of a kind is within any limit, a declared one or not."""
    if not count:
        return True
    return None if limit is None else count <= limit


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    if False in found:
        return False
    return None if None in found else True


# Replica tiers: the ledger --------------------------------------------------------------------------------


def _admission(tier: Tier, source: AdmissionSource | None) -> dict[str, object]:
    """One reading of the tier's owner, checked as a whole; all of it unavailable when any of it is not so."""
    try:
        snapshot = source.snapshot(tier.id) if source is not None else None
    except Exception:  # noqa: BLE001  # whatever broke the owner, its load is not known
        snapshot = None
    capacity = tier.strategy == "capacity"
    if snapshot is None or not _is_consistent(snapshot, tier):
        unavailable: dict[str, object] = {
            "state": "unavailable",
            "active_requests": None,
            "draining": None,
            "complete": False,
            "member_active_requests": None,
        }
        return unavailable | ({"max_concurrency": None, "members": None} if capacity else {})
    row: dict[str, object] = {
        "state": snapshot.state,
        "active_requests": snapshot.active_requests,
        "draining": snapshot.draining,
        "complete": True,
        "member_active_requests": dict(sorted(snapshot.member_active_requests)),
    }
    if capacity:
        row["max_concurrency"] = snapshot.max_concurrency
        row["members"] = [
            {
                "id": member.member_id,
                "state": member.state,
                "active_requests": member.active_requests,
                "max_concurrency": member.max_concurrency,
                "draining": member.draining,
            }
            for member in sorted(snapshot.members, key=lambda member: member.member_id)
        ]
    return row


def _is_consistent(snapshot: AdmissionSnapshot, tier: Tier) -> bool:
    if not (
        type(snapshot) is AdmissionSnapshot and snapshot.tier_id == tier.id and _state_is_consistent(snapshot)
    ):
        return False
    pairs = snapshot.member_active_requests
    if type(pairs) is not tuple or not all(type(pair) is tuple and len(pair) == 2 for pair in pairs):
        return False
    counts = {name: count for name, count in pairs if type(name) is str and is_count(count)}
    if (
        len(pairs) != len(counts)
        or tuple(sorted(counts)) != tier.member_ids
        or sum(counts.values()) != snapshot.active_requests
    ):
        return False
    return tier.strategy != "capacity" or _members_are_consistent(snapshot, tier, counts)


def _members_are_consistent(snapshot: AdmissionSnapshot, tier: Tier, counts: Mapping[str, int]) -> bool:
    """The capacity contract's rules (T011): exact members, ceilings as configured, counts within them."""
    members = snapshot.members
    if type(members) is not tuple or not all(type(member) is MemberAdmissionSnapshot for member in members):
        return False
    ceiling = tier.effective_ceiling
    return (
        sorted(str(member.member_id) for member in members) == list(tier.member_ids)
        and snapshot.max_concurrency == ceiling
        and ceiling is not None
        and snapshot.active_requests <= ceiling
        and all(
            _state_is_consistent(member)
            and member.active_requests == counts.get(member.member_id)
            and type(member.max_concurrency) is int
            and member.max_concurrency == tier.member(member.member_id).max_concurrency
            and member.active_requests <= member.max_concurrency
            for member in members
        )
    )


def _state_is_consistent(scope: AdmissionSnapshot | MemberAdmissionSnapshot) -> bool:
    """A known state, a count in bounds, and draining exactly when a quiesced scope still has leases."""
    return (
        type(scope.state) is str
        and scope.state in ("admitting", "quiesced")
        and is_count(scope.active_requests)
        and type(scope.draining) is bool
        and scope.draining == (scope.state == "quiesced" and scope.active_requests > 0)
    )


def is_count(value: object) -> TypeGuard[int]:
    """Whether ``value`` is exactly an int that a JSON number carries exactly."""
    return type(value) is int and 0 <= value <= MAX_EXACT


# Capacity tiers: pressure ---------------------------------------------------------------------------------


def _telemetry(tier: Tier, source: PressurePeek | None) -> dict[str, dict[str, object]]:
    """Each member's cached pressure. A bad mapping makes all unknown, a bad value its own member alone."""
    try:
        pressure = source.peek(tier.id) if source is not None else None
    except Exception:  # noqa: BLE001  # whatever broke the cache, its members are unknown
        pressure = None
    complete = (
        type(pressure) is dict
        and len(pressure) <= MAX_MEMBERS
        and all(type(name) is str for name in pressure)
        and tuple(sorted(pressure)) == tier.member_ids
    )
    values = pressure if complete and pressure is not None else {}
    rows: dict[str, dict[str, object]] = {}
    for member_id in tier.member_ids:
        try:
            value = copy_replica_pressure(values.get(member_id))
        except ValueError:
            value = UNKNOWN_PRESSURE
        rows[member_id] = {
            "freshness": value.freshness.value,
            "pressure_ppm": value.pressure_ppm,
            "requests_state": value.requests_state.value,
            "kv_state": value.kv_state.value,
        }
    return rows
