"""python -m tests.chaos --seconds N --seed S [--callers N] [--keep DIRECTORY]"""

import argparse
import secrets
import sys
from pathlib import Path

from tests.chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="A chaos run, bounded in time.")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long callers come (default: 120)")
    parser.add_argument("--seed", type=int, help="of everything that is random (default: a new one)")
    parser.add_argument("--callers", type=int, default=48, help="callers at once (default: 48)")
    parser.add_argument("--keep", type=Path, help="a directory for the router's data and log")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    report = run(
        seconds=options.seconds,
        seed=seed,
        callers=options.callers,
        keep=options.keep,
        tell=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
