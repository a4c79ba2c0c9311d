"""The data plane as WSGI: one function from a request to the one path, entered without Django's handler.

`DataPlane` is the outermost WSGI application; whatever is not its own goes to ``fallback``. The same object
serves Django's test client and the dev server through ``anvil_site.middleware``. It holds no database
connection and touches none of Django's request machinery.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from admission.identifiers import is_correlation_id
from routing.access import CrossSite, Principal, Scope
from routing.dialects import DIALECTS
from routing.dialects.base import JSON, Dialect, Failure
from routing.exchange import Exchange, Head
from routing.gateway import Caller, Refused, Reply, reply
from routing.loop import ABORTIVE, status_phrase
from routing.projections import model_card, model_list
from routing.refusals import SENTENCES
from routing.relay import BlockingDriver, Dispatch, StreamBody

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from routing.router import Router

Headers = Iterable[tuple[str, str]]

NO_STORE: Final = ("Cache-Control", "no-store")
RETRY_SOON: Final = ("Retry-After", "1")
MODELS_PATH: Final = "/v1/models"
_REST_DIALECT: Final = DIALECTS["/v1/chat/completions"]
CAN_DETACH: Final = "anvil.can_detach"
"""Set in the environ by a server that takes a `Detached` answer."""

_PROJECTIONS: Final = frozenset({"capacity", "capabilities", "fingerprints"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the front door lets in: bytes of one body, and requests in the data plane at once."""

    max_body_bytes: int
    max_concurrency: int


