"""The capacity payload as Prometheus gauges: current values, never history.

The payload is taken as found: every value is checked for its exact type and bound again, and a group that is
not sound in all of them is left out whole, so that nothing is coerced and no arbitrary key is printed.

Source: capacity contract T011 (names, labels, bounds), projections (model gauges).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from admission.identifiers import is_alias, is_safe_id
from admission.replica_scheduler import MAX_MEMBERS, MAX_PRESSURE_PPM, PressureFreshness
from routing.config import MAX_CAPACITY_MEMBERS
from routing.records import MAX_EXACT
from telemetry.capacity import is_count
from telemetry.series import Point, Series, render

_TIER = ("tier",)
_MEMBER = ("tier", "member")
_MODEL = ("model", "tier")

TIER_ACTIVE: Final = Series(
    "anvil_router_replica_tier_active_requests",
    "gauge",
    "Requests that hold a lease of the capacity tier.",
    _TIER,
)
TIER_CEILING: Final = Series(
    "anvil_router_replica_tier_max_concurrency", "gauge", "Effective ceiling of the capacity tier.", _TIER
)
MEMBER_ACTIVE: Final = Series(
    "anvil_router_replica_member_active_requests",
    "gauge",
    "Requests that hold a lease of the capacity tier's member.",
    _MEMBER,
)
MEMBER_CEILING: Final = Series(
    "anvil_router_replica_member_max_concurrency",
    "gauge",
    "Ceiling of the capacity tier's member.",
    _MEMBER,
)
PRESSURE: Final = Series(
    "anvil_router_replica_member_pressure_ppm",
    "gauge",
    "Fresh upstream pressure of the member, in parts per million.",
    _MEMBER,
)
FRESHNESS: Final = Series(
    "anvil_router_replica_member_pressure_freshness",
    "gauge",
    "1 on the freshness that the member's pressure has.",
    (*_MEMBER, "freshness"),
)
_MODEL_GAUGES: Final[Mapping[tuple[str, ...], Series]] = {
    path: Series(f"anvil_router_model_{path[-1]}", "gauge", help_text, _MODEL)
    for path, help_text in {
        ("loaded",): "1 when a probe found the model served, 0 when not.",
        ("capacity", "context_limit_tokens"): "Context limit of the model.",
        ("capacity", "kv_cache_capacity_tokens"): "Declared KV cache capacity of the model's engine.",
        ("multimodal", "image_limit"): "Declared limit of images in one request.",
        ("live", "requests_running"): "Requests that the engine of a direct tier says it is running.",
        ("live", "requests_waiting"): "Requests that the engine of a direct tier says are waiting.",
        (
            "live",
            "kv_cache_usage_fraction",
        ): "Share of the KV cache in use, of direct tiers' engines.",
    }.items()
}
CAPACITY_SERIES: Final = (
    *_MODEL_GAUGES.values(),
    TIER_ACTIVE,
    TIER_CEILING,
    MEMBER_ACTIVE,
    MEMBER_CEILING,
    PRESSURE,
    FRESHNESS,
)


def capacity_points(payload: Mapping[str, object]) -> Iterator[Point]:
    """The gauges of a capacity payload. A number that is not known has no point."""
    rows = _rows(payload)
    yield from _model_points(rows)
    for group in _capacity_groups(rows):
        yield Point(TIER_ACTIVE, (group.tier_id,), group.active_requests)
        yield Point(TIER_CEILING, (group.tier_id,), group.max_concurrency)
        for member in group.members:
            yield Point(MEMBER_ACTIVE, (group.tier_id, member.member_id), member.active_requests)
            yield Point(MEMBER_CEILING, (group.tier_id, member.member_id), member.max_concurrency)
    for tier_id, members in _telemetry_groups(rows):
        for member_id, level, ppm in members:
            if ppm is not None:
                yield Point(PRESSURE, (tier_id, member_id), ppm)
            for each in PressureFreshness:
                yield Point(FRESHNESS, (tier_id, member_id, each.value), int(each.value == level))


def render_capacity_prometheus(payload: Mapping[str, object]) -> str:
    """`capacity_points` as Prometheus text."""
    return render(capacity_points(payload)).decode("utf-8")


def _rows(payload: Mapping[str, object]) -> list[Mapping[str, object]]:
    rows = payload.get("data")
    return [row for row in rows if type(row) is dict] if type(rows) is list else []


def _model_points(rows: list[Mapping[str, object]]) -> Iterator[Point]:
    for path, series in _MODEL_GAUGES.items():
        for row in rows:
            value = _number(row, path)
            aliases, tier_id = row.get("aliases"), row.get("id")
            if value is not None and is_safe_id(tier_id) and type(aliases) is list:
                for alias in filter(_is_label, aliases):
                    yield Point(series, (alias, tier_id), value)


def _is_label(alias: object) -> bool:
    # The grammar of aliases admits every character of a URL; no label is one.
    return is_alias(alias) and "://" not in alias


@dataclass(frozen=True, slots=True)
class _MemberGroup:
    member_id: str
    active_requests: int
    max_concurrency: int


@dataclass(frozen=True, slots=True)
class _TierGroup:
    tier_id: str
    active_requests: int
    max_concurrency: int
    members: tuple[_MemberGroup, ...]


def _capacity_groups(rows: list[Mapping[str, object]]) -> list[_TierGroup]:
    """The admission of each capacity row that is sound in every value; of any other row nothing."""
    groups: list[_TierGroup] = []
    seen: set[str] = set()
    for row in rows:
        tier_id, admission = row.get("id"), row.get("admission")
        if not (is_safe_id(tier_id) and type(admission) is dict) or tier_id in seen:
            continue
        members = _member_groups(admission.get("members"))
        active, ceiling = admission.get("active_requests"), admission.get("max_concurrency")
        if (
            members is not None
            and is_count(active)
            and is_count(ceiling)
            and active == sum(member.active_requests for member in members)
        ):
            seen.add(tier_id)
            groups.append(_TierGroup(tier_id, active, ceiling, members))
    if sum(len(group.members) for group in groups) > MAX_CAPACITY_MEMBERS:
        return []
    return groups


def _member_groups(value: object) -> tuple[_MemberGroup, ...] | None:
    if type(value) is not list or not 0 < len(value) <= MAX_MEMBERS:
        return None
    groups = []
    for item in value:
        if type(item) is not dict:
            return None
        member_id, active, ceiling = (
            item.get("id"),
            item.get("active_requests"),
            item.get("max_concurrency"),
        )
        if not (is_safe_id(member_id) and is_count(active) and is_count(ceiling)):
            return None
        groups.append(_MemberGroup(member_id, active, ceiling))
    if len({group.member_id for group in groups}) != len(groups):
        return None
    return tuple(groups)


_Telemetry = tuple[str, str, int | None]
"""Member id, freshness, and the pressure (ppm) of a fresh one."""


def _telemetry_groups(rows: list[Mapping[str, object]]) -> list[tuple[str, list[_Telemetry]]]:
    groups: list[tuple[str, list[_Telemetry]]] = []
    seen: set[str] = set()
    for row in rows:
        tier_id, metadata = row.get("id"), row.get("metadata")
        if not (is_safe_id(tier_id) and type(metadata) is dict) or tier_id in seen:
            continue
        members = _member_telemetry(metadata.get("members"))
        if members is not None:
            seen.add(tier_id)
            groups.append((tier_id, members))
    if sum(len(members) for _, members in groups) > MAX_CAPACITY_MEMBERS:
        return []
    return groups


def _member_telemetry(value: object) -> list[_Telemetry] | None:
    if type(value) is not list or not 0 < len(value) <= MAX_MEMBERS:
        return None
    found: dict[str, _Telemetry] = {}
    for item in value:
        telemetry = item.get("telemetry") if type(item) is dict else None
        if type(telemetry) is not dict:
            return None
        member_id, level = item.get("id"), telemetry.get("freshness")
        ppm = telemetry.get("pressure_ppm")
        fresh = level == PressureFreshness.FRESH.value
        sound = (type(ppm) is int and 0 <= ppm <= MAX_PRESSURE_PPM) if fresh else ppm is None
        if not (is_safe_id(member_id) and type(level) is str and level in _LEVELS and sound):
            return None
        if member_id in found:
            return None
        found[member_id] = (member_id, level, ppm)
    return list(found.values())


_LEVELS: Final = frozenset(level.value for level in PressureFreshness)


def _number(row: Mapping[str, object], path: tuple[str, ...]) -> float | None:
    """The number (true and false count as 1 and 0) that ``path`` leads to, if it is one to show."""
    value: object = row
    for key in path:
        value = value.get(key) if type(value) is dict else None
    if type(value) is bool:
        return int(value)
    if (type(value) is int or type(value) is float) and 0 <= value <= MAX_EXACT:  # not so for NaN
        return value
    return None
