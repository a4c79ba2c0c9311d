"""One upstream exchange as a sans-IO machine: bytes of the answer in, bytes for the caller out.

Whatever drives it (a blocking thread, an event loop) only moves bytes:

    exchange = Exchange(call.translator, strike=(base_url, host, authority))
    write the request; then until ``exchange.over``:
        received data     -> body = exchange.receive(data)
        received EOF      -> body = exchange.receive_eof()
        refused, reset, silent too long -> body = exchange.fail(Fault.REFUSED / RESET / TIMEOUT)
        the caller is gone -> exchange.abort()
      after each call, in this order:
        1. if ``exchange.over`` has turned true: release the lease, once, BEFORE anything is written
        2. if ``exchange.head`` has turned non-None and was not sent: send it
        3. send ``body`` (no transfer framing: that is the driver's) if it is not empty
    after ``over``: end the caller's message (a proper end of the framing, so that an error event arrives,
    unless ``truncated``); close the caller's connection if ``close_client``; pool the upstream connection if
    ``reusable``, else close it, or read on for a moment if ``drainable``.

An exchange is over at one moment: with the upstream's terminal event, the last byte of a whole body, a
failure, or the caller's leaving. The upstream's message may still have framing to come then (a last chunk):
while ``drainable`` a driver may go on calling `receive`, so that the connection can be pooled. Every call
after ``over`` returns ``b""`` and changes nothing of ``head``, ``outcome`` or ``close_client``.

While nothing has gone to the caller every failure is a plain HTTP error in its dialect, a malformed first
event and an error reported as the first event included; from then on it is one error event, no terminal
event, and the connection closes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, Literal

from routing.dialects import errors
from routing.dialects.base import (
    JSON,
    Answer,
    Failure,
    MalformedAnswer,
    Translator,
    UpstreamRefusal,
    Usage,
)
from routing.http1 import ResponseHead, ResponseParser
from routing.sse import EventFramer, read_block

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Bound of a whole answer, decoded."""

MAX_EVENT_BYTES: Final = 1024 * 1024
"""Bound of one server-sent event."""

MAX_ERROR_BYTES: Final = 1024 * 1024
"""Bound of a body that is read only for its error; beyond it the caller gets a fixed message."""

MAX_RETRY_AFTER: Final = 3600
"""The longest wait, in seconds, that an upstream may ask of a caller."""

EVENT_STREAM: Final = "text/event-stream"

ClosedReason = Literal[
    "served", "served_output_clamped", "client_disconnected", "backend_error", "completion_error"
]
"""How an exchange can end. ``backend_error``: the upstream began no successful answer (unreachable, silent,
an error status, an unreadable head). ``completion_error``: it began one (a 2xx head) which ended early or
could not be used."""

_STREAM_HEADERS: Final = (
    ("Content-Type", f"{EVENT_STREAM}; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:[ \t]*;[ -~]*)?")
_SECONDS = re.compile(r"[0-9]{1,4}")
_MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_HTTP_DATE = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{2}) (" + "|".join(_MONTHS) + r") ([0-9]{4})"
    r" ([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT"
)


class Fault(Enum):
    """What a driver met on the upstream's connection instead of bytes."""

    REFUSED = "refused"
    """Could not connect: refused, unreachable, no such host, or no connection within connect_timeout."""
    RESET = "reset"
    """The connection broke, or could not be written to."""
    TIMEOUT = "timeout"
    """Silent past first_byte_timeout (before ``answering``) or relay_timeout (after)."""
    STOPPING = "stopping"
    """Nothing is wrong with the upstream: this process is shutting down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the caller's answer starts with. A plain answer's headers hold its Content-Length; a streaming
    one has no length, and its transfer framing is the driver's. Names are in canonical case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    streaming: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an exchange ended, for the one decision record.

    ``status`` is what the caller got, 0 when its head was never known. ``response_bytes`` counts body bytes
    handed to the driver. ``unreachable``: refused or broken before the upstream sent one byte.
    """

    outcome: Literal["served", "error"]
    reason: ClosedReason
    status: int
    usage: Usage
    response_bytes: int
    first_output: bool
    unreachable: bool


