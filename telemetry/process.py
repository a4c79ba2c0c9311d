"""The evidence of this process, for the views that show it."""

from routing.router import live
from telemetry.decisions import DecisionLog
from telemetry.evidence import ProcessEvidence
from telemetry.exporter import PrometheusExporter
from telemetry.history import History

_live: ProcessEvidence | None = None
_exporter: PrometheusExporter | None = None


def bind(evidence: ProcessEvidence | None) -> None:
    """Make ``evidence`` what this process's views show."""
    global _live, _exporter
    _live, _exporter = evidence, None


def evidence() -> ProcessEvidence:
    """This process's evidence. Raises RuntimeError where no runtime was started."""
    if _live is None:
        raise RuntimeError("no runtime was started in this process")
    return _live


def log() -> DecisionLog:
    """This process's decision log."""
    return evidence().log


def history() -> History | None:
    """This process's history, or None where no runtime was started."""
    return _live.history if _live is not None else None


def exporter() -> PrometheusExporter:
    """What answers ``GET /metrics`` over this process's router and evidence."""
    global _exporter
    if _exporter is None:
        _exporter = PrometheusExporter(live(), evidence())
    return _exporter
