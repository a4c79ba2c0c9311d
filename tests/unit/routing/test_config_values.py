"""What a valid configuration becomes: frozen values, defaults, views (Q-R001, Q-R005, Q-R010, Q-T002)."""

import dataclasses
from pathlib import Path
from types import MappingProxyType

import pytest

from routing import config as config_module
from routing.config import (
    AudioRoute,
    ConfigError,
    PurposeModel,
    ReplicaIdentity,
    ReplicaMember,
    RouterConfig,
    RouterSettings,
    ServerSettings,
    Tier,
    load_config,
    parse_config,
    thaw,
    unset_auth_envs,
)
from tests import corpus

DIGEST_1, DIGEST_2, DIGEST_3, DIGEST_4 = ("sha256:" + digit * 64 for digit in "1234")

FULL = RouterConfig(
    server=ServerSettings(auth_env="ANVIL_TOKEN", decision_log_path="decisions.jsonl"),
    router=RouterSettings(
        exhaustion_status=529,
        connect_timeout=1.5,
        first_byte_timeout=300.0,
        relay_timeout=45.0,
        availability_probe_interval=10.0,
        availability_probe_timeout=2.0,
        availability_probe_max_bytes=131072,
    ),
    model_routes=MappingProxyType(
        {"llm.primary": "primary", "llm.fast": "primary", "llm.claude": "anthropic-direct"}
    ),
    tiers=(
        Tier(
            id="primary",
            base_url="",
            description="Two members on one host, chosen by load.",
            dialect="openai",
            context_limit=32768,
            privacy="local",
            tool_support=True,
            auth_env="UPSTREAM_TOKEN",
            model="qwen3-32b",
            health_path="/health",
            model_identity=True,
            metadata_source="configured",
            replica_strategy="capacity",
            max_concurrency=12,
            max_output_tokens=4096,
            timeout=60.0,
            first_byte_timeout=120.0,
            wires=("responses", "messages"),
            extra_body=MappingProxyType(
                {
                    "top_k": 20,
                    "min_p": 0.05,
                    "skip_special_tokens": True,
                    "guided": MappingProxyType(
                        {"kind": "regex", "patterns": ("[a-z]+", "[0-9]+"), "levels": ((1, 2), (3,))}
                    ),
                }
            ),
            extra_body_defaults=MappingProxyType(
                {"temperature": 0.7, "chat_template_kwargs": MappingProxyType({"enable_thinking": False})}
            ),
            engine="vllm",
            quantization="fp8",
            params=MappingProxyType(
                {
                    "capacity": MappingProxyType(
                        {
                            "gpu_role": "gpu-main",
                            "gpu_name": "RTX PRO 6000",
                            "gpu_memory_total_mib": 97887,
                            "kv_cache_capacity_tokens": 425000,
                            "scheduler_max_num_seqs": 64,
                            "model_memory_gib": 33.5,
                            "media_admission_enabled": True,
                            "image_limit": 4,
                            "video_limit": 0,
                            "image_tokens_estimate": 1280,
                            "video_tokens_estimate": 16384,
                        }
                    ),
                    "capabilities": MappingProxyType(
                        {
                            "modalities": ("text", "image"),
                            "thinking": MappingProxyType(
                                {
                                    "supported": True,
                                    "default": False,
                                    "caller_override": True,
                                    "max_tokens": 8192,
                                }
                            ),
                            "compat": MappingProxyType(
                                {
                                    "supportsUsageInStreaming": True,
                                    "supportsStrictMode": False,
                                    "supportedReasoningEfforts": ("low", "medium", "high"),
                                }
                            ),
                        }
                    ),
                }
            ),
            replica_identity=ReplicaIdentity(
                model_revision="a1b2c3",
                engine_version="0.11.0",
                image_digest=DIGEST_1,
                config_fingerprint=DIGEST_2,
            ),
            replicas=(
                ReplicaMember(
                    id="member-a",
                    base_url="http://127.0.0.1:8101/v1",
                    host_id="gpu-host-1",
                    resource_id="llm-a",
                    qualification_ref="bench.2026-09-01:run-7",
                    max_concurrency=8,
                ),
                ReplicaMember(
                    id="member-b",
                    base_url="http://127.0.0.1:8102/v1",
                    host_id="gpu-host-1",
                    resource_id="llm-b",
                    qualification_ref="bench.2026-09-01:run-7",
                    max_concurrency=8,
                ),
            ),
        ),
        Tier(
            id="anthropic-direct",
            base_url="https://engine.internal:8443",
            dialect="anthropic",
            context_limit=200000,
            model="claude-compatible",
            params=MappingProxyType(
                {
                    "fingerprint": MappingProxyType(
                        {
                            "model_revision": "d4e5f6",
                            "engine_version": "2.0.1",
                            "image_digest": DIGEST_3,
                            "config_fingerprint": DIGEST_4,
                        }
                    )
                }
            ),
        ),
    ),
    purpose_models=(
        PurposeModel(
            id="embed",
            kind="embedding",
            model="bge-m3",
            base_url="http://127.0.0.1:8201/v1",
            auth_env="EMBED_TOKEN",
            timeout=30.0,
        ),
        PurposeModel(
            id="rank", kind="rerank", model="bge-reranker-v2-m3", base_url="http://127.0.0.1:8202/v1"
        ),
    ),
    audio_routes=(
        AudioRoute(
            id="whisper",
            purpose="stt",
            model="whisper-large-v3",
            base_url="http://127.0.0.1:8301/v1",
            default=True,
        ),
        AudioRoute(
            id="kokoro",
            purpose="tts",
            model="kokoro-82m",
            base_url="http://127.0.0.1:8302/v1",
            source_sample_rate=24000,
            default=True,
            auth_env="SPEECH_TOKEN",
            timeout=120.0,
        ),
    ),
)


