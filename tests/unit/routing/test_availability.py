"""The readiness cache: fencing by generation and issuance, single flight, invalidation."""

import threading
from collections.abc import Iterator

import pytest

from routing.availability import AvailabilityResult, HttpHealthAvailability
from tests.unit.routing.availability_support import (
    PATIENCE,
    Clock,
    Crew,
    Held,
    Script,
    availability,
    crew,
    member,
    models,
)

READY = (True, "identity_passed")
INVALIDATED = (False, "probe_invalidated")
SUPERSEDED = (False, "probe_superseded")
PENDING = (False, "probe_pending")
MISMATCH = (False, "identity_mismatch")


def brief(result: AvailabilityResult | None) -> tuple[bool, str] | None:
    return None if result is None else (result.available, result.reason)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def threads(held: Held) -> Iterator[Crew]:
    with crew(held) as running:
        yield running


@pytest.fixture
def one(held: Held) -> HttpHealthAvailability:
    """One direct tier, "t", whose probes wait."""
    return availability(member("t", None, "t"), transport=held)


@pytest.mark.requirement("F-T001", "F-R001", "F-R002", "F-R004", "F-A001")
@pytest.mark.parametrize("scope", ["t", None])
def test_a_probe_that_crosses_an_invalidation_neither_fills_the_cache_nor_returns_its_success(
    one: HttpHealthAvailability, held: Held, threads: Crew, scope: str | None
) -> None:
    check = threads.run(one.check, "t")
    call = held.next()
    one.invalidate(scope)
    call.answer(models("qwen"))
    result = check.result(PATIENCE)

    assert one.cached("t") is None
    assert result == AvailabilityResult(False, "probe_invalidated", expected_model="qwen")
    assert len(held.calls) == 1  # no replacement request from the completion


@pytest.mark.requirement("F-R004")
def test_a_late_success_after_invalidation_carries_no_metadata(held: Held, threads: Crew) -> None:
    dynamic = member("t", None, "t", expected_model=None, metadata_upstream=True)
    checker = availability(dynamic, transport=held)
    check = threads.run(checker.check, "t")
    call = held.next()
    checker.invalidate("t")
    call.answer(models("m", max_model_len=4096))

    result = check.result(PATIENCE)
    assert (result.reason, result.metadata, result.checked_at) == ("probe_invalidated", None, None)


@pytest.mark.requirement("F-R002", "F-R003", "F-T002")
def test_invalidation_of_everything_fences_a_tier_that_never_had_a_result(held: Held, threads: Crew) -> None:
    checker = availability(member("a", None, "a"), member("b", None, "b"), transport=held)
    checks = [threads.run(checker.check, "a"), threads.run(checker.check, "b")]
    calls = [held.next(), held.next()]
    checker.invalidate(None)
    for call in calls:
        call.answer(models("qwen"))

    assert [brief(check.result(PATIENCE)) for check in checks] == [INVALIDATED, INVALIDATED]
    assert (checker.cached("a"), checker.cached("b")) == (None, None)


@pytest.mark.requirement("F-R002", "F-R010", "F-T002")
def test_repeated_invalidation_adds_no_state_and_never_makes_an_old_probe_current_again(
    one: HttpHealthAvailability, held: Held, threads: Crew
) -> None:
    """ABA: neither clearing the cache nor dropping and adding the tier can bring a generation back."""
    check = threads.run(one.check, "t")
    call = held.next()
    for _ in range(1000):
        one.invalidate("t")
        one.invalidate(None)
    one.invalidate("never-configured")
    one.reconfigure([], interval=5.0, timeout=3.0, max_bytes=65_536)
    one.reconfigure([member("t", None, "t")], interval=5.0, timeout=3.0, max_bytes=65_536)
    call.answer(models("qwen"))

    assert brief(check.result(PATIENCE)) == INVALIDATED
    assert one.cached("t") is None
    assert len(one._scopes) == 1


