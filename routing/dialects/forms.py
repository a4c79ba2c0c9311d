"""``multipart/form-data`` bodies: where each part of a caller's lies, and how one of our own is written.

A caller's body goes on byte for byte; `Form.with_field` replaces the value of one field in it, or adds one.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from routing.dialects.base import RequestError
from routing.dialects.fields import bad_body

# The parser logs bytes of what it refuses, which are the caller's.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

MEDIA_TYPE: Final = "multipart/form-data"

MAX_PARTS: Final = 128
"""Bound of the parts of one body."""

# The characters that RFC 2046 allows, and twice the length.
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,139}[0-9A-Za-z'()+_,./:=?-]")
_TOKEN = re.compile(r"[0-9A-Za-z'+_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part: its field's name, and where in the body its value lies (at 0 when it is empty)."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form's exact bytes, and its parts in their order."""

    body: bytes = field(repr=False)
    boundary: str
    parts: tuple[Part, ...]

    @property
    def content_type(self) -> str:
        """The media type that announces the body."""
        return content_type(self.boundary)

    def named(self, name: str) -> list[Part]:
        """The parts of one field."""
        return [part for part in self.parts if part.name == name]

    def value(self, part: Part) -> bytes:
        """What ``part`` holds."""
        return self.body[part.start : part.end]

    def with_field(self, name: str, value: bytes) -> bytes:
        """The body with ``value`` in the field ``name``: in place of what its first part holds (not nothing),
        or in a new first part."""
        for part in self.named(name):
            return self.body[: part.start] + value + self.body[part.end :]
        # A preamble, if there is one, stays in front.
        first = self.body.index(b"--" + self.boundary.encode("ascii"))
        added = _written(Field(name=name, value=value), self.boundary)
        return self.body[:first] + added + self.body[first:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field to write: ``name`` and ``filename`` hold no quotes, backslashes or line ends."""

    name: str
    value: bytes = field(repr=False)
    filename: str | None = None
    content_type: str | None = None


def parse_form(body: bytes, header: str) -> Form:
    """The parts of ``body`` under the content type ``header``. Raises `RequestError`."""
    boundary = _boundary(header)
    reader = _Reader()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": reader.begin,
            "on_header_field": reader.add_name,
            "on_header_value": reader.add_value,
            "on_header_end": reader.end_header,
            "on_headers_finished": reader.end_headers,
            "on_part_data": reader.data,
            "on_part_end": reader.end,
            "on_end": reader.finish,
        },
    )
    try:
        parser.write(body)
    except FormParserError:
        raise _malformed() from None
    if not reader.finished:
        raise _malformed()
    return Form(body=body, boundary=boundary, parts=tuple(reader.parts))


def write_form(fields: Sequence[Field]) -> tuple[bytes, str]:
    """A body of ``fields`` in their order, and its content type."""
    boundary = _unused_boundary(fields)
    body = b"".join(_written(one, boundary) for one in fields) + b"--%b--\r\n" % boundary.encode("ascii")
    return body, content_type(boundary)


def content_type(boundary: str) -> str:
    """The header's value for a body with ``boundary``."""
    shown = boundary if _TOKEN.fullmatch(boundary) else f'"{boundary}"'
    return f"{MEDIA_TYPE}; boundary={shown}"


def _unused_boundary(fields: Sequence[Field]) -> str:
    boundary, number = "anvil-form", 0
    while any(boundary.encode("ascii") in one.value for one in fields):
        number += 1
        boundary = f"anvil-form-{number}"
    return boundary


def _written(one: Field, boundary: str) -> bytes:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{one.name}"'
    if one.filename is not None:
        head += f'; filename="{one.filename}"'
    if one.content_type is not None:
        head += f"\r\nContent-Type: {one.content_type}"
    return head.encode("utf-8") + b"\r\n\r\n" + one.value + b"\r\n"


def _boundary(header: str) -> str:
    _, options = parse_options_header(header)
    boundary = options.get(b"boundary", b"").decode("latin-1")
    if _BOUNDARY.fullmatch(boundary) is None:
        raise _malformed()
    return boundary


def _malformed() -> RequestError:
    return bad_body("malformed_form", "The request body is not valid multipart/form-data.")


class _Reader:
    """Takes what the parser finds in a body that it is given at once: every place is one in that body."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.finished = False
        self.begin()

    def begin(self) -> None:
        self._field = self._value = self._disposition = b""
        self._start = self._end = 0

    def add_name(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def end_headers(self) -> None:
        if len(self.parts) == MAX_PARTS:
            raise _malformed()

    def data(self, data: bytes, start: int, end: int) -> None:
        self._start, self._end = start, end

    def end(self) -> None:
        _, options = parse_options_header(self._disposition)
        try:
            name = options[b"name"].decode()
        except (KeyError, UnicodeDecodeError):
            raise _malformed() from None
        self.parts.append(Part(name=name, start=self._start, end=self._end))

    def finish(self) -> None:
        self.finished = True
