"""REST of what happened and how full it is: read-only, from memory, scope observe.

Every answer is of completed values; authentication comes before any source is read.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from admission.identifiers import normalise_alias
from routing import projections
from routing.api import ObserveView
from routing.config import RouterConfig
from routing.openapi import SAFE_ID, STRING, operation, query, ref
from routing.projections import ReadinessSource, UnknownModelError
from routing.refusals import Refused
from routing.router import Router, live
from telemetry import process
from telemetry.capacity import PARAMETERS, build_model_capacity, parse_query
from telemetry.decisions import MAX_SUMMARY_LIMIT, find_request, summarize_decisions
from telemetry.explain import RouterState, explain_model
from telemetry.exporter import VERSION
from telemetry.health import build_health, build_status
from telemetry.openapi import listing
from telemetry.series import CONTENT_TYPE
from telemetry.stats import MAX_STATS_LIMIT, build_stats

DEFAULT_LIMIT = 100


def bounded_limit(request: Request, *, default: int, maximum: int) -> int:
    """The ``limit`` parameter: plain decimal digits, 1 to ``maximum``. Raises a 400."""
    given = request.query_params.get("limit")
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 6 and 1 <= int(given) <= maximum):
        raise exceptions.ValidationError("limit is out of bounds")
    return int(given)


def _limit(maximum: int) -> OpenApiParameter:
    return query("limit", {"type": "integer", "minimum": 1, "maximum": maximum}, "Newest records at most.")


_MODEL = query("model", STRING, "An alias.")
_TAKEN: Final = frozenset({"model", "gpu_role"})
_CAPACITY_PARAMETERS: Final = [
    _MODEL,
    query("gpu_role", SAFE_ID, "Tiers with this role alone."),
    *(
        query(name, {"type": "integer", "minimum": 0}, "Of the request to reckon with.")
        for name in sorted(PARAMETERS - _TAKEN)
    ),
]


def configured(router: Router) -> RouterConfig:
    """The active configuration. Raises `Refused` (503) before there is one."""
    active = router.active
    if active is None:
        raise Refused(503, "not_configured", "No configuration is active yet.")
    return active.config


def unknown_model() -> Refused:
    return Refused(404, "model_not_found", "No such model.")


# Decisions -----------------------------------------------------------------------------------------------


class DecisionsView(ObserveView):
    """``GET /v1/decisions``: the newest records and their totals."""

    parameters = frozenset({"limit"})

    @operation(
        summary="Newest decision records and their totals",
        parameters=[_limit(MAX_SUMMARY_LIMIT)],
        answers={200: ref("Decisions")},
        tag="evidence",
    )
    def get(self, request: Request) -> Response:
        limit = bounded_limit(request, default=DEFAULT_LIMIT, maximum=MAX_SUMMARY_LIMIT)
        return Response(summarize_decisions(process.log().records(), limit))


class RequestView(ObserveView):
    """``GET /v1/requests/{id}``: the newest record of one request id."""

    @operation(
        summary="Newest record of a request id",
        answers={200: ref("RouterRequest")},
        refusals=(404,),
        tag="evidence",
    )
    def get(self, request: Request, request_id: str) -> Response:
        found = find_request(process.log().records(), request_id)
        if found is None:
            raise exceptions.NotFound
        return Response(found)


class StatsView(ObserveView):
    """``GET /v1/stats``: figures over the decision buffer."""

    parameters = frozenset({"model", "limit"})

    @operation(
        summary="Figures over the decision buffer",
        parameters=[query("model", STRING, "Requests of this route alone."), _limit(MAX_STATS_LIMIT)],
        answers={200: ref("RouterStats")},
        refusals=(404,),
        tag="evidence",
    )
    def get(self, request: Request) -> Response:
        limit = bounded_limit(request, default=MAX_STATS_LIMIT, maximum=MAX_STATS_LIMIT)
        given = request.query_params.get("model")
        model = None if given is None else _route(configured(live()), given)
        return Response(build_stats(process.log().records(), model=model, limit=limit))


def _route(config: RouterConfig, given: str) -> str:
    """The alias, or the id of a purpose model or audio route, that is meant. Raises `Refused` (404)."""
    names = projections.route_names(config)
    for name in (normalise_alias(given), given):
        if name in names:
            return name
    raise unknown_model()


# Models --------------------------------------------------------------------------------------------------


class CapacityView(ObserveView):
    """``GET /v1/models/capacity``: how large and how full every tier is."""

    parameters = PARAMETERS

    @operation(
        summary="How large and how full every tier is",
        parameters=_CAPACITY_PARAMETERS,
        answers={200: listing("ModelCapacity")},
        refusals=(404,),
        tag="models",
    )
    def get(self, request: Request) -> Response:
        router = live()
        config = configured(router)
        try:
            query = parse_query(request.query_params.dict())
        except ValueError:
            raise exceptions.ValidationError("a query parameter is malformed") from None
        try:
            payload = build_model_capacity(
                config,
                availability=router.availability,
                admission=router.ledger,
                replica_pressure=router.pressure,
                live=process.evidence().live,
                query=query,
            )
        except UnknownModelError:
            raise unknown_model() from None
        return Response(payload)


class _DeclaredView(ObserveView):
    """A projection of what is declared of every tier."""

    parameters = frozenset({"model"})
    build: Callable[..., dict[str, object]]

    def get(self, request: Request) -> Response:
        router = live()
        config = configured(router)
        source: ReadinessSource = router.availability
        try:
            return Response(type(self).build(config, source, model=request.query_params.get("model")))
        except UnknownModelError:
            raise unknown_model() from None


class CapabilitiesView(_DeclaredView):
    """``GET /v1/models/capabilities``."""

    build = staticmethod(projections.capabilities)

    @operation(
        summary="What is declared of each tier",
        parameters=[_MODEL],
        answers={200: listing("ModelCapabilities")},
        refusals=(404,),
        tag="models",
    )
    def get(self, request: Request) -> Response:
        return super().get(request)


class FingerprintsView(_DeclaredView):
    """``GET /v1/models/fingerprints``."""

    build = staticmethod(projections.fingerprints)

    @operation(
        summary="The declared deployment, and what a probe saw served",
        parameters=[_MODEL],
        answers={200: listing("ModelFingerprint")},
        refusals=(404,),
        tag="models",
    )
    def get(self, request: Request) -> Response:
        return super().get(request)


# The router ----------------------------------------------------------------------------------------------


class HealthView(ObserveView):
    """``GET /v1/health/tiers``: whether every configured serve is up."""

    @operation(summary="Whether every serve is up", answers={200: ref("TierHealth")}, tag="router")
    def get(self, request: Request) -> Response:
        router = live()
        return Response(build_health(configured(router), router.availability))


class StatusView(ObserveView):
    """``GET /v1/router/status``: what this process is and runs."""

    @operation(summary="What this process is and runs", answers={200: ref("RouterStatus")}, tag="router")
    def get(self, request: Request) -> Response:
        evidence = process.evidence()
        status = build_status(
            live(),
            package_version=VERSION,
            started_at=evidence.started_at,
            uptime=time.monotonic() - evidence.began,
        )
        return Response(status)


class ExplainView(ObserveView):
    """``GET /v1/admin/explain?model=ALIAS``: what would become of a request now, step by step."""

    parameters = frozenset({"model"})

    @operation(
        summary="What would become of a request now, step by step",
        parameters=[query("model", STRING, "An alias.", required=True)],
        answers={200: ref("RouterExplanation")},
        refusals=(404,),
        tag="router",
    )
    def get(self, request: Request) -> Response:
        router = live()
        model = request.query_params.get("model")
        if model is None:
            raise exceptions.ValidationError("model is required")
        configured(router)
        places = process.evidence().server.places
        state = RouterState.of(router, places=places() if places is not None else None)
        if state is None:
            raise unknown_model()
        try:
            return Response(explain_model(state, normalise_alias(model)).as_dict())
        except UnknownModelError:
            raise unknown_model() from None


# Prometheus ----------------------------------------------------------------------------------------------


class _AnyAccept(BaseContentNegotiation):
    """Scrapers ask for formats of their own; there is one, and it is told in the answer."""

    def select_parser(self, request: Request, parsers: object) -> None:
        return None

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


class MetricsView(ObserveView):
    """``GET /metrics``: Prometheus text."""

    content_negotiation_class = _AnyAccept

    @operation(
        summary="Prometheus text, format 0.0.4",
        answers={200: STRING},
        media_type="text/plain",
        tag="evidence",
    )
    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(process.exporter().render(), content_type=CONTENT_TYPE)
