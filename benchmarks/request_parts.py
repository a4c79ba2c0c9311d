"""What each step of a request costs by itself, before it is sent.

    python benchmarks/request_parts.py [--rounds N]

Prints medians over N calls (default 10,000), in microseconds: parsing a chat request, for a short body and
for one of 32 KiB; the gates; rewriting the body for its upstream; and the pressure snapshot of a capacity
tier of 2 and of 16 members, all fresh. The choice of a member and its record have programs of their own,
``acquire_member.py`` and ``evidence.py``.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.evidence import capacity_tier, median_us
from routing.config import Tier
from routing.dialects.base import Target
from routing.dialects.openai_chat import CHAT
from routing.gates import check_gates, context_needs_count
from telemetry.engine_metrics import MetricsSnapshot, MetricsStatus
from telemetry.pressure import ReplicaPressureCache

TIER = Tier(id="direct", base_url="http://127.0.0.1:8099/v1", context_limit=32_768, model="m")


def chat(size: int) -> bytes:
    """A chat request of about that many bytes."""
    return (
        b'{"model":"llm.direct","stream":true,"max_tokens":256,"temperature":0.7,'
        b'"messages":[{"role":"system","content":"You help."},{"role":"user","content":"%b"}]}'
        % (b"x" * size)
    )


def calm(tier: Tier) -> MetricsSnapshot:
    return MetricsSnapshot(
        status=MetricsStatus.OK, requests_running=3, requests_waiting=0, kv_cache_usage_fraction=0.25
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the steps of a request.")
    parser.add_argument("--rounds", type=int, default=10_000)
    rounds = parser.parse_args().rounds
    target = Target.of(TIER)

    print("microseconds")
    for name, body in (("short", chat(100)), ("32 KiB", chat(32_768))):
        request = CHAT.parse(body)
        demand = request.demand(count_text=context_needs_count(TIER, len(body)))
        print(f"  parse, {name:<21} {median_us(lambda: CHAT.parse(body), rounds):6.2f}")  # noqa: B023
        print(f"  gates, {name:<21} {median_us(lambda: check_gates(TIER, demand), rounds):6.2f}")  # noqa: B023
        rewrite = median_us(lambda: CHAT.parse(body).prepare(target, model="m"), rounds)  # noqa: B023
        print(f"  parse and rewrite, {name:<9} {rewrite:6.2f}")
    for members in (2, 16):
        print(f"  pressure of {members:2} members       {snapshot_us(members, rounds):6.2f}")


def snapshot_us(members: int, rounds: int) -> float:
    tier = capacity_tier(members)
    cache = ReplicaPressureCache([tier], metrics_provider=calm)
    while any(pressure.pressure_ppm is None for pressure in cache.snapshot(tier.id).values()):
        pass
    median = median_us(lambda: cache.snapshot(tier.id), rounds)
    cache.close()
    return median


if __name__ == "__main__":
    main()
