"""Tail latency under bursts: does the router pick the right engine?

    python -m benchmarks.tail [--runs N] [--seconds S] [--routers NAME;...] [--together N] [--write]

Four engines with eight slots each, the fourth half as fast; Poisson arrivals at 34 a second, doubled one
second in five, short and long answers mixed; and the third engine also gets four requests a second that no
router sent. Every router meets the same arrivals of the same seeds, in interleaved runs, before engines of
its own; ``--together`` lets that many run side by side, which the scene's load, a tenth of a core, allows.
Time to first token is pooled over the runs; the interval beside p99 is a bootstrap over runs (95 %). Refusals
are counted apart: a router with ceilings may refuse, one without cannot.
"""

import argparse
import asyncio
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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

SLOWDOWNS: Final = (1.0, 1.0, 1.0, 2.0)
RESAMPLES: Final = 1000


Start = Callable[[Sequence[int]], Running]

ROUTERS: Final[dict[str, Start]] = {
    "anvil capacity, equal": lambda engines: peers.anvil(engines, ceilings=EQUAL),
    "anvil capacity, equal, no pressure": lambda engines: _unmeasured(engines, EQUAL),
    "anvil capacity, fitted": lambda engines: peers.anvil(engines, ceilings=FITTED),
    "anvil capacity, fitted, no pressure": lambda engines: _unmeasured(engines, FITTED),
    "anvil round robin": lambda engines: peers.anvil(engines, strategy="round_robin", ceilings=(512,) * 4),
    "haproxy leastconn": peers.haproxy,
    "vllm-router p2c": lambda engines: peers.rust_router("vllm-router", engines),
    "vllm-router rr": lambda engines: peers.rust_router("vllm-router", engines, policy="round_robin"),
    "sglang-router p2c": lambda engines: peers.rust_router("sglang-router", engines),
    "sglang-router rr": lambda engines: peers.rust_router("sglang-router", engines, policy="round_robin"),
    "litellm least-busy": peers.litellm,
}
"""Every router by name, as something that starts it before four engines."""


def _unmeasured(engines: Sequence[int], ceilings: Sequence[int]) -> Running:
    """Anvil before engines that tell nothing about themselves."""
    for engine in engines:
        peers.hide_metrics(engine)
    return peers.anvil(engines, ceilings=ceilings)


class Scene:
    """One router before four engines of its own; ``result`` is what came of each seed's arrivals."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.results: list[Result] = []
        self._closing = ExitStack()
        self._running: Running | None = None
        self._outside = 0

    def start(self) -> None:
        """Raises PeerMissing when its router cannot be had."""
        try:
            engines = [
                self._closing.enter_context(
                    peers.engine(slots=SLOTS, prefill=0.04 * slowdown, token=0.01 * slowdown)
                ).port
                for slowdown in SLOWDOWNS
            ]
            self._outside = engines[2]
            self._running = self._closing.enter_context(ROUTERS[self.name](engines))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._closing.close()

    async def run(self, seconds: float, seed: int) -> None:
        """The arrivals of one seed through the router, with the outside traffic beside them."""
        running = self._running
        assert running is not None, "not started"
        result, _ = await asyncio.gather(
            bursts(running.port, running.model, rate=RATE, seconds=seconds, seed=seed),
            bursts(self._outside, "demo-model", rate=OUTSIDE_RATE, seconds=seconds, seed=seed + 1_000_000),
        )
        self.results.append(result)


def run(
    names: Sequence[str], runs: int, seconds: float, together: int
) -> tuple[dict[str, list[Result]], list[str]]:
    """``runs`` interleaved runs of each router, with seeds 1 to ``runs``, ``together`` routers at a time."""
    scenes, missing = [Scene(name) for name in names], []
    with ExitStack() as closing:
        for scene in tuple(scenes):
            try:
                scene.start()
                closing.callback(scene.stop)
            except PeerMissing as fault:
                scenes.remove(scene)
                missing.append(scene.name)
                print(f"bench: left out: {fault}", file=sys.stderr, flush=True)
        for seed in range(1, runs + 1):
            for group in (scenes[first : first + together] for first in range(0, len(scenes), together)):
                asyncio.run(_side_by_side(group, seconds, seed))
            print(f"bench: run {seed} of {runs} done", file=sys.stderr, flush=True)
    return {scene.name: scene.results for scene in scenes}, missing


async def _side_by_side(scenes: Sequence[Scene], seconds: float, seed: int) -> None:
    await asyncio.gather(*(scene.run(seconds, seed) for scene in scenes))


def pooled(results: Sequence[Result], share: float) -> float:
    """A percentile over all runs' first tokens, in milliseconds."""
    return percentile([time for result in results for time in result.first_token], share) * 1e3


def interval(results: Sequence[Result], share: float) -> tuple[float, float]:
    """The 95 % bootstrap interval of a pooled percentile, runs drawn with replacement."""
    chance = random.Random(1)
    drawn = sorted(pooled(chance.choices(results, k=len(results)), share) for _ in range(RESAMPLES))
    return drawn[int(RESAMPLES * 0.025)], drawn[int(RESAMPLES * 0.975)]


def table(results: dict[str, list[Result]], missing: Sequence[str], seconds: float, together: int) -> str:
    """The figures as Markdown."""
    shown = {name: runs for name, runs in results.items() if runs}
    base = pooled(shown["haproxy leastconn"], 0.99) if "haproxy leastconn" in shown else float("nan")
    count = max((len(runs) for runs in shown.values()), default=0)
    lines = [
        "# Tail latency under bursts",
        "",
        f"Made by `python -m benchmarks.tail --together {together}`: {count} interleaved runs",
        f"of {seconds:.0f} s, seeds from 1.",
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
    parser.add_argument("--together", type=int, default=1, help="routers that run side by side (default: 1)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks/tail.md")
    options = parser.parse_args()
    known = list(ROUTERS)
    names = [name.strip() for name in options.routers.split(";")] if options.routers else known
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"unknown routers: {', '.join(unknown)}")
    results, missing = run(names, options.runs, options.seconds, options.together)
    page = table(results, missing, options.seconds, options.together)
    print(page)
    if options.write:
        target = Path(peers.ROOT) / "docs" / "benchmarks" / "tail.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
