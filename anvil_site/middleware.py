"""The data plane under Django's own handler: the dev server's and the test client's way in.

In production the WSGI entry answers data-plane paths before Django is asked; this middleware, first in the
chain, answers them with the same function wherever requests come through Django.
"""

from collections.abc import Callable, Iterable
from typing import Any

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
