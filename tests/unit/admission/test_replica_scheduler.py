"""The capacity rank and its values: every dimension of the order, every bound, literal results."""

from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.replica_scheduler import (
    MAX_PRESSURE_PPM,
    PressureFreshness,
    PressureSignalState,
    ReplicaCandidate,
    ReplicaDecision,
    ReplicaDecisionReason,
    ReplicaPressure,
    ReplicaScore,
    copy_replica_decision,
    copy_replica_pressure,
    rank_replicas,
)

FRESH, STALE, FAILED, UNKNOWN = PressureFreshness
VALID, MISSING, INVALID = PressureSignalState


def fresh(ppm: int = 0) -> ReplicaPressure:
    return ReplicaPressure(FRESH, ppm, VALID, VALID)


def member(
    member_id: str,
    active: int = 0,
    ceiling: int = 2,
    pressure: ReplicaPressure | None = None,
    eligible: bool = True,
) -> ReplicaCandidate:
    return ReplicaCandidate(member_id, eligible, active, ceiling, pressure or fresh())


def order(decision: ReplicaDecision) -> list[str]:
    return [score.member_id for score in decision.scores]


# The order ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-R005", "C-R008", "C-T002", "C-A001", "C-A003")
@pytest.mark.parametrize(
    ("candidates", "cursor", "expected"),
    [
        pytest.param((member("a"), member("b", 1)), 1, ["a", "b"], id="0/2 before 1/2, whatever the cursor"),
        pytest.param((member("a", 1), member("b", 1)), 0, ["a", "b"], id="equal: the cursor's member first"),
        pytest.param((member("a", 1), member("b", 1)), 1, ["b", "a"], id="equal: rotation"),
        pytest.param((member("a", 1, 2), member("b", 3, 8)), 0, ["b", "a"], id="3/8 before 1/2"),
        pytest.param((member("a", 2, 4), member("b", 1, 2)), 1, ["b", "a"], id="2/4 equals 1/2"),
        pytest.param(
            (member("a", 1, 99_999), member("b", 1, 100_000)),
            0,
            ["b", "a"],
            id="loads that are both 10 ppm differ",
        ),
        pytest.param(
            (member("a", 99_997, 99_998), member("b", 99_998, 99_999)), 0, ["a", "b"], id="nearly full"
        ),
        pytest.param(
            (member("a", pressure=ReplicaPressure()), member("b", 1)),
            1,
            ["a", "b"],
            id="unknown 0/2 beats fresh 1/2",
        ),
        pytest.param(
            (member("a", pressure=ReplicaPressure()), member("b")),
            0,
            ["b", "a"],
            id="fresh zero beats unknown at 0/2 each",
        ),
        pytest.param(
            (member("a", pressure=ReplicaPressure()), member("b", pressure=fresh(MAX_PRESSURE_PPM))),
            0,
            ["b", "a"],
            id="the largest fresh pressure beats unknown",
        ),
        pytest.param(
            (member("a", pressure=fresh(2)), member("b", pressure=fresh(1))),
            0,
            ["b", "a"],
            id="less pressure",
        ),
        pytest.param(
            (member("a", pressure=fresh(2_000_001)), member("b", pressure=fresh(2_000_000))),
            0,
            ["b", "a"],
            id="pressure above one is not clamped",
        ),
        pytest.param(
            (
                member("a", pressure=ReplicaPressure(STALE, None, VALID, VALID)),
                member("b", pressure=ReplicaPressure(FAILED)),
                member("c", pressure=ReplicaPressure(UNKNOWN)),
            ),
            1,
            ["b", "c", "a"],
            id="stale, failed and unknown rank alike",
        ),
    ],
)
def test_order(candidates: tuple[ReplicaCandidate, ...], cursor: int, expected: list[str]) -> None:
    decision = rank_replicas(candidates, cursor)
    assert order(decision) == expected
    assert decision.selected_member_id == expected[0]
    assert decision.reason is ReplicaDecisionReason.SELECTED


