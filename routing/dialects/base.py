"""What one wire gives the path: how its requests are read, prepared for an upstream, and answered.

Four kinds of value, and who holds them:

    Dialect         one per caller's wire; stateless. Reads a request body, writes the wire's errors.
    CallerRequest   one per request: what the path needs to know of it, and how to prepare its upstream call.
    UpstreamCall    one per dispatch: the exact bytes to send, and the translator of what comes back.
    Translator      one per dispatch, stateful, driven by `routing.exchange.Exchange` alone.

The exchange owns HTTP, SSE framing, lifetimes and the choice of an error; a translator owns the meaning of
what is inside an event or a body. Where caller and upstream speak the same wire it passes everything through
and renames the model; where they differ one upstream event may become any number of the caller's events.

    RequestError (ValueError)     the caller's request is at fault; answered before any dispatch
    AnswerError (Exception)       the upstream's answer is at fault; raised by translators to the exchange
    +-- MalformedAnswer           not what the wire allows: invalid JSON or UTF-8, not an object
    +-- UpstreamRefusal           a well-formed error of the upstream's, found inside a 200 or a stream
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

import msgspec

from routing.gates import Demand

if TYPE_CHECKING:
    from routing.config import Tier

Wire = Literal["chat", "responses", "messages", "embeddings", "rerank", "transcriptions", "speech"]
"""The wires that a caller may speak. A tier's ``wires`` uses the first three words."""

JSON: Final = "application/json"


class Answer(Enum):
    """What a caller gets when all goes well."""

    WHOLE = "whole"
    """One body, sent when it is complete and checked."""

    EVENTS = "events"
    """A stream of server-sent events, each sent as it comes."""

    OPAQUE = "opaque"
    """Bytes passed on as they come, of whatever media type the upstream names (speech)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as the caller is told it; how it looks is the dialect's.

    ``status`` is the HTTP status that it has (or would have had, inside a stream), ``code`` a fixed word.
    ``message`` is a fixed text, or an upstream's message after `routing.dialects.errors.sanitise`;
    ``param`` names the field of the request that is at fault.
    """

    status: int
    code: str
    message: str
    param: str | None = None


class RequestError(ValueError):
    """The caller's request is malformed or cannot be carried: answered with ``failure``, never dispatched."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class AnswerError(Exception):
    """What the upstream sent cannot be given to the caller."""


class MalformedAnswer(AnswerError):
    """The event or body is not what the wire allows. Carries nothing of it."""


class UpstreamRefusal(AnswerError):
    """The upstream reported an error inside a success: ``status`` and ``message`` as far as it gave them.

    ``message`` is raw upstream text: only the exchange, which strikes addresses out of it, may show it.
    """

    def __init__(self, status: int | None, message: str | None) -> None:
        super().__init__("the upstream reported an error")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the upstream says it used; 0 where it did not say. Both are 0 to 2**53 - 1."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What preparing a call needs of a tier: made once per tier when a configuration becomes active.

    ``extra_body`` and ``extra_body_defaults`` hold each value's JSON, encoded once.
    """

    dialect: Literal["openai", "anthropic"]
    wires: Collection[str] = ()
    max_output_tokens: int | None = None
    extra_body: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    extra_body_defaults: Mapping[str, msgspec.Raw] = field(default_factory=dict)

    @classmethod
    def of(cls, tier: "Tier") -> Self:
        """The target of ``tier`` or of one of its members (members share everything named here)."""
        return cls(
            dialect=tier.dialect,
            wires=frozenset(tier.wires),
            max_output_tokens=tier.max_output_tokens,
            extra_body=encode_values(tier.extra_body),
            extra_body_defaults=encode_values(tier.extra_body_defaults),
        )


