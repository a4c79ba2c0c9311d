"""What an activation changes and what must be drained before it (contract 1, activation table)."""

import dataclasses
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from admission.core import MemberScope, TierAdmission, TierScope
from routing import activation_plan
from routing.activation_plan import (
    ActivationPlan,
    ScopeChange,
    plan_activation,
    undrained,
)
from routing.config import (
    AudioRoute,
    PurposeModel,
    ReplicaIdentity,
    ReplicaMember,
    RouterConfig,
    RouterSettings,
    ServerSettings,
    Tier,
)
from routing.scopes import ScopeId

pytestmark = pytest.mark.requirement("contract 1 activation", "case 19")

IDENTITY = ReplicaIdentity(
    model_revision="r1",
    engine_version="1.0",
    image_digest="sha256:" + "1" * 64,
    config_fingerprint="sha256:" + "2" * 64,
)
MEMBER_A = ReplicaMember(
    id="member-a",
    base_url="http://127.0.0.1:8101/v1",
    host_id="gpu-host-1",
    resource_id="llm-a",
    qualification_ref="q:1",
    max_concurrency=8,
)
MEMBER_B = replace(MEMBER_A, id="member-b", base_url="http://127.0.0.1:8102/v1", resource_id="llm-b")
MEMBER_C = replace(MEMBER_A, id="member-c", base_url="http://127.0.0.1:8103/v1", resource_id="llm-c")
PAIR = Tier(
    id="pair",
    context_limit=32768,
    model="qwen3-32b",
    health_path="/health",
    model_identity=True,
    replica_strategy="capacity",
    replica_identity=IDENTITY,
    replicas=(MEMBER_A, MEMBER_B),
)
SOLO = Tier(id="solo", context_limit=8192, base_url="http://127.0.0.1:8201/v1", model="small")
OLD = RouterConfig(
    server=ServerSettings(auth_env="ANVIL_TOKEN"),
    model_routes=MappingProxyType({"llm.pair": "pair", "llm.solo": "solo"}),
    tiers=(PAIR, SOLO),
    purpose_models=(PurposeModel(id="embed", kind="embedding", model="bge", base_url="http://127.0.0.1:1"),),
    audio_routes=(AudioRoute(id="speech", purpose="tts", model="kokoro", base_url="http://127.0.0.1:2"),),
)
ALTERED: dict[str, Any] = {
    "description": "another",
    "dialect": "anthropic",
    "context_limit": 16384,
    "privacy": "elsewhere",
    "tool_support": True,
    "auth_env": "UPSTREAM_TOKEN",
    "model": "another",
    "health_path": "/live",
    "model_identity": True,
    "metadata_source": "upstream",
    "max_concurrency": 3,
    "max_output_tokens": 99,
    "timeout": 9.0,
    "first_byte_timeout": 9.0,
    "wires": ("responses",),
    "extra_body": MappingProxyType({"top_k": 20}),
    "extra_body_defaults": MappingProxyType({"top_k": 20}),
    "engine": "vllm",
    "quantization": "fp8",
    "params": MappingProxyType({"capacity": MappingProxyType({"image_limit": 1})}),
}


def with_tiers(*tiers: Tier) -> RouterConfig:
    return replace(OLD, tiers=tiers)


def plan(*tiers: Tier) -> ActivationPlan:
    return plan_activation(OLD, with_tiers(*tiers))


def test_every_key_of_a_tier_and_a_member_is_classified() -> None:
    tier_keys = {field.name for field in dataclasses.fields(Tier)} - {"id", "base_url", "replicas"}
    assert tier_keys == {*activation_plan.TIER_DRAIN_KEYS, *activation_plan.TIER_FREE_KEYS}
    member_keys = {field.name for field in dataclasses.fields(ReplicaMember)} - {"id"}
    assert member_keys == {*activation_plan.MEMBER_DRAIN_KEYS, *activation_plan.MEMBER_FREE_KEYS}
    assert {field.name for field in dataclasses.fields(RouterSettings)} == set(activation_plan._ROUTER_KEYS)
    assert {field.name for field in dataclasses.fields(ServerSettings)} == set(activation_plan._SERVER_KEYS)


