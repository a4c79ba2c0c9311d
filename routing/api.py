"""REST of the control plane: one thin view per verb over the services."""

import datetime
import select
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.views import exception_handler as drf_exception_handler

from admission import strict_json
from admission.intent_document import MAX_DOCUMENT_BYTES
from routing import audit, keys, orders, transitions
from routing.access import Principal, Scope
from routing.audit import Through
from routing.dialects import DIALECTS
from routing.dialects.base import Failure
from routing.drains import Drain
from routing.models import ApiKey
from routing.openapi import SAFE_ID, closed, many, operation, query, ref
from routing.refusals import SENTENCES, Refused
from routing.router import live
from routing.upstream import POLLRDHUP

MAX_BODY_BYTES: Final = 65_536
"""Of a request of the management; an intent document may be larger."""

UNKNOWN_ACTOR: Final = "-"

WAIT_TICK: Final = 0.5
"""Seconds between two looks at whether somebody still waits for a drain's end."""


# Views in general --------------------------------------------------------------------------------------


class StrictJSONParser(BaseParser):
    """A bounded body that is an object in strict JSON: no key twice, no NaN."""

    media_type = "application/json"
    max_bytes = MAX_BODY_BYTES

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, object]:
        try:
            body = strict_json.loads(read_bounded(stream, self.max_bytes))
        except ValueError:
            raise exceptions.ParseError from None
        if type(body) is not dict:
            raise exceptions.ParseError
        return body


class DocumentParser(BaseParser):
    """A bounded body as bytes, under ``document``, for what has a parser of its own."""

    media_type = "application/json"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, bytes]:
        return {"document": read_bounded(stream, MAX_DOCUMENT_BYTES)}


def read_bounded(stream: Any, limit: int) -> bytes:
    data: bytes = stream.read(limit + 1)
    if len(data) > limit:
        raise Refused(413, *_TEXTS[413])
    return data


class ManagementView(APIView):
    """Never cached; unknown and repeated query parameters are refused; bodies are strict JSON.

    ``changing`` methods take one of the places of management for as long as they are at work; when all are
    taken they are refused at once.
    """

    scopes: tuple[Scope, ...] = ()
    parameters: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset({"POST", "PUT", "DELETE"})
    action = "change"
    """What refusals are counted under that no verb of a service has counted."""
    parser_classes: Sequence[type[BaseParser]] = (StrictJSONParser,)
    http_method_names = ("get", "post", "put", "patch", "delete", "head")
    """Not OPTIONS, to which the framework has an answer of its own: what a path takes is in ``Allow``."""
    _place: threading.BoundedSemaphore | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if set(request.query_params) - self.parameters:
            raise exceptions.ValidationError("unknown query parameter")
        if any(len(values) > 1 for _, values in request.query_params.lists()):
            raise exceptions.ValidationError("a query parameter is repeated")
        if request.method in self.changing:
            places = live().operations.at_work
            if not places.acquire(blocking=False):
                raise Refused(503, "management_busy", SENTENCES["management_busy"])
            self._place = places

    def leave(self) -> None:
        """Give the place back; called early by who has nothing left to do but wait."""
        place, self._place = self._place, None
        if place is not None:
            place.release()

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return super().dispatch(request, *args, **kwargs)
        finally:
            self.leave()

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response


class ObserveView(ManagementView):
    """A read-only projection: scope observe."""

    scopes = (Scope.OBSERVE,)


def actor_of(request: Request) -> str:
    """The name under which a request's changes are recorded: that of its key."""
    assert isinstance(request.user, Principal)
    return request.user.name


# Transitions -------------------------------------------------------------------------------------------


