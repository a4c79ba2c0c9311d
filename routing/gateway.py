"""The one path of a routed request: resolve, gate, snapshots, reserve, dispatch once, record.

A gateway is built when a configuration becomes active and holds all that can be known beforehand: one `Route`
per alias, one `MemberTarget` per place a request can be sent to. It takes no lock of its own, makes no query,
writes nothing to disk and waits for nothing unbounded.
"""

import dataclasses
import enum
import http
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from admission.core import AdmissionLease, MemberAdmissionLease, TierAdmission
from admission.identifiers import normalise_alias
from admission.replica_scheduler import ReplicaPressure
from routing.access import Principal
from routing.availability import HttpHealthAvailability, RuntimeModelMetadata
from routing.config import RouterConfig, Tier
from routing.dialects.base import (
    Answer,
    CallerRequest,
    Dialect,
    Failure,
    RequestError,
    Target,
    UpstreamCall,
    Usage,
)
from routing.exchange import Exchange, Fault, Outcome
from routing.gates import check_gates, context_needs_count, output_cap
from routing.records import AttemptRecord, DecisionRecord, RecordBoundary, ReplicaSelection
from routing.relay import Dispatch
from routing.upstream import POLLRDHUP, CallerGone, ConnectFailure, ConnectionPool, Endpoint, SendFailure

UNAVAILABLE_MESSAGE: Final = "The model is not available right now. Try again shortly."
RETRY_AFTER: Final = ("Retry-After", "1")


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
    the front door took for the request; it is called, at least once, when its exchange is over.
    """

    principal: Principal
    request_id: str
    run_id: str | None
    task_id: str | None
    arrived: float
    connection: socket.socket | None = field(repr=False)
    leave: Callable[[], None] = field(repr=False)

    def is_gone(self) -> bool:
        """Whether the caller has closed its side; False where that cannot be seen."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What counters and histograms take from one finished request; seconds, and counts of tokens."""

    route: str
    tier: str
    member: str | None
    outcome: str
    key_name: str
    overhead_seconds: float
    first_token_seconds: float | None
    seconds: float
    prompt_tokens: int
    completion_tokens: int


class Evidence(Protocol):
    """Where the path leaves what happened. Nothing here may block or raise."""

    def record(self, record: DecisionRecord, observation: Observation) -> None: ...

    def refused(self, tier_id: str | None, reason: Refused) -> None: ...


PressureReader = Callable[[str], Mapping[str, ReplicaPressure] | None]
"""The completed pressure of a capacity tier's members, by tier id; never waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTarget:
    """One place a request can be sent to: a direct tier's endpoint, or a member's."""

    member_id: str | None
    endpoint: Endpoint
    head: bytes = field(repr=False)
    strike: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One alias: its tier, prepared for dispatch."""

    alias: str
    tier: Tier
    model: str | None
    target: Target
    members: Mapping[str | None, MemberTarget]
    first_byte_timeout: float
    relay_timeout: float


class Gateway:
    """The path under one active configuration. Thread-safe: what it holds is immutable or guards itself."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        ledger: TierAdmission,
        availability: HttpHealthAvailability,
        pressure: PressureReader,
        pool: ConnectionPool,
        evidence: Evidence,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.config = config
        self._ledger = ledger
        self._availability = availability
        self._pressure = pressure
        self._pool = pool
        self._evidence = evidence
        self._boundary = RecordBoundary(config)
        self._routes = build_routes(config, environ)
        self._dynamic: dict[str, tuple[RuntimeModelMetadata, Route]] = {}

    def handle(self, dialect: Dialect, body: bytes, caller: Caller) -> Reply | Dispatch | None:
        """Serve one request: a finished reply, or the dispatch whose exchange a driver now has to run.

        None when the caller left before anything was sent: there is nobody to answer. Raises nothing that
        a caller could provoke.
        """
        try:
            request = dialect.parse(body)
        except RequestError as error:
            return reply(dialect, error.failure)
        route = self._routes.get(normalise_alias(request.alias))
        if route is None:
            self._evidence.refused(None, Refused.UNKNOWN_MODEL)
            return reply(dialect, UNKNOWN_MODEL)
        if route.tier.metadata_source == "upstream":
            route = self._with_metadata(route)
        return _Passage(self, dialect, request, route, caller).run()

    def _with_metadata(self, route: Route) -> Route:
        """The route under what the last probe found: the one served model, and its context as the limit."""
        result = self._availability.current(route.tier.id)
        if not result.available or result.metadata is None:
            return route
        known = self._dynamic.get(route.alias)
        if known is not None and known[0] == result.metadata:
            return known[1]
        limit = result.metadata.max_model_len
        tier = dataclasses.replace(route.tier, context_limit=limit) if limit is not None else route.tier
        found = dataclasses.replace(route, tier=tier, model=result.metadata.served_model)
        self._dynamic[route.alias] = (result.metadata, found)
        return found


UNKNOWN_MODEL: Final = Failure(
    status=http.HTTPStatus.NOT_FOUND,
    code="model_not_found",
    message="No such model. GET /v1/models lists the ones that are served here.",
    param="model",
)


def reply(dialect: Dialect, failure: Failure, *headers: tuple[str, str]) -> Reply:
    """A refusal in the caller's dialect."""
    return Reply(
        status=failure.status,
        headers=(("Content-Type", "application/json"), *headers),
        body=dialect.error(failure),
    )


