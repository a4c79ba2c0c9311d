"""The background prober: its schedule by a fake clock, its threads by events, changes of configuration."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from routing.availability import HttpHealthAvailability, ProbeTarget, targets_from_config
from routing.config import ReplicaIdentity, ReplicaMember, RouterConfig, Tier
from tests.unit.routing.availability_support import (
    PATIENCE,
    Answer,
    Call,
    Clock,
    Crew,
    Held,
    Script,
    availability,
    crew,
    member,
    models,
    prober_threads,
)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def threads(held: Held) -> Iterator[Crew]:
    with crew(held) as running:
        yield running


def turns(checker: HttpHealthAvailability) -> float:
    """Turn the prober until it has nothing to do; the wait it then asks for."""
    for _ in range(100):
        wait = checker.run_once()
        if wait > 0:
            return wait
    raise AssertionError("the prober never comes to rest")


# --- schedule ----------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 3")
def test_a_ready_scope_is_probed_each_interval() -> None:
    clock = Clock()
    script = Script(t=models("qwen"))
    checker = availability(member("t", None, "t"), transport=script, clock=clock)
    assert turns(checker) == 5.0
    clock.advance(4.5)
    assert turns(checker) == 0.5
    assert len(script.asked) == 1
    clock.advance(0.5)
    assert checker.run_once() == 0.0
    assert len(script.asked) == 2


@pytest.mark.requirement("contract 3")
def test_a_failed_scope_is_probed_again_after_a_second_and_is_back_with_its_first_good_answer() -> None:
    """sglang 22511: a busy member answers too slowly, is out at once, and back within a second."""
    clock = Clock()
    script = Script(t="timeout")
    checker = availability(member("t", None, "t"), transport=script, clock=clock)
    assert turns(checker) == 1.0
    assert not checker.current("t").available
    clock.advance(1.0)
    script.answers["t"] = models("qwen")
    assert turns(checker) == 5.0
    assert checker.current("t").available
    assert len(script.asked) == 2


def test_a_failed_scope_never_waits_longer_than_a_short_interval() -> None:
    script = Script(t="refused")
    checker = availability(member("t", None, "t"), transport=script)
    checker.reconfigure([member("t", None, "t")], interval=0.25, timeout=3.0, max_bytes=65_536)
    assert turns(checker) == 0.25


@pytest.mark.requirement("contract 3")
def test_a_marked_scope_is_due_at_once_and_rests_again_after_the_probe() -> None:
    script = Script(t=models("qwen"))
    checker = availability(member("t", None, "t"), transport=script)
    turns(checker)
    checker.mark_unavailable("t", None, "health_transport_refused")
    assert checker.current("t").reason == "health_transport_refused"
    assert turns(checker) == 5.0
    assert checker.current("t").available
    assert len(script.asked) == 2


def test_an_invalidated_scope_is_due_at_once() -> None:
    script = Script(a=models("qwen"), b=models("qwen"))
    checker = availability(member("t", "a", "a"), member("t", "b", "b"), transport=script)
    turns(checker)
    checker.invalidate("t", "b")
    assert turns(checker) == 5.0
    assert script.asked == ["a", "b", "b"]


def test_what_has_been_due_longest_comes_first() -> None:
    clock = Clock()
    script = Script(a=models("qwen"), b="reset", c=models("qwen"))
    checker = availability(*(member("t", name, name) for name in "abc"), transport=script, clock=clock)
    turns(checker)
    clock.advance(10.0)  # b has been due since 1001, a and c since 1005
    turns(checker)
    assert script.asked == ["a", "b", "c", "b", "a", "c"]


@pytest.mark.requirement("contract 3")
def test_quiesced_scopes_are_left_alone_and_looked_for_again_within_a_second() -> None:
    clock = Clock()
    script = Script(a=models("qwen"), b=models("qwen"), c=models("qwen"))
    targets = (member("t", "a", "a"), member("t", "b", "b"), member("u", "a", "c"))
    checker = availability(*targets, transport=script, clock=clock)
    quiesced: set[tuple[str, str | None]] = {("t", "a"), ("u", None)}
    checker.use_quiesced(lambda: quiesced)
    assert turns(checker) == 1.0
    assert script.asked == ["b"]
    quiesced.clear()
    assert turns(checker) == 5.0
    assert script.asked == ["b", "a", "c"]


def test_a_scope_whose_probe_is_under_way_is_not_probed_twice(held: Held, threads: Crew) -> None:
    checker = availability(member("t", None, "t"), transport=held)
    flight = threads.run(checker.run_once)
    call = held.next()
    assert checker.run_once() == 5.0
    checker.invalidate("t")
    assert checker.run_once() == 5.0
    call.answer(models("qwen"))
    assert flight.result(PATIENCE) == 0.0
    assert len(held.calls) == 1
    assert checker.cached("t") is None
    again = threads.run(checker.run_once)
    held.next().answer(models("qwen"))
    again.result(PATIENCE)
    assert checker.current("t").available


def test_the_first_round_is_complete_when_every_open_scope_was_probed_once() -> None:
    script = Script(a=models("qwen"), b="refused", c=models("qwen"))
    targets = [member("t", name, name) for name in "abc"]
    checker = availability(*targets, member("plain", None, "x", expected_model=None), transport=script)
    checker.use_quiesced(lambda: {("t", "c")})
    assert not checker.first_round_complete
    checker.run_once()
    checker.run_once()
    assert not checker.first_round_complete
    turns(checker)
    assert checker.first_round_complete
    checker.reconfigure([member("new", None, "a")], interval=5.0, timeout=3.0, max_bytes=65_536)
    assert checker.run_once() == 0.0
    assert checker.first_round_complete


def test_a_configuration_without_probes_has_its_first_round_at_once() -> None:
    checker = availability(transport=Script())
    assert checker.run_once() == 5.0
    assert checker.first_round_complete


# --- threads -----------------------------------------------------------------------------------------


@pytest.mark.requirement("house 6")
def test_threads_start_on_demand_are_named_probe_and_stop() -> None:
    script = Script(a=models("qwen"), b=models("qwen"))
    checker = availability(member("t", "a", "a"), member("t", "b", "b"), transport=script)
    assert prober_threads() == []
    checker.start()
    checker.start()
    try:
        assert prober_threads() == ["anvil-prober-1", "anvil-prober-2"]
        assert checker.first_round_done.wait(PATIENCE)
        assert [result.available for result in checker.readiness("t").values()] == [True, True]
    finally:
        assert checker.stop()
    assert checker.stop()
    assert prober_threads() == []


def test_stop_is_bounded_when_a_probe_hangs(held: Held, threads: Crew) -> None:
    checker = availability(member("t", None, "t"), transport=held)
    checker.start()
    held.next()
    assert checker.stop(timeout=0.01) is False
    held.release()
    assert checker.stop() is True


def test_a_prober_starts_again_after_a_stop() -> None:
    checker = availability(member("t", None, "t"), transport=Script(t=models("qwen")))
    for _ in range(2):
        checker.start()
        assert checker.first_round_done.wait(PATIENCE)
        assert checker.stop()


@pytest.mark.requirement("contract 3")
def test_fifteen_hanging_members_do_not_keep_a_healthy_one_from_being_probed(
    threads: Crew, held: Held
) -> None:
    """Eight threads at most go to scopes that failed last time; here they hang, and one is still free."""
    clock = Clock()
    script = Script(good=models("qwen"))
    hanging = [f"m{number:02}" for number in range(15)]
    script.answers.update(dict.fromkeys(hanging, "timeout"))
    phase_two = threading.Event()

    def transport(url: str, **arguments: object) -> tuple[int, bytes]:
        if phase_two.is_set() and "good" not in url:
            return held(url, **arguments)  # type: ignore[arg-type]
        return script(url, **arguments)  # type: ignore[arg-type]

    targets = [member("t", name, name) for name in [*hanging, "good"]]
    checker = availability(*targets, transport=transport, clock=clock)
    turns(checker)
    phase_two.set()
    clock.advance(5.0)
    flights = [threads.run(checker.run_once) for _ in range(8)]
    for _ in flights:
        held.next()
    asked = script.asked.count("good")
    assert checker.run_once() == 0.0
    assert script.asked.count("good") == asked + 1
    assert checker.run_once() == 5.0
    held.release()
    assert [flight.result(PATIENCE) for flight in flights] == [0.0] * 8


@pytest.mark.requirement("contract 3")
def test_a_stuck_prober_does_not_keep_an_old_result_ready(held: Held, threads: Crew) -> None:
    """Served for interval + 2 timeouts + 1 s = 12 s while the prober runs, then as if never probed."""
    clock = Clock()
    checker = availability(member("t", "a", "a"), transport=held, clock=clock)
    checker.start()
    try:
        held.next().answer(models("qwen"))
        assert checker.first_round_done.wait(PATIENCE)
        clock.advance(5.0)
        checker.invalidate("unknown")  # wakes the prober, whose clock has not moved by itself
        stuck = held.next()
        clock.advance(7.0)
        assert checker.readiness("t")["a"].available
        clock.advance(0.001)
        assert checker.cached("t", "a") is None
        assert checker.readiness("t")["a"].reason == "probe_pending"
        assert checker.check("t", "a").reason == "probe_pending"
        stuck.answer(models("qwen"))
    finally:
        held.release()
        assert checker.stop()


def test_a_turn_that_fails_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    checker = availability(member("t", None, "t"), transport=Script(t=models("qwen")))
    failed = threading.Event()

    def quiesced() -> set[tuple[str, str | None]]:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("http://secret.example")
        return set()

    checker.use_quiesced(quiesced)
    with caplog.at_level(logging.ERROR):
        checker.start()
        try:
            assert failed.wait(PATIENCE)
            checker.invalidate(None)  # wakes it before its second is over
            assert checker.first_round_done.wait(PATIENCE)
        finally:
            assert checker.stop()
    assert [record.getMessage() for record in caplog.records] == ["a turn of the readiness prober failed"]
    assert "secret" not in caplog.text


def test_a_watchdog_can_tell_when_the_prober_last_looked() -> None:
    clock = Clock()
    checker = availability(transport=Script(), clock=clock)
    clock.advance(7.0)
    assert checker.seconds_since_turn() == 7.0
    checker.run_once()
    assert checker.seconds_since_turn() == 0.0


# --- configuration -----------------------------------------------------------------------------------


def reconfigure(checker: HttpHealthAvailability, *targets: ProbeTarget) -> None:
    checker.reconfigure(targets, interval=5.0, timeout=3.0, max_bytes=65_536)


@pytest.mark.requirement("contract 1")
def test_unchanged_targets_keep_results_and_flaps_and_changed_ones_start_cold() -> None:
    script = Script(a=models("qwen"), b=models("qwen"))
    checker = availability(member("t", "a", "a"), member("t", "b", "b"), transport=script)
    turns(checker)
    checker.mark_unavailable("t", "a", "health_transport_reset")
    checker.mark_unavailable("t", "b", "health_transport_reset")
    reconfigure(checker, member("t", "a", "a"), member("t", "b", "b2"), member("u", "a", "a"))

    kept = checker.cached("t", "a")
    assert kept is not None
    assert kept.reason == "health_transport_reset"
    assert (checker.flaps("t", "a"), checker.flaps("t", "b")) == (1, 0)
    assert (checker.cached("t", "b"), checker.cached("u", "a")) == (None, None)


@pytest.mark.requirement("contract 1", "F-R004")
def test_flights_of_unchanged_targets_land_and_those_of_changed_and_dropped_ones_do_not(
    held: Held, threads: Crew
) -> None:
    """production-stack 680: a replaced configuration's probes end with it."""
    checker = availability(*(member("t", name, name) for name in "abc"), transport=held)
    checks = {name: threads.run(checker.check, "t", name) for name in "abc"}
    calls: list[Call] = [held.next() for _ in "abc"]
    reconfigure(checker, member("t", "a", "a"), member("t", "b", "b", health_path="/health"))
    for call in calls:
        call.answer(models("qwen"))
    assert {name: check.result(PATIENCE).reason for name, check in checks.items()} == {
        "a": "identity_passed",
        "b": "probe_invalidated",
        "c": "probe_invalidated",
    }
    assert checker.cached("t", "a") is not None
    assert (checker.cached("t", "b"), checker.cached("t", "c")) == (None, None)
    assert checker.check("t", "c").reason == "probe_invalidated"