@pytest.mark.requirement("F-R005")
def test_a_check_during_an_invalidated_flight_is_pending_and_a_later_one_probes_anew(
    one: HttpHealthAvailability, held: Held, threads: Crew
) -> None:
    old = threads.run(one.check, "t")
    call = held.next()
    one.invalidate("t")

    assert one.check("t") == AvailabilityResult(False, "probe_pending", expected_model="qwen")
    assert len(held.calls) == 1
    call.answer(models("qwen"))
    assert brief(old.result(PATIENCE)) == INVALIDATED

    new = threads.run(one.check, "t")
    held.next().answer(models("qwen"))
    assert brief(new.result(PATIENCE)) == READY
    assert brief(one.cached("t")) == READY


@pytest.mark.requirement("F-R005")
def test_one_cold_scope_is_probed_by_one_of_many_checks(
    one: HttpHealthAvailability, held: Held, threads: Crew
) -> None:
    first = threads.run(one.check, "t")
    call = held.next()
    others = [threads.run(one.check, "t") for _ in range(8)]
    assert [brief(other.result(PATIENCE)) for other in others] == [PENDING] * 8
    call.answer(models("qwen"))
    assert brief(first.result(PATIENCE)) == READY
    assert len(held.calls) == 1


@pytest.mark.requirement("F-R005")
def test_the_single_flight_is_free_again_after_a_transport_that_breaks() -> None:
    def broken(url: str, **_: object) -> tuple[int, bytes]:
        raise RuntimeError("http://secret.example/v1")

    checker = availability(member("t", None, "t"), transport=broken)
    assert brief(checker.check("t")) == (False, "identity_transport_other")
    checker.invalidate("t")
    assert brief(checker.check("t")) == (False, "identity_transport_other")


@pytest.mark.requirement("F-R006", "F-R007", "F-T002", "F-A003")
def test_of_two_direct_probes_that_end_in_reverse_order_the_later_issued_wins(
    one: HttpHealthAvailability, held: Held, threads: Crew
) -> None:
    earlier = threads.run(one.probe_now, "t")
    earlier_call = held.next()
    later = threads.run(one.probe_now, "t")
    later_call = held.next()

    later_call.answer(models("another"))
    accepted = later.result(PATIENCE)
    earlier_call.answer(models("qwen"))

    assert brief(accepted) == MISMATCH
    assert earlier.result(PATIENCE) == AvailabilityResult(False, "probe_superseded", expected_model="qwen")
    assert one.cached("t") == accepted


@pytest.mark.requirement("F-R006")
def test_of_two_direct_probes_that_end_in_order_both_are_accepted(
    one: HttpHealthAvailability, held: Held, threads: Crew
) -> None:
    earlier = threads.run(one.probe_now, "t")
    earlier_call = held.next()
    later = threads.run(one.probe_now, "t")
    later_call = held.next()

    earlier_call.answer(models("qwen"))
    assert brief(earlier.result(PATIENCE)) == READY
    later_call.answer(models("another"))
    assert brief(later.result(PATIENCE)) == MISMATCH
    assert brief(one.cached("t")) == MISMATCH


@pytest.mark.requirement("F-R007", "F-T002", "F-A002")
def test_an_old_failure_does_not_overwrite_a_newer_success_nor_its_time(held: Held, threads: Crew) -> None:
    clock = Clock(1000.0)
    checker = availability(member("t", None, "t"), transport=held, clock=clock)
    old = threads.run(checker.probe_now, "t")
    old_call = held.next()
    new = threads.run(checker.probe_now, "t")
    new_call = held.next()

    clock.advance(0.25)
    new_call.answer(models("qwen"))
    new.result(PATIENCE)
    clock.advance(2.0)
    old_call.answer("reset")

    assert brief(old.result(PATIENCE)) == SUPERSEDED
    kept = checker.cached("t")
    assert kept == AvailabilityResult(
        True,
        "identity_passed",
        expected_model="qwen",
        observed_model="qwen",
        latency_ms=250,
        checked_at=1_700_000_000.0,
        observed_monotonic=1000.25,
    )


@pytest.mark.requirement("F-R007", "F-T002")
def test_a_failure_from_before_an_invalidation_does_not_overwrite_a_newer_success(
    one: HttpHealthAvailability, held: Held, threads: Crew
) -> None:
    """miles 2110: after a pause, a "failed" from before must not be served as current."""
    old = threads.run(one.probe_now, "t")
    old_call = held.next()
    one.invalidate("t")
    new = threads.run(one.check, "t")
    held.next().answer(models("qwen"))
    assert brief(new.result(PATIENCE)) == READY
    old_call.answer((500, b""))

    assert brief(old.result(PATIENCE)) == INVALIDATED
    assert brief(one.cached("t")) == READY


