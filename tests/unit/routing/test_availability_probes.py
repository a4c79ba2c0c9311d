"""One probe: what it concludes from an answer, and how it fares with real peers that misbehave."""

import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import chain, repeat

import pytest
import trustme

from routing import probes
from routing.availability import AvailabilityResult, RuntimeModelMetadata, is_readiness_reason
from routing.probes import ProbeFault, ProbeTarget, Transport, http_get, observe
from tests.unit.routing.availability_support import PATIENCE, Answer, Clock, member, models

SHORT = 0.25
"""Seconds of probe timeout where a peer is meant to run into it."""


def probe(
    target: ProbeTarget,
    transport: Transport = http_get,
    *,
    timeout: float = PATIENCE,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AvailabilityResult:
    return observe(
        target,
        transport=transport,
        timeout=timeout,
        max_bytes=4096,
        environ=environ or {},
        monotonic=clock,
        wall_clock=lambda: 1_700_000_000.0,
    )


def answering(answer: Answer) -> Transport:
    def transport(url: str, *, headers: Mapping[str, str], timeout: float, limit: int) -> tuple[int, bytes]:
        if isinstance(answer, str):
            raise ProbeFault(answer)
        return answer

    return transport


# --- the verdict -------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-R005", "Q-R007", "Q-T003")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (models("qwen"), "identity_passed"),
        (models("qwen", max_model_len="nonsense"), "identity_passed"),
        (models("lora", "qwen", "other"), "identity_passed"),
        (models("qwen", "qwen"), "identity_mismatch"),
        (models("qwen2"), "identity_mismatch"),
        (models("Qwen"), "identity_mismatch"),
        (models("qwen "), "identity_mismatch"),
        (models(), "identity_mismatch"),
        ((204, b""), "identity_malformed"),
        ((200, b""), "identity_malformed"),
        ((200, b"<html>"), "identity_malformed"),
        ((200, b"[]"), "identity_malformed"),
        ((200, b'{"data":{}}'), "identity_malformed"),
        ((200, b'{"data":null}'), "identity_malformed"),
        ((200, b'{"data":["qwen"]}'), "identity_malformed"),
        ((200, b'{"data":[{"id":1}]}'), "identity_malformed"),
        ((200, b'{"data":[{"id":"qwen"},{}]}'), "identity_malformed"),
        ((200, b'{"data":[{"id":"qwen"}]} trailing'), "identity_malformed"),
        ((200, b'{"data":[{"id":"qwen","x":NaN}]}'), "identity_malformed"),
        ((200, b'{"data":[{"id":"\xff"}]}'), "identity_malformed"),
        ((200, b'{"data":[{"id":"\\ud800"}]}'), "identity_malformed"),
        ((200, b'{"data":[{"id":"qwen","x":' + b"[" * 2000 + b"]" * 2000 + b"}]}"), "identity_malformed"),
        ((200, models("qwen")[1] + b" " * 5000), "identity_oversized"),  # type: ignore[operator]
        ((301, b""), "identity_http_301"),
        ((401, b""), "identity_http_401"),
        ((503, b""), "identity_http_503"),
        ("timeout", "identity_transport_timeout"),
        ("tls", "identity_transport_tls"),
    ],
)
def test_identity_passes_only_when_the_expected_model_is_listed_exactly_once(
    answer: Answer, reason: str
) -> None:
    result = probe(member("t", None, "h"), answering(answer), clock=Clock(7.5))
    assert result == AvailabilityResult(
        reason == "identity_passed",
        reason,
        expected_model="qwen",
        observed_model="qwen" if reason == "identity_passed" else None,
        latency_ms=0,
        checked_at=1_700_000_000.0,
        observed_monotonic=7.5,
    )


@pytest.mark.requirement("F-R010", "Q-T003")
@pytest.mark.parametrize("more", [{}, {"max_model_len": 4096}])
def test_an_unexpected_model_name_is_never_kept(more: dict[str, object]) -> None:
    result = probe(member("t", None, "h"), answering(models("stolen-secret", **more)))
    assert result.reason == "identity_mismatch"
    assert "stolen-secret" not in repr(result)
    assert "http" not in repr(result)


def dynamic(expected: str | None = None) -> ProbeTarget:
    return member("t", None, "h", expected_model=expected, metadata_upstream=True)


