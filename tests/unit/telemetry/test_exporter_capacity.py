"""The capacity payload as Prometheus gauges: literal text, bounds, payloads that nobody should believe."""

from typing import Any

import pytest

from telemetry.capacity import build_model_capacity
from telemetry.capacity_series import render_capacity_prometheus
from tests.unit.telemetry.capacity_support import (
    CONFIG,
    DIRECT,
    FRESH,
    METRICS,
    PRIMARY,
    ROTATING,
    STALE,
    Ledger,
    Live,
    Pressure,
    readiness,
)

FULL = """\
# HELP anvil_router_model_loaded 1 when a probe found the model served, 0 when not.
# TYPE anvil_router_model_loaded gauge
anvil_router_model_loaded{model="llm.direct",tier="direct"} 1.0
anvil_router_model_loaded{model="llm.rotating",tier="rotating"} 0.0
anvil_router_model_loaded{model="llm.primary",tier="primary"} 1.0
anvil_router_model_loaded{model="llm.second",tier="primary"} 1.0
# HELP anvil_router_model_context_limit_tokens Context limit of the model.
# TYPE anvil_router_model_context_limit_tokens gauge
anvil_router_model_context_limit_tokens{model="llm.direct",tier="direct"} 32768.0
anvil_router_model_context_limit_tokens{model="llm.rotating",tier="rotating"} 8192.0
anvil_router_model_context_limit_tokens{model="llm.primary",tier="primary"} 8192.0
anvil_router_model_context_limit_tokens{model="llm.second",tier="primary"} 8192.0
# HELP anvil_router_model_kv_cache_capacity_tokens Declared KV cache capacity of the model's engine.
# TYPE anvil_router_model_kv_cache_capacity_tokens gauge
anvil_router_model_kv_cache_capacity_tokens{model="llm.direct",tier="direct"} 100000.0
# HELP anvil_router_model_image_limit Declared limit of images in one request.
# TYPE anvil_router_model_image_limit gauge
anvil_router_model_image_limit{model="llm.direct",tier="direct"} 4.0
# HELP anvil_router_model_requests_running Requests that the engine of a direct tier says it is running.
# TYPE anvil_router_model_requests_running gauge
anvil_router_model_requests_running{model="llm.direct",tier="direct"} 3.0
# HELP anvil_router_model_requests_waiting Requests that the engine of a direct tier says are waiting.
# TYPE anvil_router_model_requests_waiting gauge
anvil_router_model_requests_waiting{model="llm.direct",tier="direct"} 1.0
# HELP anvil_router_model_kv_cache_usage_fraction Share of the KV cache in use, of direct tiers' engines.
# TYPE anvil_router_model_kv_cache_usage_fraction gauge
anvil_router_model_kv_cache_usage_fraction{model="llm.direct",tier="direct"} 0.25
# HELP anvil_router_replica_tier_active_requests Requests that hold a lease of the capacity tier.
# TYPE anvil_router_replica_tier_active_requests gauge
anvil_router_replica_tier_active_requests{tier="primary"} 3.0
# HELP anvil_router_replica_tier_max_concurrency Effective ceiling of the capacity tier.
# TYPE anvil_router_replica_tier_max_concurrency gauge
anvil_router_replica_tier_max_concurrency{tier="primary"} 6.0
# HELP anvil_router_replica_member_active_requests Requests that hold a lease of the capacity tier's member.
# TYPE anvil_router_replica_member_active_requests gauge
anvil_router_replica_member_active_requests{member="member-a",tier="primary"} 1.0
anvil_router_replica_member_active_requests{member="member-b",tier="primary"} 2.0
# HELP anvil_router_replica_member_max_concurrency Ceiling of the capacity tier's member.
# TYPE anvil_router_replica_member_max_concurrency gauge
anvil_router_replica_member_max_concurrency{member="member-a",tier="primary"} 2.0
anvil_router_replica_member_max_concurrency{member="member-b",tier="primary"} 4.0
# HELP anvil_router_replica_member_pressure_ppm Fresh upstream pressure of the member, in parts per million.
# TYPE anvil_router_replica_member_pressure_ppm gauge
anvil_router_replica_member_pressure_ppm{member="member-a",tier="primary"} 1.25e+06
# HELP anvil_router_replica_member_pressure_freshness 1 on the freshness that the member's pressure has.
# TYPE anvil_router_replica_member_pressure_freshness gauge
anvil_router_replica_member_pressure_freshness{freshness="fresh",member="member-a",tier="primary"} 1.0
anvil_router_replica_member_pressure_freshness{freshness="stale",member="member-a",tier="primary"} 0.0
anvil_router_replica_member_pressure_freshness{freshness="failed",member="member-a",tier="primary"} 0.0
anvil_router_replica_member_pressure_freshness{freshness="unknown",member="member-a",tier="primary"} 0.0
anvil_router_replica_member_pressure_freshness{freshness="fresh",member="member-b",tier="primary"} 0.0
anvil_router_replica_member_pressure_freshness{freshness="stale",member="member-b",tier="primary"} 1.0
anvil_router_replica_member_pressure_freshness{freshness="failed",member="member-b",tier="primary"} 0.0
anvil_router_replica_member_pressure_freshness{freshness="unknown",member="member-b",tier="primary"} 0.0
"""


