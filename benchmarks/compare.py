"""Anvil beside its peers: the same work through each in turn, in interleaved rounds.

    python -m benchmarks.compare [--rounds N] [--peers NAME,...] [--quick | --minute] [--write]

Works: one and 32 callers of whole answers; 64, 256, 512 and 1,000 streams of 100 events, 50 a second each.
``--minute``: 512 streams of 3,000 events instead, which take a minute each.
Every figure is the median of the rounds beside its least and greatest; what counts is the ratio to
``direct``, the same work straight to an engine, in the same run. ``empty-wsgi`` is an application that does
nothing, on gunicorn's gthread worker; ``anvil-blocking`` is Anvil on that worker, with a thread for each
stream. ``--write`` puts the table into docs/benchmarks/.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.client import Result, closed_loop, percentile, streams
from benchmarks.peers import PeerMissing, Running

DEFAULT_PEERS = "anvil,vllm-router,sglang-router,smg,litellm,haproxy,empty-wsgi"
EVENTS = 100
SPACING = 0.004
"""Seconds between two streams' starts: 512 of them begin within two seconds."""


@dataclass(frozen=True)
class Work:
    """One kind of load; ``run`` does it against a port and a model name.

    ``token`` is the engines' seconds between tokens for it: whole answers come at once, so that the time
    measured is the router's.
    """

    name: str
    run: Callable[[int, str], Result]
    token: float = 0.02


def works(*, quick: bool, minute: bool) -> list[Work]:
    if minute:
        return [Work(MINUTE, partial(_streams, count=512, tokens=3000))]
    seconds = 1.0 if quick else 4.0
    counts = (64,) if quick else (64, 256, 512, 1000)
    found = [
        Work(f"c={clients}", partial(_whole, clients=clients, seconds=seconds), 0.0) for clients in (1, 32)
    ]
    found += [Work(f"{count} streams", partial(_streams, count=count, tokens=EVENTS)) for count in counts]
    return found


def _whole(port: int, model: str, *, clients: int, seconds: float) -> Result:
    return asyncio.run(closed_loop(port, model, clients, seconds))


def _streams(port: int, model: str, *, count: int, tokens: int) -> Result:
    return asyncio.run(streams(port, model, count, tokens=tokens, spacing=SPACING))


def routers(engines: Sequence[int]) -> dict[str, Callable[[], Running]]:
    """Every router by name, as something that starts it."""
    return {
        "anvil": lambda: peers.anvil(engines),
        "anvil-blocking": lambda: peers.anvil(engines, blocking=True),
        "empty-wsgi": peers.empty,
        "vllm-router": lambda: peers.rust_router("vllm-router", engines),
        "sglang-router": lambda: peers.rust_router("sglang-router", engines),
        "smg": lambda: peers.rust_router("smg", engines),
        "litellm": lambda: peers.litellm(engines),
        "haproxy": lambda: peers.haproxy(engines),
    }


Figures = dict[str, list[float]]
Rows = dict[tuple[str, str], Figures]
MINUTE = "512 streams for a minute"
WHOLE = ("c=1", "c=32")
DOES: dict[str, tuple[str, ...]] = {
    "litellm": (*WHOLE, "64 streams", "256 streams"),
    "empty-wsgi": WHOLE,
    "anvil-blocking": ("64 streams", MINUTE),
}
"""All that a router is asked to do, where the rest would take minutes or is not its to do."""


def does(name: str, work: Work) -> bool:
    return name not in DOES or work.name in DOES[name]


