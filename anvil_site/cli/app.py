"""``anvil``: finds the command, runs it, prints what it came to."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version

from .outcome import FAILED, Fault, Outcome, RouterFault, emit, failed, refusal_of, refused, tell_traceback
from .parsing import PROGRAM, Parser, UsageError, find, help_for, parse
from .spec import Command, Passthrough
from .tree import LEAVES

DISTRIBUTION = "anvil-router"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``anvil`` on ``argv`` (the process's own by default) and return its exit code.

    0 done, 1 failed or refused by the router, 2 bad input.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(arguments)
    except BrokenPipeError:
        # The reader left (``anvil ... | head``). Nothing may be flushed to it on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _main(argv: list[str]) -> int:
    if argv == ["--version"]:
        print(f"{PROGRAM} {version(DISTRIBUTION)}")
        return 0
    leaf, words = find(LEAVES, argv)
    rest = argv[len(words) :]
    label = " ".join(words) or PROGRAM
    if isinstance(leaf, Passthrough):
        return leaf.run(rest)
    if "--help" in rest or "-h" in rest:
        print(help_for(LEAVES, words) if leaf is None else Parser(leaf).format_help(), end="")
        return 0
    if leaf is None:
        hint = f"{' '.join((PROGRAM, *words))} --help lists them"
        outcome = refused("usage_command_unknown" if rest else "usage_command_missing", hint=hint)
    else:
        try:
            parsed = parse(leaf, rest)
        except UsageError as error:
            fault = error.fault
            outcome = refused(fault.code, option=fault.option, hint=fault.hint)
        else:
            outcome = _naming_scope(leaf, _run(lambda: leaf.run(parsed)))
    emit(label, outcome, as_json="--json" in rest, out=sys.stdout, err=sys.stderr)
    sys.stdout.flush()
    return outcome.exit_code


def _naming_scope(command: Command, outcome: Outcome) -> Outcome:
    """A key that lacks the scope is told which one the command needs."""
    if command.needs is None or outcome.errors != (Fault("forbidden"),):
        return outcome
    hint = f"this needs {command.needs}; who may configure can make one: anvil keys create"
    return replace(outcome, errors=(Fault("forbidden", hint=hint),), lines=())


def _run(handler: Callable[[], Outcome]) -> Outcome:
    """What ``handler`` came to. Whatever it raises ends in a fixed error: its text may hold an operand."""
    try:
        return handler()
    except RouterFault as fault:
        return refusal_of(fault)
    except KeyboardInterrupt:
        return failed("interrupted")
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - the last net: an exception's text must not reach the terminal
        tell_traceback()
        return failed("internal_error")
