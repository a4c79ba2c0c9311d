"""A caller's document read value by value, for translation.

Each value knows its place, so that a fault is told by the field's path (``messages[2].content[0].source``).
An object remembers which of its fields were read: `Fields.finish` refuses the rest, since what a translation
does not know it cannot carry, and nothing is dropped in silence.
"""

import json
import math
from typing import Final, NoReturn, Self

import msgspec
from msgspec import Raw

from routing.dialects.base import Failure, RequestError
from routing.dialects.fields import UNREADABLE, bad_body, bad_field

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def decode_json(data: bytes | str) -> object:
    """The value of a JSON text. Unlike the JSON library it takes half a surrogate pair (see `surrogates`).

    Raises one of `fields.UNREADABLE`.
    """
    try:
        return _decode(data)
    except msgspec.DecodeError:
        if b"\\u" not in (data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")):
            raise
        try:
            return json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
        except ValueError:
            raise msgspec.DecodeError("not JSON") from None


def encode_json(value: object) -> bytes:
    """``value`` as compact JSON in UTF-8; text with half a surrogate pair comes out escaped."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("out of range")
    return number


def _plain(value: object) -> object:
    if isinstance(value, Raw):
        return decode_json(bytes(value))
    raise TypeError(f"{type(value).__name__} has no JSON form")


class Node:
    """A value and its path. Every reading method raises `RequestError` for a value of another type."""

    __slots__ = ("path", "value")

    def __init__(self, value: object, path: str) -> None:
        self.value = value
        self.path = path

    @property
    def is_set(self) -> bool:
        """Whether the field is there and not null."""
        return self.value is not None

    def fault(self, expected: str) -> RequestError:
        """The error that says what the field must be."""
        return bad_field(self.path, expected)

    def unsupported(self) -> RequestError:
        """The error that says that the field cannot be carried."""
        return RequestError(
            Failure(
                status=400,
                code="unsupported_parameter",
                message=f"'{self.path}' cannot be carried to this model's server.",
                param=self.path,
            )
        )

    def string(self) -> str:
        """A string, which must be there."""
        if not isinstance(self.value, str):
            raise self.fault("a string")
        return self.value

    def string_or_none(self) -> str | None:
        """A string, None when it is not set."""
        return self.string() if self.is_set else None

    def integer_or_none(self) -> int | None:
        """An integer, None when it is not set."""
        if self.value is None or type(self.value) is int:
            return self.value
        raise self.fault("an integer")

    def number_or_none(self) -> float | None:
        """A number, None when it is not set."""
        if self.value is None or type(self.value) in (int, float):
            return self.value  # type: ignore[return-value]
        raise self.fault("a number")

    def boolean_or_none(self) -> bool | None:
        """A boolean, None when it is not set."""
        if self.value is None or isinstance(self.value, bool):
            return self.value
        raise self.fault("a boolean")

    def items(self) -> list["Node"]:
        """The elements of an array; none when it is not set."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.fault("an array")
        return [Node(one, f"{self.path}[{index}]") for index, one in enumerate(self.value)]

    def fields(self) -> "Fields":
        """An object, which must be there."""
        return Fields(self)

    def must_be(self, *values: object) -> None:
        """Refuse what is set and not one of ``values``: those that ask for nothing special."""
        if self.is_set and self.value not in values:
            raise self.unsupported()


class Fields:
    """The fields of one object. What is read once counts as carried."""

    __slots__ = ("_read", "_values", "path")

    def __init__(self, node: Node) -> None:
        if not isinstance(node.value, dict):
            raise node.fault("an object")
        self.path = node.path
        self._values: dict[str, object] = node.value
        self._read: set[str] = set()

    @classmethod
    def of_body(cls, body: bytes) -> Self:
        """The fields of a whole body, whose form was checked before. Raises `RequestError`."""
        try:
            return cls(Node(decode_json(body), ""))
        except UNREADABLE:
            raise bad_body("malformed_json", "The request body is not valid JSON.") from None

    def __getitem__(self, name: str) -> Node:
        self._read.add(name)
        return Node(self._values.get(name), f"{self.path}.{name}" if self.path else name)

    def skip(self, *names: str) -> None:
        """Count fields as carried that change nothing of an answer, or that others read."""
        self._read.update(names)

    def finish(self) -> None:
        """Refuse the first field that is set and was not read."""
        for name, value in self._values.items():
            if value is not None and name not in self._read:
                raise self[name].unsupported()
