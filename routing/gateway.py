"""The one path of a routed request: resolve, gate, snapshots, reserve, dispatch once, record.

A gateway is built when a configuration becomes active and holds all that can be known beforehand: one `Route`
per alias, one `MemberTarget` per place a request can be sent to. It takes no lock of its own, makes no query,
writes nothing to disk and waits for nothing unbounded. Wires that are not routed by alias branch off before
all of this, to `routing.purposes`.
"""

import dataclasses
import http
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from admission.core import AdmissionLease, MemberAdmissionLease, TierAdmission
from admission.identifiers import normalise_alias
from admission.replica_scheduler import ReplicaPressure
from routing.availability import HttpHealthAvailability, RuntimeModelMetadata
from routing.config import RouterConfig, Tier
from routing.dialects.base import JSON, CallerRequest, Dialect, Failure, RequestError, Target
from routing.gates import check_gates, context_needs_count, output_cap
from routing.passage import (
    Caller,
    Evidence,
    MemberTarget,
    Observation,
    Passage,
    Refused,
    Reply,
    Services,
    reply,
)
from routing.purposes import Purposes
from routing.records import AttemptRecord, RecordBoundary, ReplicaSelection
from routing.relay import Dispatch
from routing.upstream import ConnectionPool

__all__ = [
    "Caller",
    "Evidence",
    "Gateway",
    "Observation",
    "Overtaken",
    "PressureReader",
    "Refused",
    "Reply",
    "Route",
    "reply",
]

UNAVAILABLE_MESSAGE: Final = "The model is not available right now. Try again shortly."
RETRY_AFTER: Final = ("Retry-After", "1")

PressureReader = Callable[[str], Mapping[str, ReplicaPressure] | None]
"""The completed pressure of a capacity tier's members, by tier id; never waits."""


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


class Overtaken(Exception):
    """A lease was given under the next configuration already, in which its tier is another: begin anew there.

    Nothing was sent, and the lease is released.
    """


class Gateway:
    """The path under one active configuration. Thread-safe: what it holds is immutable or guards itself.

    ``overtaken`` are the tiers that are others, or have other members, in the configuration that is taking
    this one's place; it is set before the ledger knows of them.
    """

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
        self.ledger = ledger
        self.availability = availability
        self.pressure = pressure
        self.services = Services(
            pool=pool,
            evidence=evidence,
            boundary=RecordBoundary(config),
            connect_timeout=config.router.connect_timeout,
        )
        self._routes = build_routes(config, environ)
        self._purposes = Purposes(config, self.services, environ)
        self._dynamic: dict[str, tuple[RuntimeModelMetadata, Route]] = {}
        self.overtaken: frozenset[str] = frozenset()

    def handle(
        self, dialect: Dialect, body: bytes, caller: Caller, *, content_type: str = JSON
    ) -> Reply | Dispatch | None:
        """Serve one request: a finished reply, or the dispatch whose exchange a driver now has to run.

        ``content_type`` is what the caller called its body; few wires mind.
        None when the caller left before anything was sent: there is nobody to answer. Raises Overtaken or
        AdmissionError when a swap is under way, and nothing that a caller could provoke.
        """
        try:
            request = dialect.parse(body, content_type=content_type)
        except RequestError as error:
            return reply(dialect, error.failure)
        if self._purposes.serves(dialect.wire):
            return self._purposes.handle(dialect, request, caller)
        route = self._routes.get(normalise_alias(request.alias))
        if route is None:
            self.services.evidence.refused(None, Refused.UNKNOWN_MODEL, caller.principal.name)
            return reply(dialect, UNKNOWN_MODEL)
        if route.tier.metadata_source == "upstream":
            route = self._with_metadata(route)
        try:
            local = request.answer(route.tier)
        except RequestError as error:
            return reply(dialect, error.failure)
        if local is not None:
            return Reply(status=200, headers=(("Content-Type", JSON), *local.headers), body=local.body)
        return _TierPassage(self, dialect, request, route, caller).run()

    def _with_metadata(self, route: Route) -> Route:
        """The route under what the last probe found: the one served model, and its context as the limit."""
        result = self.availability.current(route.tier.id)
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


