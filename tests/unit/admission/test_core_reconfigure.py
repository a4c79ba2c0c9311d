"""Live configuration changes: what stays carries on, what goes releases harmlessly, intents come first."""

from collections.abc import Callable
from typing import Any

import pytest

from admission.core import AdmissionError, TierAdmission, TierScope, UnknownScopeError

from .ledgers import DrainingLedger, counts, ledger_of, ready, replicas

AB = ready("a", "b")
ABC = ready("a", "b", "c")


def take(ledger: TierAdmission, readiness: dict[str, bool], tier_id: str = "primary") -> str | None:
    """Take a place for good."""
    lease = ledger.acquire_member(tier_id, readiness)
    if lease is None:
        return None
    KEPT.append(lease)
    return lease.member_id


KEPT: list[object] = []


@pytest.fixture(autouse=True)
def _keep_leases() -> None:
    KEPT.clear()


# Ceilings ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 1")
def test_a_ceiling_below_the_running_count_only_stops_new_leases() -> None:
    ledger = ledger_of(TierScope("solo", 3))
    leases = [ledger.acquire("solo") for _ in range(3)]
    ledger.reconfigure([TierScope("solo", 1)])
    assert counts(ledger, "solo") == (3, {})
    for lease in leases:
        assert lease is not None
        assert ledger.acquire("solo") is None
        assert lease.release() is True
    assert ledger.acquire("solo") is not None


@pytest.mark.requirement("contract 1")
def test_a_members_ceiling_below_its_running_count_only_stops_new_leases() -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 4}))
    only_a = ready("a", down=("b",))
    leases = [ledger.acquire_member("primary", only_a) for _ in range(3)]
    ledger.reconfigure([replicas({"a": 2, "b": 4})])
    assert ledger.snapshot("primary").max_concurrency == 6
    assert counts(ledger) == (3, {"a": 3, "b": 0})
    for lease in leases[:2]:
        assert lease is not None
        assert take(ledger, only_a) is None
        lease.release()
    selection = ledger.acquire_member("primary", AB)
    assert selection is not None
    assert selection.selection is not None
    assert [(row.member_id, row.local_active, row.local_capacity) for row in selection.selection.scores] == [
        ("b", 0, 4),
        ("a", 1, 2),
    ]


@pytest.mark.requirement("contract 1")
def test_round_robin_keeps_to_a_lowered_ceiling_while_leases_come_back() -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 1}, "round_robin"))
    only_a = ready("a", down=("b",))
    leases = [ledger.acquire_member("primary", only_a) for _ in range(4)]
    ledger.reconfigure([replicas({"a": 2, "b": 1}, "round_robin")])
    for lease in leases[:2]:
        assert lease is not None
        lease.release()
        assert ledger.acquire_member("primary", only_a) is None
    assert leases[2] is not None
    leases[2].release()
    assert take(ledger, only_a) == "a"
    assert counts(ledger) == (2, {"a": 2, "b": 0})


@pytest.mark.requirement("contract 1")
def test_a_raised_ceiling_opens_at_once() -> None:
    ledger = ledger_of(replicas({"a": 1, "b": 1}))
    assert [take(ledger, AB) for _ in range(3)] == ["a", "b", None]
    ledger.reconfigure([replicas({"a": 2, "b": 1})])
    assert [take(ledger, AB) for _ in range(2)] == ["a", None]
    ledger.reconfigure([replicas({"a": 2, "b": 2}, max_concurrency=3)])
    assert take(ledger, AB) is None


# Members -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 1")
def test_an_added_member_joins_and_the_others_do_not_notice() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}))
    assert [take(ledger, AB) for _ in range(2)] == ["a", "b"]
    ledger.quiesce("primary", "upgrade", "b")
    ledger.reconfigure([replicas({"a": 2, "b": 2, "c": 2})])
    assert counts(ledger) == (2, {"a": 1, "b": 1, "c": 0})
    assert ledger.snapshot("primary").members[1].reason == "upgrade"
    assert [take(ledger, ABC) for _ in range(4)] == ["c", "a", "c", None]
    with pytest.raises(AdmissionError, match="readiness"):
        ledger.acquire_member("primary", AB)


