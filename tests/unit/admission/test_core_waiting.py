"""Direct tiers that wait for a place: order, deadlines, callers that are gone, quiesce."""

from collections.abc import Callable
from threading import Event, Thread

import pytest

from admission import core
from admission.core import AdmissionError, AdmissionLease, TierAdmission, TierScope

from .ledgers import WAIT_SECONDS, counts, replicas


def solo(ceiling: int = 1) -> tuple[TierAdmission, list[AdmissionLease]]:
    """A direct tier and the leases that fill it."""
    ledger = TierAdmission([TierScope("solo", ceiling)])
    held = [lease for _ in range(ceiling) if (lease := ledger.acquire("solo")) is not None]
    assert len(held) == ceiling
    return ledger, held


class Waiter(Thread):
    """A request that waits in a thread; ``queued`` is set once it stands in the queue."""

    def __init__(self, ledger: TierAdmission, arrived: list["Waiter"] | None = None) -> None:
        super().__init__(daemon=True)
        self.ledger = ledger
        self.arrived = arrived
        self.queued = Event()
        self.gone = False
        self.lease: AdmissionLease | None = None
        self.error: BaseException | None = None

    def abandoned(self) -> bool:
        self.queued.set()
        return self.gone

    def run(self) -> None:
        try:
            # More patience than the test has: only what the ledger does ends the wait.
            self.lease = self.ledger.acquire("solo", timeout=3600, abandoned=self.abandoned)
        except BaseException as error:
            self.error = error
        if self.arrived is not None:
            self.arrived.append(self)

    def begin(self) -> "Waiter":
        self.start()
        assert self.queued.wait(WAIT_SECONDS)
        return self

    def end(self) -> AdmissionLease | None:
        self.join(WAIT_SECONDS)
        assert not self.is_alive()
        assert self.error is None
        return self.lease


@pytest.mark.requirement("contract 3")
def test_a_released_place_goes_to_the_one_who_waits() -> None:
    ledger, (held,) = solo()
    waiter = Waiter(ledger).begin()
    assert ledger.acquire("solo") is None
    held.release()
    lease = waiter.end()
    assert lease is not None
    assert counts(ledger, "solo") == (1, {})
    assert lease.release() is True
    assert counts(ledger, "solo") == (0, {})


@pytest.mark.requirement("contract 3")
def test_those_who_wait_are_served_in_their_order() -> None:
    ledger, (held,) = solo()
    served: list[Waiter] = []
    waiters = [Waiter(ledger, served).begin() for _ in range(5)]
    lease: AdmissionLease | None = held
    for waiter in waiters:
        assert lease is not None
        lease.release()
        lease = waiter.end()
    assert served == waiters


@pytest.mark.requirement("contract 3")
def test_nobody_overtakes_those_who_wait() -> None:
    ledger, (held,) = solo()
    waiter = Waiter(ledger).begin()
    held.release()
    # The place is the waiter's from the moment of the release, whether its thread has run or not.
    assert ledger.acquire("solo") is None
    assert waiter.end() is not None


@pytest.mark.requirement("contract 3")
def test_a_free_place_needs_no_wait() -> None:
    def unused() -> bool:
        raise AssertionError("nobody waited")

    ledger = TierAdmission([TierScope("solo", 1)])
    lease = ledger.acquire("solo", timeout=5, abandoned=unused)
    assert lease is not None
    assert ledger.acquire("solo", timeout=0, abandoned=unused) is None


def clock(*readings: float, before_last: Callable[[], object] = lambda: None) -> Callable[[], float]:
    """A clock that gives these readings and does something before the last."""
    rest = list(readings)

    def read() -> float:
        if len(rest) == 1:
            before_last()
        return rest.pop(0)

    return read


@pytest.mark.requirement("contract 3")
def test_the_wait_ends_at_its_timeout() -> None:
    ledger = TierAdmission([TierScope("solo", 1)], monotonic=clock(100.0, 102.0))
    held = ledger.acquire("solo")
    assert held is not None
    assert ledger.acquire("solo", timeout=2) is None
    held.release()
    assert counts(ledger, "solo") == (0, {})
    assert ledger.acquire("solo") is not None


@pytest.mark.requirement("contract 3")
def test_a_place_that_comes_with_the_timeout_is_taken() -> None:
    held: list[AdmissionLease] = []
    ledger = TierAdmission(
        [TierScope("solo", 1)], monotonic=clock(100.0, 102.0, before_last=lambda: held.pop().release())
    )
    lease = ledger.acquire("solo")
    assert lease is not None
    held.append(lease)
    late = ledger.acquire("solo", timeout=2)
    assert late is not None
    assert counts(ledger, "solo") == (1, {})
    late.release()
    assert counts(ledger, "solo") == (0, {})


