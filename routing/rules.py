"""The rules that a configured value can be held to: exact types, bounds, grammars.

Each function below makes a ``Rule``: it takes a value as TOML gave it, returns the frozen value, or raises
``Invalid`` with a message that can follow the value's place. Types are exact (a boolean is no integer), and
numbers are finite. A message shows the offending value only where that is harmless: never a URL, never
what should have been the name of a secret, never what looks like one.
"""

import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from admission.identifiers import is_environment_name
from routing.documents import Invalid, Path, Rule, may_hold_secret

FrozenJSON: TypeAlias = str | int | float | bool | tuple["FrozenJSON", ...] | Mapping[str, "FrozenJSON"]
"""A JSON value without null, deeply frozen: lists are tuples, objects are MappingProxyType."""

MAX_JSON_DEPTH: Final = 16
"""How deeply tables and arrays may nest in free-form values."""

_SHOWN_CHARACTERS = 40
_INT64 = range(-(2**63), 2**63)

_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-f:.]{2,45}\]|[a-z0-9][a-z0-9._-]{0,252})"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[a-z0-9._~!$&'()*+,;=:@%-]*)*)",
    re.IGNORECASE | re.ASCII,
)
_MAX_URL_CHARACTERS = 2048
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL_PATH = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@-][A-Za-z0-9._~!$&'()*+,;=:@/-]{0,254})?")


def shown(value: object) -> str:
    """The end of a message that says what stood there instead, or nothing when that is not harmless."""
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    if isinstance(value, int):
        return f", not {value}" if value in _INT64 else ""
    if isinstance(value, float):
        return f", not {value!r}"
    if isinstance(value, str):
        if len(value) > _SHOWN_CHARACTERS or not value.isascii() or may_hold_secret(value):
            return ""
        return f", not {json.dumps(value)}"
    if isinstance(value, list | tuple):
        return ", not an array"
    return ", not a table" if isinstance(value, Mapping) else ", not a date or time"


def integer(low: int, high: int) -> Rule:
    """An integer from ``low`` to ``high``, both included."""

    def rule(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Invalid(f"must be an integer from {low} to {high}{shown(value)}")
        return value

    return rule


def number(high: int) -> Rule:
    """An integer or finite float over 0 and at most ``high``; returned as a float."""

    def rule(value: object) -> float:
        if (type(value) is not int and type(value) is not float) or not 0 < value <= high:
            raise Invalid(f"must be a number over 0 and at most {high}{shown(value)}")
        return float(value)

    return rule


def boolean(value: object) -> bool:
    """Exactly ``true`` or ``false``."""
    if type(value) is not bool:
        raise Invalid(f"must be true or false{shown(value)}")
    return value


def choice(*allowed: str | int) -> Rule:
    """One of ``allowed``, of the same exact type."""
    listed = " or ".join(json.dumps(word) for word in allowed)

    def rule(value: object) -> str | int:
        for word in allowed:
            if type(value) is type(word) and value == word:
                return word
        raise Invalid(f"must be {listed}{shown(value)}")

    return rule


def text(limit: int) -> Rule:
    """A string of 1 to ``limit`` printable characters that neither begins nor ends with white space."""

    def rule(value: object) -> str:
        if type(value) is not str:
            raise Invalid(f"must be a string{shown(value)}")
        if not 1 <= len(value) <= limit or not value.isprintable() or value != value.strip():
            raise Invalid(f"must be 1 to {limit} printable characters without white space around them")
        return value

    return rule


def named(predicate: Callable[[object], bool], grammar: str) -> Rule:
    """A string that ``predicate`` accepts; ``grammar`` says in words what that is."""

    def rule(value: object) -> str:
        if type(value) is not str or not predicate(value):
            raise Invalid(f"must be {grammar}{shown(value)}")
        return value

    return rule


def environment_name(value: object) -> str:
    """The name of an environment variable. What is refused is never shown: it may be the secret itself."""
    if not is_environment_name(value):
        raise Invalid("must be the name of an environment variable (A-Z, 0-9 and _), never a secret itself")
    return value


def url(value: object) -> str:
    """An http or https URL with a host, and with no user, query, fragment or dot segment; kept as written.

    What is refused is never shown: it may hold a password.
    """
    if type(value) is not str or _url_parts(value) is None:
        raise Invalid("must be an http or https URL with a host and without user, query or fragment")
    return value


def normalise_url(value: str) -> str:
    """The form in which two accepted URLs are compared: scheme and host in lower case, no default port, no
    slash at the end. Nothing is resolved. Raises ValueError for what ``url`` refuses.
    """
    parts = _url_parts(value)
    if parts is None:
        raise ValueError("not an accepted URL")
    scheme, host, port, path = parts
    authority = host if port == _DEFAULT_PORTS[scheme] else f"{host}:{port}"
    return f"{scheme}://{authority}{path.rstrip('/')}"


def _url_parts(value: str) -> tuple[str, str, int, str] | None:
    """Scheme, host, port and path of an accepted URL; the first two in lower case."""
    match = _URL.fullmatch(value) if len(value) <= _MAX_URL_CHARACTERS else None
    if match is None:
        return None
    scheme, host, path = match["scheme"].lower(), match["host"].lower(), match["path"]
    port = _DEFAULT_PORTS[scheme] if match["port"] is None else int(match["port"])
    if not 1 <= port <= 65_535 or any(segment in {".", ".."} for segment in path.split("/")):
        return None
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return None
    return scheme, host, port, path


def url_path(value: object) -> str:
    """The absolute path of a URL: no scheme, host, query, fragment, escape or ``..``; 1 to 256 characters."""
    if type(value) is not str or _URL_PATH.fullmatch(value) is None or ".." in value or "://" in value:
        raise Invalid(
            "must be a path from / on (256 characters), without scheme, query, fragment, .. or escape"
        )
    return value


def words(item: Rule, *, limit: int) -> Rule:
    """An array of at most ``limit`` different strings that ``item`` accepts; returned as a tuple."""

    def rule(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise Invalid(f"must be an array of strings{shown(value)}")
        if len(value) > limit:
            raise Invalid(f"must hold at most {limit} entries, not {len(value)}")
        accepted: list[object] = []
        problems: list[tuple[Path, str]] = []
        for number_, entry in enumerate(value):
            try:
                word = item(entry)
            except Invalid as error:
                problems.extend(((number_, *below), message) for below, message in error.problems)
                continue
            if word in accepted:
                problems.append(((number_,), "is listed twice"))
            accepted.append(word)
        if problems:
            raise Invalid(problems=problems)
        return tuple(accepted)

    return rule


def closed_table(rules: Mapping[str, Rule]) -> Rule:
    """A table with no other keys than those of ``rules``, all optional; returned frozen."""

    def rule(value: object) -> Mapping[str, object]:
        if not isinstance(value, Mapping):
            raise Invalid(f"must be a table{shown(value)}")
        accepted: dict[str, object] = {}
        problems: list[tuple[Path, str]] = []
        for key, entry in value.items():
            if key not in rules:
                problems.append(((key,), "is not a known key"))
                continue
            try:
                accepted[key] = rules[key](entry)
            except Invalid as error:
                problems.extend(((key, *below), message) for below, message in error.problems)
        if problems:
            raise Invalid(problems=problems)
        return MappingProxyType(accepted)

    return rule


def json_table(reserved: Iterable[str] = ()) -> Rule:
    """A table of any JSON values without null, none of its own keys in ``reserved``; returned deeply frozen.

    Integers have 64 bits, floats are finite, nesting ends at ``MAX_JSON_DEPTH``; dates and times are refused.
    """
    refused_keys = frozenset(reserved)

    def rule(value: object) -> Mapping[str, FrozenJSON]:
        if not isinstance(value, Mapping):
            raise Invalid(f"must be a table{shown(value)}")
        problems: list[tuple[Path, str]] = [
            ((key,), "is the router's own to set") for key in value if key in refused_keys
        ]
        frozen = {key: _freeze(entry, (key,), problems) for key, entry in value.items()}
        if problems:
            raise Invalid(problems=problems)
        return MappingProxyType(frozen)

    return rule


def _freeze(value: object, path: Path, problems: list[tuple[Path, str]]) -> FrozenJSON:
    """``value`` frozen; what JSON can't carry is recorded and stands as an empty string."""
    if type(value) is str or type(value) is bool:
        return value
    if type(value) is int:
        if value in _INT64:
            return value
        problems.append((path, "must be an integer of at most 64 bits"))
    elif type(value) is float:
        if math.isfinite(value):
            return value
        problems.append((path, f"must be finite{shown(value)}"))
    elif not isinstance(value, list | dict):
        problems.append((path, "must not be a date or time, which JSON does not have"))
    elif len(path) > MAX_JSON_DEPTH:
        problems.append((path, f"is nested more than {MAX_JSON_DEPTH} levels deep"))
    elif isinstance(value, list):
        return tuple(_freeze(entry, (*path, n), problems) for n, entry in enumerate(value))
    else:
        return MappingProxyType({key: _freeze(entry, (*path, key), problems) for key, entry in value.items()})
    return ""


def thaw(value: object) -> object:
    """A frozen JSON value as plain dicts and lists, all new: fit for a serialiser, and free to change."""
    if isinstance(value, Mapping):
        return {key: thaw(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [thaw(entry) for entry in value]
    return value
