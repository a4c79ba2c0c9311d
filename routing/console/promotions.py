"""Promotions: begin one after seeing what it does, watch its journal, resume or take back a stopped one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect

from routing import promotion, wording
from routing.audit import Through
from routing.console.forms import PromoteForm
from routing.console.pages import VIEW_SNAPSHOTS, Crumb, actor_of, crumb, page, refused, render
from routing.models import Promotion
from routing.permissions import ACTIVATE_SNAPSHOT
from routing.refusals import SENTENCES, Refused
from routing.router import Router, live
from routing.wording import count

TITLE: Final = "Promotions"
LISTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalView:
    """One promotion, its steps in words; ``why`` tells the refusal that led to its outcome."""

    row: Promotion
    state: str
    why: str | None
    next_step: str | None
    steps: tuple[tuple[str, str], ...]


@page(VIEW_SNAPSHOTS)
def promotions(request: HttpRequest) -> HttpResponseBase:
    """The newest promotions, and what may be done next."""
    router = live()
    context = {"form": _form(router), **_about(router)}
    return _overview(request, context)


@page(VIEW_SNAPSHOTS)
def promotions_live(request: HttpRequest) -> HttpResponseBase:
    """The part of `promotions` that is read again every second."""
    return render(request, "console/_promotions.html", TITLE, _about(live()))


@page(ACTIVATE_SNAPSHOT, "POST")
def promote(request: HttpRequest) -> HttpResponseBase:
    """Say what a promotion does; once that is confirmed, begin it."""
    if request.method != "POST":
        return redirect("console:promotions")
    router = live()
    form = _form(router, request)
    if not form.is_valid():
        return _overview(request, {"form": form, **_about(router)})
    tier_id, resource_id = form.cleaned_data["tier"], form.cleaned_data["resource"]
    timeout: float = form.cleaned_data["drain_timeout"]
    try:
        found = promotion.preview(router, tier_id, resource_id)
    except Refused as refusal:
        return refused(request, refusal)
    if "confirm" not in request.POST:
        running = router.ledger.snapshot(tier_id).active_requests if found.not_at_rest else 0
        context = {
            "form": form,
            "tier": tier_id,
            "resource": resource_id,
            "effects": _effects(running, timeout),
        }
        title = f"Promote {tier_id} to {resource_id}"
        trail = [*_above(), crumb(TITLE, "console:promotions")]
        return render(request, "console/promote.html", title, context, trail=trail)
    actor = actor_of(request)
    promotion.in_background(
        lambda: promotion.promote(
            router, tier_id, resource_id, actor=actor, through=Through.CONSOLE, drain_timeout=timeout
        )
    )
    return redirect("console:promotions")


@page(ACTIVATE_SNAPSHOT, "POST")
def again(request: HttpRequest) -> HttpResponseBase:
    """Resume the promotion that was stopped, or take it back."""
    verb = _VERBS.get(request.POST.get("verb", ""))
    if verb is None:
        return redirect("console:promotions")
    router, actor = live(), actor_of(request)
    try:
        promotion.check(router)
    except Refused as refusal:
        return refused(request, refusal)
    promotion.in_background(lambda: verb(router, actor=actor, through=Through.CONSOLE))
    return redirect("console:promotions")


_VERBS: Final[dict[str, Callable[..., Promotion]]] = {
    "resume": promotion.resume,
    "roll_back": promotion.roll_back,
}


def _overview(request: HttpRequest, context: Mapping[str, object]) -> HttpResponse:
    return render(request, "console/promotions.html", TITLE, context, trail=_above())


def _above() -> list[Crumb]:
    return [crumb("Configuration", "console:configuration")]


def _about(router: Router) -> dict[str, object]:
    rows = list(Promotion.objects.all()[:LISTED])
    stopped = promotion.stopped(router)
    views = []
    for row in rows:
        is_stopped = stopped is not None and row.pk == stopped.promotion.pk
        state = row.get_outcome_display() if row.outcome else "stopped" if is_stopped else "running"
        steps = tuple(
            (wording.step(step["step"], row.tier_id), wording.outcome(step["outcome"])) for step in row.steps
        )
        why = SENTENCES.get(row.code, wording.sentence(wording.plain(row.code))) or None
        next_step = stopped.next_step if stopped is not None and is_stopped else None
        views.append(JournalView(row=row, state=state, why=why, next_step=next_step, steps=steps))
    return {"journals": views}


def _form(router: Router, request: HttpRequest | None = None) -> PromoteForm:
    """A form over what the active configuration can move, and where to."""
    active = router.active
    tiers: list[str] = []
    resources: list[str] = []
    if active is not None:
        for tier in active.config.tiers:
            if not tier.is_replica and (tier.model_identity or tier.metadata_source == "upstream"):
                tiers.append(tier.id)
        members = {member.resource_id for tier in active.config.tiers for member in tier.replicas}
        topology = active.snapshot.topology
        for resource in () if topology is None else topology.resources:
            if resource.endpoint is not None and resource.id not in members:
                resources.append(resource.id)
    return PromoteForm(None if request is None else request.POST, tiers=tiers, resources=resources)


def _effects(running: int, timeout: float) -> tuple[str, ...]:
    return (
        f"It stops taking new requests, and waits for {count(running, 'running request', 'running requests')}"
        f" to end, {timeout:g} seconds at most; if one is left then, it opens again and nothing has changed.",
        "Then it is switched, its exact identity is verified at the new place, and it is readmitted.",
        "If the identity is another, it is taken back to its old place at once.",
        "Other tiers and their running requests do not notice.",
    )