@pytest.mark.requirement("Q-T003", "contract 1")
@pytest.mark.parametrize("limit", [1, 32_768, 10_000_000])
@pytest.mark.parametrize("expected", [None, "qwen"])
def test_dynamic_metadata_is_the_one_served_model_and_its_limit(limit: int, expected: str | None) -> None:
    result = probe(dynamic(expected), answering(models("qwen", max_model_len=limit)))
    assert (result.available, result.reason) == (True, "identity_passed")
    assert result.metadata == RuntimeModelMetadata(served_model="qwen", max_model_len=limit)
    assert (result.expected_model, result.observed_model) == (expected, expected)


@pytest.mark.requirement("Q-T003", "contract 1")
@pytest.mark.parametrize(
    ("answer", "expected", "reason"),
    [
        (models("a", "b", max_model_len=10), None, "identity_mismatch"),
        (models(max_model_len=10), None, "identity_mismatch"),
        (models("a", max_model_len=10), "qwen", "identity_mismatch"),
        (models("a"), None, "identity_malformed"),
        (models("a", max_model_len=0), None, "identity_malformed"),
        (models("a", max_model_len=-1), None, "identity_malformed"),
        (models("a", max_model_len=10_000_001), None, "identity_malformed"),
        (models("a", max_model_len=10**30), None, "identity_malformed"),
        (models("a", max_model_len=True), None, "identity_malformed"),
        (models("a", max_model_len="4096"), None, "identity_malformed"),
        (models("a", max_model_len=4096.0), None, "identity_malformed"),
        (models("a", max_model_len=None), None, "identity_malformed"),
        (models("", max_model_len=10), None, "identity_malformed"),
        (models("a\nb", max_model_len=10), None, "identity_malformed"),
        (models("a" * 257, max_model_len=10), None, "identity_malformed"),
    ],
)
def test_dynamic_metadata_out_of_bounds_is_no_evidence(
    answer: Answer, expected: str | None, reason: str
) -> None:
    result = probe(dynamic(expected), answering(answer))
    assert (result.available, result.reason, result.metadata) == (False, reason, None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b""), "health_passed"),
        ((204, b""), "health_passed"),
        ((299, b""), "health_passed"),
        ((199, b""), "health_http_199"),
        ((302, b""), "health_http_302"),
        ((500, b""), "health_http_500"),
        ("reset", "health_transport_reset"),
        ("dns", "health_transport_dns"),
    ],
)
def test_health_alone_passes_with_any_status_from_200_to_299(answer: Answer, reason: str) -> None:
    target = member("t", None, "h", expected_model=None, health_path="/health")
    assert probe(target, answering(answer)).reason == reason


def test_health_is_asked_at_the_origin_and_the_models_below_the_base_url_with_the_secret_on_both() -> None:
    asked: list[tuple[str, Mapping[str, str], int]] = []

    def transport(url: str, *, headers: Mapping[str, str], timeout: float, limit: int) -> tuple[int, bytes]:
        asked.append((url, headers, limit))
        return models("qwen")  # type: ignore[return-value]

    target = member(
        "t", None, "h:81", base_url="http://h:81/pre/v1/", health_path="/health?x=1", auth_env="UP"
    )
    assert probe(target, transport, environ={"UP": "sesame"}).available
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Authorization": "Bearer sesame",
    }
    assert asked == [
        ("http://h:81/health?x=1", headers, 0),
        ("http://h:81/pre/v1/models", headers, 4097),
    ]
    for environ in ({}, {"UP": ""}):
        asked.clear()
        probe(target, transport, environ=environ)
        assert "Authorization" not in asked[0][1]


def test_both_requests_share_one_deadline() -> None:
    clock = Clock()
    timeouts: list[float] = []

    def transport(url: str, *, headers: Mapping[str, str], timeout: float, limit: int) -> tuple[int, bytes]:
        timeouts.append(timeout)
        clock.advance(2.0)
        return models("qwen")  # type: ignore[return-value]

    target = member("t", None, "h", health_path="/health")
    assert probe(target, transport, timeout=3.0, clock=clock).latency_ms == 4000
    assert timeouts == [3.0, 1.0]
    assert probe(target, transport, timeout=2.0, clock=clock).reason == "identity_transport_timeout"
    assert timeouts == [3.0, 1.0, 2.0]


@pytest.mark.requirement("F-R010")
def test_readiness_reasons_are_a_closed_list() -> None:
    for reason in ("probe_pending", "health_http_503", "identity_transport_refused", "identity_oversized"):
        assert is_readiness_reason(reason)
    for value in ("", "health_http_99", "health_http_0500", "identity_transport_ConnectionError", "ready", 1):
        assert not is_readiness_reason(value)
    for values in ((True, "identity_mismatch"), (False, "health_passed"), (False, "http://x")):
        with pytest.raises(ValueError, match="closed list"):
            AvailabilityResult(*values)
    with pytest.raises(ValueError, match="only the expected model"):
        AvailabilityResult(False, "identity_mismatch", expected_model="a", observed_model="b")


