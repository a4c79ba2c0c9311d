"""Many threads at once: ceilings hold, places are neither lost nor invented, quiesce is a barrier."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError, Event, Lock, Thread
from typing import Any

import pytest

from admission import core
from admission.core import (
    AdmissionError,
    AdmissionLease,
    MemberAdmissionLease,
    Strategy,
    TierAdmission,
    TierScope,
)
from admission.replica_scheduler import ReplicaPressure, rank

from .ledgers import WAIT_SECONDS, counts, fresh, ledger_of, ready, replicas

ATTEMPTS = 20
ROUNDS = 2000


@pytest.fixture
def _switch_threads_often() -> Iterator[None]:
    """A hundred times as often as usual: more interleavings in less time."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 100)
    yield
    sys.setswitchinterval(usual)


def run_threads(*bodies: Callable[[], None]) -> None:
    """Run each in a thread of its own; the first error of one fails the test."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_SECONDS)
    # A broken barrier is what an error elsewhere leaves behind.
    errors.sort(key=lambda error: isinstance(error, BrokenBarrierError))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)


@dataclass(frozen=True)
class Round:
    """One randomised burst: a configuration, what stays taken, and what all twenty see."""

    ceilings: dict[str, int]
    tier_ceiling: int | None
    readiness: dict[str, bool]
    pressure: dict[str, ReplicaPressure] | None

    @property
    def scope(self) -> TierScope:
        return replicas(dict(self.ceilings), "capacity", self.tier_ceiling)

    @staticmethod
    def draw(source: random.Random) -> "Round":
        ids = [f"m{index:02}" for index in range(source.choice([2, 2, 2, 3, 5, 16]))]
        ceilings = {member_id: source.randint(1, 12) for member_id in ids}
        total = sum(ceilings.values())
        pressures = [None, *[{m: source.choice([fresh(0), fresh(5), ReplicaPressure()]) for m in ids}] * 2]
        return Round(
            ceilings=ceilings,
            tier_ceiling=source.choice([None, None, source.randint(1, total), source.randint(1, 30)]),
            readiness={member_id: source.random() < 0.85 for member_id in ids},
            pressure=source.choice(pressures),
        )


@pytest.mark.requirement("C-R003", "C-R004", "C-R011", "C-T001", "C-T012", "C-A002", "Q-R009")
def test_twenty_concurrent_attempts_never_exceed_a_ceiling() -> None:
    source = random.Random(20)
    rounds = [Round.draw(source) for _ in range(ROUNDS)]
    ledger = ledger_of(rounds[0].scope)
    leases: list[list[MemberAdmissionLease]] = [[] for _ in rounds]
    gate = Barrier(ATTEMPTS + 1)

    def attempt() -> None:
        for number, played in enumerate(rounds):
            gate.wait(WAIT_SECONDS)
            lease = ledger.acquire_member("primary", played.readiness, played.pressure)
            if lease is not None:
                leases[number].append(lease)
            gate.wait(WAIT_SECONDS)  # the referee counts while everything is held
            gate.wait(WAIT_SECONDS)
            if lease is not None:
                assert lease.release() is True
                assert lease.release() is False
            gate.wait(WAIT_SECONDS)

    def referee() -> None:
        for number, played in enumerate(rounds):
            ledger.reconfigure([played.scope])
            gate.wait(WAIT_SECONDS)
            gate.wait(WAIT_SECONDS)
            per_member = Counter(lease.member_id for lease in leases[number])
            active, members = counts(ledger)
            assert active == len(leases[number])
            assert members == {member_id: per_member[member_id] for member_id in sorted(played.ceilings)}
            assert all(members[member_id] <= ceiling for member_id, ceiling in played.ceilings.items())
            room = sum(c for m, c in played.ceilings.items() if played.readiness[m])
            total = sum(played.ceilings.values())
            assert active == min(ATTEMPTS, room, played.tier_ceiling or total)
            _check_selections(leases[number])
            gate.wait(WAIT_SECONDS)
            gate.wait(WAIT_SECONDS)
            assert counts(ledger)[0] == 0

    def abort_on_error(body: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                body()
            except BaseException:
                gate.abort()
                raise

        return run

    run_threads(abort_on_error(referee), *[abort_on_error(attempt)] * ATTEMPTS)


def _check_selections(leases: list[MemberAdmissionLease]) -> None:
    """Reservations came one after another: no two of a member were made on the same count."""
    numerators: Counter[tuple[str, int]] = Counter()
    for lease in leases:
        assert lease.selection is not None
        winner = lease.selection.scores[0]
        assert winner.member_id == lease.member_id
        numerators[winner.member_id, winner.local_active] += 1
    assert all(times == 1 for times in numerators.values())


@pytest.mark.requirement("Q-R008", "Q-T004")
def test_concurrent_round_robin_is_fair() -> None:
    ledger = ledger_of(replicas({"a": None, "b": None, "c": None}, "round_robin"))
    taken: list[MemberAdmissionLease] = []
    start = Barrier(12)

    def take() -> None:
        start.wait(WAIT_SECONDS)
        for _ in range(100):
            lease = ledger.acquire_member("primary", ready("a", "b", "c"))
            assert lease is not None
            taken.append(lease)

    run_threads(*[take] * 12)
    assert counts(ledger) == (1200, {"a": 400, "b": 400, "c": 400})


@pytest.mark.usefixtures("_switch_threads_often")
@pytest.mark.requirement("C-R003", "C-T001", "Q-T004")
@pytest.mark.parametrize("member_id", [None, "a"])
def test_quiesce_is_a_barrier_for_acquires_that_race_with_it(member_id: str | None) -> None:
    ledger = ledger_of(replicas({"a": 6, "b": 6}))
    stop = Event()
    only_a = ready("a", down=("b",))

    def traffic() -> None:
        while not stop.is_set():
            lease = ledger.acquire_member("primary", only_a)
            if lease is not None:
                assert lease.release() is True

    def operator() -> None:
        try:
            for _ in range(100):
                ledger.quiesce("primary", "race", member_id)
                result = ledger.drain("primary", WAIT_SECONDS, member_id)
                assert result.drained is True
                # Whoever races on from here on comes too late.
                for _ in range(20):
                    assert counts(ledger) == (0, {"a": 0, "b": 0})
                    assert ledger.acquire_member("primary", only_a) is None
                ledger.readmit("primary", member_id)
                lease = None
                while lease is None:
                    lease = ledger.acquire_member("primary", only_a)
                lease.release()
        finally:
            stop.set()

    run_threads(operator, *[traffic] * 8)
    assert counts(ledger) == (0, {"a": 0, "b": 0})


@pytest.fixture
def before_the_lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something once in the one window of an acquire: snapshots checked, lock not taken yet."""

    def arrange(action: Callable[[], object]) -> None:
        pending = [action]

        def rank_late(*arguments: Any) -> Any:
            if pending:
                pending.pop()()
            return rank(*arguments)

        monkeypatch.setattr(core, "rank", rank_late)

    return arrange


