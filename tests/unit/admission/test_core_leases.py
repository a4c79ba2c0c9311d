"""Taking and giving back places: direct tiers, round robin, capacity, and what is refused."""

import subprocess
import sys
from dataclasses import FrozenInstanceError
from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.core import (
    AdmissionError,
    AdmissionSnapshot,
    MemberAdmissionLease,
    MemberAdmissionSnapshot,
    MemberScope,
    TierAdmission,
    TierScope,
    UnknownScopeError,
)
from admission.replica_scheduler import (
    PressureFreshness,
    ReplicaCandidate,
    ReplicaPressure,
    ValidatedPressure,
    ValidatedReadiness,
    rank_replicas,
)

from .ledgers import WAIT_SECONDS, counts, fresh, ledger_of, ready, replicas

AB = ready("a", "b")


def take(
    ledger: TierAdmission, readiness: dict[str, bool] = AB, pressure: dict[str, ReplicaPressure] | None = None
) -> MemberAdmissionLease:
    lease = ledger.acquire_member("primary", readiness, pressure)
    assert lease is not None
    return lease


# Direct tiers ------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-R013", "contract 3", "case 21")
def test_a_direct_tier_admits_up_to_its_ceiling() -> None:
    ledger = ledger_of(TierScope("solo", 2))
    first, second = ledger.acquire("solo"), ledger.acquire("solo")
    assert first is not None
    assert second is not None
    assert first.tier_id == "solo"
    assert ledger.acquire("solo") is None
    assert counts(ledger, "solo") == (2, {})
    assert first.release() is True
    third = ledger.acquire("solo")
    assert third is not None
    assert counts(ledger, "solo") == (2, {})


@pytest.mark.requirement("C-R013")
def test_a_direct_tier_without_a_ceiling_admits_everyone() -> None:
    ledger = ledger_of(TierScope("solo"))
    leases = [ledger.acquire("solo") for _ in range(500)]
    assert None not in leases
    assert counts(ledger, "solo") == (500, {})
    assert ledger.snapshot("solo").max_concurrency is None


@pytest.mark.requirement("C-R010", "C-T001", "case 3")
def test_a_lease_is_released_once() -> None:
    ledger = ledger_of(TierScope("solo", 2), replicas({"a": 1, "b": 1}))
    keep = ledger.acquire("solo")
    assert keep is not None
    for lease in (ledger.acquire("solo"), ledger.acquire_member("primary", AB)):
        assert lease is not None
        assert [lease.release() for _ in range(4)] == [True, False, False, False]
    assert counts(ledger, "solo") == (1, {})
    assert counts(ledger) == (0, {"a": 0, "b": 0})


