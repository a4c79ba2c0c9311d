"""The comparisons run in their short forms; what they measure is for people to judge."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def table(*arguments: str) -> dict[str, list[str]]:
    """The last table that a comparison prints: the cells of each row by its name."""
    ran = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in ran.stdout.rpartition("\n\n|")[2].splitlines()
        if line.count("|") > 4
    ]
    return {name: cells for name, *cells in rows if name and not name.startswith("-")}


def test_streams_beside_the_direct_run() -> None:
    rows = table(
        "benchmarks.compare", "--quick", "--rounds", "1", "--peers", "anvil,anvil-blocking,empty-wsgi"
    )
    assert list(rows) == ["direct", "anvil", "anvil-blocking"]
    assert {cells[-1] for cells in rows.values()} == {"0"}, "no stream is lost"
    assert all(re.fullmatch(r"\d+\.\d", cells[4]) for name, cells in rows.items() if name != "direct")


def test_the_tail_under_bursts() -> None:
    names = ("anvil capacity, fitted", "anvil capacity, equal, no pressure")
    rows = table(
        "benchmarks.tail", "--runs", "1", "--seconds", "2", "--together", "2", "--routers", ";".join(names)
    )
    assert tuple(rows) == names
    for cells in rows.values():
        assert cells[-1] == "0", "no request failed"
        assert float(cells[0]) > 0
