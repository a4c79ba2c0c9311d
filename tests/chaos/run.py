"""One chaos run: rounds of trouble with a rest after each, and the account at the end.

What must hold throughout (whatever breaks it is a violation, and the run goes on):

- at no engine, and at the engines of no tier, are more requests at once than the ceiling that is active
- a tier's count is the sum of its members' counts, in every reading
- who stays is answered: in time, completely, in the own dialect, never with a 500; a stream ends in its
  terminal event or in an error event
- ``/healthz`` answers within a second

and at rest:

- every count is 0: leases, front-door places, key places, streams, requests in work at engines
- no request came to engines twice; one that came to one has exactly one record; a refusal by a tier
  has one, too; one before it has none
- threads, descriptors and memory do not grow from rest to rest
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.callers import MAX_BODY, Caller, Tally
from tests.chaos.changes import Changes
from tests.chaos.engines import Watch, WatchedEngine
from tests.chaos.wire import ask_json
from tests.live.harness import MODEL, Documents, Router, direct_tier, documents, replica_tier

ROUND_SECONDS: Final = 30.0
REST_PATIENCE: Final = 20.0
MAX_SLOWEST: Final = 1.0
TIERS: Final = {"chat": ("a", "b", "c"), "even": ("d", "e"), "direct": ("f",)}
ALIASES: Final = ("chaos.chat", "chaos.chat", "chaos.even", "chaos.direct")

THREAD_SLACK: Final = 3
"""A pool starts a thread when every other one is busy, and keeps it: a rare peak adds one late in a run.
A leak would add one at every rest, of which ten minutes have 17."""

MEMORY_SLACK: Final = 24 * 1024 * 1024
"""Bytes by which the last rests may lie over the ones in the middle: an allocator keeps what it likes."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What the router's process held at one rest."""

    threads: int
    descriptors: int
    memory: int


@dataclass(slots=True)
class Report:
    """What a run has shown. It passed when ``violations`` is empty."""

    seed: int
    seconds: float = 0.0
    requests: int = 0
    received: int = 0
    records: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    behaviours: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, int] = field(default_factory=dict)
    slowest_health: float = 0.0
    rests: list[Rest] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        first, last = (self.rests[0], self.rests[-1]) if self.rests else (None, None)
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s",
            f"requests {self.requests} ({self.requests / max(self.seconds, 1):.0f}/s), "
            f"received by engines {self.received}, records {self.records}",
            f"answers {dict(sorted(self.statuses.items()))}",
            f"callers {dict(self.behaviours.most_common())}",
            f"changes {dict(sorted(self.changes.items()))}",
            f"faults met {dict(self.struck.most_common())}",
            f"peaks {self.peaks}",
            f"slowest /healthz {self.slowest_health * 1000:.0f} ms",
            f"first rest {first}, last of {len(self.rests)} {last}",
            f"violations {sum(self.violations.values())}",
            *(f"  {count} x {text}" for text, count in self.violations.most_common(40)),
        ]
        return "\n".join(lines)


def run(
    *,
    seconds: float,
    seed: int,
    callers: int = 48,
    keep: Path | None = None,
    tell: Callable[[str], None] = print,
) -> Report:
    """Run for about ``seconds`` seconds. ``keep`` is a directory for the router's data and log."""
    with tempfile.TemporaryDirectory(prefix="anvil-chaos-") as scratch:
        return asyncio.run(_Run(keep or Path(scratch), seconds, seed, callers, tell).run())


