"""How a command is declared: its words, its options, and the form of each option's value.

Parsers, help, the manifest and its test are all made from these declarations.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from admission import identifiers
from routing.document_faults import DOCUMENTS

from .outcome import Outcome

T = TypeVar("T")
Value: TypeAlias = str | int | float | Path | tuple[str, ...] | datetime

Reach: TypeAlias = Literal["offline", "router", "router-or-offline", "process"]
"""What a command touches: files only; the router over REST; the router, or the data directory when no router
runs; or it turns into another process."""

Scope: TypeAlias = Literal["infer", "observe", "operate", "configure"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
MAX_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an option's value. ``read`` raises ValueError, whose text is never shown."""

    metavar: str
    rule: str
    read: Callable[[str], Value]


def _matching(predicate: Callable[[object], bool]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not predicate(text):
            raise ValueError
        return text

    return read


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError
    return Path(text)


def _alias(text: str) -> str:
    alias = identifiers.normalise_alias(text)
    if not identifiers.is_alias(alias):
        raise ValueError
    return alias


def _seconds(text: str) -> float:
    value = float(text)
    if not (text.isascii() and math.isfinite(value) and 0 < value <= MAX_SECONDS):
        raise ValueError
    return value


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        # int() alone takes blanks, signs, underscores and other scripts' digits, and is slow on long ones.
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
            raise ValueError
        return int(text)

    return read


def _scopes(text: str) -> tuple[str, ...]:
    words = text.split(",")
    if len(set(words)) != len(words) or not set(words) <= set(SCOPES):
        raise ValueError
    return tuple(word for word in SCOPES if word in words)


def _instant(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


PATH: Final = Form("PATH", "a file", _path)
ID: Final = Form("ID", "a letter, then up to 63 letters, digits, _ or -", _matching(identifiers.is_safe_id))
REASON: Final = Form("CODE", "1 to 128 letters, digits, ., _ or -", _matching(identifiers.is_reason_code))
ALIAS: Final = Form("ALIAS", "a configured model alias", _alias)
SECONDS: Final = Form("S", "seconds, over 0 and at most 3600", _seconds)
LIMIT: Final = Form("N", "1 to 500", _whole(1, 500))
CEILING: Final = Form("N", "1 to 100000", _whole(1, 100_000))
PORT: Final = Form("N", "1 to 65535", _whole(1, 65_535))
NUMBER: Final = Form("N", "the number that the list shows", _whole(1, 2**31 - 1))
NAME: Final = Form(
    "NAME",
    "1 to 100 letters, digits, blanks, _ . + or -",
    _matching(partial(identifiers.is_plain_name, limit=100)),
)
KEY_SCOPES: Final = Form("LIST", f"one or more of {','.join(SCOPES)}", _scopes)
DOCUMENT: Final = Form("WHICH", "config, topology or overlay", _matching(lambda text: text in DOCUMENTS))
INSTANT: Final = Form("TIME", "an ISO 8601 date or time, UTC when it names no zone", _instant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """``--name VALUE``, or a flag when it has no form. No option may be given twice."""

    name: str
    help: str
    form: Form | None = None
    required: bool = False
    excludes: str | None = None


JSON: Final = Option(name="json", help="print one JSON envelope")
CONFIRM: Final = Option(name="confirm", help="do it; without this the command previews")


class Arguments:
    """The checked values of one command line, by option name."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value | bool]) -> None:
        self._values = dict(values)

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def text(self, name: str) -> str | None:
        return self._of(str, name)

    def path(self, name: str) -> Path | None:
        return self._of(Path, name)

    def whole(self, name: str) -> int | None:
        return self._of(int, name)

    def seconds(self, name: str) -> float | None:
        return self._of(float, name)

    def words(self, name: str) -> tuple[str, ...] | None:
        return self._of(tuple, name)

    def instant(self, name: str) -> datetime | None:
        return self._of(datetime, name)

    def required(self, name: str) -> str:
        """The text of an option that the declaration requires."""
        value = self.text(name)
        assert value is not None
        return value

    def required_path(self, name: str) -> Path:
        value = self.path(name)
        assert value is not None
        return value

    def _of(self, kind: type[T], name: str) -> T | None:
        value = self._values.get(name)
        assert value is None or isinstance(value, kind)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One leaf of the command line. ``run`` gets checked arguments only.

    Commands that ``mutate`` preview unless ``--confirm`` is given. ``needs`` is the scope of the key with
    which the router is asked, None where it is not.
    """

    words: tuple[str, ...]
    summary: str
    reach: Reach
    run: Callable[[Arguments], Outcome]
    options: tuple[Option, ...] = ()
    mutates: bool = False
    needs: Scope | None = None

    @property
    def label(self) -> str:
        return " ".join(self.words)

    @property
    def all_options(self) -> tuple[Option, ...]:
        """The declared options, and those that every command of its kind has."""
        return (*self.options, *((CONFIRM,) if self.mutates else ()), JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passthrough:
    """A leaf whose arguments, unread, go to another program's parser; ``run`` returns its exit code."""

    words: tuple[str, ...]
    summary: str
    reach: Reach
    run: Callable[[list[str]], int]

    @property
    def label(self) -> str:
        return " ".join(self.words)


Leaf: TypeAlias = Command | Passthrough
