"""A short chaos run (`scripts/chaos` runs long ones): callers, faults and changes, and no violation."""

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.run import run

pytestmark = pytest.mark.requirement("contract 3", "house 1", "house 3", "cases 1", "cases 2", "cases 7")


def test_nothing_breaks_an_invariant(tmp_path: Path) -> None:
    report = run(seconds=12.0, seed=8, callers=24, keep=tmp_path / "router")

    assert report.violations == Counter(), str(report)
    assert report.requests > 500
    assert report.received > 100
    assert report.statuses[200] > 50
    assert len(report.struck) > 5
