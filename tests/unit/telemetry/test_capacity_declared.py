"""Capabilities, fingerprints and health as pure projections: every declared value, and every role."""

import json
from typing import Any

import pytest

from routing.probes import AvailabilityResult
from routing.projections import UnknownModelError, capabilities, fingerprints, replica_metadata
from telemetry.health import build_health
from tests.unit.telemetry.capacity_support import (
    CONFIG,
    MISMATCH,
    PASSED,
    REFUSED,
    SECRETS,
    Readiness,
    readiness,
)


def test_capabilities_with_everything_declared() -> None:
    payload: Any = capabilities(CONFIG, readiness(), model="llm.direct")
    assert payload == {
        "object": "list",
        "data": [
            {
                "object": "model_capabilities",
                "id": "direct",
                "aliases": ["llm.direct"],
                "model": "qwen3-32b",
                "context_limit_tokens": 32_768,
                "tools": {"supported": True},
                "modalities": ["text", "image"],
                "thinking": {
                    "supported": True,
                    "default": False,
                    "caller_override": True,
                    "max_tokens": 8192,
                },
                "compat": {
                    "supportsUsageInStreaming": True,
                    "supportsStrictMode": False,
                    "supportedReasoningEfforts": ["low", "high"],
                },
                "limits": {"max_output_tokens": 4096, "images_per_request": 4, "video_per_request": 0},
                "readiness": {"state": "ready", "reason": "health_passed"},
            }
        ],
    }


def test_fingerprints_are_declared_and_partly_unknown() -> None:
    payload: Any = fingerprints(CONFIG, readiness())
    direct, rotating, primary = payload["data"]
    assert direct["fingerprint"] == {
        "model_revision": "abc",
        "engine_version": "0.11.0",
        "image_digest": None,
        "config_fingerprint": None,
    }
    assert direct["served_identity"] == {"expected": "qwen3-32b", "observed": None}
    assert rotating["served_identity"] == {"expected": "qwen3-8b", "observed": None}
    assert primary["served_identity"] == {"expected": "qwen3-8b", "observed": "qwen3-8b"}
    assert primary["aliases"] == ["llm.primary", "llm.second"]
    assert primary["fingerprint"]["image_digest"] == "sha256:" + "0" * 64


@pytest.mark.parametrize("build", [capabilities, fingerprints])
def test_an_alias_that_is_not_configured(build: Any) -> None:
    with pytest.raises(UnknownModelError):
        build(CONFIG, readiness(), model="direct")


def test_health_of_every_serve_in_configuration_order() -> None:
    """A replica tier is as good as its best member. Models of a purpose used to be up, though nothing ever
    looked whether they are."""
    assert build_health(CONFIG, readiness()) == {
        "tiers": [
            {
                "id": "direct",
                "role": "llm",
                "status": "up",
                "last_check": "2026-01-01T00:00:00.500Z",
                "latency_ms": 12,
                "reason": "health_passed",
            },
            {
                "id": "rotating",
                "role": "llm",
                "status": "degraded",
                "last_check": "2026-01-01T00:00:02.000Z",
                "latency_ms": 9,
                "reason": "identity_mismatch",
            },
            {
                "id": "primary",
                "role": "llm",
                "status": "up",
                "last_check": "2026-01-01T00:00:01.000Z",
                "latency_ms": 7,
                "reason": "identity_passed",
            },
            *(
                {
                    "id": name,
                    "role": role,
                    "status": None,
                    "last_check": None,
                    "latency_ms": None,
                    "reason": "availability_not_configured",
                }
                for name, role in (
                    ("embed", "embeddings"),
                    ("order", "rerank"),
                    ("dictation", "stt"),
                    ("voice", "tts"),
                )
            ),
        ]
    }


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("identity_malformed", "degraded"),
        ("identity_oversized", "degraded"),
        ("identity_http_404", "degraded"),
        ("identity_transport_reset", "down"),
        ("health_http_500", "down"),
        ("probe_pending", "down"),
    ],
)
def test_degraded_is_a_server_that_was_reached(reason: str, status: str) -> None:
    result = AvailabilityResult(False, reason)
    payload: Any = build_health(CONFIG, Readiness({("direct", None): result}))
    assert (payload["tiers"][0]["status"], payload["tiers"][0]["reason"]) == (status, reason)


def test_without_a_source_nothing_is_up_that_has_a_probe() -> None:
    payload: Any = build_health(CONFIG, None)
    assert [row["status"] for row in payload["tiers"][:3]] == ["down"] * 3


@pytest.mark.requirement("Q-T005.1", "Q-T010", "Q-R012")
def test_members_never_show_what_a_probe_did_not_expect() -> None:
    """Results that were tampered with, subclassed, or are no results at all."""

    class Lookalike(AvailabilityResult):
        __slots__ = ()

    lying = AvailabilityResult(True, "identity_passed", expected_model="intruder-model")
    object.__setattr__(lying, "observed_model", "intruder-model")
    source = Readiness({("primary", "member-a"): lying, ("primary", "member-b"): "planted-secret"})  # type: ignore[dict-item]
    members: Any = replica_metadata(CONFIG.tier("primary"), source)["members"]
    assert [(row["observed_model"], row["reason"]) for row in members] == [
        (None, "identity_passed"),
        (None, "probe_pending"),
    ]
    source.results["primary", "member-a"] = Lookalike(True, "identity_passed")
    members = replica_metadata(CONFIG.tier("primary"), source)["members"]
    assert members[0]["ready"] is False


@pytest.mark.requirement("Q-R012", "C-R012")
def test_no_projection_holds_an_address_or_the_name_of_a_secret() -> None:
    worst = Readiness(
        {
            ("direct", None): REFUSED,
            ("rotating", "one"): MISMATCH,
            ("primary", "member-a"): PASSED,
        }
    )
    for source in (readiness(), worst, None):
        for build in (capabilities, fingerprints, build_health):
            answer = json.dumps(build(CONFIG, source))
            assert [secret for secret in SECRETS if secret in answer] == []
