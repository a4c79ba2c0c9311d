"""``GET /v1/stats``: exact figures over the decision records that the ring holds now."""

import math
from collections.abc import Sequence
from typing import Final

from routing.records import DecisionRecord
from telemetry.decisions import BUFFER_CAPACITY, BUFFER_SCOPE, check_limit, total

MAX_STATS_LIMIT: Final = BUFFER_CAPACITY


def build_stats(records: Sequence[DecisionRecord], *, model: str | None, limit: int) -> dict[str, object]:
    """Figures over the newest ``limit`` (1 to 10,000) of ``records`` whose route is ``model`` (None: any).

    ``records`` are in the order they were recorded. ``routes`` has an entry for each alias that the counted
    records name, and for no other. Latencies without a positive sample are null. Raises ValueError for a
    limit out of bounds.
    """
    check_limit(limit, MAX_STATS_LIMIT)
    matching = [record for record in records if model is None or record.route == model]
    counted = matching[-limit:]
    by_route: dict[str, list[DecisionRecord]] = {}
    for record in counted:
        if record.route is not None:
            by_route.setdefault(record.route, []).append(record)
    return {
        "object": "router_stats",
        "scope": BUFFER_SCOPE,
        "available": len(records),
        "matching": len(matching),
        "count": len(counted),
        "limit": limit,
        "model": model,
        **_figures(counted),
        "routes": {route: _figures(by_route[route]) for route in sorted(by_route)},
    }


def nearest_rank(ordered: Sequence[float], percent: int) -> float | None:
    """The ``percent``-th percentile (1 to 100) of ascending samples by nearest rank; None without samples.

    Always one of the samples: the smallest that at least ``percent`` per cent of them do not exceed.
    """
    if not ordered:
        return None
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def _figures(records: Sequence[DecisionRecord]) -> dict[str, object]:
    succeeded = sum(record.served for record in records)
    prompt = total(record.total_prompt_tokens for record in records)
    completion = total(record.total_completion_tokens for record in records)
    request = total(record.request_bytes for record in records)
    response = total(record.response_bytes for record in records)
    latencies = sorted(record.latency_ms for record in records if record.latency_ms > 0)
    return {
        "requests": {"total": len(records), "succeeded": succeeded, "failed": len(records) - succeeded},
        "tokens": {"prompt": prompt, "completion": completion, "total": total((prompt, completion))},
        "bytes": {"request": request, "response": response, "total": total((request, response))},
        "latency_ms": {
            "samples": len(latencies),
            "average": round(sum(latencies) / len(latencies), 3) if latencies else None,
            "p50": nearest_rank(latencies, 50),
            "p95": nearest_rank(latencies, 95),
        },
    }
