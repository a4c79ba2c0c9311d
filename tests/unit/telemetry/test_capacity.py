"""GET /v1/models/capacity as a pure projection: literal rows, the scenario, owners not to be believed."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from admission.core import AdmissionSnapshot, MemberAdmissionSnapshot, MemberScope, TierAdmission, TierScope
from admission.replica_scheduler import UNKNOWN_PRESSURE, PressureFreshness, ReplicaPressure
from routing.availability import AvailabilityResult
from routing.projections import UnknownModelError
from telemetry.capacity import CapacityQuery, build_model_capacity, parse_query
from telemetry.live import LiveReading
from tests.unit.telemetry.capacity_support import (
    CONFIG,
    DIRECT,
    FRESH,
    METRICS,
    PRIMARY,
    ROTATING,
    SECRETS,
    STALE,
    Ledger,
    Live,
    Pressure,
    member,
    readiness,
    tier,
)

UNKNOWN_TELEMETRY = {
    "freshness": "unknown",
    "pressure_ppm": None,
    "requests_state": "missing",
    "kv_state": "missing",
}
UNAVAILABLE = {
    "state": "unavailable",
    "active_requests": None,
    "draining": None,
    "complete": False,
    "member_active_requests": None,
}
NO_LIVE = dict.fromkeys(
    [
        "requests_running",
        "requests_waiting",
        "kv_cache_usage_fraction",
        "kv_cache_used_tokens_estimate",
        "kv_cache_remaining_tokens_estimate",
        "preemptions_total",
        "multimodal_cache_queries_total",
        "multimodal_cache_hits_total",
    ]
)
IDENTITY = {
    "replica_identity": {
        "model_revision": "a1b2c3",
        "engine_version": "0.11.0",
        "image_digest": "sha256:" + "0" * 64,
        "config_fingerprint": "sha256:" + "1" * 64,
    },
    "deployment_identity_source": "declared",
    "runtime_deployment_identity_verified": False,
}
NO_PARAMS = {
    "engine": {"name": None, "quantization": None},
    "gpu": {"role": None, "name": None, "memory_total_mib": None},
    "multimodal": {
        "admission_enabled": None,
        "image_limit": None,
        "video_limit": None,
        "image_tokens_estimate": None,
        "video_tokens_estimate": None,
    },
}


def build(**changes: Any) -> list[dict[str, Any]]:
    sources: dict[str, Any] = {
        "availability": readiness(),
        "admission": Ledger(DIRECT, ROTATING, PRIMARY),
        "replica_pressure": Pressure({"primary": {"member-a": FRESH, "member-b": STALE}}),
        "live": Live(direct=METRICS),
    }
    payload = build_model_capacity(CONFIG, **(sources | changes))
    assert list(payload) == ["object", "data"]
    assert payload["object"] == "list"
    rows: Any = payload["data"]
    return list(rows)


def row(tier_id: str, **changes: Any) -> dict[str, Any]:
    (found,) = [each for each in build(**changes) if each["id"] == tier_id]
    return found


def test_a_direct_tier() -> None:
    assert row("direct") == {
        "object": "model_capacity",
        "id": "direct",
        "aliases": ["llm.direct"],
        "model": "qwen3-32b",
        "loaded": True,
        "readiness": {"state": "ready", "reason": "health_passed"},
        "engine": {"name": "vllm", "quantization": "fp8"},
        "gpu": {"role": "main", "name": "RTX 6000", "memory_total_mib": 97_887},
        "capacity": {
            "context_limit_tokens": 32_768,
            "kv_cache_capacity_tokens": 100_000,
            "full_context_concurrency": 3.05,
            "configured_max_concurrency": 6,
            "scheduler_max_num_seqs": 64,
            "model_memory_gib": 30.5,
        },
        "multimodal": {
            "admission_enabled": True,
            "image_limit": 4,
            "video_limit": 0,
            "image_tokens_estimate": 1000,
            "video_tokens_estimate": 8000,
        },
        "live": {
            "status": "available",
            "reason": None,
            "requests_running": 3,
            "requests_waiting": 1,
            "kv_cache_usage_fraction": 0.25,
            "kv_cache_used_tokens_estimate": 25_000,
            "kv_cache_remaining_tokens_estimate": 75_000,
            "preemptions_total": 2,
            "multimodal_cache_queries_total": 10,
            "multimodal_cache_hits_total": 4,
        },
        "scenario": None,
    }


@pytest.mark.requirement("C-T011", "C-R011", "C-R012", "Q-T005.1")
def test_a_capacity_tier() -> None:
    """Tier and members reconcile; both pressures are told apart; the reason of a quiesce stays out."""
    assert row("primary") == {
        "object": "model_capacity",
        "id": "primary",
        "aliases": ["llm.primary", "llm.second"],
        "model": "qwen3-8b",
        "loaded": True,
        "readiness": {"state": "ready", "reason": "identity_passed"},
        **NO_PARAMS,
        "capacity": {
            "context_limit_tokens": 8192,
            "kv_cache_capacity_tokens": None,
            "full_context_concurrency": None,
            "configured_max_concurrency": None,
            "scheduler_max_num_seqs": None,
            "model_memory_gib": None,
        },
        "live": {"status": "unavailable", "reason": "replica_members", **NO_LIVE},
        "scenario": None,
        "admission": {
            "state": "admitting",
            "active_requests": 3,
            "draining": False,
            "complete": True,
            "member_active_requests": {"member-a": 1, "member-b": 2},
            "max_concurrency": 6,
            "members": [
                {
                    "id": "member-a",
                    "state": "admitting",
                    "active_requests": 1,
                    "max_concurrency": 2,
                    "draining": False,
                },
                {
                    "id": "member-b",
                    "state": "quiesced",
                    "active_requests": 2,
                    "max_concurrency": 4,
                    "draining": True,
                },
            ],
        },
        "metadata": {
            "members": [
                {
                    "id": "member-a",
                    "ready": True,
                    "state": "ready",
                    "reason": "identity_passed",
                    "expected_model": "qwen3-8b",
                    "observed_model": "qwen3-8b",
                    "telemetry": {
                        "freshness": "fresh",
                        "pressure_ppm": 1_250_000,
                        "requests_state": "valid",
                        "kv_state": "missing",
                    },
                },
                {
                    "id": "member-b",
                    "ready": True,
                    "state": "ready",
                    "reason": "identity_passed",
                    "expected_model": "qwen3-8b",
                    "observed_model": "qwen3-8b",
                    "telemetry": {
                        "freshness": "stale",
                        "pressure_ppm": None,
                        "requests_state": "valid",
                        "kv_state": "valid",
                    },
                },
            ],
            **IDENTITY,
        },
    }


@pytest.mark.requirement("C-R013", "C-T011", "Q-T005.1")
def test_a_round_robin_tier_has_neither_ceilings_nor_telemetry() -> None:
    found = row("rotating")
    assert found["admission"] == {
        "state": "admitting",
        "active_requests": 0,
        "draining": False,
        "complete": True,
        "member_active_requests": {"one": 0, "two": 0},
    }
    assert found["loaded"] is False
    assert found["metadata"] == {
        "members": [
            {
                "id": "one",
                "ready": False,
                "state": "unavailable",
                "reason": "health_transport_refused",
                "expected_model": "qwen3-8b",
                "observed_model": None,
            },
            {
                "id": "two",
                "ready": False,
                "state": "unavailable",
                "reason": "identity_mismatch",
                "expected_model": "qwen3-8b",
                "observed_model": None,
            },
        ],
        **IDENTITY,
    }


@pytest.mark.requirement("C-T011.1")
def test_each_owner_is_read_once_and_only_looked_at() -> None:
    """The stand-ins have no other method than the ones that only look."""
    ledger = Ledger(DIRECT, ROTATING, PRIMARY)
    pressure = Pressure({"primary": {"member-a": FRESH, "member-b": STALE}})
    build(admission=ledger, replica_pressure=pressure)
    assert ledger.reads == ["rotating", "primary"]
    assert pressure.peeks == ["primary"]


@pytest.mark.requirement("Q-T005.1")
def test_owners_that_are_absent_are_unavailable_and_not_idle() -> None:
    rows = build(availability=None, admission=None, replica_pressure=None, live=None)
    assert [each["id"] for each in rows] == ["direct", "rotating", "primary"]
    direct, rotating, primary = rows
    assert direct["readiness"] == {"state": "unavailable", "reason": "probe_pending"}
    assert direct["loaded"] is None
    assert direct["live"] == {"status": "unavailable", "reason": "pending", **NO_LIVE}
    assert rotating["admission"] == UNAVAILABLE
    assert primary["admission"] == {**UNAVAILABLE, "max_concurrency": None, "members": None}
    assert [each["telemetry"] for each in primary["metadata"]["members"]] == [UNKNOWN_TELEMETRY] * 2


class _OwnSnapshot(AdmissionSnapshot):
    __slots__ = ()


class _OwnMember(MemberAdmissionSnapshot):
    __slots__ = ()


A, B = member("member-a", 1, 2), member("member-b", 2, 4)


def forged(**changes: Any) -> AdmissionSnapshot:
    return replace(PRIMARY, **changes)


INCONSISTENT: dict[str, Any] = {
    "not a snapshot": {"tier_id": "primary"},
    "a subclass": _OwnSnapshot("primary", "admitting", None, 0, False, 6, (), ()),
    "of another tier": forged(tier_id="other"),
    "an unknown state": forged(state="open"),
    "a state that is no string": forged(state=None),
    "a boolean count": forged(active_requests=True),
    "a negative count": tier("primary", member("member-a", -1, 2), B, ceiling=6),
    "a count beyond what is exact": forged(active_requests=2**53),
    "draining while admitting": forged(draining=True),
    "quiesced with leases, not draining": forged(state="quiesced", reason="x", draining=False),
    "draining that is no boolean": forged(draining=0),
    "no members": tier("primary", ceiling=6),
    "a member too few": tier("primary", A, ceiling=6),
    "a member too many": tier("primary", A, B, member("member-c", 0, 1), ceiling=6),
    "a member twice": tier("primary", A, A, ceiling=6),
    "an unknown member": tier("primary", A, member("http://10.9.8.7", 2, 4), ceiling=6),
    "members that do not add up": forged(active_requests=4),
    "counts that are no tuple": forged(member_active_requests=[("member-a", 1), ("member-b", 2)]),
    "a count that is no pair": forged(member_active_requests=(("member-a",), ("member-b", 2))),
    "counts and members that differ": forged(member_active_requests=(("member-a", 2), ("member-b", 1))),
    "another ceiling of the tier": forged(max_concurrency=7),
    "no ceiling of the tier": forged(max_concurrency=None),
    "another ceiling of a member": tier("primary", A, member("member-b", 2, 5), ceiling=6),
    "a ceiling that is no int": tier("primary", A, member("member-b", 2, 4.0), ceiling=6),  # type: ignore[arg-type]
    "a member over its ceiling": tier(
        "primary", member("member-a", 3, 2), member("member-b", 0, 4), ceiling=6
    ),
    "members that are no tuple": forged(members=[A, B]),
    "a member of a subclass": forged(
        members=(A, _OwnMember("member-b", "admitting", None, 2, 4, False)),
    ),
    "a member draining while admitting": forged(
        members=(A, MemberAdmissionSnapshot("member-b", "admitting", None, 2, 4, True)),
    ),
    "a member in an unknown state": forged(
        members=(A, MemberAdmissionSnapshot("member-b", "gone", None, 2, 4, False)),  # type: ignore[arg-type]
    ),
}


@pytest.mark.requirement("C-T011", "Q-T005.1")
@pytest.mark.parametrize("name", INCONSISTENT)
def test_an_inconsistent_owner_is_unavailable_as_a_whole(name: str) -> None:
    ledger = Ledger(DIRECT, ROTATING)
    ledger.snapshots["primary"] = INCONSISTENT[name]
    found = row("primary", admission=ledger)
    assert found["admission"] == {**UNAVAILABLE, "max_concurrency": None, "members": None}


@pytest.mark.requirement("Q-T005.1")
@pytest.mark.parametrize(
    "snapshot",
    [
        tier("rotating", member("one", 0, None), ceiling=None),
        replace(ROTATING, active_requests=1),
        replace(ROTATING, draining=True),
    ],
    ids=["member missing", "does not add up", "draining while admitting"],
)
def test_an_inconsistent_owner_of_round_robin_is_unavailable(snapshot: AdmissionSnapshot) -> None:
    assert row("rotating", admission=Ledger(snapshot))["admission"] == UNAVAILABLE


@pytest.mark.requirement("Q-T005.1")
def test_the_real_ledger_is_consistent_at_rest_at_work_and_quiesced() -> None:
    """Default construction shows complete zeros; leases and quiesce show as they are."""
    ledger = TierAdmission(
        [
            TierScope(
                "primary",
                strategy="capacity",
                members=(MemberScope("member-a", 2), MemberScope("member-b", 4)),
            ),
            TierScope("rotating", strategy="round_robin", members=(MemberScope("one"), MemberScope("two"))),
        ]
    )
    at_rest = row("primary", admission=ledger)["admission"]
    assert (at_rest["complete"], at_rest["member_active_requests"]) == (True, {"member-a": 0, "member-b": 0})
    lease = ledger.acquire_member("primary", {"member-a": True, "member-b": False})
    assert lease is not None
    ledger.quiesce("primary", member_id="member-a")
    ledger.quiesce("rotating")
    at_work = row("primary", admission=ledger)["admission"]
    assert at_work["member_active_requests"] == {"member-a": 1, "member-b": 0}
    assert [(each["state"], each["draining"]) for each in at_work["members"]] == [
        ("quiesced", True),
        ("admitting", False),
    ]
    assert row("rotating", admission=ledger)["admission"]["state"] == "quiesced"
    lease.release()
    assert row("primary", admission=ledger)["admission"]["active_requests"] == 0


class _OwnPressure(ReplicaPressure):
    __slots__ = ()


class _OwnDict(dict[str, ReplicaPressure]):
    pass


def broken(exception: Exception) -> Callable[..., Any]:
    def fail(*arguments: object) -> Any:
        raise exception

    return fail


def tampered() -> ReplicaPressure:
    value = ReplicaPressure(PressureFreshness.FAILED)
    object.__setattr__(value, "pressure_ppm", 5)
    return value


@pytest.mark.requirement("C-T011")
@pytest.mark.parametrize(
    ("envelope", "known"),
    [
        ({"member-a": FRESH, "member-b": "planted-secret"}, [True, False]),
        ({"member-a": _OwnPressure(), "member-b": FRESH}, [False, True]),
        ({"member-a": tampered(), "member-b": FRESH}, [False, True]),
        ({"member-a": None, "member-b": FRESH}, [False, True]),
        ({"member-a": FRESH}, [False, False]),
        ({"member-a": FRESH, "member-b": FRESH, "member-c": FRESH}, [False, False]),
        ({f"member-{number}": FRESH for number in range(17)}, [False, False]),
        (_OwnDict({"member-a": FRESH, "member-b": FRESH}), [False, False]),
        ({"member-a": FRESH, 7: FRESH}, [False, False]),
        ([("member-a", FRESH), ("member-b", FRESH)], [False, False]),
        (None, [False, False]),
    ],
)
def test_a_bad_envelope_makes_all_unknown_and_a_bad_value_its_own_member(
    envelope: object, known: list[bool]
) -> None:
    members = row("primary", replica_pressure=Pressure({"primary": envelope}))["metadata"]["members"]
    fresh = [each["telemetry"] != UNKNOWN_TELEMETRY for each in members]
    assert fresh == known
    assert [each["telemetry"]["pressure_ppm"] for each in members] == [
        1_250_000 if each else None for each in known
    ]


@pytest.mark.requirement("C-R012", "C-T011", "Q-T005.1", "Q-R012")
def test_nothing_planted_in_any_owner_gets_out() -> None:
    """Texts in exceptions, states, reasons, ids, models and metric values: none of them is in the answer."""
    failing = Ledger()
    failing.snapshot = broken(RuntimeError("Traceback http://10.9.8.7 planted-secret"))  # type: ignore[method-assign]
    cache = Pressure({})
    cache.peek = broken(ValueError("vllm:num_requests_running planted-secret"))  # type: ignore[method-assign]
    availability = readiness()
    availability.cached = broken(OSError("http://127.0.0.1:8101"))  # type: ignore[method-assign]
    lying = AvailabilityResult(True, "identity_passed", expected_model="intruder-model")
    object.__setattr__(lying, "observed_model", "intruder-model")
    seen = readiness()
    seen.results["primary", "member-a"] = lying
    forged_ledger = Ledger(
        tier("primary", A, member("http://10.9.8.7", 0, 4, "planted-secret"), ceiling=6),
        replace(ROTATING, state="planted-secret"),  # type: ignore[arg-type]
    )
    down = Live(direct=LiveReading(None, "http_error"))
    for changes in (
        {"admission": failing, "replica_pressure": cache, "availability": availability},
        {"admission": forged_ledger, "availability": seen},
        {"admission": Ledger(PRIMARY, ROTATING, DIRECT), "live": down},
    ):
        answer = json.dumps(build(**changes))
        assert [secret for secret in (*SECRETS, "kernel-upgrade") if secret in answer] == []


def test_a_gpu_role_and_an_alias_select_rows() -> None:
    assert [each["id"] for each in build(query=CapacityQuery(gpu_role="main"))] == ["direct"]
    assert build(query=CapacityQuery(gpu_role="other")) == []
    assert [each["id"] for each in build(query=CapacityQuery(model=" LLM.Second "))] == ["primary"]
    for unknown in ("primary", "made-up", ""):
        with pytest.raises(UnknownModelError, match="no such model"):
            build(query=CapacityQuery(model=unknown))


SCENARIOS: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    (
        "direct",
        {"input_tokens": 20_000, "images": 2, "output_tokens": 4096},
        {
            "images": 2,
            "videos": 0,
            "input_tokens": 20_000,
            "image_tokens": 1000,
            "image_tokens_source": "configured_estimate",
            "video_tokens": 8000,
            "video_tokens_source": "configured_estimate",
            "output_tokens": 4096,
            "context_tokens": 26_096,
            "within_image_limit": True,
            "within_video_limit": True,
            "within_context_limit": True,
            "allowed": True,
            "note": "Within the declared limits. Arithmetic only: nothing was measured or reserved.",
        },
    ),
    (
        "direct",
        {"input_tokens": 32_768, "image_tokens": 1, "images": 5, "videos": 1},
        {
            "images": 5,
            "videos": 1,
            "input_tokens": 32_768,
            "image_tokens": 1,
            "image_tokens_source": "request",
            "video_tokens": 8000,
            "video_tokens_source": "configured_estimate",
            "output_tokens": 0,
            "context_tokens": 40_773,
            "within_image_limit": False,
            "within_video_limit": False,
            "within_context_limit": False,
            "allowed": False,
            "note": "Over a declared limit. Arithmetic only: nothing was measured or reserved.",
        },
    ),
    (
        "rotating",
        {"images": 1, "input_tokens": 10},
        {
            "images": 1,
            "videos": 0,
            "input_tokens": 10,
            "image_tokens": None,
            "image_tokens_source": None,
            "video_tokens": None,
            "video_tokens_source": None,
            "output_tokens": 0,
            "context_tokens": None,
            "within_image_limit": None,
            "within_video_limit": True,
            "within_context_limit": None,
            "allowed": None,
            "note": "A limit or an estimate that this needs is not declared.",
        },
    ),
]


@pytest.mark.parametrize(("tier_id", "asked", "expected"), SCENARIOS)
def test_the_scenario_is_arithmetic_over_what_is_declared(
    tier_id: str, asked: dict[str, int], expected: dict[str, Any]
) -> None:
    assert row(tier_id, query=CapacityQuery(**asked))["scenario"] == expected


def test_the_context_limit_itself_is_within() -> None:
    limit = row("rotating", query=CapacityQuery(input_tokens=8192))["scenario"]
    assert (limit["within_context_limit"], limit["allowed"]) == (True, True)
    over = row("rotating", query=CapacityQuery(input_tokens=8192, output_tokens=1))["scenario"]
    assert (over["within_context_limit"], over["allowed"]) == (False, False)


def test_a_zero_is_a_scenario() -> None:
    assert row("direct", query=CapacityQuery(images=0))["scenario"]["allowed"] is True


@pytest.mark.parametrize(
    "parameters",
    [
        {"color": "red"},
        {"gpu_role": "no such role"},
        {"gpu_role": ""},
        {"images": "-1"},
        {"images": "1.0"},
        {"images": "10001"},
        {"images": ""},
        {"input_tokens": "10000001"},
        {"input_tokens": "1e3"},
        {"output_tokens": "\u0663"},
        {"video_tokens": "999999999999999999"},
    ],
)
def test_a_bad_parameter_is_refused_without_being_repeated(parameters: dict[str, str]) -> None:
    with pytest.raises(ValueError) as raised:
        parse_query(parameters)
    assert str(raised.value) in (
        "unknown query parameter",
        "gpu_role is malformed",
        "a number is malformed or out of bounds",
    )


def test_parameters_become_a_query() -> None:
    assert parse_query({}) == CapacityQuery()
    assert parse_query({"model": "llm.direct", "gpu_role": "main", "images": "3", "input_tokens": "0"}) == (
        CapacityQuery(model="llm.direct", gpu_role="main", images=3, input_tokens=0)
    )


def test_unknown_pressure_is_never_shown_as_zero() -> None:
    values = {"member-a": replace(FRESH, pressure_ppm=0), "member-b": UNKNOWN_PRESSURE}
    members = row("primary", replica_pressure=Pressure({"primary": values}))["metadata"]["members"]
    assert [each["telemetry"]["pressure_ppm"] for each in members] == [0, None]