def test_a_flight_of_an_unchanged_target_is_still_the_single_one(held: Held, threads: Crew) -> None:
    checker = availability(member("t", None, "t"), transport=held)
    flight = threads.run(checker.check, "t")
    held.next()
    reconfigure(checker, member("t", None, "t"))
    assert checker.check("t").reason == "probe_pending"
    held.release()
    flight.result(PATIENCE)


def test_a_changed_target_is_probed_while_the_old_one_still_hangs(held: Held, threads: Crew) -> None:
    checker = availability(member("t", None, "old"), transport=held)
    old = threads.run(checker.check, "t")
    old_call = held.next()
    reconfigure(checker, member("t", None, "new"))
    new = threads.run(checker.check, "t")
    new_call = held.next()
    assert new_call.host == "new"
    old_call.answer("refused")
    assert old.result(PATIENCE).reason == "probe_invalidated"
    new_call.answer(models("qwen"))
    assert new.result(PATIENCE).reason == "identity_passed"


def test_a_shorter_interval_applies_to_results_that_are_already_there() -> None:
    clock = Clock()
    script = Script(t=models("qwen"))
    checker = availability(member("t", None, "t"), transport=script, clock=clock)
    checker.reconfigure([member("t", None, "t")], interval=3600.0, timeout=3.0, max_bytes=65_536)
    assert turns(checker) == 3600.0
    checker.reconfigure([member("t", None, "t")], interval=5.0, timeout=3.0, max_bytes=65_536)
    assert turns(checker) == 5.0
    clock.advance(5.0)
    turns(checker)
    assert len(script.asked) == 2