@pytest.mark.requirement("C-R012", "C-T002")
def test_a_decision_says_everything_about_the_choice() -> None:
    decision = rank_replicas(
        (
            member("c", 1, 4, fresh(5)),
            member("a", 1, 4, ReplicaPressure(STALE, None, VALID, MISSING)),
            member("b", 4, 4),
            member("d", 0, 1, eligible=False),
            member("e", 0, 1, fresh(0)),
        ),
        3,
    )
    assert decision == ReplicaDecision(
        selected_member_id="e",
        reason=ReplicaDecisionReason.SELECTED,
        eligible_member_ids=("a", "c", "e"),
        scores=(
            ReplicaScore("e", 0, 1, FRESH, False, 0, 1),
            ReplicaScore("c", 1, 4, FRESH, False, 5, 4),
            ReplicaScore("a", 1, 4, STALE, True, None, 2),
        ),
    )


@pytest.mark.requirement("C-R002", "C-T002")
def test_nobody_eligible_is_an_ordinary_decision() -> None:
    decision = rank_replicas((member("a", 2), member("b", eligible=False), member("c", 7)), 2)
    assert decision == ReplicaDecision(None, ReplicaDecisionReason.NO_ELIGIBLE_MEMBER, (), ())


@pytest.mark.requirement("C-T002")
def test_candidates_may_come_in_any_order() -> None:
    candidates = (member("a"), member("b", pressure=fresh(7)), member("c", eligible=False), member("d", 1))
    expected = [["a", "b", "d"], ["a", "b", "d"], ["a", "b", "d"], ["a", "b", "d"]]
    for cursor in range(4):
        decisions = [rank_replicas(ordering, cursor) for ordering in permutations(candidates)]
        assert order(decisions[0]) == expected[cursor]
        assert all(decision == decisions[0] for decision in decisions)
        assert decisions[0].eligible_member_ids == ("a", "b", "d")


@pytest.mark.requirement("C-T002")
def test_rotation_counts_members_that_are_not_eligible() -> None:
    candidates = (member("a"), member("b", eligible=False), member("c"))
    assert [order(rank_replicas(candidates, cursor)) for cursor in range(3)] == [
        ["a", "c"],
        ["c", "a"],
        ["c", "a"],
    ]


@pytest.mark.requirement("C-R008", "C-T002")
def test_sixteen_equal_members_rotate() -> None:
    candidates = tuple(member(f"m{index:02}") for index in range(16))
    for cursor in range(16):
        decision = rank_replicas(candidates, cursor)
        assert order(decision) == [f"m{(cursor + step) % 16:02}" for step in range(16)]
        assert [score.rotating_rank for score in decision.scores] == list(range(16))


pressures = st.one_of(
    st.integers(0, MAX_PRESSURE_PPM).map(fresh),
    st.integers(0, 3).map(fresh),
    st.sampled_from([ReplicaPressure(STALE, None, VALID, VALID), ReplicaPressure(FAILED), ReplicaPressure()]),
)
ceilings = st.one_of(st.integers(1, 4), st.integers(1, 100_000))


@st.composite
def rankings(draw: st.DrawFn) -> tuple[tuple[ReplicaCandidate, ...], int]:
    size = draw(st.integers(2, 16))
    candidates = []
    for index in range(size):
        ceiling = draw(ceilings)
        active = draw(st.one_of(st.integers(0, ceiling), st.integers(0, 3), st.just(1_000_000_000)))
        eligible = draw(st.sampled_from([True, True, True, False]))
        candidates.append(member(f"m{index:02}", active, ceiling, draw(pressures), eligible))
    return tuple(draw(st.permutations(candidates))), draw(st.integers(0, size - 1))