@pytest.mark.requirement("C-R010", "C-T001")
def test_one_of_many_threads_releases_a_lease() -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 4}))
    keep = take(ledger)
    for _ in range(50):
        lease = take(ledger)
        start = Barrier(8)
        results: list[bool] = []

        def release(lease: MemberAdmissionLease = lease, start: Barrier = start) -> None:
            start.wait(WAIT_SECONDS)
            results.append(lease.release())  # noqa: B023

        threads = [Thread(target=release) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert sorted(results) == [False] * 7 + [True]
    assert counts(ledger)[0] == 1
    assert keep.release() is True
    assert counts(ledger) == (0, {"a": 0, "b": 0})


# Round robin -------------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-R008", "Q-T004", "Q-A001")
def test_round_robin_alternates_from_the_smallest_id() -> None:
    ledger = ledger_of(replicas({"member-b": None, "member-a": None}, "round_robin"))
    readiness = ready("member-a", "member-b")
    leases = [take(ledger, readiness) for _ in range(4)]
    assert [lease.member_id for lease in leases] == ["member-a", "member-b", "member-a", "member-b"]
    assert [lease.selection for lease in leases] == [None] * 4
    assert counts(ledger) == (4, {"member-a": 2, "member-b": 2})


@pytest.mark.requirement("Q-R008", "Q-T004", "case 11")
def test_round_robin_starts_at_the_smallest_eligible_and_skips_the_others() -> None:
    ledger = ledger_of(replicas({"a": None, "b": None, "c": None}, "round_robin"))
    no_a = ready("b", "c", down=("a",))
    everyone = ready("a", "b", "c")
    assert [take(ledger, no_a).member_id for _ in range(3)] == ["b", "c", "b"]
    # The rotation goes on in the full membership when the member is back.
    assert [take(ledger, everyone).member_id for _ in range(4)] == ["c", "a", "b", "c"]


@pytest.mark.requirement("Q-R008", "C-T002")
@pytest.mark.parametrize("strategy", ["round_robin", "capacity"])
def test_the_cursor_moves_on_success_only(strategy: str) -> None:
    ledger = ledger_of(replicas({"a": 1, "b": 9, "c": 9}, strategy, 3))  # type: ignore[arg-type]
    everyone = ready("a", "b", "c")
    nobody = ready(down=("a", "b", "c"))
    assert take(ledger, everyone).member_id == "a"
    for _ in range(5):
        assert ledger.acquire_member("primary", nobody) is None
    ledger.quiesce("primary")
    assert ledger.acquire_member("primary", everyone) is None
    ledger.readmit("primary")
    with pytest.raises(AdmissionError):
        ledger.acquire_member("primary", {"a": True})
    held = take(ledger, everyone)
    assert held.member_id == "b"
    last = take(ledger, everyone)
    assert last.member_id == "c"
    assert ledger.acquire_member("primary", everyone) is None
    held.release()
    last.release()
    assert take(ledger, everyone).member_id == "b"


@pytest.mark.requirement("C-R013", "contract 3")
def test_round_robin_keeps_to_a_members_ceiling() -> None:
    ledger = ledger_of(replicas({"a": 1, "b": None}, "round_robin"))
    assert [take(ledger).member_id for _ in range(4)] == ["a", "b", "b", "b"]
    assert counts(ledger) == (4, {"a": 1, "b": 3})
    snapshot = ledger.snapshot("primary")
    assert snapshot.max_concurrency is None
    assert [member.max_concurrency for member in snapshot.members] == [1, None]


@pytest.mark.requirement("C-R013", "contract 3")
def test_a_tiers_ceiling_is_not_multiplied_by_its_members() -> None:
    ledger = ledger_of(replicas({"a": None, "b": None}, "round_robin", 3))
    leases = [take(ledger) for _ in range(3)]
    assert ledger.acquire_member("primary", AB) is None
    leases[0].release()
    assert take(ledger).member_id == "b"


@pytest.mark.requirement("C-T002")
def test_round_robin_ignores_pressure_but_checks_it() -> None:
    ledger = ledger_of(replicas({"a": None, "b": None}, "round_robin"))
    assert take(ledger, AB, {"a": fresh(9), "b": fresh(0)}).member_id == "a"
    with pytest.raises(AdmissionError):
        ledger.acquire_member("primary", AB, {"a": fresh(0)})
    assert take(ledger, AB, {"a": fresh(0), "b": fresh(9)}).member_id == "b"


# Capacity ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-R004", "C-R008", "C-T012", "C-A001")
def test_the_less_loaded_member_first_then_rotation() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}))
    pressure = {"a": fresh(), "b": fresh()}
    assert take(ledger, AB, pressure).member_id == "a"
    on_b = take(ledger, AB, pressure)
    assert on_b.member_id == "b"
    on_b.release()
    # 1/2 beside 0/2 now.
    assert take(ledger, AB, pressure).member_id == "b"
    # Equal again: the cursor stands at a.
    assert take(ledger, AB, pressure).member_id == "a"
    assert take(ledger, AB, pressure).member_id == "b"
    assert ledger.acquire_member("primary", AB, pressure) is None
    assert counts(ledger) == (4, {"a": 2, "b": 2})


@pytest.mark.requirement("C-R007", "C-T002", "C-T012", "C-A003")
def test_unknown_upstream_wins_with_less_local_load() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}))
    assert take(ledger, ready("b", down=("a",))).member_id == "b"
    lease = take(ledger, AB, {"a": ReplicaPressure(), "b": fresh(0)})
    assert lease.member_id == "a"
    assert lease.selection is not None
    assert [(row.member_id, row.local_active, row.upstream_unknown) for row in lease.selection.scores] == [
        ("a", 0, True),
        ("b", 1, False),
    ]