@pytest.mark.requirement("contract 1")
def test_a_removed_members_leases_release_into_the_old_object() -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2, "c": 2}))
    leases = [ledger.acquire_member("primary", ABC) for _ in range(3)]
    ledger.reconfigure([replicas({"a": 2, "b": 2})])
    assert counts(ledger) == (2, {"a": 1, "b": 1})
    # The same id comes back as another member: the old lease must not count there.
    ledger.reconfigure([replicas({"a": 2, "b": 2, "c": 2})])
    assert take(ledger, ready("c", down=("a", "b"))) == "c"
    on_c = leases[2]
    assert on_c is not None
    assert on_c.member_id == "c"
    assert on_c.release() is True
    assert on_c.release() is False
    assert counts(ledger) == (3, {"a": 1, "b": 1, "c": 1})


@pytest.mark.requirement("contract 1")
def test_a_removed_member_ends_its_drain_and_no_longer_holds_up_the_tiers() -> None:
    ledger = DrainingLedger(replicas({"a": 2, "b": 2, "c": 2}))
    lease = ledger.acquire_member("primary", ready("c", down=("a", "b")))
    ledger.quiesce("primary")
    ledger.quiesce("primary", member_id="c")
    of_tier, of_c = ledger.begin_drain(), ledger.begin_drain("primary", "c")
    ledger.reconfigure([replicas({"a": 2, "b": 2})])
    assert (of_c.end().drained, of_c.end().timed_out) == (False, False)
    assert (of_tier.end().drained, of_tier.end().timed_out) == (True, False)
    assert lease is not None
    assert lease.release() is True


# The cursor --------------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 1", "Q-R008")
@pytest.mark.parametrize(
    ("taken", "after", "expected"),
    [
        pytest.param(1, ("a", "b", "c"), "b", id="nothing changed"),
        pytest.param(1, ("0a", "a", "b", "c"), "b", id="one came before"),
        pytest.param(1, ("a", "c"), "c", id="the one whose turn it was is gone"),
        pytest.param(2, ("a", "b"), "a", id="the last, whose turn it was, is gone"),
        pytest.param(3, ("a", "b", "c", "d"), "a", id="one came after the wrap"),
        pytest.param(2, ("b", "c", "d"), "c", id="the first is gone"),
    ],
)
@pytest.mark.parametrize("strategy", ["round_robin", "capacity"])
def test_the_cursor_stays_with_its_member(
    strategy: str, taken: int, after: tuple[str, ...], expected: str
) -> None:
    before = dict.fromkeys(("a", "b", "c"), 9)
    ledger = ledger_of(replicas(before, strategy))  # type: ignore[arg-type]
    for _ in range(taken):
        lease = ledger.acquire_member("primary", ABC)
        assert lease is not None
        lease.release()
    names = [name.replace("0a", "Zero") for name in after]
    ledger.reconfigure([replicas(dict.fromkeys(names, 9), strategy)])  # type: ignore[arg-type]
    assert take(ledger, ready(*names)) == expected


@pytest.mark.requirement("contract 1")
def test_a_change_of_strategy_keeps_counts_cursor_and_quiesce() -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 4, "c": 4}, "round_robin"))
    assert take(ledger, ABC) == "a"
    ledger.quiesce("primary", "upgrade", "c")
    ledger.reconfigure([replicas({"a": 4, "b": 4, "c": 4}, "capacity")])
    assert counts(ledger) == (1, {"a": 1, "b": 0, "c": 0})
    lease = ledger.acquire_member("primary", ABC)
    assert lease is not None
    assert lease.selection is not None
    assert lease.selection.eligible_member_ids == ("a", "b")
    assert [row.rotating_rank for row in lease.selection.scores] == [0, 2]
    ledger.reconfigure([replicas({"a": 4, "b": 4, "c": 4}, "round_robin")])
    again = ledger.acquire_member("primary", ABC)
    assert again is not None
    assert (again.member_id, again.selection) == ("a", None)


