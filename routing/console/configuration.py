"""Documents and rows on their way to being served: import, publish, compare, activate, load back."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import NoReverseMatch, reverse

from routing import activation, audit, publishing, wording, working_copy
from routing.activation import Step
from routing.activation_plan import ScopeChange
from routing.audit import Through
from routing.console.forms import ActivateForm, ImportForm
from routing.console.pages import EDIT_WORKING_COPY, VIEW_SNAPSHOTS, actor_of, crumb, page, refused, render
from routing.document_faults import DOCUMENTS, DocumentFault, DocumentName, document_faults
from routing.models import ActiveSnapshot, RouterSnapshot
from routing.orders import DEFAULT_DRAIN_TIMEOUT
from routing.permissions import ACTIVATE_SNAPSHOT
from routing.probes import PASSED
from routing.publishing import DOCUMENT_COLUMNS, Difference
from routing.refusals import Refused
from routing.router import Router, live
from routing.scopes import ScopeId
from routing.snapshot import SnapshotError, ValidatedSnapshot, validate_snapshot
from routing.working_copy import Row, WorkingCopy, WorkingCopyFault

MAX_FAULTS: Final = 200
"""Faults on one page; a document of a megabyte may hold a hundred times as many."""

MAX_DIFF_LINES: Final = 2_000
RECENT_SNAPSHOTS: Final = 10
DEMO_BASE_PORT: Final = 8101
"""Where the demo's engines listen unless they are told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """One fault and its place: a line of a document, or a row of the working copy."""

    document: str
    path: str
    message: str
    line: int | None = None
    row: str | None = None
    row_url: str | None = None
    column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    """One line of a diff; ``kind`` is added, removed, place or same."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """What activating does to one scope."""

    change: ScopeChange
    at_rest: bool

    @property
    def scope(self) -> str:
        return str(self.change.scope)

    @property
    def keys(self) -> str:
        return ", ".join(self.change.keys)


# Overview ----------------------------------------------------------------------------------------------


@page(VIEW_SNAPSHOTS)
def overview(request: HttpRequest) -> HttpResponseBase:
    """What is active, whether the working copy differs from it, and the newest captures."""
    copy = WorkingCopy.read()
    pointer = ActiveSnapshot.objects.select_related("snapshot").defer(*_deferred("snapshot__")).first()
    context = {
        "pointer": pointer,
        "snapshots": RouterSnapshot.objects.defer(*DOCUMENT_COLUMNS)[:RECENT_SNAPSHOTS],
        "active_id": None if pointer is None else pointer.snapshot_id,
        "copy_is_empty": copy.is_empty,
        "differs": copy.differs_from(active_snapshot()),
        "faults": len(copy.faults()),
        "job": activation.latest_job(live()),
    }
    return render(request, "console/configuration.html", "Configuration", context)


# In: files and the working copy ------------------------------------------------------------------------


@page(ACTIVATE_SNAPSHOT, "POST")
def import_documents(request: HttpRequest) -> HttpResponseBase:
    """Take documents from files: their faults, or the page of the capture."""
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
    if not form.is_valid():
        return _render(request, "console/import.html", "Import a TOML file", {"form": form})
    names = {name: str(getattr(upload, "name", name)) for name, upload in request.FILES.items()}
    documents: tuple[bytes, bytes | None, bytes | None] = (
        form.cleaned_data["config"],
        form.cleaned_data["topology"],
        form.cleaned_data["overlay"],
    )
    found = list(itertools.islice(document_faults(*documents), MAX_FAULTS + 1))
    if found:
        lines = [_fault_line(fault, names) for fault in found[:MAX_FAULTS]]
        context = {"form": form, "faults": lines, "more": len(found) > MAX_FAULTS}
        return _render(request, "console/import.html", "Import a TOML file", context)
    return _uploaded(request, documents)


@page(ACTIVATE_SNAPSHOT, "POST")
def publish(request: HttpRequest) -> HttpResponseBase:
    """The working copy's faults, or how it differs from what is active; POST captures it."""
    copy = WorkingCopy.read()
    title = "Publish the working copy"
    if copy.is_empty:
        return _render(request, "console/publish.html", title, {"is_empty": True})
    found = copy.faults()
    if found:
        context: dict[str, object] = {
            "faults": [_row_fault(fault) for fault in found[:MAX_FAULTS]],
            "more": len(found) > MAX_FAULTS,
        }
        return _render(request, "console/publish.html", title, context)
    if request.method == "POST":
        return _captured(
            request, lambda: working_copy.publish(actor=actor_of(request), through=Through.CONSOLE)
        )
    candidate = validate_snapshot(*copy.render(), None)
    difference = publishing.diff(active_snapshot(), candidate)
    return _render(request, "console/publish.html", title, _difference(difference))