@pytest.mark.requirement("C-R003", "C-R004", "Q-T004", "Q-R009")
@pytest.mark.parametrize("member_id", [None, "a"])
def test_a_quiesce_between_the_check_and_the_lock_wins(
    member_id: str | None, before_the_lock: Callable[[Callable[[], object]], None]
) -> None:
    ledger = ledger_of(replicas({"a": 2, "b": 2}))
    before_the_lock(lambda: ledger.quiesce("primary", member_id=member_id))
    assert ledger.acquire_member("primary", ready("a", down=("b",))) is None
    assert counts(ledger)[0] == 0


@pytest.mark.requirement("contract 1")
def test_the_ceilings_that_count_are_those_under_the_lock(
    before_the_lock: Callable[[Callable[[], object]], None],
) -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 4}))
    held = [ledger.acquire_member("primary", ready("a", "b")) for _ in range(3)]
    before_the_lock(lambda: ledger.reconfigure([replicas({"a": 8, "b": 1})]))
    lease = ledger.acquire_member("primary", ready("a", "b"))
    assert lease is not None
    assert lease.selection is not None
    assert [(row.member_id, row.local_active, row.local_capacity) for row in lease.selection.scores] == [
        ("a", 2, 8)
    ]
    assert counts(ledger) == (4, {"a": 3, "b": 1})
    assert len(held) == 3


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(
    ("scopes", "code"),
    [
        ([replicas({"a": 4, "b": 4, "c": 4})], "readiness_invalid"),
        ([replicas({"a": 4, "c": 4})], "readiness_invalid"),
        ([TierScope("primary", 4)], "tier_is_direct"),
        ([], "unknown_tier"),
    ],
)
def test_a_request_of_the_previous_configuration_is_refused_not_misplaced(
    scopes: list[TierScope], code: str, before_the_lock: Callable[[Callable[[], object]], None]
) -> None:
    ledger = ledger_of(replicas({"a": 4, "b": 4}))
    before_the_lock(lambda: ledger.reconfigure(scopes))
    with pytest.raises(AdmissionError) as refusal:
        ledger.acquire_member("primary", ready("a", "b"))
    assert refusal.value.code == code
    assert [snapshot.active_requests for snapshot in ledger.snapshots()] == [0] * len(scopes)