@pytest.mark.requirement("C-R008", "C-T002")
@given(rankings())
def test_the_order_is_the_documented_one(ranking: tuple[tuple[ReplicaCandidate, ...], int]) -> None:
    candidates, cursor = ranking
    ids = sorted(candidate.member_id for candidate in candidates)

    def score(candidate: ReplicaCandidate) -> tuple[Fraction, bool, int, int]:
        return (
            Fraction(candidate.active_requests, candidate.max_concurrency),
            candidate.pressure.freshness is not FRESH,
            candidate.pressure.pressure_ppm or 0,
            (ids.index(candidate.member_id) - cursor) % len(ids),
        )

    eligible = [c for c in candidates if c.eligible and c.active_requests < c.max_concurrency]
    decision = rank_replicas(candidates, cursor)
    assert order(decision) == [candidate.member_id for candidate in sorted(eligible, key=score)]
    assert copy_replica_decision(decision) == decision
    for row in decision.scores:
        source = next(candidate for candidate in eligible if candidate.member_id == row.member_id)
        assert (row.local_active, row.local_capacity) == (source.active_requests, source.max_concurrency)
        assert (row.freshness, row.upstream_pressure_ppm) == (
            source.pressure.freshness,
            source.pressure.pressure_ppm,
        )
        assert row.rotating_rank == score(source)[3]


# What is refused ---------------------------------------------------------------------------------------


class SubTuple(tuple):  # type: ignore[type-arg]
    pass


class SubCandidate(ReplicaCandidate):
    pass


class SubStr(str):
    __slots__ = ()


class SubInt(int):
    pass


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize(
    "candidates",
    [
        (),
        (member("a"),),
        [member("a"), member("b")],
        SubTuple((member("a"), member("b"))),
        (member("a"), member("a")),
        (member("a"), object()),
        (member("a"), None),
        (member("a"), SubCandidate("b", True, 0, 2, fresh())),
        (member("a"), object.__new__(ReplicaCandidate)),
        tuple(member(f"m{index}") for index in range(17)),
        None,
    ],
)
def test_candidates_that_are_refused(candidates: object) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica candidates?\Z"):
        rank_replicas(candidates, 0)  # type: ignore[arg-type]


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize("cursor", [-1, 2, True, 0.0, "0", None, SubInt(1)])
def test_cursors_that_are_refused(cursor: object) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica cursor\Z"):
        rank_replicas((member("a"), member("b")), cursor)  # type: ignore[arg-type]