@pytest.mark.requirement("C-R007", "C-T002", "C-T012", "C-A003")
def test_fresh_zero_beats_unknown_at_equal_local_load() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}))
    lease = take(ledger, AB, {"a": ReplicaPressure(), "b": fresh(0)})
    assert lease.member_id == "b"
    assert lease.selection is not None
    assert [row.freshness for row in lease.selection.scores] == [
        PressureFreshness.FRESH,
        PressureFreshness.UNKNOWN,
    ]


@pytest.mark.requirement("C-R007", "C-T002", "C-A003")
def test_without_pressure_everything_is_unknown() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}))
    selection = take(ledger).selection
    assert selection is not None
    assert [(row.freshness, row.upstream_pressure_ppm) for row in selection.scores] == [
        (PressureFreshness.UNKNOWN, None),
        (PressureFreshness.UNKNOWN, None),
    ]


@pytest.mark.requirement("C-R004", "C-T002")
def test_the_selection_shows_the_counts_before_the_reservation() -> None:
    ledger = ledger_of(replicas({"a": 3, "b": 5}))
    selections = [take(ledger).selection for _ in range(3)]
    assert [
        [(row.member_id, row.local_active, row.local_capacity, row.rotating_rank) for row in selection.scores]
        for selection in selections
        if selection is not None
    ] == [
        [("a", 0, 3, 0), ("b", 0, 5, 1)],
        [("b", 0, 5, 0), ("a", 1, 3, 1)],
        [("b", 1, 5, 1), ("a", 1, 3, 0)],
    ]


@pytest.mark.requirement("C-R014", "C-T002")
def test_a_selection_cannot_be_changed() -> None:
    pressure = {"a": fresh(5), "b": fresh(7)}
    lease = take(ledger_of(replicas({"a": 2, "b": 2})), AB, pressure)
    pressure["a"] = fresh(99)
    assert lease.selection is not None
    assert lease.selection.scores[0].upstream_pressure_ppm == 5
    with pytest.raises(FrozenInstanceError):
        lease.selection.scores = ()  # type: ignore[misc]


@pytest.mark.requirement("C-R005", "contract 3")
def test_the_sum_of_member_ceilings_bounds_a_capacity_tier() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 3}))
    assert ledger.snapshot("primary").max_concurrency == 5
    leases = [take(ledger) for _ in range(5)]
    assert ledger.acquire_member("primary", AB) is None
    assert counts(ledger) == (5, {"a": 2, "b": 3})
    assert sorted(lease.member_id for lease in leases) == ["a", "a", "b", "b", "b"]


@pytest.mark.requirement("C-R003", "contract 3")
def test_a_configured_tier_ceiling_binds_below_the_sum() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 3}, max_concurrency=3))
    assert ledger.snapshot("primary").max_concurrency == 3
    for _ in range(3):
        take_result = ledger.acquire_member("primary", AB)
        assert take_result is not None
        take_result.release()
    leases = [take(ledger) for _ in range(3)]
    assert ledger.acquire_member("primary", AB) is None
    assert len(leases) == 3


@pytest.mark.requirement("C-R005", "case 12")
def test_a_restarted_member_takes_its_share_and_no_more() -> None:
    ledger = ledger_of(replicas({"a": 8, "b": 8, "c": 8}))
    without_c = ready("a", "b", down=("c",))
    crowd = [take(ledger, without_c) for _ in range(14)]
    everyone = ready("a", "b", "c")
    newcomers = [take(ledger, everyone) for _ in range(10)]
    assert [lease.member_id for lease in newcomers].count("c") == 8
    assert counts(ledger) == (24, {"a": 8, "b": 8, "c": 8})
    assert ledger.acquire_member("primary", everyone) is None
    assert len(crowd) == 14


@pytest.mark.requirement("case 10")
def test_equal_idle_members_are_not_always_the_first() -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 4, "c": 4}))
    seen = []
    for _ in range(6):
        lease = take(ledger, ready("a", "b", "c"))
        seen.append(lease.member_id)
        lease.release()
    assert seen == ["a", "b", "c", "a", "b", "c"]


