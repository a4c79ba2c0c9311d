"""The data plane under Django's own handler: the dev server's and the test client's way in.

In production the WSGI entry answers data-plane paths before Django is asked; this middleware, first in the
chain, answers them with the same function wherever requests come through Django.
"""

from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from anvil_site.runtime import get_runtime


class DataPlaneMiddleware:
    """Answers data-plane paths from the request's WSGI environ; passes everything else on."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None
        ) -> Callable[[bytes], object]:
            started.append((status, headers))
            return lambda data: None

        environ: dict[str, Any] = request.META
        body = get_runtime().data_plane().answer(environ, start_response)
        if body is None:
            return self._get_response(request)
        status, headers = started[0]
        return _response(int(status.split()[0]), headers, body)


class MachineHostMiddleware:
    """Lets programs use the API under any name of the machine.

    The Host check protects people's pages, whose browsers send credentials by themselves. The API asks every
    request for a key, as the data plane does, which checks no Host either. With authentication off there is
    no key to ask for, and the check stays.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if settings.ANVIL_AUTH and (request.path.startswith("/v1/") or request.path == "/metrics"):
            request.META["HTTP_HOST"] = settings.MACHINE_HOST
        return self._get_response(request)


def _response(status: int, headers: list[tuple[str, str]], body: Iterable[bytes]) -> HttpResponseBase:
    response: HttpResponseBase
    if isinstance(body, list):
        response = HttpResponse(b"".join(body), status=status)
    else:
        response = StreamingHttpResponse(body, status=status)
    del response["Content-Type"]
    for name, value in headers:
        response[name] = value
    return response