@pytest.mark.requirement("Q-T002", "contract 1")
def test_the_full_document_becomes_exactly_these_values() -> None:
    assert parse_config(corpus.read("config/valid/full.toml")) == FULL


@pytest.mark.requirement("contract 1")
def test_the_full_document_uses_every_key_of_the_grammar() -> None:
    """So that whoever round-trips it has carried every key there is."""
    values = [FULL.server, FULL.router, *FULL.tiers, *FULL.purpose_models, *FULL.audio_routes]
    values += [FULL.tiers[0].replica_identity, *FULL.tiers[0].replicas]
    for kind, cls in {
        "server": ServerSettings,
        "router": RouterSettings,
        "tier": Tier,
        "replica_identity": ReplicaIdentity,
        "replica": ReplicaMember,
        "purpose_model": PurposeModel,
        "audio_route": AudioRoute,
    }.items():
        keys = set(config_module.FIELD_RULES[kind])
        nested = {"replica_identity", "replicas"} if kind == "tier" else set()
        assert {field.name for field in dataclasses.fields(cls)} == keys | nested
        unused = {
            key
            for key in keys
            if all(getattr(value, key) in (None, "") for value in values if type(value) is cls)
        }
        assert unused == set(), kind


@pytest.mark.requirement("contract 1")
def test_an_absent_key_has_its_documented_default() -> None:
    config = parse_config(corpus.read("config/valid/direct.toml"))
    assert config.server == ServerSettings(auth_env=None, decision_log_path=None)
    assert config.router == RouterSettings(
        exhaustion_status=503,
        connect_timeout=2.0,
        first_byte_timeout=600.0,
        relay_timeout=60.0,
        availability_probe_interval=5.0,
        availability_probe_timeout=3.0,
        availability_probe_max_bytes=65536,
    )
    assert config.tiers == (
        Tier(
            id="primary",
            base_url="http://127.0.0.1:8101/v1",
            description=None,
            dialect="openai",
            context_limit=32768,
            privacy="local",
            tool_support=False,
            auth_env=None,
            model="qwen3-32b",
            health_path=None,
            model_identity=False,
            metadata_source="configured",
            replica_strategy=None,
            max_concurrency=None,
            max_output_tokens=None,
            timeout=None,
            first_byte_timeout=None,
            wires=(),
            extra_body=MappingProxyType({}),
            extra_body_defaults=MappingProxyType({}),
            engine=None,
            quantization=None,
            params=MappingProxyType({}),
            replica_identity=None,
            replicas=(),
        ),
    )
    assert (config.purpose_models, config.audio_routes) == ((), ())


@pytest.mark.parametrize("document", corpus.documents("config", "valid"), ids=lambda path: path.stem)
def test_every_valid_document_of_the_corpus_parses_and_is_hashable(document: Path) -> None:
    config = load_config(document)
    assert hash(config) == hash(parse_config(document.read_bytes()))


@pytest.mark.requirement("Q-R001", "Q-A001")
def test_aliases_are_normalised_and_each_leads_to_one_tier() -> None:
    config = parse_config(corpus.read("config/valid/inline.toml"))
    assert dict(config.model_routes) == {"llm.left": "left", "llm.right": "right"}
    assert config.tier("right").replicas[0].host_id == "gpu-host-2"


@pytest.mark.requirement("Q-R003")
def test_two_tiers_may_have_members_of_the_same_ids() -> None:
    config = parse_config(corpus.read("config/valid/inline.toml"))
    assert config.tier("left").member("member-a").resource_id == "left-a"
    assert config.tier("right").member("member-a").resource_id == "right-a"