class TransitionView(ManagementView):
    """``/v1/admin/transition``: the status of tiers and members, and what changes it."""

    scopes = (Scope.OPERATE,)
    parameters = frozenset({"tier_id", "member_id"})
    action = "transition"

    @operation(
        summary="Status of tiers and members",
        parameters=[
            query("tier_id", SAFE_ID, "This tier alone."),
            query("member_id", SAFE_ID, "Within the tier, this member alone."),
        ],
        answers={200: ref("TransitionStatus")},
        refusals=(404,),
        tag="transitions",
    )
    def get(self, request: Request) -> Response:
        try:
            scope = orders.checked_scope(request.query_params.dict())
        except orders.OrderError as error:
            raise _malformed(error) from None
        return Response(transitions.status(live(), *scope))

    @operation(
        summary="Status, quiesce, drain or readmit",
        body={"application/json": ref("TransitionOrder")},
        answers={
            200: {"anyOf": [ref(f"Transition{name}") for name in ("Done", "Preview", "Status")]},
            202: ref("TransitionDone"),
        },
        refusals=(404, 409, 413, 415),
        tag="transitions",
    )
    def post(self, request: Request) -> Response:
        if request.query_params:
            raise exceptions.ValidationError("unknown query parameter")
        try:
            order = orders.parse_order(request.data)
        except orders.OrderError as error:
            raise _malformed(error) from None
        router = live()
        if order.action == "status" or order.tier_id is None:
            return Response(transitions.status(router, order.tier_id, order.member_id))
        if not order.applies:
            transitions.resolve(router, order.tier_id, order.member_id)
            before = None
            if order.action == "quiesce":
                before = transitions.previous_reason(router, order.tier_id, order.member_id, order.reason)
            told = transitions.preview(order.action, order.tier_id, order.member_id)
            return Response(told, headers=_telling_previous(before))
        scope = (order.tier_id, order.member_id)
        actor, through = actor_of(request), Through.REST
        status, result, before = 200, None, None
        if order.action == "quiesce":
            done = transitions.quiesce(router, *scope, reason=order.reason, actor=actor, through=through)
            result, before = done.row, done.previous_reason
        elif order.action == "readmit":
            result = transitions.readmit(
                router,
                *scope,
                accept_unverified=order.accept_unverified,
                reason=order.reason,
                actor=actor,
                through=through,
            )
        else:
            drain = transitions.drain(
                router, *scope, timeout=order.timeout, reason=order.reason, actor=actor, through=through
            )
            self.leave()
            if self._await(drain, request) and drain.result is not None:
                result = transitions.drain_result(drain.result, order.member_id)
            else:
                status = 202
        told = transitions.answer(order.action, *scope, result)
        return Response(told, status=status, headers=_telling_previous(before))

    def _await(self, drain: Drain, request: Request) -> bool:
        """Wait for the end of a drain, if there is room to wait; whether it has come.

        The drain goes on when its caller has left, when too many wait, and when the process begins to stop.
        """
        router = live()
        if not router.operations.waiting.acquire(blocking=False):
            return drain.wait(0.0)
        try:
            while not drain.wait(WAIT_TICK):
                if router.draining or _is_gone(request.META.get("gunicorn.socket")):
                    return False
            return True
        finally:
            router.operations.waiting.release()


def _telling_previous(reason: str | None) -> dict[str, str]:
    """The reason that a quiesce replaces, in a header: the contract closes the bodies."""
    return {} if reason is None else {orders.PREVIOUS_REASON: reason}


def _is_gone(connection: socket.socket | None) -> bool:
    if connection is None:
        return False
    poller = select.poll()
    poller.register(connection, POLLRDHUP)
    return bool(poller.poll(0))


def _malformed(error: orders.OrderError) -> Refused:
    return Refused(400, *_TEXTS[400], field=error.field)


# Intent ------------------------------------------------------------------------------------------------


class IntentView(ManagementView):
    """``/v1/admin/intent``: what is quiesced as a legacy document; to quiesce what such a document says."""

    scopes = (Scope.CONFIGURE,)
    parser_classes = (DocumentParser,)
    action = "import_intent"

    @operation(
        summary="What is quiesced, as a legacy document",
        answers={200: ref("IntentDocument")},
        tag="transitions",
    )
    def get(self, request: Request) -> HttpResponse:
        return HttpResponse(transitions.export_intent(live()), content_type="application/json")

    @operation(
        summary="Quiesce what a legacy document says",
        body={"application/json": ref("IntentDocument")},
        answers={200: ref("IntentImported")},
        refusals=(413, 415),
        tag="transitions",
    )
    def put(self, request: Request) -> Response:
        body = request.data
        document = body["document"] if isinstance(body, dict) and "document" in body else b""
        imported = transitions.import_intent(live(), document, actor=actor_of(request), through=Through.REST)
        return Response(imported)


