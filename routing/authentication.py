"""Who is asking, for the REST part: keys in memory and the scopes they carry."""

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from routing.access import Principal, Scope, presented_secret
from routing.refusals import not_ledger_owner
from routing.router import live


class BearerAuthentication(BaseAuthentication):
    """``Authorization: Bearer`` or ``x-api-key``, checked against the keys in memory."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        principal = live().ring.verify(
            presented_secret(request.META.get("HTTP_AUTHORIZATION"), request.META.get("HTTP_X_API_KEY"))
        )
        return None if principal is None else (principal, None)

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class HasScope(BasePermission):
    """The view's ``scopes``: holding one of them is enough. A view that names none is open to nobody."""

    def has_permission(self, request: Request, view: object) -> bool:
        if not isinstance(request.user, Principal):
            if not live().owns_ledger:
                # Keys are read with the ledger's lock held, so here it is not known yet who is asking.
                raise not_ledger_owner()
            raise exceptions.NotAuthenticated
        scopes: tuple[Scope, ...] = getattr(view, "scopes", ())
        return request.user.may(*scopes)
