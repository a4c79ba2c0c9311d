"""What a Prometheus series is here, and how points of series become text."""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from telemetry.tallies import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]


class Series(NamedTuple):
    """One series: its full name (a counter's ends in ``_total``), type, help and label names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Point(NamedTuple):
    """One value of a series, with a value for each of its labels."""

    series: Series
    labels: tuple[str, ...]
    value: float | Histogram


def families(points: Iterable[Point]) -> list[Metric]:
    """The points by family, in the order in which each series first comes; no family without a point."""
    found: dict[str, Metric] = {}
    for series, labels, value in points:
        family = found.get(series.name)
        if family is None:
            family = found[series.name] = _FAMILIES[series.kind](
                series.name, series.help, labels=series.labels
            )
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Histogram)
            family.add_metric(labels, value.cumulative(), value.total)
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            assert not isinstance(value, Histogram)
            family.add_metric(labels, value)
    return list(found.values())


_FAMILIES: Final[dict[Kind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def render(points: Iterable[Point]) -> bytes:
    """The points as Prometheus text (format 0.0.4), through a registry of their own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families(points)))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics
