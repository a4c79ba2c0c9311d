"""An upstream and a caller as real sockets on the loopback, and a dispatch between them."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from admission.core import AdmissionLease, TierAdmission, TierScope
from routing.dialects.base import Answer, Translator
from routing.dialects.openai_chat import CHAT
from routing.exchange import Exchange
from routing.loop import Flow, RelayLoop
from routing.relay import BlockingDriver, Dispatch
from routing.upstream import ConnectionPool, Endpoint
from tests.unit.routing.exchange_kit import chat_exchange

HOST = "127.0.0.1"
PATIENCE = 5.0
"""Seconds after which a test that waits has failed."""

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: 2\r\n\r\n{}"


class Upstream:
    """A listening socket whose connections the test serves itself."""

    def __init__(self, *, backlog: int = 16) -> None:
        self.listener = socket.create_server((HOST, 0), backlog=backlog)
        self.listener.settimeout(PATIENCE)
        self.port: int = self.listener.getsockname()[1]
        self.endpoint = Endpoint.from_url(f"http://{HOST}:{self.port}/v1")
        self._held: list[socket.socket] = []

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held.append(connection)
        return connection

    def close(self) -> None:
        for each in (self.listener, *self._held):
            hang_up(each)


def hang_up(sock: socket.socket) -> None:
    """Close, and end what waits for it in another thread."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def reset(sock: socket.socket) -> None:
    """End with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    sock.close()


def tcp_pair(*, receive_buffer: int | None = None) -> tuple[socket.socket, socket.socket]:
    """A caller's socket, and the server's end of it in blocking mode."""
    with socket.create_server((HOST, 0)) as listener:
        caller = socket.socket()
        if receive_buffer is not None:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        caller.settimeout(PATIENCE)
        caller.connect(listener.getsockname())
        served, _ = listener.accept()
    served.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return caller, served


class OpaqueTranslator(Translator):
    """Bytes passed on as they come."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(dialect=CHAT, answer=Answer.OPAQUE)


@dataclass
class Journey:
    """One dispatch with everything around it. ``over`` is set by ``on_over``, ``done`` by the loop."""

    dispatch: Dispatch
    peer: socket.socket
    """The upstream's end of the connection."""
    caller: socket.socket
    served: socket.socket
    ledger: TierAdmission
    over: threading.Event
    done: threading.Event = field(default_factory=threading.Event)
    kept: bool | None = None
    overs: int = 0

    @property
    def active(self) -> int:
        return self.ledger.snapshot("tier").active_requests

    def on_done(self, keep: bool) -> None:
        assert self.kept is None, "done twice"
        self.kept = keep
        if not keep:
            self.served.close()
        self.done.set()

    def flow(
        self,
        *,
        chunked: bool = True,
        keep_alive: bool = True,
        on_large: Callable[[], None] | None = None,
    ) -> Flow:
        return Flow(
            self.dispatch,
            self.served,
            chunked=chunked,
            keep_alive=keep_alive,
            headers=self.dispatch.headers,
            on_done=self.on_done,
            on_large=on_large,
        )

    def read_all(self) -> bytes:
        """What the caller gets until its connection ends."""
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while data := self.caller.recv(65_536):
                parts.append(data)
        return b"".join(parts)

    def read_until(self, ending: bytes) -> bytes:
        """What the caller gets until ``ending``, which must be the last of it."""
        data = b""
        while not data.endswith(ending):
            more = self.caller.recv(65_536)
            assert more, data
            data += more
        return data

    @property
    def pending(self) -> bytes:
        """What the caller could read now, left where it is."""
        poller = select.poll()
        poller.register(self.caller, select.POLLIN)
        return self.caller.recv(65_536, socket.MSG_PEEK) if poller.poll(0) else b""


