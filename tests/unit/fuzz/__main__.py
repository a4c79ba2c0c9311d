"""python -m tests.unit.fuzz NAME [--seconds N] [--corpus DIRECTORY [--keep]]: under coverage guidance.

Needs atheris, which is no dependency: it has wheels for Linux alone.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.unit.fuzz.corpora import keep

ROOMS = ["admission", "routing", "telemetry", "anvil_site.incoming"]
"""What is watched for coverage."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz")
    parser.add_argument("name", help="a target of tests/unit/fuzz/targets.py")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="keeps what was found worth keeping")
    parser.add_argument("--keep", action="store_true", help="run nothing: take --corpus into the tests")
    options = parser.parse_args()
    if options.keep:
        if options.corpus is None:
            parser.error("--keep needs --corpus")
        print(f"{keep(options.name, options.corpus)} inputs are kept")
        return 0
    try:
        import atheris
    except ImportError:
        print("scripts/fuzz: atheris is not installed (pip install atheris)", file=sys.stderr)
        return 2
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "anvil_site.settings")
    with atheris.instrument_imports(include=ROOMS):
        import django

        django.setup()
        from tests.unit.fuzz.targets import TARGETS, corpus
    if options.name not in TARGETS:
        print(f"scripts/fuzz: the targets are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.corpus or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(corpus(options.name)):
            (directory / f"seed-{number}").write_bytes(data)
        arguments = [sys.argv[0], f"-max_total_time={options.seconds}", "-max_len=8192", str(directory)]
        atheris.Setup(arguments, TARGETS[options.name])
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
