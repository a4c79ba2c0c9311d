"""Figures over the decision records in memory."""

from dataclasses import replace
from typing import Any

import pytest

from routing.records import DecisionRecord
from telemetry.stats import build_stats, nearest_rank
from tests.unit.routing.records_samples import DIRECT, DIRECT_REFUSED, REFUSED, served

PRIMARY = replace(
    DIRECT,
    route="llm.primary",
    requested_tier="primary",
    served_tier="primary",
    attempts=(served("primary"),),
    total_prompt_tokens=5,
    total_completion_tokens=6,
    request_bytes=7,
    response_bytes=8,
    latency_ms=100,
)

EMPTY_FIGURES: dict[str, object] = {
    "requests": {"total": 0, "succeeded": 0, "failed": 0},
    "tokens": {"prompt": 0, "completion": 0, "total": 0},
    "bytes": {"request": 0, "response": 0, "total": 0},
    "latency_ms": {"samples": 0, "average": None, "p50": None, "p95": None},
}


def test_figures_of_several_routes() -> None:
    direct: dict[str, object] = {
        "requests": {"total": 2, "succeeded": 1, "failed": 1},
        "tokens": {"prompt": 11, "completion": 22, "total": 33},
        "bytes": {"request": 602, "response": 804, "total": 1406},
        "latency_ms": {"samples": 2, "average": 12.5, "p50": 12.5, "p95": 12.5},
    }
    primary: dict[str, object] = {
        "requests": {"total": 2, "succeeded": 1, "failed": 1},
        "tokens": {"prompt": 5, "completion": 6, "total": 11},
        "bytes": {"request": 308, "response": 410, "total": 718},
        "latency_ms": {"samples": 1, "average": 100.0, "p50": 100, "p95": 100},
    }
    records = [DIRECT, DIRECT_REFUSED, PRIMARY, replace(REFUSED, latency_ms=0)]
    assert build_stats(records, model=None, limit=10_000) == {
        "object": "router_stats",
        "scope": "current_decision_log_buffer",
        "available": 4,
        "matching": 4,
        "count": 4,
        "limit": 10_000,
        "model": None,
        "requests": {"total": 4, "succeeded": 2, "failed": 2},
        "tokens": {"prompt": 16, "completion": 28, "total": 44},
        "bytes": {"request": 910, "response": 1214, "total": 2124},
        "latency_ms": {"samples": 3, "average": 41.667, "p50": 12.5, "p95": 100},
        "routes": {"llm.direct": direct, "llm.primary": primary},
    }


def test_one_model_and_its_newest() -> None:
    newest = replace(DIRECT, total_prompt_tokens=1, latency_ms=2.0)
    records = [DIRECT, PRIMARY, DIRECT, newest, PRIMARY]
    stats = build_stats(records, model="llm.direct", limit=1)
    assert (stats["available"], stats["matching"], stats["count"]) == (5, 3, 1)
    assert (stats["limit"], stats["model"]) == (1, "llm.direct")
    assert stats["tokens"] == {"prompt": 1, "completion": 22, "total": 23}
    assert list(stats["routes"]) == ["llm.direct"]  # type: ignore[call-overload]


@pytest.mark.parametrize("model", [None, "llm.primary"])
def test_empty_buffer(model: str | None) -> None:
    assert build_stats([], model=model, limit=1) == {
        "object": "router_stats",
        "scope": "current_decision_log_buffer",
        "available": 0,
        "matching": 0,
        "count": 0,
        "limit": 1,
        "model": model,
        **EMPTY_FIGURES,
        "routes": {},
    }


def test_record_without_a_route_counts_and_makes_no_route() -> None:
    stats = build_stats([replace(DIRECT, route=None)], model=None, limit=1)
    assert (stats["count"], stats["routes"]) == (1, {})


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, "5", 2.0])
def test_limit_out_of_bounds(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"^limit must be from 1 to 10000$"):
        build_stats([], model=None, limit=limit)


def test_latency_without_a_positive_sample_is_null() -> None:
    stats = build_stats([replace(DIRECT, latency_ms=0)], model=None, limit=1)
    assert stats["latency_ms"] == {"samples": 0, "average": None, "p50": None, "p95": None}


@pytest.mark.parametrize(
    ("samples", "percent", "value"),
    [
        ([], 50, None),
        ([7.0], 50, 7.0),
        ([7.0], 95, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0], 95, 2.0),
        ([1.0, 2.0, 3.0], 50, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.0),
        ([float(n) for n in range(1, 21)], 95, 19.0),
        ([float(n) for n in range(1, 22)], 95, 20.0),
        ([float(n) for n in range(1, 101)], 95, 95.0),
        ([float(n) for n in range(1, 10_001)], 95, 9500.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 30, 20.0),
        ([15.0, 20.0, 35.0, 40.0, 50.0], 100, 50.0),
    ],
)
def test_percentiles_are_nearest_rank(samples: list[float], percent: int, value: float | None) -> None:
    assert nearest_rank(samples, percent) == value


def test_percentiles_over_positive_samples_only() -> None:
    records: list[DecisionRecord] = [replace(DIRECT, latency_ms=value) for value in (0, 30, 0, 10, 20)]
    latency = build_stats(records, model=None, limit=5)["latency_ms"]
    assert latency == {"samples": 3, "average": 20.0, "p50": 20, "p95": 30}
