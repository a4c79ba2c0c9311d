"""What the worker uses of gunicorn: a new release that changes one of these fails here, not in production."""

import inspect
import os
import select
import signal
import socket
import threading
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn import http, util
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.errors import HaltServer
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.sock import BaseSocket
from gunicorn.workers.base import Worker
from gunicorn.workers.gthread import PollableMethodQueue, TConn, ThreadWorker
from packaging.specifiers import SpecifierSet

from anvil_site.incoming import parse_head
from anvil_site.outlet import Outlet
from anvil_site.worker import AnvilWorker, plain_request

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 5.0


def test_the_installed_release_is_one_that_was_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pinned,) = [line for line in project["dependencies"] if line.startswith("gunicorn")]

    assert version("gunicorn") in SpecifierSet(pinned.removeprefix("gunicorn"))
    assert "<" in pinned


# The worker's class


def test_our_methods_replace_ones_that_exist() -> None:
    replaced = {
        name
        for name, value in vars(AnvilWorker).items()
        if inspect.isfunction(value) and not name.startswith("_") and hasattr(ThreadWorker, name)
    }

    assert replaced == {"init_process", "get_thread_pool", "load_wsgi", "handle_exit", "handle_quit", "run"}
    assert not (
        {name for name in vars(AnvilWorker) if name.startswith("_") and not name.startswith("__")}
        & {*dir(ThreadWorker)}
    ), "a private name of gunicorn's is shadowed"


def test_the_worker_is_told_what_it_reads() -> None:
    assert list(inspect.signature(Worker.__init__).parameters)[1:] == [
        "age",
        "ppid",
        "sockets",
        "app",
        "timeout",
        "cfg",
        "log",
    ]
    source = inspect.getsource(ThreadWorker.__init__)
    assert "self.worker_connections = self.cfg.worker_connections" in source
    assert "self.method_queue = PollableMethodQueue()" in source


def test_the_process_starts_in_the_order_that_we_rely_on() -> None:
    """Our pools and the method queue exist before signals, the application after, then `run`."""
    threads = inspect.getsource(ThreadWorker.init_process)
    base = inspect.getsource(Worker.init_process)

    assert threads.index("self.get_thread_pool()") < threads.index("super().init_process()")
    assert threads.index("self.method_queue.init()") < threads.index("super().init_process()")
    assert (
        base.index("self.init_signals()") < base.index("self.load_wsgi()") < base.index("self.booted = True")
    )
    assert base.index("self.booted = True") < base.index("self.run()")


def test_sigterm_and_sigquit_come_to_our_handlers() -> None:
    source = inspect.getsource(Worker.init_signals)

    assert "signal.signal(signal.SIGTERM, self.handle_exit)" in source
    assert "signal.signal(signal.SIGQUIT, self.handle_quit)" in source
    assert "signal.signal(signal.SIGINT, self.handle_quit)" in source


def test_a_listener_closes_without_taking_its_address_from_others() -> None:
    assert "shutdown" not in inspect.getsource(BaseSocket.close)


# The method queue


@pytest.fixture
def queue() -> Iterator[PollableMethodQueue]:
    queue = PollableMethodQueue()
    queue.init()
    yield queue
    queue.close()


def test_a_deferred_call_wakes_a_poll_and_runs_in_its_thread(queue: PollableMethodQueue) -> None:
    ran_in: list[threading.Thread] = []
    thread = threading.Thread(
        target=queue.defer, args=(lambda *given: ran_in.append(threading.current_thread()), 1, 2)
    )
    thread.start()

    assert select.select([queue.fileno()], [], [], PATIENCE)[0]
    queue.run_callbacks(None)
    thread.join(PATIENCE)
    assert ran_in == [threading.current_thread()]
    assert not select.select([queue.fileno()], [], [], 0)[0]


def test_deferring_may_be_interrupted_by_a_handler_that_defers(queue: PollableMethodQueue) -> None:
    done: list[str] = []

    def handler(number: int, frame: Any) -> None:
        queue.defer(done.append, "handler")

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        for _ in range(200):
            queue.defer(done.append, "thread")
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    while select.select([queue.fileno()], [], [], 0)[0]:
        queue.run_callbacks(None)

    assert done.count("handler") == done.count("thread") == 200


# Connections, the parser and the response


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    yield ours, theirs
    ours.close()
    theirs.close()


def settings(**changes: Any) -> Config:
    cfg = Config()
    for name, value in {"limit_request_line": 0, "limit_request_field_size": 65_536, **changes}.items():
        cfg.set(name, value)
    return cfg


def head(*lines: str, request: str = "POST /v1/admin/transition?x=1 HTTP/1.1") -> bytes:
    return "\r\n".join([request, "Host: anvil", *lines, "", ""]).encode("latin-1")


def through_the_parser(ours: socket.socket, data: bytes, body: bytes = b"", **changes: Any) -> Any:
    parser = http.get_parser(settings(**changes), ours, ("127.0.0.1", 5000))
    parser.unreader.unread(plain_request(parse_head(data), body))
    return next(parser)


def test_a_connection_keeps_what_it_is_given(ends: tuple[socket.socket, socket.socket]) -> None:
    connection = TConn(settings(), ends[0], ("127.0.0.1", 1), ("127.0.0.1", 2))

    assert connection.sock is ends[0]
    assert (connection.client, connection.server) == (("127.0.0.1", 1), ("127.0.0.1", 2))


