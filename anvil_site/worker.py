"""The gunicorn worker: a thread is given to a whole request, never to a connection.

gthread hands a thread to whoever has sent one byte, so half-sent heads and idle connections can take all of
them. Here one poller reads every connection until its request is complete, head and body, against deadlines
and a byte budget, and only then gives it a thread: one of the data plane's, or one of the few that serve
people and management and stay free while every place of the data plane is taken. Health answers come from
the poller itself. Once a request has been sent upstream, its connection leaves the thread for the relay loop
and comes back when the exchange is over; so does what a caller is slow to read of any other answer.

What it leans on in gunicorn, and tests hold: ``ThreadWorker``'s constructor, ``PollableMethodQueue``,
``TConn`` with a parser whose unreader can be filled, ``handle_request``, and ``handle_exit`` as SIGTERM's
handler.
"""

import errno
import gc
import logging
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, NoReturn

from gunicorn import http, util
from gunicorn.arbiter import Arbiter
from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import TConn, ThreadWorker

from anvil_site import boot, reloads
from anvil_site import gunicorn as process
from anvil_site.executor import Executor
from anvil_site.incoming import (
    BODY_MIN_RATE,
    BODY_SILENCE,
    MAX_HEAD_BYTES,
    BadRequest,
    ChunkedBody,
    RequestHead,
    cannot_become_head,
    next_body_deadline,
    parse_head,
)
from anvil_site.outlet import Outlet
from routing.dialects.base import Failure
from routing.gateway import Refused, Reply
from routing.loop import Flow, RelayLoop, render_head
from routing.views import (
    BODY_TOO_LARGE,
    BODY_TOO_SLOW,
    CAN_DETACH,
    RETRY_SOON,
    SERVER_BUSY,
    DataPlane,
    Detached,
    Unanswered,
)

logger = logging.getLogger("anvil.worker")

HEAD_SECONDS: Final = 10.0
"""From the first byte of a request (or the connection's start) to the end of its head."""

BODY_TURN: Final = 2.0
"""Seconds that a body may have been incomplete when another one finds the budget full: then its room goes to
that one. 32 MiB are through in this time on a gigabit line."""

WRITE_SILENCE: Final = 30.0
"""Seconds that a thread waits for its caller: for one that takes nothing, and in all for one whose
answer there is no room to keep."""

ROOM_LOOK: Final = 0.5
"""Seconds after which a thread that waits for such a caller looks again whether there is room by now."""

LINGER_SECONDS: Final = 2.0
"""How long the rest of a refused request is read away, so that the refusal is not lost to a reset."""

END_MARGIN: Final = 3.0
"""Seconds before the grace time's end at which exchanges that still run end in an error."""

EXIT_MARGIN: Final = 1.5
"""Seconds before the grace time's end at which the process leaves, so that its master need not kill it."""

FIRST_PROBES_SECONDS: Final = 5.0
"""How long a worker that follows another lets callers wait for its first probes."""

SWEEP_SECONDS: Final = 0.25

YOUNG_OBJECTS: Final = 10_000
"""Objects made and not freed yet before the collector looks at them. Requests leave no cycles behind."""

ACCEPT_PAUSE: Final = 0.1
STALL_SECONDS: Final = 5.0
"""A turn of the relay loop that takes longer is told of."""

TELL_AGAIN: Final = 5.0
MANAGEMENT_THREADS: Final = 24
MANAGEMENT_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bound of one body that is not the data plane's: three documents of 1 MiB, however encoded, fit twice."""

MANAGEMENT_BUDGET: Final = 64 * 1024 * 1024
"""Bytes that all those bodies may take together. The data plane's do not count, nor these there."""

UNFINISHED_A_TURN: Final = 16
"""Bodies in very many chunks that are read on in one turn of the poller: some twenty milliseconds' work."""

FREE_REST: Final = 64 * 1024
"""So much of an answer is kept for a slow reader in any case: the number of connections bounds it."""

