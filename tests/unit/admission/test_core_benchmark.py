"""The measurement of acquire_member runs; what it measures is for people to judge."""

import subprocess
import sys
from pathlib import Path

import pytest

from .ledgers import WAIT_SECONDS

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "acquire_member.py"


@pytest.mark.requirement("C-R004")
def test_the_benchmark_prints_median_and_p99() -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--seconds", "0.05"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    title, *figures = ran.stdout.splitlines()
    assert title == "16 members, 70 places taken"
    assert [line.partition("  ")[0] for line in figures] == [
        "capacity, dicts",
        "capacity, checked when made",
        "round-robin, dicts",
        "round-robin, checked when made",
        "capacity, dicts, 32 threads",
        "capacity, checked, 32 threads",
    ]
    assert all(" us   p99 " in line for line in figures)
