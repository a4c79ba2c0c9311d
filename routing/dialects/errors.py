"""The failures that a caller can be told of, and what may be shown of an upstream's own words.

Every failure after dispatch has a fixed status, code and message, except that an upstream's message goes
along where the fault is the caller's to mend (400, 413, 415, 422, 429) or was reported inside a stream:
then only after `sanitise`.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from routing.dialects.base import Failure, UpstreamRefusal

MAX_MESSAGE_BYTES: Final = 2048
"""Bound of an upstream's message, in UTF-8."""

KEPT_STATUSES: Final = frozenset({400, 413, 415, 422, 429})
"""An upstream's statuses that the caller gets as they are; every other error of an upstream is a 502."""

UNREACHABLE: Final = Failure(
    status=502, code="upstream_unreachable", message="The upstream server could not be reached."
)
UPSTREAM_ERROR: Final = Failure(
    status=502, code="upstream_error", message="The upstream server failed to answer the request."
)
INVALID_ANSWER: Final = Failure(
    status=502,
    code="upstream_invalid_response",
    message="The upstream server sent an answer that cannot be used.",
)
INCOMPLETE: Final = Failure(
    status=502,
    code="upstream_incomplete",
    message="The upstream server's answer ended before it was complete.",
)
TIMED_OUT: Final = Failure(
    status=504, code="upstream_timeout", message="The upstream server did not answer in time."
)
STOPPING: Final = Failure(
    status=503, code="server_stopping", message="The server stopped before the answer was complete."
)

_KEPT_MESSAGES: Final = {
    400: "The upstream server rejected the request.",
    413: "The request is too large for the upstream server.",
    415: "The upstream server does not support this kind of content.",
    422: "The upstream server could not process the request.",
    429: "The upstream server is at its limit.",
}
_KEPT_CODES: Final = {429: "upstream_rate_limited"}

_ANTHROPIC_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
}
"""What Anthropic's words mean that say whose fault it is; its events carry no number."""

_URL = re.compile(r"(?:https?|wss?|grpcs?|tcp|unix)://[^\s\"'<>`]*", re.IGNORECASE)
_STRUCK: Final = "[removed]"


def error_type(status: int) -> str:
    """OpenAI's word for an error of ``status``."""
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def refused(status: int, message: str | None, strike: Sequence[str]) -> Failure:
    """The failure for an upstream's own refusal with one of `KEPT_STATUSES`."""
    return Failure(
        status=status,
        code=_KEPT_CODES.get(status, "upstream_rejected"),
        message=sanitise(message, strike) or _KEPT_MESSAGES[status],
    )


def reported(refusal: UpstreamRefusal, strike: Sequence[str]) -> Failure:
    """The failure for an error reported inside a stream; its message whatever its status"""
    if refusal.status in KEPT_STATUSES:
        return refused(refusal.status, refusal.message, strike)
    return Failure(
        status=UPSTREAM_ERROR.status,
        code=UPSTREAM_ERROR.code,
        message=sanitise(refusal.message, strike) or UPSTREAM_ERROR.message,
    )


def sanitise(message: str | None, strike: Sequence[str]) -> str:
    """``message`` without URLs and without the strings of ``strike`` (any case, not inside a longer word),
    cut to `MAX_MESSAGE_BYTES` between characters. Empty when there is nothing to show."""
    if not message:
        return ""
    text = _URL.sub(_STRUCK, message)
    pattern = _pattern(tuple(strike))
    if pattern is not None:
        text = pattern.sub(_STRUCK, text)
    return text.strip().encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")


@lru_cache(maxsize=256)
def _pattern(strike: tuple[str, ...]) -> re.Pattern[str] | None:
    longest_first = sorted({text for text in strike if text}, key=lambda text: (-len(text), text))
    if not longest_first:
        return None
    return re.compile(
        r"(?<![\w-])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w-])", re.IGNORECASE
    )


def refusal_in(body: bytes) -> UpstreamRefusal:
    """What a JSON body or event says about an error, in the forms that inference servers use:

        {"error": {"message": "...", "code": 400}}       OpenAI, vLLM, llama.cpp, Anthropic
        {"object": "error", "message": "...", "code": 400}   older vLLM, SGLang
        {"error": "..."}                                  TGI, Ollama
        {"detail": "..."}, {"detail": [{"msg": "..."}]}   FastAPI

    The status and the message are None where it does not say; so they both are for any other body.
    """
    try:
        document: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UpstreamRefusal(None, None)
    if not isinstance(document, dict):
        return UpstreamRefusal(None, None)
    error = document.get("error")
    nested: Mapping[str, object] = error if isinstance(error, dict) else {}
    detail = document.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        detail = detail[0].get("msg")
    messages = (nested.get("message"), error, document.get("message"), detail)
    kind = nested.get("type")
    named = _ANTHROPIC_STATUSES.get(kind) if isinstance(kind, str) else None
    codes = (nested.get("code"), nested.get("status"), document.get("code"), document.get("status"), named)
    return UpstreamRefusal(
        next((code for code in codes if type(code) is int and 400 <= code <= 599), None),
        next((message for message in messages if isinstance(message, str)), None),
    )
