"""REST of promotions: list them, preview one, carry it out, resume it, roll it back."""

from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

from rest_framework.request import Request
from rest_framework.response import Response

from admission.identifiers import is_safe_id
from routing import activation, promotion
from routing.access import Scope
from routing.api import ManagementView, actor_of
from routing.audit import Through
from routing.models import Promotion
from routing.openapi import choice, closed, many, operation, query, ref
from routing.orders import DEFAULT_DRAIN_TIMEOUT, OrderError, is_confirmed, is_wait
from routing.refusals import Refused
from routing.router import Router, live

Action = Literal["promote", "resume", "rollback"]

FIELDS: Final = frozenset({"action", "tier_id", "resource_id", "drain_timeout", "confirm", "dry_run"})
MAX_LISTED: Final = 100
DEFAULT_LISTED: Final = 20


class PromotionsView(ManagementView):
    """``/v1/admin/promotions``: the promotions, newest first; to preview or carry out one."""

    scopes = (Scope.CONFIGURE,)
    parameters = frozenset({"limit"})
    action = "promote"

    @operation(
        summary="Promotions, newest first",
        parameters=[
            query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}, "How many at most.")
        ],
        answers={200: closed({"object": choice("list"), "data": many(ref("Promotion"))})},
        tag="promotions",
    )
    def get(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit"))
        rows, router = Promotion.objects.all()[:limit], live()
        return Response({"object": "list", "data": [promotion.describe(router, row) for row in rows]})

    @operation(
        summary="Preview, carry out, resume or roll back a promotion",
        body={"application/json": ref("PromotionOrder")},
        answers={200: {"anyOf": [ref("PromotionDone"), ref("PromotionPreview")]}},
        refusals=(404, 409, 413, 415, 422, 500),
        tag="promotions",
    )
    def post(self, request: Request) -> Response:
        if request.query_params:
            raise _malformed(None)
        order = parse_order(request.data)
        router = live()
        if not order.applies:
            about = _preview(router, order)
            return Response({"applied": False, "dry_run": True, "action": order.action, **about})
        # There is one promotion at a time, and it may wait for an hour: the place is for who works.
        self.leave()
        row = _carry_out(router, order, actor_of(request))
        about = {"promotion": promotion.describe(router, row)}
        return Response({"applied": True, "action": order.action, **about})


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionOrder:
    """A well-formed request; it is a preview unless it says ``confirm: true`` and not ``dry_run: true``.

    A promotion has a tier and a resource, a resumption or rollback neither.
    """

    action: Action
    tier_id: str = ""
    resource_id: str = ""
    drain_timeout: float | None = None
    applies: bool = False


def parse_order(body: object) -> PromotionOrder:
    """Check a decoded body. Raises Refused for unknown fields and values of another type or out of bounds."""
    if type(body) is not dict or body.keys() - FIELDS:
        raise _malformed(None)
    action = body.get("action", "promote")
    if not _is_action(action):
        raise _malformed("action")
    place: dict[str, str] = {}
    for field in ("tier_id", "resource_id"):
        value = body.get(field)
        if action == "promote":
            if not is_safe_id(value):
                raise _malformed(field)
            place[field] = value
        elif field in body:
            raise _malformed(field)
    try:
        applies = is_confirmed(body, dry_run=False)
    except OrderError as error:
        raise _malformed(error.field) from None
    return PromotionOrder(
        action=action,
        **place,
        drain_timeout=_drain_timeout(body),
        applies=applies,
    )


def _is_action(value: object) -> TypeGuard[Action]:
    return type(value) is str and value in ("promote", "resume", "rollback")


def _drain_timeout(body: dict[str, object]) -> float | None:
    if "drain_timeout" not in body:
        return None
    timeout = body["drain_timeout"]
    if not is_wait(timeout):
        raise _malformed("drain_timeout")
    return float(timeout)


def _preview(router: Router, order: PromotionOrder) -> dict[str, object]:
    if order.action != "promote":
        return {"promotion": promotion.describe(router, promotion.check(router))}
    found = promotion.preview(router, order.tier_id, order.resource_id)
    return {
        "tier_id": order.tier_id,
        "resource_id": order.resource_id,
        **activation.preview_json(found),
    }


def _carry_out(router: Router, order: PromotionOrder, actor: str) -> Promotion:
    timeout, through = order.drain_timeout, Through.REST
    if order.action == "promote":
        return promotion.promote(
            router,
            order.tier_id,
            order.resource_id,
            actor=actor,
            through=through,
            drain_timeout=DEFAULT_DRAIN_TIMEOUT if timeout is None else timeout,
        )
    verb = promotion.resume if order.action == "resume" else promotion.roll_back
    return verb(router, actor=actor, through=through, drain_timeout=timeout)


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LISTED
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= MAX_LISTED):
        raise _malformed("limit")
    return int(text)


def _malformed(field: str | None) -> Refused:
    return Refused(400, "invalid_request", "The request is not valid.", field=field)