def test_more_targets_get_more_threads_up_to_sixteen() -> None:
    answers: dict[str, Answer] = {f"m{number}": models("qwen") for number in range(20)}
    checker = availability(member("t", "m0", "m0"), transport=Script(**answers))
    checker.start()
    try:
        assert len(prober_threads()) == 1
        reconfigure(checker, *(member("t", name, name) for name in answers))
        assert len(prober_threads()) == 16
    finally:
        assert checker.stop()


def test_two_targets_of_one_key_are_refused_and_nothing_changes() -> None:
    checker = availability(member("t", None, "t"), transport=Script(t=models("qwen")))
    turns(checker)
    with pytest.raises(ValueError, match="share one key"):
        reconfigure(checker, member("t", None, "t"), member("t", None, "u"))
    assert checker.current("t").available


IDENTITY = ReplicaIdentity(
    model_revision="r1",
    engine_version="0.11.0",
    image_digest="sha256:" + "a" * 64,
    config_fingerprint="sha256:" + "b" * 64,
)


def replica(member_id: str, **changes: str) -> ReplicaMember:
    values = {
        "base_url": f"http://127.0.0.1:81/{member_id}",
        "host_id": "h",
        "resource_id": f"r-{member_id}",
        "qualification_ref": "bench:1",
        **changes,
    }
    return ReplicaMember(id=member_id, **values)  # type: ignore[arg-type]


