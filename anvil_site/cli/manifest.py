"""The generated list of every command: ``python -m anvil_site.cli.manifest --write`` from a checkout.

Programs read ``docs/cli-manifest.json``; a test holds it to the parsers that :mod:`anvil_site.cli.parsing`
builds from the same declarations.
"""

import json
import sys
from pathlib import Path
from typing import Final

from .outcome import Json
from .parsing import PROGRAM
from .spec import Command, Leaf, Option
from .tree import LEAVES

SCHEMA_VERSION: Final = "anvil-cli-manifest/v1"
PATH: Final = Path(__file__).resolve().parents[2] / "docs" / "cli-manifest.json"


def manifest() -> dict[str, Json]:
    return {
        "schema_version": SCHEMA_VERSION,
        "program": PROGRAM,
        "exit_codes": {"0": "done", "1": "failed or refused by the router", "2": "bad input"},
        "commands": [_leaf(leaf) for leaf in LEAVES],
    }


def _leaf(leaf: Leaf) -> Json:
    command = leaf if isinstance(leaf, Command) else None
    return {
        "command": leaf.label,
        "summary": leaf.summary,
        "reach": leaf.reach,
        "mutates": command is not None and command.mutates,
        "passthrough": command is None,
        "needs": None if command is None else command.needs,
        "options": [] if command is None else [_option(option) for option in command.all_options],
    }


def _option(option: Option) -> Json:
    return {
        "name": f"--{option.name}",
        "value": None if option.form is None else option.form.metavar,
        "rule": None if option.form is None else option.form.rule,
        "required": option.required,
        "help": option.help,
    }


def render() -> str:
    return json.dumps(manifest(), indent=2) + "\n"


def main(argv: list[str]) -> int:
    """``--write`` writes the file, ``--check`` fails when it is not current."""
    if argv == ["--write"]:
        PATH.write_text(render(), encoding="ascii")
        return 0
    if argv != ["--check"]:
        print("usage: python -m anvil_site.cli.manifest --write|--check", file=sys.stderr)
        return 2
    if PATH.is_file() and PATH.read_text(encoding="ascii") == render():
        return 0
    print("docs/cli-manifest.json is out of date: python -m anvil_site.cli.manifest --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
