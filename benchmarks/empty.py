"""A WSGI application that does nothing: what is left is the server's own share of a request."""

from collections.abc import Callable
from typing import Any

BODY = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[]}'


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(BODY)))])
    return [BODY]
