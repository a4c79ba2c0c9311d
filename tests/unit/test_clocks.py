"""Which code reads the wall clock. It can be set, so nothing may wait, age or time out by it."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("admission", "routing", "telemetry", "anvil_site")

WALL_CLOCKS = frozenset({"time.time", "time.time_ns", "timezone.now", "datetime.now", "datetime.utcnow"})

MOMENTS = {
    "admission/models.py": 1,  # since when a scope is quiesced
    "routing/access.py": 1,  # whether a key has ended, and its last use
    "routing/availability.py": 1,  # when a probe was, for people
    "routing/console/fleet.py": 1,  # how long a scope has been quiesced: stored moments
    "routing/dialects/narration.py": 1,  # `created` of an answer that its upstream did not date
    "routing/keys.py": 2,  # a key ends in the future; when it was revoked
    "routing/loop.py": 1,  # the Date header
    "routing/models.py": 3,  # rows' own times
    "routing/passage.py": 1,  # when a decision was recorded
    "routing/promotion.py": 2,  # the journal's times
    "routing/templatetags/console.py": 1,  # how long ago a stored moment was
    "telemetry/decisions.py": 1,  # when a decision was recorded
    "telemetry/evidence.py": 1,  # when the process started, for people
    "telemetry/troubles.py": 1,  # whether the wall clock was set
}
"""How often each file reads the wall clock, and which moment it names by it. Whatever else needs a time
takes `time.monotonic`."""


def readings(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Where a wall clock is called, or handed on as a callable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = (
                node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            )
            if f"{owner}.{node.attr}" in WALL_CLOCKS:
                yield node


def sources() -> Iterator[tuple[str, ast.Module]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_bytes())


@pytest.mark.requirement("contract 3", "contract 4")
def test_the_wall_clock_is_read_for_moments_alone() -> None:
    found = Counter({name: sum(1 for _ in readings(tree)) for name, tree in sources()})
    assert +found == Counter(MOMENTS)


def test_no_wall_clock_is_imported_under_another_name() -> None:
    """The count above would not see it."""
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in ("time", "django.utils.timezone"):
                imported = {alias.name for alias in node.names}
                assert not imported & {"time", "time_ns", "now"}, name
