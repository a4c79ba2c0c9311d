"""REST of what happened: read-only, from memory."""

from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from routing.api import ObserveView
from telemetry import process
from telemetry.decisions import MAX_SUMMARY_LIMIT, find_request, summarize_decisions

DEFAULT_LIMIT = 100


def bounded_limit(request: Request, *, default: int, maximum: int) -> int:
    """The ``limit`` parameter: plain decimal digits, 1 to ``maximum``. Raises a 400."""
    given = request.query_params.get("limit")
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 6 and 1 <= int(given) <= maximum):
        raise exceptions.ValidationError("limit is out of bounds")
    return int(given)


class DecisionsView(ObserveView):
    """``GET /v1/decisions``: the newest records and their totals."""

    parameters = frozenset({"limit"})

    def get(self, request: Request) -> Response:
        limit = bounded_limit(request, default=DEFAULT_LIMIT, maximum=MAX_SUMMARY_LIMIT)
        return Response(summarize_decisions(process.log().records(), limit))


class RequestView(ObserveView):
    """``GET /v1/requests/{id}``: the newest record of one request id."""

    def get(self, request: Request, request_id: str) -> Response:
        found = find_request(process.log().records(), request_id)
        if found is None:
            raise exceptions.NotFound
        return Response(found)