@pytest.mark.requirement("house-2")
def test_the_parser_takes_a_request_that_was_read_already(ends: tuple[socket.socket, socket.socket]) -> None:
    """It must not read the socket, on which nothing will come: the body is complete and its length exact."""
    request = through_the_parser(
        ends[0], head("Transfer-Encoding: chunked", "X-Name: a", "Expect: 100-continue"), b'{"a":1}'
    )

    assert (request.method, request.path, request.query) == ("POST", "/v1/admin/transition", "x=1")
    assert request.body.read() == b'{"a":1}'
    assert dict(request.headers)["X-NAME"] == "a"
    assert request.should_close() is False
    request.must_close = True
    assert request.should_close() is True


def test_a_request_without_a_body_has_none(ends: tuple[socket.socket, socket.socket]) -> None:
    request = through_the_parser(ends[0], head(request="GET /admin/ HTTP/1.0"))

    assert request.body.read() == b""
    assert request.should_close() is True


@pytest.mark.requirement("house-2")
def test_heads_that_we_let_through_are_let_through_by_the_parser(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    request = through_the_parser(
        ends[0],
        head(
            "X-Long: " + "v" * 30_000,
            *(f"X-{n}: a" for n in range(95)),
            request=f"GET /{'a' * 30_000} HTTP/1.1",
        ),
    )

    assert len(request.path) == 30_001


def test_what_the_parser_refuses_is_told_from_our_own_faults(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    assert issubclass(LimitRequestLine, ParseException)
    assert issubclass(LimitRequestHeaders, ParseException)
    with pytest.raises(ParseException):
        through_the_parser(ends[0], head("X-Forwarded-Proto: https", "X-Forwarded-Ssl: off"))


@pytest.mark.requirement("house-2")
def test_no_header_of_a_caller_moves_its_path(ends: tuple[socket.socket, socket.socket]) -> None:
    """gunicorn lets a peer on the loopback set SCRIPT_NAME and PATH_INFO, and a proxy may be that peer."""
    request = through_the_parser(
        ends[0], head("Script_Name: /admin", "Path_Info: /v1/chat/completions", "X_Y: z")
    )

    assert {name for name, _ in request.headers} == {"HOST"}


def app(status: str, headers: list[tuple[str, str]], *parts: bytes) -> Any:
    def call(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response(status, headers)
        return list(parts)

    return call


def handle(ours: socket.socket, application: Any, *, data: bytes | None = None) -> tuple[bool, Outlet]:
    """What `handle_request` returns, and what it could not send."""
    worker = SimpleNamespace(
        cfg=settings(sendfile=False),
        wsgi=application,
        alive=True,
        nr=0,
        max_requests=1 << 60,
        keepalived_conns=(),
        max_keepalived=1,
        log=SimpleNamespace(access=lambda *given: None, debug=lambda *given: None),
    )
    request = through_the_parser(ours, data if data is not None else head(request="GET /admin/ HTTP/1.1"))
    outlet = Outlet(ours)
    caller = SimpleNamespace(sock=outlet, client=("127.0.0.1", 1), server=("127.0.0.1", 2))
    return bool(ThreadWorker.handle_request(worker, request, caller)), outlet  # type: ignore[arg-type]


def test_a_request_is_handled_on_an_outlet_and_keeps_its_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    keep, outlet = handle(ends[0], app("200 OK", [("Content-Length", "2")], b"ok"))

    assert keep
    assert outlet.unsent == b""
    answer = ends[1].recv(4096)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: keep-alive" in answer
    assert answer.endswith(b"\r\n\r\nok")


def test_what_its_caller_does_not_take_stays_in_the_outlet(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = bytes(100_000)
    keep, outlet = handle(ends[0], app("200 OK", [("Content-Length", str(len(body)))], body))

    assert keep
    assert len(outlet.unsent) > 50_000


def test_a_close_that_is_asked_for_is_reported(ends: tuple[socket.socket, socket.socket]) -> None:
    keep, _ = handle(
        ends[0],
        app("200 OK", [("Content-Length", "0")]),
        data=head("Connection: close", request="GET /admin/ HTTP/1.1"),
    )

    assert keep is False


def test_the_environ_names_the_socket_that_is_watched(ends: tuple[socket.socket, socket.socket]) -> None:
    seen: dict[str, Any] = {}

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.update(environ)
        start_response("204 No Content", [])
        return []

    _, outlet = handle(ends[0], application)

    assert seen["gunicorn.socket"] is outlet


def test_closing_a_closed_socket_is_harmless(ends: tuple[socket.socket, socket.socket]) -> None:
    util.close(ends[0])
    util.close(ends[0])


# The master


@pytest.mark.requirement("house-1")
def test_the_first_hook_comes_before_the_application_is_preloaded() -> None:
    source = inspect.getsource(Arbiter.setup)

    assert source.index("self.num_workers = self.cfg.workers") < source.index("self.app.wsgi()")
    assert "self.cfg.nworkers_changed(self, value, old_value)" in inspect.getsource(Arbiter._set_num_workers)


@pytest.mark.requirement("house-1")
def test_signals_are_dispatched_by_name_to_what_we_replace() -> None:
    assert 'getattr(self, "handle_%s" % signame, None)' in inspect.getsource(Arbiter.run)
    assert {"handle_ttin", "handle_ttou", "handle_usr2"} <= {*dir(Arbiter)}
    assert "except HaltServer" in inspect.getsource(Arbiter.run)
    assert issubclass(HaltServer, BaseException)


@pytest.mark.requirement("house-1")
def test_a_reload_is_announced_before_the_successor_is_made() -> None:
    source = inspect.getsource(Arbiter.reload)
    spawn = inspect.getsource(Arbiter.spawn_worker)

    assert source.index("self.cfg.on_reload(self)") < source.index("self.spawn_worker()")
    assert spawn.index("self.worker_class(") < spawn.index("os.fork()") < spawn.index("worker.init_process()")
