"""The fetch against engines that misbehave, over real sockets on the loopback interface."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from admission.replica_scheduler import PressureFreshness
from routing.config import ReplicaMember, Tier
from telemetry.engine_metrics import (
    MAX_PAGE_BYTES,
    MetricsEndpoint,
    MetricsSnapshot,
    MetricsStatus,
    fetch_engine_metrics,
)
from telemetry.pressure import ReplicaPressureCache

pytestmark = pytest.mark.requirement("C-R009", "C-T003")

PAGE = b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 1\n'

Script = Callable[[socket.socket], None]


@dataclass
class At:
    """An engine's place; what the fetch needs of a tier."""

    base_url: str
    auth_env: str | None = None


@dataclass
class Engine:
    """A listener that answers each connection with one scripted behaviour."""

    script: Script
    requests: list[bytes] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def at(self) -> At:
        return At(f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1")

    def serve(self) -> None:
        while not self.stop.is_set():
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with closing(peer):
                peer.settimeout(10)
                head = b""
                while not head.endswith(b"\r\n\r\n") and (data := peer.recv(65_536)):
                    head += data
                    if head.startswith(b"\x16"):  # a TLS hello, which the script answers in plain HTTP
                        break
                self.requests.append(head)
                try:
                    self.script(peer)
                except OSError:
                    continue


@pytest.fixture
def engine() -> Iterator[Callable[[Script], Engine]]:
    running: list[tuple[Engine, threading.Thread]] = []

    def start(script: Script) -> Engine:
        engine = Engine(script)
        thread = threading.Thread(target=engine.serve, daemon=True)
        thread.start()
        running.append((engine, thread))
        return engine

    yield start
    for engine, thread in running:
        engine.stop.set()
        engine.listener.shutdown(socket.SHUT_RDWR)
        engine.listener.close()
        thread.join(timeout=10)
        assert not thread.is_alive()


Start = Callable[[Script], Engine]


def answer(body: bytes, status: str = "200 OK", *, length: int | None = None, extra: str = "") -> Script:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n{extra}"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return lambda peer: peer.sendall(head.encode() + body)


def status_of(endpoint: MetricsEndpoint, **options: float) -> MetricsStatus:
    """The status of a fetch that brought no values."""
    snapshot = fetch_engine_metrics(endpoint, environ={}, timeout=options.pop("timeout", 5.0))
    assert snapshot == MetricsSnapshot(status=snapshot.status)
    return snapshot.status


def test_the_page_is_at_the_origin_and_not_below_the_base_path(engine: Start) -> None:
    peer = engine(answer(PAGE))
    snapshot = fetch_engine_metrics(peer.at, environ={})
    assert snapshot.status is MetricsStatus.OK
    assert (snapshot.requests_running, snapshot.requests_waiting) == (3, 1)
    lines = peer.requests[0].decode().split("\r\n")
    assert lines[0] == "GET /metrics HTTP/1.1"
    assert sorted(lines[1:-2]) == [
        "Accept-Encoding: identity",
        "Accept: text/plain;version=0.0.4",
        "Connection: close",
        f"Host: {peer.at.base_url.removeprefix('http://').removesuffix('/v1')}",
    ]


def test_the_token_is_the_value_of_the_named_variable(engine: Start) -> None:
    peer = engine(answer(PAGE))
    endpoint = At(peer.at.base_url, auth_env="ENGINE_TOKEN")
    for environ in ({"ENGINE_TOKEN": "s3cret", "OTHER": "x"}, {"OTHER": "x"}, {"ENGINE_TOKEN": ""}):
        assert fetch_engine_metrics(endpoint, environ=environ).status is MetricsStatus.OK
    assert b"\r\nAuthorization: Bearer s3cret\r\n" in peer.requests[0]
    assert b"Authorization" not in peer.requests[1] + peer.requests[2]


def test_a_token_that_no_header_can_carry_is_not_sent(engine: Start) -> None:
    peer = engine(answer(PAGE))
    endpoint = At(peer.at.base_url, auth_env="ENGINE_TOKEN")
    snapshot = fetch_engine_metrics(endpoint, environ={"ENGINE_TOKEN": "a\r\nX-Evil: b"})
    assert snapshot == MetricsSnapshot(status=MetricsStatus.TRANSPORT_ERROR)
    assert b"Evil" not in b"".join(peer.requests)


def test_proxies_of_the_environment_are_not_used(engine: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = engine(answer(PAGE))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert fetch_engine_metrics(peer.at).status is MetricsStatus.OK


def test_each_fetch_has_a_connection_of_its_own_and_brings_no_cookie_back(engine: Start) -> None:
    peer = engine(answer(PAGE, extra="Set-Cookie: sid=1\r\nConnection: keep-alive\r\n"))
    for _ in range(2):
        assert fetch_engine_metrics(peer.at, environ={}).status is MetricsStatus.OK
    assert len(peer.requests) == 2
    assert b"cookie" not in peer.requests[1].lower()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent"])
def test_redirects_are_not_followed(engine: Start, status: str) -> None:
    target = engine(answer(PAGE))
    peer = engine(answer(b"", status, extra=f"Location: {target.at.base_url}\r\n"))
    assert status_of(peer.at) is MetricsStatus.HTTP_ERROR
    assert target.requests == []
    assert len(peer.requests) == 1


@pytest.mark.parametrize("status", ["204 No Content", "206 Partial", "401 No", "404 Not Found", "500 Oops"])
def test_any_status_but_200_is_an_http_error(engine: Start, status: str) -> None:
    assert status_of(engine(answer(PAGE, status)).at) is MetricsStatus.HTTP_ERROR


def test_a_page_of_the_bound_is_read(engine: Start) -> None:
    page = PAGE + b"#" * (MAX_PAGE_BYTES - len(PAGE))
    assert fetch_engine_metrics(engine(answer(page)).at, environ={}, timeout=5.0).requests_running == 3


def test_a_page_of_one_byte_more_is_oversized(engine: Start) -> None:
    page = PAGE + b"#" * (MAX_PAGE_BYTES + 1 - len(PAGE))
    assert status_of(engine(answer(page)).at) is MetricsStatus.OVERSIZED


def test_a_page_without_end_is_oversized(engine: Start) -> None:
    def endless(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            peer.sendall(b"10000\r\n" + b"#" * 65_536 + b"\r\n")

    assert status_of(engine(endless).at) is MetricsStatus.OVERSIZED


def test_a_chunked_page_is_read(engine: Start) -> None:
    def chunked(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (PAGE[:7], PAGE[7:50], PAGE[50:]):
            peer.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        peer.sendall(b"0\r\n\r\n")

    assert fetch_engine_metrics(engine(chunked).at, environ={}).requests_waiting == 1


def test_a_page_that_ends_with_the_connection_is_read(engine: Start) -> None:
    peer = engine(lambda peer: peer.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE))
    assert fetch_engine_metrics(peer.at, environ={}).requests_running == 3


@pytest.mark.parametrize(
    "script",
    [
        answer(PAGE, length=len(PAGE) + 1),
        lambda peer: peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + PAGE),
        lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n"),
        lambda peer: peer.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"),
        lambda peer: None,
    ],
    ids=["cut short", "cut in a chunk", "not HTTP", "endless head", "no answer"],
)
def test_what_is_cut_off_or_not_http_is_a_transport_error(engine: Start, script: Script) -> None:
    """A page cut short would lose ranks without a trace, so none of it is used."""
    assert status_of(engine(script).at) is MetricsStatus.TRANSPORT_ERROR


def test_a_reset_in_the_body_is_a_transport_error(engine: Start) -> None:
    def reset(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + PAGE)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    assert status_of(engine(reset).at) is MetricsStatus.TRANSPORT_ERROR


def test_a_refused_connection_is_a_transport_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    assert status_of(At(f"http://127.0.0.1:{port}")) is MetricsStatus.TRANSPORT_ERROR


def test_plain_http_where_tls_is_configured_is_a_transport_error(engine: Start) -> None:
    peer = engine(answer(PAGE))
    assert status_of(At(peer.at.base_url.replace("http:", "https:"))) is MetricsStatus.TRANSPORT_ERROR


def test_the_empty_address_of_a_replica_tier_is_never_asked() -> None:
    def transport(url: str, **options: object) -> tuple[int, bytes]:
        pytest.fail("an address was made from nothing")

    snapshot = fetch_engine_metrics(At(""), transport=transport)
    assert snapshot == MetricsSnapshot(status=MetricsStatus.TRANSPORT_ERROR)


def test_an_engine_that_never_accepts_times_out() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        endpoint = At(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert status_of(endpoint, timeout=0.2) is MetricsStatus.TIMEOUT


@pytest.mark.parametrize(
    "opening", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + PAGE]
)
def test_an_engine_that_stalls_times_out(engine: Start, opening: bytes) -> None:
    def stall(peer: socket.socket) -> None:
        peer.sendall(opening)
        peer.recv(1)  # returns when the fetch has hung up

    assert status_of(engine(stall).at, timeout=0.2) is MetricsStatus.TIMEOUT


@pytest.mark.parametrize(
    "opening",
    [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n"],
    ids=["status line", "head", "body"],
)
def test_a_trickling_engine_ends_at_the_deadline(engine: Start, opening: bytes) -> None:
    """Each read is short, so only a deadline over all of them ends it. The engine sees the hang-up."""
    hung_up = threading.Event()

    def trickle(peer: socket.socket) -> None:
        peer.sendall(opening)
        give_up = time.monotonic() + 10
        try:
            while time.monotonic() < give_up:
                peer.sendall(b"H")
                hung_up.wait(0.005)
        except OSError:
            hung_up.set()

    peer = engine(trickle)
    started = time.monotonic()
    assert status_of(peer.at, timeout=0.3) is MetricsStatus.TIMEOUT
    assert time.monotonic() - started < 5
    assert hung_up.wait(10)


def test_the_pressure_cache_reads_real_engines_with_their_token(
    engine: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One member answers and one is not there; neither its address nor the token is in what comes out."""
    monkeypatch.setenv("ENGINE_TOKEN", "s3cret")
    done = threading.Semaphore(0)

    def provider(view: Tier) -> MetricsSnapshot:
        try:
            return fetch_engine_metrics(view)
        finally:
            done.release()

    peer = engine(answer(PAGE))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        gone = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    tier = Tier(
        id="primary",
        context_limit=32_768,
        model="m",
        auth_env="ENGINE_TOKEN",
        replica_strategy="capacity",
        replicas=tuple(
            ReplicaMember(
                id=member_id,
                base_url=base_url,
                host_id="gpu-host-1",
                resource_id=member_id,
                qualification_ref="bench:run-7",
                max_concurrency=8,
            )
            for member_id, base_url in (("here", peer.at.base_url), ("gone", gone))
        ),
    )
    with closing(ReplicaPressureCache([tier], metrics_provider=provider)) as cache:
        cache.snapshot("primary")
        for _ in range(2):
            assert done.acquire(timeout=10)
        give_up = time.monotonic() + 10
        while None in cache.ages("primary").values():  # between the fetch and its sample
            assert time.monotonic() < give_up
        seen = cache.peek("primary")
    assert (seen["here"].freshness, seen["here"].pressure_ppm) == (PressureFreshness.FRESH, 500_000)
    assert (seen["gone"].freshness, seen["gone"].pressure_ppm) == (PressureFreshness.FAILED, None)
    assert b"Bearer s3cret" in peer.requests[0]
