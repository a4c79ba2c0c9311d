"""How many reloads gunicorn's master has begun, in memory that it shares with its workers.

A worker that is told to stop compares: after a reload its successor is there already and accepts for it.
The module is a home of its own, since gunicorn may execute its configuration as another module each time.
"""

import mmap
from typing import Final

_SIZE: Final = 8

# Made before any worker is forked: the configuration imports it in the master.
_shared = mmap.mmap(-1, _SIZE)


def begin() -> None:
    """One more; for the master alone."""
    _shared[:_SIZE] = (generation() + 1).to_bytes(_SIZE, "little")


def generation() -> int:
    """How many have begun."""
    return int.from_bytes(_shared[:_SIZE], "little")
