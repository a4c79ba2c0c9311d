"""Connections to upstream servers: pooled raw sockets, and one attempt to get a request out.

``requests`` cannot give up its socket before the response head and keeps idle connections for ever; a relay
needs the socket itself (to wait for upstream and caller at once) and must never reuse a connection that the
server is about to close. Hence a pool of our own: plain sockets, never blocking, bounded waits by ``poll``.

What it does NOT do: retry, follow redirects, read proxy settings from the environment, keep cookies.

Exceptions::

    UpstreamFailure
     +-- ConnectFailure    no connection could be made: nothing was sent
     +-- SendFailure       the connection broke, or stalled, while the request was being sent
    CallerGone             the caller left while we were connecting or sending
"""

import errno
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Literal
from urllib.parse import urlsplit

IDLE_LIMIT: Final = 2.0
"""Seconds after which an idle pooled connection is not used again (uvicorn closes its own at five)."""

MAX_IDLE_PER_ENDPOINT: Final = 256

POLLRDHUP: Final = getattr(select, "POLLRDHUP", 0x2000)

FailureKind = Literal["refused", "reset", "timeout", "dns", "tls", "other"]


class UpstreamFailure(Exception):
    """One attempt failed. ``kind`` is all that may be told of it; the cause stays in the process."""

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind)
        self.kind: FailureKind = kind


class ConnectFailure(UpstreamFailure):
    """No connection could be made; the request was not sent."""


class SendFailure(UpstreamFailure):
    """The connection broke or stalled while the request was on its way."""


class CallerGone(Exception):
    """The caller closed its connection while its request waited for the upstream."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one upstream listens: the parts of a base URL, split once."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    base_path: str

    @classmethod
    def from_url(cls, base_url: str) -> "Endpoint":
        """Split a validated http(s) URL; raises ``ValueError`` for the empty sentinel of a replica tier."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("an endpoint needs an http or https URL with a host")
        scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        port = parts.port or (443 if scheme == "https" else 80)
        return cls(scheme, parts.hostname, port, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.scheme, self.host, self.port)


class Connection:
    """One upstream connection; the socket never blocks, every wait is a ``poll`` with a deadline."""

    __slots__ = ("_tls", "idle_since", "reused", "sock")

    def __init__(self, sock: socket.socket, *, tls: bool) -> None:
        self.sock = sock
        self.reused = False
        self.idle_since = 0.0
        self._tls = tls

    def fileno(self) -> int:
        return self.sock.fileno()

    def receive(self, size: int = 65_536) -> bytes | None:
        """Up to ``size`` bytes, ``b""`` at the end of the stream, None when nothing has arrived yet.

        Raises ``OSError`` when the connection is broken.
        """
        try:
            return self.sock.recv(size)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return b""

    @property
    def pending(self) -> bool:
        """Whether decrypted bytes wait inside the TLS layer, where ``poll`` cannot see them."""
        return self._tls and isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def send(self, data: bytes, *, silence: float, caller: socket.socket | None = None) -> None:
        """Send all of ``data``; raises ``SendFailure`` or ``CallerGone``.

        ``silence`` bounds, in seconds, each wait in which the server takes nothing. An answer that arrives
        before the request is through does not stop the sending: whoever reads next will see it.
        """
        view = memoryview(data)
        while view:
            try:
                sent = self.sock.send(view)
            except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError):
                wait_ready(self.sock, silence, caller, SendFailure)
                continue
            except ssl.SSLWantReadError:
                wait_ready(self.sock, silence, caller, SendFailure, select.POLLIN)
                continue
            except OSError as error:
                raise SendFailure(failure_kind(error)) from None
            view = view[sent:]

    def close(self) -> None:
        """Close without waiting; never raises. Shutting down first ends a concurrent read, too."""
        for step in (partial(self.sock.shutdown, socket.SHUT_RDWR), self.sock.close):
            try:
                step()
            except OSError:
                pass

    def is_idle(self) -> bool:
        """Whether the server has neither closed this connection nor sent anything on it."""
        try:
            self.sock.recv(1) if self._tls else self.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False


def failure_kind(error: OSError) -> FailureKind:
    """The closed name of a socket error."""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, (ConnectionResetError, BrokenPipeError, ConnectionAbortedError)):
        return "reset"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, socket.gaierror):
        return "dns"
    return "other"


def wait_ready(
    sock: socket.socket,
    timeout: float,
    caller: socket.socket | None,
    failure: type[UpstreamFailure],
    events: int = select.POLLOUT,
) -> None:
    """Wait until ``sock`` can go on; raises ``failure("timeout")`` or ``CallerGone``."""
    poller = select.poll()
    poller.register(sock, events)
    if caller is not None:
        poller.register(caller, POLLRDHUP)
    ready = poller.poll(max(0.0, timeout) * 1000)
    if not ready:
        raise failure("timeout")
    fd = sock.fileno()
    if all(number != fd for number, _ in ready):
        raise CallerGone


