"""What one ``acquire_member`` costs with 16 members, checking and copying both snapshots included.

    python benchmarks/acquire_member.py [--seconds S]

Prints median and p99 in microseconds: single-threaded for plain dicts (checked on every call) and for the
types that are checked when they are made, in capacity mode and in round robin; then for 32 threads on one
tier, with the ratio of p99 to median. Each figure is measured for S seconds (default 2). Only the acquire is
timed, the release between two of them is not.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter_ns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from admission.core import MemberScope, TierAdmission, TierScope
from admission.replica_scheduler import (
    PressureFreshness,
    PressureSignalState,
    ReplicaPressure,
    ValidatedPressure,
    ValidatedReadiness,
)

MEMBERS = tuple(f"member-{index:02}" for index in range(16))
THREADS = 32
STANDING_LEASES = 70
"""Places that stay taken, so that loads and ceilings differ as they would at work."""

Readiness = Mapping[str, bool]
Pressure = Mapping[str, ReplicaPressure]


def build_ledger() -> TierAdmission:
    members = tuple(MemberScope(member, 8 + index % 4) for index, member in enumerate(MEMBERS))
    return TierAdmission(
        [
            TierScope("capacity", strategy="capacity", members=members),
            TierScope("round-robin", strategy="round_robin", members=members),
        ]
    )


def acquire_for(
    ledger: TierAdmission, tier_id: str, readiness: Readiness, pressure: Pressure, seconds: float
) -> list[int]:
    """Nanoseconds of each acquire during ``seconds``."""
    samples = []
    acquire = ledger.acquire_member
    end = perf_counter_ns() + int(seconds * 1e9)
    finished = 0
    while finished < end:
        started = perf_counter_ns()
        lease = acquire(tier_id, readiness, pressure)
        finished = perf_counter_ns()
        samples.append(finished - started)
        if lease is not None:
            lease.release()
    return samples


def contend(ledger: TierAdmission, readiness: Readiness, pressure: Pressure, seconds: float) -> list[int]:
    """The same from 32 threads at once, on one tier."""
    start = Barrier(THREADS)
    samples: list[list[int]] = []

    def run() -> None:
        start.wait()
        samples.append(acquire_for(ledger, "capacity", readiness, pressure, seconds))

    threads = [Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [sample for part in samples for sample in part]


def report(name: str, samples: list[int]) -> None:
    median = statistics.median(samples) / 1000
    p99 = statistics.quantiles(samples, n=100)[98] / 1000
    print(
        f"{name:<34} median {median:8.2f} us   p99 {p99:8.2f} us   p99/median {p99 / median:6.1f}"
        f"   ({len(samples)} calls)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of acquire_member with 16 members.")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each figure (default 2)")
    seconds = parser.parse_args().seconds

    readiness = dict.fromkeys(MEMBERS, True)
    valid = PressureSignalState.VALID
    pressure = {
        member: ReplicaPressure(PressureFreshness.FRESH, index * 1000, valid, valid)
        for index, member in enumerate(MEMBERS)
    }
    checked_readiness, checked_pressure = ValidatedReadiness(readiness), ValidatedPressure(pressure)
    ledger = build_ledger()
    standing = [ledger.acquire_member("capacity", readiness, pressure) for _ in range(STANDING_LEASES)]

    print(f"{len(MEMBERS)} members, {len(standing)} places taken")
    for tier_id in ("capacity", "round-robin"):
        report(f"{tier_id}, dicts", acquire_for(ledger, tier_id, readiness, pressure, seconds))
        samples = acquire_for(ledger, tier_id, checked_readiness, checked_pressure, seconds)
        report(f"{tier_id}, checked when made", samples)
    report(f"capacity, dicts, {THREADS} threads", contend(ledger, readiness, pressure, seconds))
    samples = contend(ledger, checked_readiness, checked_pressure, seconds)
    report(f"capacity, checked, {THREADS} threads", samples)


if __name__ == "__main__":
    main()