class Exchange:
    """The machine. Not thread-safe; one driver at a time.

    ``strike`` are the strings of the member that must not show in an upstream's message (base URL, host,
    host:port). ``clamped`` says that the output cap changed the request. Attributes to read, never to set:

    ``head``          None until what the caller gets is known
    ``over``          the exchange has ended: release the lease now
    ``outcome``       None until over
    ``complete``      the upstream's message has been read to its end
    ``reusable``      over, complete, and the connection may carry another request
    ``drainable``     over, and the connection becomes reusable once the rest of the message has been read
    ``close_client``  the caller's connection must close after the last bytes
    ``truncated``     the caller's message must be left without its proper end: an opaque answer broke off
    ``answering``     a byte of the answer's body has come (or its end): first_byte_timeout no longer applies
    ``first_output``  the first event or body byte of a success has been handed out
    """

    __slots__ = (
        "_accepted",
        "_at_end",
        "_clamped",
        "_framer",
        "_limit",
        "_parser",
        "_parts",
        "_reason",
        "_sent",
        "_sink",
        "_size",
        "_started",
        "_strike",
        "_tainted",
        "_translator",
        "_unreachable",
        "answering",
        "close_client",
        "first_output",
        "head",
        "outcome",
        "over",
        "truncated",
    )

    def __init__(
        self,
        translator: Translator,
        *,
        strike: Sequence[str] = (),
        clamped: bool = False,
        max_body: int = MAX_BODY_BYTES,
        max_event: int = MAX_EVENT_BYTES,
    ) -> None:
        self.head: Head | None = None
        self.over = False
        self.outcome: Outcome | None = None
        self.close_client = False
        self.truncated = False
        self.answering = False
        self.first_output = False
        self._translator = translator
        self._strike = strike
        self._clamped = clamped
        self._limit = max_body
        self._parser = ResponseParser(max_decoded=max_body)
        self._framer = EventFramer(max_event=max_event)
        # Plain functions, since bound methods would make every exchange a reference cycle.
        self._sink: Callable[[Exchange, bytes], bytes] = Exchange._discard
        """Takes the body's bytes; which one, the upstream's head decides."""
        self._at_end: Callable[[Exchange], bytes] = Exchange._nothing
        """Called when the body is complete and the exchange is not over yet."""
        self._parts: list[bytes] = []
        self._size = 0
        self._sent = 0
        self._reason: ClosedReason = "served"
        self._started = False
        self._accepted = False
        """The upstream has begun a successful answer."""
        self._tainted = False
        """The upstream's connection must not be used again."""
        self._unreachable = False

    @property
    def complete(self) -> bool:
        """Whether the upstream's message has been read to its end."""
        return self._parser.complete

    @property
    def reusable(self) -> bool:
        """Whether the upstream's connection may carry another request now."""
        return self.over and not self._tainted and self._parser.reusable

    @property
    def drainable(self) -> bool:
        """Whether reading the rest of the upstream's message would make its connection reusable."""
        return self.over and not self._tainted and self._parser.will_be_reusable

    @property
    def collected(self) -> int:
        """Bytes held of an answer that is read as a whole before it is judged."""
        return self._size if self._parts else 0

    # What a driver calls

    def receive(self, data: bytes) -> bytes:
        """Bytes from the upstream, at least one; returns body bytes for the caller."""
        self._started = True
        parser = self._parser
        begun = parser.head is not None
        body = parser.feed(data)
        out = b""
        if not begun and parser.head is not None:
            out = self._begin(parser.head)
        if body:
            self.answering = True
            out += self._sink(self, body)
        if parser.complete:
            self.answering = True
            if not self.over:
                out += self._at_end(self)
        elif parser.malformed:
            out += self._break_off(errors.INVALID_ANSWER)
        return self._hand_out(out)

    def receive_eof(self) -> bytes:
        """The upstream closed its sending side: the end of a body without a length, else a cut."""
        parser = self._parser
        parser.feed_eof()
        if self.over:
            out = b""
        elif parser.complete or (self._sink is Exchange._take_events and not parser.malformed):
            # A cut stream may have had its terminal event, but for the blank line.
            self.answering = True
            out = self._at_end(self)
        elif parser.malformed:
            out = self._break_off(errors.INVALID_ANSWER)
        else:
            out = self._break_off(self._broken())
        return self._hand_out(out)

    def fail(self, fault: Fault) -> bytes:
        """The upstream's connection failed, or stayed silent too long."""
        if fault is Fault.TIMEOUT:
            failure = errors.TIMED_OUT
        elif fault is Fault.STOPPING:
            failure = errors.STOPPING
        else:
            failure = self._broken()
        return self._hand_out(self._break_off(failure))

    def spoil(self) -> None:
        """The upstream did not take the whole request: another one would be read as the rest of this."""
        self._tainted = True

    def abort(self) -> None:
        """The caller is gone: over at once, nothing more to send."""
        if not self.over:
            self._tainted = True
            self._close("client_disconnected")
            self._hand_out(b"")

    def _broken(self) -> Failure:
        self._unreachable = not (self._started or self.over)
        return errors.UNREACHABLE if self._unreachable else errors.INCOMPLETE

    # The upstream's head

    def _begin(self, head: ResponseHead) -> bytes:
        """The final head has come: what kind of answer is it, and who takes its body."""
        if not 200 <= head.status < 300:
            if head.status in errors.KEPT_STATUSES:
                self._sink, self._at_end = Exchange._collect, Exchange._refuse
                self._limit = MAX_ERROR_BYTES
                return b""
            # Whatever its body says is ours to mend: nothing to wait for, though a pool may still drain it.
            return self._fail(errors.UPSTREAM_ERROR)
        self._accepted = True
        answer = self._translator.answer
        is_stream = head.media_type == EVENT_STREAM
        if answer is Answer.OPAQUE and (is_stream or not _is_text(head.media_type)):
            self._sink, self._at_end = Exchange._pass_on, Exchange._end_opaque
        elif answer is Answer.EVENTS and is_stream:
            self._sink, self._at_end = Exchange._take_events, Exchange._end_events
        elif answer is Answer.EVENTS and _is_json(head.media_type):
            self._sink, self._at_end = Exchange._collect, Exchange._end_unstreamed
            self._limit = MAX_ERROR_BYTES
        elif answer is Answer.WHOLE and not is_stream:
            self._sink, self._at_end = Exchange._collect, Exchange._end_whole
        else:
            return self._break_off(errors.INVALID_ANSWER)
        return b""

    # Whole bodies: answers and refusals

    def _collect(self, body: bytes) -> bytes:
        self._parts.append(body)
        self._size += len(body)
        return b"" if self._size <= self._limit else self._break_off(errors.INVALID_ANSWER)

    def _body(self) -> bytes:
        body = b"".join(self._parts)
        self._parts = []
        return body

    def _end_whole(self) -> bytes:
        head = self._parser.head
        try:
            whole = self._translator.whole(self._body(), head.media_type if head is not None else "")
        except MalformedAnswer:
            return self._break_off(errors.INVALID_ANSWER)
        except UpstreamRefusal as refusal:
            return self._refuse_inside(refusal, errors.UPSTREAM_ERROR)
        self._set_plain_head(200, whole.content_type, whole.body)
        self.first_output = True
        self._close_served()
        return whole.body

    def _end_unstreamed(self) -> bytes:
        """JSON where a stream was asked for: nothing that the caller could use but an error's message."""
        return self._refuse_inside(errors.refusal_in(self._body()), errors.INVALID_ANSWER)

    def _refuse_inside(self, refusal: UpstreamRefusal, otherwise: Failure) -> bytes:
        """A refusal in the body of a 2xx, complete."""
        if refusal.status in errors.KEPT_STATUSES:
            return self._fail(errors.refused(refusal.status, refusal.message, self._strike))
        return self._fail(otherwise)

    def _refuse(self) -> bytes:
        """One of the statuses that the caller gets as it is; with no body (any more) a fixed message."""
        head = self._parser.head
        if head is None:
            return self._fail(errors.INVALID_ANSWER)
        message = errors.refusal_in(self._body()).message
        retry_after = _safe_retry_after(head.retry_after) if head.status == 429 else None
        return self._fail(errors.refused(head.status, message, self._strike), retry_after=retry_after)

    # Opaque bytes

    def _pass_on(self, body: bytes) -> bytes:
        if self.head is None:
            head = self._parser.head
            content_type = head.content_type if head is not None else ""
            if _MEDIA_TYPE.fullmatch(content_type) is None:
                content_type = "application/octet-stream"
            self.head = Head(status=200, headers=(("Content-Type", content_type),), streaming=True)
            self.first_output = True
        return body

    def _end_opaque(self) -> bytes:
        if self.head is None:
            return self._break_off(errors.INVALID_ANSWER)
        self._close_served()
        return b""

    # Server-sent events

    def _take_events(self, body: bytes) -> bytes:
        framer = self._framer
        blocks = iter(framer.feed(body))
        translator = self._translator
        event = translator.event
        out: list[bytes] = []
        failure = errors.INVALID_ANSWER if framer.oversized else None
        try:
            for block in blocks:
                if block.startswith(b"data: ") and b"\n" not in block:
                    out.append(event(block[6:], b""))
                    if translator.terminal:
                        break
                elif block := block.strip(b"\n"):
                    self._take_block(block, out)
                    if translator.terminal:
                        break
        except (MalformedAnswer, UnicodeDecodeError):
            failure = errors.INVALID_ANSWER
        except UpstreamRefusal as refusal:
            failure = errors.reported(refusal, self._strike)
        if out and not self.first_output:
            self._note_first(out)
        if translator.terminal:
            more = (
                framer.oversized or framer.rest().strip(b"\n") or any(block.strip(b"\n") for block in blocks)
            )
            self._end_at_terminal(excess=bool(more))
        elif failure is not None:
            out.append(self._break_off(failure))
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_block(self, block: bytes, out: list[bytes]) -> None:
        """A block that is not one plain data line. What holds no data is passed on as it stands."""
        comments, prefix, data = read_block(block)
        if comments:
            out.append(comments + b"\n")
        if data is not None:
            out.append(self._translator.event(data, prefix))
        elif prefix:
            out.append(prefix + b"\n")

    def _note_first(self, out: list[bytes]) -> None:
        if self.head is None:
            self.head = Head(status=200, headers=_STREAM_HEADERS, streaming=True)
        self.first_output = any(part and not part.startswith(b":") for part in out)

    def _end_events(self) -> bytes:
        """No more bytes will come. A last block may lack its blank line; is it the terminal event?"""
        out: list[bytes] = []
        failure = errors.INCOMPLETE
        if block := self._framer.rest().strip(b"\n"):
            try:
                self._take_block(block, out)
            except (MalformedAnswer, UnicodeDecodeError):
                pass
            except UpstreamRefusal as refusal:
                failure = errors.reported(refusal, self._strike)
        if out:
            self._note_first(out)
        if self._translator.terminal or self._translator.may_end:
            self._end_at_terminal(excess=False)
        else:
            out.append(self._break_off(failure))
        return b"".join(out)

    def _end_at_terminal(self, *, excess: bool) -> None:
        """Served. ``excess``: something other than blank lines came after the terminal event."""
        self._close_served()
        self._sink = Exchange._after_terminal
        self._tainted |= excess

    def _after_terminal(self, body: bytes) -> bytes:
        if body.strip(b"\r\n"):
            self._tainted = True
        return b""

    # Ends

    def _discard(self, body: bytes) -> bytes:
        return b""

    def _nothing(self) -> bytes:
        return b""

    def _break_off(self, failure: Failure) -> bytes:
        """The upstream's message ended badly, or is given up: its connection with it."""
        self._tainted = True
        head = self._parser.head
        if not self.over and head is not None and head.status in errors.KEPT_STATUSES:
            # The caller's fault stays the caller's, whatever became of the rest of the explanation.
            self._parts = []
            return self._refuse()
        return self._fail(failure)

    def _fail(self, failure: Failure, *, retry_after: str | None = None) -> bytes:
        if self.over:
            return b""
        if self.head is None:
            body = self._translator.dialect.error(failure)
            headers = [("x-should-retry", "false")]
            if retry_after is not None:
                headers.append(("Retry-After", retry_after))
            self._set_plain_head(failure.status, JSON, body, *headers)
        else:
            body = self._translator.error_event(failure)
            self.close_client = True
            self.truncated = not body
            self._tainted = True
        self._close("completion_error" if self._accepted else "backend_error")
        return body

    def _set_plain_head(self, status: int, content_type: str, body: bytes, *more: tuple[str, str]) -> None:
        headers = (("Content-Type", content_type), ("Content-Length", str(len(body))), *more)
        self.head = Head(status=status, headers=headers, streaming=False)

    def _close_served(self) -> None:
        self._close("served_output_clamped" if self._clamped else "served")

    def _close(self, reason: ClosedReason) -> None:
        self.over = True
        self._reason = reason
        self._sink = Exchange._discard
        self._parts = []

    def _hand_out(self, out: bytes) -> bytes:
        self._sent += len(out)
        if self.over and self.outcome is None:
            self.outcome = Outcome(
                outcome="served" if self._reason.startswith("served") else "error",
                reason=self._reason,
                status=self.head.status if self.head is not None else 0,
                usage=self._translator.usage,
                response_bytes=self._sent,
                first_output=self.first_output,
                unreachable=self._unreachable,
            )
        return out


def _is_text(media_type: str) -> bool:
    """Whether a success of that type is no sound, but a page or a document that should have been an error."""
    return media_type.startswith("text/") or _is_json(media_type)


def _is_json(media_type: str) -> bool:
    return media_type == JSON or media_type.endswith("+json")


def _safe_retry_after(value: str | None) -> str | None:
    """``value`` when it is 0 to `MAX_RETRY_AFTER` seconds or an HTTP date."""
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        return value if int(value) <= MAX_RETRY_AFTER else None
    date = _HTTP_DATE.fullmatch(value)
    if date is None:
        return None
    day, month, year, hour, minute, second = date.groups()
    try:
        datetime(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second))
    except ValueError:
        return None
    return value
