"""What coverage-guided runs have found worth keeping: small inputs, one a line in base64, a file a target."""

import base64
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).parents[2] / "corpus" / "fuzz"
MAX_INPUTS: Final = 40
MAX_BYTES: Final = 400
"""Of one input. Together they stay small enough to be read through with every run of the tests."""


def kept(name: str) -> list[bytes]:
    """The inputs that are kept for this target; none where nothing was."""
    path = DIRECTORY / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def keep(name: str, found: Path) -> int:
    """Replace what is kept by the smallest inputs of a corpus directory; how many there are now.

    The seeds that a run writes there are documents of their own, and are passed over.
    """
    inputs = {path.read_bytes() for path in found.iterdir() if not path.name.startswith("seed-")}
    small = sorted((each for each in inputs if len(each) <= MAX_BYTES), key=lambda each: (len(each), each))
    lines = [base64.b64encode(each).decode() for each in small[:MAX_INPUTS] if each]
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    return len(lines)
