"""What reading a member's pressure costs: a /metrics page of 1 MiB, and the snapshot on the request path.

    python benchmarks/engine_metrics.py [--rounds N]

Both ways of reading take turns on the same page in one run: ``parse_engine_metrics``, and prometheus_client's
parser over the whole page. Exit 1 when the first costs more than a twentieth of the second.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from routing.config import ReplicaMember, Tier
from telemetry.engine_metrics import MAX_PAGE_BYTES, MetricsSnapshot, MetricsStatus, parse_engine_metrics
from telemetry.pressure import ReplicaPressureCache

MAX_RATIO = 1 / 20
SNAPSHOT_CALLS = 20_000


def full_page() -> bytes:
    """The page of a vLLM with eight data-parallel ranks, its histograms repeated until it has 1 MiB."""
    lines: list[str] = []
    for name, values in (
        ("vllm:num_requests_running", range(1, 9)),
        ("vllm:num_requests_waiting", range(8)),
        ("vllm:kv_cache_usage_perc", (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)),
        ("vllm:num_preemptions_total", range(8)),
    ):
        lines.append(f"# HELP {name} One of the series that are wanted.")
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f'{name}{{engine="{rank}",model_name="m"}} {value}' for rank, value in enumerate(values)]
    size = sum(len(line) + 1 for line in lines)
    series = 0
    while size < MAX_PAGE_BYTES:
        name = f"vllm:request_stage_{series}_seconds"
        block = [f"# HELP {name} Histogram of one stage.", f"# TYPE {name} histogram"]
        for rank in range(8):
            labels = f'engine="{rank}",model_name="m"'
            block += [f'{name}_bucket{{{labels},le="{2**power}.0"}} {power * 7}.0' for power in range(20)]
            block += [f'{name}_bucket{{{labels},le="+Inf"}} 140.0']
            block += [f"{name}_sum{{{labels}}} 93.25", f"{name}_count{{{labels}}} 140.0"]
        lines += block
        size += sum(len(line) + 1 for line in block)
        series += 1
    page = "\n".join(lines).encode()[:MAX_PAGE_BYTES]
    end = page.rindex(b"\n") + 1
    return page[:end] + b"#" * (MAX_PAGE_BYTES - end)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def snapshot_seconds(members: int) -> float:
    """One ``snapshot`` of a tier with so many members, all read and none due: the mean of a long loop."""
    tier = Tier(
        id="primary",
        context_limit=32_768,
        model="m",
        replica_strategy="capacity",
        replicas=tuple(
            ReplicaMember(
                id=f"member-{number}",
                base_url=f"http://127.0.0.1:{number + 1}/v1",
                host_id="host",
                resource_id=f"gpu-{number}",
                qualification_ref="none",
                max_concurrency=8,
            )
            for number in range(members)
        ),
    )
    known = MetricsSnapshot(status=MetricsStatus.OK, requests_running=3, requests_waiting=1)
    clock = 100.0
    cache = ReplicaPressureCache([tier], metrics_provider=lambda view: known, monotonic=lambda: clock)
    cache.snapshot("primary")
    give_up = time.monotonic() + 10
    while None in cache.ages("primary").values():
        if time.monotonic() > give_up:
            raise SystemExit("the collector did not come to an end")
    spent = seconds(lambda: [cache.snapshot("primary") for _ in range(SNAPSHOT_CALLS)])
    cache.close()
    return spent / SNAPSHOT_CALLS


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of reading engine metrics.")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    rounds = parser.parse_args().rounds
    page = full_page()
    assert len(page) == MAX_PAGE_BYTES
    assert parse_engine_metrics(page).requests_running == 36

    ours, naive = [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: parse_engine_metrics(page)))
        naive.append(seconds(lambda: list(text_string_to_metric_families(page.decode()))))
    ratio = statistics.median(ours) / statistics.median(naive)

    lines = len(page.splitlines())
    print(f"page of {len(page):,} bytes, {lines:,} lines, {rounds} interleaved rounds")
    print(f"  parse_engine_metrics      {statistics.median(ours) * 1e3:9.3f} ms median")
    print(f"  whole page, full parser   {statistics.median(naive) * 1e3:9.3f} ms median")
    print(f"  ratio                     1/{1 / ratio:.0f} (at most 1/{1 / MAX_RATIO:.0f})")
    print("pressure snapshot, nothing due")
    for members in (2, 16):
        print(f"  {members:2d} members                {snapshot_seconds(members) * 1e6:9.3f} us mean")
    return 0 if ratio <= MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
