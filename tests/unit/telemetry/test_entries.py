"""A decision as a row: every column of it, the way back, and nothing that was planted."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from routing.records import DecisionRecord, canonical_record, record_as_dict
from telemetry.entries import EntryWriter, values_of
from telemetry.models import DecisionEntry
from tests.unit.routing.records_samples import (
    BAD_DECISIONS,
    CAPACITY,
    CONFIG,
    DECISION_JSON,
    DIRECT,
    DIRECT_REFUSED,
    PLANTED,
    PLANTED_TRACE,
    REFUSED,
    ROUND_ROBIN,
)


def entry_of(record: DecisionRecord) -> DecisionEntry:
    return DecisionEntry(**values_of(record))


def columns(entry: DecisionEntry) -> dict[str, Any]:
    return {field.attname: getattr(entry, field.attname) for field in DecisionEntry._meta.concrete_fields}


def test_a_capacity_decision_column_by_column() -> None:
    assert columns(entry_of(CAPACITY)) == {
        "id": None,
        "recorded_at": datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC),
        "route": "llm.primary",
        "kind": "chat",
        "requested_tier": "primary",
        "served_tier": "primary",
        "outcome": "served",
        "reason": "served",
        "replica_member_id": "member-b",
        "replica_selection": "identity_passed",
        "freshness": "fresh",
        "prompt_tokens": 11,
        "completion_tokens": 22,
        "request_bytes": 301,
        "response_bytes": 402,
        "latency_ms": 12.5,
        "request_id": "req-1",
        "workbench_run_id": "run-2",
        "task_id": "task-3",
        "replica_scheduler": DECISION_JSON,
    }


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (DIRECT, ("served", "served", "", "", "", None)),
        (DIRECT_REFUSED, ("skipped", "tools_unsupported", "", "", "", None)),
        (ROUND_ROBIN, ("served", "served", "member-a", "identity_passed", "", None)),
        (REFUSED, ("refused", "not_admitted", "", "not_admitted", "", None)),
    ],
    ids=["direct", "direct refused", "round robin", "replica refused"],
)
def test_what_other_decisions_have(record: DecisionRecord, expected: tuple[object, ...]) -> None:
    entry = entry_of(record)
    assert (
        entry.outcome,
        entry.reason,
        entry.replica_member_id,
        entry.replica_selection,
        entry.freshness,
        entry.replica_scheduler,
    ) == expected


@pytest.mark.parametrize("record", [DIRECT, DIRECT_REFUSED, ROUND_ROBIN, CAPACITY, REFUSED])
def test_a_row_gives_the_record_back(record: DecisionRecord) -> None:
    again = entry_of(record).as_record()
    assert again == canonical_record(record)
    assert record_as_dict(again) == record_as_dict(record)


def test_every_text_fits_its_column() -> None:
    """The longest value that each grammar admits, so that no database refuses or cuts one."""
    longest = replace(
        CAPACITY,
        route="a" * 128,
        requested_tier="t" * 64,
        served_tier=None,
        attempts=(),
        replica_member_id=None,
        replica_selection="request_rejected",
        replica_scheduler=None,
        request_id="r" * 128,
        workbench_run_id="r" * 128,
        task_id="r" * 128,
    )
    entry_of(longest).full_clean(exclude=["freshness", "replica_scheduler"])
    for reason in ("media_admission_invalid_policy", "served_output_clamped"):
        assert len(reason) <= (DecisionEntry._meta.get_field("reason").max_length or 0)
    assert len("transcriptions") <= (DecisionEntry._meta.get_field("kind").max_length or 0)


@pytest.mark.requirement("C-R012", "C-T005", "Q-R012")
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize(
    "name",
    [
        "route",
        "kind",
        "requested_tier",
        "served_tier",
        "replica_member_id",
        "replica_selection",
        "replica_scheduler",
    ],
)
def test_nothing_planted_reaches_a_row(name: str, planted: str) -> None:
    """At the routing boundary, where names are held against the configuration."""
    record = canonical_record(replace(CAPACITY, **{name: planted}), config=CONFIG)  # type: ignore[arg-type]
    assert PLANTED_TRACE.search(repr(columns(entry_of(record)))) is None


@pytest.mark.requirement("C-T005")
@pytest.mark.parametrize("decision", BAD_DECISIONS.values(), ids=BAD_DECISIONS)
def test_bad_evidence_is_dropped_alone(decision: Any) -> None:
    entry = entry_of(replace(CAPACITY, replica_scheduler=decision))
    assert (entry.replica_member_id, entry.replica_selection) == ("member-b", "identity_passed")
    assert (entry.freshness, entry.replica_scheduler) == ("", None)


@pytest.mark.requirement("C-T005")
def test_a_row_that_was_tampered_with_gives_a_record_without_it() -> None:
    entry = entry_of(CAPACITY)
    entry.replica_scheduler = {**DECISION_JSON, "url": "http://10.0.0.1"}
    entry.reason = "Traceback (most recent call last)"
    again = entry.as_record()
    assert again.replica_scheduler is None
    assert again.attempts[0].reason == "served"
    assert again.replica_member_id == "member-b"


def test_retention_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="retention must be at least 1"):
        EntryWriter(retention=0)
