"""What may be kept of one request's routing: the canonical record and its projection."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from admission.replica_scheduler import (
    PressureFreshness,
    ReplicaDecision,
    ReplicaDecisionReason,
    ReplicaScore,
)
from routing.config import RouterConfig
from routing.records import (
    REASONS,
    AttemptRecord,
    DecisionRecord,
    canonical_record,
    record_as_dict,
    record_from_mapping,
)
from tests.unit.routing.records_samples import (
    BAD_CAPTURED_DECISIONS,
    BAD_DECISIONS,
    CAPACITY,
    CAPACITY_JSON,
    CONFIG,
    DECISION,
    DIRECT,
    DIRECT_JSON,
    DIRECT_REFUSED,
    PLANTED,
    PLANTED_TRACE,
    REFUSED,
    ROUND_ROBIN,
    SubclassedDict,
    SubclassedInt,
    SubclassedText,
    Tripwire,
    served,
)

AN_OBJECT = pytest.param(Tripwire(), id="an object")
WITHOUT_EVIDENCE = replace(CAPACITY, replica_scheduler=None)
OFFLINE_AND_CONFIGURED = pytest.mark.parametrize("config", [None, CONFIG], ids=["offline", "configured"])


def changed(record: DecisionRecord, **changes: Any) -> DecisionRecord:
    """``record`` with values that its types would not allow."""
    return replace(record, **changes)


def attempt(**changes: Any) -> AttemptRecord:
    return replace(served("primary"), **changes)


# The projection ------------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-T011", "Q-R013", "C-R013")
def test_direct_record_has_the_keys_it_always_had() -> None:
    assert record_as_dict(DIRECT) == DIRECT_JSON
    assert list(record_as_dict(DIRECT)) == [
        "route",
        "kind",
        "requested_tier",
        "served_tier",
        "attempts",
        "total_prompt_tokens",
        "total_completion_tokens",
        "request_bytes",
        "response_bytes",
        "latency_ms",
        "request_id",
        "workbench_run_id",
        "task_id",
    ]


@pytest.mark.requirement("C-T005", "C-R012")
def test_capacity_record_explains_the_choice() -> None:
    assert record_as_dict(CAPACITY) == CAPACITY_JSON
    assert list(record_as_dict(CAPACITY))[-3:] == [
        "replica_member_id",
        "replica_selection",
        "replica_scheduler",
    ]


@pytest.mark.requirement("Q-T011", "C-T005.1")
def test_round_robin_record_has_the_pair_and_no_scheduler_evidence() -> None:
    assert record_as_dict(ROUND_ROBIN) == {
        **DIRECT_JSON,
        "route": "llm.rotating",
        "requested_tier": "rotating",
        "served_tier": "rotating",
        "attempts": [
            {
                "tier_id": "rotating",
                "outcome": "served",
                "succeeded": True,
                "reason": "served",
                "prompt_tokens": 11,
                "completion_tokens": 22,
            }
        ],
        "replica_member_id": "member-a",
        "replica_selection": "identity_passed",
    }


@pytest.mark.requirement("Q-T011", "C-T005")
@pytest.mark.parametrize("selection", ["not_admitted", "request_rejected"])
def test_refusal_before_selection_names_no_member_and_makes_up_no_attempt(selection: str) -> None:
    assert record_as_dict(changed(REFUSED, replica_selection=selection)) == {
        **DIRECT_JSON,
        "route": "llm.primary",
        "requested_tier": "primary",
        "served_tier": "-",
        "attempts": [],
        "total_prompt_tokens": 0,
        "total_completion_tokens": 0,
        "replica_selection": selection,
    }


def test_refusal_on_a_direct_tier_is_a_skipped_attempt() -> None:
    assert record_as_dict(DIRECT_REFUSED) == {
        **DIRECT_JSON,
        "served_tier": "-",
        "attempts": [
            {
                "tier_id": "direct",
                "outcome": "skipped",
                "succeeded": False,
                "reason": "tools_unsupported",
                "prompt_tokens": 0,
                "completion_tokens": 0,
            }
        ],
        "total_prompt_tokens": 0,
        "total_completion_tokens": 0,
    }


def test_absent_strings_are_dashes() -> None:
    bare = DecisionRecord(route=None, kind=None, requested_tier=None)
    assert record_as_dict(bare) == {
        "route": "-",
        "kind": "-",
        "requested_tier": "-",
        "served_tier": "-",
        "attempts": [],
        "total_prompt_tokens": 0,
        "total_completion_tokens": 0,
        "request_bytes": 0,
        "response_bytes": 0,
        "latency_ms": 0,
        "request_id": "-",
        "workbench_run_id": "-",
        "task_id": "-",
    }


def test_selection_is_not_successful_generation() -> None:
    """Q-T011: a member was selected, its answer broke off."""
    failed = attempt(outcome="error", succeeded=False, reason="completion_error")
    record = canonical_record(replace(CAPACITY, served_tier=None, attempts=(failed,)), config=CONFIG)
    assert (record.served, record.replica_member_id, record.attempts[0].outcome) == (
        False,
        "member-b",
        "error",
    )
    assert record.replica_scheduler == DECISION


@OFFLINE_AND_CONFIGURED
@pytest.mark.parametrize("record", [DIRECT, ROUND_ROBIN, CAPACITY, REFUSED, DIRECT_REFUSED])
def test_sound_record_passes_unchanged(record: DecisionRecord, config: RouterConfig | None) -> None:
    checked = canonical_record(record, config=config)
    assert checked == record
    assert canonical_record(checked) is checked
    assert canonical_record(checked, config=CONFIG) == record


def test_sound_evidence_is_copied() -> None:
    """C-T005: what the lease holds and what the record holds are two objects."""
    kept = canonical_record(CAPACITY).replica_scheduler
    assert kept == DECISION
    assert kept is not DECISION
    assert kept is not None
    assert kept.scores[0] is not DECISION.scores[0]


@pytest.mark.parametrize("value", [DIRECT_JSON, None, "record", AN_OBJECT])
def test_only_records_are_records(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^not a decision record$"):
        canonical_record(value)


def test_changed_copy_of_a_canonical_record_is_checked_again() -> None:
    record = changed(canonical_record(CAPACITY), request_id="http://10.0.0.7/")
    assert canonical_record(record).request_id is None


# Names and numbers ---------------------------------------------------------------------------------------


@OFFLINE_AND_CONFIGURED
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize(
    "name",
    [
        "kind",
        "requested_tier",
        "served_tier",
        "replica_member_id",
        "replica_selection",
        "replica_scheduler",
        "attempts",
        "latency_ms",
        "request_bytes",
        "recorded_at",
    ],
)
@pytest.mark.requirement("C-R012", "Q-R012", "C-T005", "Q-T011")
def test_planted_value_in_a_field_is_not_kept(name: str, planted: str, config: RouterConfig | None) -> None:
    record = canonical_record(changed(CAPACITY, **{name: planted}), config=config)
    assert not PLANTED_TRACE.search(repr(record))
    assert not PLANTED_TRACE.search(json.dumps(record_as_dict(record)))


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.requirement("C-R012", "Q-R012")
def test_planted_route_is_not_kept_where_it_is_recorded(planted: str) -> None:
    """An alias may look like a host, so the configuration decides; like a URL it never may."""
    record = canonical_record(changed(CAPACITY, route=planted), config=CONFIG)
    assert not PLANTED_TRACE.search(repr(record))
    if "://" in planted or " " in planted:
        assert canonical_record(changed(CAPACITY, route=planted)).route is None


@pytest.mark.parametrize("name", ["request_id", "workbench_run_id", "task_id"])
@pytest.mark.parametrize("planted", [text for text in PLANTED.values() if "/" in text or " " in text])
@pytest.mark.requirement("C-R012", "Q-R012")
def test_planted_correlation_id_is_not_kept(name: str, planted: str) -> None:
    """A caller's own id may look like a host: it is the caller's. Like anything else it may not."""
    assert getattr(canonical_record(changed(CAPACITY, **{name: planted})), name) is None


@OFFLINE_AND_CONFIGURED
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("name", ["tier_id", "outcome", "reason", "succeeded", "prompt_tokens"])
@pytest.mark.requirement("C-R012", "Q-R012")
def test_planted_value_in_an_attempt_is_not_kept(
    name: str, planted: str, config: RouterConfig | None
) -> None:
    record = canonical_record(changed(CAPACITY, attempts=(attempt(**{name: planted}),)), config=config)
    assert not PLANTED_TRACE.search(repr(record))
    assert len(record.attempts) == 1


@OFFLINE_AND_CONFIGURED
@pytest.mark.parametrize("name", [field.name for field in fields(DecisionRecord) if field.init])
@pytest.mark.parametrize("value", [AN_OBJECT, SubclassedText("primary"), ["primary"], b"primary", math.nan])
def test_arbitrary_object_is_neither_kept_nor_looked_into(
    name: str, value: object, config: RouterConfig | None
) -> None:
    record = canonical_record(changed(CAPACITY, **{name: value}), config=config)
    assert getattr(record, name) in (None, 0, ())


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("chat", "chat"),
        ("responses", "responses"),
        ("messages", "messages"),
        ("embeddings", "embeddings"),
        ("rerank", "rerank"),
        ("transcriptions", "transcriptions"),
        ("speech", "speech"),
        ("completions", None),
        ("", None),
    ],
)
def test_kind_is_the_callers_wire(kind: str, kept: str | None) -> None:
    assert canonical_record(changed(DIRECT, kind=kind)).kind == kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0, 0),
        (2**53 - 1, 2**53 - 1),
        (2**53, 0),
        (-1, 0),
        (True, 0),
        (1.0, 0),
        ("7", 0),
        (None, 0),
        (10**400, 0),
        (SubclassedInt(7), 0),
    ],
)
@pytest.mark.parametrize(
    "name", ["total_prompt_tokens", "total_completion_tokens", "request_bytes", "response_bytes"]
)
def test_counts_are_exact_and_bounded(name: str, value: Any, kept: int) -> None:
    assert getattr(canonical_record(changed(DIRECT, **{name: value})), name) == kept


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_counts_of_an_attempt_are_exact_and_bounded(name: str) -> None:
    for value, kept in ((2**53 - 1, 2**53 - 1), (2**53, 0), (-1, 0), (True, 0), (1.5, 0)):
        record = canonical_record(changed(CAPACITY, attempts=(attempt(**{name: value}),)))
        assert getattr(record.attempts[0], name) == kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (12.34567, 12.346),
        (812, 812),
        (0.0, 0.0),
        (-0.0, 0.0),
        (-1.0, 0),
        (math.nan, 0),
        (math.inf, 0),
        (-math.inf, 0),
        (1e300, 0),
        (True, 0),
        ("12", 0),
    ],
)
def test_latency_is_finite_milliseconds(value: Any, kept: float) -> None:
    latency = canonical_record(changed(DIRECT, latency_ms=value)).latency_ms
    assert str(latency) == str(kept)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1_767_225_600, 1_767_225_600.0),
        (0.5, 0.5),
        (-1.0, None),
        (math.nan, None),
        (1e12, None),
        ("now", None),
    ],
)
def test_time_of_record_is_within_four_digit_years(value: Any, kept: float | None) -> None:
    assert canonical_record(changed(DIRECT, recorded_at=value)).recorded_at == kept


@pytest.mark.parametrize("name", ["request_id", "workbench_run_id", "task_id"])
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("A1_b.c:d-e", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("-a", False),
        ("a b", False),
        ("a\n", False),
        ("http://a", False),
        ("é", False),
    ],
)
def test_correlation_ids_match_their_grammar_or_are_absent(name: str, value: str, kept: bool) -> None:
    record = canonical_record(changed(DIRECT, **{name: value}))
    assert getattr(record, name) == (value if kept else None)


# Attempts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outcome", "reason"), [(o, r) for o, reasons in REASONS.items() for r in reasons])
def test_closed_reasons_are_kept(outcome: Any, reason: str) -> None:
    made = attempt(outcome=outcome, succeeded=outcome == "served", reason=reason)
    assert canonical_record(replace(CAPACITY, attempts=(made,))).attempts == (made,)


@pytest.mark.parametrize(
    ("outcome", "reason", "kept"),
    [
        ("served", "stop", "served"),
        ("served", "backend_error", "served"),
        ("error", "ReadTimeout", "backend_error"),
        ("error", "served", "backend_error"),
        ("error", "HTTP 500 from http://10.0.0.7", "backend_error"),
        ("skipped", "because", "-"),
        ("skipped", "media_admission_http://10.0.0.7", "-"),
    ],
)
@pytest.mark.requirement("Q-T011")
def test_other_reasons_become_the_plain_one_of_their_outcome(outcome: Any, reason: str, kept: str) -> None:
    made = attempt(outcome=outcome, succeeded=outcome == "served", reason=reason)
    assert canonical_record(replace(CAPACITY, attempts=(made,))).attempts[0].reason == kept


@pytest.mark.parametrize(
    ("outcome", "succeeded", "kept"),
    [
        ("served", True, ("served", True)),
        ("served", False, ("error", False)),
        ("served", 1, ("error", False)),
        ("error", True, ("error", False)),
        ("skipped", True, ("skipped", False)),
        ("done", True, ("error", False)),
    ],
)
def test_success_needs_both_fields(outcome: Any, succeeded: Any, kept: tuple[str, bool]) -> None:
    record = canonical_record(replace(CAPACITY, attempts=(attempt(outcome=outcome, succeeded=succeeded),)))
    assert (record.attempts[0].outcome, record.attempts[0].succeeded) == kept
    assert record.served is kept[1]


def test_served_tier_needs_an_attempt_that_served_it() -> None:
    failed = attempt(outcome="error", succeeded=False, reason="backend_error")
    assert canonical_record(replace(CAPACITY, attempts=(failed,))).served_tier is None
    assert canonical_record(replace(CAPACITY, served_tier="other")).served_tier is None
    assert canonical_record(replace(CAPACITY, attempts=())).served_tier is None


def test_nameless_attempt_serves_no_nameless_tier() -> None:
    record = canonical_record(
        replace(DIRECT, served_tier="-", attempts=(attempt(tier_id="http://10.0.0.7"),))
    )
    assert (record.served_tier, record.attempts[0].tier_id) == (None, "-")


def test_attempts_are_bounded_and_exact() -> None:
    many = (served("direct"),) * 16
    assert canonical_record(replace(DIRECT, attempts=many)).attempts == many
    assert canonical_record(replace(DIRECT, attempts=(*many, served("direct")))).attempts == ()
    assert canonical_record(changed(DIRECT, attempts=list(many))).attempts == ()
    mixed = (Tripwire(), served("direct"), {"tier_id": "direct"})
    assert canonical_record(changed(DIRECT, attempts=mixed)).attempts == (served("direct"),)


# The replica pair ----------------------------------------------------------------------------------------

ONE = (served("primary"),)
ERROR = (attempt(outcome="error", succeeded=False, reason="client_disconnected"),)
SKIPPED = (attempt(outcome="skipped", succeeded=False, reason="quiesced"),)


@pytest.mark.requirement("Q-T011")
@pytest.mark.parametrize(
    ("member", "selection", "attempts", "kept"),
    [
        ("member-b", "identity_passed", ONE, True),
        ("member-b", "identity_passed", ERROR, True),
        (None, "not_admitted", (), True),
        (None, "request_rejected", (), True),
        (None, "identity_passed", ONE, False),
        ("member-b", None, ONE, False),
        ("member-b", "not_admitted", (), False),
        ("member-b", "request_rejected", (), False),
        ("member-b", "identity_passed", (), False),
        ("member-b", "identity_passed", ONE * 2, False),
        ("member-b", "identity_passed", SKIPPED, False),
        ("member-b", "identity_passed", (served("rotating"),), False),
        (None, "not_admitted", ONE, False),
        (None, "request_rejected", ERROR, False),
        ("member-b", "health_passed", ONE, False),
        ("member-b", "selected", ONE, False),
        ("-member", "identity_passed", ONE, False),
        ("m" * 65, "identity_passed", ONE, False),
        ("member b", "identity_passed", ONE, False),
        ("", "identity_passed", ONE, False),
        ("-", "not_admitted", (), False),
        (7, "identity_passed", ONE, False),
        (SubclassedText("member-b"), "identity_passed", ONE, False),
        ("member-b", SubclassedText("identity_passed"), ONE, False),
        pytest.param(Tripwire(), "identity_passed", ONE, False, id="an object for a member"),
        pytest.param("member-b", Tripwire(), ONE, False, id="an object for a selection"),
    ],
)
@OFFLINE_AND_CONFIGURED
def test_replica_metadata_stands_or_falls_as_a_pair(
    member: Any, selection: Any, attempts: Any, kept: bool, config: RouterConfig | None
) -> None:
    record = canonical_record(
        changed(CAPACITY, replica_member_id=member, replica_selection=selection, attempts=attempts),
        config=config,
    )
    pair = (record.replica_member_id, record.replica_selection)
    assert pair == ((member, selection) if kept else (None, None))
    if not kept:
        assert record.replica_scheduler is None
    projected = record_as_dict(record)
    assert ("replica_member_id" in projected) is (kept and member is not None)
    assert ("replica_selection" in projected) is kept
    assert projected["request_id"] == "req-1"


@pytest.mark.requirement("Q-T011")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"replica_member_id": "member-h"}, "a member that is not declared"),
        ({"requested_tier": "rotating"}, "another tier than the alias's"),
        ({"route": "llm.direct"}, "another alias"),
        ({"kind": "embeddings"}, "a kind that has no tiers"),
    ],
)
def test_only_a_member_declared_in_the_selected_tier_is_stamped(changes: dict[str, Any], named: str) -> None:
    sound = changed(CAPACITY, **changes)
    record = canonical_record(sound, config=CONFIG)
    assert (record.replica_member_id, record.replica_selection, record.replica_scheduler) == (
        None,
        None,
        None,
    ), named
    assert record.total_completion_tokens == 22


@pytest.mark.parametrize("selection", ["identity_passed", "not_admitted", "request_rejected"])
def test_direct_tier_has_no_replica_metadata(selection: Any) -> None:
    member = "member-a" if selection == "identity_passed" else None
    attempts = DIRECT.attempts if member else ()
    record = canonical_record(
        replace(DIRECT, replica_member_id=member, replica_selection=selection, attempts=attempts),
        config=CONFIG,
    )
    assert (record.replica_member_id, record.replica_selection) == (None, None)


# Names against the configuration -------------------------------------------------------------------------


def test_alias_that_is_not_configured_is_never_a_label() -> None:
    record = canonical_record(replace(DIRECT, route="llm.made-up"), config=CONFIG)
    assert (record.route, record.requested_tier, record.served_tier) == (None, None, None)
    assert record.attempts[0].tier_id == "-"
    assert record.total_prompt_tokens == 11


def test_record_names_no_tier_but_its_aliass() -> None:
    other = replace(DIRECT, requested_tier="primary", served_tier="rotating", attempts=(served("primary"),))
    record = canonical_record(other, config=CONFIG)
    assert (record.route, record.requested_tier, record.served_tier) == ("llm.direct", None, None)
    assert record.attempts[0].tier_id == "-"


@pytest.mark.parametrize(("route", "kind"), [("embed", "embeddings"), ("dictation", "transcriptions")])
def test_purpose_model_and_audio_route_stand_for_themselves(route: str, kind: Any) -> None:
    made = replace(
        DIRECT, route=route, kind=kind, requested_tier=route, served_tier=route, attempts=(served(route),)
    )
    assert canonical_record(made, config=CONFIG) == made
    assert canonical_record(replace(made, kind="chat"), config=CONFIG).route is None


# Scheduler evidence --------------------------------------------------------------------------------------


@OFFLINE_AND_CONFIGURED
@pytest.mark.parametrize("value", BAD_DECISIONS.values(), ids=BAD_DECISIONS)
@pytest.mark.requirement("C-T005", "C-R012")
def test_bad_evidence_is_dropped_alone(value: object, config: RouterConfig | None) -> None:
    record = canonical_record(changed(CAPACITY, replica_scheduler=value), config=config)
    assert record == WITHOUT_EVIDENCE
    assert record_as_dict(record) == record_as_dict(WITHOUT_EVIDENCE)


@pytest.mark.parametrize("value", BAD_CAPTURED_DECISIONS.values(), ids=BAD_CAPTURED_DECISIONS)
@pytest.mark.requirement("C-T005")
def test_bad_captured_evidence_is_dropped_alone(value: object) -> None:
    record = record_from_mapping({**CAPACITY_JSON, "replica_scheduler": value})
    assert record == replace(WITHOUT_EVIDENCE, recorded_at=None)


def decision(*scores: ReplicaScore) -> ReplicaDecision:
    return ReplicaDecision(
        scores[0].member_id,
        ReplicaDecisionReason.SELECTED,
        tuple(sorted(score.member_id for score in scores)),
        scores,
    )


def score(member_id: str, active: int, capacity: int, rank: int) -> ReplicaScore:
    return ReplicaScore(member_id, active, capacity, PressureFreshness.UNKNOWN, True, None, rank)


@pytest.mark.requirement("C-T005")
@pytest.mark.parametrize(
    "evidence",
    [
        decision(score("member-b", 0, 5, 0)),
        decision(score("member-b", 0, 4, 0), score("member-a", 1, 3, 1)),
        decision(score("member-b", 0, 4, 0), score("member-h", 1, 2, 1)),
    ],
    ids=["winner's ceiling", "another's ceiling", "a member that is not configured"],
)
def test_evidence_that_disagrees_with_the_configuration_is_dropped_alone(evidence: ReplicaDecision) -> None:
    record = replace(CAPACITY, replica_scheduler=evidence)
    assert canonical_record(record).replica_scheduler == evidence
    assert canonical_record(record, config=CONFIG) == WITHOUT_EVIDENCE


@pytest.mark.requirement("C-T005", "C-R013", "C-T005.1")
def test_round_robin_tier_carries_no_evidence() -> None:
    sound = decision(score("member-a", 0, 2, 0))
    record = canonical_record(replace(ROUND_ROBIN, replica_scheduler=sound), config=CONFIG)
    assert record == ROUND_ROBIN


@pytest.mark.requirement("C-T005")
@pytest.mark.parametrize(
    "record", [REFUSED, replace(REFUSED, replica_selection="request_rejected"), DIRECT, DIRECT_REFUSED]
)
@OFFLINE_AND_CONFIGURED
def test_record_without_a_selected_member_carries_no_evidence(
    record: DecisionRecord, config: RouterConfig | None
) -> None:
    assert canonical_record(replace(record, replica_scheduler=DECISION), config=config) == record


@pytest.mark.requirement("C-T005", "C-R014")
def test_sixteen_rows_are_the_most() -> None:
    rows = tuple(score(f"m{number:02}", 0, 8, number) for number in range(16))
    record = replace(CAPACITY, replica_member_id="m00", replica_scheduler=decision(*rows))
    projected = record_as_dict(record)["replica_scheduler"]
    assert isinstance(projected, dict)
    assert len(projected["scores"]) == 16
    assert len(projected["eligible_member_ids"]) == 16


# Captured JSON -------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-T005", "Q-T011")
@pytest.mark.parametrize("record", [DIRECT, ROUND_ROBIN, CAPACITY, REFUSED, DIRECT_REFUSED])
def test_projection_reads_back(record: DecisionRecord) -> None:
    captured = json.loads(json.dumps(record_as_dict(record)))
    assert record_from_mapping(captured) == replace(record, recorded_at=None)


@pytest.mark.parametrize("value", [None, [], "x", 7, AN_OBJECT, SubclassedDict(DIRECT_JSON), DIRECT])
def test_only_exact_objects_are_read(value: object) -> None:
    assert record_from_mapping(value) is None


def test_empty_object_is_a_record_of_nothing() -> None:
    assert record_from_mapping({}) == DecisionRecord(route=None, kind=None, requested_tier=None)


@pytest.mark.requirement("C-R012", "Q-R012")
@pytest.mark.parametrize("planted", [*PLANTED.values(), {"messages": [{"content": "Tell"}]}, ["Tell"]])
def test_captured_object_gives_nothing_but_its_fields(planted: object) -> None:
    captured: dict[str, object] = {
        **dict.fromkeys(CAPACITY_JSON, planted),
        "prompt": planted,
        "replica_scheduler": {**DIRECT_JSON, "prompt": planted},
        "attempts": ["Tell", {"tier_id": planted, "outcome": planted, "reason": planted, "note": planted}],
        "route": "llm.primary",
        "request_id": "req-1",
        "workbench_run_id": "-",
        "task_id": "-",
        b"route": planted,
        7: planted,
    }
    record = record_from_mapping(captured)
    assert record is not None
    assert not PLANTED_TRACE.search(repr(record))
    assert record_as_dict(record)["attempts"] == [
        {
            "tier_id": "-",
            "outcome": "error",
            "succeeded": False,
            "reason": "backend_error",
            "prompt_tokens": 0,
            "completion_tokens": 0,
        }
    ]


@pytest.mark.parametrize("attempts", [(), {}, "x", [{"outcome": "served"}] * 17, AN_OBJECT])
def test_captured_attempts_are_a_bounded_list(attempts: object) -> None:
    record = record_from_mapping({**CAPACITY_JSON, "attempts": attempts})
    assert record is not None
    assert (record.attempts, record.served_tier, record.replica_member_id) == ((), None, None)