class ConnectionPool:
    """The idle connections of all endpoints of one process. Thread-safe; no lock is held over I/O."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._idle: dict[tuple[str, str, int], deque[Connection]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._resolver = _Resolver()

    def acquire(
        self, endpoint: Endpoint, *, connect_timeout: float, caller: socket.socket | None = None
    ) -> Connection:
        """A connection that is open as far as can be known: the youngest idle one, or a new one.

        Raises ``ConnectFailure`` within ``connect_timeout`` seconds, or ``CallerGone``.
        """
        horizon = self._monotonic() - IDLE_LIMIT
        idle = self._idle.get(endpoint.key)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:
                break
            if connection.idle_since >= horizon and connection.is_idle():
                connection.reused = True
                return connection
            connection.close()
        return self._connect(endpoint, connect_timeout, caller)

    def give_back(self, endpoint: Endpoint, connection: Connection) -> None:
        """Keep a connection whose exchange is complete for the next request to the same endpoint."""
        connection.idle_since = self._monotonic()
        with self._lock:
            if not self._closed:
                idle = self._idle.setdefault(endpoint.key, deque(maxlen=MAX_IDLE_PER_ENDPOINT))
                if len(idle) < MAX_IDLE_PER_ENDPOINT:
                    idle.append(connection)
                    return
        connection.close()

    def sweep(self) -> int:
        """Close what has been idle too long; returns how many. One turn of the housekeeping loop."""
        horizon = self._monotonic() - IDLE_LIMIT
        expired: list[Connection] = []
        with self._lock:
            for idle in self._idle.values():
                while idle:
                    try:
                        oldest = idle.popleft()
                    except IndexError:
                        break
                    if oldest.idle_since >= horizon:
                        idle.appendleft(oldest)
                        break
                    expired.append(oldest)
        for connection in expired:
            connection.close()
        return len(expired)

    def close(self) -> None:
        """Close every idle connection, and every one given back from now on."""
        with self._lock:
            self._closed = True
            held = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in held:
            connection.close()

    def _connect(
        self, endpoint: Endpoint, connect_timeout: float, caller: socket.socket | None
    ) -> Connection:
        deadline = time.monotonic() + connect_timeout
        failure: UpstreamFailure = ConnectFailure("dns")
        for family, address in self._resolver.resolve(endpoint.host, endpoint.port, connect_timeout):
            try:
                return _connect_address(endpoint, family, address, deadline, caller)
            except ConnectFailure as error:
                failure = error
        raise failure


def _connect_address(
    endpoint: Endpoint,
    family: socket.AddressFamily,
    address: tuple[str, int],
    deadline: float,
    caller: socket.socket | None,
) -> Connection:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            wait_ready(sock, deadline - time.monotonic(), caller, ConnectFailure)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise ConnectFailure(failure_kind(OSError(code, "connect")))
        if endpoint.scheme == "https":
            sock = _handshake(sock, endpoint.host, deadline, caller)
    except ConnectFailure:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise ConnectFailure(failure_kind(error)) from None
    except BaseException:
        sock.close()
        raise
    return Connection(sock, tls=endpoint.scheme == "https")


def _handshake(
    sock: socket.socket, host: str, deadline: float, caller: socket.socket | None
) -> ssl.SSLSocket:
    tls = _tls_context().wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                wait_ready(tls, deadline - time.monotonic(), caller, ConnectFailure, select.POLLIN)
            except ssl.SSLWantWriteError:
                wait_ready(tls, deadline - time.monotonic(), caller, ConnectFailure)
            else:
                return tls
    except BaseException:
        # The plain socket gave its descriptor away when it was wrapped.
        tls.close()
        raise


@cache
def _tls_context() -> ssl.SSLContext:
    """The process's own: reading the certificate authorities takes many times as long as a handshake."""
    return ssl.create_default_context()


Address = tuple[socket.AddressFamily, tuple[str, int]]


class _Resolver:
    """Name look-ups that cannot hold a request for longer than its connect timeout.

    ``getaddrinfo`` has no timeout of its own, so a name is looked up in a thread; addresses need none.
    Results are kept for half a minute, and an expired one still serves when a new look-up fails.
    """

    LIFETIME = 30.0

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, list[Address]]] = {}

    def resolve(self, host: str, port: int, timeout: float) -> list[Address]:
        """Addresses in the order to try them; empty when the name is not known in time."""
        if ":" in host:
            return [(socket.AF_INET6, (host, port))]
        if host.replace(".", "").isdigit():
            return [(socket.AF_INET, (host, port))]
        known = self._known.get((host, port))
        if known is not None and time.monotonic() - known[0] < self.LIFETIME:
            return known[1]
        found: list[Address] = []

        def look_up() -> None:
            try:
                infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError:
                return
            found.extend((info[0], (str(info[4][0]), port)) for info in infos)
            self._known[(host, port)] = (time.monotonic(), list(found))

        thread = threading.Thread(target=look_up, name="anvil-resolve", daemon=True)
        thread.start()
        thread.join(timeout)
        return list(found) or (known[1] if known is not None else [])
