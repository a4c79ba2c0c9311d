"""Pages about what was decided: why a request is refused or served now, and one decision in words."""

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from admission.identifiers import is_correlation_id, normalise_alias
from admission.replica_scheduler import ReplicaScore
from routing.console.pages import VIEW_FLEET, crumb, page, render
from routing.projections import UnknownModelError
from routing.router import live
from telemetry import process
from telemetry.explain import ModelExplanation, RouterState, explain_model, explain_record
from telemetry.models import DecisionEntry

VIEW_DECISIONS: Final = "telemetry.view_decisionentry"
MAX_FOUND: Final = 20
"""Decisions of one request id that are listed: ids are the callers', and may come again."""


@page(VIEW_FLEET)
def explain(request: HttpRequest) -> HttpResponseBase:
    """For ``?model=`` the gates and scopes on the way of a request, now; for ``?request_id=`` its records."""
    alias = normalise_alias(request.GET.get("model", ""))
    request_id = request.GET.get("request_id", "").strip()
    context: dict[str, object] = {"alias": alias, "request_id": request_id, "aliases": _aliases()}
    if alias:
        context["explanation"] = _explained(alias)
    if request_id:
        may_look = request.user.has_perm(VIEW_DECISIONS)
        context["may_look"] = may_look
        context["entries"] = _entries(request_id) if may_look else ()
    return render(request, "console/explain.html", "Why is it refused?", context)


def decision_page(request: HttpRequest, entry: DecisionEntry, context: dict[str, object]) -> HttpResponse:
    """One decision in words and in a table, with what the record holds and no more."""
    record = entry.as_record()
    explanation = explain_record(record)
    scores = explanation.candidates
    rows = [_score_row(score, scores[0]) for score in scores]
    return render(
        request,
        "console/decision.html",
        f"Decision {entry.pk}",
        {
            **context,
            "entry": entry,
            "explanation": explanation,
            "scores": rows,
            "took": entry.latency_ms / 1000,
        },
        trail=[crumb("Decisions", "admin:telemetry_decisionentry_changelist")],
    )


def _score_row(score: ReplicaScore, winner: ReplicaScore) -> dict[str, object]:
    return {
        "score": score,
        "ratio_percent": round(100 * score.local_active / score.local_capacity, 1),
        "pressure_percent": None
        if score.upstream_pressure_ppm is None
        else score.upstream_pressure_ppm / 10_000,
        "won": score is winner,
    }


def _aliases() -> list[str]:
    active = live().active
    return [] if active is None else list(active.config.model_routes)


def _explained(alias: str) -> ModelExplanation | None:
    places = process.evidence().server.places
    state = RouterState.of(live(), places=places() if places is not None else None)
    if state is None:
        return None
    try:
        return explain_model(state, alias)
    except UnknownModelError:
        return None


def _entries(request_id: str) -> list[tuple[DecisionEntry, str]]:
    """The stored decisions of a request id, newest first, each with what became of it."""
    if not is_correlation_id(request_id):
        return []
    found = DecisionEntry.objects.filter(request_id=request_id)[:MAX_FOUND]
    return [(entry, explain_record(entry.as_record()).summary) for entry in found]