@page(ACTIVATE_SNAPSHOT, "POST")
def demo(request: HttpRequest) -> HttpResponseBase:
    """Capture the demo's documents."""
    from demo.fleet import render as demo_documents

    if request.method != "POST":
        return redirect("console:guide")
    return _uploaded(request, (*demo_documents(DEMO_BASE_PORT), None))


def _uploaded(request: HttpRequest, documents: tuple[bytes, bytes | None, bytes | None]) -> HttpResponse:
    return _captured(
        request,
        lambda: publishing.capture(
            *documents,
            source=RouterSnapshot.Source.UPLOAD,
            actor=actor_of(request),
            through=Through.CONSOLE,
        ),
    )


def _captured(request: HttpRequest, capture: Callable[[], tuple[RouterSnapshot, bool]]) -> HttpResponse:
    """To the page of the capture."""
    try:
        row, is_new = capture()
    except SnapshotError as error:
        # Between the look at its faults and now the working copy was changed.
        return refused(request, Refused(422, error.code, str(error)))
    if not is_new:
        messages.info(request, f"These exact bytes are stored already, as snapshot {row.pk}.")
    return redirect("console:snapshot", row.pk)


# A capture ---------------------------------------------------------------------------------------------


@page(VIEW_SNAPSHOTS)
def snapshot(request: HttpRequest, snapshot_id: int) -> HttpResponseBase:
    """A capture: what it is, how it differs from what is active, and what activating it would do."""
    row = _row(snapshot_id)
    return _snapshot_page(request, row, ActivateForm(initial={"drain_timeout": int(DEFAULT_DRAIN_TIMEOUT)}))


@page(VIEW_SNAPSHOTS)
def document(request: HttpRequest, snapshot_id: int, name: DocumentName) -> HttpResponseBase:
    """One document of a capture, byte for byte: to look at, or with ``?download`` as a file."""
    data = dict(zip(DOCUMENTS, publishing.captured(_row(snapshot_id)), strict=True))[name]
    if data is None:
        raise Http404
    response = HttpResponse(data, content_type="text/plain; charset=utf-8")
    filename = f"snapshot-{snapshot_id}-{name}.toml"
    disposition = "attachment" if "download" in request.GET else "inline"
    response["Content-Disposition"] = f'{disposition}; filename="{filename}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


@page(ACTIVATE_SNAPSHOT, "POST")
def activate(request: HttpRequest, snapshot_id: int) -> HttpResponseBase:
    """Begin to activate a capture; the page of the activation tells how it goes on."""
    row = _row(snapshot_id)
    if request.method != "POST":
        return redirect("console:snapshot", row.pk)
    form = ActivateForm(request.POST)
    if not form.is_valid():
        return _snapshot_page(request, row, form)
    timeout = form.cleaned_data["drain_timeout"] if "drain" in request.POST else None
    if "drain" in request.POST and timeout is None:
        timeout = DEFAULT_DRAIN_TIMEOUT
    try:
        activation.start(live(), row, actor=actor_of(request), through=Through.CONSOLE, drain_timeout=timeout)
    except Refused as refusal:
        return refused(request, refusal)
    return redirect("console:activation")