class _Run:
    def __init__(
        self, directory: Path, seconds: float, seed: int, callers: int, tell: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._seconds = seconds
        self._seed = seed
        self._callers = callers
        self._tell = tell
        self._report = Report(seed)

    async def run(self) -> Report:
        watch = Watch(TIERS, self._violation)
        for name in "abcdefg":
            speed = random.Random(f"{self._seed}/{name}")
            watch.engines[name] = WatchedEngine(
                name,
                watch,
                model="chaos-embedding" if name == "g" else MODEL,
                prefill=speed.random() * 0.03,
                token=speed.random() * 0.01,
            )
        variants = _variants(watch.engines)
        environ = {"ANVIL_MAX_CONCURRENCY": "40", "ANVIL_MAX_BODY_BYTES": str(MAX_BODY)}
        router = Router(self._directory, variants[0][0], environ=environ)
        try:
            await asyncio.to_thread(router.start)
            watch.ceilings = dict(variants[0][1])
            await self._rounds(router, watch, variants)
        finally:
            await asyncio.to_thread(router.stop)
            for engine in watch.engines.values():
                engine.stop()
        return self._report

    def _violation(self, text: str) -> None:
        self._report.violations[text] += 1
        if self._report.violations[text] == 1:
            self._tell(f"violation: {text}")

    async def _rounds(
        self, router: Router, watch: Watch, variants: list[tuple[Documents, dict[str, int]]]
    ) -> None:
        report = self._report
        tally = Tally(self._violation)
        changes = Changes(
            router.port, seed=self._seed, watch=watch, variants=variants, violation=self._violation
        )
        await changes.capture()
        callers = [
            Caller(number, seed=self._seed, port=router.port, aliases=ALIASES, tally=tally)
            for number in range(self._callers)
        ]
        began = time.monotonic()
        while (left := self._seconds - (time.monotonic() - began)) > 1 or not report.rests:
            stop = asyncio.Event()
            asyncio.get_running_loop().call_later(min(left, ROUND_SECONDS), stop.set)
            turns = (changes.fail_an_engine, changes.transit, changes.activate, changes.look)
            await asyncio.gather(
                *(caller.run(stop) for caller in callers),
                *(changes.repeat(turn, stop) for turn in turns),
            )
            await changes.mend()
            await self._rest(router, watch, changes)
            rest = report.rests[-1]
            self._tell(f"{time.monotonic() - began:.0f} s: {len(tally.sent)} requests, at rest {rest}")
        report.seconds = time.monotonic() - began
        report.statuses, report.behaviours = tally.statuses, tally.behaviours
        report.changes, report.peaks = changes.counts, dict(watch.peaks)
        report.slowest_health = changes.slowest
        for engine in watch.engines.values():
            report.struck.update(engine.faults.struck)
        if report.slowest_health > MAX_SLOWEST:
            self._violation(f"/healthz took longer than {MAX_SLOWEST:.0f} s")
        await self._account(router, watch, changes, tally)
        self._growth()

    async def _rest(self, router: Router, watch: Watch, changes: Changes) -> None:
        """Wait until nothing runs any more, and take the measure of the process."""
        deadline = time.monotonic() + REST_PATIENCE
        while True:
            _, rows = await ask_json(router.port, "GET", "/v1/admin/transition")
            gauges = await changes.scrape()
            left = {f"lease of {row['tier_id']}": row["active_requests"] for row in rows["tiers"]}
            for (name, labels), value in gauges.items():
                if name in _ZERO_AT_REST:
                    left[f"{name}{{{labels}}}"] = value
            for name, engine in watch.engines.items():
                left |= {f"work at {name}": engine.in_work, f"connection to {name}": len(engine.connections)}
            # Probes and metrics come once in a while on connections of their own.
            busy = {name: value for name, value in left.items() if value > (2 if "connection" in name else 0)}
            if not busy:
                break
            if time.monotonic() > deadline:
                self._violation(f"not at rest: {busy}")
                break
            await asyncio.sleep(0.25)
        # A scrape is itself a connection; the smallest of a few readings is the one without company.
        readings = []
        for _ in range(8):
            readings.append(_measure(router.worker_pid))
            await asyncio.sleep(0.05)
        self._report.rests.append(
            Rest(
                threads=min(one.threads for one in readings),
                descriptors=min(one.descriptors for one in readings),
                memory=readings[-1].memory,
            )
        )

    async def _account(self, router: Router, watch: Watch, changes: Changes, tally: Tally) -> None:
        """Hold what callers got, what engines saw and what was recorded against each other."""
        gauges = await changes.scrape()
        served = sum(value for (name, _), value in gauges.items() if name == "anvil_requests_total")
        deadline = time.monotonic() + REST_PATIENCE
        records = _records(router)
        while sum(map(len, records.values())) < served and time.monotonic() < deadline:
            await asyncio.sleep(0.25)
            records = _records(router)
        report = self._report
        report.requests, report.received = len(tally.sent), sum(map(len, watch.seen.values()))
        report.records = sum(map(len, records.values()))
        if report.records != served:
            self._violation(f"{served:.0f} requests were counted, {report.records} recorded")
        dropped = {
            labels: value
            for (name, labels), value in gauges.items()
            if name == "anvil_writer_entries_dropped_total" and value and "jsonl" in labels
        }
        if dropped:
            self._violation(f"records were dropped: {dropped}")
        for sent in tally.sent.values():
            for fault in _faults_of(sent, watch.seen.get(sent.id, []), records.get(sent.id, [])):
                self._violation(fault)
        for log_word in ("Traceback", "CRITICAL", "has not turned", "lease was lost"):
            if log_word in router.log:
                self._violation(f"the router's log holds {log_word!r}")

    def _growth(self) -> None:
        rests = self._report.rests
        if len(rests) < 3:
            return
        third = len(rests) // 3
        early, late = rests[third : 2 * third] or rests[1:2], rests[-third:]
        for name, slack in (("threads", THREAD_SLACK), ("descriptors", 0)):
            # What is there at every rest: a connection in the pool may come on top of it.
            before, after = (min(getattr(rest, name) for rest in part) for part in (early, late))
            if after > before + slack:
                self._violation(f"{name} grew from {before} to {after}")
        before, after = (statistics.median(rest.memory for rest in part) for part in (early, late))
        if len(rests) >= 9 and after > before * 1.05 + MEMORY_SLACK:
            self._violation(f"memory grew from {before} to {after} bytes")


_ZERO_AT_REST: Final = frozenset(
    {"anvil_inflight", "anvil_key_inflight", "anvil_front_door_places", "anvil_relay_streams"}
)
_TIER_OF: Final = {engine: tier for tier, engines in TIERS.items() for engine in engines} | {"g": "embed"}
_MEMBER_OF: Final = {
    "a": "member-a", "b": "member-b", "c": "member-c", "d": "member-a", "e": "member-b", "f": "-", "g": "-",
}  # fmt: skip


def _faults_of(sent: Any, seen: list[str], records: list[dict[str, Any]]) -> list[str]:
    """What does not agree about one request."""
    faults = []
    if len(seen) > 1:
        faults.append(f"a request came to engines {len(seen)} times")
    if len(records) > 1:
        faults.append(f"a request has {len(records)} records")
    record = records[0] if records else None
    tried = [one for one in record["attempts"] if one["outcome"] in ("served", "error")] if record else []
    if seen and not tried:
        faults.append(f"a request came to an engine and its record says no attempt: {bool(record)}")
    if seen and record and record.get("replica_member_id", "-") not in ("-", None, _MEMBER_OF[seen[0]]):
        faults.append("a record names another member than the one that was asked")
    if seen and record and record["requested_tier"] != _TIER_OF[seen[0]]:
        faults.append("a record names another tier than the one that was asked")
    if len(tried) > 1:
        faults.append("a record has more than one attempt")
    if tried and not seen and tried[0]["reason"] not in ("client_disconnected", "backend_error"):
        faults.append(f"a record says {tried[0]['reason']} and no engine has seen the request")
    if sent.dispatched is True and not tried:
        faults.append("an answer names a tier and no attempt is recorded")
    if sent.dispatched is False and seen:
        faults.append(f"an answer of {sent.status} names no tier and an engine has seen the request")
    if sent.recorded is not None and sent.recorded != bool(records):
        faults.append(f"a refusal with {sent.status} has {len(records)} records")
    return faults


def _records(router: Router) -> dict[str, list[dict[str, Any]]]:
    """All records by request id."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((router.directory / "data").glob("decisions.jsonl*")):
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            found[record["request_id"]].append(record)
    return found


def _measure(pid: int) -> Rest:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return Rest(
        threads=int(status["Threads"]),
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        memory=int(status["VmRSS"].split()[0]) * 1024,
    )


def _variants(engines: dict[str, WatchedEngine]) -> list[tuple[Documents, dict[str, int]]]:
    """Three configurations and the ceilings that each sets, by engine and tier."""
    made = []
    for ceilings, tier_ceiling in (((4, 3, 4), 9), ((4, 3, 2), 7), ((3, 3), 6)):
        names = "abc"[: len(ceilings)]
        quick = {"health_path": "/health", "context_limit": 1_000_000}
        found = documents(
            replica_tier(
                [engines[name] for name in names],  # type: ignore[misc]
                alias="chaos.chat",
                ceilings=ceilings,
                max_concurrency=tier_ceiling,
                **quick,
            ),
            replica_tier(
                [engines["d"], engines["e"]],  # type: ignore[list-item]
                tier_id="even",
                alias="chaos.even",
                strategy="round_robin",
                ceilings=(5, None),
                **quick,
            ),
            direct_tier(
                engines["f"],  # type: ignore[arg-type]
                alias="chaos.direct",
                max_concurrency=5,
                **quick,
            ),
            server={"decision_log_path": "decisions.jsonl"},
            router={"first_byte_timeout": 4.0, "relay_timeout": 3.0, "connect_timeout": 2.0},
        )
        embed = (
            '\n[[router.purpose_models]]\nid = "embed"\nkind = "embedding"\nmodel = "chaos-embedding"\n'
            f'base_url = "{engines["g"].url}"\n'
        )
        limits = dict(zip(names, ceilings, strict=True))
        limits |= {"c": limits.get("c", 0), "chat": tier_ceiling, "d": 5, "f": 5, "direct": 5}
        made.append((Documents(config=found.config + embed.encode(), topology=found.topology), limits))
    return made