def test_an_equal_configuration_changes_nothing() -> None:
    result = plan_activation(OLD, with_tiers(SOLO, replace(PAIR, replicas=(MEMBER_B, MEMBER_A))))
    assert result == ActivationPlan(changes=(), settings=())
    assert result.is_empty


def test_everything_is_added_where_nothing_was_active() -> None:
    result = plan_activation(None, OLD)
    assert result.changes == (
        ScopeChange(scope=ScopeId("pair"), kind="added"),
        ScopeChange(scope=ScopeId("solo"), kind="added"),
    )
    assert result.must_drain == ()
    assert all(change.starts_cold for change in result.changes)


@pytest.mark.parametrize("key", activation_plan.TIER_FREE_KEYS)
def test_limits_timeouts_and_labels_need_nothing(key: str) -> None:
    result = plan(PAIR, replace(SOLO, **{key: ALTERED[key]}))
    assert result.changes == (ScopeChange(scope=ScopeId("solo"), kind="changed", keys=(key,)),)
    assert result.must_drain == ()
    assert not result.changes[0].starts_cold


@pytest.mark.parametrize(
    "key",
    [key for key in activation_plan.TIER_DRAIN_KEYS if key not in ("replica_strategy", "replica_identity")],
)
def test_what_the_answers_come_from_needs_the_tier_drained(key: str) -> None:
    result = plan(PAIR, replace(SOLO, **{key: ALTERED[key]}))
    assert result.changes == (
        ScopeChange(scope=ScopeId("solo"), kind="changed", keys=(key,), needs_drain=True),
    )
    assert result.must_drain == (ScopeId("solo"),)
    assert result.changes[0].starts_cold


@pytest.mark.parametrize(
    ("key", "value"),
    [("replica_strategy", "round_robin"), ("replica_identity", replace(IDENTITY, engine_version="2.0"))],
)
def test_strategy_and_declared_identity_need_the_replica_tier_drained(key: str, value: Any) -> None:
    assert plan(replace(PAIR, **{key: value}), SOLO).must_drain == (ScopeId("pair"),)


def test_a_direct_tiers_url_needs_it_drained() -> None:
    result = plan(PAIR, replace(SOLO, base_url="http://127.0.0.1:8202/v1"))
    assert result.changes == (
        ScopeChange(scope=ScopeId("solo"), kind="changed", keys=("base_url",), needs_drain=True),
    )


def test_another_shape_is_one_change_of_the_tier() -> None:
    direct = Tier(
        id="pair",
        context_limit=32768,
        base_url="http://127.0.0.1:8101/v1",
        model="qwen3-32b",
        health_path="/health",
        model_identity=True,
    )
    result = plan(direct, SOLO)
    assert result.changes == (
        ScopeChange(
            scope=ScopeId("pair"),
            kind="changed",
            keys=("replica_strategy", "replica_identity", "base_url", "replicas"),
            needs_drain=True,
        ),
    )


def test_a_removed_tier_must_be_drained_and_an_added_one_starts_cold() -> None:
    result = plan(PAIR, replace(SOLO, id="other"))
    assert result.changes == (
        ScopeChange(scope=ScopeId("solo"), kind="removed", needs_drain=True),
        ScopeChange(scope=ScopeId("other"), kind="added"),
    )
    assert result.must_drain == (ScopeId("solo"),)
    assert [change.starts_cold for change in result.changes] == [False, True]


def test_an_added_member_needs_nothing_and_starts_cold() -> None:
    result = plan(replace(PAIR, replicas=(MEMBER_A, MEMBER_B, MEMBER_C)), SOLO)
    assert result.changes == (ScopeChange(scope=ScopeId("pair", "member-c"), kind="added"),)
    assert result.must_drain == ()
    assert result.changes[0].starts_cold


def test_a_removed_member_must_be_drained_and_its_peers_are_not_mentioned() -> None:
    trio = replace(OLD, tiers=(replace(PAIR, replicas=(MEMBER_A, MEMBER_B, MEMBER_C)), SOLO))
    result = plan_activation(trio, OLD)
    assert result.changes == (
        ScopeChange(scope=ScopeId("pair", "member-c"), kind="removed", needs_drain=True),
    )
    assert result.must_drain == (ScopeId("pair", "member-c"),)