class _Passage:
    """One request's way through the path; holds what the steps share so that each reads on its own."""

    __slots__ = (
        "_caller",
        "_cap",
        "_dialect",
        "_dispatched_at",
        "_gateway",
        "_member_id",
        "_request",
        "_route",
    )

    def __init__(
        self, gateway: Gateway, dialect: Dialect, request: CallerRequest, route: Route, caller: Caller
    ) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._request = request
        self._route = route
        self._caller = caller
        self._cap = output_cap(route.tier.max_output_tokens, request.requested_output)
        self._member_id: str | None = None
        self._dispatched_at = caller.arrived

    def run(self) -> Reply | Dispatch | None:
        refused = self._gate()
        if refused is not None:
            return refused
        model = self._route.model
        if model is None:
            return self._unavailable("unavailable")
        try:
            call = self._request.prepare(self._route.target, model=model)
        except RequestError as error:
            self._refuse(Refused.UNSUPPORTED, "backend_unbound", "request_rejected")
            return reply(self._dialect, error.failure)
        lease, reason = self._reserve()
        if lease is None:
            return self._unavailable(reason)
        return self._dispatch(call, lease)

    def _gate(self) -> Reply | None:
        request, tier = self._request, self._route.tier
        demand = request.demand(count_text=context_needs_count(tier, request.body_bytes))
        refusal = check_gates(tier, demand)
        if refusal is None:
            return None
        self._refuse(_GATE_WORDS.get(refusal.reason, Refused.MEDIA), refusal.reason, "request_rejected")
        failure = Failure(
            status=refusal.status, code=refusal.code, message=refusal.message, param=refusal.param
        )
        return reply(self._dialect, failure)

    def _reserve(self) -> tuple[AdmissionLease | None, str]:
        """A lease, or None with the reason that a direct tier's attempt is recorded under."""
        gateway, tier = self._gateway, self._route.tier
        if tier.is_replica:
            results = gateway._availability.readiness(tier.id)
            readiness = {member_id: result.available for member_id, result in results.items()}
            pressure = gateway._pressure(tier.id) if tier.strategy == "capacity" else None
            return gateway._ledger.acquire_member(tier.id, readiness, pressure), "unavailable"
        if not gateway._availability.current(tier.id).available:
            return None, "unavailable"
        lease = gateway._ledger.acquire(
            tier.id, timeout=self._route.relay_timeout, abandoned=self._caller.is_gone
        )
        if lease is None and gateway._ledger.snapshot(tier.id).state == "quiesced":
            return None, "quiesced"
        return lease, "unavailable"

    def _dispatch(self, call: UpstreamCall, lease: AdmissionLease) -> Dispatch | None:
        gateway, route, caller = self._gateway, self._route, self._caller
        if isinstance(lease, MemberAdmissionLease):
            self._member_id = lease.member_id
        member = route.members[self._member_id]
        dispatch = Dispatch(
            Exchange(call.translator, strike=member.strike, clamped=self._cap.clamped),
            lease,
            pool=gateway._pool,
            endpoint=member.endpoint,
            first_byte_timeout=route.first_byte_timeout,
            relay_timeout=route.relay_timeout,
            streams=call.translator.answer is not Answer.WHOLE,
            headers=self._headers(),
            on_over=self._over,
        )
        self._dispatched_at = time.monotonic()
        try:
            dispatch.attach(
                gateway._pool.acquire(
                    member.endpoint,
                    connect_timeout=gateway.config.router.connect_timeout,
                    caller=caller.connection,
                )
            )
            dispatch.send(request_bytes(member, call), caller.connection)
        except CallerGone:
            dispatch.on_caller_gone()
            return None
        except ConnectFailure:
            dispatch.fail(Fault.REFUSED)
        except SendFailure as error:
            dispatch.fail(Fault.TIMEOUT if error.kind == "timeout" else Fault.RESET)
        except BaseException:
            dispatch.close()
            raise
        return dispatch

    def _headers(self) -> tuple[tuple[str, str], ...]:
        headers: list[tuple[str, str]] = [("X-Anvil-Tier", self._route.tier.id)]
        if self._member_id is not None:
            headers.append(("X-Anvil-Member", self._member_id))
        if self._cap.clamped:
            asked = self._request.requested_output
            if asked is not None:
                headers.append(("X-Anvil-Max-Tokens-Requested", str(asked)))
            headers.append(("X-Anvil-Max-Tokens-Effective", str(self._cap.limit)))
            headers.append(("Warning", f'299 anvil "output limited to {self._cap.limit} tokens"'))
        return tuple(headers)

    def _unavailable(self, reason: str) -> Reply:
        self._refuse(Refused.UNAVAILABLE, reason, "not_admitted")
        failure = Failure(
            status=self._gateway.config.router.exhaustion_status,
            code="model_unavailable",
            message=UNAVAILABLE_MESSAGE,
        )
        return reply(self._dialect, failure, RETRY_AFTER)

    def _refuse(self, word: Refused, reason: str, selection: ReplicaSelection) -> None:
        """Record a refusal: on a replica tier no attempt was made, on a direct tier it was skipped."""
        tier = self._route.tier
        self._gateway._evidence.refused(tier.id, word)
        if tier.is_replica:
            self._record((), selection=selection)
        else:
            self._record((AttemptRecord(tier_id=tier.id, outcome="skipped", succeeded=False, reason=reason),))

    def _over(self, dispatch: Dispatch) -> None:
        """The exchange is over and its lease released: leave the one record."""
        self._caller.leave()
        outcome = dispatch.exchange.outcome
        if outcome is None:
            return
        tier, lease = self._route.tier, dispatch.lease
        if outcome.unreachable:
            self._gateway._availability.mark_unavailable(tier.id, self._member_id, dispatch.transport_reason)
        attempt = AttemptRecord(
            tier_id=tier.id,
            outcome=outcome.outcome,
            succeeded=outcome.outcome == "served",
            reason=outcome.reason,
            prompt_tokens=outcome.usage.prompt_tokens,
            completion_tokens=outcome.usage.completion_tokens,
        )
        self._record(
            (attempt,),
            outcome=outcome,
            lease=lease,
            selection="identity_passed" if tier.is_replica else None,
            first_output_at=dispatch.first_output_at,
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
        gateway, caller, tier = self._gateway, self._caller, self._route.tier
        now = time.monotonic()
        usage = outcome.usage if outcome is not None else Usage()
        served = outcome is not None and outcome.outcome == "served"
        record = DecisionRecord(
            route=self._route.alias,
            kind=self._request.wire,
            requested_tier=tier.id,
            served_tier=tier.id if served else None,
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
            route=self._route.alias,
            tier=tier.id,
            member=self._member_id,
            outcome=outcome.outcome if outcome is not None else "skipped",
            key_name=caller.principal.name,
            overhead_seconds=self._dispatched_at - caller.arrived,
            first_token_seconds=first_output_at - caller.arrived if first_output_at is not None else None,
            seconds=now - caller.arrived,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
        gateway._evidence.record(gateway._boundary.canonical(record, lease=lease), observation)


_GATE_WORDS: Final = {"over_context": Refused.OVER_CONTEXT, "tools_unsupported": Refused.TOOLS}


def request_bytes(member: MemberTarget, call: UpstreamCall) -> bytes:
    """The whole upstream request: nothing of the caller's headers is in it."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in call.headers)
    return b"POST %s%s HTTP/1.1\r\n%s%sContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (
        member.endpoint.base_path.encode("ascii"),
        call.path.encode("ascii"),
        member.head,
        extra.encode("ascii"),
        call.content_type.encode("ascii"),
        len(call.body),
        call.body,
    )


def member_target(tier: Tier, member_id: str | None, environ: Mapping[str, str]) -> MemberTarget:
    """The place that ``tier`` (a direct tier, or a member's view of one) listens at."""
    endpoint = Endpoint.from_url(tier.base_url)
    headers = [f"Host: {endpoint.authority}", "User-Agent: anvil", "Accept: */*", "Accept-Encoding: identity"]
    secret = environ.get(tier.auth_env) if tier.auth_env is not None else None
    if secret:
        # Anthropic's own servers take the key in a header of their own; compatible ones take either.
        headers.append(
            f"x-api-key: {secret}" if tier.dialect == "anthropic" else f"Authorization: Bearer {secret}"
        )
    if tier.dialect == "anthropic":
        headers.append("anthropic-version: 2023-06-01")
    return MemberTarget(
        member_id=member_id,
        endpoint=endpoint,
        head="".join(f"{line}\r\n" for line in headers).encode("latin-1"),
        strike=(tier.base_url, endpoint.authority, endpoint.host),
    )


def build_routes(config: RouterConfig, environ: Mapping[str, str]) -> dict[str, Route]:
    """One prepared route per alias; routes of one tier share its targets."""
    tiers: dict[str, tuple[Tier, Target, dict[str | None, MemberTarget]]] = {}
    for tier in config.tiers:
        members: dict[str | None, MemberTarget] = (
            {
                member_id: member_target(tier.member_view(member_id), member_id, environ)
                for member_id in tier.member_ids
            }
            if tier.is_replica
            else {None: member_target(tier, None, environ)}
        )
        tiers[tier.id] = (tier, Target.of(tier), members)
    router = config.router
    routes = {}
    for alias, tier_id in config.model_routes.items():
        tier, target, members = tiers[tier_id]
        routes[alias] = Route(
            alias=alias,
            tier=tier,
            model=tier.model,
            target=target,
            members=members,
            first_byte_timeout=tier.first_byte_timeout or router.first_byte_timeout,
            relay_timeout=tier.timeout or router.relay_timeout,
        )
    return routes
