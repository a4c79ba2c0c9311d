"""One readiness probe: is this upstream healthy, and does it serve the model it is declared to serve?

A probe is one or two bounded GETs on connections of its own: ``origin + health_path``, then ``base_url +
"/models"`` where identity or metadata is wanted. Any status from 200 to 299 counts as good. What it proves is
exactly that; it does not prove that the engine generates, nor which revision or image it runs.

Nothing of what a peer says is kept but an identity that equals the expected one and, for ``metadata_source =
"upstream"``, a served model name and limit within bounds: no unexpected model name, body or exception text.

``http.client`` rather than ``requests``: its timeout is per read, so a peer that trickles its head is never
late; it reads proxies, netrc and a certificate bundle of its own, where a probe must trust exactly what the
relay trusts.
"""

import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeGuard
from urllib.parse import SplitResult, urlsplit

import msgspec

from routing.config import RouterConfig, Tier

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_MODEL_LEN: Final = 10_000_000
"""The largest context limit that an upstream may report (the bound of ``context_limit``)."""

MAX_SERVED_MODEL_CHARACTERS: Final = 256

FaultName = Literal["timeout", "refused", "reset", "dns", "tls", "protocol", "other"]
FAULT_NAMES: Final[tuple[FaultName, ...]] = ("timeout", "refused", "reset", "dns", "tls", "protocol", "other")

PASSED: Final = frozenset({"availability_not_configured", "health_passed", "identity_passed"})

_NAMES = "|".join(FAULT_NAMES)
_FAILED = re.compile(
    rf"(?:health|identity)_(?:http_[1-9][0-9]{{2}}|transport_(?:{_NAMES}))"
    r"|identity_(?:oversized|malformed|mismatch)"
    r"|probe_(?:pending|invalidated|superseded)"
)


def is_readiness_reason(value: object) -> TypeGuard[str]:
    """Whether ``value`` is of the closed list of readiness reasons (projections: "Readiness reasons")."""
    return type(value) is str and (value in PASSED or _FAILED.fullmatch(value) is not None)


class ProbeFault(Exception):
    """A GET brought no response. ``name`` is all that is ever told of it."""

    def __init__(self, name: FaultName) -> None:
        super().__init__(name)
        self.name: FaultName = name


