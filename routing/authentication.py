"""Who is asking, for the REST part: keys in memory and the scopes they carry."""

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from routing.access import CrossSite, Principal, Scope
from routing.refusals import SENTENCES, Refused, not_ledger_owner
from routing.router import live


class BearerAuthentication(BaseAuthentication):
    """``Authorization: Bearer`` or ``x-api-key``, checked against the keys in memory."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        try:
            principal = live().ring.identify(request.META)
        except CrossSite:
            return None
        return None if principal is None else (principal, None)

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class HasScope(BasePermission):
    """The view's ``scopes``: holding one of them is enough. A view that names none is open to nobody."""

    def has_permission(self, request: Request, view: object) -> bool:
        if not isinstance(request.user, Principal):
            if live().ring.is_foreign(request.META):
                raise Refused(403, "cross_site", SENTENCES["cross_site"])
            if not live().owns_ledger:
                # Keys are read with the ledger's lock held, so here it is not known yet who is asking.
                raise not_ledger_owner()
            raise exceptions.NotAuthenticated
        scopes: tuple[Scope, ...] = getattr(view, "scopes", ())
        return request.user.may(*scopes)
