"""``GET /v1/health/tiers`` and ``GET /v1/router/status``: whether it is up, in completed values alone."""

from typing import Final, Literal

from routing.availability import NOT_CONFIGURED, AvailabilityResult
from routing.config import RouterConfig, Tier
from routing.projections import ReadinessSource, completed
from routing.router import Router
from routing.snapshot import projection_sha256
from telemetry.decisions import utc_text

Status = Literal["up", "degraded", "down"]

_BEST_FIRST: Final[tuple[Status, ...]] = ("up", "degraded", "down")
_ROLES: Final = {"embedding": "embeddings", "rerank": "rerank", "stt": "stt", "tts": "tts"}


def build_health(config: RouterConfig, source: ReadinessSource | None) -> dict[str, object]:
    """One row for every configured serve, in configuration order: tiers, purpose models, audio routes.

    ``degraded`` is a server that was reached and does not show the expected identity; ``down`` is everything
    else that is not up, one that was never probed included. A replica tier is as good as its best member.
    A tier without a probe counts as ready, hence as up. Purpose models and audio routes have no readiness,
    and nothing looks whether they are up: their status is null, as every value that is not known.
    ``last_check`` is ISO 8601 in UTC.
    """
    rows = []
    for tier in config.tiers:
        best = _best(tier, source)
        rows.append(_row(tier.id, "llm", status_of(best), best))
    rows += [_row(model.id, _ROLES[model.kind], None, NOT_CONFIGURED) for model in config.purpose_models]
    rows += [_row(route.id, _ROLES[route.purpose], None, NOT_CONFIGURED) for route in config.audio_routes]
    return {"tiers": rows}


def _row(name: str, role: str, status: Status | None, result: AvailabilityResult) -> dict[str, object]:
    return {
        "id": name,
        "role": role,
        "status": status,
        "last_check": utc_text(result.checked_at),
        "latency_ms": result.latency_ms,
        "reason": result.reason,
    }


def status_of(result: AvailabilityResult) -> Status:
    """The word for a result of readiness."""
    if result.available:
        return "up"
    identity = result.reason.startswith("identity_") and not result.reason.startswith("identity_transport_")
    return "degraded" if identity else "down"


def _best(tier: Tier, source: ReadinessSource | None) -> AvailabilityResult:
    member_ids: tuple[str | None, ...] = tier.member_ids or (None,)
    results = [completed(source, tier.id, member_id) for member_id in member_ids]
    return min(results, key=lambda result: _BEST_FIRST.index(status_of(result)))


def build_status(
    router: Router, *, package_version: str, started_at: float, uptime: float
) -> dict[str, object]:
    """What this process is and what it runs. Without an active configuration its part is empty or null.

    ``enabled`` counts tiers that are not quiesced. ``config_sha256`` is of the safe projection and tells
    whether two routers decide alike; ``snapshot_sha256`` is of the exact bytes that were captured.
    """
    active = router.active
    quiesced = router.quiesced_scopes()
    tiers = [tier.id for tier in active.config.tiers] if active is not None else []
    return {
        "object": "router_status",
        "package_version": package_version,
        "started_at": utc_text(started_at),
        "uptime_seconds": int(uptime),
        "model_aliases": list(active.config.model_routes) if active is not None else [],
        "tier_counts": {
            "configured": len(tiers),
            "enabled": sum((tier_id, None) not in quiesced for tier_id in tiers),
        },
        "config_sha256": projection_sha256(active.config) if active is not None else None,
        "snapshot_sha256": active.snapshot.config_sha256 if active is not None else None,
        "owns_ledger": router.owns_ledger,
        "draining": router.draining,
    }
