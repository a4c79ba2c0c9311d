"""Drives exchanges: moves bytes between an upstream connection and a caller, and owns the lease meanwhile.

A `Dispatch` is one admitted request on its way. It belongs to exactly one driver at a time; whatever drives
it calls `on_readable`, `on_timeout` and `on_caller_gone`, and the dispatch sees to the order that matters:
the lease is released, and the evidence handed over, before the last bytes of an answer are given out, so that
a sequential caller at ceiling 1 never meets its own previous lease and finds its own decision.

The blocking driver here serves one dispatch from the calling thread. `routing.loop` serves streams by the
hundred from one thread.
"""

import errno
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from admission.core import AdmissionLease
from routing.exchange import Exchange, Fault, Head
from routing.upstream import POLLRDHUP, Connection, ConnectionPool, Endpoint, SendFailure

RECEIVE_SIZE: Final = 65_536

LINGER: Final = 0.1
"""Seconds that a finished exchange waits for the last framing of its upstream, to pool the connection."""


class Dispatch:
    """One admitted request: its exchange, its upstream connection and its lease, if its route has ceilings.

    ``on_over(dispatch)`` is called exactly once, right after the lease was released; it must not block.
    ``headers`` are the path's own, sent beside those of the exchange's head. ``streams`` says that the caller
    asked for an answer that comes in parts.
    ``first_byte_timeout`` and ``relay_timeout`` are seconds: silence before the answer's body begins, and
    between bytes after that.
    """

    __slots__ = (
        "_attached",
        "_deadline",
        "_endpoint",
        "_on_over",
        "_pool",
        "_settled",
        "connection",
        "exchange",
        "first_byte_timeout",
        "first_output_at",
        "headers",
        "lease",
        "relay_timeout",
        "streams",
    )

    def __init__(
        self,
        exchange: Exchange,
        lease: AdmissionLease | None,
        *,
        pool: ConnectionPool,
        endpoint: Endpoint,
        first_byte_timeout: float,
        relay_timeout: float,
        streams: bool,
        headers: tuple[tuple[str, str], ...],
        on_over: Callable[["Dispatch"], None],
    ) -> None:
        self.exchange = exchange
        self.connection: Connection | None = None
        self.first_byte_timeout = first_byte_timeout
        self.relay_timeout = relay_timeout
        self.first_output_at: float | None = None
        self.headers = headers
        self.streams = streams
        self.lease = lease
        self._pool = pool
        self._endpoint = endpoint
        self._on_over = on_over
        self._attached = False
        self._settled = False
        self._deadline = 0.0

    @property
    def head(self) -> Head | None:
        """What the caller's answer starts with, once it is known."""
        return self.exchange.head

    @property
    def over(self) -> bool:
        return self.exchange.over

    @property
    def deadline(self) -> float:
        """The monotonic second at which the upstream has been silent too long."""
        return self._deadline

    def attach(self, connection: Connection) -> None:
        """From here on ``connection`` is this dispatch's to pool or close."""
        self.connection = connection
        self._attached = True

    def send(self, request: bytes, caller: socket.socket | None) -> None:
        """Send the request; then the wait for its answer begins. Raises ``SendFailure`` or ``CallerGone``."""
        if self.connection is None:
            raise SendFailure("other")
        self.connection.send(request, silence=self.relay_timeout, caller=caller)
        self.await_answer()

    def await_answer(self) -> None:
        """The request is out: count the upstream's silence from now."""
        self._deadline = time.monotonic() + self.first_byte_timeout

    def await_early_answer(self) -> None:
        """The upstream took only a part of the request: it may have answered, and is of no use after that."""
        self.exchange.spoil()
        self.restart_silence()

    def restart_silence(self) -> None:
        """Count the upstream's silence from now: it was not being read."""
        self._deadline = time.monotonic() + self.relay_timeout

    def on_readable(self) -> bytes:
        """Read the upstream once; body bytes for the caller, often none."""
        connection = self.connection
        if connection is None:
            return b""
        try:
            data = connection.receive(RECEIVE_SIZE)
        except OSError:
            return self.fail(Fault.RESET)
        if data is None:
            return b""
        exchange = self.exchange
        body = exchange.receive(data) if data else exchange.receive_eof()
        if body and self.first_output_at is None and exchange.first_output:
            self.first_output_at = time.monotonic()
        if exchange.over:
            self._settle()
        elif exchange.answering:
            self._deadline = time.monotonic() + self.relay_timeout
        return body

    @property
    def has_word(self) -> bool:
        """Whether something has come from the upstream that was not read yet."""
        connection = self.connection
        if connection is None:
            return False
        return connection.pending or _is_readable(connection, within=0.0)

    @property
    def transport_reason(self) -> str:
        """The readiness reason of an upstream that could not be reached."""
        return f"health_transport_{'reset' if self._attached else 'refused'}"

    def on_timeout(self) -> bytes:
        """The deadline passed in silence."""
        return self.fail(Fault.TIMEOUT)

    def on_caller_gone(self) -> None:
        """The caller left: the exchange is over and its upstream connection closed, now."""
        self.exchange.abort()
        self._settle()
        self._drop_connection()

    def fail(self, fault: Fault) -> bytes:
        """End the exchange with ``fault``; the error for the caller."""
        body = self.exchange.fail(fault)
        self._settle()
        return body

    def finish(self, *, linger: float = 0.0) -> None:
        """The last bytes are out: pool the upstream connection if it can be used again, else close it.

        ``linger`` seconds are spent at most on framing that is still on its way and would make it usable.
        """
        connection = self.connection
        if connection is None:
            return
        exchange = self.exchange
        if linger and exchange.drainable and _is_readable(connection, within=linger):
            self.on_readable()
        if exchange.reusable:
            self.connection = None
            self._pool.give_back(self._endpoint, connection)
        else:
            self._drop_connection()

    def close(self) -> None:
        """The fallback: whatever state this is in, nothing of it stays behind. Idempotent."""
        if not self.exchange.over:
            self.exchange.abort()
        self._settle()
        self._drop_connection()

    def _settle(self) -> None:
        """Give the lease back, once.

        A connection that is of no more use is closed before that: until then the upstream may be at work, and
        the next request must not find it at its ceiling.
        """
        if self._settled:
            return
        self._settled = True
        try:
            if not (self.exchange.reusable or self.exchange.drainable):
                self._drop_connection()
        finally:
            if self.lease is not None:
                self.lease.release()
            self._on_over(self)

    def _drop_connection(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


def _is_readable(connection: Connection, *, within: float) -> bool:
    """Whether something comes from the upstream, or its end, in that many seconds."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(within * 1000))


class StopSignal:
    """Wakes every thread that waits in a blocking driver: the process is stopping, exchanges end now."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.is_set = False

    def __del__(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        """Readable from now on, for everybody."""
        self.is_set = True
        os.eventfd_write(self._fd, 1)


class BlockingDriver:
    """Serves one dispatch from the calling thread, watching upstream and caller at once.

    ``caller`` is the caller's socket where the server gives it away, else None: a disconnect is then noticed
    only when writing fails. End of file from a caller whose request is complete counts as gone.
    """

    __slots__ = ("_caller_fd", "_dispatch", "_poller", "_stop_fd", "_upstream_fd")

    def __init__(
        self, dispatch: Dispatch, caller: socket.socket | None, stopping: StopSignal | None = None
    ) -> None:
        self._dispatch = dispatch
        self._poller = select.poll()
        self._stop_fd = -1
        if stopping is not None:
            self._stop_fd = stopping.fileno()
            self._poller.register(self._stop_fd, select.POLLIN)
        self._upstream_fd = self._caller_fd = -1
        if dispatch.connection is not None:
            self._upstream_fd = dispatch.connection.fileno()
            self._poller.register(self._upstream_fd, select.POLLIN)
        if caller is not None:
            self._caller_fd = caller.fileno()
            self._poller.register(self._caller_fd, POLLRDHUP)

    def step(self) -> bytes:
        """Wait for one thing to happen and let the dispatch take it; body bytes for the caller."""
        dispatch = self._dispatch
        connection = dispatch.connection
        if connection is None:
            return b""
        if connection.pending:
            return dispatch.on_readable()
        silence = dispatch.deadline - time.monotonic()
        # Polled even when the deadline has passed: a slow caller may have kept us from bytes that did arrive.
        ready = self._poller.poll(max(0.0, silence) * 1000)
        if not ready:
            return dispatch.on_timeout()
        for fd, _ in ready:
            if fd == self._caller_fd:
                dispatch.on_caller_gone()
                return b""
            if fd == self._stop_fd:
                return dispatch.fail(Fault.STOPPING)
        return dispatch.on_readable()

    def run_to_head(self) -> bytes:
        """Step until the head is known or the exchange is over; the body bytes that came with it."""
        dispatch = self._dispatch
        while dispatch.head is None and not dispatch.over:
            body = self.step()
            if body:
                return body
        return b""

    def run_to_end(self) -> bytes:
        """Step until the exchange is over; all body bytes that came on the way."""
        parts = []
        while not self._dispatch.over:
            parts.append(self.step())
        return b"".join(parts)


class StreamBody:
    """The body of a streamed answer as WSGI iterates it; ``close`` works on one that never was iterated.

    An answer that must be left without its proper end raises ConnectionResetError instead of stopping: the
    server then breaks off, too. ``on_close`` is called once, after the server is done with the body.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        driver: BlockingDriver,
        first: bytes,
        on_close: Callable[[], None],
    ) -> None:
        self._dispatch = dispatch
        self._driver = driver
        self._first = first
        self._on_close = on_close
        self._closed = False

    def __iter__(self) -> "StreamBody":
        return self

    def __next__(self) -> bytes:
        if self._first:
            body, self._first = self._first, b""
            return body
        dispatch = self._dispatch
        while not dispatch.over:
            body = self._driver.step()
            if body:
                return body
        if dispatch.exchange.truncated:
            raise ConnectionResetError(errno.ECONNRESET, "the answer broke off")
        raise StopIteration

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._dispatch.over:
            self._dispatch.finish(linger=LINGER)
        self._dispatch.close()
        self._on_close()
