"""The parsers of every command: what they refuse, and that no refusal echoes what was typed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from anvil_site.cli import app
from anvil_site.cli.outcome import Outcome
from anvil_site.cli.spec import Arguments, Command, Option
from anvil_site.cli.tree import LEAVES
from tests.unit.anvil_site.cli_support import TOKEN, Anvil

PRIVATE = "/srv/private/host-7.example/sk-secret.toml"
SECRET = "sk-secret-operand"
COMMANDS = [leaf for leaf in LEAVES if isinstance(leaf, Command)]
TEXTS = {
    "usage_option_missing": "a required option is missing",
    "usage_option_repeated": "an option was given twice",
    "usage_option_invalid": "an option's value is not of its form",
}
VALID = {
    "PATH": "/nowhere/at/all.toml",
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


def by_label(command: Command) -> str:
    return command.label


def required(command: Command) -> list[str]:
    """The shortest valid arguments of ``command``."""
    words: list[str] = []
    for option in command.all_options:
        if option.required:
            assert option.form is not None
            words += [f"--{option.name}", VALID[option.form.metavar]]
    return words


def valued(command: Command) -> Iterator[Option]:
    return (option for option in command.all_options if option.form is not None)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused line must not reach its command."""

    def forbidden(arguments: Arguments) -> Outcome:
        raise AssertionError("the command ran")

    guarded = tuple(replace(leaf, run=forbidden) if isinstance(leaf, Command) else leaf for leaf in LEAVES)
    monkeypatch.setattr(app, "LEAVES", guarded)


def told(command: Command, code: str, option: str | None = None) -> str:
    """A refusal's message: what is wrong, with which option, and what that takes; all of it declared."""
    if option is None:
        assert code == "usage_invalid"
        return f"an argument is unknown or lacks its value; anvil {command.label} --help shows what it takes"
    forms = {it.name: it.form for it in command.all_options}
    form = forms[option]
    takes = "" if form is None or code == "usage_option_repeated" else f"; it takes {form.rule}"
    return f"{TEXTS[code]}: --{option}{takes}"


def refused(anvil: Anvil, command: Command, *rest: str, code: str, option: str | None = None) -> None:
    """Exit 2 with exactly this error, in both forms of output, and nothing of the operands in either."""
    message = told(command, code, option)
    shown = anvil(*command.words, *rest)
    assert (shown.code, shown.out, shown.err) == (2, "", f"{command.label}: {message} ({code})\n")
    enveloped = anvil(*command.words, *rest, "--json")
    assert enveloped.code == 2
    if "--json" not in rest:
        assert enveloped.envelope == {
            "command": command.label,
            "ok": False,
            "context": None,
            "data": None,
            "warnings": [],
            "errors": [{"code": code, "message": message}],
        }
    for result in (shown, enveloped):
        assert PRIVATE not in result.text
        assert SECRET not in result.text