# Tiers -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 1")
def test_tiers_come_and_go() -> None:
    ledger = ledger_of(TierScope("solo", 1), replicas({"a": 1, "b": 1}))
    lease = ledger.acquire("solo")
    assert lease is not None
    ledger.reconfigure([TierScope("other", 2), replicas({"a": 1, "b": 1})])
    with pytest.raises(UnknownScopeError):
        ledger.acquire("solo")
    with pytest.raises(UnknownScopeError):
        ledger.snapshot("solo")
    assert [snapshot.tier_id for snapshot in ledger.snapshots()] == ["other", "primary"]
    # It comes back as another tier: the old lease does not count there.
    ledger.reconfigure([TierScope("solo", 1)])
    assert counts(ledger, "solo") == (0, {})
    newcomer = ledger.acquire("solo")
    assert newcomer is not None
    assert lease.release() is True
    assert counts(ledger, "solo") == (1, {})
    assert newcomer.release() is True
    assert counts(ledger, "solo") == (0, {})


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize("scopes", [[], [replicas({"a": 1, "b": 1}, tier_id="solo")]])
def test_the_removal_of_a_tier_ends_its_drain(scopes: list[TierScope]) -> None:
    ledger = DrainingLedger(TierScope("solo", 1))
    lease = ledger.acquire("solo")
    ledger.quiesce("solo")
    drain = ledger.begin_drain("solo")
    ledger.reconfigure(scopes)
    assert (drain.end().drained, drain.end().timed_out) == (False, False)
    assert lease is not None
    assert lease.release() is True


@pytest.mark.requirement("contract 1")
def test_a_change_of_shape_starts_anew_and_stays_quiesced() -> None:
    ledger = ledger_of(TierScope("primary", 4))
    lease = ledger.acquire("primary")
    ledger.quiesce("primary", "reshaping")
    ledger.reconfigure([replicas({"a": 2, "b": 2})])
    snapshot = ledger.snapshot("primary")
    assert (snapshot.state, snapshot.reason, snapshot.active_requests) == ("quiesced", "reshaping", 0)
    assert take(ledger, AB) is None
    assert lease is not None
    assert lease.release() is True
    ledger.readmit("primary")
    assert take(ledger, AB) == "a"
    assert counts(ledger) == (1, {"a": 1, "b": 0})


@pytest.mark.requirement("contract 1")
def test_other_tiers_do_not_notice() -> None:
    ledger = ledger_of(TierScope("solo", 2), replicas({"a": 1, "b": 1}))
    lease = ledger.acquire("solo")
    ledger.quiesce("solo", "upgrade")
    before = ledger.snapshot("solo")
    ledger.reconfigure([TierScope("solo", 2), replicas({"a": 5, "c": 1})])
    assert ledger.snapshot("solo") == before
    assert lease is not None
    lease.release()
    assert counts(ledger, "solo") == (0, {})


class OvertakenLedger(TierAdmission):
    """A ledger whose configuration changes right after a look-up, before the tier's lock is taken."""

    successor: list[TierScope] | None = None

    def _find(self, tier_id: object) -> Any:
        tier = super()._find(tier_id)
        scopes, self.successor = self.successor, None
        if scopes is not None:
            self.reconfigure(scopes)
        return tier


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(
    "use",
    [
        lambda ledger: ledger.acquire("solo"),
        lambda ledger: ledger.acquire("solo", timeout=5),
        lambda ledger: ledger.quiesce("solo"),
        lambda ledger: ledger.readmit("solo"),
        lambda ledger: ledger.drain("solo", 0),
        lambda ledger: ledger.snapshot("solo"),
    ],
)
def test_a_tier_that_goes_during_the_look_up_is_unknown(use: Callable[[TierAdmission], object]) -> None:
    ledger = OvertakenLedger([TierScope("solo", 1)])
    ledger.successor = []
    with pytest.raises(UnknownScopeError):
        use(ledger)
    assert ledger.snapshots() == ()


