"""Why a worker did not come up: its sentence, in memory that it shares with gunicorn's master.

The master says it last of all, after what gunicorn itself says of a worker that ends. Only what an operator
can mend has a sentence; of anything else the traceback stays, since that is a fault of ours.
"""

import mmap
from pathlib import Path
from typing import Final

from environs.exceptions import EnvError

_SIZE: Final = 1024

# Made before any worker is forked: the configuration imports it in the master.
_shared = mmap.mmap(-1, _SIZE)


class StartRefused(Exception):
    """The process must not serve; the text is for its operator's log and names no secret."""


def sentence_of(error: Exception, data_dir: Path) -> str | None:
    """What an operator has to know of an error at the start; None for one that should not be."""
    if isinstance(error, StartRefused | EnvError):
        return str(error).rstrip(".")
    if isinstance(error, OSError) and error.filename is not None:
        place = Path(str(error.filename))
        if data_dir == place or data_dir in place.parents or place in data_dir.parents:
            return f"the data directory ANVIL_DATA can't be used: {(error.strerror or 'no word').lower()}"
    return None


def refuse(sentence: str) -> None:
    """Leave the sentence for the master; for a worker that is about to end."""
    # Cut between characters: half of one can't be read again.
    data = sentence.encode()[:_SIZE].decode(errors="ignore").encode()
    _shared[:_SIZE] = data.ljust(_SIZE, b"\0")


def refusal() -> str:
    """The sentence that the last worker has left; empty when there is none."""
    return _shared[:_SIZE].rstrip(b"\0").decode()