def encode_values(values: Mapping[str, object]) -> dict[str, msgspec.Raw]:
    """Each value of a configuration table as JSON, nested read-only mappings included."""
    return {key: msgspec.Raw(msgspec.json.encode(value, enc_hook=_plain)) for key, value in values.items()}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A complete answer for the caller: the media type and the exact bytes of its body."""

    body: bytes
    content_type: str = JSON


class Translator:
    """Turns one upstream answer into the caller's; lives as long as one exchange.

    A subclass sets ``answer`` in its constructor and implements what that kind of answer calls: `event` for
    EVENTS, `whole` for WHOLE, nothing for OPAQUE. It never does I/O and never keeps the bytes it was given
    longer than it must.
    """

    __slots__ = ("answer", "dialect", "may_end", "terminal", "usage")

    def __init__(self, *, dialect: "Dialect", answer: Answer) -> None:
        self.dialect = dialect
        self.answer = answer
        self.terminal = False
        """Set by `event` when the event it was given is the one that ends the upstream's stream properly.
        What that call returns holds the caller's own terminal event; no event follows."""
        self.may_end = False
        """Set by `event` when all has been said, though a terminal event may still come: a stream that ends
        now has ended properly."""
        self.usage = Usage()
        """The last usage that the upstream reported."""

    def event(self, data: bytes, prefix: bytes) -> bytes:
        """The caller's events for one upstream event: none (``b""``), one or several, framed with LF.

        ``data`` is the event's data, lines joined by LF, unchecked. ``prefix`` holds the event's other
        fields (``event``, ``id``, ``retry``) as lines that end in LF, ready to stand before a ``data`` line;
        nearly always empty. Raises `MalformedAnswer` and `UpstreamRefusal`; nothing of that event is sent.
        """
        raise NotImplementedError

    def whole(self, body: bytes, content_type: str) -> Whole:
        """The caller's answer for a complete 2xx body; ``content_type`` is the upstream's, lower-cased media
        type without parameters, ``""`` when absent. Raises `MalformedAnswer` and `UpstreamRefusal`."""
        raise NotImplementedError

    def error_event(self, failure: Failure) -> bytes:
        """What ends a stream that has begun: exactly one error event, framed (an OPAQUE answer: nothing)."""
        if self.answer is Answer.OPAQUE:
            return b""
        return self.dialect.error_event(failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCall:
    """One request, ready to be sent once: ``path`` is appended to the member's base URL (``/v1`` included
    there), ``headers`` are those that the wire needs beyond host, length, authorization and encoding."""

    path: str
    body: bytes = field(repr=False)
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    translator: Translator = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAnswer:
    """A JSON answer that needs no upstream."""

    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class CallerRequest(ABC):
    """A request whose form has been checked.

    ``alias`` is what the caller sent as its model, as it came (not normalised, not looked up).
    ``requested_output`` is the largest output limit that the caller set, in tokens, or None.
    ``body_bytes`` is the length of the body: never less than the UTF-8 bytes of the text in it.
    """

    __slots__ = ("alias", "body_bytes", "requested_output", "stream")

    wire: ClassVar[Wire]
    alias: str
    stream: bool
    requested_output: int | None
    body_bytes: int

    @abstractmethod
    def demand(self, *, count_text: bool) -> Demand:
        """What the gates weigh. Text is counted only with ``count_text`` (see `gates.context_needs_count`);
        media parts and tools always are. Cheap unless the body is large or holds media. Raises `RequestError`
        for a body that turns out malformed where nobody has looked yet."""

    @abstractmethod
    def prepare(self, target: Target, *, model: str) -> UpstreamCall:
        """The call that carries this request to ``target`` under the served name ``model``.

        Applies the output cap, ``extra_body_defaults`` and ``extra_body``. Raises `RequestError` when the
        target's dialect cannot carry a field of the request. May be called once per dispatch; the request
        itself does not change.
        """

    def answer(self, tier: "Tier") -> LocalAnswer | None:
        """The answer to a request that asks nothing of an upstream, else None. Raises as `demand` does."""
        return None


class Dialect(ABC):
    """One caller's wire. Instances hold no state and are shared."""

    __slots__ = ()

    wire: ClassVar[Wire]

    @abstractmethod
    def parse(self, body: bytes, *, content_type: str = JSON) -> CallerRequest:
        """The request in ``body`` (already bounded by the front door). Raises `RequestError`."""

    @abstractmethod
    def error(self, failure: Failure) -> bytes:
        """``failure`` as the body of a plain HTTP error, JSON."""

    @abstractmethod
    def error_event(self, failure: Failure) -> bytes:
        """``failure`` as one framed server-sent event."""
