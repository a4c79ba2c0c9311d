"""The poller by itself, turned by the test: deadlines, budgets, room, and who gets a thread."""

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config

from anvil_site import worker as module
from anvil_site.executor import Executor
from anvil_site.incoming import BODY_MIN_RATE, BODY_SILENCE
from anvil_site.worker import (
    BODY_TURN,
    HEAD_SECONDS,
    LINGER_SECONDS,
    WRITE_SILENCE,
    AnvilWorker,
    Budget,
    Connection,
)
from routing.dialects.base import Failure
from routing.gateway import Reply
from routing.views import CAN_DETACH, SERVER_BUSY, Unanswered

PATIENCE = 5.0
DATA = "/v1/chat/completions"


class Clock:
    """The worker's clock: real time, moved ahead by the test."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    sleep = staticmethod(time.sleep)


class Plane:
    """A data plane that answers as the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.refuses: Failure | None = None
        self.places = SimpleNamespace(taken=0)
        self.body = b"ok"
        self.asked: list[tuple[str, bytes]] = []
        self.threads: list[str] = []
        self.fault: Exception | None = None

    def is_inference(self, path: str) -> bool:
        return path == DATA

    def refuses_key(self, authorization: str | None, api_key: str | None) -> Failure | None:
        return None

    def refusal(self, path: str, failure: Failure, *, request_id: str | None = None) -> Reply:
        return Reply(status=failure.status, headers=(), body=failure.code.encode())

    def answer(
        self, environ: dict[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes] | None:
        if self.fault is not None:
            raise self.fault
        assert environ[CAN_DETACH] is True
        self.asked.append((environ["PATH_INFO"], environ["wsgi.input"].read()))
        self.threads.append(threading.current_thread().name)
        start_response("200 OK", [("Content-Length", str(len(self.body)))])
        return [self.body]


class TellingBudget(Budget):
    """A budget that tells when it has no room."""

    def __init__(self, limit: int, refused: threading.Event) -> None:
        super().__init__(limit)
        self._refused = refused

    def take(self, size: int) -> bool:
        taken = super().take(size)
        if not taken:
            self._refused.set()
        return taken


class Driven(AnvilWorker):
    """A worker whose turns the test takes; it has everything but a process of its own."""

    def turn_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the poller does not get there"
            self._turn(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def worker(clock: Clock) -> Iterator[Driven]:
    cfg = Config()
    for name, value in {"threads": 2, "worker_connections": 64, "keepalive": 75}.items():
        cfg.set(name, value)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    worker: Any = Driven(1, os.getpid(), [listener], None, 30, cfg, None)
    worker._epoll = select.epoll()
    worker.loop = module.RelayLoop()
    worker.tpool = worker.data = Executor(2, name="anvil-data")
    worker.management = Executor(2, name="anvil-management")
    worker.method_queue.init()
    worker.plane = Plane()
    worker.wsgi = page
    worker.log = SimpleNamespace(access=lambda *given: None, debug=lambda *given: None)
    worker._bodies = Budget(100_000)
    worker._max_body = 50_000
    worker._router = SimpleNamespace(evidence=SimpleNamespace(refused=lambda *given: None), draining=False)
    worker._epoll.register(worker.method_queue.fileno(), select.EPOLLIN)
    worker._listen(True)
    yield worker
    worker.loop.stop()
    for connection in tuple(worker._connections.values()):
        worker._close(connection)
    worker.tpool.shutdown()
    worker.management.shutdown()
    worker._leave_port()
    worker._epoll.close()
    worker.method_queue.close()
    worker.tmp.close()


def page(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    """Stands for Django."""
    body = environ["wsgi.input"].read()
    answer = b"%b %b %b" % (environ["PATH_INFO"].encode(), body, threading.current_thread().name.encode())
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]


@pytest.fixture
def connect(worker: Driven) -> Iterator[Callable[[], socket.socket]]:
    with ExitStack() as stack:

        def make() -> socket.socket:
            sock = stack.enter_context(socket.socket())
            sock.settimeout(PATIENCE)
            before = set(worker._connections.values())
            sock.connect(worker.sockets[0].getsockname())
            worker.turn_until(lambda: set(worker._connections.values()) - before)
            return sock

        yield make


def only(worker: Driven) -> Connection:
    (connection,) = worker._connections.values()
    return connection


def send(worker: Driven, sock: socket.socket, data: bytes) -> None:
    """Send, and let the poller take everything."""
    sock.sendall(data)
    worker.turn_until(lambda: True)
    for _ in range(3):
        worker._turn(0.01)


def receive(worker: Driven, sock: socket.socket) -> bytes:
    """The next answer, while the poller turns."""
    got: list[bytes] = []
    worker.turn_until(lambda: select.select([sock], [], [], 0)[0])
    got.append(sock.recv(65_536))
    return b"".join(got)


def request(body: bytes = b"", path: str = DATA, *lines: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: a", *lines]
    if not any("chunked" in line for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


# Deadlines


@pytest.mark.requirement("house-2")
def test_half_a_head_is_told_so_after_ten_seconds(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    send(worker, sock, b"POST / HTTP/1.1\r\nHo")
    clock.ahead = HEAD_SECONDS - 1
    worker._turn(0.01)
    send(worker, sock, b"st")
    assert only(worker).state == "head"

    clock.ahead = HEAD_SECONDS + 0.5
    answer = receive(worker, sock)

    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"Connection: close" in answer
    assert worker.plane.asked == []


@pytest.mark.requirement("house-2")
def test_a_connection_that_never_speaks_is_closed_without_a_word(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    clock.ahead = HEAD_SECONDS + 0.5
    worker.turn_until(lambda: not worker._connections)

    assert sock.recv(1) == b""


@pytest.mark.requirement("house-2")
def test_a_body_may_be_slow_but_not_silent(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    step = int(BODY_MIN_RATE * (BODY_SILENCE - 1))
    worker._bodies, worker._max_body = Budget(8 * step), 4 * step
    sock = connect()
    send(worker, sock, request(bytes(4 * step))[: -4 * step])
    for number in range(1, 4):
        clock.ahead = number * (BODY_SILENCE - 1)
        sock.sendall(bytes(step))
        worker.turn_until(lambda held=number * step: worker._bodies.held == held)
        assert only(worker).state == "body"

    clock.ahead += BODY_SILENCE + 0.5
    answer = receive(worker, sock)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"Connection: close" in answer
    assert answer.endswith(b"request_timeout")
    assert worker._bodies.held == 0


@pytest.mark.requirement("house-2")
@pytest.mark.parametrize("burst", [0, 40_000])
def test_a_body_that_trickles_does_not_hold_its_budget(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket], burst: int
) -> None:
    """A byte every few seconds used to do, for ever; what came fast before buys no time after."""
    sock = connect()
    send(worker, sock, request(bytes(50_000))[: burst - 50_000])
    assert worker._bodies.held == burst
    for seconds in range(5, int(BODY_SILENCE), 5):
        clock.ahead = float(seconds)
        send(worker, sock, b"x")
        assert only(worker).state == "body"

    clock.ahead = BODY_SILENCE + 0.5
    assert receive(worker, sock).startswith(b"HTTP/1.1 408 ")
    assert worker._bodies.held == 0


@pytest.mark.requirement("house-4")
def test_nobody_is_answered_who_has_left(worker: Driven, connect: Callable[[], socket.socket]) -> None:
    """A caller that had closed its sending side used to get an empty 400."""
    worker.plane.answer = lambda environ, start_response: Unanswered()
    sock = connect()
    send(worker, sock, request())
    worker.turn_until(lambda: not worker._connections)

    assert sock.recv(1) == b""


def test_an_idle_connection_outlives_a_head_and_not_its_keepalive(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    send(worker, sock, request())
    assert receive(worker, sock).endswith(b"ok")
    worker.turn_until(lambda: only(worker).state == "idle")

    clock.ahead = 74.0
    worker._turn(0.01)
    assert only(worker).state == "idle"
    clock.ahead = 76.0
    worker.turn_until(lambda: not worker._connections)
    assert sock.recv(1) == b""


def test_what_a_refused_caller_still_sends_is_read_away_for_a_moment(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    send(worker, sock, b"\x16\x03\x01")
    assert receive(worker, sock).startswith(b"HTTP/1.1 400 ")
    assert sock.recv(1) == b""
    send(worker, sock, bytes(10_000))
    assert (only(worker).state, only(worker).buffer) == ("linger", b"")

    clock.ahead = LINGER_SECONDS + 0.5
    worker.turn_until(lambda: not worker._connections)


# Heads and bodies


@pytest.mark.requirement("house-2")
def test_a_request_in_pieces_gets_its_thread_when_it_is_complete(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    whole = request(b'{"a": 1}')
    for at in range(len(whole) - 1):
        send(worker, sock, whole[at : at + 1]) if at % 16 == 0 else sock.sendall(whole[at : at + 1])
    worker._turn(0.01)
    assert worker.plane.asked == []

    send(worker, sock, whole[-1:])
    assert receive(worker, sock).endswith(b"\r\n\r\nok")
    assert worker.plane.asked == [(DATA, b'{"a": 1}')]
    assert worker.plane.threads[0].startswith("anvil-data")


@pytest.mark.requirement("house-2")
def test_an_escaped_path_is_the_data_planes_too(worker: Driven, connect: Callable[[], socket.socket]) -> None:
    """Through management's threads, streams could have taken them all."""
    sock = connect()
    send(worker, sock, request(b"{}", "/v1/chat%2Fcompletions"))

    assert receive(worker, sock).endswith(b"ok")
    assert worker.plane.asked == [(DATA, b"{}")]
    assert worker.plane.threads[0].startswith("anvil-data")


@pytest.mark.requirement("house-2")
def test_everything_else_is_served_by_managements_threads(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    for _ in range(2):
        send(worker, sock, request(b"a=1", "/admin/"))
        assert receive(worker, sock).endswith(b"/admin/ a=1 anvil-management_0")


@pytest.mark.requirement("house-2")
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_answered_by_the_poller_itself(
    worker: Driven, connect: Callable[[], socket.socket], path: str
) -> None:
    sock = connect()
    send(worker, sock, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert receive(worker, sock).endswith(b"ok")
    assert worker.plane.threads == ["MainThread"]


@pytest.mark.requirement("house-2")
def test_a_caller_that_reads_no_answers_does_not_stop_the_poller(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    """Health checks in one go, whose answers nobody reads: the poller once waited for their caller."""
    worker.plane.body = bytes(200_000)
    deaf = connect()
    deaf.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
    until = time.monotonic() + 0.3
    slowest = 0.0
    while time.monotonic() < until:
        began = time.monotonic()
        worker._turn(0.01)
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1.0
    assert only(worker).state == "busy"

    worker.plane.body = b"ok"
    other = connect()
    send(worker, other, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert receive(worker, other).endswith(b"ok")


@pytest.mark.requirement("house-2")
def test_an_answer_that_is_read_slowly_holds_no_thread_and_arrives_whole(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    worker._bodies = Budget(64 << 20)
    worker.plane.body = os.urandom(8 << 20)
    sock = connect()
    send(worker, sock, request())
    worker.turn_until(lambda: worker.plane.asked)
    # Its thread is free again while the caller has not read a byte.
    free = threading.Event()
    worker.tpool.submit(free.set)
    assert free.wait(PATIENCE)
    worker.turn_until(lambda: worker.loop.stats().flows == 1)
    assert worker._bodies.held > 0

    received = bytearray()
    head_size = None
    while head_size is None or len(received) < head_size + len(worker.plane.body):
        received += receive(worker, sock)
        if head_size is None and b"\r\n\r\n" in received:
            head_size = received.index(b"\r\n\r\n") + 4
    assert received[head_size:] == worker.plane.body
    worker.turn_until(lambda: only(worker).state == "idle")
    assert worker._bodies.held == 0


@pytest.mark.requirement("house-2")
def test_a_body_in_chunks_of_a_byte_takes_its_turn_with_the_others(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    """Eight strangers who sent such bodies once held health answers up for seconds."""
    sock = connect()
    sock.sendall(request(b"", DATA, "Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n")
    steps = [0]
    while not worker.plane.asked:
        worker._turn(0.01)
        chunks = only(worker).chunks
        steps.append(len(chunks.body) if chunks is not None else 5_000)
    assert max(after - before for before, after in pairwise(steps)) <= 1_000
    assert worker.plane.asked == [(DATA, b"x" * 5_000)]
    assert receive(worker, sock).endswith(b"ok")


def test_a_body_that_waits_for_its_turn_takes_no_room_once_its_connection_is_closed(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    sock.sendall(request(b"", DATA, "Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 5_000)
    worker.turn_until(lambda: only(worker).charged)
    worker._close(only(worker))
    for _ in range(10):
        worker._turn(0.01)
    assert worker._bodies.held == 0
    assert worker.plane.asked == []


@pytest.mark.requirement("house-2")
def test_an_answer_that_there_is_no_room_to_keep_holds_its_thread_for_a_bounded_time(
    worker: Driven, connect: Callable[[], socket.socket], clock: Clock
) -> None:
    """A caller that takes a few bytes now and then once held its thread for hours."""
    worker.plane.body = os.urandom(8 << 20)
    waiting = threading.Event()
    worker._bodies = TellingBudget(0, waiting)
    sock = connect()
    send(worker, sock, request())
    assert waiting.wait(PATIENCE)
    assert worker.data.reading().busy == 1

    clock.ahead = WRITE_SILENCE + 1
    worker.turn_until(lambda: not worker._connections)
    worker.turn_until(lambda: worker.data.reading().busy == 0)
    assert worker.loop.stats().flows == 0


@pytest.mark.requirement("house-2")
def test_an_answer_that_waits_for_room_leaves_its_thread_when_there_is_some(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    worker.plane.body = os.urandom(8 << 20)
    waiting = threading.Event()
    worker._bodies = TellingBudget(0, waiting)
    sock = connect()
    send(worker, sock, request())
    assert waiting.wait(PATIENCE)
    worker._bodies.limit = 64 << 20
    worker.turn_until(lambda: worker.data.reading().busy == 0)

    assert worker.loop.stats().flows == 1
    assert worker._bodies.held > 0
    received = bytearray()
    while len(received.partition(b"\r\n\r\n")[2]) < len(worker.plane.body):
        received += sock.recv(1 << 20)
    assert received.endswith(worker.plane.body)
    worker.turn_until(lambda: only(worker).state == "idle")
    assert worker._bodies.held == 0


def test_pipelined_requests_are_answered_one_after_the_other(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    sock.sendall(request(b"1") + request(b"2", "/admin/") + b"\r\n" + request(b"3"))
    received = b""
    while received.count(b"HTTP/1.1 200 OK") < 3 or not received.endswith(b"ok"):
        received += receive(worker, sock)

    assert worker.plane.asked == [(DATA, b"1"), (DATA, b"3")]
    first, second, third = received.split(b"HTTP/1.1 200 OK")[1:]
    assert first.endswith(b"ok")
    assert b"/admin/ 2 anvil-management" in second
    assert third.endswith(b"ok")


def test_a_caller_that_waits_for_leave_is_told_to_go_on(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    whole = request(b"12345", DATA, "Expect: 100-continue")
    send(worker, sock, whole[:-5])
    assert receive(worker, sock) == b"HTTP/1.1 100 Continue\r\n\r\n"

    send(worker, sock, b"12345")
    assert receive(worker, sock).endswith(b"ok")


@pytest.mark.requirement("house-2")
def test_a_full_data_plane_refuses_at_the_head_and_management_goes_on(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    worker.plane.refuses = SERVER_BUSY
    sock = connect()
    send(worker, sock, request(b"x" * 1000)[:-1000])
    answer = receive(worker, sock)

    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1\r\n" in answer
    assert answer.endswith(b"server_busy")
    other = connect()
    send(worker, other, request(b"x", "/admin/"))
    assert b"/admin/ x" in receive(worker, other)


@pytest.mark.requirement("house-2")
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_over_its_bound_is_refused(
    worker: Driven, connect: Callable[[], socket.socket], framing: str
) -> None:
    sock = connect()
    if framing == "length":
        send(worker, sock, request(bytes(50_001))[:200])
    else:
        send(worker, sock, request(b"C351\r\n" + bytes(50_001), DATA, "Transfer-Encoding: chunked"))
    answer = receive(worker, sock)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"request_too_large")
    worker.turn_until(lambda: worker._bodies.held == 0)


@pytest.mark.requirement("house-2")
def test_the_budget_is_charged_for_what_has_come_and_given_back(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    """Announced alone, 32 MiB cost nothing: sixteen callers could have shut everybody else out."""
    announcing = [connect() for _ in range(8)]
    for sock in announcing:
        send(worker, sock, request(bytes(40_000))[:-39_900])
    assert worker._bodies.held == 8 * 100

    holding = [connect() for _ in range(2)]
    for sock in holding:
        send(worker, sock, request(bytes(45_000))[:-1])
    worker.turn_until(lambda: worker._bodies.held == 800 + 2 * 44_999)
    late = connect()
    send(worker, late, request(bytes(20_000)))
    assert receive(worker, late).startswith(b"HTTP/1.1 503 ")
    # Management's bodies are counted apart.
    person = connect()
    send(worker, person, request(bytes(20_000), "/admin/"))
    assert receive(worker, person).startswith(b"HTTP/1.1 200 ")

    for sock in (*announcing, *holding):
        sock.close()
    worker.turn_until(lambda: worker._bodies.held == 0)
    assert worker._management_bodies.held == 0
    again = connect()
    send(worker, again, request(bytes(20_000)))
    assert receive(worker, again).endswith(b"ok")


# Room


@pytest.mark.requirement("house-2")
def test_when_every_connection_is_in_use_the_longest_waiting_one_makes_room(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    worker.worker_connections = 3
    unfinished = connect()
    send(worker, unfinished, request(b"12345")[:-4])
    clock.ahead = 1.0
    half = connect()
    send(worker, half, b"POST / HT")
    clock.ahead = 2.0
    idle = connect()
    send(worker, idle, request())
    receive(worker, idle)
    worker.turn_until(lambda: "idle" in {each.state for each in worker._connections.values()})

    # The idle one goes first, young as it is: its caller knows that it may.
    for gone in (idle, unfinished, half):
        clock.ahead += 0.1
        newcomer = connect()
        send(worker, newcomer, request(b"12345")[:-4])
        assert gone.recv(1) == b""
        assert len(worker._connections) == 3


def test_nobody_who_is_being_served_makes_room(
    worker: Driven, connect: Callable[[], socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    worker.worker_connections = 1
    connect()
    only(worker).state = "busy"
    with socket.socket() as newcomer:
        newcomer.connect(worker.sockets[0].getsockname())
        worker.turn_until(lambda: not worker._listening)
        assert "accepting pauses: every connection is in use" in caplog.text
        (busy,) = worker._connections.values()
        worker._close(busy)
        worker.turn_until(lambda: worker._connections)


@pytest.mark.requirement("house-2")
def test_without_descriptors_new_connections_wait_and_one_line_tells(
    worker: Driven,
    clock: Clock,
    connect: Callable[[], socket.socket],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = connect()
    only(worker).state = "busy"
    listener = worker.sockets[0]

    class Exhausted:
        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "too many open files")

    worker.sockets[0] = Exhausted()
    with socket.socket() as newcomer:
        newcomer.connect(listener.getsockname())
        for _ in range(5):
            worker._turn(0.01)
            clock.ahead += 0.3
        assert caplog.text.count("accepting pauses: no descriptor is free") == 1
        assert len(worker._connections) == 1

        worker.sockets[0] = listener
        clock.ahead += 0.3
        worker.turn_until(lambda: len(worker._connections) == 2)
    served.close()


def test_a_descriptor_is_made_free_by_who_waits_longest(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    idle = connect()
    listener = worker.sockets[0]
    faults = iter([OSError(errno.EMFILE, "too many open files")])

    class Tight:
        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            for fault in faults:
                raise fault
            return listener.accept()

    worker.sockets[0] = Tight()
    newcomer = connect()
    assert idle.recv(1) == b""
    assert len(worker._connections) == 1
    worker.sockets[0] = listener
    newcomer.close()


def test_nobody_makes_room_whose_request_is_there_to_be_read(worker: Driven) -> None:
    """With one descriptor for all, each newcomer used to reset the one that had come right before it."""
    listener = worker.sockets[0]

    class Tight:
        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            if worker._connections:
                raise OSError(errno.EMFILE, "too many open files")
            return listener.accept()

    worker.sockets[0] = Tight()
    with ExitStack() as stack:
        newcomers = [stack.enter_context(socket.socket()) for _ in range(5)]
        for sock in newcomers:
            sock.settimeout(PATIENCE)
            sock.connect(listener.getsockname())
            sock.sendall(request(path="/healthz"))
        for sock in newcomers:
            assert receive(worker, sock).startswith(b"HTTP/1.1 200 ")
    worker.sockets[0] = listener


# What may not happen


def test_an_event_for_a_connection_that_is_being_served_is_left_alone(
    worker: Driven, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    connection = only(worker)
    connection.state = "busy"
    sock.sendall(request())
    select.select([connection.sock], [], [], PATIENCE)
    worker._on_readable(connection)

    assert connection.buffer == b""
    assert worker.plane.asked == []


def test_a_fault_of_our_own_is_a_500_for_one_caller(
    worker: Driven, connect: Callable[[], socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    worker.plane.fault = RuntimeError("inside")
    sock = connect()
    send(worker, sock, request(b"{}"))
    answer = receive(worker, sock)
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"inside" not in answer
    assert "a data-plane request failed" in caplog.text

    worker.plane.fault = None
    other = connect()
    send(worker, other, request(b"{}"))
    assert receive(worker, other).endswith(b"ok")


def test_a_fault_of_djangos_server_side_is_a_500_too(
    worker: Driven, connect: Callable[[], socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        raise RuntimeError("inside")

    worker.wsgi = broken
    sock = connect()
    send(worker, sock, request(b"", "/admin/"))
    answer = receive(worker, sock)
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"inside" not in answer
    assert "a management request failed" in caplog.text


def test_what_gunicorns_parser_refuses_is_a_400(worker: Driven, connect: Callable[[], socket.socket]) -> None:
    sock = connect()
    lines = ("X-Forwarded-Proto: https", "X-Forwarded-Ssl: off")
    send(worker, sock, request(b"", "/admin/", *lines))

    assert receive(worker, sock).startswith(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.requirement("house-6")
def test_a_loop_that_does_not_turn_is_told_of(
    worker: Driven, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module.RelayLoop, "stalled_seconds", property(lambda self: 7.4))
    for _ in range(4):
        worker._turn(0.01)
        clock.ahead += 1.0
    assert caplog.messages == ["the relay loop has not turned for 7 seconds"]


@pytest.mark.requirement("house-2")
def test_a_full_budget_makes_room_by_the_body_that_has_been_incomplete_for_longest(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    """Whoever holds bytes and does not go on keeps nobody out for as long as a body may take."""
    held = request(b"x" * 40_000)[:-1]
    worker._bodies = Budget(90_000)
    oldest, older = connect(), connect()
    send(worker, oldest, held)
    clock.ahead += 0.5
    send(worker, older, held)
    clock.ahead += BODY_TURN - 1.0
    newcomer = connect()
    send(worker, newcomer, held)
    # Nobody has had enough time yet: who comes too late is refused.
    assert receive(worker, newcomer).startswith(b"HTTP/1.1 503 ")
    assert worker._bodies.held == 2 * (40_000 - 1)

    clock.ahead += 0.6
    newcomer = connect()
    send(worker, newcomer, request(b"y" * 30_000))

    assert receive(worker, newcomer).startswith(b"HTTP/1.1 200 ")
    assert receive(worker, oldest).startswith(b"HTTP/1.1 503 ")
    send(worker, older, b"x")
    assert receive(worker, older).startswith(b"HTTP/1.1 200 ")


@pytest.mark.requirement("house-2")
def test_a_body_that_goes_on_takes_no_room_from_one_that_came_after_it(
    worker: Driven, clock: Clock, connect: Callable[[], socket.socket]
) -> None:
    worker._bodies = Budget(60_000)
    first, second = connect(), connect()
    send(worker, first, request(b"x" * 40_000)[:-20_000])
    clock.ahead += 0.1
    send(worker, second, request(b"y" * 39_000)[:-1])
    clock.ahead += BODY_TURN

    send(worker, first, b"x" * 19_999)

    assert receive(worker, first).startswith(b"HTTP/1.1 503 ")
    send(worker, second, b"y")
    assert receive(worker, second).startswith(b"HTTP/1.1 200 ")


def test_a_budget_never_holds_more_than_its_limit() -> None:
    budget = Budget(10)
    assert budget.take(6)
    assert not budget.take(5)
    assert budget.take(4)
    assert budget.held == 10
    budget.give_back(10)
    assert budget.held == 0