@st.composite
def busy_tiers(
    draw: st.DrawFn,
) -> tuple[dict[str, int], list[dict[str, bool]], list[dict[str, ReplicaPressure]]]:
    ids = [f"m{index:02}" for index in range(draw(st.integers(2, 16)))]
    ceilings = {member_id: draw(st.sampled_from([1, 2, 3, 5, 8, 99_991, 100_000])) for member_id in ids}
    pressures = st.one_of(
        st.integers(0, 2).map(fresh),
        st.just(ReplicaPressure()),
        st.just(ReplicaPressure(PressureFreshness.FAILED)),
    )
    steps = draw(st.integers(1, 12))
    readiness = [
        {member_id: draw(st.sampled_from([True, True, False])) for member_id in ids} for _ in range(steps)
    ]
    return ceilings, readiness, [{member_id: draw(pressures) for member_id in ids} for _ in range(steps)]


@pytest.mark.requirement("C-R004", "C-R008", "C-T002")
@given(busy_tiers())
def test_the_ledger_chooses_as_the_rank_does(
    case: tuple[dict[str, int], list[dict[str, bool]], list[dict[str, ReplicaPressure]]],
) -> None:
    ceilings, rounds, pressures = case
    ledger = ledger_of(replicas(dict(ceilings)))
    ids = sorted(ceilings)
    cursor = 0
    leases = []
    for readiness, pressure in zip(rounds, pressures, strict=True):
        _, active = counts(ledger)
        candidates = tuple(
            ReplicaCandidate(
                member_id, readiness[member_id], active[member_id], ceilings[member_id], pressure[member_id]
            )
            for member_id in reversed(ids)
        )
        expected = rank_replicas(candidates, cursor)
        lease = ledger.acquire_member("primary", readiness, pressure)
        if expected.selected_member_id is None:
            assert lease is None
            continue
        assert lease is not None
        assert lease.selection == expected
        assert lease.member_id == expected.selected_member_id
        cursor = (ids.index(lease.member_id) + 1) % len(ids)
        leases.append(lease)


@pytest.mark.requirement("C-T002")
def test_checked_snapshots_choose_as_dicts_do() -> None:
    readiness = ready("a", "b", down=("c",))
    pressure = {"a": fresh(8), "b": fresh(3), "c": ReplicaPressure()}
    by_dicts = ledger_of(replicas({"a": 4, "b": 4, "c": 4}))
    by_checked = ledger_of(replicas({"a": 4, "b": 4, "c": 4}))
    held = []
    for _ in range(8):
        first = by_dicts.acquire_member("primary", readiness, pressure)
        second = by_checked.acquire_member(
            "primary", ValidatedReadiness(readiness), ValidatedPressure(pressure)
        )
        assert first is not None
        assert second is not None
        assert first.selection == second.selection
        held += [first, second]
    assert by_checked.acquire_member("primary", ValidatedReadiness(readiness)) is None
    for snapshots in (
        (ValidatedReadiness(AB), None),
        (ValidatedReadiness(readiness), ValidatedPressure({"a": fresh(), "b": fresh()})),
    ):
        with pytest.raises(AdmissionError):
            by_checked.acquire_member("primary", *snapshots)


# What is refused ---------------------------------------------------------------------------------------


class SubDict(dict):  # type: ignore[type-arg]
    """A mapping whose every method would run the caller's code."""

    def _trap(self, *arguments: object) -> object:
        raise AssertionError("the ledger looked into a caller's mapping")

    __getitem__ = get = keys = values = items = copy = __iter__ = __len__ = __contains__ = _trap  # type: ignore[assignment]


class SubStr(str):
    __slots__ = ()


MALFORMED_READINESS = [
    None,
    {},
    {"a": True},
    {"a": True, "b": True, "c": True},
    {"a": True, "c": True},
    {"a": True, SubStr("b"): True},
    {"a": True, 2: True},
    {"a": True, "b": 1},
    {"a": True, "b": None},
    {"a": True, "b": "True"},
    SubDict(AB),
    [("a", True), ("b", True)],
    ("a", "b"),
    "ab",
]