@pytest.mark.requirement("F-R008", "F-A004", "F-A005")
def test_what_a_readmit_does_is_refused_during_the_old_flight_and_decided_by_identity_after_it(
    one: HttpHealthAvailability, held: Held, threads: Crew
) -> None:
    old = threads.run(one.check, "t")
    call = held.next()
    one.invalidate("t")  # quiesce
    one.invalidate("t")  # readmit
    assert brief(one.check("t")) == PENDING
    call.answer(models("qwen"))
    old.result(PATIENCE)

    one.invalidate("t")
    verified = threads.run(one.check, "t")
    held.next().answer(models("another"))
    assert brief(verified.result(PATIENCE)) == MISMATCH

    one.invalidate("t")
    verified = threads.run(one.check, "t")
    held.next().answer(models("qwen"))
    assert brief(verified.result(PATIENCE)) == READY
    assert one.cached("t") == verified.result()


@pytest.mark.requirement("F-R009", "F-T002", "F-A006")
def test_a_blocked_probe_of_one_tier_delays_no_other_and_invalidates_no_other(
    held: Held, threads: Crew
) -> None:
    checker = availability(member("a", None, "a"), member("b", None, "b"), transport=held)
    blocked = threads.run(checker.check, "a")
    blocked_call = held.next()
    other = threads.run(checker.check, "b")
    held.next().answer(models("qwen"))
    assert brief(other.result(PATIENCE)) == READY

    checker.invalidate("a")
    assert brief(checker.cached("b")) == READY
    assert brief(checker.check("b")) == READY
    blocked_call.answer(models("qwen"))
    assert brief(blocked.result(PATIENCE)) == INVALIDATED


@pytest.mark.requirement("Q-T003", "Q-R007")
def test_equal_member_ids_of_two_tiers_share_neither_result_flight_nor_invalidation(
    held: Held, threads: Crew
) -> None:
    checker = availability(member("one", "a", "x"), member("two", "a", "y"), transport=held)
    first = threads.run(checker.check, "one", "a")
    first_call = held.next()
    second = threads.run(checker.check, "two", "a")  # not pending: a flight of its own
    second_call = held.next()
    assert (first_call.host, second_call.host) == ("x", "y")

    checker.invalidate("one")
    second_call.answer(models("qwen"))
    first_call.answer(models("qwen"))
    assert brief(first.result(PATIENCE)) == INVALIDATED
    assert brief(second.result(PATIENCE)) == READY
    assert checker.cached("one", "a") is None
    assert brief(checker.cached("two", "a")) == READY
    assert checker.flaps("one", "a") == 0


@pytest.mark.requirement("Q-T003", "Q-R007")
def test_ids_that_would_collide_when_joined_are_different_scopes() -> None:
    script = Script(x=models("qwen"), y=(500, b""))
    checker = availability(member("a-b", "c", "x"), member("a", "b-c", "y"), transport=script)
    assert brief(checker.check("a-b", "c")) == READY
    assert brief(checker.check("a", "b-c")) == (False, "identity_http_500")


@pytest.mark.requirement("Q-T003", "F-R002")
@pytest.mark.parametrize(
    ("scope", "expected"),
    [(("t", "a"), {"a": INVALIDATED, "b": READY}), (("t",), {"a": INVALIDATED, "b": INVALIDATED})],
)
def test_invalidating_a_member_in_flight_fences_it_alone_and_invalidating_its_tier_fences_all(
    held: Held, threads: Crew, scope: tuple[str, ...], expected: dict[str, tuple[bool, str]]
) -> None:
    checker = availability(member("t", "a", "a"), member("t", "b", "b"), transport=held)
    checks = {name: threads.run(checker.check, "t", name) for name in ("a", "b")}
    calls = [held.next(), held.next()]
    checker.invalidate(*scope)
    for call in calls:
        call.answer(models("qwen"))

    assert {name: brief(check.result(PATIENCE)) for name, check in checks.items()} == expected
    assert {name: checker.cached("t", name) is not None for name in checks} == {
        name: result == READY for name, result in expected.items()
    }