class Roads:
    """Makes journeys, and closes what is left of them."""

    def __init__(self) -> None:
        self.upstream = Upstream()
        self.pool = ConnectionPool()
        self._threads: list[threading.Thread] = []
        self._closing = contextlib.ExitStack()
        self._closing.callback(self.upstream.close)
        self._closing.callback(self.pool.close)

    def close(self) -> None:
        self._closing.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def spawn(self, *steps: Callable[[], object]) -> threading.Thread:
        """Take ``steps`` in a thread, until a connection ends; closing ends them all."""

        def run() -> None:
            with contextlib.suppress(OSError):
                for step in steps:
                    step()

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()
        return thread

    @property
    def pooled(self) -> int:
        """Upstream connections that are idle in the pool."""
        return sum(len(idle) for idle in self.pool._idle.values())

    def journey(
        self,
        *,
        stream: bool = True,
        exchange: Exchange | None = None,
        first_byte_timeout: float = 60.0,
        relay_timeout: float = 60.0,
        receive_buffer: int | None = None,
        on_over: Callable[[Dispatch], None] | None = None,
    ) -> Journey:
        """A dispatch whose request has been sent and read by the upstream."""
        ledger = TierAdmission([TierScope("tier", 1)])
        lease = ledger.acquire("tier")
        assert isinstance(lease, AdmissionLease)
        caller, served = tcp_pair(receive_buffer=receive_buffer)
        for sock in (caller, served):
            self._closing.callback(hang_up, sock)
        over = threading.Event()

        def note(dispatch: Dispatch) -> None:
            journey.overs += 1
            assert ledger.snapshot("tier").active_requests == 0, "over before the lease was released"
            if on_over is not None:
                on_over(dispatch)
            over.set()

        dispatch = Dispatch(
            exchange if exchange is not None else chat_exchange(stream=stream),
            lease,
            pool=self.pool,
            endpoint=self.upstream.endpoint,
            first_byte_timeout=first_byte_timeout,
            relay_timeout=relay_timeout,
            streams=stream,
            headers=(("X-Anvil-Tier", "tier"),),
            on_over=note,
        )
        self._closing.callback(dispatch.close)
        dispatch.attach(self.pool.acquire(self.upstream.endpoint, connect_timeout=PATIENCE))
        peer = self.upstream.accept()
        dispatch.send(REQUEST, served)
        read_exactly(peer, REQUEST)
        journey = Journey(dispatch, peer, caller, served, ledger, over)
        return journey


def read_exactly(sock: socket.socket, expected: bytes) -> None:
    got = b""
    while len(got) < len(expected):
        data = sock.recv(len(expected) - len(got))
        assert data, got
        got += data
    assert got == expected


class ManualLoop(RelayLoop):
    """The loop without its thread: the test turns it. ``ahead`` moves its clock."""

    def __init__(self) -> None:
        self.ahead = 0.0
        super().__init__(monotonic=lambda: time.monotonic() + self.ahead)

    def _start(self) -> None:
        pass

    def turn_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the loop does not get there"
            self.turn(0.01)


def is_closed(peer: socket.socket) -> bool:
    """Whether the other side has closed, within `PATIENCE`."""
    poller = select.poll()
    poller.register(peer, select.POLLIN)
    assert poller.poll(PATIENCE * 1000), "still open"
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def dechunk(data: bytes) -> tuple[bytes, bytes, bool]:
    """Head and body of a chunked answer, and whether it has its proper end with nothing after it."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower(), head
    body = b""
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        if size == 0:
            assert rest == b"\r\n", rest
            return head, body, True
        assert rest[size : size + 2] == b"\r\n"
        body, rest = body + rest[:size], rest[size + 2 :]
    return head, body, False


# Both drivers, so that a test can be run on either.


@dataclass
class Arrival:
    """What the caller got in the end. ``proper`` is False when the message was left without its end."""

    status: int
    body: bytes
    proper: bool
    kept: bool


Drive = Callable[[Journey], "Driven"]


class Driven:
    """A journey under way; ``arrive`` waits for its end."""

    def __init__(self, journey: Journey, arrive: Callable[[], Arrival]) -> None:
        self.journey = journey
        self.arrive = arrive


def drive_blocking(journey: Journey) -> Driven:
    """The blocking driver in a thread of its own, framed as gunicorn would."""
    dispatch = journey.dispatch
    result: list[Arrival | BaseException] = []

    def run() -> None:
        try:
            driver = BlockingDriver(dispatch, journey.served)
            body = driver.run_to_head()
            body += driver.run_to_end()
            dispatch.finish(linger=0.5)
            dispatch.close()
            exchange, head = dispatch.exchange, dispatch.head
            status = head.status if head is not None else 0
            result.append(Arrival(status, body, not exchange.truncated, not exchange.close_client))
        except BaseException as error:  # handed to the test
            result.append(error)
        finally:
            journey.done.set()

    thread = threading.Thread(target=run)
    thread.start()

    def arrive() -> Arrival:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the driver does not end"
        (outcome,) = result
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Driven(journey, arrive)


@contextlib.contextmanager
def loop_driver() -> Iterator[Drive]:
    """The relay loop with its thread."""
    loop = RelayLoop()

    def drive(journey: Journey) -> Driven:
        loop.add(journey.flow())

        def arrive() -> Arrival:
            assert journey.done.wait(PATIENCE), "the loop does not finish"
            assert journey.kept is not None
            if journey.kept:
                journey.served.close()
            data = journey.read_all()
            if not data:
                return Arrival(0, b"", True, journey.kept)
            status = int(data[9:12])
            head, _, rest = data.partition(b"\r\n\r\n")
            if b"Transfer-Encoding: chunked" not in head:
                return Arrival(status, rest, True, journey.kept)
            _, body, proper = dechunk(data)
            return Arrival(status, body, proper, journey.kept)

        return Driven(journey, arrive)

    yield drive
    loop.stop()