# --- real peers --------------------------------------------------------------------------------------

Behaviour = Callable[[socket.socket, threading.Event], None]


class Peer:
    """A server on loopback that treats each connection as its behaviour says; keeps the heads it read."""

    def __init__(self, behaviour: Behaviour, *, tls: ssl.SSLContext | None = None) -> None:
        self._behaviour = behaviour
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.closing = threading.Event()
        self.heads: list[bytes] = []
        self.netloc = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(PATIENCE)
                with suppress(OSError):  # the probe has had enough
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        if self._tls is None:
            self.heads.append(_head(connection))
            self._behaviour(connection, self.closing)
        else:
            with self._tls.wrap_socket(connection, server_side=True) as secured:
                self.heads.append(_head(secured))
                self._behaviour(secured, self.closing)

    def close(self) -> None:
        self.closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def _head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        data = connection.recv(4096)
        if not data:
            break
        head += data
    return head


@contextmanager
def peer(behaviour: Behaviour, *, tls: ssl.SSLContext | None = None) -> Iterator[Peer]:
    with closing(Peer(behaviour, tls=tls)) as running:
        yield running


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


GOOD = json.dumps({"data": [{"id": "qwen"}]}).encode()


def says(data: bytes) -> Behaviour:
    def behave(connection: socket.socket, closing: threading.Event) -> None:
        connection.sendall(data)

    return behave


def stalls(connection: socket.socket, closing: threading.Event) -> None:
    closing.wait(PATIENCE)


def trickles(start: bytes, drop: bytes) -> Behaviour:
    """Sends ``start`` and then a drop every 20 ms: no read ever waits long, and there is no end."""

    def behave(connection: socket.socket, closing: threading.Event) -> None:
        for data in chain([start], repeat(drop)):
            connection.sendall(data)
            if closing.wait(0.02):
                return

    return behave


def resets(connection: socket.socket, closing: threading.Event) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hangs_up(connection: socket.socket, closing: threading.Event) -> None:
    """Closes in good order without a word."""


@pytest.mark.requirement("F-R009", "Q-T003")
@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (says(response(GOOD)), "identity_passed"),
        (says(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD), "identity_passed"),
        (says(b"HTTP/1.1 100 Continue\r\n\r\n" + response(GOOD)), "identity_passed"),
        (
            says(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
                % (len(GOOD), GOOD)
            ),
            "identity_passed",
        ),
        (says(response(b'{"data":[{"id":"other"}]}')), "identity_mismatch"),
        (says(response(b'{"data":[{"id":"qwen"},{"id":"other"}]}')), "identity_passed"),
        (says(response(b"x" * 4097)), "identity_oversized"),
        (says(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000), "identity_oversized"),
        (says(response(b"x", "500 Internal Server Error")), "identity_http_500"),
        (says(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + GOOD), "identity_transport_protocol"),
        (says(b"garbage\r\n\r\n"), "identity_transport_protocol"),
        (says(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200), "identity_transport_protocol"),
        (says(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000), "identity_transport_protocol"),
        (
            says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            "identity_transport_protocol",
        ),
        (resets, "identity_transport_reset"),
        (hangs_up, "identity_transport_reset"),
    ],
)
def test_real_answers(behaviour: Behaviour, reason: str) -> None:
    with peer(behaviour) as server:
        assert probe(member("t", None, server.netloc)).reason == reason
        assert len(server.heads) == 1