def _forged_pressure() -> ReplicaPressure:
    pressure = fresh()
    object.__setattr__(pressure, "pressure_ppm", True)
    return pressure


def _misnamed_pressure() -> ReplicaPressure:
    pressure = fresh()
    object.__setattr__(pressure, "freshness", "fresh")
    return pressure


def _contradictory_pressure() -> ReplicaPressure:
    pressure = fresh()
    object.__setattr__(pressure, "kv_state", "valid")
    return pressure


class SubPressure(ReplicaPressure):
    pass


MALFORMED_PRESSURE = [
    {},
    {"a": fresh()},
    {"a": fresh(), "b": fresh(), "c": fresh()},
    {"a": fresh(), "c": fresh()},
    {"a": fresh(), SubStr("b"): fresh()},
    {"a": fresh(), "b": None},
    {"a": fresh(), "b": 0},
    {"a": fresh(), "b": {"freshness": "fresh", "pressure_ppm": 0}},
    {"a": fresh(), "b": SubPressure()},
    {"a": fresh(), "b": object.__new__(ReplicaPressure)},
    {"a": fresh(), "b": _forged_pressure()},
    {"a": fresh(), "b": _misnamed_pressure()},
    {"a": fresh(), "b": _contradictory_pressure()},
    SubDict({"a": fresh(), "b": fresh()}),
    [fresh(), fresh()],
    True,
]


@pytest.mark.requirement("C-T002", "contract 3", "Q-R009")
@pytest.mark.parametrize("strategy", ["round_robin", "capacity"])
@pytest.mark.parametrize("readiness", MALFORMED_READINESS)
def test_malformed_readiness_changes_nothing(strategy: str, readiness: object) -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}, strategy))  # type: ignore[arg-type]
    held = take(ledger)
    before = ledger.snapshot("primary")
    with pytest.raises(AdmissionError, match=r"\Athe readiness snapshot is invalid\Z") as refusal:
        ledger.acquire_member("primary", readiness)  # type: ignore[arg-type]
    assert refusal.value.code == "readiness_invalid"
    assert refusal.value.__cause__ is None
    assert ledger.snapshot("primary") == before
    assert take(ledger).member_id == "b"
    assert held.member_id == "a"


@pytest.mark.requirement("C-T002", "contract 3")
@pytest.mark.parametrize("strategy", ["round_robin", "capacity"])
@pytest.mark.parametrize("pressure", MALFORMED_PRESSURE)
def test_malformed_pressure_changes_nothing(strategy: str, pressure: object) -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}, strategy))  # type: ignore[arg-type]
    held = take(ledger)
    before = ledger.snapshot("primary")
    with pytest.raises(AdmissionError, match=r"\Athe pressure snapshot is invalid\Z") as refusal:
        ledger.acquire_member("primary", AB, pressure)  # type: ignore[arg-type]
    assert refusal.value.code == "pressure_invalid"
    assert ledger.snapshot("primary") == before
    assert take(ledger).member_id == "b"
    assert held.member_id == "a"


@pytest.mark.requirement("C-R012", "contract 3")
@pytest.mark.parametrize("tier_id", ["secret", "", None, 3, ["primary"], SubStr("primary")])
def test_an_unknown_tier_is_refused_without_an_echo(tier_id: object) -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}))
    for attempt in (
        lambda: ledger.acquire(tier_id),  # type: ignore[arg-type]
        lambda: ledger.acquire_member(tier_id, AB),  # type: ignore[arg-type]
        lambda: ledger.acquire_member(tier_id, None),  # type: ignore[arg-type]
        lambda: ledger.quiesce(tier_id),  # type: ignore[arg-type]
        lambda: ledger.readmit(tier_id),  # type: ignore[arg-type]
        lambda: ledger.drain(tier_id, 1),  # type: ignore[arg-type]
        lambda: ledger.snapshot(tier_id),  # type: ignore[arg-type]
    ):
        with pytest.raises(UnknownScopeError, match=r"\Athe tier is not configured\Z") as refusal:
            attempt()
        assert refusal.value.code == "unknown_tier"


