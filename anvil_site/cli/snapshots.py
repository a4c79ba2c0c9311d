"""``anvil snapshots list|show|activate``: what was captured, and going back to it."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Final

from routing.document_faults import DOCUMENTS

from .changes import change_lines, preview_line, step_lines
from .client import call
from .outcome import Fault, Json, Outcome, RouterFault, failed, refusal_of
from .shapes import bounded, rows_of
from .spec import Arguments

PATH: Final = "/v1/admin/snapshots"
ANSWER_TIMEOUT: Final = 60.0
STEPS: Final = 3
"""A tier's drain, the probes that verify it and the way back may each take the drain's time."""


def listing(arguments: Arguments) -> Outcome:
    limit = arguments.whole("limit")
    data = bounded(call("GET", PATH, query={} if limit is None else {"limit": limit}).body)
    if not isinstance(data, Mapping) or not isinstance(data.get("data"), list):
        return failed("malformed_answer", online=True)
    lines = tuple(_line(row) for row in rows_of(data, "data"))
    return Outcome(data=data, lines=lines or ("no snapshots",), online=True)


def show(arguments: Arguments) -> Outcome:
    """What is known of one capture, or one document of it: exactly its bytes."""
    number, name = arguments.whole("id"), arguments.text("document")
    answer = call("GET", f"{PATH}/{number}", timeout=ANSWER_TIMEOUT).body
    # The documents are longer than any text that is shown.
    data = bounded({key: value for key, value in answer.items() if key not in DOCUMENTS})
    if not isinstance(data, Mapping) or data.get("id") != number:
        return failed("malformed_answer", online=True)
    held = [key for key in DOCUMENTS if answer.get(key) is not None]
    if name is None:
        lines = (_line(data), *_digests(data), f"  documents: {', '.join(held)}")
        return Outcome(data={**data, "documents": held}, lines=lines, online=True)
    if name not in held:
        return failed("no_such_document", online=True)
    try:
        text = answer[name]
        document = base64.b64decode(text if isinstance(text, str) else "=", validate=True)
    except (binascii.Error, ValueError):
        return failed("malformed_answer", online=True)
    return Outcome(data={**data, "document": name, "base64": text}, document=document, online=True)


def activate(arguments: Arguments) -> Outcome:
    number, confirmed = arguments.whole("id"), arguments.flag("confirm")
    assert number is not None
    timeout = arguments.seconds("drain-timeout")
    label = f"snapshots activate {number}"
    try:
        data = order(number, confirmed=confirmed, drain_timeout=timeout)
    except RouterFault as fault:
        data = refusal_data(fault)
        lines = (f"{label}: {Fault(fault.code).line}", *step_lines(data))
        return refusal_of(fault, data=data or None, lines=lines if fault.body else ())
    if confirmed:
        return Outcome(data=data, lines=(f"snapshot {number} is active", *step_lines(data)), online=True)
    lines = (preview_line(f"activate snapshot {number}"), *change_lines(data))
    return Outcome(data=data, lines=lines, online=True)


def order(number: int, *, confirmed: bool, drain_timeout: float | None) -> Mapping[str, Json]:
    """Have the router activate, or preview to activate, its snapshot ``number``. Raises RouterFault."""
    body: dict[str, Json] = {"confirm": confirmed, "dry_run": not confirmed}
    if drain_timeout is not None:
        body["drain_timeout"] = drain_timeout
    patience = ANSWER_TIMEOUT + (STEPS * (drain_timeout or 0.0) if confirmed else 0.0)
    data = bounded(call("POST", f"{PATH}/{number}/activate", body=body, timeout=patience).body)
    if not isinstance(data, Mapping) or (data.get("applied"), data.get("snapshot_id")) != (confirmed, number):
        raise RouterFault("malformed_answer")
    return data


def refusal_data(fault: RouterFault) -> Mapping[str, Json]:
    """What a refusal tells beside its error: the steps that were taken, the scopes that it is about."""
    data = bounded({key: value for key, value in (fault.body or {}).items() if key != "error"})
    return data if isinstance(data, Mapping) else {}


def _line(row: Mapping[str, Json]) -> str:
    active = "; active" if row.get("active") is True else ""
    counts = f"{row.get('tier_count')} tiers, {row.get('replica_member_count')} members"
    made = f"{row.get('created_at')} by {row.get('created_by')} through {row.get('source')}"
    return f"{row.get('id')}: {made}; {counts}; config {str(row.get('config_sha256'))[:12]}{active}"


def _digests(row: Mapping[str, Json]) -> Iterable[str]:
    for key in ("config_sha256", "topology_sha256"):
        if row.get(key) is not None:
            yield f"  {key} {row[key]}"
