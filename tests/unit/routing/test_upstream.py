"""Upstream connections: what is reused, what is not, and how an attempt that fails is named."""

import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from routing import upstream as module
from routing.upstream import (
    IDLE_LIMIT,
    MAX_IDLE_PER_ENDPOINT,
    CallerGone,
    ConnectFailure,
    Connection,
    ConnectionPool,
    Endpoint,
    SendFailure,
    failure_kind,
)
from tests.unit.routing.relay_kit import HOST, PATIENCE, Upstream, is_closed, reset, tcp_pair


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Iterator[ConnectionPool]:
    pool = ConnectionPool(monotonic=clock)
    yield pool
    pool.close()


def connect(pool: ConnectionPool, endpoint: Endpoint, **options: Any) -> Connection:
    return pool.acquire(endpoint, **{"connect_timeout": PATIENCE, **options})


# Endpoints


@pytest.mark.parametrize(
    ("url", "expected", "authority"),
    [
        ("http://127.0.0.1:8101/v1", Endpoint("http", "127.0.0.1", 8101, "/v1"), "127.0.0.1:8101"),
        ("https://Engine.Local/v1/", Endpoint("https", "engine.local", 443, "/v1"), "engine.local"),
        ("http://engine", Endpoint("http", "engine", 80, ""), "engine"),
        ("http://[::1]:9/api/v1", Endpoint("http", "::1", 9, "/api/v1"), "[::1]:9"),
        ("http://engine:443", Endpoint("http", "engine", 443, ""), "engine:443"),
    ],
)
def test_an_endpoint_is_a_base_url_in_parts(url: str, expected: Endpoint, authority: str) -> None:
    endpoint = Endpoint.from_url(url)

    assert endpoint == expected
    assert endpoint.authority == authority