@pytest.mark.parametrize(
    ("key", "value"),
    [("base_url", "http://127.0.0.1:9/v1"), ("host_id", "gpu-host-2"), ("resource_id", "llm-z")],
)
def test_a_member_elsewhere_must_be_drained(key: str, value: str) -> None:
    result = plan(replace(PAIR, replicas=(MEMBER_A, replace(MEMBER_B, **{key: value}))), SOLO)
    assert result.changes == (
        ScopeChange(scope=ScopeId("pair", "member-b"), kind="changed", keys=(key,), needs_drain=True),
    )
    assert result.must_drain == (ScopeId("pair", "member-b"),)


@pytest.mark.parametrize(("key", "value"), [("qualification_ref", "q:2"), ("max_concurrency", 2)])
def test_a_members_label_and_ceiling_need_nothing(key: str, value: Any) -> None:
    result = plan(replace(PAIR, replicas=(MEMBER_A, replace(MEMBER_B, **{key: value}))), SOLO)
    assert result.changes == (ScopeChange(scope=ScopeId("pair", "member-b"), kind="changed", keys=(key,)),)
    assert result.must_drain == ()


def test_a_drained_tier_stands_for_its_members() -> None:
    changed = replace(PAIR, model="another", replicas=(MEMBER_A, replace(MEMBER_B, resource_id="llm-z")))
    result = plan(changed, SOLO)
    assert [change.scope for change in result.changes] == [ScopeId("pair"), ScopeId("pair", "member-b")]
    assert result.must_drain == (ScopeId("pair"),)


def test_settings_aliases_and_other_models_are_named_and_need_nothing() -> None:
    new = RouterConfig(
        server=ServerSettings(auth_env="OTHER", decision_log_path="d.jsonl"),
        router=RouterSettings(relay_timeout=9.0),
        model_routes=MappingProxyType({"llm.solo": "pair", "llm.new": "solo"}),
        tiers=OLD.tiers,
        purpose_models=(replace(OLD.purpose_models[0], timeout=3.0),),
    )
    result = plan_activation(OLD, new)
    assert result.changes == ()
    assert result.settings == (
        "server.auth_env",
        "server.decision_log_path",
        "router.relay_timeout",
        'router.model_routes."llm.pair"',
        'router.model_routes."llm.solo"',
        'router.model_routes."llm.new"',
        "router.purpose_models.embed",
        "router.audio_routes.speech",
    )
    assert not result.is_empty


def test_values_that_python_holds_for_equal_are_told_apart() -> None:
    one, true = (replace(SOLO, extra_body=MappingProxyType({"flag": value})) for value in (1, True))
    result = plan_activation(with_tiers(PAIR, one), with_tiers(PAIR, true))
    assert [change.keys for change in result.changes] == [("extra_body",)]


# --- At rest ----------------------------------------------------------------------------------------------

TIER, MEMBER = ScopeId("pair"), ScopeId("pair", "member-a")
BOTH = (TIER, MEMBER)
READY = {"member-a": True, "member-b": True}


def ledger() -> TierAdmission:
    members = (MemberScope("member-a"), MemberScope("member-b"))
    return TierAdmission([TierScope("pair", strategy="round_robin", members=members)])


def test_an_open_scope_is_not_at_rest() -> None:
    assert undrained(BOTH, ledger().snapshots()) == BOTH


def test_a_quiesced_member_at_zero_is_at_rest_while_its_peer_runs() -> None:
    admission = ledger()
    admission.quiesce("pair", member_id="member-a")
    lease = admission.acquire_member("pair", READY)
    assert lease is not None
    assert lease.member_id == "member-b"
    assert undrained(BOTH, admission.snapshots()) == (TIER,)


def test_a_quiesced_scope_with_a_lease_is_not_at_rest_until_it_ends() -> None:
    admission = ledger()
    lease = admission.acquire_member("pair", READY)
    assert lease is not None
    admission.quiesce("pair")
    assert undrained(BOTH, admission.snapshots()) == BOTH
    lease.release()
    assert undrained(BOTH, admission.snapshots()) == ()


def test_a_scope_that_the_ledger_does_not_know_holds_nothing() -> None:
    assert undrained([ScopeId("gone"), ScopeId("gone", "member-a")], ledger().snapshots()) == ()
