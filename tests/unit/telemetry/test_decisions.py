"""The decision log in memory, its summary, its lines, and what none of them may show."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from routing.records import AttemptRecord, DecisionRecord, canonical_record, record_as_dict
from telemetry.decisions import (
    BUFFER_CAPACITY,
    MAX_SUMMARY_LIMIT,
    DecisionLog,
    JsonlWriter,
    find_request,
    format_line,
    summarize_decisions,
)
from tests.unit.routing.records_samples import (
    BAD_CAPTURED_DECISIONS,
    BAD_DECISIONS,
    CAPACITY,
    CAPACITY_JSON,
    CONFIG,
    DIRECT,
    DIRECT_JSON,
    DIRECT_REFUSED,
    PLANTED,
    PLANTED_TRACE,
    REFUSED,
    ROUND_ROBIN,
    Tripwire,
    served,
)

DIRECT_LINE = (
    "route=llm.direct kind=chat served=direct outcome=served tier=direct prompt=11 completion=22"
    " request_bytes=301 response_bytes=402 latency_ms=12.5"
)
OMITTED = [
    "messages",
    "prompt",
    "response",
    "tool_arguments",
    "headers",
    "credentials",
    "urls",
    "addresses",
    "exceptions",
]


def numbered(count: int) -> list[DecisionRecord]:
    return [replace(DIRECT, request_id=f"req-{number}") for number in range(count)]


# The ring ------------------------------------------------------------------------------------------------


def test_ring_keeps_the_newest_and_gives_them_newest_last() -> None:
    log = DecisionLog(3)
    for record in numbered(5):
        log.append(record)
    assert [record.request_id for record in log.records()] == ["req-2", "req-3", "req-4"]
    assert [record.request_id for record in log.records(2)] == ["req-3", "req-4"]
    assert len(log.records(10)) == 3
    assert log.records(0) == []
    assert len(log) == 3


def test_ring_holds_ten_thousand() -> None:
    assert DecisionLog().capacity == BUFFER_CAPACITY == 10_000


def test_record_is_stamped_unless_it_brings_its_time() -> None:
    log = DecisionLog(clock=lambda: 1_700_000_000.5)
    log.append(replace(DIRECT, recorded_at=None))
    log.append(DIRECT)
    assert [record.recorded_at for record in log.records()] == [1_700_000_000.5, 1_767_225_600.25]


def test_every_sink_hears_of_the_canonical_record() -> None:
    heard: list[tuple[str, DecisionRecord]] = []
    log = DecisionLog(
        sinks=(
            lambda record: heard.append(("first", record)),
            lambda record: heard.append(("second", record)),
        )
    )
    log.append(replace(DIRECT, request_id="http://10.0.0.7/"))
    assert [name for name, _ in heard] == ["first", "second"]
    assert heard[0][1] == replace(DIRECT, request_id=None) == log.records()[0]


def test_sink_that_raises_is_counted_and_keeps_no_other_from_its_record() -> None:
    heard: list[DecisionRecord] = []

    def broken(record: DecisionRecord) -> None:
        raise OSError("no space left on /var/lib")

    log = DecisionLog(sinks=(broken, heard.append))
    log.append(DIRECT)
    assert (heard, log.records(), log.sink_failures) == ([DIRECT], [DIRECT], 1)


def test_threads_append_and_read_at_once() -> None:
    log = DecisionLog(500)
    start = threading.Barrier(5, timeout=10)
    lengths: list[int] = []

    def append(name: int) -> None:
        start.wait()
        for number in range(500):
            log.append(replace(DIRECT, request_id=f"req-{name}-{number}"))

    def read() -> None:
        start.wait()
        lengths.extend(len(log.records()) for _ in range(200))

    threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(log) == 500
    assert max(lengths) <= 500
    kept: dict[str, list[int]] = {}
    for record in log.records():
        assert record.request_id is not None
        _, name, number = record.request_id.split("-")
        kept.setdefault(name, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in kept.values())


# One request ---------------------------------------------------------------------------------------------


def test_newest_record_of_a_request_id_is_found() -> None:
    older = replace(DIRECT, request_id="req-7", latency_ms=1.0)
    records = [older, replace(CAPACITY, request_id="req-7"), DIRECT]
    assert find_request(records, "req-7") == {
        "object": "router_request",
        "scope": "current_decision_log_buffer",
        "record": {**CAPACITY_JSON, "request_id": "req-7"},
    }


@pytest.mark.parametrize("request_id", ["req-9", "-", "", "None"])
def test_unknown_request_id_finds_nothing(request_id: str) -> None:
    assert find_request([DIRECT, replace(DIRECT, request_id=None)], request_id) is None


# The summary ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-T005", "Q-T011")
def test_summary_of_every_kind_of_record() -> None:
    assert summarize_decisions([DIRECT, CAPACITY, REFUSED, DIRECT_REFUSED], 3) == {
        "count": 3,
        "available": 4,
        "limit": 3,
        "records": [CAPACITY_JSON, record_as_dict(REFUSED), record_as_dict(DIRECT_REFUSED)],
        "totals": {
            "prompt_tokens": 11,
            "completion_tokens": 22,
            "request_bytes": 903,
            "response_bytes": 1206,
            "latency_ms": 37.5,
            "served_tiers": {"primary": 1},
            "attempt_outcomes": {"served": 1, "skipped": 1},
        },
        "omitted_fields": OMITTED,
    }


def test_summary_of_nothing() -> None:
    assert summarize_decisions([], 500) == {
        "count": 0,
        "available": 0,
        "limit": 500,
        "records": [],
        "totals": {
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "request_bytes": 0,
            "response_bytes": 0,
            "latency_ms": 0,
            "served_tiers": {},
            "attempt_outcomes": {},
        },
        "omitted_fields": OMITTED,
    }


def test_summary_reads_captured_json_and_skips_what_is_no_record() -> None:
    captured = json.loads(json.dumps([CAPACITY_JSON, 7, None, [], "x", DIRECT_JSON]))
    summary = summarize_decisions([*captured, Tripwire(), DIRECT], 500)
    assert (summary["count"], summary["available"]) == (3, 3)
    assert summary["records"] == [CAPACITY_JSON, DIRECT_JSON, DIRECT_JSON]


@pytest.mark.parametrize("limit", [1, MAX_SUMMARY_LIMIT])
def test_summary_limit_within_bounds(limit: int) -> None:
    summary = summarize_decisions(numbered(501), limit)
    assert (summary["count"], summary["available"], summary["limit"]) == (limit, 501, limit)


@pytest.mark.parametrize("limit", [0, -1, 501, True, 1.0, "7", None])
def test_summary_limit_out_of_bounds(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"^limit must be from 1 to 500$"):
        summarize_decisions([], limit)


def test_totals_stay_within_what_json_numbers_carry() -> None:
    huge = replace(DIRECT, total_prompt_tokens=2**53 - 1)
    totals = summarize_decisions([huge, huge], 2)["totals"]
    assert isinstance(totals, dict)
    assert totals["prompt_tokens"] == 2**53 - 1


# The line ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-T011", "C-T005", "C-R013")
@pytest.mark.parametrize(
    ("record", "line"),
    [
        (DIRECT, DIRECT_LINE),
        (
            replace(DIRECT, request_bytes=0, response_bytes=0, latency_ms=0),
            "route=llm.direct kind=chat served=direct outcome=served tier=direct prompt=11 completion=22",
        ),
        (
            replace(DIRECT, request_bytes=0, response_bytes=0, latency_ms=3.0),
            "route=llm.direct kind=chat served=direct outcome=served tier=direct prompt=11 completion=22"
            " request_bytes=0 response_bytes=0 latency_ms=3",
        ),
        (
            DIRECT_REFUSED,
            "route=llm.direct kind=chat served=- outcome=failed tier=direct prompt=0 completion=0"
            " request_bytes=301 response_bytes=402 latency_ms=12.5",
        ),
        (
            ROUND_ROBIN,
            "route=llm.rotating kind=chat served=rotating outcome=served tier=rotating"
            " prompt=11 completion=22 request_bytes=301 response_bytes=402 latency_ms=12.5"
            " replica_member=member-a replica_selection=identity_passed",
        ),
        (
            CAPACITY,
            "route=llm.primary kind=chat served=primary outcome=served tier=primary prompt=11 completion=22"
            " request_bytes=301 response_bytes=402 latency_ms=12.5"
            " replica_member=member-b replica_selection=identity_passed"
            " replica_scheduler=capacity replica_scheduler_reason=selected replica_eligible_count=2",
        ),
        (
            REFUSED,
            "route=llm.primary kind=chat served=- outcome=failed tier=primary prompt=0 completion=0"
            " request_bytes=301 response_bytes=402 latency_ms=12.5 replica_selection=not_admitted",
        ),
        (
            DecisionRecord(route=None, kind=None, requested_tier=None),
            "route=- kind=- served=- outcome=failed tier=- prompt=0 completion=0",
        ),
    ],
)
def test_line_of_a_record(record: DecisionRecord, line: str) -> None:
    assert format_line(record) == line


def test_white_space_and_angle_in_a_value_become_underscores() -> None:
    """No grammar lets them in; a line must hold even so."""
    record = canonical_record(DIRECT)
    object.__setattr__(record, "route", "a b>c\r\nroute=d\u2028e")
    assert format_line(record) == DIRECT_LINE.replace("route=llm.direct", "route=a_b_c__route=d_e")


# What no surface shows -----------------------------------------------------------------------------------


def surfaces(record: DecisionRecord, jsonl: "JsonlFile") -> dict[str, str]:
    """``record`` on all four surfaces, each given it as it is."""
    log = DecisionLog()
    log.append(record)
    return {
        "memory": repr(log.records()),
        "line": format_line(record),
        "summary": json.dumps(summarize_decisions([record], 1)),
        "writer": jsonl(record),
    }


JsonlFile = Callable[[DecisionRecord], str]


@pytest.fixture
def jsonl(tmp_path: Any) -> JsonlFile:
    def written(record: DecisionRecord) -> str:
        path = tmp_path / "decisions.jsonl"
        path.unlink(missing_ok=True)
        writer = JsonlWriter(path)
        writer.offer(record)
        writer.run_once()
        writer.close()
        assert writer.written == 1
        return str(path.read_text())

    return written


@pytest.mark.requirement("C-T005", "C-R012")
@pytest.mark.parametrize("value", BAD_DECISIONS.values(), ids=BAD_DECISIONS)
def test_bad_evidence_is_dropped_alone_on_every_surface(value: Any, jsonl: JsonlFile) -> None:
    """A malformed scheduler field must not erase a valid replica pair."""
    bad = replace(CAPACITY, replica_scheduler=value)
    without = replace(CAPACITY, replica_scheduler=None)
    assert surfaces(bad, jsonl) == surfaces(without, jsonl)
    assert "member-b" in surfaces(bad, jsonl)["line"]


@pytest.mark.requirement("C-T005", "C-R012")
@pytest.mark.parametrize("value", BAD_CAPTURED_DECISIONS.values(), ids=BAD_CAPTURED_DECISIONS)
def test_bad_captured_evidence_is_dropped_alone_from_the_summary(value: object) -> None:
    captured = {**CAPACITY_JSON, "replica_scheduler": value}
    expected = {name: value for name, value in CAPACITY_JSON.items() if name != "replica_scheduler"}
    assert summarize_decisions([captured], 1)["records"] == [expected]


@pytest.mark.requirement("Q-T011")
@pytest.mark.parametrize(
    "changes",
    [
        {"replica_member_id": "http://10.0.0.7"},
        {"replica_member_id": None},
        {"replica_selection": "Traceback"},
        {"replica_selection": None},
        {"replica_selection": "not_admitted"},
    ],
)
def test_bad_pair_is_dropped_with_its_evidence_on_every_surface(
    changes: dict[str, Any], jsonl: JsonlFile
) -> None:
    bad = replace(CAPACITY, **changes)
    without = replace(CAPACITY, replica_member_id=None, replica_selection=None, replica_scheduler=None)
    assert surfaces(bad, jsonl) == surfaces(without, jsonl)


@pytest.mark.requirement("Q-R013", "C-R013", "C-T005.1")
@pytest.mark.parametrize(
    "record",
    [DIRECT, DIRECT_REFUSED, ROUND_ROBIN, REFUSED],
    ids=["direct", "refused direct", "rotating", "refused"],
)
def test_surface_without_the_optional_fields_is_as_it_was(record: DecisionRecord, jsonl: JsonlFile) -> None:
    shown = surfaces(record, jsonl)
    absent = ["replica_scheduler"]
    if record.replica_member_id is None:
        absent += ["replica_member_id", "replica_member="]
    if record.replica_selection is None:
        absent += ["replica_"]
    for name in ("line", "summary", "writer"):
        assert not [key for key in absent if key in shown[name]], name


PLANTED_FIELDS = [
    "kind",
    "requested_tier",
    "served_tier",
    "attempts",
    "total_prompt_tokens",
    "request_bytes",
    "latency_ms",
    "replica_member_id",
    "replica_selection",
    "replica_scheduler",
    "recorded_at",
]


@pytest.mark.requirement("C-R012", "Q-R012", "C-T005", "Q-T011", "Q-A006", "C-A007")
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("name", PLANTED_FIELDS)
def test_planted_value_reaches_no_surface(name: str, planted: str, jsonl: JsonlFile) -> None:
    shown = surfaces(replace(CAPACITY, **{name: planted}), jsonl)
    assert not [surface for surface, text in shown.items() if PLANTED_TRACE.search(text)]


@pytest.mark.requirement("C-R012", "Q-R012")
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("name", ["tier_id", "outcome", "reason", "succeeded", "completion_tokens"])
def test_value_planted_in_an_attempt_reaches_no_surface(name: str, planted: str, jsonl: JsonlFile) -> None:
    broken: AttemptRecord = replace(served("primary"), **{name: planted})  # type: ignore[arg-type]
    shown = surfaces(replace(CAPACITY, attempts=(broken,)), jsonl)
    assert not [surface for surface, text in shown.items() if PLANTED_TRACE.search(text)]


@pytest.mark.requirement("C-R012", "Q-R012")
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_planted_route_reaches_no_surface_once_held_to_the_configuration(
    planted: str, jsonl: JsonlFile
) -> None:
    record = canonical_record(replace(CAPACITY, route=planted), config=CONFIG)
    shown = surfaces(record, jsonl)
    assert not [surface for surface, text in shown.items() if PLANTED_TRACE.search(text)]


@pytest.mark.requirement("C-R012", "Q-R012")
@pytest.mark.parametrize("planted", [text for text in PLANTED.values() if "/" in text or " " in text])
@pytest.mark.parametrize("name", ["request_id", "workbench_run_id", "task_id", "route"])
def test_planted_id_reaches_no_surface(name: str, planted: str, jsonl: JsonlFile) -> None:
    shown = surfaces(replace(CAPACITY, **{name: planted}), jsonl)  # type: ignore[arg-type]
    assert not [surface for surface, text in shown.items() if PLANTED_TRACE.search(text)]


@pytest.mark.requirement("C-T005", "Q-T011")
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_summary_of_captured_json_shows_no_planted_value(planted: str) -> None:
    captured: dict[str, object] = {
        **dict.fromkeys(CAPACITY_JSON, planted),
        "route": "llm.primary",
        "request_id": "req-1",
        "workbench_run_id": "run-2",
        "task_id": "task-3",
        "attempts": [dict.fromkeys(("tier_id", "outcome", "reason", "prompt_tokens", "body"), planted)],
        "prompt": planted,
        planted: planted,
    }
    assert not PLANTED_TRACE.search(json.dumps(summarize_decisions([captured, planted, [planted]], 500)))
