"""What the scripts of a checkout do before the work itself: the environment, made once."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Stands in for the environment's Python: writes down what it is asked to install.
PYTHON = '#!/bin/sh\nfor last; do :; done\necho "${last##*/}" >>"${0%/*}/installed"\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "lib.sh", root / "scripts")
    (root / "pyproject.toml").write_text("one\n")
    program = root / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(PYTHON)
    program.chmod(0o755)
    return root


def set_up(checkout: Path, *extras: str) -> list[str]:
    """Set up with each of the extras in turn; what was installed in all of it."""
    for extra in extras:
        subprocess.run(
            ["bash", "-euc", f'. scripts/lib.sh; set_up "{extra}"'], cwd=checkout, check=True, timeout=30
        )
    return (checkout / ".venv" / "bin" / "installed").read_text().splitlines()


def test_a_larger_environment_serves_for_a_smaller_one(checkout: Path) -> None:
    assert set_up(checkout, "demo", "", "demo") == ["checkout[demo]"]


def test_the_one_for_the_tests_serves_for_all(checkout: Path) -> None:
    assert set_up(checkout, "dev", "", "demo", "dev") == ["checkout[dev]"]


def test_a_smaller_one_is_added_to(checkout: Path) -> None:
    assert set_up(checkout, "", "demo", "dev", "") == ["checkout", "checkout[demo]", "checkout[dev]"]


def test_it_is_made_anew_when_the_project_has_changed(checkout: Path) -> None:
    assert set_up(checkout, "demo") == ["checkout[demo]"]
    (checkout / "pyproject.toml").write_text("two\n")
    assert set_up(checkout, "", "demo") == ["checkout[demo]", "checkout", "checkout[demo]"]