@pytest.mark.requirement("Q-T007")
@pytest.mark.parametrize("url", ["", "ftp://engine/v1", "http:///v1"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="an endpoint needs an http or https URL with a host"):
        Endpoint.from_url(url)


# The pool


@pytest.mark.requirement("contract 2")
def test_a_connection_that_was_given_back_is_used_again(upstream: Upstream, pool: ConnectionPool) -> None:
    first = connect(pool, upstream.endpoint)
    upstream.accept()
    assert not first.reused
    pool.give_back(upstream.endpoint, first)

    assert connect(pool, upstream.endpoint) is first
    assert first.reused
    first.close()


def test_the_youngest_connection_is_used_first(upstream: Upstream, pool: ConnectionPool) -> None:
    older, younger = (connect(pool, upstream.endpoint) for _ in range(2))
    pool.give_back(upstream.endpoint, older)
    pool.give_back(upstream.endpoint, younger)

    assert connect(pool, upstream.endpoint) is younger
    assert connect(pool, upstream.endpoint) is older
    older.close()
    younger.close()


def test_endpoints_share_no_connection(upstream: Upstream, pool: ConnectionPool) -> None:
    other = Upstream()
    connection = connect(pool, upstream.endpoint)
    pool.give_back(upstream.endpoint, connection)

    another = connect(pool, other.endpoint)

    assert not another.reused
    another.close()
    other.close()


@pytest.mark.requirement("contract 2", "case-24")
def test_a_connection_that_was_idle_too_long_is_not_used(
    upstream: Upstream, pool: ConnectionPool, clock: Clock
) -> None:
    connection = connect(pool, upstream.endpoint)
    peer = upstream.accept()
    pool.give_back(upstream.endpoint, connection)
    clock.now += IDLE_LIMIT
    assert connect(pool, upstream.endpoint) is connection
    pool.give_back(upstream.endpoint, connection)
    clock.now += IDLE_LIMIT + 0.001

    fresh = connect(pool, upstream.endpoint)

    assert not fresh.reused
    assert is_closed(peer)
    fresh.close()


@pytest.mark.requirement("case-24")
@pytest.mark.parametrize("end", ["closed", "reset", "spoke"])
def test_a_connection_that_its_server_has_done_something_to_is_not_used(
    upstream: Upstream, pool: ConnectionPool, end: str
) -> None:
    connection = connect(pool, upstream.endpoint)
    peer = upstream.accept()
    pool.give_back(upstream.endpoint, connection)
    if end == "closed":
        peer.close()
    elif end == "reset":
        reset(peer)
    else:
        peer.sendall(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

    fresh = connect(pool, upstream.endpoint)

    assert not fresh.reused
    assert connection.fileno() == -1
    fresh.close()


def test_a_sweep_closes_what_was_idle_too_long_and_nothing_else(
    upstream: Upstream, pool: ConnectionPool, clock: Clock
) -> None:
    old, young = (connect(pool, upstream.endpoint) for _ in range(2))
    pool.give_back(upstream.endpoint, old)
    clock.now += IDLE_LIMIT
    pool.give_back(upstream.endpoint, young)
    clock.now += 0.5

    assert pool.sweep() == 1
    assert pool.sweep() == 0
    assert old.fileno() == -1
    assert connect(pool, upstream.endpoint) is young
    young.close()


def test_a_closed_pool_keeps_nothing(upstream: Upstream, pool: ConnectionPool) -> None:
    kept, late = (connect(pool, upstream.endpoint) for _ in range(2))
    pool.give_back(upstream.endpoint, kept)

    pool.close()
    pool.give_back(upstream.endpoint, late)

    assert kept.fileno() == late.fileno() == -1


def test_the_pool_is_bounded(pool: ConnectionPool) -> None:
    endpoint = Endpoint("http", HOST, 1, "")
    with ExitStack() as stack:
        surplus = None
        for _ in range(MAX_IDLE_PER_ENDPOINT + 1):
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            surplus = Connection(ours, tls=False)
            pool.give_back(endpoint, surplus)

        assert surplus is not None
        assert surplus.fileno() == -1
        pool.close()


def test_many_threads_never_get_one_connection_twice(upstream: Upstream, pool: ConnectionPool) -> None:
    for connection in [connect(pool, upstream.endpoint) for _ in range(8)]:
        upstream.accept()
        pool.give_back(upstream.endpoint, connection)
    in_use: set[int] = set()
    clashes: list[int] = []
    guard = threading.Lock()
    barrier = threading.Barrier(8)

    def take_and_give() -> None:
        barrier.wait(PATIENCE)
        for _ in range(200):
            connection = connect(pool, upstream.endpoint)
            with guard:
                if id(connection) in in_use:
                    clashes.append(id(connection))
                in_use.add(id(connection))
            with guard:
                in_use.discard(id(connection))
            pool.give_back(upstream.endpoint, connection)

    threads = [threading.Thread(target=take_and_give) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert clashes == []


# Attempts that fail


@pytest.mark.requirement("Q-T008")
def test_a_port_that_nobody_listens_on_is_refused(pool: ConnectionPool) -> None:
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        endpoint = Endpoint("http", HOST, bound.getsockname()[1], "")
        with pytest.raises(ConnectFailure) as failure:
            connect(pool, endpoint)

    assert failure.value.kind == "refused"
    assert str(failure.value) == "refused"


@pytest.fixture
def deaf() -> Iterator[Upstream]:
    """A server whose queue of connections is full: it lets a further one wait."""
    upstream = Upstream(backlog=0)
    with ExitStack() as stack:
        while True:
            probe = stack.enter_context(socket.socket())
            probe.settimeout(0.2)
            try:
                probe.connect((HOST, upstream.port))
            except TimeoutError:
                break
        yield upstream
    upstream.close()


def test_a_connection_that_does_not_come_about_times_out(deaf: Upstream, pool: ConnectionPool) -> None:
    with pytest.raises(ConnectFailure) as failure:
        connect(pool, deaf.endpoint, connect_timeout=0.05)

    assert failure.value.kind == "timeout"


@pytest.mark.requirement("house-4")
def test_connecting_ends_when_the_caller_leaves(deaf: Upstream, pool: ConnectionPool) -> None:
    caller, served = tcp_pair()
    with served:
        caller.close()
        with pytest.raises(CallerGone):
            connect(pool, deaf.endpoint, caller=served)


@pytest.mark.requirement("house-4")
def test_sending_ends_when_the_caller_leaves(upstream: Upstream, pool: ConnectionPool) -> None:
    connection = connect(pool, upstream.endpoint)
    caller, served = tcp_pair()
    with served:
        caller.close()
        with pytest.raises(CallerGone):
            connection.send(bytes(64 << 20), silence=PATIENCE, caller=served)
    connection.close()


def test_a_server_that_takes_nothing_more_times_out(upstream: Upstream, pool: ConnectionPool) -> None:
    connection = connect(pool, upstream.endpoint)
    with pytest.raises(SendFailure) as failure:
        connection.send(bytes(64 << 20), silence=0.05)

    assert failure.value.kind == "timeout"
    connection.close()


def test_a_server_that_goes_away_meanwhile_is_a_reset(upstream: Upstream, pool: ConnectionPool) -> None:
    connection = connect(pool, upstream.endpoint)
    peer = upstream.accept()
    thread = threading.Thread(target=lambda: (peer.recv(1), reset(peer)))
    thread.start()
    with pytest.raises(SendFailure) as failure:
        connection.send(bytes(64 << 20), silence=PATIENCE)
    thread.join(PATIENCE)

    assert failure.value.kind == "reset"
    connection.close()


def test_a_request_of_many_segments_arrives_whole(upstream: Upstream, pool: ConnectionPool) -> None:
    connection = connect(pool, upstream.endpoint)
    peer = upstream.accept()
    request = bytes(range(256)) * 65_536
    received = bytearray()

    def read() -> None:
        while len(received) < len(request):
            received.extend(peer.recv(1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    connection.send(request, silence=PATIENCE)
    reader.join(PATIENCE)

    assert received == request
    connection.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(), "refused"),
        (ConnectionResetError(), "reset"),
        (BrokenPipeError(), "reset"),
        (TimeoutError(), "timeout"),
        (socket.gaierror(), "dns"),
        (ssl.SSLError(), "tls"),
        (OSError(errno.EHOSTUNREACH, "no route"), "other"),
        (OSError(errno.EMFILE, "too many"), "other"),
    ],
)
def test_errors_have_closed_names(error: OSError, kind: str) -> None:
    assert failure_kind(error) == kind


def test_closing_twice_is_harmless(upstream: Upstream, pool: ConnectionPool) -> None:
    connection = connect(pool, upstream.endpoint)
    connection.close()
    connection.close()


def test_reading_tells_nothing_yet_from_the_end(upstream: Upstream, pool: ConnectionPool) -> None:
    connection = connect(pool, upstream.endpoint)
    peer = upstream.accept()
    assert connection.receive() is None

    peer.sendall(b"HTTP/1.1")
    assert await_bytes(connection) == b"HTTP/1.1"
    peer.close()
    assert await_bytes(connection) == b""
    assert not connection.pending
    connection.close()


def await_bytes(connection: Connection) -> bytes:
    module.wait_ready(connection.sock, PATIENCE, None, SendFailure, module.select.POLLIN)
    data = connection.receive()
    assert data is not None
    return data


# Names


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a look-up finds: addresses, or an error; ``asked`` counts, ``gate`` holds it up."""
    answers: dict[str, Any] = {"asked": 0, "gate": None, "found": [(HOST, 80)]}

    def look_up(host: str, port: int, **kind: Any) -> list[Any]:
        answers["asked"] += 1
        if answers["gate"] is not None:
            answers["gate"].wait(PATIENCE)
        if answers["found"] is None:
            raise socket.gaierror
        return [(socket.AF_INET, kind["type"], 6, "", address) for address in answers["found"]]

    monkeypatch.setattr(module.socket, "getaddrinfo", look_up)
    return answers


def test_a_name_is_looked_up_once_in_half_a_minute(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(module.time, "monotonic", clock)
    resolver = module._Resolver()
    expected = [(socket.AF_INET, (HOST, 8101))]

    assert resolver.resolve("engine", 8101, PATIENCE) == expected
    assert resolver.resolve("engine", 8101, PATIENCE) == expected
    assert names["asked"] == 1
    clock.now += 31.0
    assert resolver.resolve("engine", 8101, PATIENCE) == expected
    assert names["asked"] == 2


def test_an_old_address_serves_while_the_name_is_not_found(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(module.time, "monotonic", clock)
    resolver = module._Resolver()
    known = resolver.resolve("engine", 8101, PATIENCE)
    clock.now += 31.0
    names["found"] = None

    assert resolver.resolve("engine", 8101, PATIENCE) == known
    assert resolver.resolve("nobody", 1, PATIENCE) == []


def test_a_look_up_holds_nobody_longer_than_its_timeout(names: dict[str, Any]) -> None:
    names["gate"] = threading.Event()
    try:
        assert module._Resolver().resolve("engine", 8101, 0.05) == []
    finally:
        names["gate"].set()


def test_an_unknown_name_is_a_failure_to_connect(names: dict[str, Any], pool: ConnectionPool) -> None:
    names["found"] = None
    with pytest.raises(ConnectFailure) as failure:
        connect(pool, Endpoint("http", "engine", 80, ""))

    assert failure.value.kind == "dns"


def test_addresses_are_tried_in_their_order(
    names: dict[str, Any], upstream: Upstream, pool: ConnectionPool
) -> None:
    names["found"] = [("127.0.0.2", 0), (HOST, 0)]

    connection = connect(pool, Endpoint("http", "engine", upstream.port, ""))

    assert connection.sock.getpeername()[0] == HOST
    connection.close()


def test_addresses_need_no_look_up(names: dict[str, Any]) -> None:
    resolver = module._Resolver()

    assert resolver.resolve("127.0.0.1", 80, 0.0) == [(socket.AF_INET, ("127.0.0.1", 80))]
    assert resolver.resolve("::1", 80, 0.0) == [(socket.AF_INET6, ("::1", 80))]
    assert names["asked"] == 0


# TLS


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[trustme.CA]:
    """An authority that this process trusts, and nobody before."""
    authority = trustme.CA()
    bundle = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    module._tls_context.cache_clear()
    yield authority
    module._tls_context.cache_clear()


class TlsUpstream(Upstream):
    """A TLS server: each accepted connection is served by ``serve`` in a thread."""

    def __init__(self, authority: trustme.CA, name: str = HOST) -> None:
        super().__init__()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self._context)
        self.endpoint = Endpoint.from_url(f"https://{HOST}:{self.port}/v1")
        self.served: list[ssl.SSLSocket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            connection = self.accept()
            self.served.append(self._context.wrap_socket(connection, server_side=True))
            self.served[0].sendall(b"x" * 20_000)
            self.served[0].recv(1)
        except OSError:
            pass

    def close(self) -> None:
        super().close()
        self._thread.join(PATIENCE)
        for connection in self.served:
            connection.close()


def test_a_tls_upstream_is_verified_and_read(authority: trustme.CA, pool: ConnectionPool) -> None:
    upstream = TlsUpstream(authority)
    try:
        connection = connect(pool, upstream.endpoint)
        received = b""
        while len(received) < 20_000:
            if not connection.pending:
                module.wait_ready(connection.sock, PATIENCE, None, SendFailure, module.select.POLLIN)
            received += connection.receive(1000) or b""
        assert received == b"x" * 20_000
        assert connection.receive() is None
        assert connection.is_idle()
        connection.send(b"!", silence=PATIENCE)
        connection.close()
    finally:
        upstream.close()


def test_the_certificate_authorities_are_read_once(
    authority: trustme.CA, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    create = ssl.create_default_context
    monkeypatch.setattr(module.ssl, "create_default_context", lambda: made.append(1) or create())
    for _ in range(2):
        upstream = TlsUpstream(authority)
        try:
            connect(pool, upstream.endpoint).close()
        finally:
            upstream.close()

    assert made == [1]


@pytest.mark.parametrize("name", ["another.example", HOST])
def test_a_certificate_that_does_not_fit_is_a_failure_of_tls(
    authority: trustme.CA, pool: ConnectionPool, name: str
) -> None:
    signer = authority if name != HOST else trustme.CA()
    upstream = TlsUpstream(signer, name)
    try:
        with pytest.raises(ConnectFailure) as failure:
            connect(pool, upstream.endpoint)
        assert failure.value.kind == "tls"
    finally:
        upstream.close()


def test_a_handshake_that_stalls_times_out_and_leaves_no_descriptor(
    authority: trustme.CA, upstream: Upstream, pool: ConnectionPool
) -> None:
    endpoint = Endpoint("https", HOST, upstream.port, "")
    with pytest.raises(ConnectFailure) as failure:
        connect(pool, endpoint, connect_timeout=0.1)
    peer = upstream.accept()

    assert failure.value.kind == "timeout"
    while peer.recv(65_536):
        # The hello, and then the end.
        pass


def test_a_server_that_speaks_no_tls_is_a_failure_of_tls(
    authority: trustme.CA, upstream: Upstream, pool: ConnectionPool
) -> None:
    def answer() -> None:
        peer = upstream.accept()
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ConnectFailure) as failure:
        connect(pool, Endpoint("https", HOST, upstream.port, ""))
    thread.join(PATIENCE)

    assert failure.value.kind == "tls"
