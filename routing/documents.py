"""Reading a TOML document strictly: every fault of it, each with its place, in document order.

    DocumentError(ValueError)
    +-- config.ConfigError
    +-- topology.TopologyError

The router configuration and the topology are read with the tools of this module. Nothing here knows
either grammar. Faults are written for the document's owner, offline: they name keys, bounds and harmless
values. They are never shown to a caller of the router (``snapshot`` has the fixed codes for that).
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from admission.identifiers import is_secret_shaped

MAX_DOCUMENT_BYTES: Final = 1_048_576
"""The largest document that is decoded, in bytes (1 MiB)."""

MAX_KEY_PARTS: Final = 64
"""Dotted parts that one key may have: the TOML parser's time grows with the square of them."""

Path: TypeAlias = tuple[str | int, ...]
"""Where something is in a document: table keys and list indexes from the root."""

Rule: TypeAlias = Callable[[object], object]
"""Takes a configured value, returns its frozen form, or raises ``Invalid``."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN_KEY_CHARACTERS = 64
_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
_QUOTED_KEYS = re.compile(r""" \(['"].*\)(?=\ )| ['"].*['"](?=\ \()""", re.DOTALL)
_TOO_MANY_KEY_PARTS = re.compile(r"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*)" + f"{{{MAX_KEY_PARTS}}}")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a document: ``path`` as in ``router.tiers[1].id``, and what is wrong there.

    ``place`` is the same path in parts, within the document called ``name`` where several stand side by side.
    """

    path: str
    message: str
    place: Path = field(default=(), compare=False, repr=False)
    name: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class DocumentError(ValueError):
    """A document was refused. ``faults`` holds all that is wrong with it, in document order, at least one."""

    faults: tuple[Fault, ...]

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class Invalid(ValueError):
    """A value breaks its rule: one message, or several with places below the value."""

    problems: tuple[tuple[Path, str], ...]

    def __init__(self, message: str = "", *, problems: Iterable[tuple[Path, str]] = ()) -> None:
        self.problems = (((), message), *problems) if message else tuple(problems)
        super().__init__("; ".join(text for _, text in self.problems))


def read_bounded(source: str | os.PathLike[str] | int) -> bytes:
    """Read a file, or an open descriptor, once, and at most one byte beyond ``MAX_DOCUMENT_BYTES``.

    The extra byte is what makes the parser refuse the document, without reading the rest of it.
    A descriptor stays open. Raises OSError.
    """
    chunks: list[bytes] = []
    left = MAX_DOCUMENT_BYTES + 1
    with open(source, "rb", buffering=0, closefd=not isinstance(source, int)) as file:
        while left > 0:
            chunk = file.read(left)
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
    return b"".join(chunks)


def load_toml(data: bytes) -> dict[str, object] | Fault:
    """Decode and parse a whole document; what can't be parsed is exactly one fault.

    The size is looked at before anything is decoded.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        return Fault("document", f"is larger than {MAX_DOCUMENT_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return Fault("document", "is not UTF-8")
    if _TOO_MANY_KEY_PARTS.search(_STRINGS_AND_COMMENTS.sub("s", text)):
        return Fault("document", f"has a key of more than {MAX_KEY_PARTS} dotted parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Its text is fixed words and a position, but for the keys that it may quote.
        return Fault("document", f"is not valid TOML: {_QUOTED_KEYS.sub(' …', str(error))}")
    except RecursionError:
        return Fault("document", "is nested too deeply")
    except ValueError:
        # The interpreter refuses to convert an integer of thousands of digits.
        return Fault("document", "is not valid TOML: a number has too many digits")


def may_hold_secret(value: str) -> bool:
    """Whether a string must not be shown: shaped like a secret, or like a URL or address with a user."""
    return "@" in value or is_secret_shaped(value)


def render_path(path: Path) -> str:
    """``router.tiers[1].id``; keys that are not bare are quoted, long ones cut, and the root is ``document``.

    A key that may hold a secret is ``<hidden>``.
    """
    if not path:
        return "document"
    rendered = ""
    for part in path:
        if isinstance(part, int):
            rendered += f"[{part}]"
            continue
        key = part if _BARE_KEY.fullmatch(part) else json.dumps(part[:_SHOWN_KEY_CHARACTERS])
        if may_hold_secret(part):
            key = "<hidden>"
        rendered += f".{key}" if rendered else key
    return rendered


class Faults:
    """Collects the faults of one parsed document and gives them back in its order.

    A key's place is where the document first mentions it. A missing key has its table's place, before what
    the table holds; faults of one place keep the order in which they were found. ``name`` goes before every
    path of a document that stands beside another.
    """

    def __init__(self, document: Mapping[str, object], *, name: str = "") -> None:
        self._document = document
        self._name: Path = (name,) if name else ()
        self._found: list[tuple[tuple[int, ...], Path, str]] = []
        self._indexes: dict[int, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, path: Path, message: str) -> None:
        self._found.append((self._position(path), path, message))

    def render(self, path: Path) -> str:
        return render_path((*self._name, *path))

    def in_order(self) -> tuple[Fault, ...]:
        found = sorted(self._found, key=lambda entry: entry[0])
        name = "".join(map(str, self._name))
        return tuple(Fault(self.render(path), message, path, name) for _, path, message in found)

    def _position(self, path: Path) -> tuple[int, ...]:
        position: list[int] = []
        node: object = self._document
        for part in path:
            if isinstance(node, list) and isinstance(part, int):
                position.append(part)
                node = node[part]
            elif isinstance(node, Mapping) and part in node:
                position.append(self._index(node)[str(part)])
                node = node[part]
            else:
                position.append(-1)
                break
        return tuple(position)

    def _index(self, table: Mapping[str, object]) -> dict[str, int]:
        # Kept per table: looking a key up by counting would be quadratic in a document full of faults.
        index = self._indexes.get(id(table))
        if index is None:
            index = {key: number for number, key in enumerate(table)}
            self._indexes[id(table)] = index
        return index


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What one table may hold: ``rules`` by key, and ``nested`` keys that hold tables read on their own.

    An ``open`` table may hold any key; its keys are names that the document itself gives.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    open: bool = False


class Table:
    """One table of a document: what is written in it (``raw``) and what of that is valid (``values``).

    Reading it records unknown keys, broken rules and missing keys; it never raises. ``is_table`` is False
    when something else stood in its place. ``values`` feeds the keyword arguments of the dataclass that
    the grammar describes, hence its ``Any``.
    """

    raw: Mapping[str, object]
    values: dict[str, Any]
    is_table: bool

    def __init__(self, faults: Faults, path: Path, raw: object, grammar: Grammar) -> None:
        self.path = path
        self.faults = faults
        self.values = {}
        self.is_table = isinstance(raw, Mapping)
        if not isinstance(raw, Mapping):
            faults.add(path, "must be a table")
            self.raw = {}
            return
        self.raw = raw
        for key in grammar.required:
            if key not in raw:
                self.refuse(key, "is required")
        for key, value in raw.items():
            rule = grammar.rules.get(key)
            if rule is not None:
                self._apply(rule, key, value)
            elif key not in grammar.nested and not grammar.open:
                self.refuse(key, "is not a known key")

    def _apply(self, rule: Rule, key: str, value: object) -> None:
        try:
            self.values[key] = rule(value)
        except Invalid as error:
            for below, message in error.problems:
                self.faults.add((*self.path, key, *below), message)

    def __contains__(self, key: str) -> bool:
        """Whether the document configures ``key`` here, be it with an empty or an invalid value."""
        return key in self.raw

    def at(self, key: str) -> Path:
        return (*self.path, key)

    def place(self, key: str | None = None) -> str:
        """The rendered path of this table, or of ``key`` in it."""
        return self.faults.render(self.path if key is None else self.at(key))

    def refuse(self, key: str, message: str) -> None:
        self.faults.add(self.at(key), message)

    def table(self, key: str, grammar: Grammar) -> "Table":
        """The nested table ``key``; an empty one, without any fault, when it is not configured."""
        if key not in self.raw:
            return Table(self.faults, self.at(key), {}, Grammar())
        return Table(self.faults, self.at(key), self.raw[key], grammar)

    def tables(self, key: str, grammar: Grammar) -> list["Table"]:
        """The tables of the array ``key``, in document order; none when it is not configured."""
        if key not in self.raw:
            return []
        entries = self.raw[key]
        if not isinstance(entries, list):
            self.refuse(key, "must be an array of tables")
            return []
        return [Table(self.faults, (*self.path, key, n), entry, grammar) for n, entry in enumerate(entries)]


def check_unique(tables: Collection[Table], key: str, *, form: Callable[[Any], object] | None = None) -> None:
    """Record each table whose valid ``key`` an earlier one has already; ``form`` is what is compared."""
    seen: dict[object, Table] = {}
    for table in tables:
        if key not in table.values:
            continue
        value = table.values[key] if form is None else form(table.values[key])
        first = seen.setdefault(value, table)
        if first is not table:
            table.refuse(key, f"is the same as {first.place(key)}")