# Keys --------------------------------------------------------------------------------------------------


class KeysView(ManagementView):
    """``/v1/admin/keys``: the keys without their secrets; to make one, shown in that answer alone."""

    scopes = (Scope.CONFIGURE,)
    action = "create_key"
    fields = frozenset({"name", "scopes", "max_concurrency", "expires_at"})

    @operation(
        summary="All keys, without their secrets",
        answers={200: closed({"keys": many(ref("ApiKey"))})},
        tag="keys",
    )
    def get(self, request: Request) -> Response:
        return Response({"keys": [keys.describe(row) for row in ApiKey.objects.all()]})

    @operation(
        summary="Make a key; its secret is in this answer alone",
        body={"application/json": ref("ApiKeyOrder")},
        answers={201: ref("ApiKeyMade")},
        refusals=(409, 413, 415),
        tag="keys",
    )
    def post(self, request: Request) -> Response:
        body = request.data
        if type(body) is not dict or body.keys() - self.fields or not body.keys() >= {"name", "scopes"}:
            raise Refused(400, *_TEXTS[400])
        row, secret = keys.create(
            live(),
            name=body["name"],
            scopes=body["scopes"],
            max_concurrency=body.get("max_concurrency"),
            expires_at=_instant(body.get("expires_at")),
            actor=actor_of(request),
            through=Through.REST,
        )
        return Response({**keys.describe(row), "key": secret}, status=201)


class KeyView(ManagementView):
    """``DELETE /v1/admin/keys/{id}``: revoke a key."""

    scopes = (Scope.CONFIGURE,)
    action = "revoke_key"

    @operation(summary="Revoke a key", answers={200: ref("ApiKey")}, refusals=(404,), tag="keys")
    def delete(self, request: Request, key_id: int) -> Response:
        row = keys.revoke(live(), key_id, actor=actor_of(request), through=Through.REST)
        return Response(keys.describe(row))


def _instant(value: object) -> datetime.datetime | None:
    """A moment in ISO 8601, UTC where it names no zone. Raises Refused."""
    if value is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(value if type(value) is str else "")
        return moment.astimezone(datetime.UTC) if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    except (ValueError, OverflowError):
        raise Refused(400, *_TEXTS[400], field="expires_at") from None


# Errors ------------------------------------------------------------------------------------------------


def error_body(status: int, code: str, message: str, *, param: str | None = None) -> bytes:
    """An error of the REST part: OpenAI's envelope, as on the data plane."""
    dialect = DIALECTS["/v1/chat/completions"]
    return dialect.error(Failure(status=status, code=code, message=message, param=param))


def error_response(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    extra: Mapping[str, object] | None = None,
) -> Response:
    envelope = msgspec.json.decode(error_body(status, code, message, param=param))
    answer = Response({**envelope, **(extra or {})}, status=status)
    if status == 503:
        answer["Retry-After"] = "1"
    return answer


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
    headers: dict[str, str] = {}
    if not isinstance(error, Refused):
        response = drf_exception_handler(error, context)
        if response is None:
            return None
        unknown = ("request_failed", "The request could not be served.")
        error = Refused(response.status_code, *_TEXTS.get(response.status_code, unknown))
        headers = {
            name: response[name] for name in ("Allow", "WWW-Authenticate", "Retry-After") if name in response
        }
    view, request = context["view"], context["request"]
    if isinstance(view, ManagementView) and request.method in view.changing:
        actor = request.user.name if isinstance(request.user, Principal) else UNKNOWN_ACTOR
        audit.tell(error, action=view.action, actor=actor, through=Through.REST)
    answer = error_response(error.status, error.code, str(error), param=error.field, extra=error.extra)
    for name, value in headers.items():
        answer[name] = value
    return answer


@csrf_exempt
def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """404 below ``/v1/``, as JSON, whatever the method: nothing here changes anything."""
    answer = HttpResponse(error_body(404, *_TEXTS[404]), status=404, content_type="application/json")
    answer["Cache-Control"] = "no-store"
    return answer