class Transport(Protocol):
    """How a probe asks. ``timeout`` (seconds, over 0) bounds the whole call, not each read.

    Returns the status and at most ``limit`` bytes of the body; with ``limit`` 0, or a status that is not
    200 to 299, the body is not read. Raises :class:`ProbeFault`; follows no redirect.
    """

    def __call__(
        self, url: str, *, headers: Mapping[str, str], timeout: float, limit: int
    ) -> tuple[int, bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeModelMetadata:
    """What a direct tier with ``metadata_source = "upstream"`` reports of its one model, validated."""

    served_model: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class AvailabilityResult:
    """One observation of one upstream, or why there is none.

    ``reason`` is of the closed list, and agrees with ``available``. ``latency_ms`` (whole milliseconds),
    ``checked_at`` (Unix time) and ``observed_monotonic`` (the cache's clock, in seconds) describe a probe
    that was accepted; all three are None on a result that no probe stands behind.
    """

    available: bool
    reason: str
    expected_model: str | None = None
    observed_model: str | None = None
    latency_ms: int | None = None
    checked_at: float | None = None
    observed_monotonic: float | None = None
    metadata: RuntimeModelMetadata | None = None

    def __post_init__(self) -> None:
        if not is_readiness_reason(self.reason) or self.available != (self.reason in PASSED):
            raise ValueError("a readiness reason is of the closed list and agrees with the availability")
        if self.observed_model is not None and self.observed_model != self.expected_model:
            raise ValueError("only the expected model may be kept as observed")

    @property
    def state(self) -> Literal["ready", "unavailable"]:
        return "ready" if self.available else "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTarget:
    """What is probed, for whom. ``member_id`` is None on a direct tier.

    ``expected_model`` is None where ``model_identity`` is off. ``deployment`` holds whatever else, changed,
    makes another deployment of it, whose readiness has to be shown anew.
    """

    tier_id: str
    member_id: str | None
    base_url: str = ""
    health_path: str | None = None
    expected_model: str | None = None
    metadata_upstream: bool = False
    auth_env: str | None = None
    deployment: tuple[object, ...] = ()

    def __repr__(self) -> str:
        """Without the address: a target may end up in a log line."""
        return f"ProbeTarget(tier_id={self.tier_id!r}, member_id={self.member_id!r})"

    @property
    def key(self) -> tuple[str, str | None]:
        """Composite, never one concatenated string: equal member ids of two tiers share nothing."""
        return (self.tier_id, self.member_id)

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """Equal for two configurations of one key exactly when readiness carries over between them."""
        return (
            self.base_url,
            self.health_path,
            self.expected_model,
            self.metadata_upstream,
            self.auth_env,
            self.deployment,
        )

    @property
    def verifies_identity(self) -> bool:
        """Whether a passed probe is evidence enough for a readmit (exact identity or valid metadata)."""
        return self.expected_model is not None or self.metadata_upstream

    @property
    def is_probed(self) -> bool:
        """False where nothing to probe is configured; such a target counts as available."""
        return self.health_path is not None or self.verifies_identity


def targets_from_config(config: RouterConfig) -> tuple[ProbeTarget, ...]:
    """One target per direct tier and one per replica member, in configuration order.

    The empty ``base_url`` of a replica tier never reaches a target.
    """
    targets: list[ProbeTarget] = []
    for tier in config.tiers:
        if not tier.is_replica:
            targets.append(_target(tier, None, tier.base_url, ()))
        targets += [
            _target(tier, member.id, member.base_url, (member.host_id, member.resource_id))
            for member in tier.replicas
        ]
    return tuple(targets)


def _target(tier: Tier, member_id: str | None, base_url: str, place: tuple[object, ...]) -> ProbeTarget:
    return ProbeTarget(
        tier_id=tier.id,
        member_id=member_id,
        base_url=base_url,
        health_path=tier.health_path,
        expected_model=tier.model if tier.model_identity else None,
        metadata_upstream=tier.metadata_source == "upstream",
        auth_env=tier.auth_env,
        deployment=(tier.dialect, tier.model, tier.strategy, tier.replica_identity, *place),
    )


def observe(
    target: ProbeTarget,
    *,
    transport: Transport,
    timeout: float,
    max_bytes: int,
    environ: Mapping[str, str],
    monotonic: Callable[[], float],
    wall_clock: Callable[[], float],
) -> AvailabilityResult:
    """Probe ``target`` once, within ``timeout`` seconds for both GETs together. Raises nothing.

    Only the resolution of a host name can take longer, since nothing interrupts it; its time counts, so
    such a probe is late however it ends. ``max_bytes`` bounds the model list.
    """
    started = monotonic()
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
    token = environ.get(target.auth_env, "") if target.auth_env else ""
    if token:
        headers["Authorization"] = f"Bearer {token}"

    def get(url: str, limit: int) -> tuple[int, bytes]:
        remaining = timeout - (monotonic() - started)
        if remaining <= 0:
            raise ProbeFault("timeout")
        return transport(url, headers=headers, timeout=remaining, limit=limit)

    reason, metadata = _verdict(target, get, max_bytes)
    finished = monotonic()
    return AvailabilityResult(
        available=reason in PASSED,
        reason=reason,
        expected_model=target.expected_model,
        observed_model=target.expected_model if reason == "identity_passed" else None,
        latency_ms=max(0, round((finished - started) * 1000)),
        checked_at=wall_clock(),
        observed_monotonic=finished,
        metadata=metadata,
    )


def _verdict(
    target: ProbeTarget, get: Callable[[str, int], tuple[int, bytes]], max_bytes: int
) -> tuple[str, RuntimeModelMetadata | None]:
    stage = "health"
    try:
        if target.health_path is not None:
            parts = urlsplit(target.base_url)
            status, _ = get(f"{parts.scheme}://{parts.netloc}{target.health_path}", 0)
            if not 200 <= status <= 299:
                return f"health_http_{status}", None
            if not target.verifies_identity:
                return "health_passed", None
        stage = "identity"
        status, body = get(target.base_url.rstrip("/") + "/models", max_bytes + 1)
    except ProbeFault as fault:
        return f"{stage}_transport_{fault.name}", None
    except Exception:  # noqa: BLE001 - whatever breaks a probe makes one member unavailable and no more
        return f"{stage}_transport_other", None
    if not 200 <= status <= 299:
        return f"identity_http_{status}", None
    if len(body) > max_bytes:
        return "identity_oversized", None
    return _identity(target, body)


class _Model(msgspec.Struct):
    id: str
    max_model_len: msgspec.Raw = msgspec.Raw()


class _ModelList(msgspec.Struct):
    data: list[_Model]


def _identity(target: ProbeTarget, body: bytes) -> tuple[str, RuntimeModelMetadata | None]:
    """Judge a model list.

    An engine that serves several names passes when exactly one of them is the expected one. With
    ``metadata_upstream`` it must serve exactly one, with a ``max_model_len`` from 1 to 10,000,000.
    """
    try:
        models = msgspec.json.decode(body, type=_ModelList).data
        if not target.metadata_upstream:
            matches = sum(model.id == target.expected_model for model in models)
            return ("identity_passed" if matches == 1 else "identity_mismatch"), None
        if len(models) != 1 or target.expected_model not in (None, models[0].id):
            return "identity_mismatch", None
        name = models[0].id
        limit = msgspec.json.decode(models[0].max_model_len, type=int)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return "identity_malformed", None
    if not (1 <= limit <= MAX_MODEL_LEN and 1 <= len(name) <= MAX_SERVED_MODEL_CHARACTERS):
        return "identity_malformed", None
    if not name.isprintable():
        return "identity_malformed", None
    return "identity_passed", RuntimeModelMetadata(served_model=name, max_model_len=limit)


# --- the transport -----------------------------------------------------------------------------------


def http_get(url: str, *, headers: Mapping[str, str], timeout: float, limit: int) -> tuple[int, bytes]:
    """The real :class:`Transport`: one GET on a connection of its own, under one real deadline.

    No proxy, cookie, redirect or retry; https is verified against the system's certificates.
    """
    deadline = time.monotonic() + timeout
    try:
        parts = urlsplit(url)
        sock = _dial(parts, deadline)
        with closing(http.client.HTTPConnection(parts.hostname or "")) as connection:
            connection.sock = sock
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Host": parts.netloc, **headers})
            with closing(connection.getresponse()) as response:
                wanted = limit > 0 and 200 <= response.status <= 299
                body = response.read(limit) if wanted else b""
                if wanted and len(body) < limit and response.length:
                    raise http.client.IncompleteRead(body)  # read(n) keeps quiet about an early end
                return response.status, body
    except (OSError, http.client.HTTPException, ValueError) as error:
        # ValueError: a header or host that cannot be sent; its text would hold the secret.
        raise ProbeFault(_name(error)) from None


def _name(error: Exception) -> FaultName:
    match error:
        case TimeoutError():
            return "timeout"
        case ConnectionRefusedError():
            return "refused"
        case ConnectionError():  # RemoteDisconnected, too: closed before a response
            return "reset"
        case socket.gaierror():
            return "dns"
        case ssl.SSLError():
            return "tls"
        case http.client.HTTPException():
            return "protocol"
        case _:
            return "other"


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


class _Deadline(socket.socket):
    """A socket whose reads share one deadline, so that a byte now and then does not keep it open."""

    deadline = 0.0

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_remaining(self.deadline))
        return super().recv_into(buffer, nbytes, flags)


class _DeadlineTLS(_Deadline, ssl.SSLSocket):  # type: ignore[misc]  # recv_into differs in Optional only
    """The same below TLS; made by its context alone."""


@cache
def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _DeadlineTLS
    return context


def _dial(parts: SplitResult, deadline: float) -> socket.socket:
    """A connected socket, through TLS where the scheme says so; every address gets what time is left."""
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    failure: OSError = socket.gaierror()
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock: _Deadline = _Deadline(family, kind, protocol)
        try:
            sock.deadline = deadline
            sock.settimeout(_remaining(deadline))
            sock.connect(address)
            if parts.scheme == "https":
                sock.settimeout(_remaining(deadline))  # bounds the handshake as a whole
                sock = _secured(sock, host, deadline)
            sock.settimeout(_remaining(deadline))
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _secured(sock: socket.socket, host: str, deadline: float) -> _Deadline:
    secured = _tls_context().wrap_socket(sock, server_hostname=host)
    assert isinstance(secured, _DeadlineTLS)
    secured.deadline = deadline
    return secured
