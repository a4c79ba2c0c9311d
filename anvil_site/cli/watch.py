"""``anvil router watch``: tiers and members, read once a second: a live table, or a line for each change."""

import select
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from .client import call
from .outcome import FAILED, Fault, Json, Outcome, RouterFault, plain
from .shapes import bounded, rows_of, table_of
from .spec import Arguments

if TYPE_CHECKING:
    from rich.table import Table

INTERVAL: Final = 1.0
COLUMNS: Final = ("scope", "state", "readiness", "active", "pressure")


def watch(arguments: Arguments) -> Outcome:
    """Until interrupted; with ``--json`` one reading. Into a pipe or a file, a line for each change."""
    if arguments.flag("json"):
        return Outcome(data=_read(), online=True)
    return _live() if sys.stdout.isatty() else _follow()


def _follow() -> Outcome:
    """Each scope in a line, then the line of each that has changed, and whether the router answers.

    Who reads may leave at any time: it ends with BrokenPipeError.
    """
    data = _read()
    shown: dict[str, str] = {}
    fault: RouterFault | None = None
    try:
        while True:
            if fault is None:
                shown = _tell_changes(shown, _lines(data))
            sys.stdout.flush()
            _pause()
            before = None if fault is None else fault.code
            try:
                data, fault = _read(), None
            except RouterFault as error:
                fault = error
            if fault is not None and fault.code != before:
                _say(Fault(fault.code).line)
            elif fault is None and before is not None:
                _say("the router answers again")
    except KeyboardInterrupt:
        pass
    return _end(data, fault)


def _tell_changes(before: Mapping[str, str], now: dict[str, str]) -> dict[str, str]:
    for scope, line in now.items():
        if before.get(scope) != line:
            _say(f"{scope} {line}")
    for scope in before.keys() - now.keys():
        _say(f"{scope} is gone")
    return now


def _pause() -> None:
    """Wait for the next reading. Raises BrokenPipeError as soon as nobody reads what is written."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        time.sleep(INTERVAL)
        return
    poller = select.poll()
    # No event is asked for: errors are told all the same.
    poller.register(descriptor, 0)
    if poller.poll(INTERVAL * 1000):
        raise BrokenPipeError


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text)


def _lines(data: Mapping[str, Json]) -> dict[str, str]:
    """The line of each scope, by its name: a member's is that of its tier and its own."""
    lines: dict[str, str] = {}
    tier = ""
    for scope, *cells in scope_rows(data):
        tier = tier if scope.startswith("  ") else scope
        name = f"{tier}/{scope.strip()}" if scope.startswith("  ") else scope
        state, ready, load, pressure = cells
        lines[name] = f"{state}, {ready}, {load} active" + (
            "" if pressure == "-" else f", pressure {pressure}"
        )
    return lines


def _live() -> Outcome:
    """The table on a terminal, drawn anew at every reading."""
    from rich.live import Live

    data = _read()
    read_at = time.monotonic()
    fault: RouterFault | None = None
    try:
        with Live(_picture(data, age=None), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(INTERVAL)
                try:
                    data, fault, read_at = _read(), None, time.monotonic()
                except RouterFault as error:
                    fault = error
                age = None if fault is None else time.monotonic() - read_at
                live.update(_picture(data, age=age), refresh=True)
    except KeyboardInterrupt:
        pass
    return _end(data, fault)


def _end(data: Mapping[str, Json], fault: RouterFault | None) -> Outcome:
    if fault is not None:
        return Outcome(errors=(Fault(fault.code),), exit_code=FAILED, online=fault.reached)
    return Outcome(data=data, lines=("stopped",), online=True)


def _read() -> Mapping[str, Json]:
    data = bounded(call("GET", "/v1/models/capacity").body)
    if not isinstance(data, Mapping) or not isinstance(data.get("data"), list):
        raise RouterFault("malformed_answer")
    return data


def _picture(data: Mapping[str, Json], *, age: float | None) -> "Table":
    from rich.table import Table

    caption = "ctrl-c stops" if age is None else f"no answer: last update {age:.0f} s ago"
    picture = Table(*COLUMNS, title="anvil", caption=caption)
    for row in scope_rows(data):
        picture.add_row(*row)
    return picture


def scope_rows(data: Mapping[str, Json]) -> Iterator[tuple[str, ...]]:
    """The table's rows in words: one a tier, then one for each of its members."""
    for tier in rows_of(data, "data"):
        admission = table_of(tier, "admission")
        ceiling = admission.get(
            "max_concurrency", table_of(tier, "capacity").get("configured_max_concurrency")
        )
        active = admission.get("active_requests", table_of(tier, "live").get("requests_running"))
        yield _row(f"{tier.get('id')}", admission, table_of(tier, "readiness"), active, ceiling, {})
        by_id = {f"{row.get('id')}": row for row in rows_of(admission, "members")}
        counts = table_of(admission, "member_active_requests")
        for member in rows_of(table_of(tier, "metadata"), "members"):
            name = f"{member.get('id')}"
            own = by_id.get(name, {})
            active = own.get("active_requests", counts.get(name))
            yield _row(
                f"  {name}", own, member, active, own.get("max_concurrency"), table_of(member, "telemetry")
            )


def _row(
    scope: str,
    admission: Mapping[str, Json],
    readiness: Mapping[str, Json],
    active: Json,
    ceiling: Json,
    telemetry: Mapping[str, Json],
) -> tuple[str, ...]:
    state = _word(admission.get("state")) + (", draining" if admission.get("draining") is True else "")
    ready = f"{_word(readiness.get('state'))} ({_word(readiness.get('reason'))})"
    load = _word(active) if ceiling is None else f"{_word(active)} / {ceiling}"
    ppm = telemetry.get("pressure_ppm")
    pressure = _word(telemetry.get("freshness"))
    if isinstance(ppm, int):
        pressure = f"{ppm / 10_000:.1f} % {pressure}"
    # Brackets are rich's markup; escape them with the rest that a terminal might obey.
    return tuple(plain(cell).replace("[", "(") for cell in (scope, state, ready, load, pressure))


def _word(value: Json) -> str:
    return "-" if value is None else f"{value}"
