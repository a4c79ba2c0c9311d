"""``anvil router transition-status|quiesce|drain|readmit``: the transition endpoint from the terminal.

Scope, reason and timeout are checked before anything is sent. A preview asks the router, too: it alone knows
whether the scope exists, and a dry run changes nothing there.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Final

from routing import wording
from routing.scopes import ScopeId

from . import shapes
from .changes import preview_line, scope_words
from .client import call
from .outcome import DONE, FAILED, HINTS, Fault, Json, Outcome, RouterFault, failed, refusal_of, refused
from .spec import MAX_SECONDS, Arguments

PATH: Final = "/v1/admin/transition"
ACTION_TIMEOUT: Final = 60.0
"""Seconds for a quiesce or a readmit, whose probe takes as long as the configuration lets it."""
POLL_SECONDS: Final = 0.5
_NEXT: Final[Mapping[tuple[str, str], str]] = {
    ("drain", "scope_not_quiesced"): "quiesce it first: anvil router quiesce",
    ("readmit", "scope_not_quiesced"): "it takes requests already",
}
"""What to do about a refusal, where that depends on what was asked."""

MARGIN: Final = 30.0
"""Seconds that a drain's answer may come after its own timeout."""


def status(arguments: Arguments) -> Outcome:
    """Every tier, one tier, or one member of it."""
    tier, member = arguments.text("tier"), arguments.text("member")
    if member is not None and tier is None:
        return refused("usage_option_missing", option="tier")
    data = _read_status(tier, member)
    return Outcome(data=data, lines=tuple(status_lines(data)), online=True)


def quiesce(arguments: Arguments) -> Outcome:
    return _change("quiesce", arguments)


def drain(arguments: Arguments) -> Outcome:
    return _change("drain", arguments)


def readmit(arguments: Arguments) -> Outcome:
    return _change("readmit", arguments)


def _change(action: str, arguments: Arguments) -> Outcome:
    confirmed = arguments.flag("confirm")
    tier, member = arguments.required("tier"), arguments.text("member")
    timeout = arguments.seconds("timeout")
    body: dict[str, Json] = {
        "action": action,
        "tier_id": tier,
        "confirm": confirmed,
        "dry_run": not confirmed,
    }
    if member is not None:
        body["member_id"] = member
    if (reason := arguments.text("reason")) is not None:
        body["reason"] = reason
    if timeout is not None:
        body["timeout"] = timeout
    if arguments.flag("accept-unverified"):
        body["accept_unverified"] = True
    waits = confirmed and action == "drain"
    patience = (timeout or MAX_SECONDS) + MARGIN if waits else ACTION_TIMEOUT
    shape = shapes.transition(action)
    try:
        answer = call("POST", PATH, body=body, timeout=patience)
        before = answer.previous_reason
        data = (
            _finish_drain(tier, member, deadline=time.monotonic() + patience)
            if waits and answer.status == 202
            else shape(answer.body)
        )
    except RouterFault as fault:
        return _refusal(fault, action, str(ScopeId(tier, member)))
    if not _is_answer_to(data, action=action, tier=tier, member=member, applied=confirmed):
        return failed("malformed_answer", online=True)
    assert isinstance(data, Mapping)
    code = _failure(action, data.get("result")) if confirmed else None
    return Outcome(
        data=data,
        lines=tuple(_change_lines(data, code)),
        errors=() if code is None else (Fault(code),),
        warnings=() if before is None else (f"it was quiesced before, for the reason {before}",),
        exit_code=DONE if code is None else FAILED,
        online=True,
    )


def _refusal(fault: RouterFault, action: str, scope: str) -> Outcome:
    """The router's refusal, with the result that it gave (why a readmit was refused), if it gave one."""
    found = shapes.transition(action)(fault.body) if fault.body and "result" in fault.body else None
    data = found if isinstance(found, Mapping) else None
    result = shapes.table_of(data, "result") if data is not None else {}
    hint = _NEXT.get((action, fault.code))
    line = Fault(fault.code, hint=hint).line
    why = result.get("reason")
    if action == "readmit" and isinstance(why, str) and fault.code == "readmit_refused":
        line = f"it stays quiesced: {wording.readmit(why)} ({why}); {HINTS['readmit_refused']} ({fault.code})"
    row = _row_in(action, result)
    shown = (f"{action} {scope}: {line}", *((f"  {scope} is {_words(row)}",) if row else ()))
    # Without a body nothing was refused that is about the scope: no answer, no key, no right.
    return refusal_of(fault, hint=hint, data=data, lines=shown if fault.body else ())


