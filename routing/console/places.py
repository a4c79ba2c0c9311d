"""Where in a TOML text a fault is: the line of its path, as near as the text's own layout tells.

Python's parser keeps no positions. This reads headings and keys line by line and nothing of the values, so a
place inside an inline table is told as the line on which the table begins.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from routing.documents import Path, render_path

_KEY: Final = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*')"""
_KEYS: Final = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_ONE_KEY: Final = re.compile(_KEY)
_LIST_HEADING: Final = re.compile(rf"\s*\[\[\s*({_KEYS})\s*\]\]")
_HEADING: Final = re.compile(rf"\s*\[\s*({_KEYS})\s*\]")
_ASSIGNMENT: Final = re.compile(rf"\s*({_KEYS})\s*=")
_OPAQUE: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|(?P<left_open>"""|\'\'\').*|"(?:\\.|[^"\\])*"|\'[^\']*\'|#.*'
)
"""Strings and comments of one line; the last string may go on in the next one."""
_STATED: Final = re.compile(r"\(at line (\d+), column \d+\)")
_LAST_PART: Final = re.compile(r"""(?:\[\d+\]|(?:^|\.)(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|<hidden>))$""")


def line_of(places: Mapping[str, int], path: str, message: str) -> int | None:
    """The line of a fault, or of the nearest thing around it; None when nothing of its path is there.

    ``places`` are those of `read_places`. A fault of the syntax says its line itself.
    """
    if stated := _STATED.search(message):
        return int(stated[1])
    while path:
        if path in places:
            return places[path]
        shorter = _LAST_PART.sub("", path)
        if shorter == path:
            return None
        path = shorter
    return None


def read_places(text: str) -> dict[str, int]:
    """The line, from 1 on, at which each heading and key of a TOML text stands, by its rendered path.

    Text that is not TOML gives some places or none, never an error.
    """
    places: dict[str, int] = {}
    lengths: dict[Path, int] = {}
    table: Path = ()
    listed: Path = ()
    depth, until = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        rest = line
        if until:
            _, end, rest = line.partition(until)
            if not end:
                continue
            until = ""
        elif depth == 0:
            if heading := _LIST_HEADING.match(line):
                name = _resolve(_parts(heading[1]), lengths)
                index = lengths.get(name, 0)
                lengths[name] = index + 1
                table = (*name, index)
                places.setdefault(render_path(name), number)
                places.setdefault(render_path(table), number)
                continue
            if heading := _HEADING.match(line):
                table = _resolve(_parts(heading[1]), lengths)
                places.setdefault(render_path(table), number)
                continue
            if assignment := _ASSIGNMENT.match(line):
                place: Path = table
                for part in _parts(assignment[1]):
                    place = (*place, part)
                    places.setdefault(render_path(place), number)
                listed = (*place, 0)
                rest = line[assignment.end() :]
        elif depth == 1 and listed and line.lstrip().startswith("{"):
            # An entry of a list of inline tables, each on a line of its own.
            places.setdefault(render_path(listed), number)
            listed = (*listed[:-1], int(listed[-1]) + 1)
        for opaque in _OPAQUE.finditer(rest):
            until = opaque["left_open"] or until
        rest = _OPAQUE.sub("", rest)
        opened, closed = (sum(rest.count(mark) for mark in marks) for marks in ("[{", "]}"))
        depth = max(0, depth + opened - closed)
    return places


def _parts(keys: str) -> Path:
    return tuple(_plain(part) for part in _ONE_KEY.findall(keys))


def _plain(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    if key.startswith('"'):
        try:
            return str(json.loads(key))
        except ValueError:
            return key[1:-1]
    return key


def _resolve(name: Path, lengths: Mapping[Path, int]) -> Path:
    """``name`` with the index of the last entry behind each list of tables on the way."""
    resolved: Path = ()
    for position, part in enumerate(name):
        resolved = (*resolved, part)
        if resolved in lengths and position < len(name) - 1:
            resolved = (*resolved, lengths[resolved] - 1)
    return resolved