@pytest.mark.parametrize(
    "behaviour",
    [
        stalls,
        trickles(b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        trickles(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n", b" "),
        trickles(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["stall", "trickling head", "trickling body", "trickling chunks"],
)
def test_a_slow_peer_meets_one_deadline_for_the_whole_probe(behaviour: Behaviour) -> None:
    with peer(behaviour) as server:
        result = probe(member("t", None, server.netloc), timeout=SHORT)
    assert result.reason == "identity_transport_timeout"
    assert result.latency_ms is not None
    assert 250 <= result.latency_ms < 2000


def test_a_trickling_health_body_is_not_waited_for() -> None:
    with peer(trickles(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n", b" ")) as server:
        target = member("t", None, server.netloc, expected_model=None, health_path="/health")
        assert probe(target).reason == "health_passed"


def test_a_port_that_nobody_listens_on_is_refused() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    result = probe(member("t", None, f"127.0.0.1:{port}", health_path="/health"))
    assert result.reason == "health_transport_refused"


def test_a_listener_that_accepts_nobody_is_a_timeout() -> None:
    with closing(socket.create_server(("127.0.0.1", 0), backlog=1)) as listener:
        netloc = f"127.0.0.1:{listener.getsockname()[1]}"
        assert probe(member("t", None, netloc), timeout=SHORT).reason == "identity_transport_timeout"


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def unresolved(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "secret.example unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    assert probe(member("t", None, "secret.example")).reason == "identity_transport_dns"


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(says(response(GOOD))) as server:
        port = int(server.netloc.rpartition(":")[2])
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        assert probe(member("t", None, f"both.example:{port}")).reason == "identity_passed"


def test_a_secret_that_no_header_can_carry_fails_without_showing(caplog: pytest.LogCaptureFixture) -> None:
    with peer(hangs_up) as server:
        result = probe(member("t", None, server.netloc, auth_env="UP"), environ={"UP": "se\nsame"})
        assert result.reason == "identity_transport_other"
        assert "sesame" not in repr(result) + caplog.text
    assert server.heads in ([], [b""])


@pytest.mark.requirement("F-R009")
def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with peer(says(response(GOOD))) as other:
        location = f"Location: http://{other.netloc}/v1/models"
        with peer(says(response(b"", "307 Temporary Redirect", location))) as server:
            assert probe(member("t", None, server.netloc)).reason == "identity_http_307"
        assert other.heads == []


@pytest.mark.requirement("F-R009")
def test_a_probe_asks_plainly_without_proxy_or_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    with peer(says(response(GOOD, "200 OK", "Set-Cookie: a=b"))) as server:
        target = member("t", None, server.netloc, auth_env="UP", health_path="/health")
        for _ in range(2):
            assert probe(target, environ={"UP": "sesame"}).available
    common = (
        f"Host: {server.netloc}\r\nAccept: application/json\r\nAccept-Encoding: identity\r\n"
        "Connection: close\r\nAuthorization: Bearer sesame\r\n\r\n"
    )
    assert [head.decode() for head in server.heads] == [
        f"GET /health HTTP/1.1\r\n{common}",
        f"GET /v1/models HTTP/1.1\r\n{common}",
    ] * 2


# --- TLS ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def secured(netloc: str) -> ProbeTarget:
    return member("t", None, netloc, base_url=f"https://{netloc}/v1")


@pytest.fixture
def trusted(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system's certificate store is the test's own."""
    with authority.cert_pem.tempfile() as path:
        monkeypatch.setenv("SSL_CERT_FILE", path)
        probes._tls_context.cache_clear()
        yield
    probes._tls_context.cache_clear()


@pytest.mark.usefixtures("trusted")
def test_https_is_verified_and_works(server_tls: ssl.SSLContext) -> None:
    with peer(says(response(GOOD)), tls=server_tls) as server:
        assert probe(secured(server.netloc)).reason == "identity_passed"
        assert server.heads[0].startswith(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:")


def test_https_from_an_unknown_authority_is_refused_before_the_secret_is_sent(
    server_tls: ssl.SSLContext,
) -> None:
    probes._tls_context.cache_clear()
    with peer(says(response(GOOD)), tls=server_tls) as server:
        assert probe(secured(server.netloc)).reason == "identity_transport_tls"
        assert server.heads == []


def test_plain_http_on_an_https_url_is_a_tls_fault() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(PATIENCE)

        def greet() -> None:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionError):
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                while connection.recv(4096):
                    pass

        server = threading.Thread(target=greet, daemon=True)
        server.start()
        reason = probe(secured(f"127.0.0.1:{listener.getsockname()[1]}")).reason
        server.join(PATIENCE)
    assert reason == "identity_transport_tls"


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("behaviour", [stalls, trickles(b"HTTP/1.1 200 OK\r\nX: ", b"y")])
def test_a_slow_peer_below_tls_meets_the_same_deadline(
    behaviour: Behaviour, server_tls: ssl.SSLContext
) -> None:
    with peer(behaviour, tls=server_tls) as server:
        result = probe(secured(server.netloc), timeout=SHORT)
    assert result.reason == "identity_transport_timeout"
    assert result.latency_ms is not None
    assert 250 <= result.latency_ms < 2000


def test_a_handshake_that_never_comes_is_a_timeout() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        netloc = f"127.0.0.1:{listener.getsockname()[1]}"
        assert probe(secured(netloc), timeout=SHORT).reason == "identity_transport_timeout"
