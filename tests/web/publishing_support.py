"""What the tests of snapshots and activation share."""

import threading
from collections.abc import Callable

from tests.web.control_support import PATIENCE


def eventually(condition: Callable[[], bool]) -> None:
    """Wait, for a bounded time, until what another thread does has come to this."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("not in time")