def config_of(*tiers: Tier) -> RouterConfig:
    return RouterConfig(tiers=tiers)


def replica_tier(*members: ReplicaMember, identity: ReplicaIdentity = IDENTITY, **changes: object) -> Tier:
    values: dict[str, object] = {"model": "qwen", "model_identity": True, "health_path": "/health", **changes}
    return Tier(id="rep", context_limit=10, replica_identity=identity, replicas=members, **values)  # type: ignore[arg-type]


@pytest.mark.requirement("Q-R007")
def test_targets_are_one_per_direct_tier_and_one_per_member_with_the_policy_of_the_tier() -> None:
    direct = Tier(id="d", context_limit=10, base_url="http://h/v1", metadata_source="upstream", auth_env="K")
    plain = Tier(id="p", context_limit=10, base_url="http://h/v1", model="x")
    targets = targets_from_config(config_of(direct, replica_tier(replica("b"), replica("a")), plain))
    assert [
        (t.key, t.base_url, t.health_path, t.expected_model, t.metadata_upstream, t.auth_env) for t in targets
    ] == [
        (("d", None), "http://h/v1", None, None, True, "K"),
        (("rep", "b"), "http://127.0.0.1:81/b", "/health", "qwen", False, None),
        (("rep", "a"), "http://127.0.0.1:81/a", "/health", "qwen", False, None),
        (("p", None), "http://h/v1", None, None, False, None),
    ]
    assert [t.verifies_identity for t in targets] == [True, True, True, False]
    assert [t.is_probed for t in targets] == [True, True, True, False]
    assert "http" not in repr(targets)


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(
    ("changed", "carries"),
    [
        (replica_tier(replica("a", qualification_ref="bench:2")), True),
        (replica_tier(replica("a"), max_concurrency=7, timeout=9.0, extra_body={"x": 1}), True),
        (replica_tier(replica("a", base_url="http://127.0.0.1:82/a")), False),
        (replica_tier(replica("a", host_id="g")), False),
        (replica_tier(replica("a", resource_id="r2")), False),
        (replica_tier(replica("a"), model="other"), False),
        (replica_tier(replica("a"), health_path=None), False),
        (replica_tier(replica("a"), auth_env="K"), False),
        (replica_tier(replica("a"), dialect="anthropic"), False),
        (replica_tier(replica("a"), replica_strategy="capacity"), False),
        (replica_tier(replica("a"), identity=replace(IDENTITY, model_revision="r2")), False),
    ],
)
def test_what_makes_another_deployment_carries_no_readiness_over(changed: Tier, carries: bool) -> None:
    before = targets_from_config(config_of(replica_tier(replica("a"))))[0]
    after = targets_from_config(config_of(changed))[0]
    assert (before.fingerprint == after.fingerprint) is carries
