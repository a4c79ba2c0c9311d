"""Anthropic's messages: read from callers, passed through where the upstream serves them, else translated.

A pass-through (see `passthrough`) reads ``usage`` from the events that start and end a message; an ``error``
event ends a stream as an error. ``POST /v1/messages/count_tokens`` is answered here, by an estimate.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from routing.dialects.base import (
    JSON,
    CallerRequest,
    Dialect,
    Failure,
    LocalAnswer,
    Target,
    UpstreamCall,
    Usage,
)
from routing.dialects.document import Fields
from routing.dialects.fields import (
    BOOLEAN,
    NULL,
    OBJECTS,
    UNREADABLE,
    bad_field,
    encode,
    join,
    read,
    read_alias,
    read_array,
    read_limit,
    read_object,
    token_count,
)
from routing.dialects.messages_answers import MessagesTeller
from routing.dialects.messages_requests import read_messages, shows_thinking
from routing.dialects.narration import named_event
from routing.dialects.passthrough import NamedEventsPassThrough, settle
from routing.dialects.translate import MESSAGES_LIMITS, translate
from routing.dialects.weights import demand_of
from routing.gates import Demand, estimate_prompt

if TYPE_CHECKING:
    from routing.config import Tier

VERSION: Final = ("anthropic-version", "2023-06-01")
"""The header that names the wire's version; upstreams of Anthropic's dialect get it with every request."""

_ERROR_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesDialect(Dialect):
    """The wire of ``POST /v1/messages``."""

    __slots__ = ()

    wire = "messages"

    def parse(self, body: bytes, *, content_type: str = JSON) -> CallerRequest:
        """The request in ``body``, whatever its media type says. Raises `RequestError` with status 400."""
        return MessagesRequest(body)

    def error(self, failure: Failure) -> bytes:
        """``{"type": "error", "error": {"type", "message"}}``."""
        return encode(_envelope(failure))

    def error_event(self, failure: Failure) -> bytes:
        """The same envelope as an ``error`` event."""
        return named_event("error", _envelope(failure))


class CountTokensDialect(MessagesDialect):
    """The wire of ``POST /v1/messages/count_tokens``."""

    __slots__ = ()

    def parse(self, body: bytes, *, content_type: str = JSON) -> CallerRequest:
        """As for a message; nothing is sent anywhere."""
        return CountRequest(body)


MESSAGES: Final = MessagesDialect()


def _envelope(failure: Failure) -> dict[str, object]:
    kind = _ERROR_TYPES.get(failure.status)
    if kind is None:
        kind = "invalid_request_error" if failure.status < 500 else "api_error"
    return {"type": "error", "error": {"type": kind, "message": failure.message}}


class MessagesRequest(CallerRequest):
    """A message request: an object with a model, at least one message, and well-typed limits."""

    __slots__ = ("_body", "_fields", "_mark", "_tools")

    wire = "messages"

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.body_bytes = len(body)
        fields, self._mark = read_object(body)
        self._fields = fields
        self.alias = read_alias(fields)
        if not read(fields, "messages", OBJECTS, "a non-empty array of objects"):
            raise bad_field("messages", "a non-empty array of objects")
        self.stream = read(fields, "stream", BOOLEAN, "a boolean or null") or False
        self.requested_output = read_limit(fields, "max_tokens")
        self._tools = bool(read_array(fields, "tools"))

    def demand(self, *, count_text: bool) -> Demand:
        """Text is that of the system prompt and of the messages, with what tools answered."""
        return demand_of(self._body, ("system", "messages"), tools=self._tools, count_text=count_text)

    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """A pass-through call, or one that speaks the target's own wire."""
        if target.dialect == "anthropic" or "messages" in target.wires:
            fields = dict(self._fields)
            settle(fields, target, model=model, limits=MESSAGES_LIMITS)
            return UpstreamCall(
                path="/messages",
                body=join(fields, self._mark),
                headers=(VERSION,) if target.dialect != "anthropic" else (),
                translator=MessagesPassThrough(dialect=MESSAGES, alias=self.alias, stream=self.stream),
            )
        request = Fields.of_body(self._body)
        teller = MessagesTeller(
            dialect=MESSAGES, alias=self.alias, stream=self.stream, thinking=shows_thinking(request)
        )
        return translate(read_messages(request), target, model=model, teller=teller)


class CountRequest(MessagesRequest):
    """A request to count the tokens of a message request, which needs no output limit."""

    __slots__ = ()

    def answer(self, tier: "Tier") -> LocalAnswer:
        """The estimate, which says that it is one: no tokenizer is at hand, and none is asked for."""
        demand = self.demand(count_text=True)
        tools = len(bytes(self._fields["tools"])) if self._tools else 0
        counted = dataclasses.replace(demand, text_bytes=demand.text_bytes + tools)
        return LocalAnswer(
            body=encode({"input_tokens": estimate_prompt(tier, counted), "estimate": True}),
            headers=(("Warning", '299 anvil "input_tokens is an estimate"'),),
        )


class _Tokens(msgspec.Struct):
    input_tokens: object = None
    cache_creation_input_tokens: object = None
    cache_read_input_tokens: object = None
    output_tokens: object = None


_tokens: Final = msgspec.json.Decoder(_Tokens)


class MessagesPassThrough(NamedEventsPassThrough):
    """The answer of an upstream that serves messages."""

    __slots__ = ("_used",)

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool) -> None:
        super().__init__(dialect=dialect, alias=alias, stream=stream)
        self._used: dict[str, int] = {}

    def _take_event(self, kind: str, event: dict[str, Raw]) -> bool:
        if kind == "message_start":
            self._read_usage(self._rename_in(event, "message"))
            return True
        if kind == "message_delta":
            self._read_usage(event)
        self.terminal = kind == "message_stop"
        return False

    def _read_usage(self, holder: Mapping[str, Raw]) -> None:
        """Counts are totals so far; a later event repeats only those that changed."""
        try:
            tokens = _tokens.decode(holder.get("usage", NULL))
        except UNREADABLE:
            return
        used = self._used
        for name in _Tokens.__struct_fields__:
            if (value := getattr(tokens, name)) is not None:
                used[name] = token_count(value)
        completion = used.get("output_tokens", 0)
        self.usage = Usage(sum(used.values()) - completion, completion)