def test_a_member_is_invalidated_within_its_tier_only() -> None:
    checker = availability(member("t", "a", "a"), transport=Script())
    with pytest.raises(ValueError, match="within its tier"):
        checker.invalidate(None, "a")


@pytest.mark.requirement("Q-T003")
def test_each_member_is_ready_mismatched_or_failed_by_itself() -> None:
    script = Script(a=models("qwen"), b=models("another"), c="refused", d=(503, b""))
    members = [member("t", name, name) for name in ("d", "c", "b", "a")]
    checker = availability(*members, transport=script)
    readiness = checker.readiness("t")
    assert list(readiness) == ["a", "b", "c", "d"]
    assert {name: (result.available, result.state, result.reason) for name, result in readiness.items()} == {
        "a": (True, "ready", "identity_passed"),
        "b": (False, "unavailable", "identity_mismatch"),
        "c": (False, "unavailable", "identity_transport_refused"),
        "d": (False, "unavailable", "identity_http_503"),
    }
    assert [result.observed_model for result in readiness.values()] == ["qwen", None, None, None]
    assert sorted(script.asked) == ["a", "b", "c", "d"]


@pytest.mark.requirement("F-R006", "contract 3")
def test_a_mark_takes_a_member_out_at_once_and_an_earlier_probe_does_not_bring_it_back(
    held: Held, threads: Crew
) -> None:
    checker = availability(member("t", "a", "a"), transport=held)
    before = threads.run(checker.check, "t", "a")
    call = held.next()
    checker.mark_unavailable("t", "a", "health_transport_refused")
    call.answer(models("qwen"))

    assert brief(before.result(PATIENCE)) == SUPERSEDED
    assert checker.readiness("t") == {
        "a": AvailabilityResult(
            False,
            "health_transport_refused",
            expected_model="qwen",
            checked_at=1_700_000_000.0,
            observed_monotonic=1000.0,
        )
    }
    after = threads.run(checker.probe_now, "t", "a")
    held.next().answer(models("qwen"))
    assert brief(after.result(PATIENCE)) == READY
    assert brief(checker.cached("t", "a")) == READY


def test_a_mark_takes_a_closed_transport_reason_only_and_leaves_unprobed_and_unknown_scopes_alone() -> None:
    checker = availability(member("t", None, "t", expected_model=None), transport=Script())
    for reason in ("health_transport_ConnectionError", "identity_mismatch", "health_http_500", "x", ""):
        with pytest.raises(ValueError, match="closed list"):
            checker.mark_unavailable("t", None, reason)
    checker.mark_unavailable("t", None, "health_transport_reset")
    checker.mark_unavailable("gone", "a", "health_transport_reset")
    assert brief(checker.check("t")) == (True, "availability_not_configured")


def test_a_target_with_nothing_to_probe_counts_as_available_and_is_never_asked() -> None:
    script = Script()
    checker = availability(member("t", None, "t", expected_model=None), transport=script)
    checker.invalidate(None)
    expected = AvailabilityResult(True, "availability_not_configured")
    assert [checker.check("t"), checker.probe_now("t"), checker.cached("t"), checker.current("t")] == [
        expected
    ] * 4
    assert script.asked == []


def test_what_is_not_configured_is_unavailable_and_changes_nothing() -> None:
    checker = availability(member("t", "a", "a"), transport=Script())
    unknown = AvailabilityResult(False, "probe_invalidated")
    assert [checker.check("t"), checker.probe_now("x"), checker.current("t", "b")] == [unknown] * 3
    assert (checker.cached("t"), checker.readiness("x"), checker.flaps("x", None)) == (None, {}, 0)


@pytest.mark.requirement("contract 3")
def test_readiness_waits_for_nothing_that_has_a_result(held: Held, threads: Crew) -> None:
    clock = Clock()
    checker = availability(member("t", "a", "a"), transport=held, clock=clock)
    first = threads.run(checker.readiness, "t")
    held.next().answer(models("qwen"))
    assert brief(first.result(PATIENCE)["a"]) == READY

    refresh = threads.run(checker.probe_now, "t", "a")
    held.next()
    assert brief(checker.readiness("t")["a"]) == READY
    clock.advance(5.0)
    assert brief(checker.readiness("t")["a"]) == READY
    assert len(held.calls) == 2
    held.release()
    refresh.result(PATIENCE)


