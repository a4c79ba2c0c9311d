"""The last net: leases that nobody released."""

import gc
from threading import Event, Thread

import pytest

from admission.core import AdmissionLease, TierAdmission, TierScope

from .ledgers import WAIT_SECONDS, counts, ledger_of, ready, replicas

AB = ready("a", "b")


@pytest.fixture
def ledger() -> TierAdmission:
    return ledger_of(TierScope("solo", 1), replicas({"a": 1, "b": 1}))


@pytest.mark.requirement("house 3", "C-R010", "case 1")
def test_a_lost_lease_is_given_back_by_reaping_only(ledger: TierAdmission) -> None:
    lease = ledger.acquire("solo")
    member_lease = ledger.acquire_member("primary", AB)
    assert lease is not None
    assert member_lease is not None
    del lease, member_lease
    assert counts(ledger, "solo") == (1, {})
    assert counts(ledger) == (1, {"a": 1, "b": 0})
    assert ledger.reap() == 2
    assert ledger.reap() == 0
    assert counts(ledger, "solo") == (0, {})
    assert counts(ledger) == (0, {"a": 0, "b": 0})


@pytest.mark.requirement("house 3")
def test_a_released_lease_leaves_nothing_to_reap(ledger: TierAdmission) -> None:
    lease = ledger.acquire("solo")
    assert lease is not None
    lease.release()
    del lease
    assert ledger._lost_places.empty()
    assert ledger.reap() == 0


@pytest.mark.requirement("house 3", "case 5")
def test_a_lease_that_is_held_is_never_reaped(ledger: TierAdmission) -> None:
    lease = ledger.acquire("solo")
    gc.collect()
    assert ledger.reap() == 0
    assert counts(ledger, "solo") == (1, {})
    assert lease is not None
    assert lease.release() is True


@pytest.mark.requirement("house 3")
def test_a_lease_in_a_reference_cycle_is_given_back(ledger: TierAdmission) -> None:
    cycle: list[object] = [ledger.acquire("solo")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert ledger.reap() == 1
    assert counts(ledger, "solo") == (0, {})


@pytest.mark.requirement("house 3")
def test_a_lease_lost_while_its_tier_is_locked_does_not_hang(ledger: TierAdmission) -> None:
    cycle: list[object] = [ledger.acquire("solo")]
    cycle.append(cycle)
    del cycle
    with ledger._find("solo").lock:
        gc.collect()
    assert ledger.reap() == 1
    assert counts(ledger, "solo") == (0, {})


class ReleasesInFinalizer:
    """What a forgotten generator's ``finally`` amounts to."""

    def __init__(self, lease: AdmissionLease) -> None:
        self.lease = lease
        self.cycle = self

    def __del__(self) -> None:
        self.lease.release()


@pytest.mark.requirement("house 3")
def test_a_finalizer_that_releases_while_the_tier_is_locked_does_not_hang(ledger: TierAdmission) -> None:
    lease = ledger.acquire("solo")
    assert lease is not None
    ReleasesInFinalizer(lease)
    del lease

    def collect() -> None:
        with ledger._find("solo").lock:
            gc.collect()

    thread = Thread(target=collect, daemon=True)
    thread.start()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert counts(ledger, "solo") == (0, {})
    assert ledger.reap() == 0


@pytest.mark.requirement("house 3", "contract 1")
def test_a_lost_lease_of_a_removed_tier_does_not_count_in_its_successor(ledger: TierAdmission) -> None:
    lease = ledger.acquire("solo")
    ledger.reconfigure([])
    ledger.reconfigure([TierScope("solo", 1)])
    successor = ledger.acquire("solo")
    del lease
    assert ledger.reap() == 1
    assert counts(ledger, "solo") == (1, {})
    assert successor is not None


@pytest.mark.requirement("house 3")
def test_a_reaped_place_goes_to_the_one_who_waits(ledger: TierAdmission) -> None:
    lost = ledger.acquire("solo")
    queued = Event()
    served: list[AdmissionLease | None] = []

    def wait() -> None:
        served.append(ledger.acquire("solo", timeout=WAIT_SECONDS, abandoned=lambda: bool(queued.set())))

    thread = Thread(target=wait)
    thread.start()
    assert queued.wait(WAIT_SECONDS)
    del lost
    assert ledger.reap(WAIT_SECONDS) == 1
    thread.join(WAIT_SECONDS)
    assert served[0] is not None
    assert counts(ledger, "solo") == (1, {})


@pytest.mark.requirement("house 3")
def test_reaping_waits_for_a_lost_lease(ledger: TierAdmission) -> None:
    lease = ledger.acquire("solo")
    results: list[int] = []
    thread = Thread(target=lambda: results.append(ledger.reap(WAIT_SECONDS)))
    thread.start()
    assert lease is not None
    del lease
    thread.join(WAIT_SECONDS)
    assert results == [1]
    assert ledger.reap(0.001) == 0
