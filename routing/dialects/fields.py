"""JSON objects field by field: a field that nobody touches goes on byte for byte.

What is read here are the bodies of callers (faults become a `RequestError` with status 400 that names the
field) and the documents of upstreams.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from routing.dialects import surrogates
from routing.dialects.base import Failure, RequestError
from routing.dialects.errors import refusal_in

_T = TypeVar("_T")

NULL: Final = b"null"
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Whatever a decoder raises for bytes that are not the JSON it wants."""

MAX_COUNT: Final = 2**53 - 1
"""The largest count of tokens that an upstream is believed."""

encode = msgspec.json.Encoder().encode
OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
OBJECTS: Final = msgspec.json.Decoder(list[dict[str, Raw]])
ARRAY: Final = msgspec.json.Decoder(list[Raw])
STRING: Final = msgspec.json.Decoder(str)
BOOLEAN: Final = msgspec.json.Decoder(bool)
INTEGER: Final = msgspec.json.Decoder(int)


def split(document: bytes) -> tuple[dict[str, Raw], bytes]:
    """The fields of ``document``, and the mark that stands for lone surrogate halves in them (``b""``: there
    are none; see `surrogates`). Raises one of `UNREADABLE`."""
    if not document.isascii():
        document.decode()
    try:
        return OBJECT.decode(document), b""
    except msgspec.DecodeError:
        masked = surrogates.mask(document)
        if masked is None:
            raise
        return OBJECT.decode(masked[0]), masked[1]


def join(fields: Mapping[str, Raw], mark: bytes) -> bytes:
    """The document that `split` took apart, with whatever became of its fields."""
    document = encode(fields)
    return surrogates.unmask(document, mark) if mark else document


def read_object(body: bytes) -> tuple[dict[str, Raw], bytes]:
    """A caller's body, `split`. Raises `RequestError`."""
    try:
        return split(body)
    except msgspec.ValidationError:
        raise bad_body("not_an_object", "The request body must be a JSON object.") from None
    except UNREADABLE:
        raise bad_body("malformed_json", "The request body is not valid JSON.") from None


def is_unset(fields: Mapping[str, Raw], name: str) -> bool:
    """Whether a field is absent or null."""
    return name not in fields or bytes(fields[name]) == NULL


def read(fields: Mapping[str, Raw], name: str, decoder: msgspec.json.Decoder[_T], expected: str) -> _T | None:
    """The value of a field, None when it is absent or null. Raises `RequestError` for any other type."""
    if is_unset(fields, name):
        return None
    try:
        return decoder.decode(fields[name])
    except UNREADABLE:
        raise bad_field(name, expected) from None


def read_alias(fields: Mapping[str, Raw]) -> str:
    """The ``model`` that a caller names, as it came. Raises `RequestError`."""
    alias = read(fields, "model", STRING, "a non-empty string")
    if alias is None or not alias.strip():
        raise bad_field("model", "a non-empty string")
    return alias


def read_limit(fields: Mapping[str, Raw], name: str) -> int | None:
    """An output limit, None when it is not set. Raises `RequestError`."""
    expected = "a positive integer or null"
    limit = read(fields, name, INTEGER, expected)
    if limit is not None and limit < 1:
        raise bad_field(name, expected)
    return limit


def read_array(fields: Mapping[str, Raw], name: str) -> list[Raw]:
    """The elements of an array, none when it is not set. Raises `RequestError`."""
    return read(fields, name, ARRAY, "an array or null") or []


def bad_body(code: str, message: str) -> RequestError:
    """The body as a whole is at fault."""
    return RequestError(Failure(status=400, code=code, message=message))


def bad_field(name: str, expected: str) -> RequestError:
    """The field ``name`` is missing, or not what was ``expected``."""
    return RequestError(
        Failure(status=400, code="invalid_request", message=f"'{name}' must be {expected}.", param=name)
    )


def token_count(value: object) -> int:
    """``value`` when it is a count of tokens (0 to `MAX_COUNT`), else 0."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else 0


def raise_if_error(document: Mapping[str, Raw], body: bytes, *, named: bool) -> None:
    """Raises `UpstreamRefusal` for an error in place of an answer: by its ``error`` or ``object`` field, or
    because the event was ``named`` so."""
    error = bytes(document.get("error", NULL))
    if named or error != NULL or bytes(document.get("object", NULL)) == b'"error"':
        raise refusal_in(body)