@pytest.mark.requirement("contract 3", "case 2")
def test_a_caller_that_is_gone_stops_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "POLL_SECONDS", 0.001)
    ledger, (held,) = solo()
    asked = []

    def gone() -> bool:
        asked.append(counts(ledger, "solo"))  # the lock is not held: reading it here does not hang
        return len(asked) == 4

    assert ledger.acquire("solo", timeout=WAIT_SECONDS, abandoned=gone) is None
    assert asked == [(1, {})] * 4
    held.release()
    assert counts(ledger, "solo") == (0, {})


@pytest.mark.requirement("contract 3")
def test_the_caller_is_asked_at_least_four_times_a_second() -> None:
    assert core.POLL_SECONDS <= 0.25


@pytest.mark.requirement("contract 3", "case 2")
def test_a_place_given_to_a_caller_that_is_gone_is_passed_on() -> None:
    ledger, (held,) = solo()
    behind: list[Waiter] = []

    def leave() -> bool:
        behind.append(Waiter(ledger).begin())
        held.release()
        return True

    assert ledger.acquire("solo", timeout=WAIT_SECONDS, abandoned=leave) is None
    lease = behind[0].end()
    assert lease is not None
    assert counts(ledger, "solo") == (1, {})


@pytest.mark.requirement("contract 3")
@pytest.mark.parametrize("granted", [False, True])
def test_an_error_of_the_callers_check_leaves_nothing_behind(granted: bool) -> None:
    ledger, (held,) = solo()

    def broken() -> bool:
        if granted:
            held.release()
        raise RuntimeError("socket")

    with pytest.raises(RuntimeError, match="socket"):
        ledger.acquire("solo", timeout=5, abandoned=broken)
    held.release()
    assert counts(ledger, "solo") == (0, {})
    assert ledger.acquire("solo") is not None


@pytest.mark.requirement("contract 3")
def test_one_who_leaves_the_queue_does_not_take_a_place_from_those_behind() -> None:
    ledger, (held,) = solo()
    first, second, third = (Waiter(ledger).begin() for _ in range(3))
    second.gone = True
    assert second.end() is None
    held.release()
    lease = first.end()
    assert lease is not None
    lease.release()
    assert third.end() is not None


@pytest.mark.requirement("contract 3", "C-R011")
def test_quiesce_refuses_those_who_wait() -> None:
    ledger, (held,) = solo()
    waiters = [Waiter(ledger).begin() for _ in range(3)]
    ledger.quiesce("solo", "upgrade")
    assert [waiter.end() for waiter in waiters] == [None, None, None]
    assert ledger.acquire("solo", timeout=WAIT_SECONDS) is None
    held.release()
    assert counts(ledger, "solo") == (0, {})
    ledger.readmit("solo")
    assert ledger.acquire("solo") is not None


@pytest.mark.requirement("contract 1")
def test_a_raised_ceiling_serves_those_who_wait() -> None:
    ledger, _ = solo()
    first, second, third = (Waiter(ledger).begin() for _ in range(3))
    ledger.reconfigure([TierScope("solo", 3)])
    assert first.end() is not None
    assert second.end() is not None
    assert counts(ledger, "solo") == (3, {})
    ledger.reconfigure([TierScope("solo")])
    assert third.end() is not None


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize("scopes", [[], [replicas({"a": 1, "b": 1}, tier_id="solo")]])
def test_the_removal_of_a_tier_refuses_those_who_wait(scopes: list[TierScope]) -> None:
    ledger, (held,) = solo()
    waiter = Waiter(ledger).begin()
    ledger.reconfigure(scopes)
    assert waiter.end() is None
    assert held.release() is True


@pytest.mark.requirement("contract 3")
@pytest.mark.parametrize(
    "timeout", [-1, -0.001, 3600.001, float("inf"), float("nan"), True, "1", None, 10**400]
)
def test_timeouts_that_are_refused(timeout: object) -> None:
    ledger, (held,) = solo()
    with pytest.raises(AdmissionError, match=r"\Athe timeout is out of bounds\Z"):
        ledger.acquire("solo", timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(AdmissionError, match=r"\Athe timeout is out of bounds\Z"):
        ledger.drain("solo", timeout)  # type: ignore[arg-type]
    held.release()
    assert counts(ledger, "solo") == (0, {})