@pytest.mark.requirement("Q-R005")
def test_model_and_identity_may_come_from_the_upstream_of_a_direct_tier() -> None:
    tier = parse_config(corpus.read("config/valid/upstream.toml")).tier("live")
    assert (tier.model, tier.metadata_source, tier.context_limit) == (None, "upstream", 131072)


@pytest.mark.requirement("Q-R014", "Q-T002")
def test_nothing_in_a_configuration_can_be_changed() -> None:
    config = parse_config(corpus.read("config/valid/full.toml"))
    tier = config.tiers[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        tier.max_concurrency = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.model_routes["llm.other"] = "primary"  # type: ignore[index]
    with pytest.raises(TypeError):
        tier.extra_body["top_k"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        tier.extra_body["guided"]["kind"] = "json"  # type: ignore[index, call-overload]
    with pytest.raises(TypeError):
        tier.params["capacity"]["image_limit"] = 99  # type: ignore[index, call-overload]
    assert isinstance(config.tiers, tuple)
    assert isinstance(tier.replicas, tuple)


def test_thawed_values_are_plain_json_and_new_each_time() -> None:
    tier = parse_config(corpus.read("config/valid/full.toml")).tiers[0]
    first = thaw(tier.extra_body)
    assert first == {
        "top_k": 20,
        "min_p": 0.05,
        "skip_special_tokens": True,
        "guided": {"kind": "regex", "patterns": ["[a-z]+", "[0-9]+"], "levels": [[1, 2], [3]]},
    }
    assert isinstance(first, dict)
    first["top_k"] = 1
    assert tier.extra_body["top_k"] == 20
    assert thaw(tier.extra_body) != first


def test_integers_and_floats_keep_their_type_in_free_form_values() -> None:
    """Q-R013: an engine may refuse 1.0 where it wants 1."""
    data = corpus.read("config/valid/direct.toml") + b"extra_body = {n = 1, x = 1.0, t = true}\n"
    body = parse_config(data).tiers[0].extra_body
    assert [(key, type(value)) for key, value in body.items()] == [("n", int), ("x", float), ("t", bool)]


@pytest.mark.requirement("Q-T002")
def test_a_replica_tier_has_an_empty_url_and_members_become_direct_views() -> None:
    """Replica contract: replace only after validation; the sentinel never reaches a URL builder."""
    tier = FULL.tiers[0]
    assert (tier.is_replica, tier.strategy, tier.base_url) == (True, "capacity", "")
    view = tier.member_view("member-b")
    assert (view.is_replica, view.strategy, view.base_url) == (False, "direct", "http://127.0.0.1:8102/v1")
    assert (view.id, view.model, view.auth_env, view.health_path) == (
        "primary",
        "qwen3-32b",
        "UPSTREAM_TOKEN",
        "/health",
    )
    assert (view.replicas, view.replica_identity, view.replica_strategy) == ((), None, None)


@pytest.mark.requirement("Q-R010")
def test_every_member_view_has_the_same_policy() -> None:
    views = [FULL.tiers[0].member_view(member_id) for member_id in ("member-a", "member-b")]
    assert dataclasses.replace(views[0], base_url="") == dataclasses.replace(views[1], base_url="")


@pytest.mark.requirement("C-R005")
def test_member_ids_are_sorted_whatever_the_order_of_the_document() -> None:
    tier = dataclasses.replace(FULL.tiers[0], replicas=tuple(reversed(FULL.tiers[0].replicas)))
    assert [member.id for member in tier.replicas] == ["member-b", "member-a"]
    assert tier.member_ids == ("member-a", "member-b")


@pytest.mark.requirement("C-R002", "C-R005")
@pytest.mark.parametrize(
    ("strategy", "tier_ceiling", "member_ceilings", "expected"),
    [
        ("capacity", 12, (8, 8), 12),
        ("capacity", 100, (8, 8), 100),
        ("capacity", None, (8, 5), 13),
        ("round_robin", None, (8, 8), None),
        ("round_robin", 3, (None, 8), 3),
    ],
)
def test_the_ceiling_of_a_tier_is_configured_or_in_capacity_mode_the_sum(
    strategy: str, tier_ceiling: int | None, member_ceilings: tuple[int | None, ...], expected: int | None
) -> None:
    """Capacity contract: the tier's ceiling is the aggregate one and is never multiplied by members."""
    pairs = zip(FULL.tiers[0].replicas, member_ceilings, strict=True)
    tier = dataclasses.replace(
        FULL.tiers[0],
        replica_strategy=strategy,  # type: ignore[arg-type]
        max_concurrency=tier_ceiling,
        replicas=tuple(dataclasses.replace(member, max_concurrency=n) for member, n in pairs),
    )
    assert (tier.effective_ceiling, tier.admission_ceiling) == (expected, expected)


def test_a_direct_tier_is_unbounded_unless_configured() -> None:
    direct = FULL.tiers[1]
    assert (direct.effective_ceiling, direct.member_ids, direct.strategy) == (None, (), "direct")


@pytest.mark.requirement("C-T001")
def test_round_robin_is_the_default_and_a_ceiling_may_stand_under_either_strategy() -> None:
    data = corpus.read("config/valid/round-robin.toml") + b"max_concurrency = 3\n"
    tier = parse_config(data).tier("pair")
    assert tier.replica_strategy == "round_robin"
    assert [member.max_concurrency for member in tier.replicas] == [None, 3]


def test_unknown_names_raise_without_being_repeated() -> None:
    with pytest.raises(KeyError) as unknown_tier:
        FULL.tier("http://user:pw@host")
    with pytest.raises(KeyError) as unknown_member:
        FULL.tiers[0].member("http://user:pw@host")
    with pytest.raises(KeyError) as unknown_view:
        FULL.tiers[1].member_view("member-a")
    assert [error.value.args for error in (unknown_tier, unknown_member, unknown_view)] == [
        ("unknown tier",),
        ("unknown member",),
        ("unknown member",),
    ]


@pytest.mark.requirement("Q-R012")
def test_no_repr_shows_a_url_a_host_or_the_name_of_a_secret() -> None:
    shown = repr(parse_config(corpus.read("config/valid/full.toml")))
    for hidden in ("127.0.0.1", "engine.internal", "_TOKEN", "gpu-host-1", "llm-a", "/health", ".jsonl"):
        assert hidden not in shown
    assert "member-a" in shown


@pytest.mark.requirement("contract 1")
def test_the_bounds_themselves_are_accepted() -> None:
    """One document with every number at its lower or upper bound."""
    text = """
[router]
exhaustion_status = 429
connect_timeout = 0.001
first_byte_timeout = 3600
relay_timeout = 3600.0
availability_probe_max_bytes = 1024
[router.model_routes]
"{alias}" = "t"
[[router.tiers]]
id = "t"
base_url = "HTTPS://[::1]:65535/"
context_limit = 10_000_000
max_output_tokens = 10_000_000
max_concurrency = 100_000
model = "m"
timeout = 1
wires = ["chat", "responses", "messages"]
health_path = "/"
[[router.tiers]]
id = "{tier}"
base_url = "http://h"
context_limit = 1
max_output_tokens = 1
max_concurrency = 1
model = "{model}"
[[router.audio_routes]]
id = "a"
purpose = "tts"
model = "m"
base_url = "http://h_1.local:1/a/b/"
source_sample_rate = 8000
"""
    filled = text.format(alias="a" * 128, tier="t" + "9" * 63, model="m" * 256)
    config = parse_config(filled.encode())
    assert config.tiers[0].timeout == 1.0
    assert type(config.tiers[0].timeout) is float
    assert config.router.availability_probe_max_bytes == 1024


@pytest.mark.requirement("Q-R003", "Q-R005")
def test_a_replica_tier_may_have_sixteen_members() -> None:
    text = corpus.read("config/valid/round-robin.toml").decode()
    head = text[: text.index("[[router.tiers.replicas]]")]
    member = """
[[router.tiers.replicas]]
id = "m{0}"
base_url = "http://127.0.0.1:{1}/v1"
host_id = "gpu-host-1"
resource_id = "r{0}"
qualification_ref = "q"
"""
    members = "".join(member.format(n, 8101 + n) for n in range(16))
    assert len(parse_config((head + members).encode()).tiers[0].replicas) == 16


@pytest.mark.requirement("contract 1")
def test_unset_and_empty_secret_variables_are_told_by_path_only() -> None:
    environ = {"ANVIL_TOKEN": "t", "UPSTREAM_TOKEN": "", "SPEECH_TOKEN": "s"}
    assert unset_auth_envs(FULL, environ) == [
        "router.tiers[0].auth_env",
        "router.purpose_models[0].auth_env",
    ]
    assert unset_auth_envs(FULL, {}) == [
        "server.auth_env",
        "router.tiers[0].auth_env",
        "router.purpose_models[0].auth_env",
        "router.audio_routes[1].auth_env",
    ]
    assert unset_auth_envs(parse_config(corpus.read("config/valid/direct.toml")), {}) == []


@pytest.mark.requirement("Q-T006")
def test_loading_from_a_path_reads_the_file_and_delegates(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_bytes(corpus.read("config/valid/full.toml"))
    assert load_config(path) == FULL
    path.write_bytes(b"nonsense")
    with pytest.raises(ConfigError):
        load_config(path)
    with pytest.raises(FileNotFoundError):
        load_config(tmp_path / "absent.toml")
