"""Tail latency under bursts: does the router pick the right engine?

    python -m benchmarks.tail [--runs N] [--seconds S] [--routers NAME,...] [--write]

Four engines with eight slots each, the fourth half as fast; Poisson arrivals at 34 a second, doubled one
second in five, short and long answers mixed; and the third engine also gets four requests a second that no
router sent. Every router meets the same arrivals of the same seeds, in interleaved runs. Time to first token
is pooled over the runs; the interval beside p99 is a bootstrap over runs (95 %). Refusals are counted
apart: a router with ceilings may refuse, one without cannot.
"""

import argparse
import asyncio
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks import peers
from benchmarks.client import Result, bursts, percentile
from benchmarks.peers import PeerMissing, Running

RATE: Final = 34.0
OUTSIDE_RATE: Final = 4.0
SLOTS: Final = 8
EQUAL: Final = (16, 16, 16, 16)
FITTED: Final = (12, 12, 8, 6)
"""What each engine has left: the third shares with outside traffic, the fourth is half as fast."""

RESAMPLES: Final = 1000


def routers(engines: Sequence[int]) -> dict[str, Callable[[], Running]]:
    """Every router by name, as something that starts it."""
    return {
        "anvil capacity, equal": lambda: peers.anvil(engines, ceilings=EQUAL),
        "anvil capacity, fitted": lambda: peers.anvil(engines, ceilings=FITTED),
        "anvil round robin": lambda: peers.anvil(engines, strategy="round_robin", ceilings=(512,) * 4),
        "haproxy leastconn": lambda: peers.haproxy(engines),
        "vllm-router p2c": lambda: peers.rust_router("vllm-router", engines),
        "vllm-router rr": lambda: peers.rust_router("vllm-router", engines, policy="round_robin"),
        "sglang-router p2c": lambda: peers.rust_router("sglang-router", engines),
        "sglang-router rr": lambda: peers.rust_router("sglang-router", engines, policy="round_robin"),
        "litellm least-busy": lambda: peers.litellm(engines),
    }


async def _load(running: Running, outside: int, seconds: float, seed: int) -> Result:
    """The arrivals of one seed through one router, with the outside traffic beside them."""
    result, _ = await asyncio.gather(
        bursts(running.port, running.model, rate=RATE, seconds=seconds, seed=seed),
        bursts(outside, "demo-model", rate=OUTSIDE_RATE, seconds=seconds, seed=seed + 1_000_000),
    )
    return result


def run(names: Sequence[str], runs: int, seconds: float) -> tuple[dict[str, list[Result]], list[str]]:
    """``runs`` interleaved runs of each router, with seeds 1 to ``runs``."""
    results: dict[str, list[Result]] = {name: [] for name in names}
    missing: list[str] = []
    speeds = [1.0, 1.0, 1.0, 2.0]
    engines = [peers.engine(slots=SLOTS, prefill=0.04 * slow, token=0.01 * slow) for slow in speeds]
    try:
        ports = [engine.port for engine in engines]
        starters = routers(ports)
        for seed in range(1, runs + 1):
            for name in names:
                if name in missing:
                    continue
                try:
                    with starters[name]() as running:
                        results[name].append(asyncio.run(_load(running, ports[2], seconds, seed)))
                except PeerMissing as fault:
                    missing.append(name)
                    print(f"bench: left out: {fault}", file=sys.stderr, flush=True)
            print(f"bench: run {seed} of {runs} done", file=sys.stderr, flush=True)
    finally:
        for engine in engines:
            engine.stop()
    return results, missing


def pooled(results: Sequence[Result], share: float) -> float:
    """A percentile over all runs' first tokens, in milliseconds."""
    return percentile([time for result in results for time in result.first_token], share) * 1e3


def interval(results: Sequence[Result], share: float) -> tuple[float, float]:
    """The 95 % bootstrap interval of a pooled percentile, runs drawn with replacement."""
    chance = random.Random(1)
    drawn = sorted(pooled(chance.choices(results, k=len(results)), share) for _ in range(RESAMPLES))
    return drawn[int(RESAMPLES * 0.025)], drawn[int(RESAMPLES * 0.975)]


def table(results: dict[str, list[Result]], missing: Sequence[str], seconds: float) -> str:
    """The figures as Markdown."""
    shown = {name: runs for name, runs in results.items() if runs}
    base = pooled(shown["haproxy leastconn"], 0.99) if "haproxy leastconn" in shown else float("nan")
    count = max((len(runs) for runs in shown.values()), default=0)
    lines = [
        "# Tail latency under bursts",
        "",
        f"Made by `python -m benchmarks.tail`: {count} interleaved runs of {seconds:.0f} s, seeds from 1.",
        "Four engines of 8 slots, the fourth half as fast, outside traffic on the third. Time to first token",
        "in milliseconds, pooled; in brackets the 95 % bootstrap interval of p99 over runs.",
        "",
        "| | p50 | p95 | p99 | of leastconn's p99 | refused | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in shown.items():
        low, high = interval(runs, 0.99)
        p99 = pooled(runs, 0.99)
        asked = sum(len(each.whole) + each.refused + each.failed for each in runs)
        refused = sum(each.refused for each in runs) / max(1, asked)
        failed = sum(each.failed for each in runs)
        lines.append(
            f"| {name} | {pooled(runs, 0.5):.0f} | {pooled(runs, 0.95):.0f} "
            f"| {p99:.0f} [{low:.0f}, {high:.0f}] | {p99 / base:.2f} | {refused:.2%} | {failed} |"
        )
    own = [
        f"{name} {statistics.median(percentile(each.first_token, 0.99) for each in runs) * 1e3:.0f}"
        for name, runs in shown.items()
    ]
    lines += ["", f"Median of the runs' own p99: {', '.join(own)}.", ""]
    if missing:
        lines += [f"Not to be had here, and left out: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--routers", default="", help="names separated by ; (all by default)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks/tail.md")
    options = parser.parse_args()
    known = list(routers([]))
    names = [name.strip() for name in options.routers.split(";")] if options.routers else known
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"unknown routers: {', '.join(unknown)}")
    results, missing = run(names, options.runs, options.seconds)
    page = table(results, missing, options.seconds)
    print(page)
    if options.write:
        target = Path(peers.ROOT) / "docs" / "benchmarks" / "tail.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