class _TierPassage(Passage):
    """The way to a tier: gates, readiness and the ledger before the dispatch."""

    __slots__ = ("_cap", "_gateway", "_route")

    def __init__(
        self, gateway: Gateway, dialect: Dialect, request: CallerRequest, route: Route, caller: Caller
    ) -> None:
        super().__init__(gateway.services, dialect, request, caller, route=route.alias, tier_id=route.tier.id)
        self._gateway = gateway
        self._route = route
        self._cap = output_cap(route.tier.max_output_tokens, request.requested_output)

    def run(self) -> Reply | Dispatch | None:
        route = self._route
        try:
            refused = self._gate()
            if refused is not None:
                return refused
            if route.model is None:
                return self._unavailable("unavailable")
            call = self._request.prepare(route.target, model=route.model)
        except RequestError as error:
            self._refuse(Refused.UNSUPPORTED, "backend_unbound", "request_rejected")
            return reply(self._dialect, error.failure)
        lease, reason = self._reserve()
        if lease is None:
            if reason != "client_disconnected":
                return self._unavailable(reason)
            self._left_waiting()
            return None
        if self._tier_id in self._gateway.overtaken:
            lease.release()
            raise Overtaken
        return self.dispatch(
            call,
            route.members[lease.member_id if isinstance(lease, MemberAdmissionLease) else None],
            lease,
            first_byte_timeout=route.first_byte_timeout,
            relay_timeout=route.relay_timeout,
            clamped=self._cap.clamped,
            headers=self._cap_headers(),
        )

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
            results = gateway.availability.readiness(tier.id)
            readiness = {member_id: result.available for member_id, result in results.items()}
            pressure = gateway.pressure(tier.id) if tier.strategy == "capacity" else None
            return gateway.ledger.acquire_member(tier.id, readiness, pressure), "unavailable"
        if not gateway.availability.current(tier.id).available:
            return None, "unavailable"
        lease = gateway.ledger.acquire(
            tier.id, timeout=self._route.relay_timeout, abandoned=self._caller.waits_in_vain
        )
        if lease is not None and self._caller.is_stopping:
            # A place that became free because the process ends is no place.
            lease.release()
            return None, "unavailable"
        if lease is None and self._caller.has_left():
            return None, "client_disconnected"
        if lease is None and gateway.ledger.snapshot(tier.id).state == "quiesced":
            return None, "quiesced"
        return lease, "unavailable"

    def _cap_headers(self) -> tuple[tuple[str, str], ...]:
        """What tells the caller that its output is limited."""
        if not self._cap.clamped:
            return ()
        asked = self._request.requested_output
        limit = str(self._cap.limit)
        return (
            *((("X-Anvil-Max-Tokens-Requested", str(asked)),) if asked is not None else ()),
            ("X-Anvil-Max-Tokens-Effective", limit),
            ("Warning", f'299 anvil "output limited to {limit} tokens"'),
        )

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
        self._services.evidence.refused(tier.id, word)
        if tier.is_replica:
            self._record((), selection=selection)
        else:
            self._record((AttemptRecord(tier_id=tier.id, outcome="skipped", succeeded=False, reason=reason),))

    def _unreachable(self, dispatch: Dispatch) -> None:
        """Its readiness ends now: a dead member, always idle, would win every time until its next probe."""
        self._gateway.availability.mark_unavailable(self._tier_id, self._member_id, dispatch.transport_reason)


_GATE_WORDS: Final = {"over_context": Refused.OVER_CONTEXT, "tools_unsupported": Refused.TOOLS}


def _member_target(tier: Tier, member_id: str | None, environ: Mapping[str, str]) -> MemberTarget:
    """The place that ``tier`` (a direct tier, or a member's view of one) listens at."""
    return MemberTarget.at(
        tier.base_url, auth_env=tier.auth_env, environ=environ, dialect=tier.dialect, member_id=member_id
    )


def build_routes(config: RouterConfig, environ: Mapping[str, str]) -> dict[str, Route]:
    """One prepared route per alias; routes of one tier share its targets."""
    tiers: dict[str, tuple[Tier, Target, dict[str | None, MemberTarget]]] = {}
    for tier in config.tiers:
        members: dict[str | None, MemberTarget] = (
            {
                member_id: _member_target(tier.member_view(member_id), member_id, environ)
                for member_id in tier.member_ids
            }
            if tier.is_replica
            else {None: _member_target(tier, None, environ)}
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
