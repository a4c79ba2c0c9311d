"""Where in a TOML document something stands: the line of each key, table and array entry.

The standard library's parser keeps no positions. This reads a document that it has accepted once more, for
the keys alone, so it may take every rule of TOML as kept; what it does not find has the line of what is
around it.
"""

import re
import tomllib
from bisect import bisect_right
from typing import Final

from routing.documents import Path

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_STRING: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}(?!")|\'\'\'.*?\'{3,5}(?!\')|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'', re.DOTALL
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\n]*")


class Lines:
    """The lines of one document, from 1; of a text that is not TOML it knows the first alone."""

    def __init__(self, data: bytes) -> None:
        self._text = data.decode("utf-8", errors="replace")
        self._at = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", self._text))]
        self._found: dict[Path, int] = {(): 1}
        self._entries: dict[Path, int] = {}
        try:
            self._read()
        except (IndexError, ValueError, RecursionError):
            # Whatever was found until here has its right line.
            return

    def of(self, place: Path) -> int:
        """The line of ``place``, or of the nearest thing around it that stands in the document."""
        while place not in self._found:
            place = place[:-1]
        return self._found[place]

    def _read(self) -> None:
        table: Path = ()
        while self._skip(_BLANK) < len(self._text):
            start = self._at
            if self._text[start] != "[":
                self._pair(table)
                continue
            is_entry = self._text.startswith("[[", start)
            self._at += 2 if is_entry else 1
            keys = self._keys()
            self._at += 2 if is_entry else 1
            table = self._inside(keys[:-1])
            if is_entry:
                array = (*table, keys[-1])
                self._note(array, start)
                number = self._entries.get(array, -1) + 1
                self._entries[array] = number
                table = (*array, number)
            else:
                table = self._inside(keys)
            self._note(table, start)

    def _inside(self, keys: tuple[str, ...]) -> Path:
        """The place that keys of a header name: within an array of tables, its last entry."""
        place: Path = ()
        for key in keys:
            place = (*place, key)
            if place in self._entries:
                place = (*place, self._entries[place])
        return place

    def _pair(self, table: Path) -> None:
        start = self._at
        place = table
        for key in self._keys():
            place = (*place, key)
            self._note(place, start)
        # The equals sign.
        self._at += 1
        self._skip(_SPACE)
        self._value(place)

    def _value(self, place: Path) -> None:
        opening = self._text[self._at]
        if match := _STRING.match(self._text, self._at):
            self._at = match.end()
        elif opening in "[{":
            self._at += 1
            number = 0
            while self._text[self._skip(_BLANK)] not in "]}":
                if opening == "[":
                    self._note((*place, number), self._at)
                    self._value((*place, number))
                    number += 1
                else:
                    self._pair(place)
                if self._text[self._skip(_BLANK)] == ",":
                    self._at += 1
            self._at += 1
        else:
            self._skip(_SCALAR)

    def _keys(self) -> tuple[str, ...]:
        """A dotted key, up to what follows it."""
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            if bare := _BARE.match(self._text, self._at):
                keys.append(bare[0])
                self._at = bare.end()
            elif quoted := _STRING.match(self._text, self._at):
                keys.append(str(tomllib.loads(f"key = {quoted[0]}")["key"]))
                self._at = quoted.end()
            else:
                raise ValueError("not a key")
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return tuple(keys)
            self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> int:
        """Go on behind what ``pattern`` takes here, be it nothing; where that is."""
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._at

    def _note(self, place: Path, at: int) -> None:
        """The first mention counts."""
        for length in range(len(place), 0, -1):
            if place[:length] in self._found:
                break
            self._found[place[:length]] = bisect_right(self._starts, at)
