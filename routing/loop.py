"""The relay loop: one thread that drives every exchange.

A thread per exchange loses its time to hand-overs of the interpreter lock; one epoll loop that reads an
upstream, feeds its exchange and writes the frames at once pays for none. The loop owns both sockets of a flow
from `add` until it calls ``on_done``, and has unregistered them by then, so an event of an earlier owner can
never reach a descriptor number that was closed and opened again.

Rules of the loop: nothing in it blocks, one event costs one bounded read, an exception ends one flow and
never the loop. A caller that takes its bytes slowly stops the reading of its own upstream and nobody else's.
"""

import fcntl
import logging
import os
import select
import socket
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Final

from routing.exchange import Fault
from routing.relay import Dispatch
from routing.upstream import POLLRDHUP

logger = logging.getLogger("anvil.loop")

HIGH_WATER: Final = 256 * 1024
"""Bytes that may wait for one caller before its upstream is read no further."""

LOW_WATER: Final = 32 * 1024

LARGE_ANSWER: Final = 128 * 1024
"""Bytes of an answer, judged as a whole, that the loop takes on: a millisecond's work at most."""

WRITE_SILENCE: Final = 120.0
"""Seconds without taking one byte after which a caller counts as gone. Taking shows in whole segments only,
and on a loopback a reader of 1 KiB/s fills one in 64 seconds."""

DRAIN_SECONDS: Final = 1.0
"""How long a finished upstream connection is watched for its last framing before it is closed."""

SWEEP_SECONDS: Final = 0.1
MAX_EVENTS: Final = 256

_GONE: Final = select.EPOLLHUP | select.EPOLLERR | POLLRDHUP
_SEND_FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_LAST_CHUNK: Final = b"0\r\n\r\n"
ABORTIVE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset."""

Done = Callable[[bool], None]
"""Called once, in the loop's thread, when both sockets are free: whether to keep the caller's open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStats:
    """What the loop is doing now; ``stalled_seconds`` grows when it has stopped turning."""

    flows: int
    buffered_bytes: int
    turns: int
    slowest_turn_seconds: float
    stalled_seconds: float


class Flow:
    """One answer on its way to one caller. Touched by the loop's thread only, once added.

    ``client`` stays in blocking mode: the loop reads nothing from it and writes with ``MSG_DONTWAIT``.
    ``chunked`` says whether the caller's HTTP version knows chunked framing; one that does not gets unframed
    bytes, ended by the close of its connection. Without a ``dispatch`` there is only ``rest`` left to send.
    ``on_large`` is called instead of ``on_done`` when the loop lets go of an answer that has to be judged as
    a whole and is larger than ``LARGE_ANSWER``: its exchange is not over, and the callee's to drive.
    """

    __slots__ = (
        "backlog",
        "chunked",
        "client",
        "client_fd",
        "client_mask",
        "dispatch",
        "head_sent",
        "headers",
        "keep_alive",
        "on_done",
        "on_large",
        "paused",
        "stuck_since",
        "unacknowledged",
        "unsent",
        "upstream_fd",
    )

    def __init__(
        self,
        dispatch: Dispatch | None,
        client: socket.socket,
        *,
        chunked: bool,
        keep_alive: bool,
        on_done: Done,
        on_large: Callable[[], None] | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        rest: bytes = b"",
    ) -> None:
        self.dispatch = dispatch
        self.client = client
        self.client_fd = client.fileno()
        self.client_mask = 0
        self.upstream_fd = -1
        self.chunked = chunked
        self.keep_alive = keep_alive
        self.headers = headers
        self.head_sent = False
        self.on_done = on_done
        self.on_large = on_large
        self.unsent: deque[bytes | memoryview] = deque([rest] if rest else [])
        self.backlog = len(rest)
        self.paused = False
        self.stuck_since = 0.0
        self.unacknowledged = 0

    @property
    def over(self) -> bool:
        """Whether nothing will come any more that is to be sent."""
        return self.dispatch is None or self.dispatch.over