def payload(**changes: Any) -> dict[str, object]:
    sources: dict[str, Any] = {
        "availability": readiness(),
        "admission": Ledger(DIRECT, ROTATING, PRIMARY),
        "replica_pressure": Pressure({"primary": {"member-a": FRESH, "member-b": STALE}}),
        "live": Live(direct=METRICS),
    }
    return build_model_capacity(CONFIG, **(sources | changes))


@pytest.mark.requirement("C-T011", "C-R012")
def test_the_whole_text() -> None:
    """No alias multiplies a replica series, and no other tier than a capacity tier has one."""
    assert render_capacity_prometheus(payload()) == FULL


@pytest.mark.requirement("C-T011")
def test_unavailable_numbers_have_no_series() -> None:
    text = render_capacity_prometheus(
        payload(availability=None, admission=None, live=None, replica_pressure=None)
    )
    names = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names == {
        "anvil_router_model_context_limit_tokens",
        "anvil_router_model_kv_cache_capacity_tokens",
        "anvil_router_model_image_limit",
        "anvil_router_replica_member_pressure_freshness",
    }
    assert 'freshness{freshness="unknown",member="member-a",tier="primary"} 1.0' in text


def capacity_row(tier_id: str = "primary", members: int = 2) -> dict[str, Any]:
    """A capacity row as far as metrics read it: each member with one request of two places."""
    names = [f"m{number}" for number in range(members)]
    return {
        "id": tier_id,
        "admission": {
            "active_requests": members,
            "max_concurrency": 2 * members,
            "members": [{"id": name, "active_requests": 1, "max_concurrency": 2} for name in names],
        },
        "metadata": {
            "members": [
                {"id": name, "telemetry": {"freshness": "fresh", "pressure_ppm": 7}} for name in names
            ]
        },
    }


def render(*rows: Any) -> str:
    return render_capacity_prometheus({"object": "list", "data": list(rows)})


def spoil(place: str, value: object) -> dict[str, Any]:
    """A row with ``value`` at a dotted place; numbers are positions in lists."""
    row: Any = capacity_row()
    target = row
    *path, last = place.split(".")
    for key in path:
        target = target[int(key) if key.isdigit() else key]
    target[int(last) if last.isdigit() else last] = value
    return dict(row)


SPOILED = [
    ("id", "10.9.8.7:8101/planted"),
    ("id", None),
    ("id", 7),
    ("admission", "planted"),
    ("admission.active_requests", 3),
    ("admission.active_requests", True),
    ("admission.active_requests", 2.0),
    ("admission.active_requests", float("nan")),
    ("admission.active_requests", -1),
    ("admission.active_requests", 2**53),
    ("admission.max_concurrency", None),
    ("admission.max_concurrency", "4"),
    ("admission.members", None),
    ("admission.members", []),
    ("admission.members", ({"id": "m0"},)),
    ("admission.members", capacity_row(members=17)["admission"]["members"]),
    ("admission.members.0", "planted"),
    ("admission.members.0.id", "http://planted"),
    ("admission.members.0.id", "m1"),
    ("admission.members.0.active_requests", "planted"),
    ("admission.members.0.max_concurrency", float("inf")),
]


