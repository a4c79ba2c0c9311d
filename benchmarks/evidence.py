"""What evidence costs a request, and what a scrape costs the process.

    python benchmarks/evidence.py [--rounds N]

Prints medians over N requests (default 10,000), in microseconds: the check at the routing boundary for a
direct tier and for capacity tiers of 2 and 16 members, once for the ledger's own decision and once for one
that has to be copied; recording the checked record (ring, three writers' queues, the queue of counters);
counting it later, off the request's way; and beside it the same counters in prometheus_client's own metrics.
Then, in milliseconds, one scrape with a full ring of 10,000 records.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "anvil_site.settings")

from prometheus_client import CollectorRegistry, Counter
from prometheus_client import Histogram as ClientHistogram

from admission.core import MemberAdmissionLease, MemberScope, TierAdmission, TierScope
from routing.config import ReplicaIdentity, ReplicaMember, RouterConfig, Tier
from routing.passage import Observation
from routing.records import AttemptRecord, DecisionRecord, RecordBoundary
from routing.router import Router
from routing.snapshot import validate_snapshot
from telemetry.decisions import DecisionLog
from telemetry.evidence import ProcessEvidence
from telemetry.exporter import PrometheusExporter
from telemetry.pressure import ReplicaPressureCache
from telemetry.writer import BoundedWriter

CONFIG = b"""
[router.model_routes]
"llm.direct" = "direct"
[[router.tiers]]
id = "direct"
base_url = "http://127.0.0.1:8099/v1"
context_limit = 32768
model = "m"
"""
OBSERVATION = Observation(
    route="llm.direct",
    tier="direct",
    member=None,
    outcome="served",
    key_name="bench",
    overhead_seconds=0.0004,
    first_token_seconds=0.2,
    seconds=3.5,
    prompt_tokens=100,
    completion_tokens=200,
)


class Discard(BoundedWriter[DecisionRecord]):
    def write(self, batch: object) -> None:
        """As fast as a writer can be, so that its queue never fills."""


def median_us(call: Callable[[], object], rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - began)
    return statistics.median(samples) / 1000


def record_of(tier_id: str, lease: MemberAdmissionLease | None = None) -> DecisionRecord:
    attempt = AttemptRecord(
        tier_id=tier_id,
        outcome="served",
        succeeded=True,
        reason="served",
        prompt_tokens=100,
        completion_tokens=200,
    )
    return DecisionRecord(
        route=f"llm.{tier_id}",
        kind="chat",
        requested_tier=tier_id,
        served_tier=tier_id,
        attempts=(attempt,),
        total_prompt_tokens=100,
        total_completion_tokens=200,
        request_bytes=1000,
        response_bytes=5000,
        latency_ms=3500.123,
        request_id="9f1c2e3d4b5a69788796a5b4c3d2e1f0",
        replica_member_id=lease.member_id if lease is not None else None,
        replica_selection="identity_passed" if lease is not None else None,
        replica_scheduler=lease.selection if lease is not None else None,
        recorded_at=time.time(),
    )


def capacity_tier(members: int) -> Tier:
    return Tier(
        id=f"capacity-{members}",
        context_limit=32_768,
        model="m",
        replica_strategy="capacity",
        replica_identity=ReplicaIdentity(
            model_revision="a",
            engine_version="1",
            image_digest=f"sha256:{'0' * 64}",
            config_fingerprint=f"sha256:{'1' * 64}",
        ),
        replicas=tuple(
            ReplicaMember(
                id=f"member-{number:02}",
                base_url=f"http://127.0.0.1:{8100 + number}/v1",
                host_id="host",
                resource_id=f"resource-{number}",
                qualification_ref="bench",
                max_concurrency=8,
            )
            for number in range(members)
        ),
    )


def leased(tier: Tier) -> MemberAdmissionLease:
    scopes = tuple(MemberScope(member.id, member.max_concurrency) for member in tier.replicas)
    ledger = TierAdmission([TierScope(tier.id, strategy="capacity", members=scopes)])
    lease = ledger.acquire_member(tier.id, dict.fromkeys(tier.member_ids, True))
    assert lease is not None
    return lease


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10_000)
    rounds = parser.parse_args().rounds
    direct = Tier(id="direct", base_url="http://127.0.0.1:8099/v1", context_limit=32_768, model="m")
    tiers = {members: capacity_tier(members) for members in (2, 16)}
    every = (direct, *tiers.values())
    config = RouterConfig(model_routes={f"llm.{tier.id}": tier.id for tier in every}, tiers=every)
    boundary = RecordBoundary(config)

    print("at the boundary, microseconds")
    record = record_of("direct")
    print(f"  direct                       {median_us(lambda: boundary.canonical(record), rounds):6.2f}")
    for members, tier in tiers.items():
        lease = leased(tier)
        capacity = record_of(tier.id, lease)
        own = median_us(lambda: boundary.canonical(capacity, lease=lease), rounds)  # noqa: B023
        copied = median_us(lambda: boundary.canonical(capacity), rounds)  # noqa: B023
        print(f"  {members:2} members, the ledger's own  {own:6.2f}")
        print(f"  {members:2} members, copied            {copied:6.2f}")

    writers = [Discard(f"bench-{name}") for name in ("lines", "table", "jsonl")]
    evidence = ProcessEvidence(DecisionLog(sinks=[writer.offer for writer in writers]))
    for writer in writers:
        writer.start()
    checked = boundary.canonical(record)
    print("recording a checked record, microseconds")
    recording = median_us(lambda: evidence.record(checked, OBSERVATION), rounds)
    print(f"  in the request               {recording:6.2f}")
    evidence.settle()
    for _ in range(1_000):
        evidence.record(checked, OBSERVATION)
    began = time.perf_counter_ns()
    evidence.settle()
    print(f"  counting it, later           {(time.perf_counter_ns() - began) / 1_000_000:6.2f}")
    print(f"  prometheus_client instead    {median_us(client_metrics(), rounds):6.2f}")

    router = Router(
        evidence=evidence, pressure_factory=lambda given, previous: ReplicaPressureCache(given), auth=False
    )
    router.install(validate_snapshot(CONFIG), snapshot_id=1)
    exporter = PrometheusExporter(router, evidence)
    while len(evidence.log) < evidence.log.capacity:
        evidence.record(checked, OBSERVATION)
    print("a scrape with a full ring, milliseconds")
    print(f"  {median_us(exporter.render, 20) / 1000:6.2f}")
    router.close()
    for writer in writers:
        writer.stop()


def client_metrics() -> Callable[[], None]:
    """The counters and histograms of one request, as prometheus_client keeps them."""
    registry = CollectorRegistry()
    requests = Counter("requests", "-", ("route", "tier", "outcome"), registry=registry)
    tokens = Counter("tokens", "-", ("route", "kind"), registry=registry)
    key_requests = Counter("key_requests", "-", ("key",), registry=registry)
    key_tokens = Counter("key_tokens", "-", ("key", "kind"), registry=registry)
    seconds = ClientHistogram("seconds", "-", ("tier",), registry=registry)
    first_token = ClientHistogram("first_token", "-", ("tier",), registry=registry)
    overhead = ClientHistogram("overhead", "-", registry=registry)

    def observe() -> None:
        item = OBSERVATION
        requests.labels(item.route, item.tier, item.outcome).inc()
        key_requests.labels(item.key_name).inc()
        for kind, count in (("prompt", item.prompt_tokens), ("completion", item.completion_tokens)):
            tokens.labels(item.route, kind).inc(count)
            key_tokens.labels(item.key_name, kind).inc(count)
        seconds.labels(item.tier).observe(item.seconds)
        first_token.labels(item.tier).observe(item.first_token_seconds or 0.0)
        overhead.observe(item.overhead_seconds or 0.0)

    return observe


if __name__ == "__main__":
    main()