class RelayLoop:
    """The loop and its thread, which starts with the first flow. `turn` can be called alone from a test."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._commands: deque[Callable[[], None]] = deque()
        self._by_fd: dict[int, Flow] = {}
        self._flows: set[Flow] = set()
        self._draining: dict[int, tuple[Dispatch, float]] = {}
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopping = False
        self._next_sweep = 0.0
        self._turns = 0
        self._slowest = 0.0
        self._turn_began = 0.0

    # What other threads may call -------------------------------------------------------------------------

    def add(self, flow: Flow) -> None:
        """Hand over a flow whose request has been sent; ``flow.on_done`` gives its sockets back."""
        self._start()
        self._call(partial(self._begin, flow))

    def deliver(self, client: socket.socket, rest: bytes, *, keep_alive: bool, on_done: Done) -> None:
        """Send the rest of an answer as the caller takes it, so that no thread has to wait for that."""
        self.add(Flow(None, client, chunked=False, keep_alive=keep_alive, on_done=on_done, rest=rest))

    def end_all(self) -> None:
        """End every running exchange with an error its caller can read: the server is stopping."""
        self._call(self._end_flows)

    def stop(self, timeout: float = 2.0) -> None:
        """End all flows and the thread; waits at most ``timeout`` seconds. Idempotent."""
        thread = self._thread
        if thread is None:
            return
        self._call(self._halt)
        thread.join(timeout)

    def stats(self) -> LoopStats:
        """A reading for metrics; resets the slowest turn."""
        slowest, self._slowest = self._slowest, 0.0
        return LoopStats(
            flows=len(self._flows),
            buffered_bytes=sum(flow.backlog for flow in tuple(self._flows)),
            turns=self._turns,
            slowest_turn_seconds=slowest,
            stalled_seconds=self.stalled_seconds,
        )

    @property
    def stalled_seconds(self) -> float:
        """How long the turn that is under way has been at work; next to nothing while the loop turns."""
        began = self._turn_began
        return self._monotonic() - began if began else 0.0

    def _call(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        os.eventfd_write(self._wake, 1)

    def _start(self) -> None:
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="anvil-relay", daemon=True)
                self._thread.start()

    # The thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.turn(SWEEP_SECONDS)
            except Exception:
                logger.exception("a turn of the relay loop failed")

    def turn(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for events, serve each once, then commands and deadlines."""
        self._turn_began = 0.0
        events = self._epoll.poll(timeout, MAX_EVENTS)
        began = self._turn_began = self._monotonic()
        for fd, mask in events:
            flow = self._by_fd.get(fd)
            if flow is None:
                self._serve_other(fd)
                continue
            try:
                if fd == flow.upstream_fd:
                    self._on_upstream(flow)
                else:
                    self._on_client(flow, mask)
            except Exception:
                logger.exception("a stream failed inside the relay")
                self._drop(flow)
        self._run_commands()
        if began >= self._next_sweep:
            self._next_sweep = began + SWEEP_SECONDS
            self._sweep(began)
        self._turns += 1
        self._slowest = max(self._slowest, self._monotonic() - began)

    def _serve_other(self, fd: int) -> None:
        if fd == self._wake:
            os.eventfd_read(fd)
            return
        entry = self._draining.get(fd)
        if entry is not None:
            dispatch = entry[0]
            try:
                dispatch.on_readable()
            except Exception:
                logger.exception("a finished upstream connection could not be read on")
                dispatch.close()
            if not dispatch.exchange.drainable or dispatch.connection is None:
                self._end_draining(fd, dispatch)

    def _run_commands(self) -> None:
        for _ in range(len(self._commands)):
            try:
                self._commands.popleft()()
            except Exception:
                logger.exception("a command of the relay loop failed")

    def _begin(self, flow: Flow) -> None:
        self._flows.add(flow)
        try:
            flow.client_mask = POLLRDHUP
            self._epoll.register(flow.client_fd, POLLRDHUP)
            self._by_fd[flow.client_fd] = flow
            dispatch = flow.dispatch
            if dispatch is None:
                self._flush(flow)
                return
            connection = dispatch.connection
            if connection is None or dispatch.over:
                self._emit(flow, dispatch, b"")
                return
            flow.upstream_fd = connection.fileno()
            self._epoll.register(flow.upstream_fd, select.EPOLLIN)
            self._by_fd[flow.upstream_fd] = flow
            if connection.pending:
                self._on_upstream(flow)
        except Exception:
            logger.exception("a stream could not begin")
            self._drop(flow)

    def _on_upstream(self, flow: Flow) -> None:
        dispatch = flow.dispatch
        if dispatch is None:
            return
        body = dispatch.on_readable()
        connection = dispatch.connection
        while connection is not None and connection.pending and not dispatch.over:
            # Decrypted bytes inside the TLS layer raise no event.
            body += dispatch.on_readable()
        exchange = dispatch.exchange
        if body and flow.head_sent and not flow.unsent and not exchange.over:
            self._pass_on(flow, body)
        elif body or exchange.over or (exchange.head is not None and not flow.head_sent):
            self._emit(flow, dispatch, body)
        elif exchange.collected > LARGE_ANSWER and flow.on_large is not None:
            self._hand_back(flow, dispatch, flow.on_large)

    def _hand_back(self, flow: Flow, dispatch: Dispatch, on_large: Callable[[], None]) -> None:
        """Judging this answer would hold up every stream: a thread takes the exchange over from here."""
        self._forget(flow)
        try:
            on_large()
        except Exception:
            logger.exception("a large answer found no thread")
            dispatch.close()
            flow.on_done(False)

    def _pass_on(self, flow: Flow, body: bytes) -> None:
        """The middle of a stream, which is nearly every event: nothing is queued, so frame it and send it."""
        data = b"%x\r\n%b\r\n" % (len(body), body) if flow.chunked else body
        try:
            sent = flow.client.send(data, _SEND_FLAGS)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._abandon(flow)
            return
        if sent < len(data):
            flow.unsent.append(data[sent:])
            flow.backlog += len(data) - sent
            self._flush(flow)

    def _on_client(self, flow: Flow, mask: int) -> None:
        if mask & _GONE:
            self._abandon(flow)
        elif mask & select.EPOLLOUT:
            self._flush(flow)

    def _emit(self, flow: Flow, dispatch: Dispatch, body: bytes) -> None:
        """Queue what is to be sent now, framed, and send as much as the caller takes.

        Called once, and for the last time, when the exchange is over.
        """
        exchange, head = dispatch.exchange, dispatch.head
        if dispatch.over:
            self._let_go(flow, dispatch)
        if exchange.close_client:
            flow.keep_alive = False
        data = body
        if not flow.head_sent:
            if head is None:
                # Over without a word for the caller: it left.
                flow.keep_alive = False
                self._finish(flow)
                return
            flow.head_sent = True
            flow.chunked = flow.chunked and head.streaming
            if head.streaming and not flow.chunked:
                flow.keep_alive = False
            data = render_head(
                head.status,
                (*head.headers, *flow.headers),
                chunked=flow.chunked,
                keep_alive=flow.keep_alive,
            )
            if body:
                data += frame(body) if flow.chunked else body
        elif body and flow.chunked:
            data = frame(body)
        if dispatch.over:
            if exchange.truncated:
                self._break_off(flow)
            elif flow.chunked:
                data += _LAST_CHUNK
        if data:
            flow.unsent.append(data)
            flow.backlog += len(data)
        self._flush(flow)

    def _break_off(self, flow: Flow) -> None:
        """The answer broke off where only its framing can say so: unframed, no orderly close may end it."""
        flow.keep_alive = False
        if not flow.chunked:
            flow.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTIVE)

    def _let_go(self, flow: Flow, dispatch: Dispatch) -> None:
        """The exchange is over: its connection is pooled or closed now, however long its caller still reads.

        One that would be usable after its last framing is watched for that a moment longer.
        """
        self._unwatch(flow.upstream_fd)
        flow.upstream_fd = -1
        connection = dispatch.connection
        if connection is not None and dispatch.exchange.drainable:
            fd = connection.fileno()
            self._draining[fd] = (dispatch, self._monotonic() + DRAIN_SECONDS)
            self._epoll.register(fd, select.EPOLLIN)
        else:
            dispatch.finish()

    def _flush(self, flow: Flow) -> None:
        while flow.unsent:
            data = flow.unsent[0]
            try:
                sent = flow.client.send(data, _SEND_FLAGS)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._abandon(flow)
                return
            flow.backlog -= sent
            if sent:
                flow.stuck_since = 0.0
            if sent < len(data):
                # A view: copying the rest of a large answer at each step would hold up every stream.
                flow.unsent[0] = memoryview(data)[sent:]
                break
            flow.unsent.popleft()
        if flow.unsent:
            if not flow.stuck_since:
                flow.stuck_since = self._monotonic()
                flow.unacknowledged = unacknowledged(flow.client)
            self._watch_client(flow, POLLRDHUP | select.EPOLLOUT)
        elif flow.over:
            self._finish(flow)
            return
        else:
            self._watch_client(flow, POLLRDHUP)
        self._balance(flow)

    def _balance(self, flow: Flow) -> None:
        """Stop reading the upstream of a caller that lags, go on when it has caught up.

        A paused upstream is not watched at all: its end would be told at every turn until somebody reads.
        """
        dispatch = flow.dispatch
        if dispatch is None or flow.upstream_fd < 0:
            return
        if not flow.paused and flow.backlog > HIGH_WATER:
            flow.paused = True
            self._unwatch(flow.upstream_fd)
        elif flow.paused and flow.backlog < LOW_WATER:
            flow.paused = False
            dispatch.restart_silence()
            self._by_fd[flow.upstream_fd] = flow
            self._epoll.register(flow.upstream_fd, select.EPOLLIN)

    def _watch_client(self, flow: Flow, mask: int) -> None:
        if flow.client_mask != mask:
            flow.client_mask = mask
            self._epoll.modify(flow.client_fd, mask)

    def _unwatch(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            try:
                self._epoll.unregister(fd)
            except OSError:
                pass

    def _finish(self, flow: Flow) -> None:
        """Everything is out, and the exchange over: give the caller's socket back."""
        self._forget(flow)
        flow.on_done(flow.keep_alive)

    def _abandon(self, flow: Flow) -> None:
        """The caller is gone. An exchange that is over has let its connection go; any other ends here."""
        self._forget(flow)
        if flow.dispatch is not None and not flow.dispatch.over:
            flow.dispatch.on_caller_gone()
        flow.on_done(False)

    def _drop(self, flow: Flow) -> None:
        """The last resort: nothing of the flow stays behind, whatever state it is in."""
        if flow not in self._flows:
            return
        held = flow.upstream_fd >= 0 or not flow.over
        self._forget(flow)
        try:
            if held and flow.dispatch is not None:
                flow.dispatch.close()
        finally:
            flow.on_done(False)

    def _forget(self, flow: Flow) -> None:
        self._flows.discard(flow)
        self._unwatch(flow.client_fd)
        self._unwatch(flow.upstream_fd)
        flow.unsent.clear()
        flow.backlog = 0

    def _end_draining(self, fd: int, dispatch: Dispatch) -> None:
        del self._draining[fd]
        try:
            self._epoll.unregister(fd)
        except OSError:
            pass
        dispatch.finish()

    def _sweep(self, now: float) -> None:
        for flow in tuple(self._flows):
            dispatch = flow.dispatch
            try:
                if flow.stuck_since and now - flow.stuck_since > WRITE_SILENCE:
                    self._judge_stuck(flow, now)
                elif (
                    dispatch is not None
                    and not flow.paused
                    and not dispatch.over
                    and now >= dispatch.deadline
                ):
                    self._emit(flow, dispatch, dispatch.on_timeout())
            except Exception:
                logger.exception("a stream failed at its deadline")
                self._drop(flow)
        for fd, (dispatch, deadline) in tuple(self._draining.items()):
            if now >= deadline:
                self._end_draining(fd, dispatch)

    def _judge_stuck(self, flow: Flow, now: float) -> None:
        """A caller that takes a little now and then frees no room for more by that for a long time."""
        left = unacknowledged(flow.client)
        if left < flow.unacknowledged:
            flow.stuck_since, flow.unacknowledged = now, left
        else:
            self._abandon(flow)

    def _end_flows(self) -> None:
        for flow in tuple(self._flows):
            dispatch = flow.dispatch
            if dispatch is None or dispatch.over:
                continue
            try:
                self._emit(flow, dispatch, dispatch.fail(Fault.STOPPING))
            except Exception:
                logger.exception("a stream could not be ended")
                self._drop(flow)

    def _halt(self) -> None:
        self._end_flows()
        for flow in tuple(self._flows):
            self._drop(flow)
        for fd, (dispatch, _) in tuple(self._draining.items()):
            self._end_draining(fd, dispatch)
        self._stopping = True


def unacknowledged(sock: socket.socket) -> int:
    """Bytes that were sent and that the peer has not taken yet."""
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def frame(body: bytes) -> bytes:
    """One chunk of a chunked message."""
    return b"%x\r\n%b\r\n" % (len(body), body)


_date: tuple[int, bytes] = (0, b"")


def http_date() -> bytes:
    """The Date header's value, made once a second."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True).encode("ascii"))
    return _date[1]


_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}


def status_phrase(status: int) -> str:
    """The reason phrase of a status; a plain word for one that has none."""
    return _PHRASES.get(status, "Status")


def render_head(
    status: int, headers: tuple[tuple[str, str], ...], *, chunked: bool, keep_alive: bool
) -> bytes:
    """The head of an HTTP/1.1 answer, ready to send; header values are our own or checked before."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    framing = "Transfer-Encoding: chunked\r\n" if chunked else ""
    connection = "keep-alive" if keep_alive else "close"
    return b"HTTP/1.1 %d %b\r\nDate: %b\r\nConnection: %b\r\n%b\r\n" % (
        status,
        status_phrase(status).encode("ascii"),
        http_date(),
        connection.encode("ascii"),
        (framing + lines).encode("latin-1"),
    )
