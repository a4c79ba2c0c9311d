"""The safe projection of a configuration and its digest (Q-R012, projections: router status)."""

import dataclasses
import json
from types import MappingProxyType

import pytest

from routing.config import parse_config
from routing.snapshot import projection_sha256, safe_projection
from tests import corpus

FULL = parse_config(corpus.read("config/valid/full.toml"))


@pytest.mark.requirement("Q-R012")
def test_the_projection_is_plain_json_without_places_or_names_of_secrets() -> None:
    text = json.dumps(safe_projection(FULL), allow_nan=False)
    for hidden in (
        "127.0.0.1",
        "engine.internal",
        "http",
        "_TOKEN",
        "gpu-host-1",
        "llm-a",
        "/health",
        ".jsonl",
    ):
        assert hidden not in text
    # Free-form bodies are not vetted: neither keys nor values of them.
    for hidden in ("extra_body", "top_k", "guided", "chat_template_kwargs"):
        assert hidden not in text


def test_the_projection_of_a_small_configuration_is_this() -> None:
    assert safe_projection(parse_config(corpus.read("config/valid/direct.toml"))) == {
        "router": {
            "exhaustion_status": 503,
            "connect_timeout": 2.0,
            "first_byte_timeout": 600.0,
            "relay_timeout": 60.0,
            "availability_probe_interval": 5.0,
            "availability_probe_timeout": 3.0,
            "availability_probe_max_bytes": 65536,
        },
        "model_routes": {"llm.primary": "primary"},
        "tiers": [
            {
                "id": "primary",
                "description": None,
                "dialect": "openai",
                "context_limit": 32768,
                "privacy": "local",
                "tool_support": False,
                "model": "qwen3-32b",
                "model_identity": False,
                "metadata_source": "configured",
                "strategy": "direct",
                "max_concurrency": None,
                "max_output_tokens": None,
                "timeout": None,
                "first_byte_timeout": None,
                "wires": [],
                "engine": None,
                "quantization": None,
                "params": {},
                "replica_identity": None,
                "members": [],
            }
        ],
        "purpose_models": [],
        "audio_routes": [],
    }


def test_members_show_their_id_reference_and_ceiling_only() -> None:
    tiers = safe_projection(FULL)["tiers"]
    assert isinstance(tiers, list)
    assert tiers[0]["members"] == [
        {"id": "member-a", "qualification_ref": "bench.2026-09-01:run-7", "max_concurrency": 8},
        {"id": "member-b", "qualification_ref": "bench.2026-09-01:run-7", "max_concurrency": 8},
    ]


def test_the_digest_is_of_what_is_shown_and_of_nothing_else() -> None:
    elsewhere = dataclasses.replace(FULL.tiers[1], base_url="http://other", auth_env="OTHER")
    moved = dataclasses.replace(FULL, tiers=(FULL.tiers[0], elsewhere))
    assert projection_sha256(moved) == projection_sha256(FULL)
    other_ceiling = dataclasses.replace(FULL.tiers[0], max_concurrency=13)
    changed = dataclasses.replace(FULL, tiers=(other_ceiling, FULL.tiers[1]))
    assert projection_sha256(changed) != projection_sha256(FULL)


def test_the_digest_does_not_depend_on_the_order_of_aliases() -> None:
    backwards = MappingProxyType(dict(reversed(FULL.model_routes.items())))
    assert projection_sha256(dataclasses.replace(FULL, model_routes=backwards)) == projection_sha256(FULL)


def test_the_digest_of_the_small_configuration_is_pinned() -> None:
    """A change of the projection or its canonical form changes what operators compare."""
    digest = projection_sha256(parse_config(corpus.read("config/valid/direct.toml")))
    assert digest == "f40e55353bd54eca195ad93d0969708a6c41b6ab446dfd82335218a0c6c9fbf8"