READ_SIZE: Final = 262_144

_READ_ONCE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
_SEND_TIMEOUT: Final = struct.pack("ll", int(WRITE_SILENCE), 0)
_DONT_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

HEAD_TOO_SLOW: Final = Failure(
    status=408, code="request_timeout", message="The request did not come in time."
)
INTERNAL: Final = Failure(status=500, code="internal_error", message="The request could not be served.")

State = Literal["idle", "head", "body", "busy", "linger"]
"""What a connection waits for: a request to begin, its head, its body, its answer, or its own end."""


class Budget:
    """Bytes that may be held at once. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        return self._held

    def take(self, size: int) -> bool:
        """Whether ``size`` bytes more may be held; they are to be given back then."""
        with self._lock:
            if self._held + size > self.limit:
                return False
            self._held += size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._held -= size


class Connection(TConn):
    """One caller's connection and what has come in on it.

    The socket stays in blocking mode for its whole life: the poller reads it with MSG_DONTWAIT, the relay
    loop writes it with MSG_DONTWAIT, and a thread's writes are bounded by SO_SNDTIMEO. Nobody ever finds it
    in a mode that somebody else left it in.

    ``since`` is when it began to wait for what it waits for; progress within a request does not move it.
    """

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any, now: float) -> None:
        super().__init__(cfg, sock, client, server)
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fd: int = sock.fileno()
        self.state: State = "head"
        self.since = now
        self.deadline = now + HEAD_SECONDS
        self.buffer = bytearray()
        self.seen = 0
        """How much of the buffer was looked at before, for a head that is not complete yet."""
        self.head: RequestHead | None = None
        self.chunks: ChunkedBody | None = None
        self.budget: Budget | None = None
        self.charged = 0
        self.close_after = False


class AnvilWorker(ThreadWorker):
    """See the module. One instance per worker process, its `run` in the main thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections: dict[int, Connection] = {}
        self._unfinished: deque[Connection] = deque()
        """Whose buffers hold more of a body than was read in one go; the poller's thread only."""
        self._epoll: select.epoll
        self._listening = False
        self._accept_again = 0.0
        self._pause_told = float("-inf")
        self._stall_told = float("-inf")
        self._next_sweep = 0.0
        self._bodies: Budget
        self._body_silence: float = BODY_SILENCE
        self._body_min_rate: float = BODY_MIN_RATE
        self._management_bodies = Budget(MANAGEMENT_BUDGET)
        self._reload_generation = reloads.generation()
        self._term_received = False
        self._quit_received = False
        self._drain_deadline: float | None = None
        self._exit_deadline = 0.0
        self.plane: DataPlane
        self.loop: RelayLoop

    # Life of the process -----------------------------------------------------------------------------------

    def init_process(self) -> None:
        # Not before the fork: the master would keep a descriptor of each for every worker it ever made.
        self._epoll = select.epoll()
        self.loop = RelayLoop()
        self.management = Executor(MANAGEMENT_THREADS, name="anvil-management")
        super().init_process()

    def get_thread_pool(self) -> Executor:  # type: ignore[override]
        self.data = Executor(self.cfg.threads, name="anvil-data")
        return self.data

    def load_wsgi(self) -> None:
        """Wait for a predecessor of the same master to leave, then load the application.

        A worker that a reload started does not accept before it owns the ledger: connections wait in the
        backlog meanwhile, and no ceiling is ever counted twice. Whoever follows another, after a crash too,
        lets them wait for its first probes besides, rather than refuse what its predecessor would serve.
        """
        try:
            runtime = process.runtime()
            self._wait_while(runtime.predecessor_owns_ledger, float("inf"))
            super().load_wsgi()
        except Exception as error:
            sentence = boot.sentence_of(error, Path(os.environ.get("ANVIL_DATA") or "var").resolve())
            if sentence is None:
                raise
            # The master tells of it; a traceback would only hide it.
            boot.refuse(sentence)
            raise SystemExit(Arbiter.WORKER_BOOT_ERROR) from None
        if self.age > 1:
            router = runtime.router
            self._wait_while(
                lambda: router.not_ready_reason() == "first_probes_pending",
                time.monotonic() + FIRST_PROBES_SECONDS,
            )
        self.plane = runtime.data_plane()
        self._bodies = Budget(runtime.body_budget)
        self._max_body = runtime.max_body_bytes
        self._body_silence, self._body_min_rate = runtime.body_silence, runtime.body_min_rate
        self._router = runtime.router
        server = runtime.evidence.server
        server.loop = self.loop.stats
        server.executors = {
            "data": self.data.reading,
            "management": self.management.reading,
        }
        # What was loaded stays. A walk through it would hold every stream up for 50 ms, again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)

    def _wait_while(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait before the poller turns, until ``deadline`` at most; a signal to stop ends the process."""
        while condition() and time.monotonic() < deadline:
            if self._term_received:
                self._end_process()
            self.notify()
            time.sleep(0.02)

    def handle_exit(self, sig: int, frame: object) -> None:
        """SIGTERM: begin to drain; the poller does it, a signal handler only says so."""
        self._term_received = True
        self.method_queue.defer(lambda: None)

    def handle_quit(self, sig: int, frame: object) -> None:
        """SIGQUIT, SIGINT: what runs ends in an error now, and the process with it."""
        if not self.booted:
            self._end_process()
        self._quit_received = True
        self.handle_exit(sig, frame)

    def _end_process(self) -> NoReturn:
        raise SystemExit(0)

    def run(self) -> None:
        self._epoll.register(self.method_queue.fileno() or -1, select.EPOLLIN)
        self._listen(True)
        while self.alive:
            self._turn(1.0 if self._drain_deadline is None else 0.1)
            if self._quit_received:
                self._end_exchanges()
                self.alive = False
            elif self._term_received and self._drain_deadline is None:
                self._begin_drain(keep_listening=reloads.generation() == self._reload_generation)
            elif self._drain_deadline is None and not self.is_parent_alive():
                # Nobody will restart us: leave the port to the next master, let streams go on.
                self._begin_drain(keep_listening=False)
            if self._drain_deadline is not None and self._drained():
                self.alive = False
        self._leave()

    def _begin_drain(self, *, keep_listening: bool) -> None:
        now = time.monotonic()
        self._drain_deadline = now + max(0.0, self.cfg.graceful_timeout - END_MARGIN)
        self._exit_deadline = now + max(0.0, self.cfg.graceful_timeout - EXIT_MARGIN)
        self._router.draining = True
        logger.info("draining: %d requests are running", self.plane.places.taken)
        if not keep_listening:
            self._leave_port()
        for connection in tuple(self._connections.values()):
            if connection.state == "idle":
                self._close(connection)

    def _drained(self) -> bool:
        """Whether the process may end: nothing runs any more, or the grace time is nearly over."""
        if not any(connection.state == "busy" for connection in tuple(self._connections.values())):
            return True
        now = time.monotonic()
        if self._drain_deadline is not None and now >= self._drain_deadline:
            logger.warning("grace time is over: ending what still runs")
            self._drain_deadline = float("inf")
            self._end_exchanges()
        return now >= self._exit_deadline

    def _end_exchanges(self) -> None:
        self._router.stopping.set()
        self.loop.end_all()

    def _leave_port(self) -> None:
        """Close our side of the listening sockets. One that nobody else holds frees its address by that."""
        self._listen(False)
        listeners, self.sockets = self.sockets, []
        for listener in listeners:
            listener.close()

    def _leave(self) -> None:
        """What gunicorn's own handler does at last, for our connections."""
        self._leave_port()
        self.loop.stop()
        for connection in tuple(self._connections.values()):
            try:
                # Wakes a thread that waits for this caller; closing alone would not.
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._close(connection)
        self.data.shutdown()
        self.management.shutdown()
        process.runtime().stop()
        self._epoll.close()
        self.method_queue.close()

    # The poller --------------------------------------------------------------------------------------------

    def _turn(self, timeout: float) -> None:
        """Serve what is ready, at most ``timeout`` seconds from now, and the deadlines."""
        wait = 0.0 if self._unfinished else min(timeout, SWEEP_SECONDS)
        ready = [fd for fd, _ in self._epoll.poll(wait)]
        # Who is here comes before who wants in: a request that has come makes no room unread.
        ready.sort(key=lambda fd: fd not in self._connections)
        for fd in ready:
            connection = self._connections.get(fd)
            try:
                if connection is not None:
                    self._on_readable(connection)
                elif fd == self.method_queue.fileno():
                    self.method_queue.run_callbacks(None)
                else:
                    self._accept(fd)
            except Exception:
                logger.exception("a connection failed in the poller")
                if connection is not None:
                    self._close(connection)
        for _ in range(min(len(self._unfinished), UNFINISHED_A_TURN)):
            self._advance(self._unfinished.popleft())
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS
            self.notify()
            self._sweep(now)

    def _listen(self, enabled: bool) -> None:
        if enabled == self._listening:
            return
        self._listening = enabled
        for listener in self.sockets:
            if enabled:
                listener.setblocking(False)
                self._epoll.register(listener.fileno(), select.EPOLLIN)
            else:
                self._epoll.unregister(listener.fileno())

    def _accept(self, fd: int) -> None:
        listener = next((each for each in self.sockets if each.fileno() == fd), None)
        if listener is None:
            return
        # A bounded burst a turn: the connections that are open come first. Nobody makes room after the first
        # was let in: the next turn tells whether somebody still waits for it, and reads what came meanwhile.
        accepted = False
        for _ in range(64):
            if len(self._connections) >= self.worker_connections:
                if accepted:
                    return
                if not self._evict():
                    self._pause_accepting("every connection is in use")
                    return
            try:
                sock, client = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                if accepted:
                    return
                if self._evict():
                    continue
                self._pause_accepting("no descriptor is free")
                return
            connection = Connection(self.cfg, sock, client, listener.getsockname(), time.monotonic())
            self._connections[connection.fd] = connection
            self._epoll.register(connection.fd, _READ_ONCE)
            accepted = True

    def _pause_accepting(self, why: str) -> None:
        """New connections wait in the backlog for a moment; the ones that are open go on."""
        now = time.monotonic()
        if now - self._pause_told >= TELL_AGAIN:
            self._pause_told = now
            logger.warning("accepting pauses: %s", why)
        self._accept_again = now + ACCEPT_PAUSE
        self._listen(False)

    def _evict(self) -> bool:
        """Make room by closing the connection that has been waiting longest for a request to begin.

        Without any, the one whose request has been incomplete for the longest time goes.
        """
        waiting = [each for each in tuple(self._connections.values()) if each.state != "busy"]
        if not waiting:
            return False
        self._close(min(waiting, key=lambda each: (each.state not in ("idle", "linger"), each.since)))
        return True

    def _on_readable(self, connection: Connection) -> None:
        if connection.state == "busy":
            # An event for an earlier owner of the descriptor: whoever answers this one arms it at last.
            return
        try:
            data = connection.sock.recv(READ_SIZE, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            self._arm(connection)
            return
        except OSError:
            self._close(connection)
            return
        if not data:
            self._close(connection)
            return
        if connection.state == "linger":
            self._arm(connection)
            return
        now = time.monotonic()
        if connection.state == "idle":
            self._await_head(connection, now)
        connection.buffer += data
        if connection.state == "body":
            connection.deadline = next_body_deadline(
                connection.deadline,
                now=now,
                received=len(data),
                silence=self._body_silence,
                min_rate=self._body_min_rate,
            )
        self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        """Take the connection as far as its buffer allows: to a thread when its request is complete.

        Raises nothing, since it is deferred to the poller, too. By then the connection may have been closed
        or refused: what would be charged for it then nobody would give back.
        """
        if connection.state not in ("head", "body") or self._connections.get(connection.fd) is not connection:
            return
        try:
            if connection.head is None and not self._read_head(connection):
                return
            if self._read_body(connection):
                self._dispatch(connection)
            elif connection.state != "body":
                return
            elif connection.chunks is not None and connection.chunks.unfinished:
                self._unfinished.append(connection)
            else:
                self._arm(connection)
        except BadRequest as error:
            self._refuse(connection, error.status)
        except OSError:
            self._close(connection)
        except Exception:
            logger.exception("a request failed in the poller")
            self._close(connection)

    def _await_head(self, connection: Connection, now: float) -> None:
        # The state comes last: the sweep may look at any moment.
        connection.since = now
        connection.deadline = now + HEAD_SECONDS
        connection.state = "head"

    def _read_head(self, connection: Connection) -> bool:
        """Whether the head is complete and its request is to be read on."""
        buffer = connection.buffer
        while buffer.startswith(b"\r\n"):
            # A stray line end before a request is to be tolerated (RFC 9112, 2.2).
            del buffer[:2]
            connection.seen = 0
        end = buffer.find(b"\r\n\r\n", max(0, connection.seen - 3))
        if end < 0 or end > MAX_HEAD_BYTES:
            if len(buffer) > MAX_HEAD_BYTES:
                raise BadRequest(431)
            if cannot_become_head(buffer, connection.seen):
                raise BadRequest(400)
            connection.seen = len(buffer)
            self._arm(connection)
            return False
        head = parse_head(bytes(buffer[: end + 4]))
        del buffer[: end + 4]
        connection.seen = 0
        connection.head = head
        connection.deadline = time.monotonic() + self._body_silence
        connection.state = "body"
        connection.budget = self._management_bodies
        if self._is_data(head):
            connection.budget = self._bodies
            refusal = self.plane.refuses
            if refusal is None and not _is_complete(head, buffer):
                # A stranger's body is neither waited for nor kept.
                refusal = self.plane.refuses_key(head.field("authorization"), head.field("x-api-key"))
            if refusal is not None:
                self._refuse_data(connection, head, refusal)
                return False
        if head.content_length is None:
            connection.chunks = ChunkedBody()
        elif head.content_length > self._body_limit(connection):
            self._refuse_data(connection, head, BODY_TOO_LARGE)
            return False
        if head.expects_continue and not buffer:
            connection.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n", _DONT_WAIT)
        return True

    def _body_limit(self, connection: Connection) -> int:
        """The most bytes that the connection's request may have for a body."""
        if connection.budget is self._management_bodies:
            return min(self._max_body, MANAGEMENT_BODY_BYTES)
        return self._max_body

    def _read_body(self, connection: Connection) -> bool:
        """Whether the body is complete. Its budget is charged for what came, not for what was announced."""
        head, chunks = connection.head, connection.chunks
        if head is None:
            return False
        if chunks is None:
            length = head.content_length or 0
            held = min(len(connection.buffer), length)
            complete = held == length
        else:
            complete = chunks.take(connection.buffer)
            held = len(chunks.body)
        if held > self._body_limit(connection):
            self._refuse_data(connection, head, BODY_TOO_LARGE)
            return False
        while not self._charge(connection, held - connection.charged):
            if not self._make_room(connection):
                self._refuse_data(connection, head, SERVER_BUSY)
                return False
        return complete

    def _make_room(self, connection: Connection) -> bool:
        """Refuse another body, so that there is room for the connection's. Whether there was one to refuse.

        It is the one that has been incomplete for longest, if it has had its `BODY_TURN` and began before
        this one. So whoever fills the budget and does not go on keeps nobody out.
        """
        holding = (
            each
            for each in tuple(self._connections.values())
            if each.state == "body" and each.charged and each.budget is connection.budget
        )
        oldest = min(holding, key=lambda each: each.since, default=connection)
        if oldest.head is None or oldest.since >= min(connection.since, time.monotonic() - BODY_TURN):
            return False
        self._refuse_data(oldest, oldest.head, SERVER_BUSY)
        return True

    def _charge(self, connection: Connection, size: int) -> bool:
        """Take ``size`` bytes of the connection's budget, until its request has been answered."""
        if connection.budget is None or not connection.budget.take(size):
            return False
        connection.charged += size
        return True

    def _dispatch(self, connection: Connection) -> None:
        """The request is complete: answer at once what needs no thread, give a thread to the rest."""
        head, chunks = connection.head, connection.chunks
        if head is None:
            return
        if chunks is not None:
            body = bytes(chunks.body)
        else:
            length = head.content_length or 0
            body = bytes(connection.buffer[:length])
            del connection.buffer[:length]
        connection.state = "busy"
        connection.head = connection.chunks = None
        connection.close_after = not head.keep_alive or self._drain_deadline is not None
        if head.path in ("/healthz", "/readyz"):
            # From the poller itself: nothing in it waits.
            self._serve_data(connection, head, body)
        elif self._is_data(head):
            self.data.submit(self._serve_data, connection, head, body)
        else:
            self.management.submit(self._serve_rest, connection, head, body)

    def _is_data(self, head: RequestHead) -> bool:
        # Decoded, as everybody behind us reads it: an escaped path must not take management's threads.
        return self.plane.is_inference(head.decoded_path)

    def _sweep(self, now: float) -> None:
        if not self._listening and now >= self._accept_again:
            self._listen(True)
        for connection in tuple(self._connections.values()):
            if connection.state != "busy" and now >= connection.deadline:
                if connection.head is not None:
                    self._refuse_data(connection, connection.head, BODY_TOO_SLOW)
                elif connection.state == "head" and connection.buffer:
                    self._send_refusal(connection, HEAD_TOO_SLOW, self.plane.refusal("", HEAD_TOO_SLOW))
                else:
                    self._close(connection)
        stalled = self.loop.stalled_seconds
        if stalled >= STALL_SECONDS and now - self._stall_told >= TELL_AGAIN:
            self._stall_told = now
            logger.error("the relay loop has not turned for %.0f seconds", stalled)

    def _arm(self, connection: Connection) -> None:
        """Hear once more when there is something to read. May be called from any thread."""
        try:
            self._epoll.modify(connection.fd, _READ_ONCE)
        except (OSError, ValueError):
            self._close(connection)

    # Answers -----------------------------------------------------------------------------------------------

    def _serve_data(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        """Answer a data-plane request from this thread, or hand its exchange to the relay loop."""
        self._answer(
            connection, head, body, partial(self.plane.answer, data_environ(connection.sock, head, body))
        )

    def _attend(self, connection: Connection, head: RequestHead, detached: Detached) -> None:
        """Go on from this thread with an exchange whose answer is too large for the relay loop to judge."""
        self._answer(connection, head, b"", detached.attend)

    def _answer(
        self,
        connection: Connection,
        head: RequestHead,
        body: bytes,
        application: Callable[[Any], Iterable[bytes] | None],
    ) -> None:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None
        ) -> Callable[[bytes], object]:
            started.append((status, headers))
            return lambda data: None

        try:
            try:
                answer = application(start_response)
            except Exception:
                logger.exception("a data-plane request failed")
                self._refuse_data(connection, head, INTERNAL)
                return
            if isinstance(answer, Unanswered):
                self._close(connection)
            elif isinstance(answer, Detached):
                self._detach(connection, head, answer)
            elif answer is None:
                self.management.submit(self._serve_rest, connection, head, body)
            else:
                status, headers = started[0]
                self._write(connection, head, int(status[:3]), headers, answer)
        except OSError:
            self._close(connection)
        except BaseException:
            logger.exception("a data-plane request failed")
            self._close(connection)

    def _write(
        self,
        connection: Connection,
        head: RequestHead,
        status: int,
        headers: Iterable[tuple[str, str]],
        answer: Iterable[bytes],
    ) -> None:
        keep = not connection.close_after
        start = render_head(status, tuple(headers), chunked=False, keep_alive=keep)
        # Of one part there is no copy made, and hundreds of large answers may be on their way.
        body = b"".join(answer) if head.method != "HEAD" else b""
        try:
            sent = connection.sock.sendmsg((start, body), (), _DONT_WAIT)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent < len(start):
            self._deliver(connection, memoryview(start[sent:] + body), keep)
        else:
            self._deliver(connection, memoryview(body)[sent - len(start) :], keep)

    def _deliver(self, connection: Connection, rest: memoryview, keep: bool) -> None:
        """End a request but for the ``rest`` of its answer, which no thread waits for its caller to take.

        Only where the budget has no room to keep it does the thread wait after all, `WRITE_SILENCE` at most:
        callers that are slow on purpose would have all threads by that. Raises OSError when it is over.
        """
        deadline = time.monotonic() + WRITE_SILENCE
        while rest:
            if len(rest) <= FREE_REST or self._charge(connection, len(rest)):
                done = partial(self._done, connection)
                self.loop.deliver(connection.sock, bytes(rest), keep_alive=keep, on_done=done)
                return
            if time.monotonic() >= deadline:
                raise TimeoutError
            poller = select.poll()
            poller.register(connection.sock, select.POLLOUT)
            if poller.poll(ROOM_LOOK * 1000):
                try:
                    rest = rest[connection.sock.send(rest, _DONT_WAIT) :]
                except (BlockingIOError, InterruptedError):
                    continue
        self._done(connection, keep)

    def _detach(self, connection: Connection, head: RequestHead, answer: Detached) -> None:
        try:
            self.loop.add(
                Flow(
                    answer.dispatch,
                    connection.sock,
                    chunked=head.http11,
                    keep_alive=not connection.close_after,
                    headers=answer.headers,
                    on_done=partial(self._done, connection),
                    on_large=partial(self.data.submit, self._attend, connection, head, answer),
                )
            )
        except BaseException:
            answer.dispatch.close()
            raise

    def _serve_rest(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        """Answer a request of Django's through gunicorn's own parser and response."""
        outlet = Outlet(connection.sock)
        keep = False
        try:
            parser = http.get_parser(self.cfg, connection.sock, connection.client)
            parser.unreader.unread(plain_request(head, body))
            request = next(parser)
            if connection.close_after:
                request.must_close = True
            caller: Any = SimpleNamespace(sock=outlet, client=connection.client, server=connection.server)
            keep = bool(self.handle_request(request, caller)) and not connection.close_after
        except ParseException:
            self._refuse(connection, 400)
            return
        except (OSError, StopIteration):
            self._close(connection)
            return
        except Exception:
            logger.exception("a management request failed")
            self._refuse_data(connection, head, INTERNAL)
            return
        try:
            self._deliver(connection, memoryview(outlet.unsent), keep)
        except OSError:
            self._close(connection)

    def _refuse(self, connection: Connection, status: int) -> None:
        """Answer bytes that are no request, and close."""
        failure = Failure(status=status, code="bad_request", message="The request is malformed.")
        self._send_refusal(connection, failure, self.plane.refusal("", failure))

    def _refuse_data(self, connection: Connection, head: RequestHead, failure: Failure) -> None:
        """Refuse a request before its body was read, in its caller's dialect, and close."""
        if failure is SERVER_BUSY:
            self._router.evidence.refused(None, Refused.SERVER_BUSY)
        answer = self.plane.refusal(head.decoded_path, failure, request_id=head.field("x-request-id"))
        self._send_refusal(connection, failure, answer)

    def _send_refusal(self, connection: Connection, failure: Failure, answer: Reply) -> None:
        headers = (*answer.headers, ("Content-Length", str(len(answer.body))))
        if failure.status == 503:
            headers = (*headers, RETRY_SOON)
        elif failure.status == 401:
            headers = (*headers, ("WWW-Authenticate", "Bearer"))
        data = render_head(failure.status, headers, chunked=False, keep_alive=False) + answer.body
        self._send_and_linger(connection, data)

    def _send_and_linger(self, connection: Connection, data: bytes) -> None:
        """Send, close our side, and read away what still comes in: a reset could outrun the answer."""
        try:
            connection.sock.send(data, _DONT_WAIT)
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(connection)
            return
        self._give_back_budget(connection)
        connection.buffer.clear()
        connection.head = connection.chunks = None
        connection.since = time.monotonic()
        connection.deadline = connection.since + LINGER_SECONDS
        connection.state = "linger"
        self._arm(connection)

    # The end of a request ----------------------------------------------------------------------------------

    def _done(self, connection: Connection, keep: bool) -> None:
        """A request was answered: wait for the next one, or close. Called from any thread."""
        self._give_back_budget(connection)
        if not keep or self._drain_deadline is not None:
            self._close(connection)
            return
        now = time.monotonic()
        if connection.buffer:
            # A pipelined request waits in the buffer; only the poller's thread may take it on.
            self._await_head(connection, now)
            self.method_queue.defer(self._advance, connection)
            return
        connection.since = now
        connection.deadline = now + self.cfg.keepalive
        connection.state = "idle"
        self._arm(connection)

    def _give_back_budget(self, connection: Connection) -> None:
        charged, connection.charged = connection.charged, 0
        if connection.budget is not None and charged:
            connection.budget.give_back(charged)

    def _close(self, connection: Connection) -> None:
        """Close once; harmless when closed. The entry goes first: the number may be another's right after."""
        if self._connections.get(connection.fd) is connection:
            self._connections.pop(connection.fd, None)
            self._give_back_budget(connection)
            util.close(connection.sock)


def _is_complete(head: RequestHead, buffer: bytearray) -> bool:
    """Whether a body of announced length has come together with its head."""
    return head.content_length is not None and head.content_length <= len(buffer)


_ENVIRON_KEYS: Final = {
    "authorization": "HTTP_AUTHORIZATION",
    "x-api-key": "HTTP_X_API_KEY",
    "x-request-id": "HTTP_X_REQUEST_ID",
    "x-anvil-workbench-run-id": "HTTP_X_ANVIL_WORKBENCH_RUN_ID",
    "x-anvil-task-id": "HTTP_X_ANVIL_TASK_ID",
    "origin": "HTTP_ORIGIN",
    "sec-fetch-site": "HTTP_SEC_FETCH_SITE",
    "content-type": "CONTENT_TYPE",
    "anthropic-version": "HTTP_ANTHROPIC_VERSION",
}


def data_environ(sock: socket.socket, head: RequestHead, body: bytes) -> dict[str, Any]:
    """The WSGI environ as far as the data plane reads it; the body is complete and its length exact."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": head.method,
        "PATH_INFO": head.decoded_path,
        "QUERY_STRING": head.query,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": BytesIO(body),
        "gunicorn.socket": sock,
        CAN_DETACH: True,
    }
    for name, value in head.fields:
        key = _ENVIRON_KEYS.get(name)
        if key is not None:
            environ[key] = value
    return environ


_HOP_FIELDS: Final = frozenset({"transfer-encoding", "content-length", "expect", "upgrade", "http2-settings"})


def plain_request(head: RequestHead, body: bytes) -> bytes:
    """The same request for gunicorn's parser: checked fields, and the decoded body with its exact length.

    Names with an underscore stay out: in an environ they would pass for others, and gunicorn lets a trusted
    peer rewrite the path by some.
    """
    lines = [f"{head.method} {head.target} HTTP/1.{int(head.http11)}"]
    lines += [
        f"{name}: {value}" for name, value in head.fields if name not in _HOP_FIELDS and "_" not in name
    ]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