@pytest.mark.requirement("C-T011")
@pytest.mark.parametrize(("place", "value"), SPOILED)
def test_a_malformed_admission_group_is_left_out_whole(place: str, value: object) -> None:
    text = render(spoil(place, value), capacity_row("other"))
    assert [
        line for line in text.splitlines() if "_active_requests{" in line or "_max_concurrency{" in line
    ] == [
        'anvil_router_replica_tier_active_requests{tier="other"} 2.0',
        'anvil_router_replica_tier_max_concurrency{tier="other"} 4.0',
        'anvil_router_replica_member_active_requests{member="m0",tier="other"} 1.0',
        'anvil_router_replica_member_active_requests{member="m1",tier="other"} 1.0',
        'anvil_router_replica_member_max_concurrency{member="m0",tier="other"} 2.0',
        'anvil_router_replica_member_max_concurrency{member="m1",tier="other"} 2.0',
    ]
    assert "planted" not in text


@pytest.mark.requirement("C-T011")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("metadata", "planted"),
        ("metadata.members", None),
        ("metadata.members", []),
        ("metadata.members.0", "planted"),
        ("metadata.members.0.id", "http://planted"),
        ("metadata.members.0.id", "m1"),
        ("metadata.members.0.telemetry", None),
        ("metadata.members.0.telemetry.freshness", "planted"),
        ("metadata.members.0.telemetry.freshness", None),
        ("metadata.members.0.telemetry.freshness", "stale"),
        ("metadata.members.0.telemetry.pressure_ppm", None),
        ("metadata.members.0.telemetry.pressure_ppm", True),
        ("metadata.members.0.telemetry.pressure_ppm", -1),
        ("metadata.members.0.telemetry.pressure_ppm", 7.0),
        ("metadata.members.0.telemetry.pressure_ppm", 2_000_000_000_000_001),
        ("metadata.members.0.telemetry.pressure_ppm", "vllm:planted"),
    ],
)
def test_a_malformed_telemetry_group_is_left_out_whole(place: str, value: object) -> None:
    text = render(spoil(place, value))
    assert "pressure" not in text
    assert "planted" not in text
    assert 'anvil_router_replica_tier_active_requests{tier="primary"} 2.0' in text


@pytest.mark.requirement("C-T011")
def test_more_than_256_members_are_refused_together() -> None:
    sixteen = [capacity_row(f"t{number}", 16) for number in range(16)]
    text = render(*sixteen)
    assert text.count("anvil_router_replica_member_active_requests{") == 256
    assert text.count("anvil_router_replica_member_pressure_ppm{") == 256
    assert "anvil_router_replica" not in render(*sixteen, capacity_row("one-more"))


def test_one_tier_twice_counts_once() -> None:
    text = render(capacity_row(), capacity_row())
    assert text.count('anvil_router_replica_tier_active_requests{tier="primary"}') == 1


@pytest.mark.parametrize(
    "whole", [{}, {"data": None}, {"data": "planted"}, {"data": ["planted", None, 7, []]}]
)
def test_a_payload_of_another_shape_says_nothing(whole: dict[str, object]) -> None:
    assert render_capacity_prometheus(whole) == ""


@pytest.mark.parametrize("alias", ["http://planted", "UPPER", 'quote"', "", None, 7])
def test_what_is_no_alias_is_no_label(alias: object) -> None:
    row = {"id": "direct", "aliases": [alias, "llm.ok"], "loaded": True}
    lines = [line for line in render(row).splitlines() if not line.startswith("#")]
    assert lines == ['anvil_router_model_loaded{model="llm.ok",tier="direct"} 1.0']
