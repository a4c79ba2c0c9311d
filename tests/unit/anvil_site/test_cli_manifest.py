"""The command manifest is what the parsers take: held to them from both sides."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anvil_site.cli import app, manifest
from anvil_site.cli.outcome import Outcome
from anvil_site.cli.parsing import Parser, UsageError, parse
from anvil_site.cli.spec import Arguments, Command
from anvil_site.cli.tree import LEAVES
from tests.unit.anvil_site.cli_support import Anvil

FILE = Path(__file__).resolve().parents[3] / "docs" / "cli-manifest.json"
MANIFEST: dict[str, Any] = json.loads(FILE.read_text())
COMMANDS = {leaf.label: leaf for leaf in LEAVES if isinstance(leaf, Command)}
VALID = {
    "PATH": "some.toml",
    "ID": "primary",
    "CODE": "maintenance",
    "ALIAS": "llm.primary",
    "S": "5",
    "N": "7",
    "NAME": "somebody",
    "LIST": "infer",
    "TIME": "2030-01-01",
    "WHICH": "config",
}


@pytest.mark.requirement("Q-T013.1", "C-T009")
class TestTheFile:
    def test_it_is_exactly_what_is_generated(self) -> None:
        assert FILE.read_text(encoding="ascii") == manifest.render()

    def test_generating_is_deterministic(self) -> None:
        command = [
            sys.executable,
            "-c",
            "from anvil_site.cli import manifest; print(manifest.render(), end='')",
        ]
        other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert other.stdout == manifest.render()

    def test_it_lists_every_command_once(self) -> None:
        labels = [entry["command"] for entry in MANIFEST["commands"]]
        assert labels == [leaf.label for leaf in LEAVES]
        assert len(set(labels)) == len(labels)

    def test_no_command_is_the_beginning_of_another(self) -> None:
        words = [leaf.words for leaf in LEAVES]
        for one in words:
            assert [other for other in words if other[: len(one)] == one] == [one]

    def test_check_and_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(manifest, "PATH", tmp_path / "cli-manifest.json")
        assert manifest.main(["--check"]) == 1
        assert manifest.main(["--write"]) == 0
        assert manifest.main(["--check"]) == 0
        assert manifest.main([]) == 2
        assert manifest.PATH.read_bytes() == FILE.read_bytes()
        assert "out of date" in capsys.readouterr().err


@pytest.mark.requirement("Q-T013.1", "C-T009")
@pytest.mark.parametrize("entry", MANIFEST["commands"], ids=lambda entry: entry["command"])
class TestEachEntry:
    def test_the_parser_has_its_options_and_no_others(self, entry: dict[str, Any]) -> None:
        command = COMMANDS.get(entry["command"])
        if command is None:
            assert (entry["passthrough"], entry["options"]) == (True, [])
            return
        actions = {action.option_strings[0]: action for action in Parser(command)._actions}
        assert list(actions) == [option["name"] for option in entry["options"]]
        for option in entry["options"]:
            action = actions[option["name"]]
            assert action.option_strings == [option["name"]]
            assert action.metavar == option["value"]
            assert (action.nargs == 0) is (option["value"] is None)

    def test_the_parser_takes_what_it_lists_and_needs_what_it_requires(self, entry: dict[str, Any]) -> None:
        command = COMMANDS.get(entry["command"])
        if command is None:
            return
        words = {
            option["name"]: [option["name"], *([] if option["value"] is None else [VALID[option["value"]]])]
            for option in entry["options"]
            if option["name"] != "--jsonl"
        }
        every = [word for pair in words.values() for word in pair]
        assert isinstance(parse(command, every), Arguments)
        needed = [option["name"] for option in entry["options"] if option["required"]]
        assert isinstance(parse(command, [word for name in needed for word in words[name]]), Arguments)
        for missing in needed:
            rest = [word for name, pair in words.items() if name != missing for word in pair]
            with pytest.raises(UsageError):
                parse(command, rest)

    def test_the_root_dispatches_to_it(
        self, anvil: Anvil, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any]
    ) -> None:
        ran: list[str] = []

        def mark(label: str, leaf: Any) -> Any:
            if isinstance(leaf, Command):
                return replace(leaf, run=lambda arguments: ran.append(label) or Outcome())
            return replace(leaf, run=lambda rest: ran.append(label) or 0)

        monkeypatch.setattr(app, "LEAVES", tuple(mark(leaf.label, leaf) for leaf in LEAVES))
        words = [
            word
            for option in entry["options"]
            if option["required"]
            for word in (option["name"], VALID[option["value"]])
        ]
        assert anvil(*entry["command"].split(), *words).code == 0
        assert ran == [entry["command"]]

    def test_only_what_previews_takes_confirm(self, entry: dict[str, Any]) -> None:
        assert entry["mutates"] is ("--confirm" in [option["name"] for option in entry["options"]])


@pytest.mark.requirement("Q-T014", "Q-T013.1")
def test_the_offline_validation_is_declared_as_its_contract_has_it() -> None:
    (entry,) = [item for item in MANIFEST["commands"] if item["command"] == "topology validate-router-config"]
    assert (entry["reach"], entry["mutates"]) == ("offline", False)
    assert [(option["name"], option["value"], option["required"]) for option in entry["options"]] == [
        ("--config", "PATH", True),
        ("--topology", "PATH", False),
        ("--topology-overlay", "PATH", False),
        ("--json", None, False),
    ]


@pytest.mark.requirement("C-T009")
@pytest.mark.parametrize(
    ("action", "tier_required"),
    [("transition-status", False), ("quiesce", True), ("drain", True), ("readmit", True)],
)
def test_all_four_transition_verbs_take_a_member(action: str, tier_required: bool) -> None:
    (entry,) = [item for item in MANIFEST["commands"] if item["command"] == f"router {action}"]
    options = {option["name"]: option for option in entry["options"]}
    assert options["--tier"]["required"] is tier_required
    assert (options["--member"]["value"], options["--member"]["required"]) == ("ID", False)
