"""REST of the control plane: one thin view per verb over the services."""

from typing import Any

import msgspec
from django.http import HttpRequest, JsonResponse
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.views import exception_handler as drf_exception_handler

from routing import transitions
from routing.access import Scope
from routing.dialects import DIALECTS
from routing.dialects.base import Failure
from routing.router import live


class ObserveView(APIView):
    """A read-only projection: scope observe, never cached, unknown query parameters refused."""

    scopes: tuple[Scope, ...] = (Scope.OBSERVE,)
    parameters: frozenset[str] = frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if set(request.query_params) - self.parameters:
            raise exceptions.ValidationError("unknown query parameter")
        if any(len(values) > 1 for _, values in request.query_params.lists()):
            raise exceptions.ValidationError("a query parameter is repeated")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response


class TransitionView(ObserveView):
    """``GET /v1/admin/transition``: the status of tiers and members."""

    scopes = (Scope.OPERATE,)
    parameters = frozenset({"tier_id", "member_id"})

    def get(self, request: Request) -> Response:
        query = request.query_params
        try:
            return Response(transitions.status(live(), query.get("tier_id"), query.get("member_id")))
        except transitions.TransitionError as error:
            return error_response(error.status, error.code, str(error))


def error_body(status: int, code: str, message: str) -> bytes:
    """An error of the REST part: OpenAI's envelope, as on the data plane."""
    dialect = DIALECTS["/v1/chat/completions"]
    return dialect.error(Failure(status=status, code=code, message=message))


def error_response(status: int, code: str, message: str) -> Response:
    return Response(msgspec.json.decode(error_body(status, code, message)), status=status)


_TEXTS = {
    400: ("invalid_request", "The request is not valid."),
    401: ("invalid_api_key", "A valid API key is required."),
    403: ("insufficient_scope", "This API key may not be used for this."),
    404: ("not_found", "There is nothing at this path."),
    405: ("method_not_allowed", "This path takes another method."),
    406: ("not_acceptable", "No representation fits the Accept header."),
    413: ("request_too_large", "The request body is too large."),
    415: ("unsupported_media_type", "This path takes JSON."),
}


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Fixed texts per status: nothing of the request or of an exception goes into an answer."""
    response = drf_exception_handler(error, context)
    if response is None:
        return None
    code, message = _TEXTS.get(response.status_code, ("request_failed", "The request could not be served."))
    answer = error_response(response.status_code, code, message)
    for name in ("Allow", "WWW-Authenticate", "Retry-After"):
        if name in response:
            answer[name] = response[name]
    return answer


def not_found(request: HttpRequest, exception: Exception | None = None) -> JsonResponse:
    """404 below ``/v1/``, as JSON."""
    return JsonResponse(msgspec.json.decode(error_body(404, *_TEXTS[404])), status=404)