def measure(running: Running | None, work: Work, engines: Sequence[int], rows: Rows, name: str) -> None:
    """One round of one work through one router (None: direct)."""
    for engine in engines:
        peers.set_token(engine, work.token)
    before = running.cpu_seconds() if running is not None else 0.0
    port, model = (running.port, running.model) if running is not None else (engines[0], "demo-model")
    result = work.run(port, model)
    figures = rows.setdefault((work.name, name), {})
    if work.name.startswith("c="):
        done, times = len(result.whole), result.whole
    else:
        done, times = result.events, result.first_token
    measured = {
        "rate": done / result.seconds,
        "p50": percentile(times, 0.5) * 1e3,
        "p99": percentile(times, 0.99) * 1e3,
        "lost": float(result.failed + result.refused),
    }
    if running is not None and done:
        measured["cpu_us"] = (running.cpu_seconds() - before) / done * 1e6
        measured["mib"] = running.resident_mib()
    for key, value in measured.items():
        figures.setdefault(key, []).append(value)


def run(names: Sequence[str], rounds: int, todo: Sequence[Work]) -> tuple[Rows, list[str]]:
    rows: Rows = {}
    missing: list[str] = []
    with peers.engine() as first, peers.engine() as second:
        engines = [first.port, second.port]
        starters = routers(engines)
        for number in range(rounds):
            for work in todo:
                measure(None, work, engines, rows, "direct")
            for name in names:
                if name in missing or not any(does(name, work) for work in todo):
                    continue
                try:
                    with starters[name]() as running:
                        for work in todo:
                            if does(name, work):
                                measure(running, work, engines, rows, name)
                except PeerMissing as fault:
                    missing.append(name)
                    print(f"bench: left out: {fault}", file=sys.stderr, flush=True)
            print(f"bench: round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return rows, missing


def table(title: str, command: str, rows: Rows, missing: Sequence[str], rounds: int) -> str:
    """The figures as Markdown."""
    lines = [
        f"# {title}",
        "",
        f"Made by `{command} --rounds {rounds}`, in interleaved rounds; engines, router and",
        "client on the same cores. Medians, with the least and the greatest of the rounds in brackets.",
        "Rate: answers or events a second. Times: milliseconds, of a whole answer (c=N) or to the first",
        "token (streams). CPU: the router's own, microseconds per answer or event. Ratios hold from",
        "machine to machine, absolutes do not.",
        "",
    ]
    for work in dict.fromkeys(work for work, _ in rows):
        direct = statistics.median(rows[work, "direct"]["rate"])
        lines += [
            f"## {work}",
            "",
            "| | rate | of direct | p50 | p99 | CPU | memory MiB | lost |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for (other, name), figures in rows.items():
            if other == work:
                ratio = statistics.median(figures["rate"]) / direct
                cells = [
                    _cell(figures, "rate", "{:,.0f}"),
                    f"{ratio:.3f}",
                    _cell(figures, "p50", "{:.2f}"),
                    _cell(figures, "p99", "{:.1f}"),
                    _cell(figures, "cpu_us", "{:.1f}"),
                    _cell(figures, "mib", "{:.0f}"),
                    f"{sum(figures['lost']):.0f}",
                ]
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    if missing:
        lines += [f"Not to be had here, and left out: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def _cell(figures: Figures, key: str, form: str) -> str:
    values = figures.get(key)
    if not values:
        return ""
    middle = form.format(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} [{form.format(min(values))}, {form.format(max(values))}]"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default=DEFAULT_PEERS)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="short works, to see that it runs")
    length.add_argument("--minute", action="store_true", help="512 streams for a minute instead of all works")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks/")
    options = parser.parse_args()
    names = options.peers.split(",")
    unknown = sorted(set(names) - set(routers([])))
    if unknown:
        parser.error(f"unknown peers: {', '.join(unknown)}")
    rows, missing = run(names, options.rounds, works(quick=options.quick, minute=options.minute))
    title, command, name = (
        ("Streams for a minute", "python -m benchmarks.compare --minute", "minute.md")
        if options.minute
        else ("Anvil beside its peers", "python -m benchmarks.compare", "compare.md")
    )
    page = table(title, command, rows, missing, options.rounds)
    print(page)
    if options.write:
        target = Path(peers.ROOT) / "docs" / "benchmarks" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