@page(EDIT_WORKING_COPY, "POST")
def load(request: HttpRequest, snapshot_id: int) -> HttpResponseBase:
    """Replace the working copy by a capture; asks once more when that would lose changes."""
    row = _row(snapshot_id)
    if request.method != "POST":
        return redirect("console:snapshot", row.pk)
    copy = WorkingCopy.read()
    unpublished = not copy.is_empty and copy.differs_from(active_snapshot())
    if unpublished and "confirm" not in request.POST:
        title = f"Load snapshot {row.pk}"
        return _render(request, "console/load.html", title, {"row": row}, snapshot_id=row.pk)
    try:
        with transaction.atomic():
            working_copy.load_snapshot_into_working_copy(row)
            audit.record(
                actor=actor_of(request),
                through=Through.CONSOLE,
                action="load_working_copy",
                subject=f"snapshot {row.pk}",
                result="replaced",
            )
    except SnapshotError as error:
        return refused(request, Refused(422, error.code, str(error)))
    messages.success(request, f"The working copy is now what snapshot {row.pk} says.")
    return redirect("console:configuration")


def _snapshot_page(request: HttpRequest, row: RouterSnapshot, form: ActivateForm) -> HttpResponse:
    router = live()
    context: dict[str, object] = {"row": row, "form": form}
    context["documents"] = [
        (name, len(data), data.decode("utf-8", "replace"))
        for name, data in zip(DOCUMENTS, publishing.captured(row), strict=True)
        if data is not None
    ]
    context["is_active"] = row.pk == publishing.active_id(router)
    try:
        candidate = publishing.load(row)
        preview = activation.preview(router, row)
    except SnapshotError as error:
        context["invalid"] = error
    except Refused as refusal:
        context["refusal"] = refusal
    else:
        context |= _difference(publishing.diff(active_snapshot(), candidate), preview.not_at_rest)
        context["not_at_rest"] = [str(scope) for scope in preview.not_at_rest]
    return _render(request, "console/snapshot.html", f"Snapshot {row.pk}", context)


# Activation --------------------------------------------------------------------------------------------


@page(VIEW_SNAPSHOTS)
def activation_page(request: HttpRequest) -> HttpResponseBase:
    """The activation that was started last, step by step."""
    return _activation(request, "console/activation.html")


@page(VIEW_SNAPSHOTS)
def activation_live(request: HttpRequest) -> HttpResponseBase:
    """The part of `activation_page` that changes."""
    return _activation(request, "console/_activation.html")