@pytest.mark.requirement("Q-T014", "C-T009")
@pytest.mark.parametrize("command", COMMANDS, ids=by_label)
class TestEveryCommand:
    def test_unknown_option(self, anvil: Anvil, command: Command) -> None:
        refused(anvil, command, *required(command), f"--{SECRET}={PRIVATE}", code="usage_invalid")
        refused(anvil, command, *required(command), f"--{SECRET}", PRIVATE, code="usage_invalid")

    def test_unexpected_operand(self, anvil: Anvil, command: Command) -> None:
        refused(anvil, command, *required(command), PRIVATE, code="usage_invalid")
        refused(anvil, command, PRIVATE, *required(command), code="usage_invalid")

    def test_abbreviated_option(self, anvil: Anvil, command: Command) -> None:
        for option in command.all_options:
            # Two letters less: ``--jsonl`` without its last is an option itself.
            short = f"--{option.name[:-2]}"
            value = () if option.form is None else (PRIVATE,)
            refused(anvil, command, *required(command), short, *value, code="usage_invalid")

    def test_option_without_its_value(self, anvil: Anvil, command: Command) -> None:
        for option in valued(command):
            result = anvil(*command.words, "--json", f"--{option.name}")
            assert result.code == 2
            assert result.envelope["errors"][0]["code"] == "usage_invalid"

    def test_repeated_option(self, anvil: Anvil, command: Command) -> None:
        for option in valued(command):
            twice = (f"--{option.name}", SECRET, f"--{option.name}={PRIVATE}")
            refused(anvil, command, *twice, code="usage_option_repeated", option=option.name)

    def test_repeated_flag(self, anvil: Anvil, command: Command) -> None:
        for option in command.all_options:
            if option.form is None and option.name not in ("json", "jsonl"):
                flag = f"--{option.name}"
                rest = [*required(command), flag, flag]
                refused(anvil, command, *rest, code="usage_option_repeated", option=option.name)
        twice = anvil(*command.words, *required(command), "--json", "--json")
        assert twice.code == 2
        assert [error["code"] for error in twice.envelope["errors"]] == ["usage_option_repeated"]

    def test_flag_with_a_value(self, anvil: Anvil, command: Command) -> None:
        result = anvil(*command.words, *required(command), f"--json={SECRET}")
        assert (result.code, result.out) == (2, "")
        assert result.err == f"{command.label}: {told(command, 'usage_invalid')} (usage_invalid)\n"

    def test_missing_required_option(self, anvil: Anvil, command: Command) -> None:
        missing = [option for option in command.all_options if option.required]
        if missing:
            refused(anvil, command, code="usage_option_missing", option=missing[0].name)

    def test_empty_value(self, anvil: Anvil, command: Command) -> None:
        for option in valued(command):
            given = {f"--{other.name}": VALID[other.form.metavar] for other in valued(command) if other.form}
            given[f"--{option.name}"] = ""
            words = [word for pair in given.items() for word in pair]
            refused(anvil, command, *words, code="usage_option_invalid", option=option.name)

    def test_help_names_every_option(self, anvil: Anvil, command: Command) -> None:
        for flag in ("--help", "-h"):
            result = anvil(*command.words, flag)
            assert (result.code, result.err) == (0, "")
            assert result.out.startswith("usage: anvil " + command.label)
            for option in command.all_options:
                assert f"--{option.name}" in result.out

    def test_json_is_an_option_of_it(self, command: Command) -> None:
        assert "json" in [option.name for option in command.all_options]


BAD_VALUES = {
    "PATH": ["", "a\0b"],
    "ID": ["", "9lives", "a b", "a/b", "a" * 65, "member.a", "ünicode", "a\n", "-", "../secret"],
    "CODE": ["", "a b", "é", "a" * 129, "a/b", "a\n"],
    "ALIAS": ["", "capacity", " Fingerprints ", "ä", "-a", "a" * 129, "a b"],
    "S": ["", "0", "-1", "nan", "inf", "3600.1", "1e9", "5s", "٣", "0x10", "1_000_000"],
    "N": ["", "0", "-1", "1.5", "+3", "1_0", "٣", "9" * 5000, "1e2"],
    "NAME": ["", " a", "a\n", "a" * 101, "\x1b[31m"],
    "LIST": ["", "infer,", "infer,infer", "root", "infer observe"],
    "WHICH": ["", "both", "Config", "config,topology"],
    "TIME": ["", "tomorrow", "2030-13-01", "99999-01-01"],
}


@pytest.mark.requirement("Q-T014", "C-T009")
@pytest.mark.parametrize("metavar", BAD_VALUES)
def test_a_value_of_the_wrong_form_is_refused_before_the_command_runs(anvil: Anvil, metavar: str) -> None:
    cases = [
        (command, option)
        for command in COMMANDS
        for option in valued(command)
        if option.form is not None and option.form.metavar == metavar
    ]
    assert cases
    for command, option in cases:
        for bad in BAD_VALUES[metavar]:
            given = {f"--{other.name}": VALID[other.form.metavar] for other in valued(command) if other.form}
            given[f"--{option.name}"] = bad
            words = [f"{name}={value}" for name, value in given.items()]
            result = anvil(*command.words, "--json", *words)
            assert result.code == 2, (command.label, option.name, bad)
            assert result.envelope["errors"] == [
                {
                    "code": "usage_option_invalid",
                    "message": told(command, "usage_option_invalid", option.name),
                }
            ]


