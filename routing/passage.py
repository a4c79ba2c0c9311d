"""One request's way through the router, as far as every kind of route shares it.

A passage dispatches at most once and leaves exactly one decision record. What comes before differs: tiers
have gates, readiness and a ledger (`routing.gateway`), purpose models and audio routes have none of these
(`routing.purposes`).
"""

import enum
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from admission.core import AdmissionLease, MemberAdmissionLease
from routing.access import Principal
from routing.dialects.base import Answer, CallerRequest, Dialect, Failure, UpstreamCall, Usage
from routing.exchange import Exchange, Fault, Outcome
from routing.records import AttemptRecord, DecisionRecord, RecordBoundary, ReplicaSelection
from routing.relay import Dispatch, StopSignal
from routing.upstream import POLLRDHUP, CallerGone, ConnectFailure, ConnectionPool, Endpoint, SendFailure


class Refused(enum.StrEnum):
    """Why nothing was dispatched: the label of ``anvil_refusals_total``."""

    OVER_CONTEXT = "over_context"
    MEDIA = "media"
    TOOLS = "tools"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    KEY_LIMIT = "key_limit"
    SERVER_BUSY = "server_busy"
    UNKNOWN_MODEL = "unknown_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What the path needs to know of one request besides its body.

    ``connection`` is the caller's connection where the server gives it away. The correlation ids passed their
    grammar; ``arrived`` is the monotonic second at which the request was complete. ``leave`` gives back what
    the front door took for the request; it is called, at least once, when its exchange is over. ``stopping``
    is the server's word that it ends.
    """

    principal: Principal
    request_id: str
    run_id: str | None
    task_id: str | None
    arrived: float
    connection: socket.socket | None = field(repr=False)
    leave: Callable[[], None] = field(repr=False)
    stopping: StopSignal | None = field(default=None, repr=False)

    @property
    def is_stopping(self) -> bool:
        """Whether the server ends: nothing is to be begun for anybody."""
        return self.stopping is not None and self.stopping.is_set

    def waits_in_vain(self) -> bool:
        """Whether nobody waits for an answer any more, or the server ends."""
        return self.is_stopping or self.has_left()

    def has_left(self) -> bool:
        """Whether the caller has closed its side, as far as that can be seen."""
        if self.connection is None:
            return False
        poller = select.poll()
        poller.register(self.connection, POLLRDHUP)
        return bool(poller.poll(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete answer that needs no upstream (any more)."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def reply(dialect: Dialect, failure: Failure, *headers: tuple[str, str]) -> Reply:
    """A refusal in the caller's dialect."""
    return Reply(
        status=failure.status,
        headers=(("Content-Type", "application/json"), *headers),
        body=dialect.error(failure),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What counters and histograms take from one finished request; seconds, and counts of tokens.

    ``route`` and ``tier`` are both the id of a purpose model or an audio route. ``overhead_seconds`` is the
    time until the dispatch, None when there was none.
    """

    route: str
    tier: str
    member: str | None
    outcome: str
    key_name: str
    overhead_seconds: float | None
    first_token_seconds: float | None
    seconds: float
    prompt_tokens: int
    completion_tokens: int


class Evidence(Protocol):
    """Where the path leaves what happened. Nothing here may block or raise."""

    def record(self, record: DecisionRecord, observation: Observation) -> None: ...

    def refused(self, tier_id: str | None, reason: Refused, key_name: str | None = None) -> None:
        """Count a refusal; ``key_name`` where no record follows it, so that its key's requests are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTarget:
    """One place a request can be sent to: the endpoint of a direct tier, a member, or another route.

    ``head`` are the header lines of every request to it, ``strike`` what no message of it may show.
    """

    member_id: str | None
    endpoint: Endpoint
    head: bytes = field(repr=False)
    strike: tuple[str, ...] = field(repr=False)

    @classmethod
    def at(
        cls,
        base_url: str,
        *,
        auth_env: str | None,
        environ: Mapping[str, str],
        dialect: Literal["openai", "anthropic"] = "openai",
        member_id: str | None = None,
    ) -> "MemberTarget":
        """The place at ``base_url``; without a secret in ``environ`` it gets no Authorization header."""
        endpoint = Endpoint.from_url(base_url)
        lines = [
            f"Host: {endpoint.authority}",
            "User-Agent: anvil",
            "Accept: */*",
            "Accept-Encoding: identity",
        ]
        secret = environ.get(auth_env) if auth_env is not None else None
        if secret:
            # Anthropic's own servers take the key in a header of their own; compatible ones take either.
            lines.append(
                f"x-api-key: {secret}" if dialect == "anthropic" else f"Authorization: Bearer {secret}"
            )
        if dialect == "anthropic":
            lines.append("anthropic-version: 2023-06-01")
        return cls(
            member_id=member_id,
            endpoint=endpoint,
            head="".join(f"{line}\r\n" for line in lines).encode("latin-1"),
            strike=(base_url, endpoint.authority, endpoint.host),
        )

    def request(self, call: UpstreamCall) -> bytes:
        """The whole upstream request: nothing of the caller's headers is in it."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in call.headers)
        return b"POST %s%s HTTP/1.1\r\n%s%sContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (
            self.endpoint.base_path.encode("ascii"),
            call.path.encode("ascii"),
            self.head,
            extra.encode("ascii"),
            call.content_type.encode("ascii"),
            len(call.body),
            call.body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What passages under one configuration share; ``connect_timeout`` is seconds."""

    pool: ConnectionPool
    evidence: Evidence
    boundary: RecordBoundary
    connect_timeout: float


class Passage:
    """One request on its way to ``tier_id`` under the name ``route`` (for other routes both are its id)."""

    __slots__ = (
        "_caller",
        "_dialect",
        "_dispatched_at",
        "_member_id",
        "_request",
        "_route_name",
        "_services",
        "_tier_id",
    )

    def __init__(
        self,
        services: Services,
        dialect: Dialect,
        request: CallerRequest,
        caller: Caller,
        *,
        route: str,
        tier_id: str,
    ) -> None:
        self._services = services
        self._dialect = dialect
        self._request = request
        self._caller = caller
        self._route_name = route
        self._tier_id = tier_id
        self._member_id: str | None = None
        self._dispatched_at: float | None = None

    def dispatch(
        self,
        call: UpstreamCall,
        target: MemberTarget,
        lease: AdmissionLease | None,
        *,
        first_byte_timeout: float,
        relay_timeout: float,
        clamped: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Reply | Dispatch | None:
        """Send ``call`` to ``target``, once: its dispatch, the error that came of it, or None when the caller
        left meanwhile.

        ``lease`` is released when the exchange is over, whatever ends it; routes without a ceiling have none.
        ``headers`` are added to the caller's answer.
        """
        services, caller = self._services, self._caller
        self._member_id = target.member_id
        own = [("X-Anvil-Tier", self._tier_id)]
        if target.member_id is not None:
            own.append(("X-Anvil-Member", target.member_id))
        dispatch = Dispatch(
            Exchange(call.translator, strike=target.strike, clamped=clamped),
            lease,
            pool=services.pool,
            endpoint=target.endpoint,
            first_byte_timeout=first_byte_timeout,
            relay_timeout=relay_timeout,
            streams=call.translator.answer is not Answer.WHOLE,
            headers=(*own, *headers),
            on_over=self._over,
        )
        self._dispatched_at = time.monotonic()
        try:
            dispatch.attach(
                services.pool.acquire(
                    target.endpoint, connect_timeout=services.connect_timeout, caller=caller.connection
                )
            )
            dispatch.send(target.request(call), caller.connection)
        except CallerGone:
            dispatch.on_caller_gone()
            return None
        except ConnectFailure:
            return _failed(dispatch, Fault.REFUSED)
        except SendFailure as error:
            if error.kind == "timeout" and not dispatch.has_word:
                return _failed(dispatch, Fault.TIMEOUT)
            # It may have answered before it stopped reading: whoever drives the dispatch will see.
            dispatch.await_early_answer()
        except BaseException:
            dispatch.close()
            raise
        return dispatch

    def _unreachable(self, dispatch: Dispatch) -> None:
        """The upstream was refused or broke off before its first byte: whoever judges readiness is told."""

    def _over(self, dispatch: Dispatch) -> None:
        """The exchange is over and its lease released: leave the one record."""
        self._caller.leave()
        outcome = dispatch.exchange.outcome
        if outcome is None:
            return
        if outcome.unreachable:
            self._unreachable(dispatch)
        self._record(
            (self._attempt(outcome),),
            outcome=outcome,
            lease=dispatch.lease,
            selection="identity_passed" if self._member_id is not None else None,
            first_output_at=dispatch.first_output_at if dispatch.streams else None,
        )

    def _left_waiting(self) -> None:
        """The caller left before anything could be sent: leave the one record."""
        outcome = Outcome(
            outcome="error",
            reason="client_disconnected",
            status=0,
            usage=Usage(),
            response_bytes=0,
            first_output=False,
            unreachable=False,
        )
        self._record((self._attempt(outcome),), outcome=outcome)

    def _attempt(self, outcome: Outcome) -> AttemptRecord:
        return AttemptRecord(
            tier_id=self._tier_id,
            outcome=outcome.outcome,
            succeeded=outcome.outcome == "served",
            reason=outcome.reason,
            prompt_tokens=outcome.usage.prompt_tokens,
            completion_tokens=outcome.usage.completion_tokens,
        )

    def _record(
        self,
        attempts: tuple[AttemptRecord, ...],
        *,
        outcome: Outcome | None = None,
        lease: AdmissionLease | None = None,
        selection: ReplicaSelection | None = None,
        first_output_at: float | None = None,
    ) -> None:
        services, caller = self._services, self._caller
        now = time.monotonic()
        dispatched_at = self._dispatched_at
        usage = outcome.usage if outcome is not None else Usage()
        served = outcome is not None and outcome.outcome == "served"
        record = DecisionRecord(
            route=self._route_name,
            kind=self._request.wire,
            requested_tier=self._tier_id,
            served_tier=self._tier_id if served else None,
            attempts=attempts,
            total_prompt_tokens=usage.prompt_tokens,
            total_completion_tokens=usage.completion_tokens,
            request_bytes=self._request.body_bytes,
            response_bytes=outcome.response_bytes if outcome is not None else 0,
            latency_ms=(now - caller.arrived) * 1000,
            request_id=caller.request_id,
            workbench_run_id=caller.run_id,
            task_id=caller.task_id,
            replica_member_id=self._member_id,
            replica_selection=selection,
            replica_scheduler=lease.selection if isinstance(lease, MemberAdmissionLease) else None,
            recorded_at=time.time(),
        )
        observation = Observation(
            route=self._route_name,
            tier=self._tier_id,
            member=self._member_id,
            outcome=outcome.outcome if outcome is not None else "skipped",
            key_name=caller.principal.name,
            overhead_seconds=dispatched_at - caller.arrived if dispatched_at is not None else None,
            first_token_seconds=first_output_at - caller.arrived if first_output_at is not None else None,
            seconds=now - caller.arrived,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
        services.evidence.record(services.boundary.canonical(record, lease=lease), observation)


def _failed(dispatch: Dispatch, fault: Fault) -> Reply | None:
    """What the caller gets for a dispatch that ended before an answer could be waited for."""
    body = dispatch.fail(fault)
    dispatch.close()
    head = dispatch.head
    if head is None:
        return None
    framed = tuple(header for header in head.headers if header[0] != "Content-Length")
    return Reply(status=head.status, headers=(*framed, *dispatch.headers), body=body)
