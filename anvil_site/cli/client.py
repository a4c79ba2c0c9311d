"""The one function through which every tool here asks a running router.

It goes to ``ANVIL_URL`` (by default ``http://127.0.0.1:8000``) with the key in ``ANVIL_TOKEN``, once: no
redirects, no proxy or ``.netrc`` from the environment, no retry. Bodies are bounded by size and time. What
goes wrong becomes a :class:`RouterFault` with a code of ``outcome.MESSAGES``; neither the address, the key
nor the text of an exception or answer is in it.
"""

import ipaddress
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NoReturn
from urllib.parse import urlsplit

import requests
import urllib3

from admission.identifiers import is_reason_code
from routing.orders import PREVIOUS_REASON
from routing.refusals import SENTENCES
from routing.snapshot import CODES

from .outcome import MESSAGES, Json, RouterFault

DEFAULT_URL: Final = "http://127.0.0.1:8000"
CONNECT_TIMEOUT: Final = 3.0
ANSWER_TIMEOUT: Final = 15.0
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_CHUNK: Final = 65_536

_BY_STATUS: Final[Mapping[int, str]] = {
    401: "unauthorised",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    429: "router_unavailable",
    503: "router_unavailable",
}

NAMED_REFUSALS: Final = frozenset(
    {
        *CODES,
        *SENTENCES,
        "invalid_request",
        "model_not_found",
        "replica_lifecycle_unsupported",
        "replica_lifecycle_configuration_unavailable",
    }
)
"""Codes of the router's own refusals that are passed on; any other word in an answer is not."""
assert set(MESSAGES) >= NAMED_REFUSALS

Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A 2xx answer: its status and its JSON object (empty for an empty body).

    ``previous_reason`` is the reason that a quiesce replaces, where the router says that there is one.
    """

    status: int
    body: Mapping[str, Json]
    previous_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where the router is and the key to it, as the environment says."""

    base_url: str = field(repr=False)
    token: str | None = field(repr=False)

    @classmethod
    def from_environment(cls) -> "Target":
        """Raises RouterFault ``environment_invalid`` for a URL or token that can't be one."""
        base_url = os.environ.get("ANVIL_URL") or DEFAULT_URL
        token = os.environ.get("ANVIL_TOKEN") or None
        try:
            parts = urlsplit(base_url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise RouterFault("environment_invalid") from None
        odd = (
            parts.scheme not in ("http", "https")
            or not host
            or "@" in parts.netloc
            or "?" in base_url
            or "#" in base_url
            or not _is_plain(base_url)
        )
        if odd or (token is not None and not _is_plain(token)):
            raise RouterFault("environment_invalid")
        return cls(base_url.rstrip("/"), token)

    @property
    def is_local(self) -> bool:
        """Whether the URL names this machine, by ``localhost`` or a loopback address."""
        host = urlsplit(self.base_url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def call(
    method: Method,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    body: Mapping[str, Json] | bytes | None = None,
    timeout: float = ANSWER_TIMEOUT,
) -> Answer:
    """Ask the router once. ``path`` starts with a slash and holds no operand but whole numbers.

    ``body`` is an object, or the exact bytes of a JSON document that must not be written anew.
    ``timeout`` bounds, in seconds, each wait for bytes and, once the answer has begun, the whole of its body.
    Raises :class:`RouterFault`; ``router_unreachable`` means that nothing was sent, ``answer_lost`` that the
    request may have had its effect.
    """
    target = Target.from_environment()
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "anvil"}
    if target.token is not None:
        headers["Authorization"] = f"Bearer {target.token}"
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body, allow_nan=False).encode()
        headers["Content-Type"] = "application/json"
    try:
        with requests.Session() as session:
            session.trust_env = False
            with session.request(
                method,
                target.base_url + path,
                params=query,
                data=data,
                headers=headers,
                timeout=(CONNECT_TIMEOUT, timeout),
                allow_redirects=False,
                stream=True,
            ) as response:
                answer = _answer(response.status_code, _read(response, timeout))
                reason = response.headers.get(PREVIOUS_REASON)
                return replace(answer, previous_reason=reason) if is_reason_code(reason) else answer
    except requests.RequestException as error:
        _raise_for(error)
    except (urllib3.exceptions.HTTPError, OSError):
        # Reading the raw body does not go through requests' own translation of errors.
        raise RouterFault("answer_lost") from None
    except UnicodeError:
        raise RouterFault("environment_invalid") from None


def _read(response: requests.Response, timeout: float) -> bytes:
    """The body, at most MAX_ANSWER_BYTES of it and within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    data = bytearray()
    # read1 returns what has arrived, so that a body that trickles meets the deadline, too.
    while chunk := response.raw.read1(_CHUNK):
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise RouterFault("malformed_answer")
        if time.monotonic() > deadline:
            raise RouterFault("answer_lost")
    return bytes(data)


def _answer(status: int, data: bytes) -> Answer:
    body = _object(data)
    if 200 <= status < 300:
        if body is None:
            raise RouterFault("malformed_answer")
        return Answer(status, body)
    if not 400 <= status < 600:
        raise RouterFault("malformed_answer")
    named = _named_refusal(body)
    raise RouterFault(named or _BY_STATUS.get(status, "refused" if status < 500 else "router_failed"), body)


def _object(data: bytes) -> dict[str, Json] | None:
    """``data`` as a JSON object; an empty body is an empty one, anything else None."""
    if not data:
        return {}

    def no_constant(_: str) -> NoReturn:
        raise ValueError

    try:
        value: Any = json.loads(data, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _named_refusal(body: Mapping[str, Json] | None) -> str | None:
    """The code in the answer's error object, when it is one of the known ones."""
    error = body.get("error") if body else None
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if isinstance(code, str) and code in NAMED_REFUSALS else None


def _raise_for(error: requests.RequestException) -> NoReturn:
    """Translate, dropping the exception: its text holds the address."""
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidHeader):
        raise RouterFault("environment_invalid") from None
    if isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.SSLError):
        raise RouterFault("router_unreachable") from None
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", None)
    if isinstance(reason, urllib3.exceptions.NewConnectionError):
        raise RouterFault("router_unreachable") from None
    raise RouterFault("answer_lost") from None