@pytest.mark.requirement("C-R013")
def test_each_shape_has_its_own_way_in() -> None:
    ledger = ledger_of(TierScope("solo", 1), replicas({"a": 2, "b": 2}))
    with pytest.raises(AdmissionError, match=r"\Athe tier needs a member selection\Z"):
        ledger.acquire("primary")
    with pytest.raises(AdmissionError, match=r"\Athe tier has no members\Z"):
        ledger.acquire_member("solo", {})
    assert counts(ledger, "solo") == (0, {})
    assert counts(ledger)[0] == 0


@pytest.mark.requirement("contract 1", "C-T001")
@pytest.mark.parametrize(
    "build",
    [
        lambda: MemberScope("1"),
        lambda: MemberScope("a b", 1),
        lambda: MemberScope("a", 0),
        lambda: MemberScope("a", 100_001),
        lambda: MemberScope("a", True),
        lambda: MemberScope("a", 2.0),  # type: ignore[arg-type]
        lambda: TierScope("../etc"),
        lambda: TierScope("t", 0),
        lambda: TierScope("t", 1_600_001),
        lambda: TierScope("t", False),
        lambda: TierScope("t", None, "least_busy"),  # type: ignore[arg-type]
        lambda: TierScope("t", None, "direct", (MemberScope("a"), MemberScope("b"))),
        lambda: replicas({}, "round_robin"),
        lambda: replicas({"a": None}, "round_robin"),
        lambda: replicas({f"m{index}": None for index in range(17)}, "round_robin"),
        lambda: replicas({"a": 1, "b": None}, "capacity"),
        lambda: TierScope("t", None, "round_robin", (MemberScope("a"), MemberScope("a"))),
        lambda: TierScope("t", None, "round_robin", [MemberScope("a"), MemberScope("b")]),  # type: ignore[arg-type]
        lambda: TierScope("t", None, "round_robin", (MemberScope("a"), "b")),  # type: ignore[arg-type]
        lambda: TierAdmission([TierScope("t"), TierScope("t")]),
        lambda: TierAdmission(["t"]),  # type: ignore[list-item]
    ],
)
def test_scopes_that_are_refused(build: object) -> None:
    with pytest.raises(AdmissionError, match=r"\Athe admission scopes are invalid\Z"):
        build()  # type: ignore[operator]


@pytest.mark.requirement("C-T001")
def test_sixteen_members_at_the_largest_ceilings() -> None:
    ceilings = {f"m{index:02}": 100_000 - index for index in range(16)}
    ledger = ledger_of(replicas(dict(ceilings)))
    readiness = dict.fromkeys(ceilings, True)
    assert ledger.snapshot("primary").max_concurrency == 1_599_880
    # All idle: the cursor decides. Then the member with the largest ceiling is the least loaded.
    assert [take(ledger, readiness).member_id for _ in range(18)] == [
        *[f"m{index:02}" for index in range(16)],
        "m00",
        "m01",
    ]


# Reading -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-R011", "C-T001", "contract 4")
def test_a_snapshot_is_one_reading() -> None:
    ledger = ledger_of(replicas({"b": 2, "a": 3}, max_concurrency=4), TierScope("solo", 1))
    lease = take(ledger)
    ledger.quiesce("primary", "upgrade", "a")
    assert ledger.snapshots() == (
        AdmissionSnapshot(
            tier_id="primary",
            state="admitting",
            reason=None,
            active_requests=1,
            draining=False,
            max_concurrency=4,
            member_active_requests=(("a", 1), ("b", 0)),
            members=(
                MemberAdmissionSnapshot("a", "quiesced", "upgrade", 1, 3, True),
                MemberAdmissionSnapshot("b", "admitting", None, 0, 2, False),
            ),
        ),
        AdmissionSnapshot("solo", "admitting", None, 0, False, 1, (), ()),
    )
    assert lease.release() is True
    assert ledger.snapshots()[0] == ledger.snapshot("primary")
    assert ledger.snapshot("primary").members[0].draining is False


@pytest.mark.requirement("C-R014")
def test_importing_the_room_starts_no_thread_and_needs_the_standard_library_only() -> None:
    program = (
        "import sys, threading; before = set(sys.modules); import admission.core;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(threading.active_count(), sorted(new - sys.stdlib_module_names))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert ran.stdout == "1 ['admission']\n"
