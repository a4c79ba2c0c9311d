"""Quiesce, drain and readmit: a page that says what will happen, then the service, then how it went."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from django import forms
from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect

from routing import transitions, wording
from routing.audit import Through
from routing.console import effects
from routing.console.fleet import ScopeView, TierCard
from routing.console.forms import REASONS, DrainForm, QuiesceForm, ReadmitForm
from routing.console.pages import VIEW_FLEET, Crumb, actor_of, crumb, page, refused, render
from routing.console.scopes import address, look_up, requested
from routing.models import AuditEntry
from routing.permissions import OPERATE_TIER
from routing.refusals import Refused
from routing.router import Router, live
from routing.scopes import ScopeId
from routing.transitions import TransitionError

RECENT_ENTRIES: Final = 8
MAX_NAMED: Final = 4
"""Scopes that a heading names."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one scope fared, in a sentence."""

    scope: ScopeId
    text: str
    was_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A scope on a confirmation page: as it is now, and what will happen to it."""

    card: TierCard
    scope: ScopeView
    effects: tuple[str, ...]


Do = Callable[[Router, ScopeId], str]
"""Carries a transition out; the sentence that tells of it. Raises Refused."""


@page(VIEW_FLEET)
def scopes(request: HttpRequest) -> HttpResponseBase:
    """Scopes as they are now, their drains, their evidence and what was last done to them."""
    return _scopes(request, "console/scopes.html")


@page(VIEW_FLEET)
def scopes_live(request: HttpRequest) -> HttpResponseBase:
    """The part of `scopes` that is read again every second."""
    return _scopes(request, "console/_scopes.html")


@page(VIEW_FLEET)
def leases_live(request: HttpRequest) -> HttpResponseBase:
    """State and running requests of scopes alone, beside a confirmation."""
    return _scopes(request, "console/_leases.html")


def _scopes(request: HttpRequest, template: str) -> HttpResponse:
    wanted = requested(request)
    try:
        found = look_up(live(), wanted)
    except Refused as refusal:
        return refused(request, refusal)
    context = {
        "views": [view for _, view in found],
        "offers": _offers([view for _, view in found], wanted),
        "entries": _recent(wanted),
        "live_url": address("scopes-live", wanted),
    }
    return render(request, template, _names(wanted), context, trail=_trail(wanted))


@page(OPERATE_TIER, "POST")
def quiesce(request: HttpRequest) -> HttpResponseBase:
    """Ask for a reason, then quiesce."""
    wanted = requested(request)
    form = QuiesceForm(request.POST if request.method == "POST" else None)

    def do(router: Router, scope: ScopeId) -> str:
        reason = form.cleaned_data["reason"]
        done = transitions.quiesce(
            router,
            scope.tier_id,
            scope.member_id,
            reason=reason,
            actor=actor_of(request),
            through=Through.CONSOLE,
        )
        before = "" if done.previous_reason is None else f" Until now the reason was {done.previous_reason}."
        return f"Quiesced {scope}, reason {reason}.{before}"

    return _confirm(request, "quiesce", wanted, form, do)


@page(OPERATE_TIER, "POST")
def drain(request: HttpRequest) -> HttpResponseBase:
    """Begin to drain; the page of the scopes then counts down."""
    wanted = requested(request)
    form = DrainForm(request.POST if request.method == "POST" else None)

    def do(router: Router, scope: ScopeId) -> str:
        transitions.drain(
            router,
            scope.tier_id,
            scope.member_id,
            timeout=form.cleaned_data["timeout"],
            actor=actor_of(request),
            through=Through.CONSOLE,
        )
        return f"The drain of {scope} has begun."

    return _confirm(request, "drain", wanted, form, do)


@page(OPERATE_TIER, "POST")
def readmit(request: HttpRequest) -> HttpResponseBase:
    """Verify, then open."""
    wanted = requested(request)
    form = ReadmitForm(request.POST if request.method == "POST" else None)

    def do(router: Router, scope: ScopeId) -> str:
        result = transitions.readmit(
            router,
            scope.tier_id,
            scope.member_id,
            accept_unverified=form.cleaned_data["accept_unverified"],
            actor=actor_of(request),
            through=Through.CONSOLE,
        )
        return f"Readmitted {scope}: {wording.readmit(str(result['reason']))}."

    return _confirm(request, "readmit", wanted, form, do)


def _confirm(
    request: HttpRequest, verb: str, wanted: Sequence[ScopeId], form: forms.Form, do: Do
) -> HttpResponseBase:
    """GET: say what will happen. POST: do it to each scope, and go to their page when nothing was refused."""
    router = live()
    outcomes: list[Outcome] = []
    try:
        look_up(router, wanted)
        if request.method == "POST" and form.is_valid():
            outcomes = [_carry_out(router, scope, do) for scope in wanted]
            if not any(outcome.was_refused for outcome in outcomes):
                for outcome in outcomes:
                    messages.success(request, outcome.text)
                return redirect(address("scopes", wanted))
        candidates = list(_candidates(router, verb, wanted))
    except Refused as refusal:
        return refused(request, refusal)
    context = {
        "verb": verb,
        "scopes": wanted,
        "candidates": candidates,
        "views": [candidate.scope for candidate in candidates],
        "form": form,
        "outcomes": outcomes,
        "live_url": address("leases-live", wanted),
        "reasons": REASONS,
        "submit_url": address(verb, wanted),
        "back_url": address("scopes", wanted),
        "unverifiable": any(_is_unverifiable(router, scope) for scope in wanted),
    }
    trail = [*_trail(wanted), (_names(wanted), address("scopes", wanted))]
    title = f"{verb.capitalize()} {_names(wanted)}"
    return render(request, "console/transition.html", title, context, trail=trail, here=verb.capitalize())


def _carry_out(router: Router, scope: ScopeId, do: Do) -> Outcome:
    try:
        return Outcome(scope, do(router, scope))
    except TransitionError as error:
        result = error.extra.get("result")
        why = result.get("reason") if isinstance(result, dict) else None
        text = f"{scope}: {error}"
        if error.code == "readmit_refused" and isinstance(why, str):
            text = f"{scope} stays quiesced: {wording.readmit(why)}."
        return Outcome(scope, text, was_refused=True)


def _candidates(router: Router, verb: str, wanted: Sequence[ScopeId]) -> Iterator[Candidate]:
    status = transitions.active_config(router).router.exhaustion_status
    for card, scope in look_up(router, wanted):
        if verb == "quiesce":
            told = effects.of_quiesce(card, scope, chosen=wanted, status=status)
        elif verb == "drain":
            told = effects.of_drain(scope)
        else:
            told = effects.of_readmit(card, scope)
        yield Candidate(card=card, scope=scope, effects=tuple(told))


def _is_unverifiable(router: Router, scope: ScopeId) -> bool:
    tier = transitions.resolve(router, scope.tier_id, scope.member_id)
    return not (tier.model_identity or tier.metadata_source == "upstream")


def _recent(wanted: Sequence[ScopeId]) -> "list[AuditEntry]":
    about = Q()
    for scope in wanted:
        about |= Q(tier_id=scope.tier_id, member_id=scope.member_id or "")
    return list(AuditEntry.objects.filter(about)[:RECENT_ENTRIES])


def _offers(views: Sequence[ScopeView], wanted: Sequence[ScopeId]) -> list[tuple[str, str]]:
    """What can be done to at least one of the scopes as it is now: a verb and the address of its page."""
    held = [view for view in views if view.hold is not None]
    verbs = {
        "quiesce": len(held) < len(views),
        "drain": any(view.active and not view.is_draining_now for view in held),
        "readmit": bool(held),
    }
    return [(verb, address(verb, wanted)) for verb, fits in verbs.items() if fits]


def _names(wanted: Sequence[ScopeId]) -> str:
    """The scopes in a heading; more than a few of them are counted."""
    if len(wanted) > MAX_NAMED:
        return wording.count(len(wanted), "scope")
    return wording.listed([str(scope) for scope in wanted])


def _trail(wanted: Sequence[ScopeId]) -> list[Crumb]:
    """The pages above one about these scopes: the fleet, and the tier of a single member."""
    trail = [crumb("Fleet", "console:fleet")]
    if len(wanted) == 1 and wanted[0].member_id is not None:
        tier = ScopeId(wanted[0].tier_id)
        trail.append((str(tier), address("scopes", [tier])))
    return trail