@pytest.mark.usefixtures("_switch_threads_often")
@pytest.mark.requirement("contract 3")
def test_waiting_direct_requests_lose_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "POLL_SECONDS", 0.002)
    ceiling = 3
    ledger = ledger_of(TierScope("solo", ceiling))
    guard = Lock()
    inside = 0
    most = 0
    served: Counter[int] = Counter()

    def work(seed: int) -> Callable[[], None]:
        source = random.Random(seed)

        def run() -> None:
            nonlocal inside, most
            while served[seed] < 60:
                patience = source.choice([0.0, 0.0005, 0.01, WAIT_SECONDS])
                leaves = source.random() < 0.3

                def gone(leaves: bool = leaves) -> bool:
                    return leaves and source.random() < 0.3

                lease = ledger.acquire("solo", timeout=patience, abandoned=gone)
                if lease is None:
                    continue
                with guard:
                    inside += 1
                    most = max(most, inside)
                    served[seed] += 1
                with guard:
                    inside -= 1
                assert lease.release() is True

        return run

    def operator() -> None:
        for _ in range(30):
            ledger.quiesce("solo")
            assert ledger.drain("solo", WAIT_SECONDS).drained is True
            ledger.readmit("solo")

    run_threads(operator, *[work(seed) for seed in range(12)])
    assert most <= ceiling
    assert counts(ledger, "solo") == (0, {})
    leases = [ledger.acquire("solo") for _ in range(ceiling)]
    assert None not in leases
    assert ledger.acquire("solo") is None


@pytest.mark.usefixtures("_switch_threads_often")
@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize("strategies", [("capacity", "capacity"), ("round_robin", "capacity")])
def test_reconfiguration_under_load(strategies: tuple[Strategy, Strategy]) -> None:
    """Members, ceilings and whole tiers come and go under traffic; every place comes back."""
    first, second = strategies
    source = random.Random(7)
    configurations = [
        [replicas({"a": 4, "b": 4}, first), TierScope("solo", 2), TierScope("steady", 50)],
        [replicas({"a": 1, "b": 5, "c": 4}, second), TierScope("steady", 40)],
        [replicas({"b": 5, "c": 4}, second), TierScope("solo", 5), TierScope("steady", 50)],
        [TierScope("primary", 3), TierScope("steady", 40)],
        [TierScope("solo", 1), TierScope("steady", 50)],
    ]
    ledger = TierAdmission(configurations[0])
    memberships = [ready("a", "b"), ready("a", "b", "c"), ready("b", "c")]
    stop = Event()
    moved = Event()
    admitted: Counter[str] = Counter()
    expected = {"member", "direct", "readiness_invalid", "unknown_tier"}

    def settle(kind: str, take: Callable[[], AdmissionLease | None]) -> None:
        moved.set()
        try:
            lease = take()
        except AdmissionError as refusal:
            # A request that still goes by the previous configuration.
            admitted[refusal.code] += 1
            return
        if lease is not None:
            admitted[kind] += 1
            assert lease.release() is True

    def replica_traffic(membership: dict[str, bool]) -> Callable[[], None]:
        def run() -> None:
            while not stop.is_set():
                settle("member", lambda: ledger.acquire_member("primary", membership))

        return run

    def direct_traffic() -> None:
        while not stop.is_set():
            settle("direct", lambda: ledger.acquire("solo", timeout=0.01))
            settle("shaped", lambda: ledger.acquire("primary", timeout=0.01))

    def steady_traffic() -> None:
        while not stop.is_set():
            lease = ledger.acquire("steady")
            assert lease is not None, "a tier that stays must not notice"
            assert lease.release() is True

    def operator() -> None:
        try:
            step = 0
            while step < 150 or not expected <= set(admitted):
                ledger.reconfigure(configurations[step % len(configurations)])
                for snapshot in ledger.snapshots():
                    counts(ledger, snapshot.tier_id)
                for _ in range(source.randint(0, 2)):
                    moved.clear()
                    assert moved.wait(WAIT_SECONDS)
                step += 1
                assert step < 100_000
        finally:
            stop.set()

    run_threads(operator, *map(replica_traffic, memberships), direct_traffic, direct_traffic, steady_traffic)
    ledger.reconfigure(configurations[0])
    assert [counts(ledger, tier_id)[0] for tier_id in ("primary", "solo", "steady")] == [0, 0, 0]