_BAD_OUTCOMES: Final = frozenset({"timed_out", "reopened"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One step in words."""

    what: str
    outcome: str
    went_well: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A scope that an activation waits for."""

    scope: str
    active: int


def _activation(request: HttpRequest, template: str) -> HttpResponse:
    router = live()
    job = activation.latest_job(router)
    if job is None:
        return redirect("console:configuration")
    outcome = job.outcome
    refusal = outcome if isinstance(outcome, Refused) else None
    scopes = refusal.extra.get("scopes") if refusal is not None else None
    context = {
        "job": job,
        "steps": [_step_line(step) for step in job.steps],
        "is_running": outcome is None,
        "refusal": refusal,
        "at_fault": [_fault_of_scope(entry) for entry in scopes] if isinstance(scopes, list) else [],
        "waiting": list(_waiting(router, job)) if outcome is None else [],
    }
    title = f"Activation of snapshot {job.snapshot_id}"
    return _render(request, template, title, context, snapshot_id=job.snapshot_id)


def _step_line(step: Step) -> StepLine:
    is_probed = step.name == "verify" and step.outcome != "no_open_member"
    return StepLine(
        what=wording.step(step.name, "" if step.scope is None else str(step.scope)),
        outcome=wording.outcome(step.outcome),
        went_well=(
            step.outcome in PASSED
            if is_probed
            else step.outcome not in _BAD_OUTCOMES and step.name != "restore"
        ),
    )


def _waiting(router: Router, job: activation.Job) -> Iterator[Waiting]:
    """What a running activation has still to bring to rest."""
    if any(step.name == "activate" for step in job.steps):
        return
    row = RouterSnapshot.objects.filter(pk=job.snapshot_id).first()
    if row is None or not router.owns_ledger:
        return
    readings = {reading.tier_id: reading for reading in router.ledger.snapshots()} if router.active else {}
    for scope in activation.preview(router, row).not_at_rest:
        reading = readings.get(scope.tier_id)
        if reading is not None:
            active = reading.active_requests
            if scope.member_id is not None:
                active = dict(reading.member_active_requests).get(scope.member_id, 0)
            yield Waiting(scope=str(scope), active=active)


def _fault_of_scope(entry: object) -> str:
    if not isinstance(entry, dict):
        return ""
    scope = ScopeId(str(entry.get("tier_id")), entry.get("member_id"))
    if "reason" in entry:
        return f"{scope}: {wording.readiness(str(entry['reason']))}."
    running = wording.count(int(entry.get("active_requests", 0)), "request is", "requests are")
    return f"{scope} is {entry.get('state')}, and {running} running there."


# Parts -------------------------------------------------------------------------------------------------


def _render(
    request: HttpRequest,
    template: str,
    title: str,
    context: Mapping[str, object],
    *,
    snapshot_id: int | None = None,
) -> HttpResponse:
    """A page below the overview, or below that of a snapshot."""
    trail = [crumb("Configuration", "console:configuration")]
    if snapshot_id is not None:
        trail.append(crumb(f"Snapshot {snapshot_id}", "console:snapshot", snapshot_id))
    return render(request, template, title, context, trail=trail)


def active_snapshot() -> ValidatedSnapshot | None:
    """What is served here, else what the pointer names; None in an empty router."""
    try:
        active = live().active
    except RuntimeError:
        active = None
    if active is not None:
        return active.snapshot
    row = publishing.active_row()
    try:
        return None if row is None else publishing.load(row)
    except SnapshotError:
        return None


def _row(snapshot_id: int) -> RouterSnapshot:
    row = RouterSnapshot.objects.filter(pk=snapshot_id).first() if snapshot_id < 2**63 else None
    if row is None:
        raise Http404
    return row


def _deferred(prefix: str) -> list[str]:
    return [f"{prefix}{column}" for column in DOCUMENT_COLUMNS]


def _difference(difference: Difference, not_at_rest: Iterable[ScopeId] = ()) -> dict[str, object]:
    waiting = frozenset(not_at_rest)
    plan = difference.plan
    return {
        "diffs": [
            (name, list(_diff_lines(lines[:MAX_DIFF_LINES])), len(lines) > MAX_DIFF_LINES)
            for name, lines in (
                ("Router configuration", difference.config_lines),
                ("Topology", difference.topology_lines),
            )
            if lines
        ],
        "is_same": difference.is_empty,
        "changes": [
            PlannedChange(change=change, at_rest=change.scope not in waiting) for change in plan.changes
        ],
        "settings": plan.settings,
        "must_drain": [str(scope) for scope in plan.must_drain],
    }


def _diff_lines(lines: Iterable[str]) -> Iterator[DiffLine]:
    kinds = {"+": "added", "-": "removed", "@": "place"}
    for line in lines:
        if not line.startswith(("+++", "---")):
            yield DiffLine(kind=kinds.get(line[:1], "same"), text=line)


def _fault_line(found: DocumentFault, names: Mapping[str, str]) -> FaultLine:
    """A fault with the file that holds it."""
    return FaultLine(
        document=names.get(found.document, found.document),
        path=found.fault.path,
        message=found.fault.message,
        line=found.line,
    )


def _row_fault(found: WorkingCopyFault) -> FaultLine:
    fault = found.fault.fault
    return FaultLine(
        document=found.fault.document,
        path=fault.path,
        message=fault.message,
        row=None if found.row is None else _row_text(found.row),
        row_url=None if found.row is None else _row_url(found.row),
        column=found.column,
    )


def _row_text(row: Row) -> str:
    kind, name = str(row._meta.verbose_name), str(row)
    return name if name == kind else f"{kind} {name}"


def _row_url(row: Row) -> str | None:
    """Where a row is edited; for one that was never saved, where it can be."""
    options = row._meta
    try:
        if row._state.adding:
            return reverse(f"admin:{options.app_label}_{options.model_name}_changelist")
        return reverse(f"admin:{options.app_label}_{options.model_name}_change", args=[row.pk])
    except NoReverseMatch:
        return None
