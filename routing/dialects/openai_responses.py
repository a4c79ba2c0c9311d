"""OpenAI's Responses: read from callers, passed through where the upstream serves them, else translated.

No response is stored here, whatever an upstream could do: its members do not share what one of them kept. So
what refers to a stored response, or asks for one, is refused.

A pass-through (see `passthrough`) reads ``usage`` from the response that ends a stream; ``response.failed``
and ``error`` events end it as errors.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from routing.dialects.base import (
    JSON,
    CallerRequest,
    Dialect,
    Failure,
    RequestError,
    Target,
    UpstreamCall,
    UpstreamRefusal,
    Usage,
)
from routing.dialects.document import Fields
from routing.dialects.errors import refusal_in
from routing.dialects.fields import (
    ARRAY,
    BOOLEAN,
    INTEGER,
    NULL,
    UNREADABLE,
    bad_field,
    is_unset,
    join,
    read,
    read_alias,
    read_array,
    read_limit,
    read_object,
    token_count,
)
from routing.dialects.openai_chat import OpenAIDialect
from routing.dialects.passthrough import NamedEventsPassThrough, settle
from routing.dialects.responses_answers import ResponsesTeller, echo, error_event
from routing.dialects.responses_requests import read_responses
from routing.dialects.translate import translate
from routing.dialects.weights import demand_of
from routing.gates import Demand

_LIMITS: Final = ("max_output_tokens",)
_ENDS: Final = frozenset({"response.completed", "response.incomplete"})


class ResponsesDialect(OpenAIDialect):
    """The wire of ``POST /v1/responses``."""

    __slots__ = ()

    wire = "responses"

    def parse(self, body: bytes, *, content_type: str = JSON) -> "ResponsesRequest":
        """The request in ``body``, whatever its media type says. Raises `RequestError` with status 400."""
        return ResponsesRequest(body)

    def error_event(self, failure: Failure) -> bytes:
        """An ``error`` event, numbered as the first: a translator knows the real number."""
        return error_event(failure, 0)


RESPONSES: Final = ResponsesDialect()


class ResponsesRequest(CallerRequest):
    """A request for a response: an object with a model, an input, and well-typed limits."""

    __slots__ = ("_body", "_fields", "_mark", "_tools")

    wire = "responses"

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.body_bytes = len(body)
        fields, self._mark = read_object(body)
        self._fields = fields
        self.alias = read_alias(fields)
        for name in ("previous_response_id", "conversation"):
            if not is_unset(fields, name):
                raise _stateless(name)
        for name in ("store", "background"):
            if read(fields, name, BOOLEAN, "a boolean or null"):
                raise _stateless(name)
        _check_input(fields)
        self.stream = read(fields, "stream", BOOLEAN, "a boolean or null") or False
        self.requested_output = read_limit(fields, "max_output_tokens")
        self._tools = bool(read_array(fields, "tools"))

    def demand(self, *, count_text: bool) -> Demand:
        """Text is that of the instructions and of the input's items, with what tools answered."""
        return demand_of(self._body, ("instructions", "input"), tools=self._tools, count_text=count_text)

    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """A pass-through call, or one that speaks the target's own wire."""
        if "responses" in target.wires:
            fields = dict(self._fields)
            settle(fields, target, model=model, limits=_LIMITS)
            return UpstreamCall(
                path="/responses",
                body=join(fields, self._mark),
                translator=ResponsesPassThrough(dialect=RESPONSES, alias=self.alias, stream=self.stream),
            )
        request = Fields.of_body(self._body)
        conversation = read_responses(request)
        teller = ResponsesTeller(
            dialect=RESPONSES, alias=self.alias, stream=self.stream, settings=echo(request)
        )
        return translate(conversation, target, model=model, teller=teller)


class _Tokens(msgspec.Struct):
    input_tokens: object = 0
    output_tokens: object = 0


_tokens: Final = msgspec.json.Decoder(_Tokens)


class ResponsesPassThrough(NamedEventsPassThrough):
    """The answer of an upstream that serves Responses."""

    __slots__ = ("_next_number",)

    def __init__(self, *, dialect: Dialect, alias: str, stream: bool) -> None:
        super().__init__(dialect=dialect, alias=alias, stream=stream)
        self._next_number = 0

    def error_event(self, failure: Failure) -> bytes:
        """The error event, numbered where the stream stands."""
        return error_event(failure, self._next_number)

    def _take_event(self, kind: str, event: dict[str, Raw]) -> bool:
        if kind == "response.failed":
            raise _failure_of(event)
        if not is_unset(event, "sequence_number"):
            self._next_number = INTEGER.decode(event["sequence_number"]) + 1
        if is_unset(event, "response"):
            return False
        response = self._rename_in(event, "response")
        if kind in _ENDS:
            self._read_usage(response)
            self.terminal = True
        return True

    def _read_usage(self, holder: Mapping[str, Raw]) -> None:
        try:
            tokens = _tokens.decode(holder.get("usage", NULL))
        except UNREADABLE:
            return
        self.usage = Usage(token_count(tokens.input_tokens), token_count(tokens.output_tokens))


def _failure_of(event: Mapping[str, Raw]) -> UpstreamRefusal:
    """What ``response.failed`` says of the failure."""
    return refusal_in(bytes(event.get("response", NULL)))


def _stateless(name: str) -> RequestError:
    return RequestError(
        Failure(
            status=400,
            code="unsupported_parameter",
            message=f"'{name}' is not supported: no responses are stored here.",
            param=name,
        )
    )


def _check_input(fields: Mapping[str, Raw]) -> None:
    """The input is a text or a list of items; which items there may be is for later."""
    given = bytes(fields.get("input", NULL))
    if given.startswith(b'"'):
        return
    try:
        items = ARRAY.decode(given)
    except UNREADABLE:
        items = []
    if not items:
        raise bad_field("input", "a string or a non-empty array")
