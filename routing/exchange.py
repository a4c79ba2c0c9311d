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
    after ``over``: end the caller's message (a proper end of the framing, so that an error event arrives);
    close the caller's connection if ``close_client``; pool the upstream connection if ``reusable``.

An exchange is over at one moment: with the upstream's terminal event, the last byte of a whole body, a
failure, or the caller's leaving. The upstream's message may still have framing to come then (a last chunk):
a driver may go on calling `receive` until ``complete`` so that the connection can be pooled, or close it.
Every call after ``over`` returns ``b""`` and changes nothing of ``head``, ``outcome`` or ``close_client``.

While nothing has gone to the caller every failure is a plain HTTP error in its dialect; from then on it is
one error event, no terminal event, and the connection closes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from routing.dialects.base import Translator, Usage

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Bound of a whole answer, decoded."""

MAX_EVENT_BYTES: Final = 1024 * 1024
"""Bound of one server-sent event."""

ClosedReason = Literal[
    "served", "served_output_clamped", "client_disconnected", "backend_error", "completion_error"
]


class Fault(Enum):
    """What a driver met on the upstream's connection instead of bytes."""

    REFUSED = "refused"
    """Could not connect: refused, unreachable, no such host, or no connection within connect_timeout."""
    RESET = "reset"
    """The connection broke, or could not be written to."""
    TIMEOUT = "timeout"
    """Silent past first_byte_timeout (before ``answering``) or relay_timeout (after)."""


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
    ``close_client``  the caller's connection must close after the last bytes
    ``answering``     a byte of the answer's body has come (or its end): first_byte_timeout no longer applies
    ``first_output``  the first event or body byte of a success has been handed out
    """

    def __init__(
        self,
        translator: Translator,
        *,
        strike: Sequence[str] = (),
        clamped: bool = False,
        max_body: int = MAX_BODY_BYTES,
        max_event: int = MAX_EVENT_BYTES,
    ) -> None:
        raise NotImplementedError

    def receive(self, data: bytes) -> bytes:
        """Bytes from the upstream, at least one; returns body bytes for the caller."""
        raise NotImplementedError

    def receive_eof(self) -> bytes:
        """The upstream closed its sending side."""
        raise NotImplementedError

    def fail(self, fault: Fault) -> bytes:
        """The upstream's connection failed, or stayed silent too long."""
        raise NotImplementedError

    def abort(self) -> None:
        """The caller is gone: over at once, nothing more to send."""
        raise NotImplementedError
