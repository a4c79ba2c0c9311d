"""What Django answers when a view failed or a request made no sense: JSON below ``/v1/``, a page elsewhere.

Neither says anything of the request or of what went wrong; the log does.
"""

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from routing.api import error_body

_MACHINES = ("/v1/", "/api/", "/metrics")


def _answer(request: HttpRequest, status: int, code: str, message: str) -> HttpResponse | None:
    if not request.path.startswith(_MACHINES):
        return None
    body = error_body(status, code, message)
    answer = HttpResponse(body, status=status, content_type="application/json")
    answer["Cache-Control"] = "no-store"
    return answer


def server_error(request: HttpRequest) -> HttpResponse:
    """``handler500``"""
    text = "The request could not be served."
    return _answer(request, 500, "internal_error", text) or defaults.server_error(request)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """``handler400``: among others a Host that is not in ANVIL_ALLOWED_HOSTS."""
    text = "The request is not valid."
    return _answer(request, 400, "invalid_request", text) or defaults.bad_request(request, exception)