class Places:
    """The front door's places. ``enter`` never waits; every True is paired with one ``leave``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        return self._taken

    def enter(self) -> bool:
        with self._lock:
            if self._taken >= self.limit:
                return False
            self._taken += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._taken -= 1


class _Refusal(Exception):
    """A request that ends at the front door."""

    def __init__(self, failure: Failure, *headers: tuple[str, str]) -> None:
        super().__init__(failure.code)
        self.failure = failure
        self.headers = headers


def _failure(status: int, code: str, message: str) -> Failure:
    return Failure(status=status, code=code, message=message)


UNAUTHENTICATED: Final = _failure(401, "invalid_api_key", "A valid API key is required.")
CROSS_SITE: Final = _failure(403, "cross_site", SENTENCES["cross_site"])
FORBIDDEN: Final = _failure(403, "insufficient_scope", "This API key may not be used for this.")
NOT_OWNER: Final = _failure(503, "not_ledger_owner", "Another process is serving. Try again shortly.")
NOT_CONFIGURED: Final = _failure(503, "not_configured", "No configuration is active yet.")
DRAINING: Final = _failure(503, "server_draining", "The server is shutting down. Try again shortly.")
SERVER_BUSY: Final = _failure(503, "server_busy", "The server is at its limit. Try again shortly.")
KEY_BUSY: Final = _failure(429, "key_concurrency_exceeded", "This API key is at its concurrency limit.")
BODY_TOO_LARGE: Final = _failure(413, "request_too_large", "The request body is too large.")
BODY_TOO_SLOW: Final = _failure(408, "request_timeout", "The request body came too slowly.")
BODY_INCOMPLETE: Final = _failure(400, "incomplete_body", "The request body ended early.")
UNKNOWN_PARAMETER: Final = _failure(400, "invalid_request", "This path takes no query parameter.")
METHOD_NOT_ALLOWED: Final = _failure(405, "method_not_allowed", "This path takes another method.")


class DataPlane:
    """The WSGI application of the process. Thread-safe."""

    def __init__(self, router: "Router", *, limits: Limits) -> None:
        self.places = Places(limits.max_concurrency)
        self.fallback: WSGIApplication = _nothing_here
        self._router = router
        self._limits = limits

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        answer = self.answer(environ, start_response)
        return self.fallback(environ, start_response) if answer is None else answer

    def is_inference(self, path: str) -> bool:
        """Whether requests to ``path`` take one of the front door's places."""
        return path in DIALECTS

    def refusal(self, path: str, failure: Failure, *, request_id: str | None = None) -> Reply:
        """``failure`` in the dialect that callers of ``path`` speak, before their request was read.

        Inference answers carry an X-Request-Id: ``request_id`` when it is safe, else a new one.
        """
        dialect = DIALECTS.get(path)
        if dialect is None:
            return reply(_REST_DIALECT, failure)
        return reply(dialect, failure, ("X-Request-Id", _request_id(request_id)))

    def refuses_key(self, authorization: str | None, api_key: str | None) -> Failure | None:
        """Why whoever presents this may not infer; None when it may. Reading a body is for those who may."""
        environ = {"HTTP_AUTHORIZATION": authorization, "HTTP_X_API_KEY": api_key}
        try:
            authenticate(self._router, environ, Scope.INFER)
        except _Refusal as refusal:
            return refusal.failure
        return None

    @property
    def is_full(self) -> bool:
        """Whether every place is taken."""
        return self.places.taken >= self.places.limit

    @property
    def refuses(self) -> Failure | None:
        """Why a data-plane request would be refused now whatever it asks; None when it would not."""
        if not self._router.owns_ledger:
            return NOT_OWNER
        if self._router.draining:
            return DRAINING
        return SERVER_BUSY if self.is_full else None

    def answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes] | None:
        """The answer when the path is the data plane's, else None."""
        path: str = environ["PATH_INFO"]
        dialect = DIALECTS.get(path)
        if dialect is not None:
            return self._infer(dialect, environ, start_response)
        if path == "/healthz":
            return self._probe(environ, start_response, {"status": "ok"})
        if path == "/readyz":
            fault = self._router.not_ready_reason()
            body = {"status": "ready"} if fault is None else {"status": "not_ready", "reason": fault}
            return self._probe(environ, start_response, body)
        if path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/"):
            name = path[len(MODELS_PATH) + 1 :]
            if name not in _PROJECTIONS:
                return self._models(name, environ, start_response)
        return None

    def _infer(
        self, dialect: Dialect, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        arrived = time.monotonic()
        request_id = _request_id(environ.get("HTTP_X_REQUEST_ID"))
        visit = _Visit(self, environ, request_id)
        try:
            result = visit.handle(dialect, arrived)
        except _Refusal as refusal:
            result = reply(dialect, refusal.failure, *refusal.headers)
        except BaseException:
            visit.leave()
            raise
        if isinstance(result, Dispatch):
            return visit.relay(result, start_response)
        visit.leave()
        if result is None:
            return _unanswered(start_response)
        return _send(start_response, result, request_id)

    def _probe(
        self, environ: "WSGIEnvironment", start_response: "StartResponse", body: Mapping[str, str]
    ) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            answer = reply(_REST_DIALECT, METHOD_NOT_ALLOWED, NO_STORE, ("Allow", "GET, HEAD"))
            return _send(start_response, answer)
        status = 503 if body["status"] == "not_ready" else 200
        return _send_json(start_response, status, body, (NO_STORE,))

    def _models(
        self, name: str, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        request_id = _request_id(environ.get("HTTP_X_REQUEST_ID"))
        try:
            if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
                raise _Refusal(METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
            authenticate(self._router, environ, Scope.INFER, Scope.OBSERVE)
            if environ.get("QUERY_STRING"):
                raise _Refusal(UNKNOWN_PARAMETER)
            if self._router.active is None:
                raise _Refusal(NOT_CONFIGURED, RETRY_SOON)
            if name:
                card = model_card(self._router, name)
                if card is None:
                    raise _Refusal(_failure(404, "model_not_found", "No such model."))
                return _send_json(start_response, 200, card, (NO_STORE, ("X-Request-Id", request_id)))
            listing = model_list(self._router)
            return _send_json(start_response, 200, listing, (NO_STORE, ("X-Request-Id", request_id)))
        except _Refusal as refusal:
            answer = reply(_REST_DIALECT, refusal.failure, NO_STORE, *refusal.headers)
            return _send(start_response, answer, request_id)


class Detached:
    """An answer that needs no thread: whoever serves connections hands it to the relay loop.

    ``headers`` are the front door's own. ``attend`` goes on in the calling thread instead, with what the loop
    has let go of. Iterating it is a mistake of the server's, so it offers nothing.
    """

    __slots__ = ("attend", "dispatch", "headers")

    def __init__(
        self,
        dispatch: Dispatch,
        headers: tuple[tuple[str, str], ...],
        attend: Callable[["StartResponse"], Iterable[bytes]],
    ) -> None:
        self.dispatch = dispatch
        self.headers = headers
        self.attend = attend

    def __iter__(self) -> Iterator[bytes]:
        return iter(())


class Unanswered:
    """The end of a request whose caller has left: whoever serves connections closes this one without a word.

    Any other server finds an empty body, for a response that nobody reads.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[bytes]:
        return iter(())


def _unanswered(start_response: "StartResponse") -> Unanswered:
    start_response(_status(400), [("Content-Length", "0")])
    return Unanswered()


class _Visit:
    """One data-plane request at the front door: what it took and has to give back."""

    def __init__(self, plane: DataPlane, environ: "WSGIEnvironment", request_id: str) -> None:
        self._plane = plane
        self._environ = environ
        self._request_id = request_id
        self._placed = False
        self._principal: Principal | None = None

    def handle(self, dialect: Dialect, arrived: float) -> Reply | Dispatch | None:
        environ, plane = self._environ, self._plane
        router = plane._router
        if environ["REQUEST_METHOD"] != "POST":
            raise _Refusal(METHOD_NOT_ALLOWED, ("Allow", "POST"))
        principal = authenticate(router, environ, Scope.INFER)
        refused = plane.refuses
        if refused is not None and refused is not SERVER_BUSY:
            raise _Refusal(refused, RETRY_SOON)
        if router.gateway is None:
            raise _Refusal(NOT_CONFIGURED, RETRY_SOON)
        if not plane.places.enter():
            router.evidence.refused(None, Refused.SERVER_BUSY, principal.name)
            raise _Refusal(SERVER_BUSY, RETRY_SOON)
        self._placed = True
        if not router.ring.enter(principal):
            router.evidence.refused(None, Refused.KEY_LIMIT, principal.name)
            raise _Refusal(KEY_BUSY, RETRY_SOON)
        self._principal = principal
        body = read_body(environ, plane._limits.max_body_bytes)
        caller = Caller(
            principal=principal,
            request_id=self._request_id,
            run_id=_correlation_id(environ, "HTTP_X_ANVIL_WORKBENCH_RUN_ID"),
            task_id=_correlation_id(environ, "HTTP_X_ANVIL_TASK_ID"),
            arrived=arrived,
            connection=environ.get("gunicorn.socket"),
            leave=self.leave,
            stopping=router.stopping,
        )
        return router.handle(dialect, body, caller, content_type=environ.get("CONTENT_TYPE") or JSON)

    def relay(self, dispatch: Dispatch, start_response: "StartResponse") -> Iterable[bytes]:
        """Run the dispatch from this thread, unless the server can go on without one."""
        if self._environ.get(CAN_DETACH):
            headers = tuple(self._own_headers(dispatch))
            return Detached(dispatch, headers, partial(self._attend, dispatch))
        return self._attend(dispatch, start_response)

    def _attend(self, dispatch: Dispatch, start_response: "StartResponse") -> Iterable[bytes]:
        caller: socket.socket | None = self._environ.get("gunicorn.socket")
        try:
            driver = BlockingDriver(dispatch, caller, self._plane._router.stopping)
            first = driver.run_to_head()
            head = dispatch.head
            if head is not None and head.streaming:
                start_response(_status(head.status), [*head.headers, *self._own_headers(dispatch)])
                return StreamBody(dispatch, driver, first, partial(self._closed, dispatch.exchange))
            body = first + driver.run_to_end()
            dispatch.finish(linger=0.0)
        except BaseException:
            dispatch.close()
            self.leave()
            raise
        dispatch.close()
        self.leave()
        return self._whole(head or dispatch.head, body, dispatch, start_response)

    def _whole(
        self, head: Head | None, body: bytes, dispatch: Dispatch, start_response: "StartResponse"
    ) -> Iterable[bytes]:
        if head is None:
            return _unanswered(start_response)
        start_response(_status(head.status), [*head.headers, *self._own_headers(dispatch)])
        return [body]

    def _own_headers(self, dispatch: Dispatch) -> list[tuple[str, str]]:
        return [("X-Request-Id", self._request_id), *dispatch.headers]

    def _closed(self, exchange: Exchange) -> None:
        self.leave()
        sock: socket.socket | None = self._environ.get("gunicorn.socket")
        if sock is None or not exchange.close_client:
            return
        try:
            if exchange.truncated:
                # An orderly close would pass for the proper end where the answer has no framing.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTIVE)
                sock.close()
            else:
                # gunicorn keeps a connection alive whatever the application's headers say.
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def leave(self) -> None:
        """Give back the key's place and the front door's; idempotent."""
        principal, self._principal = self._principal, None
        if principal is not None:
            self._plane._router.ring.leave(principal)
        placed, self._placed = self._placed, False
        if placed:
            self._plane.places.leave()


def _nothing_here(environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
    return _send_json(start_response, 404, {"error": "not found"}, ())


def authenticate(router: "Router", environ: "WSGIEnvironment", *scopes: Scope) -> Principal:
    """The principal that may use one of ``scopes``; raises a refusal with 401 or 403, or 503 while keys are
    not known yet: they are read once the ledger is this process's."""
    try:
        principal = router.ring.identify(environ)
    except CrossSite:
        raise _Refusal(CROSS_SITE) from None
    if principal is None and not router.owns_ledger:
        raise _Refusal(NOT_OWNER, RETRY_SOON)
    if principal is None:
        raise _Refusal(UNAUTHENTICATED, ("WWW-Authenticate", "Bearer"))
    if not principal.may(*scopes):
        raise _Refusal(FORBIDDEN)
    return principal


def read_body(environ: "WSGIEnvironment", limit: int) -> bytes:
    """The whole body, chunked or not, at most ``limit`` bytes; raises a refusal with 413 or 400."""
    length = environ.get("CONTENT_LENGTH") or ""
    stream = environ["wsgi.input"]
    if length.isascii() and length.isdigit():
        expected = int(length)
        if expected > limit:
            raise _Refusal(BODY_TOO_LARGE)
        body: bytes = stream.read(expected) if expected else b""
        if len(body) != expected:
            raise _Refusal(BODY_INCOMPLETE)
        return body
    if "chunked" not in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
        return b""
    body = stream.read(limit + 1)
    if len(body) > limit:
        raise _Refusal(BODY_TOO_LARGE)
    return body


def _request_id(given: object) -> str:
    """The caller's own when it is safe, else a new one."""
    return given if is_correlation_id(given) else secrets.token_hex(16)


def _correlation_id(environ: "WSGIEnvironment", key: str) -> str | None:
    value = environ.get(key)
    return value if is_correlation_id(value) else None


def _status(code: int) -> str:
    return f"{code} {status_phrase(code)}"


def _send(start_response: "StartResponse", answer: Reply, request_id: str | None = None) -> list[bytes]:
    headers = [*answer.headers, ("Content-Length", str(len(answer.body)))]
    if request_id is not None:
        headers.append(("X-Request-Id", request_id))
    start_response(_status(answer.status), headers)
    return [answer.body]


def _send_json(start_response: "StartResponse", status: int, value: object, headers: Headers) -> list[bytes]:
    body = msgspec.json.encode(value)
    start_response(
        _status(status),
        [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers],
    )
    return [body]
