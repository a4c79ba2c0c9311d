"""The scopes that a page is about, as links and forms name them: ``?scope=chat&scope=chat/member-a``."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, QueryDict
from django.urls import reverse

from admission.identifiers import is_safe_id
from routing.console.fleet import ScopeView, TierCard, read_tier
from routing.router import Router
from routing.scopes import ScopeId
from routing.transitions import TransitionError

MAX_SCOPES: Final = 64
"""On one page."""


def parse_scope(text: str) -> ScopeId | None:
    """``tier`` or ``tier/member``; None for anything else."""
    tier_id, slash, member_id = text.partition("/")
    if not is_safe_id(tier_id) or (slash and not is_safe_id(member_id)):
        return None
    return ScopeId(tier_id, member_id or None)


def scopes_in(values: QueryDict) -> tuple[ScopeId, ...]:
    """The scopes that a query or form names, each once. Raises Http404 for none, too many or a bad one."""
    found: dict[ScopeId, None] = {}
    for text in values.getlist("scope"):
        scope = parse_scope(text)
        if scope is None:
            raise Http404
        found[scope] = None
    if not 1 <= len(found) <= MAX_SCOPES:
        raise Http404
    return tuple(found)


def requested(request: HttpRequest) -> tuple[ScopeId, ...]:
    """The scopes of a page's address, or of the form that was posted to it. Raises Http404."""
    return scopes_in(request.POST if request.method == "POST" else request.GET)


def look_up(router: Router, scopes: Iterable[ScopeId]) -> tuple[tuple[TierCard, ScopeView], ...]:
    """Each scope as it is now, with its tier. Raises Http404 for one that is not configured, TransitionError
    when this process has nothing to show."""
    cards: dict[str, TierCard] = {}
    views = []
    for scope in scopes:
        try:
            card = cards.get(scope.tier_id) or read_tier(router, scope.tier_id)
        except TransitionError as error:
            if error.status == 404:
                raise Http404 from None
            raise
        cards[scope.tier_id] = card
        view = next((each for each in (card.scope, *card.members) if each.id == scope), None)
        if view is None:
            raise Http404
        views.append((card, view))
    return tuple(views)


def address(name: str, scopes: Iterable[ScopeId]) -> str:
    """Of a page of the console about these scopes."""
    query = urlencode([("scope", str(scope)) for scope in scopes], safe="/")
    return f"{reverse(f'console:{name}')}?{query}"
