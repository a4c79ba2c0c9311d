"""What each tool does: check its arguments, then run the command line's own verb with its request function.

A tool's answer is the verb's envelope. Arguments that are not of the closed schema are refused here, before
anything is sent; what the router refuses comes back with its fixed code. Neither repeats an argument.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from admission import identifiers
from anvil_site.cli import readers, transitions
from anvil_site.cli.outcome import (
    BAD_INPUT,
    Json,
    Outcome,
    RouterFault,
    envelope,
    failed,
    refusal_of,
    tell_traceback,
)
from anvil_site.cli.spec import ALIAS, MAX_SECONDS, Arguments, Value

Given = Mapping[str, object]
Check = Callable[[object], "Value | bool"]
"""An argument's value in the form that commands take. Raises ValueError."""

MESSAGES: Final[Mapping[str, str]] = {
    "argument_unknown": "an argument is not one of the tool's",
    "argument_missing": "an argument is missing",
    "argument_invalid": "an argument is not of its form",
}


class ArgumentError(ValueError):
    """The arguments are refused; ``name`` is one of the tool's own, None for one that is not."""

    def __init__(self, code: str, name: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.name = name

    def as_json(self) -> dict[str, Json]:
        text = MESSAGES[self.code]
        return {"code": self.code, "message": text if self.name is None else f"{text}: {self.name}"}


@dataclass(frozen=True, slots=True)
class Result:
    """A tool's answer: an envelope, and whether it tells of an error."""

    envelope: Mapping[str, Json]
    is_error: bool


def call_tool(name: str, given: Given) -> Result:
    """Run the tool ``name``; never raises but KeyError for a name that is none."""
    tool = _TOOLS[name]
    try:
        arguments = _checked(tool.checks, given)
        outcome = tool.run(arguments)
    except ArgumentError as error:
        refused = envelope(name, Outcome(exit_code=BAD_INPUT))
        return Result({**refused, "errors": [error.as_json()]}, is_error=True)
    except RouterFault as fault:
        outcome = refusal_of(fault)
    except Exception:  # noqa: BLE001 - the last net: an exception's text must not reach the client
        tell_traceback()
        outcome = failed("internal_error")
    return Result(envelope(name, outcome), is_error=not outcome.ok)


def _matching(predicate: Callable[[object], bool]) -> Check:
    def check(value: object) -> str:
        if type(value) is not str or not predicate(value):
            raise ValueError
        return value

    return check


def _alias(value: object) -> Value:
    if type(value) is not str or value != value.strip():
        raise ValueError
    return ALIAS.read(value)


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _seconds(value: object) -> float:
    # NaN fails both comparisons; a bool is no number here.
    if (type(value) is not int and type(value) is not float) or not 0 < value <= MAX_SECONDS:
        raise ValueError
    return float(value)


def _limit(value: object) -> int:
    if type(value) is not int or not 1 <= value <= readers.MAX_DECISIONS:
        raise ValueError
    return value


def _checked(checks: Mapping[str, Check], given: Given) -> dict[str, Value | bool]:
    """The arguments, each of its form. A null is a value like any other, and of no form."""
    if given.keys() - checks.keys():
        raise ArgumentError("argument_unknown")
    values: dict[str, Value | bool] = {}
    for name, check in checks.items():
        if name in given:
            try:
                values[name] = check(given[name])
            except (ValueError, OverflowError):
                raise ArgumentError("argument_invalid", name) from None
    return values


_ACTIONS: Final[Mapping[str, Callable[[Arguments], Outcome]]] = {
    "status": transitions.status,
    "quiesce": transitions.quiesce,
    "drain": transitions.drain,
    "readmit": transitions.readmit,
}


def _transition(values: dict[str, Value | bool]) -> Outcome:
    """The command of the action. It previews unless ``confirm`` is given and ``dry_run`` is not."""
    action = _required(values, "action")
    if "tier" not in values and ("member" in values or action != "status"):
        raise ArgumentError("argument_missing", "tier")
    dry_run = values.pop("dry_run", False)
    values["confirm"] = values.get("confirm") is True and not dry_run
    return _ACTIONS[action](Arguments({name: value for name, value in values.items() if name != "action"}))


def _explain(values: dict[str, Value | bool]) -> Outcome:
    _required(values, "model")
    return readers.explain(Arguments(values))


def _required(values: Mapping[str, Value | bool], name: str) -> str:
    value = values.get(name)
    if type(value) is not str:
        raise ArgumentError("argument_missing", name)
    return value


@dataclass(frozen=True, slots=True)
class _Tool:
    checks: Mapping[str, Check]
    run: Callable[[dict[str, Value | bool]], Outcome]


_TOOLS: Final[Mapping[str, _Tool]] = {
    "router_transition": _Tool(
        {
            "action": _matching(lambda value: value in _ACTIONS),
            "tier": _matching(identifiers.is_safe_id),
            "member": _matching(identifiers.is_safe_id),
            "reason": _matching(identifiers.is_reason_code),
            "timeout": _seconds,
            "confirm": _flag,
            "dry_run": _flag,
        },
        _transition,
    ),
    "router_status": _Tool({}, lambda values: readers.status(Arguments(values))),
    "router_capacity": _Tool({"model": _alias}, lambda values: readers.capacity(Arguments(values))),
    "router_decisions": _Tool({"limit": _limit}, lambda values: readers.decisions(Arguments(values))),
    "router_explain": _Tool({"model": _alias}, _explain),
}

NAMES: Final = tuple(_TOOLS)