@pytest.mark.requirement("C-T002")
def test_a_candidate_that_was_tampered_with_is_refused() -> None:
    forged = member("b")
    object.__setattr__(forged.pressure, "pressure_ppm", -1)
    with pytest.raises(ValueError, match=r"\Ainvalid replica pressure\Z"):
        rank_replicas((member("a"), forged), 0)


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize(
    "change",
    [
        {"member_id": "1a"},
        {"member_id": "secret/path"},
        {"member_id": ""},
        {"member_id": "a" * 65},
        {"member_id": "a\n"},
        {"member_id": SubStr("a")},
        {"member_id": None},
        {"eligible": 1},
        {"eligible": None},
        {"active_requests": -1},
        {"active_requests": 1_000_000_001},
        {"active_requests": True},
        {"active_requests": 1.0},
        {"active_requests": SubInt(1)},
        {"max_concurrency": 0},
        {"max_concurrency": 100_001},
        {"max_concurrency": True},
        {"max_concurrency": 2.0},
        {"pressure": None},
        {"pressure": {}},
    ],
)
def test_candidate_fields_are_closed(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica candidate\Z"):
        replace(member("a"), **change)  # type: ignore[arg-type]


@pytest.mark.requirement("C-T002")
@pytest.mark.parametrize(
    "values",
    [
        ("fresh", 0, VALID, VALID),
        (FRESH, None, VALID, VALID),
        (FRESH, -1, VALID, VALID),
        (FRESH, MAX_PRESSURE_PPM + 1, VALID, VALID),
        (FRESH, True, VALID, VALID),
        (FRESH, 1.0, VALID, VALID),
        (FRESH, SubInt(1), VALID, VALID),
        (FRESH, 0, "valid", VALID),
        (FRESH, 0, VALID, None),
        (FRESH, 0, MISSING, MISSING),
        (FRESH, 0, VALID, INVALID),
        (FRESH, 1_000_001, MISSING, VALID),
        (STALE, 0, VALID, VALID),
        (STALE, None, MISSING, MISSING),
        (STALE, None, INVALID, VALID),
        (FAILED, 0, VALID, VALID),
        (UNKNOWN, 0, MISSING, MISSING),
        (None, None, MISSING, MISSING),
    ],
)
def test_pressure_fields_are_closed(values: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica pressure\Z"):
        ReplicaPressure(*values)  # type: ignore[arg-type]


@pytest.mark.requirement("C-T002")
def test_pressure_at_its_bounds() -> None:
    assert ReplicaPressure() == ReplicaPressure(UNKNOWN, None, MISSING, MISSING)
    assert ReplicaPressure(FRESH, 2_000_000_000_000_000, VALID, MISSING).pressure_ppm == MAX_PRESSURE_PPM
    assert ReplicaPressure(FRESH, 1_000_000, MISSING, VALID).pressure_ppm == 1_000_000
    assert MAX_PRESSURE_PPM < 2**53


SCORE = ReplicaScore("a", 1, 2, FRESH, False, 10, 0)


@pytest.mark.requirement("C-T002", "C-T005")
@pytest.mark.parametrize(
    "change",
    [
        {"member_id": "1"},
        {"member_id": SubStr("a")},
        {"local_active": -1},
        {"local_active": 2},
        {"local_active": True},
        {"local_capacity": 0},
        {"local_capacity": 100_001},
        {"local_capacity": "2"},
        {"freshness": "fresh"},
        {"freshness": STALE},
        {"upstream_unknown": True},
        {"upstream_unknown": 0},
        {"upstream_pressure_ppm": None},
        {"upstream_pressure_ppm": -1},
        {"upstream_pressure_ppm": MAX_PRESSURE_PPM + 1},
        {"upstream_pressure_ppm": False},
        {"rotating_rank": -1},
        {"rotating_rank": 16},
        {"rotating_rank": False},
    ],
)
def test_score_fields_are_closed(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica score\Z"):
        replace(SCORE, **change)  # type: ignore[arg-type]


FIRST = ReplicaScore("b", 0, 2, STALE, True, None, 1)
SECOND = ReplicaScore("a", 1, 2, FRESH, False, 10, 0)
DECISION = ReplicaDecision("b", ReplicaDecisionReason.SELECTED, ("a", "b"), (FIRST, SECOND))


class SubScore(ReplicaScore):
    pass


class SubDecision(ReplicaDecision):
    pass


@pytest.mark.requirement("C-T002", "C-T005")
@pytest.mark.parametrize(
    "change",
    [
        {"selected_member_id": None},
        {"selected_member_id": "a"},
        {"selected_member_id": SubStr("b")},
        {"reason": "selected"},
        {"reason": ReplicaDecisionReason.NO_ELIGIBLE_MEMBER},
        {"eligible_member_ids": ("b", "a")},
        {"eligible_member_ids": ("a", "a")},
        {"eligible_member_ids": ("a", "c")},
        {"eligible_member_ids": ("a",)},
        {"eligible_member_ids": ["a", "b"]},
        {"eligible_member_ids": ("a", SubStr("b"))},
        {"scores": (SECOND, FIRST)},
        {"scores": (FIRST, FIRST)},
        {"scores": [FIRST, SECOND]},
        {"scores": (FIRST, replace(SECOND, rotating_rank=1))},
        {"scores": (FIRST, SubScore("a", 1, 2, FRESH, False, 10, 0))},
        {"scores": (FIRST, None)},
        {"scores": ()},
        {"eligible_member_ids": (), "scores": ()},
    ],
)
def test_decision_fields_are_closed(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica decision\Z"):
        replace(DECISION, **change)  # type: ignore[arg-type]


@pytest.mark.requirement("C-T002", "C-T005")
def test_a_decision_without_rows_selects_nobody() -> None:
    reason = ReplicaDecisionReason.NO_ELIGIBLE_MEMBER
    assert ReplicaDecision(None, reason, (), ()).selected_member_id is None
    with pytest.raises(ValueError, match=r"\Ainvalid replica decision\Z"):
        ReplicaDecision("a", reason, (), ())
    seventeen = tuple(
        ReplicaScore(f"m{index:02}", 0, 1, FRESH, False, index, index % 16) for index in range(17)
    )
    ids = tuple(score.member_id for score in seventeen)
    with pytest.raises(ValueError, match=r"\Ainvalid replica decision\Z"):
        ReplicaDecision("m00", ReplicaDecisionReason.SELECTED, ids, seventeen)


# Copies ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-T005")
def test_copies_are_equal_and_separate() -> None:
    copy = copy_replica_decision(DECISION)
    assert copy == DECISION
    assert copy is not DECISION
    assert copy.scores[0] is not DECISION.scores[0]
    assert copy_replica_pressure(fresh(3)) == fresh(3)


@pytest.mark.requirement("C-T005")
@pytest.mark.parametrize(
    "forged",
    [
        None,
        {},
        "selected",
        object.__new__(ReplicaDecision),
        SubDecision("b", ReplicaDecisionReason.SELECTED, ("a", "b"), (FIRST, SECOND)),
    ],
)
def test_forged_decisions_are_refused(forged: object) -> None:
    with pytest.raises(ValueError, match=r"\Ainvalid replica decision\Z"):
        copy_replica_decision(forged)


@pytest.mark.requirement("C-T005")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("member_id", "http://10.0.0.1"),
        ("local_active", 5),
        ("upstream_pressure_ppm", 3),
        ("freshness", FRESH),
        ("rotating_rank", 99),
    ],
)
def test_scores_that_were_tampered_with_are_refused(field: str, value: object) -> None:
    score = replace(FIRST)
    decision = replace(DECISION, scores=(score, SECOND))
    object.__setattr__(score, field, value)
    with pytest.raises(ValueError, match=r"\Ainvalid replica (score|decision)\Z"):
        copy_replica_decision(decision)


@pytest.mark.requirement("C-T005")
def test_half_built_values_are_refused() -> None:
    decision = replace(DECISION)
    object.__setattr__(decision, "scores", (FIRST, object.__new__(ReplicaScore)))
    with pytest.raises(ValueError, match=r"\Ainvalid replica score\Z"):
        copy_replica_decision(decision)
    object.__setattr__(decision, "scores", (FIRST, object()))
    with pytest.raises(ValueError, match=r"\Ainvalid replica decision\Z"):
        copy_replica_decision(decision)
    object.__setattr__(decision, "scores", (FIRST,) * 17)
    with pytest.raises(ValueError, match=r"\Ainvalid replica decision\Z"):
        copy_replica_decision(decision)
    with pytest.raises(ValueError, match=r"\Ainvalid replica pressure\Z"):
        copy_replica_pressure(object.__new__(ReplicaPressure))
    with pytest.raises(ValueError, match=r"\Ainvalid replica pressure\Z"):
        copy_replica_pressure(None)


@pytest.mark.requirement("C-R014", "C-T002")
def test_values_are_frozen() -> None:
    for value, field in (
        (fresh(), "pressure_ppm"),
        (member("a"), "active_requests"),
        (SCORE, "local_active"),
        (rank_replicas((member("a"), member("b")), 0).scores[0], "local_active"),
        (rank_replicas((member("a"), member("b")), 0), "selected_member_id"),
    ):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field, 1)