@pytest.mark.requirement("contract 5")
class TestOutsideAnyCommand:
    def test_no_command(self, anvil: Anvil) -> None:
        result = anvil()
        assert (result.code, result.out) == (2, "")
        assert result.err == "anvil: a command is missing; anvil --help lists them (usage_command_missing)\n"

    def test_a_group_alone(self, anvil: Anvil) -> None:
        result = anvil("router")
        text = "router: a command is missing; anvil router --help lists them (usage_command_missing)\n"
        assert (result.code, result.err) == (2, text)

    @pytest.mark.parametrize("argv", [[PRIVATE], ["router", PRIVATE], ["--json", PRIVATE], ["--" + SECRET]])
    def test_an_unknown_command_is_not_echoed(self, anvil: Anvil, argv: list[str]) -> None:
        result = anvil(*argv)
        assert result.code == 2
        assert "usage_command_unknown" in result.text
        assert "there is no such command; anvil" in result.text
        assert PRIVATE not in result.text
        assert SECRET not in result.text

    def test_help_lists_every_command(self, anvil: Anvil) -> None:
        result = anvil("--help")
        assert (result.code, result.err) == (0, "")
        for leaf in LEAVES:
            assert f"  {leaf.label} " in result.out

    def test_group_help_lists_its_commands_only(self, anvil: Anvil) -> None:
        result = anvil("keys", "--help")
        assert result.code == 0
        assert "keys create" in result.out
        assert "router" not in result.out

    def test_version(self, anvil: Anvil) -> None:
        result = anvil("--version")
        assert (result.code, result.out, result.err) == (0, "anvil 0.1.0\n", "")

    def test_a_member_needs_a_tier_even_for_status(
        self, anvil: Anvil, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app, "LEAVES", LEAVES)
        result = anvil("router", "transition-status", "--member", "member-a", "--json")
        assert result.code == 2
        assert result.envelope["errors"] == [
            {"code": "usage_option_missing", "message": "a required option is missing: --tier"}
        ]


@pytest.mark.requirement("contract 5")
class TestTheLastNet:
    """A handler that fails in a way it should not."""

    def _failing(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        def run(arguments: Arguments) -> Outcome:
            raise error

        leaf = replace(COMMANDS[-1], run=run)
        monkeypatch.setattr(app, "LEAVES", (leaf,))

    @pytest.mark.parametrize("error", [ValueError(SECRET), OSError(2, "no", PRIVATE), AssertionError(SECRET)])
    def test_an_exceptions_text_is_not_printed(
        self, anvil: Anvil, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        monkeypatch.delenv("ANVIL_TRACEBACK", raising=False)
        self._failing(monkeypatch, error)
        result = anvil("qualify", "plan", "--json")
        assert result.code == 1
        assert [item["code"] for item in result.envelope["errors"]] == ["internal_error"]
        assert SECRET not in result.text
        assert PRIVATE not in result.text

    def test_its_traceback_can_be_asked_for(self, anvil: Anvil, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ANVIL_TRACEBACK", "1")
        self._failing(monkeypatch, ValueError("where"))
        result = anvil("qualify", "plan")
        assert result.code == 1
        assert "ValueError: where" in result.err

    def test_an_interrupt_is_an_ordinary_end(self, anvil: Anvil, monkeypatch: pytest.MonkeyPatch) -> None:
        self._failing(monkeypatch, KeyboardInterrupt())
        result = anvil("qualify", "plan", "--json")
        assert result.code == 1
        assert [item["code"] for item in result.envelope["errors"]] == ["interrupted"]

    def test_a_reader_that_left_ends_the_command_quietly(self) -> None:
        code = "import sys; from anvil_site.cli import main; sys.stdin.read(1); sys.exit(main(sys.argv[1:]))"
        with subprocess.Popen(
            [sys.executable, "-c", code, "qualify", "plan"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "ANVIL_TOKEN": TOKEN},
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stdin.write(b"x")
            process.stdin.close()
            assert process.wait(30) == 1
            assert process.stderr.read() == b""


@pytest.mark.requirement("contract 5")
def test_human_lines_hold_no_control_characters_and_end(
    anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(arguments: Arguments) -> Outcome:
        return Outcome(data={"x": "\x1b[2J\u202e"}, lines=("\x1b[2J\u202e\r\nnext", "long" * 1000))

    monkeypatch.setattr(app, "LEAVES", (replace(COMMANDS[-1], run=run),))
    shown = anvil("qualify", "plan")
    assert shown.out == "?[2J???next\n" + "long" * 100 + "\n"
    enveloped = anvil("qualify", "plan", "--json")
    assert enveloped.out.isascii()
    assert json.loads(enveloped.out)["data"] == {"x": "\x1b[2J\u202e"}
