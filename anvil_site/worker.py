"""The gunicorn worker: a thread is given to a whole request, never to a connection.

gthread hands a thread to whoever has sent one byte, so half-sent heads and idle connections can take all of
them. Here one poller reads every connection until its request is complete, head and body, against deadlines
and a byte budget, and only then gives it a thread: one of the data plane's, or one of the few that serve
people and management and stay free while every place of the data plane is taken. Health answers come from
the poller itself. Streamed answers leave their thread for the relay loop and come back when they are over.

What it leans on in gunicorn, and tests hold: ``ThreadWorker``'s constructor, ``PollableMethodQueue``,
``TConn`` with a parser whose unreader can be filled, ``handle_request``, and ``handle_exit`` as SIGTERM's
handler.
"""

import errno
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from typing import Any, Final, Literal
from urllib.parse import unquote_to_bytes

from gunicorn import http, util
from gunicorn.workers.gthread import TConn, ThreadWorker

from anvil_site import gunicorn as process
from anvil_site.incoming import MAX_HEAD_BYTES, BadRequest, ChunkedBody, RequestHead, parse_head
from routing.dialects.base import Failure
from routing.loop import Flow, RelayLoop, render_head
from routing.views import BODY_TOO_LARGE, CAN_DETACH, RETRY_SOON, SERVER_BUSY, DataPlane, Detached
from telemetry.evidence import ExecutorReading

logger = logging.getLogger("anvil.worker")

HEAD_SECONDS: Final = 10.0
"""From the first byte of a request (or the connection's start) to the end of its head."""

BODY_SILENCE: Final = 30.0
WRITE_SILENCE: Final = 30.0
LINGER_SECONDS: Final = 2.0
"""How long the rest of a refused request is read away, so that the refusal is not lost to a reset."""

END_MARGIN: Final = 3.0
"""Seconds before the grace time's end at which exchanges that still run end in an error."""

SWEEP_SECONDS: Final = 0.25
ACCEPT_PAUSE: Final = 0.1
MANAGEMENT_THREADS: Final = 24
READ_SIZE: Final = 262_144

_READ_ONCE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
_SEND_TIMEOUT: Final = struct.pack("ll", int(WRITE_SILENCE), 0)
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

State = Literal["idle", "head", "body", "busy", "linger"]


class Connection(TConn):
    """One caller's connection and what has come in on it.

    The socket stays in blocking mode for its whole life: the poller reads it with MSG_DONTWAIT, the relay
    loop writes it with MSG_DONTWAIT, and a thread's writes are bounded by SO_SNDTIMEO. Nobody ever finds it
    in a mode that somebody else left it in.
    """

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any, now: float) -> None:
        super().__init__(cfg, sock, client, server)
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fd: int = sock.fileno()
        self.state: State = "head"
        self.deadline = now + HEAD_SECONDS
        self.buffer = bytearray()
        self.head: RequestHead | None = None
        self.chunks: ChunkedBody | None = None
        self.charged = 0
        self.close_after = False


