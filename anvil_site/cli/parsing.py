"""From ``argv`` to a declared command with checked values, or to a fixed refusal.

argparse does the splitting; what it would say about an error (it echoes the argument) is thrown away, and
what it would let pass (abbreviations, repeats, a value of the wrong form) is refused here.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from .outcome import Fault
from .spec import Arguments, Command, Leaf, Option, Value

PROGRAM = "anvil"


class UsageError(Exception):
    """The command line is refused; holds the fault and nothing of the line."""

    def __init__(self, code: str, option: str | None = None, hint: str | None = None) -> None:
        super().__init__(code)
        self.fault = Fault(code, option, hint)


class Parser(argparse.ArgumentParser):
    """The parser of one command: exact option names only, and errors that say nothing of the input."""

    def __init__(self, command: Command) -> None:
        super().__init__(
            prog=f"{PROGRAM} {command.label}",
            usage=_usage(command),
            description=command.summary,
            allow_abbrev=False,
            add_help=False,
            argument_default=argparse.SUPPRESS,
        )
        for option in command.all_options:
            if option.form is None:
                self.add_argument(
                    f"--{option.name}", action=_Once, nargs=0, dest=option.name, help=option.help
                )
                continue
            text = f"{option.help} ({option.form.rule})"
            self.add_argument(
                f"--{option.name}",
                action=_Once,
                dest=option.name,
                metavar=option.form.metavar,
                help=text.replace("%", "%%"),
            )

    def error(self, message: str) -> NoReturn:
        # From None: the discarded message must not come back in a traceback.
        raise UsageError("usage_invalid", hint=f"{self.prog} --help shows what it takes") from None


def _usage(command: Command) -> str:
    """Our own, since argparse would show required options, whose absence ``parse`` refuses, as optional."""
    words = [PROGRAM, command.label]
    for option in command.all_options:
        word = f"--{option.name}" + ("" if option.form is None else f" {option.form.metavar}")
        words.append(word if option.required else f"[{word}]")
    return " ".join(words)


class _Once(argparse.Action):
    """Stores a value, or True for a flag; refuses to do so twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if self.dest in vars(namespace):
            raise UsageError("usage_option_repeated", self.dest)
        setattr(namespace, self.dest, values if isinstance(values, str) else True)


def find(leaves: Sequence[Leaf], argv: Sequence[str]) -> tuple[Leaf | None, tuple[str, ...]]:
    """The leaf that ``argv`` starts with, if any, and the longest run of declared words it starts with."""
    known: tuple[str, ...] = ()
    for length in range(1, len(argv) + 1):
        words = tuple(argv[:length])
        below = [leaf for leaf in leaves if leaf.words[:length] == words]
        if not below:
            break
        known = words
        if below[0].words == words:
            return below[0], known
    return None, known


def parse(command: Command, rest: Sequence[str]) -> Arguments:
    """The checked arguments of ``command``; raises :class:`UsageError`."""
    given = vars(Parser(command).parse_args(list(rest)))
    values: dict[str, Value | bool] = {}
    for option in command.all_options:
        if option.name not in given:
            if option.required:
                raise UsageError("usage_option_missing", option.name, takes(option))
        elif option.excludes is not None and option.excludes in given:
            hint = f"leave --{option.excludes} or this one out"
            raise UsageError("usage_options_conflict", option.name, hint)
        else:
            values[option.name] = _checked(option, given[option.name])
    return Arguments(values)


def _checked(option: Option, text: str) -> Value | bool:
    if option.form is None:
        return True
    try:
        return option.form.read(text)
    except (ValueError, OverflowError):
        raise UsageError("usage_option_invalid", option.name, takes(option)) from None


def takes(option: Option) -> str:
    """What to give an option, in its declared words."""
    assert option.form is not None
    return f"it takes {option.form.rule}"


def help_for(leaves: Sequence[Leaf], words: tuple[str, ...]) -> str:
    """The help of a group of commands, or of all of them for no words."""
    below = [leaf for leaf in leaves if leaf.words[: len(words)] == words]
    width = max(len(leaf.label) for leaf in below)
    lines = [f"usage: {' '.join((PROGRAM, *words))} COMMAND ...", ""]
    lines += [f"  {leaf.label:<{width}}  {leaf.summary}" for leaf in below]
    lines += ["", "COMMAND --help shows a command's options. Exit 0 done, 1 failed or refused, 2 bad input."]
    return "\n".join(lines) + "\n"
