"""REST of snapshots: list, capture, exact bytes, activate.

A body carries up to three documents, as files of a form or as base64 in JSON. What is captured are exactly
those bytes, and with ``dry_run`` nothing is. What is wrong with them is told in full, since only who may
configure gets here.
"""

import base64
import binascii
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import django.db
from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from routing import activation, publishing
from routing.access import Scope
from routing.api import ManagementView, StrictJSONParser, actor_of
from routing.audit import Through
from routing.document_faults import DOCUMENTS, document_faults
from routing.documents import MAX_DOCUMENT_BYTES
from routing.models import RouterSnapshot
from routing.openapi import choice, closed, many, operation, query, ref
from routing.orders import OrderError, is_confirmed, is_wait
from routing.publishing import DOCUMENT_COLUMNS
from routing.refusals import SENTENCES, Refused, not_ledger_owner
from routing.router import live
from routing.snapshot import SnapshotError, validate_snapshot

MAX_UPLOAD_BYTES: Final = 5 * MAX_DOCUMENT_BYTES
"""Three documents, each a byte over its limit (to be told so), in base64 with what goes around them."""

MAX_FAULTS: Final = 1000
"""Faults that one answer lists; a document of a megabyte may hold a hundred times as many."""

MAX_LISTED: Final = 500
DEFAULT_LISTED: Final = 100


class UploadParser(StrictJSONParser):
    """JSON as large as three documents in base64."""

    max_bytes = MAX_UPLOAD_BYTES


class SnapshotsView(ManagementView):
    """``/v1/admin/snapshots``: the captures, newest first; to capture and validate one more."""

    scopes = (Scope.CONFIGURE,)
    parameters = frozenset({"limit", "before"})
    parser_classes = (UploadParser, MultiPartParser)
    action = "capture"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        length = request.META.get("CONTENT_LENGTH") or "0"
        if not length.isdigit() or int(length) > MAX_UPLOAD_BYTES:
            raise Refused(413, "request_too_large", "The request body is too large.")

    @operation(
        summary="Captures, newest first",
        parameters=[
            query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}, "How many at most."),
            query("before", {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}, "Older than this id."),
        ],
        answers={200: closed({"object": choice("list"), "data": many(ref("Snapshot"))})},
        operation_id="admin_snapshots_list",
        tag="snapshots",
    )
    def get(self, request: Request) -> Response:
        limit = _number(request, "limit", default=DEFAULT_LISTED, most=MAX_LISTED)
        before = _number(request, "before", default=None, most=2**63 - 1)
        rows = RouterSnapshot.objects.defer(*DOCUMENT_COLUMNS)
        if before is not None:
            rows = rows.filter(pk__lt=before)
        active_id = publishing.active_id(live())
        return Response({"object": "list", "data": [describe(row, active_id) for row in rows[:limit]]})

    @operation(
        summary="Capture and validate documents, or say what activating them would change",
        body={"application/json": ref("SnapshotUpload"), "multipart/form-data": ref("SnapshotUpload")},
        answers={200: {"anyOf": [ref("Snapshot"), ref("SnapshotPreview")]}, 201: ref("Snapshot")},
        refusals=(413, 415, 422),
        tag="snapshots",
    )
    def post(self, request: Request) -> Response:
        if request.query_params:
            raise _malformed(None)
        if not live().owns_ledger:
            raise not_ledger_owner()
        try:
            body = request.data
        except SuspiciousOperation:
            # A form with more text or more fields than Django reads.
            raise _malformed(None) from None
        config, topology, overlay = documents_of(body)
        if is_preview(body):
            return Response(_preview(config, topology, overlay))
        row, is_new = capture(
            config, topology, overlay, source=RouterSnapshot.Source.REST, actor=actor_of(request)
        )
        return Response(describe(row, publishing.active_id(live())), status=201 if is_new else 200)


class SnapshotView(ManagementView):
    """``GET /v1/admin/snapshots/{id}``: what is known of one capture, and its exact bytes in base64."""

    scopes = (Scope.CONFIGURE,)

    @operation(
        summary="One capture, with its exact bytes",
        answers={200: ref("SnapshotDocuments")},
        refusals=(404,),
        tag="snapshots",
    )
    def get(self, request: Request, snapshot_id: int) -> Response:
        row = _row(snapshot_id)
        data = dict(zip(DOCUMENTS, map(_base64, publishing.captured(row)), strict=True))
        return Response({**describe(row, publishing.active_id(live())), **data})