class AnvilWorker(ThreadWorker):
    """See the module. One instance per worker process, its `run` in the main thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections: dict[int, Connection] = {}
        self._epoll: select.epoll
        self._listening = False
        self._accept_again = 0.0
        self._next_sweep = 0.0
        self._body_bytes = 0
        self._budget_lock = threading.Lock()
        self._reload_generation = process.reload_generation()
        self._term_received = False
        self._drain_deadline: float | None = None
        self._exit_deadline = 0.0
        self.plane: DataPlane
        self.loop = RelayLoop()

    # Life of the process -----------------------------------------------------------------------------------

    def init_process(self) -> None:
        self._epoll = select.epoll()
        self.management = ThreadPoolExecutor(MANAGEMENT_THREADS, thread_name_prefix="anvil-management")
        super().init_process()

    def get_thread_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.cfg.threads, thread_name_prefix="anvil-data")

    def load_wsgi(self) -> None:
        """Wait for a predecessor of the same master to leave, then load the application.

        A worker that a reload started does not accept before it owns the ledger: connections wait in the
        backlog meanwhile, and no ceiling is ever counted twice.
        """
        runtime = process.runtime()
        while runtime.predecessor_owns_ledger() and self.alive:
            self.notify()
            time.sleep(0.05)
        super().load_wsgi()
        self.plane = runtime.data_plane()
        self._budget = runtime.body_budget
        self._max_body = runtime.max_body_bytes
        self._router = runtime.router
        server = runtime.evidence.server
        server.loop = self.loop.stats
        server.executors = {
            "data": partial(executor_reading, self.tpool),
            "management": partial(executor_reading, self.management),
        }

    def handle_exit(self, sig: int, frame: object) -> None:
        """SIGTERM: begin to drain; the poller does it, a signal handler only says so."""
        self._term_received = True
        self.method_queue.defer(lambda: None)

    def run(self) -> None:
        self._epoll.register(self.method_queue.fileno() or -1, select.EPOLLIN)
        self._listen(True)
        while self.alive:
            self.notify()
            self._turn(1.0 if self._drain_deadline is None else 0.1)
            if self._term_received and self._drain_deadline is None:
                self._begin_drain(keep_listening=process.reload_generation() == self._reload_generation)
            elif self._drain_deadline is None and not self.is_parent_alive():
                # Nobody will restart us: leave the port to the next master, let streams go on.
                self._begin_drain(keep_listening=False)
            if self._drain_deadline is not None and self._drained():
                self.alive = False
        self._leave()

    def _begin_drain(self, *, keep_listening: bool) -> None:
        now = time.monotonic()
        self._drain_deadline = now + max(0.0, self.cfg.graceful_timeout - END_MARGIN)
        self._exit_deadline = now + self.cfg.graceful_timeout
        self._router.draining = True
        logger.info("draining: %d requests are running", self.plane.places.taken)
        if not keep_listening:
            self._listen(False)
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
            self._drain_deadline = self._exit_deadline
            self._router.stopping.set()
            self.loop.end_all()
        return now >= self._exit_deadline

    def _leave(self) -> None:
        """What gunicorn's own handler does at last, for our connections."""
        self._listen(False)
        self.loop.stop()
        for connection in tuple(self._connections.values()):
            self._close(connection)
        self.tpool.shutdown(wait=False)
        self.management.shutdown(wait=False)
        process.runtime().stop()
        self._epoll.close()
        self.method_queue.close()
        for listener in self.sockets:
            listener.close()

    # The poller --------------------------------------------------------------------------------------------

    def _turn(self, timeout: float) -> None:
        """Serve what is ready, at most ``timeout`` seconds from now, and the deadlines."""
        for fd, _ in self._epoll.poll(min(timeout, SWEEP_SECONDS)):
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
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS
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
        # A bounded burst a turn: the connections that are open come first.
        for _ in range(64):
            if len(self._connections) >= self.worker_connections and not self._evict():
                self._pause_accepting("every connection is in use")
                return
            try:
                sock, client = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._pause_accepting("no descriptor is free")
                    return
                raise
            connection = Connection(self.cfg, sock, client, listener.getsockname(), time.monotonic())
            self._connections[connection.fd] = connection
            self._epoll.register(connection.fd, _READ_ONCE)

    def _pause_accepting(self, why: str) -> None:
        """New connections wait in the backlog for a moment; the ones that are open go on."""
        logger.warning("accepting pauses: %s", why)
        self._accept_again = time.monotonic() + ACCEPT_PAUSE
        self._listen(False)

    def _evict(self) -> bool:
        """Make room by closing the connection that has been waiting longest for a request to begin or end."""
        waiting = [each for each in tuple(self._connections.values()) if each.state in ("idle", "head")]
        if not waiting:
            return False
        self._close(min(waiting, key=lambda each: each.deadline))
        return True

    def _on_readable(self, connection: Connection) -> None:
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
            connection.state = "head"
            connection.deadline = now + HEAD_SECONDS
        connection.buffer += data
        if connection.state == "body":
            connection.deadline = now + BODY_SILENCE
        self._advance(connection)

    def _advance(self, connection: Connection) -> None:
        """Take the connection as far as its buffer allows: to a thread when its request is complete."""
        try:
            if connection.head is None and not self._read_head(connection):
                return
            if self._read_body(connection):
                self._dispatch(connection)
            elif connection.state == "body":
                self._arm(connection)
        except BadRequest as error:
            self._refuse(connection, error.status)

    def _read_head(self, connection: Connection) -> bool:
        """Whether the head is complete and its request is to be read on."""
        buffer = connection.buffer
        while buffer.startswith(b"\r\n"):
            # A stray line end before a request is to be tolerated (RFC 9112, 2.2).
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n")
        if end < 0 or end > MAX_HEAD_BYTES:
            if len(buffer) > MAX_HEAD_BYTES:
                raise BadRequest(431)
            self._arm(connection)
            return False
        head = parse_head(bytes(buffer[: end + 4]))
        del buffer[: end + 4]
        connection.head = head
        connection.state = "body"
        connection.deadline = time.monotonic() + BODY_SILENCE
        if self._is_data(head):
            refusal = self.plane.refuses
            if refusal is not None:
                self._refuse_data(connection, head, refusal)
                return False
        if head.content_length is None:
            connection.chunks = ChunkedBody()
        elif head.content_length > self._max_body:
            self._refuse_data(connection, head, BODY_TOO_LARGE)
            return False
        elif not self._charge(connection, head.content_length):
            self._refuse_data(connection, head, SERVER_BUSY)
            return False
        if head.expects_continue and not buffer:
            connection.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n", socket.MSG_DONTWAIT)
        return True

    def _read_body(self, connection: Connection) -> bool:
        """Whether the body is complete."""
        head, chunks = connection.head, connection.chunks
        if head is None:
            return False
        if chunks is None:
            return len(connection.buffer) >= (head.content_length or 0)
        before = len(chunks.body)
        complete = chunks.take(connection.buffer)
        if len(chunks.body) > self._max_body:
            self._refuse_data(connection, head, BODY_TOO_LARGE)
            return False
        if not self._charge(connection, len(chunks.body) - before):
            self._refuse_data(connection, head, SERVER_BUSY)
            return False
        return complete

    def _charge(self, connection: Connection, size: int) -> bool:
        """Take ``size`` bytes of the body budget for the connection, until its request is served."""
        with self._budget_lock:
            if self._body_bytes + size > self._budget:
                return False
            self._body_bytes += size
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
            self._serve_data(connection, head, body)
        elif self._is_data(head):
            self.tpool.submit(self._serve_data, connection, head, body)
        else:
            self.management.submit(self._serve_rest, connection, head, body)

    def _is_data(self, head: RequestHead) -> bool:
        return self.plane.is_inference(head.path)

    def _sweep(self, now: float) -> None:
        if self._drain_deadline is None and not self._listening and now >= self._accept_again:
            self._listen(True)
        for connection in tuple(self._connections.values()):
            if connection.state != "busy" and now >= connection.deadline:
                if connection.state == "head" and connection.buffer:
                    self._refuse(connection, 408)
                else:
                    self._close(connection)

    def _arm(self, connection: Connection) -> None:
        """Hear once more when there is something to read. May be called from any thread."""
        try:
            self._epoll.modify(connection.fd, _READ_ONCE)
        except (OSError, ValueError):
            self._close(connection)

    # Answers -----------------------------------------------------------------------------------------------

    def _serve_data(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        """Answer a data-plane request from this thread, or hand its stream to the relay loop."""
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None
        ) -> Callable[[bytes], object]:
            started.append((status, headers))
            return lambda data: None

        try:
            answer = self.plane.answer(data_environ(connection.sock, head, body), start_response)
            if isinstance(answer, Detached):
                self._detach(connection, head, answer)
                return
            if answer is None:
                self.management.submit(self._serve_rest, connection, head, body)
                return
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
        data = render_head(status, tuple(headers), chunked=False, keep_alive=keep)
        if head.method != "HEAD":
            data += b"".join(answer)
        connection.sock.sendall(data)
        self._done(connection, keep)

    def _detach(self, connection: Connection, head: RequestHead, answer: Detached) -> None:
        self.loop.add(
            Flow(
                answer.dispatch,
                connection.sock,
                chunked=head.http11,
                keep_alive=not connection.close_after,
                headers=answer.headers,
                on_done=partial(self._done, connection),
            )
        )

    def _serve_rest(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        """Answer a request of Django's through gunicorn's own parser and response."""
        keep = False
        try:
            parser = http.get_parser(self.cfg, connection.sock, connection.client)
            parser.unreader.unread(plain_request(head, body))
            connection.parser = parser
            request = next(parser)
            if connection.close_after:
                request.must_close = True
            keep = bool(self.handle_request(request, connection)) and not connection.close_after
        except OSError:
            pass
        except StopIteration:
            pass
        except Exception:
            logger.exception("a management request failed")
            try:
                util.write_error(connection.sock, 500, "Internal Server Error", "")
            except OSError:
                pass
        finally:
            connection.parser = None
        self._done(connection, keep)

    def _refuse(self, connection: Connection, status: int) -> None:
        """Answer bytes that are no request, and close."""
        body = b'{"error":{"message":"The request is malformed.","type":"invalid_request_error",'
        body += b'"param":null,"code":"bad_request"}}'
        headers = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
        self._send_and_linger(
            connection, render_head(status, headers, chunked=False, keep_alive=False) + body
        )

    def _refuse_data(self, connection: Connection, head: RequestHead, failure: Failure) -> None:
        """Refuse a request before its body was read, in its caller's dialect, and close."""
        answer = self.plane.refusal(head.path, failure)
        headers = (*answer.headers, ("Content-Length", str(len(answer.body))))
        if failure.status == 503:
            headers = (*headers, RETRY_SOON)
        data = render_head(failure.status, headers, chunked=False, keep_alive=False) + answer.body
        self._send_and_linger(connection, data)

    def _send_and_linger(self, connection: Connection, data: bytes) -> None:
        """Send, close our side, and read away what still comes in: a reset could outrun the answer."""
        try:
            connection.sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(connection)
            return
        self._give_back_budget(connection)
        connection.buffer.clear()
        connection.head = connection.chunks = None
        connection.state = "linger"
        connection.deadline = time.monotonic() + LINGER_SECONDS
        self._arm(connection)

    # The end of a request ----------------------------------------------------------------------------------

    def _done(self, connection: Connection, keep: bool) -> None:
        """A request was answered: wait for the next one, or close. Called from any thread."""
        self._give_back_budget(connection)
        if not keep or self._drain_deadline is not None:
            self._close(connection)
            return
        if connection.buffer:
            # A pipelined request waits in the buffer; only the poller's thread may take it on.
            connection.state = "head"
            connection.deadline = time.monotonic() + HEAD_SECONDS
            self.method_queue.defer(self._advance, connection)
            return
        connection.deadline = time.monotonic() + self.cfg.keepalive
        connection.state = "idle"
        self._arm(connection)

    def _give_back_budget(self, connection: Connection) -> None:
        charged, connection.charged = connection.charged, 0
        if charged:
            with self._budget_lock:
                self._body_bytes -= charged

    def _close(self, connection: Connection) -> None:
        """Close once; harmless when closed. The entry goes first: the number may be another's right after."""
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
            self._give_back_budget(connection)
            util.close(connection.sock)


def executor_reading(pool: ThreadPoolExecutor) -> ExecutorReading:
    """How busy ``pool`` is. Its own account of it is private; a test holds us to what it is today."""
    idle = pool._idle_semaphore._value
    waiting = pool._work_queue.qsize()
    return ExecutorReading(busy=max(0, len(pool._threads) - idle), waiting=waiting)


_ENVIRON_KEYS: Final = {
    "authorization": "HTTP_AUTHORIZATION",
    "x-api-key": "HTTP_X_API_KEY",
    "x-request-id": "HTTP_X_REQUEST_ID",
    "x-anvil-workbench-run-id": "HTTP_X_ANVIL_WORKBENCH_RUN_ID",
    "x-anvil-task-id": "HTTP_X_ANVIL_TASK_ID",
    "content-type": "CONTENT_TYPE",
    "anthropic-version": "HTTP_ANTHROPIC_VERSION",
}


def data_environ(sock: socket.socket, head: RequestHead, body: bytes) -> dict[str, Any]:
    """The WSGI environ as far as the data plane reads it; the body is complete and its length exact."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": head.method,
        "PATH_INFO": unquote_to_bytes(head.path).decode("latin-1") if "%" in head.path else head.path,
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
    """The same request for gunicorn's parser: checked fields, and the decoded body with its exact length."""
    lines = [f"{head.method} {head.target} HTTP/1.{int(head.http11)}"]
    lines += [f"{name}: {value}" for name, value in head.fields if name not in _HOP_FIELDS]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