@pytest.mark.requirement("contract 1")
def test_a_quiesce_meets_the_tiers_successor() -> None:
    ledger = OvertakenLedger([TierScope("primary", 1)])
    ledger.successor = [replicas({"a": 1, "b": 1})]
    assert ledger.quiesce("primary", "late").reason == "late"
    assert take(ledger, AB) is None


# Intents -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 3", "C-T010")
def test_intents_hold_before_anything_can_be_acquired() -> None:
    ledger = TierAdmission(
        [replicas({"a": 1, "b": 1}), TierScope("solo", 1)],
        quiesced=[
            ("primary", "a", "promotion"),
            ("solo", None, "maintenance"),
            ("primary", "gone", "x"),
            ("removed", None, "x"),
            ("solo", "a", "x"),
        ],
    )
    assert [take(ledger, AB) for _ in range(2)] == ["b", None]
    assert ledger.acquire("solo") is None
    assert ledger.snapshot("primary").state == "admitting"
    assert ledger.snapshot("primary").members[0].reason == "promotion"
    assert ledger.snapshot("solo").reason == "maintenance"


@pytest.mark.requirement("contract 1", "C-T010", "case 19")
def test_a_member_that_comes_back_is_quiesced_from_its_first_instant() -> None:
    ledger = ledger_of(replicas({"a": 1, "b": 1}))
    intents = [("primary", "c", "broken-gpu")]
    ledger.reconfigure([replicas({"a": 1, "b": 1, "c": 1})], quiesced=intents)
    assert [take(ledger, ABC) for _ in range(3)] == ["a", "b", None]
    assert ledger.snapshot("primary").members[2].reason == "broken-gpu"


@pytest.mark.requirement("contract 1")
def test_intents_close_what_is_open_and_keep_the_reason_of_what_is_closed() -> None:
    ledger = ledger_of(replicas({"a": 1, "b": 1}), TierScope("solo", 1))
    ledger.quiesce("primary", "newest", "a")
    ledger.reconfigure(
        [replicas({"a": 1, "b": 1}), TierScope("solo", 1)],
        quiesced=[("primary", "a", "older"), ("primary", "b", "older"), ("solo", None, "older")],
    )
    assert [member.reason for member in ledger.snapshot("primary").members] == ["newest", "older"]
    assert ledger.snapshot("solo").reason == "older"


@pytest.mark.requirement("contract 3", "C-T010")
@pytest.mark.parametrize(
    "intent",
    [
        ("primary", "a"),
        ["primary", "a", "x"],
        ("primary", "a", ""),
        ("primary", "a", "two words"),
        ("primary", "", "x"),
        ("primary", 3, "x"),
        ("", None, "x"),
        (None, None, "x"),
        None,
    ],
)
def test_malformed_intents_change_nothing(intent: object) -> None:
    ledger = ledger_of(replicas({"a": 1, "b": 1}))
    before = ledger.snapshots()
    with pytest.raises(AdmissionError, match=r"\Athe quiesce intents are invalid\Z"):
        ledger.reconfigure([], quiesced=[("primary", None, "fine"), intent])  # type: ignore[list-item]
    assert ledger.snapshots() == before


@pytest.mark.requirement("contract 1")
def test_malformed_scopes_change_nothing() -> None:
    ledger = ledger_of(replicas({"a": 1, "b": 1}))
    before = ledger.snapshots()
    with pytest.raises(AdmissionError, match=r"\Athe admission scopes are invalid\Z"):
        ledger.reconfigure([TierScope("solo"), TierScope("solo")])
    assert ledger.snapshots() == before
