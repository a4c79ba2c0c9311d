"""The verbs that read: status, capacity, decisions, explain, and the export of decisions."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .client import call
from .outcome import Json, Outcome, failed
from .shapes import bounded, rows_of, table_of
from .spec import Arguments

MAX_DECISIONS: Final = 500
"""How many records one answer of the router holds at most."""


def status(arguments: Arguments) -> Outcome:
    return _read("/v1/router/status", {}, _status_lines)


def capacity(arguments: Arguments) -> Outcome:
    return _read("/v1/models/capacity", {"model": arguments.text("model")}, _capacity_lines)


def decisions(arguments: Arguments) -> Outcome:
    return _read("/v1/decisions", {"limit": arguments.whole("limit")}, _decision_lines)


def explain(arguments: Arguments) -> Outcome:
    return _read("/v1/admin/explain", {"model": arguments.required("model")}, _explain_lines)


def export(arguments: Arguments) -> Outcome:
    """The newest decisions, one JSON object a line, oldest first."""
    outcome = _read("/v1/decisions", {"limit": arguments.whole("limit") or MAX_DECISIONS}, lambda data: ())
    if not outcome.ok or not isinstance(outcome.data, Mapping):
        return outcome
    records = rows_of(outcome.data, "records")
    available = outcome.data.get("available")
    warnings: tuple[str, ...] = ()
    if isinstance(available, int) and available > len(records):
        warnings = (
            f"{len(records)} of {available} decisions; decision_log_path in [server] keeps all of them",
        )
    text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
    return Outcome(data=outcome.data, document=text, warnings=warnings, online=True)


def _read(
    path: str,
    query: Mapping[str, str | int | None],
    lines: Callable[[Mapping[str, Json]], Iterable[str]],
) -> Outcome:
    """GET ``path`` and show the answer, bounded; an empty result still says so in one line."""
    answer = call("GET", path, query={key: value for key, value in query.items() if value is not None})
    data = bounded(answer.body)
    if not isinstance(data, Mapping):
        return failed("malformed_answer", online=True)
    return Outcome(data=data, lines=tuple(lines(data)) or ("nothing to show",), online=True)


def _status_lines(data: Mapping[str, Json]) -> Iterable[str]:
    tiers = table_of(data, "tier_counts")
    yield (
        f"anvil {data.get('package_version')}, up {data.get('uptime_seconds')} s, "
        f"{tiers.get('enabled')} of {tiers.get('configured')} tiers enabled"
    )
    ledger = "owns the ledger" if data.get("owns_ledger") is True else "does not own the ledger"
    draining = ", draining" if data.get("draining") is True else ""
    yield f"{ledger}{draining}; active snapshot {data.get('snapshot_sha256')}"


def _capacity_lines(data: Mapping[str, Json]) -> Iterable[str]:
    for row in rows_of(data, "data"):
        readiness, limits = table_of(row, "readiness"), table_of(row, "capacity")
        line = f"{row.get('id')}: {readiness.get('state')} ({readiness.get('reason')})"
        admission = table_of(row, "admission")
        if admission:
            line += f", {admission.get('state')}, {admission.get('active_requests')} active"
        ceiling = admission.get("max_concurrency", limits.get("configured_max_concurrency"))
        if ceiling is not None:
            line += f", ceiling {ceiling}"
        yield f"{line}, context {limits.get('context_limit_tokens')}"


def _decision_lines(data: Mapping[str, Json]) -> Iterable[str]:
    for row in rows_of(data, "records"):
        member = row.get("replica_member_id")
        scope = f"{row.get('requested_tier')}" + (f"/{member}" if member is not None else "")
        attempts = rows_of(row, "attempts")
        outcome = (
            f"{attempts[-1].get('outcome')} ({attempts[-1].get('reason')})" if attempts else "not admitted"
        )
        yield (
            f"{row.get('request_id')} {row.get('route')} -> {scope}: {outcome}, "
            f"{row.get('total_prompt_tokens')} + {row.get('total_completion_tokens')} tokens, "
            f"{row.get('latency_ms')} ms"
        )


def _explain_lines(data: Mapping[str, Json]) -> Iterable[str]:
    """The verdict, then each step that led to it, in columns."""
    if isinstance(data.get("summary"), str):
        yield f"{data['summary']}"
    steps = rows_of(data, "steps")
    widths = [max((len(_word(step.get(key))) for step in steps), default=0) for key in ("result", "scope")]
    for step in steps:
        result, scope = _word(step.get("result")), _word(step.get("scope"))
        name, detail = _word(step.get("step")), _word(step.get("detail"))
        yield f"  {result:<{widths[0]}}  {scope:<{widths[1]}}  {name}: {detail}"
    for key, value in data.items():
        if key in ("object", "summary", "steps"):
            continue
        if isinstance(value, list):
            yield f"{key}:"
            yield from (f"  {_flat(item)}" for item in value)
        elif isinstance(value, Mapping):
            yield f"{key}: {_flat(value)}"
        else:
            yield f"{key}: {_word(value)}"


def _flat(value: Json) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_word(item)}" for key, item in value.items())
    return _word(value)


def _word(value: Json) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)
