"""What the wires that are routed by alias share where caller and upstream speak the same one.

A pass-through changes what is named here and in the wire's module, and nothing else: every other field goes
through byte for byte, in both directions, unknown ones included.

    request   ``model`` becomes the served name. ``extra_body_defaults`` fill what the caller left out or set
              to null, ``extra_body`` replaces (both by top-level field; a configuration may name neither
              ``model`` nor ``stream`` in them). Output limits above the tier's are lowered, the wire's first
              one is set where there is none.
    response  ``model`` becomes the alias, in a body and in every event that names it.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from routing.dialects.base import Answer, Dialect, MalformedAnswer, Target, Translator, Whole
from routing.dialects.fields import (
    INTEGER,
    NULL,
    OBJECT,
    STRING,
    UNREADABLE,
    encode,
    is_unset,
    join,
    raise_if_error,
    split,
)

_ERROR_LINE: Final = b"event: error\n"


def settle(fields: dict[str, Raw], target: Target, *, model: str, limits: tuple[str, ...]) -> None:
    """Make ``fields`` what is sent to ``target`` (see the module's text); ``limits`` are the wire's names for
    the output limit, the usual one first."""
    for name, value in target.extra_body_defaults.items():
        if is_unset(fields, name):
            fields[name] = value
    fields.update(target.extra_body)
    fields["model"] = Raw(encode(model))
    if target.max_output_tokens is not None:
        _cap_output(fields, target.max_output_tokens, limits)


def _cap_output(fields: dict[str, Raw], ceiling: int, limits: tuple[str, ...]) -> None:
    limited = False
    for name in limits:
        if is_unset(fields, name):
            continue
        limited = True
        try:
            above = INTEGER.decode(fields[name]) > ceiling
        except UNREADABLE:
            # Not the caller's (those were read): a value of the configuration that is no integer.
            above = True
        if above:
            fields[name] = Raw(encode(ceiling))
    if not limited:
        fields[limits[0]] = Raw(encode(ceiling))


class NamedEventsPassThrough(Translator):
    """The answer of an upstream that speaks the caller's wire, one whose events carry their ``type``."""

    __slots__ = ("_alias",)

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool) -> None:
        super().__init__(dialect=dialect, answer=Answer.EVENTS if stream else Answer.WHOLE)
        self._alias = Raw(encode(alias))

    @abstractmethod
    def _take_event(self, kind: str, event: dict[str, Raw]) -> bool:
        """Read what counts of an event of this ``kind``, rename the model in it, and say whether anything
        changed. Sets ``terminal``. Raises `UpstreamRefusal`."""

    @abstractmethod
    def _read_usage(self, holder: Mapping[str, Raw]) -> None:
        """Note the usage that an object tells of, if it does."""

    def event(self, data: bytes, prefix: bytes) -> bytes:
        """One event, renamed."""
        try:
            event, mark = split(data)
            kind = _kind(event)
            raise_if_error(event, data, named=kind == "error" or _ERROR_LINE in prefix)
            changed = self._take_event(kind, event)
        except UNREADABLE:
            raise MalformedAnswer from None
        payload = join(event, mark) if changed else data
        if b"\n" in payload:
            # White space between tokens of an event of several data lines; a string can hold none.
            payload = payload.replace(b"\n", b" ")
        return prefix + b"data: " + payload + b"\n\n"

    def whole(self, body: bytes, content_type: str) -> Whole:
        """The answer, renamed."""
        try:
            answer, mark = split(body)
            raise_if_error(answer, body, named=_kind(answer) == "error")
            self._read_usage(answer)
            self._rename(answer)
        except UNREADABLE:
            raise MalformedAnswer from None
        return Whole(body=join(answer, mark))

    def _rename(self, document: dict[str, Raw]) -> bool:
        if "model" not in document:
            return False
        document["model"] = self._alias
        return True

    def _rename_in(self, document: dict[str, Raw], name: str) -> dict[str, Raw]:
        """The object in the field ``name``, with its model renamed."""
        inner = OBJECT.decode(document[name]) if not is_unset(document, name) else {}
        if self._rename(inner):
            document[name] = Raw(encode(inner))
        return inner


def _kind(event: Mapping[str, Raw]) -> str:
    return STRING.decode(event["type"]) if bytes(event.get("type", NULL)).startswith(b'"') else ""