@pytest.mark.requirement("contract 3")
def test_cold_members_are_probed_in_line_together_and_once(held: Held, threads: Crew) -> None:
    names = [f"m{number:02}" for number in range(16)]
    checker = availability(*(member("t", name, name) for name in names), transport=held)
    first = threads.run(checker.readiness, "t")
    calls = [held.next() for _ in names]  # all have begun before any has ended
    assert {call.host for call in calls} == set(names)
    assert {brief(result) for result in checker.readiness("t").values()} == {PENDING}
    for call in calls:
        call.answer(models("qwen"))
    assert [brief(result) for result in first.result(PATIENCE).values()] == [READY] * 16
    assert len(held.calls) == 16


@pytest.mark.requirement("contract 3")
def test_the_request_path_does_not_probe_a_quiesced_scope_and_a_readmit_does() -> None:
    script = Script(a=models("qwen"), b=models("qwen"), d=models("qwen"))
    targets = (member("t", "a", "a"), member("t", "b", "b"), member("d", None, "d"))
    checker = availability(*targets, transport=script)
    checker.use_quiesced(lambda: {("t", "a"), ("d", None)})
    assert {name: brief(result) for name, result in checker.readiness("t").items()} == {
        "a": PENDING,
        "b": READY,
    }
    assert brief(checker.current("d")) == PENDING
    assert script.asked == ["b"]
    assert brief(checker.check("d")) == READY
    assert brief(checker.current("d")) == READY


@pytest.mark.requirement("contract 3")
def test_a_quiesced_tier_covers_all_its_members() -> None:
    script = Script()
    checker = availability(member("t", "a", "a"), member("t", "b", "b"), transport=script)
    checker.use_quiesced(lambda: {("t", None)})
    assert [brief(result) for result in checker.readiness("t").values()] == [PENDING, PENDING]
    assert script.asked == []


def test_a_result_is_held_for_the_interval_and_a_failed_one_for_a_second() -> None:
    clock = Clock()
    script = Script(t=models("qwen"))
    checker = availability(member("t", None, "t"), transport=script, clock=clock)
    checker.check("t")
    clock.advance(5.0)
    assert brief(checker.check("t")) == READY
    assert len(script.asked) == 1
    clock.advance(0.001)
    assert checker.cached("t") is None

    script.answers["t"] = "refused"
    assert brief(checker.check("t")) == (False, "identity_transport_refused")
    clock.advance(1.0)
    checker.check("t")
    assert len(script.asked) == 2
    clock.advance(0.001)
    checker.check("t")
    assert len(script.asked) == 3


@pytest.mark.requirement("contract 3")
def test_flaps_count_changes_between_accepted_observations_and_none_across_an_invalidation() -> None:
    """An invalidation is an operator's doing: what was known before it is compared with nothing after it."""
    script = Script(a=models("qwen"))
    checker = availability(member("t", "a", "a"), transport=script)
    checker.probe_now("t", "a")
    checker.probe_now("t", "a")
    assert checker.flaps("t", "a") == 0
    checker.mark_unavailable("t", "a", "health_transport_reset")
    checker.mark_unavailable("t", "a", "health_transport_reset")
    assert checker.flaps("t", "a") == 1
    checker.invalidate("t")
    checker.probe_now("t", "a")
    assert checker.flaps("t", "a") == 1
    script.answers["a"] = "timeout"
    checker.probe_now("t", "a")
    assert checker.flaps("t", "a") == 2


@pytest.mark.requirement("F-R009")
def test_the_ledger_may_be_asked_what_is_quiesced_while_it_asks_readiness() -> None:
    """No lock of readiness is held during the call: a callback that reads readiness itself returns."""
    checker = availability(member("t", "a", "a"), transport=Script(a=models("qwen")))
    seen: list[AvailabilityResult | None] = []

    def quiesced() -> set[tuple[str, str | None]]:
        seen.append(checker.cached("t", "a"))
        return set()

    checker.use_quiesced(quiesced)
    done = threading.Thread(target=checker.readiness, args=("t",), daemon=True)
    done.start()
    done.join(PATIENCE)
    assert (done.is_alive(), seen) == (False, [None])
