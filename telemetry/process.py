"""The evidence of this process, for the views that show it."""

from telemetry.decisions import DecisionLog
from telemetry.evidence import ProcessEvidence

_live: ProcessEvidence | None = None


def bind(evidence: ProcessEvidence | None) -> None:
    """Make ``evidence`` what this process's views show."""
    global _live
    _live = evidence


def evidence() -> ProcessEvidence:
    """This process's evidence. Raises RuntimeError where no runtime was started."""
    if _live is None:
        raise RuntimeError("no runtime was started in this process")
    return _live


def log() -> DecisionLog:
    """This process's decision log."""
    return evidence().log