def _row_in(action: str, result: Mapping[str, Json]) -> Mapping[str, Json]:
    """The scope's own row in a result that has one; else an empty one."""
    if action == "readmit":
        return {}
    row = shapes.table_of(result, "snapshot") if action == "drain" else result
    return row if row.get("state") is not None else {}


def _is_answer_to(data: Json, *, action: str, tier: str, member: str | None, applied: bool) -> bool:
    """Whether the answer says that exactly what was asked has happened (or, for a preview, has not)."""
    return (
        isinstance(data, Mapping)
        and data["action"] == action
        and data["tier_id"] == tier
        and data["member_id"] == member
        and data["applied"] is applied
        and (applied or data.get("dry_run") is True)
        and (not applied or isinstance(data.get("result"), Mapping))
    )


def _failure(action: str, result: Json) -> str | None:
    """The code for an applied action whose result is not what was wanted."""
    assert isinstance(result, Mapping)
    if action == "drain" and result.get("drained") is not True:
        return "drain_timed_out" if result.get("timed_out") is True else "drain_reopened"
    if action == "readmit" and result.get("readmitted") is not True:
        return "conflict"
    return None


def _finish_drain(tier: str, member: str | None, *, deadline: float) -> dict[str, Json]:
    """Poll until a drain that the router works on by itself is over; its end in the shape of an answer."""
    while True:
        row = _scope_row(_read_status(tier, member), member)
        draining, active = row.get("draining"), row.get("active_requests")
        if draining is False or time.monotonic() > deadline:
            drained = draining is False and active == 0 and row.get("state") == "quiesced"
            timed_out = not drained and row.get("state") == "quiesced"
            result: dict[str, Json] = {"drained": drained, "timed_out": timed_out, "snapshot": row}
            return {
                "applied": True,
                "action": "drain",
                "tier_id": tier,
                "member_id": member,
                "result": shapes.RESULTS["drain"](result),
            }
        time.sleep(POLL_SECONDS)


def _read_status(tier: str | None, member: str | None) -> Mapping[str, Json]:
    query = {key: value for key, value in (("tier_id", tier), ("member_id", member)) if value is not None}
    answer = call("GET", PATH, query=query)
    data = shapes.STATUS(answer.body)
    if not isinstance(data, Mapping) or data["tiers"] is None:
        raise RouterFault("malformed_answer")
    return data


def _scope_row(data: Mapping[str, Json], member: str | None) -> Mapping[str, Json]:
    """The row of the one tier or member that was asked for."""
    found = shapes.rows_of(data, "tiers")
    if member is not None and len(found) == 1:
        found = [row for row in shapes.rows_of(found[0], "members") if row["member_id"] == member]
    if len(found) != 1:
        raise RouterFault("malformed_answer")
    return found[0]


def status_lines(data: Mapping[str, Json]) -> Iterator[str]:
    """One line a tier, and one indented line a member."""
    for tier in shapes.rows_of(data, "tiers"):
        yield f"{tier['tier_id']}: {_words(tier)}"
        for member in shapes.rows_of(tier, "members"):
            yield f"  {member['member_id']}: {_words(member)}"


def _words(row: Mapping[str, Json]) -> str:
    state = f"{row.get('state')}"
    if row.get("reason") is not None:
        state += f" ({row['reason']})"
    if row.get("draining") is True:
        state += ", draining"
    ceiling = row.get("max_concurrency")
    active = f"{row.get('active_requests')} active" + (f" of {ceiling}" if ceiling is not None else "")
    words = f"{state}, {active}"
    if "ready" in row:
        words += f", {row.get('readiness_state')} ({row.get('readiness_reason')})"
    return words


def _change_lines(data: Mapping[str, Json], code: str | None) -> Iterator[str]:
    scope = scope_words(data)
    action = data.get("action")
    result = data.get("result")
    if not isinstance(result, Mapping):
        yield preview_line(f"{action} {scope}")
        return
    if action == "readmit":
        why = result.get("reason")
        detail = f": {wording.readmit(why)} ({why})" if isinstance(why, str) else ""
    else:
        row = _row_in(f"{action}", result)
        detail = f": {_words(row)}" if row else ""
    if code is None:
        yield f"{action} {scope}: done{detail}"
    else:
        yield f"{action} {scope}: {Fault(code).line}{detail}"
