"""Shapes of the observability endpoints in OpenAPI (`routing.openapi` has the words they are written in)."""

from typing import Final

from routing.openapi import (
    BOOLEAN,
    COUNT,
    INTEGER,
    MOMENT,
    NUMBER,
    SHA256,
    STRING,
    Schema,
    by_name,
    choice,
    closed,
    many,
    nullable,
    ref,
)

_ANY: Final[Schema] = {"type": "object"}
_READINESS: Final = closed({"state": choice("ready", "unavailable"), "reason": STRING})
_TEXT: Final = nullable(STRING)
_COUNT: Final = nullable(COUNT)
_NUMBER: Final = nullable(NUMBER)
_FLAG: Final = nullable(BOOLEAN)

_FIGURES: Final = {
    "requests": closed({"total": COUNT, "succeeded": COUNT, "failed": COUNT}),
    "tokens": closed({"prompt": COUNT, "completion": COUNT, "total": COUNT}),
    "bytes": closed({"request": COUNT, "response": COUNT, "total": COUNT}),
    "latency_ms": closed({"samples": COUNT, "average": _NUMBER, "p50": _NUMBER, "p95": _NUMBER}),
}

COMPONENTS: Final[dict[str, Schema]] = {
    "DecisionAttempt": closed(
        {
            "tier_id": STRING,
            "outcome": choice("served", "error", "skipped"),
            "succeeded": BOOLEAN,
            "reason": STRING,
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
        }
    ),
    "ReplicaScore": closed(
        {
            "member_id": STRING,
            "local_active": COUNT,
            "local_capacity": COUNT,
            "freshness": choice("fresh", "stale", "failed", "unknown"),
            "upstream_unknown": BOOLEAN,
            "upstream_pressure_ppm": _COUNT,
            "rotating_rank": COUNT,
        }
    ),
    "ReplicaDecision": closed(
        {
            "selected_member_id": _TEXT,
            "reason": choice("selected", "no-eligible-member"),
            "eligible_member_ids": many(STRING),
            "scores": many(ref("ReplicaScore"), maxItems=16),
        }
    ),
    "DecisionRecord": closed(
        {
            "route": STRING,
            "kind": STRING,
            "requested_tier": STRING,
            "served_tier": STRING,
            "attempts": many(ref("DecisionAttempt")),
            "total_prompt_tokens": COUNT,
            "total_completion_tokens": COUNT,
            "request_bytes": COUNT,
            "response_bytes": COUNT,
            "latency_ms": {"type": "number", "minimum": 0},
            "request_id": STRING,
            "workbench_run_id": STRING,
            "task_id": STRING,
        },
        replica_member_id=STRING,
        replica_selection=choice("identity_passed", "not_admitted", "request_rejected"),
        replica_scheduler=ref("ReplicaDecision"),
    ),
    "Decisions": closed(
        {
            "count": COUNT,
            "available": COUNT,
            "limit": COUNT,
            "records": many(ref("DecisionRecord")),
            "totals": closed(
                {
                    "prompt_tokens": COUNT,
                    "completion_tokens": COUNT,
                    "request_bytes": COUNT,
                    "response_bytes": COUNT,
                    "latency_ms": NUMBER,
                    "served_tiers": by_name(COUNT),
                    "attempt_outcomes": by_name(COUNT),
                }
            ),
            "omitted_fields": many(STRING),
        }
    ),
    "RouterRequest": closed(
        {"object": choice("router_request"), "scope": STRING, "record": ref("DecisionRecord")}
    ),
    "RouterStats": closed(
        {
            "object": choice("router_stats"),
            "scope": STRING,
            "available": COUNT,
            "matching": COUNT,
            "count": COUNT,
            "limit": COUNT,
            "model": _TEXT,
            **_FIGURES,
            "routes": by_name(closed(_FIGURES)),
        }
    ),
    "ModelCapacity": closed(
        {
            "object": choice("model_capacity"),
            "id": STRING,
            "aliases": many(STRING),
            "model": _TEXT,
            "loaded": _FLAG,
            "readiness": _READINESS,
            "engine": closed({"name": _TEXT, "quantization": _TEXT}),
            "gpu": closed({"role": _TEXT, "name": _TEXT, "memory_total_mib": _COUNT}),
            "capacity": closed(
                {
                    "context_limit_tokens": _COUNT,
                    "kv_cache_capacity_tokens": _COUNT,
                    "full_context_concurrency": _NUMBER,
                    "configured_max_concurrency": _COUNT,
                    "scheduler_max_num_seqs": _COUNT,
                    "model_memory_gib": _NUMBER,
                }
            ),
            "multimodal": closed(
                {
                    "admission_enabled": _FLAG,
                    "image_limit": _COUNT,
                    "video_limit": _COUNT,
                    "image_tokens_estimate": _COUNT,
                    "video_tokens_estimate": _COUNT,
                }
            ),
            "live": closed(
                {
                    "status": STRING,
                    "reason": _TEXT,
                    "requests_running": _NUMBER,
                    "requests_waiting": _NUMBER,
                    "kv_cache_usage_fraction": _NUMBER,
                    "kv_cache_used_tokens_estimate": _COUNT,
                    "kv_cache_remaining_tokens_estimate": nullable(INTEGER),
                    "preemptions_total": _NUMBER,
                    "multimodal_cache_queries_total": _NUMBER,
                    "multimodal_cache_hits_total": _NUMBER,
                }
            ),
            "scenario": nullable(_ANY),
        },
        metadata=_ANY,
        admission=_ANY,
    ),
    "ModelCapabilities": closed(
        {
            "object": choice("model_capabilities"),
            "id": STRING,
            "aliases": many(STRING),
            "model": _TEXT,
            "context_limit_tokens": _COUNT,
            "tools": closed({"supported": BOOLEAN}),
            "modalities": nullable(many(STRING)),
            "thinking": closed(
                {"supported": _FLAG, "default": _FLAG, "caller_override": _FLAG, "max_tokens": _COUNT}
            ),
            "compat": closed(
                {
                    "supportsUsageInStreaming": _FLAG,
                    "supportsStrictMode": _FLAG,
                    "supportedReasoningEfforts": nullable(many(STRING)),
                }
            ),
            "limits": closed(
                {"max_output_tokens": _COUNT, "images_per_request": _COUNT, "video_per_request": _COUNT}
            ),
            "readiness": _READINESS,
        }
    ),
    "ModelFingerprint": closed(
        {
            "object": choice("model_fingerprint"),
            "id": STRING,
            "aliases": many(STRING),
            "model": _TEXT,
            "fingerprint": closed(
                {
                    "model_revision": _TEXT,
                    "engine_version": _TEXT,
                    "image_digest": _TEXT,
                    "config_fingerprint": _TEXT,
                }
            ),
            "served_identity": closed({"expected": _TEXT, "observed": _TEXT}),
            "readiness": _READINESS,
        }
    ),
    "TierHealth": closed(
        {
            "tiers": many(
                closed(
                    {
                        "id": STRING,
                        "role": choice("llm", "embeddings", "rerank", "stt", "tts"),
                        "status": nullable(choice("up", "degraded", "down")),
                        "last_check": nullable(MOMENT),
                        "latency_ms": _NUMBER,
                        "reason": STRING,
                    }
                )
            )
        }
    ),
    "RouterStatus": closed(
        {
            "object": choice("router_status"),
            "package_version": STRING,
            "started_at": MOMENT,
            "uptime_seconds": COUNT,
            "model_aliases": many(STRING),
            "tier_counts": closed({"configured": COUNT, "enabled": COUNT}),
            "config_sha256": nullable(SHA256),
            "snapshot_sha256": nullable(SHA256),
            "owns_ledger": BOOLEAN,
            "draining": BOOLEAN,
        }
    ),
    "RouterExplanation": closed(
        {
            "object": choice("router_explanation"),
            "model": STRING,
            "tier": _TEXT,
            "strategy": _TEXT,
            "served": _FLAG,
            "summary": STRING,
            "steps": many(closed({"step": STRING, "scope": _TEXT, "result": STRING, "detail": _TEXT})),
        }
    ),
}


def listing(name: str) -> Schema:
    """A list of rows of one shape."""
    return closed({"object": choice("list"), "data": many(ref(name))})