class ActivateView(ManagementView):
    """``POST /v1/admin/snapshots/{id}/activate``: preview what that does, or do it."""

    scopes = (Scope.CONFIGURE,)
    action = "activate"

    @operation(
        summary="Preview an activation, or activate",
        body={"application/json": ref("ActivationOrder")},
        answers={200: {"anyOf": [ref("ActivationDone"), ref("ActivationPreview")]}},
        refusals=(404, 409, 413, 415, 422, 500),
        tag="snapshots",
    )
    def post(self, request: Request, snapshot_id: int) -> Response:
        order = parse_order(request.data)
        row, router = _row(snapshot_id), live()
        if not order.applies:
            found = activation.preview(router, row)
            return Response(
                {
                    "applied": False,
                    "dry_run": True,
                    "snapshot_id": row.pk,
                    **activation.preview_json(found),
                }
            )
        # There is one activation at a time, and it may wait for an hour: the place is for who works.
        self.leave()
        done = activation.activate(
            router, row, actor=actor_of(request), through=Through.REST, drain_timeout=order.drain_timeout
        )
        return Response(
            {
                "applied": True,
                "snapshot_id": done.snapshot_id,
                "previous_snapshot_id": done.previous_id,
                "config_sha256": row.config_sha256,
                **activation.plan_json(done.plan),
                "steps": [step.as_json() for step in done.steps],
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOrder:
    """A well-formed request to activate: a preview, but for ``confirm: true`` without ``dry_run: true``."""

    applies: bool
    drain_timeout: float | None


def parse_order(body: object) -> ActivationOrder:
    """Check a decoded body. Raises Refused for unknown fields and values of another type or out of bounds."""
    if type(body) is not dict or body.keys() - {"confirm", "dry_run", "drain_timeout"}:
        raise _malformed(None)
    try:
        applies = is_confirmed(body, dry_run=False)
    except OrderError as error:
        raise _malformed(error.field) from None
    timeout = body.get("drain_timeout")
    if timeout is not None and not is_wait(timeout):
        raise _malformed("drain_timeout")
    return ActivationOrder(applies=applies, drain_timeout=None if timeout is None else float(timeout))


def documents_of(body: object) -> tuple[bytes, bytes | None, bytes | None]:
    """The documents of a body, exactly as they were sent. Raises Refused."""
    if isinstance(body, QueryDict):
        if any(len(values) != 1 for _, values in body.lists()):
            raise _malformed(None)
        body = body.dict()
    if not isinstance(body, dict) or body.keys() - {*DOCUMENTS, "dry_run"} or "config" not in body:
        raise _malformed(None)
    config, topology, overlay = (_document(body, name) for name in DOCUMENTS)
    if config is None:
        raise _malformed("config")
    return config, topology, overlay


def is_preview(body: object) -> bool:
    """Whether a body says ``dry_run`` (a form in letters), so that nothing is kept of it. Raises Refused."""
    value = body.get("dry_run", False) if isinstance(body, Mapping) else False
    if isinstance(body, QueryDict) and type(value) is str:
        value = {"true": True, "false": False}.get(value)
    if type(value) is not bool:
        raise _malformed("dry_run")
    return value


def _document(body: Mapping[str, object], name: str) -> bytes | None:
    """A file's bytes, at most one over the limit, or a base64 text's; None when there is none."""
    value = body.get(name)
    if isinstance(value, UploadedFile):
        data: bytes = value.read(MAX_DOCUMENT_BYTES + 1)
        return data
    if value is None:
        return None
    try:
        return base64.b64decode(value if type(value) is str else b"=", validate=True)
    except (binascii.Error, ValueError):
        raise _malformed(name) from None


def capture(
    config: bytes,
    topology: bytes | None,
    overlay: bytes | None,
    *,
    source: RouterSnapshot.Source,
    actor: str,
) -> tuple[RouterSnapshot, bool]:
    """As `publishing.capture`, its refusals for an answer: 422 with the code and every fault, or 503."""
    try:
        return publishing.capture(config, topology, overlay, source=source, actor=actor, through=Through.REST)
    except SnapshotError as error:
        refusal = _refusal(error, config, topology, overlay)
    except django.db.Error:
        raise Refused(503, "not_persisted", "The snapshot could not be stored; there is none.") from None
    # Outside of the except block, so that nothing is chained.
    raise refusal


def _preview(config: bytes, topology: bytes | None, overlay: bytes | None) -> dict[str, object]:
    """What activating these documents would change. Nothing is kept. Raises Refused as `capture` does."""
    try:
        candidate = validate_snapshot(config, topology, overlay)
    except SnapshotError as error:
        refusal = _refusal(error, config, topology, overlay)
    else:
        return {
            "applied": False,
            "dry_run": True,
            "config_sha256": candidate.config_sha256,
            "topology_sha256": candidate.topology_sha256,
            **activation.preview_json(activation.preview_of(live(), candidate)),
        }
    raise refusal


def _refusal(error: SnapshotError, config: bytes, topology: bytes | None, overlay: bytes | None) -> Refused:
    found = itertools.islice(document_faults(config, topology, overlay), MAX_FAULTS)
    extra = {"config_sha256": error.config_sha256, "faults": [fault.as_json() for fault in found]}
    return Refused(422, error.code, str(error), extra=extra)


def describe(row: RouterSnapshot, active_id: int | None) -> dict[str, object]:
    """What is known of a capture, without its bytes."""
    return {
        "object": "router_snapshot",
        "id": row.pk,
        "created_at": row.created_at.isoformat(),
        "created_by": row.created_by,
        "source": row.source,
        "config_sha256": row.config_sha256,
        "topology_sha256": row.topology_sha256 or None,
        "tier_count": row.tier_count,
        "replica_tier_count": row.replica_tier_count,
        "replica_member_count": row.replica_member_count,
        "active": row.pk == active_id,
    }


def _row(snapshot_id: int) -> RouterSnapshot:
    row = RouterSnapshot.objects.filter(pk=snapshot_id).first() if snapshot_id < 2**63 else None
    if row is None:
        raise Refused(404, "unknown_snapshot", SENTENCES["unknown_snapshot"])
    return row


def _number(request: Request, name: str, *, default: int | None, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
        raise _malformed(name)
    return int(text)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _malformed(field: str | None) -> Refused:
    return Refused(400, "invalid_request", "The request is not valid.", field=field)
