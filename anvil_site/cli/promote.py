"""``anvil promote``: move a direct tier to another resource; go on with, or take back, what was stopped."""

from collections.abc import Iterable, Mapping
from typing import Final

from .changes import change_lines, preview_line, promotion_lines
from .client import call
from .outcome import Fault, Json, Outcome, RouterFault, failed, refusal_of, refused
from .shapes import bounded
from .snapshots import refusal_data
from .spec import MAX_SECONDS, Arguments

PATH: Final = "/v1/admin/promotions"
ANSWER_TIMEOUT: Final = 60.0
DRAINS: Final = 2
"""The way there and the way back may each take the drain's time."""


def promote(arguments: Arguments) -> Outcome:
    body = _order(arguments)
    if isinstance(body, Outcome):
        return body
    action, confirmed = body["action"], arguments.flag("confirm")
    timeout = ANSWER_TIMEOUT
    if confirmed:
        timeout += DRAINS * (arguments.seconds("drain-timeout") or MAX_SECONDS)
    try:
        answer = call("POST", PATH, body=body, timeout=timeout)
    except RouterFault as fault:
        told = refusal_data(fault)
        lines = (f"promote: {Fault(fault.code).line}", *_lines(told)) if told else ()
        return refusal_of(fault, data=told or None, lines=lines)
    data = bounded(answer.body)
    if not isinstance(data, Mapping) or data.get("action") != action or data.get("applied") is not confirmed:
        return failed("malformed_answer", online=True)
    head = f"{action}: done" if confirmed else preview_line(f"{action}")
    return Outcome(data=data, lines=(head, *_lines(data)), online=True)


def _order(arguments: Arguments) -> dict[str, Json] | Outcome:
    """What the router is asked; only a new promotion names a tier and a resource."""
    resume, rollback = arguments.flag("resume"), arguments.flag("rollback")
    tier, resource = arguments.text("tier"), arguments.text("resource")
    if resume and rollback:
        return refused("usage_options_conflict", option="rollback")
    body: dict[str, Json] = {"action": "resume" if resume else "rollback" if rollback else "promote"}
    for option, field, value in (("tier", "tier_id", tier), ("resource", "resource_id", resource)):
        if (resume or rollback) and value is not None:
            return refused("usage_options_conflict", option=option)
        if not (resume or rollback):
            if value is None:
                return refused("usage_option_missing", option=option)
            body[field] = value
    if (drain_timeout := arguments.seconds("drain-timeout")) is not None:
        body["drain_timeout"] = drain_timeout
    body["confirm"] = arguments.flag("confirm")
    body["dry_run"] = not arguments.flag("confirm")
    return body


def _lines(data: Mapping[str, Json]) -> Iterable[str]:
    """What a preview would change; the steps of a promotion, and what to do about a stopped one."""
    if "changes" in data:
        yield from change_lines(data)
    yield from promotion_lines(data)
