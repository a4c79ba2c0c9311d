"""Log lines without waiting: a blocked stderr must not stop a request.

A pipe that nobody reads blocks whoever writes to it. This handler formats in the calling thread, which is
bounded work, and writes from a thread of its own behind a bounded queue; lines that find it full are counted
and lost.
"""

import logging
import os
from collections.abc import Sequence
from typing import Final

from telemetry.writer import BoundedWriter

CAPACITY: Final = 10_000
FLUSH_SECONDS: Final = 1.0
"""How long the end of a process waits for lines that are still queued."""

STDERR: Final = 2


class LineWriter(BoundedWriter[str]):
    """Writes lines to a file descriptor, standard error by default."""

    def __init__(self, descriptor: int = STDERR, *, capacity: int = CAPACITY) -> None:
        super().__init__("anvil-log", capacity=capacity, linger=0.0)
        self._descriptor = descriptor

    def write(self, batch: Sequence[str]) -> None:
        data = memoryview("".join(f"{line}\n" for line in batch).encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(self._descriptor, data) :]


class BoundedStreamHandler(logging.Handler):
    """Hands formatted records to a `LineWriter`, whose thread starts with the first of them."""

    def __init__(self, writer: LineWriter | None = None) -> None:
        super().__init__()
        self.writer = writer or LineWriter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  # a line that cannot be formatted is one line less
            self.writer.dropped += 1
            return
        self.writer.start()
        self.writer.offer(line)

    def close(self) -> None:
        """Write what is queued, at most a second long. `logging.shutdown` calls it when the process ends."""
        self.writer.stop(FLUSH_SECONDS)
        super().close()


def site_writer() -> LineWriter | None:
    """The writer behind the process's own handler; None where logging is set up otherwise."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, BoundedStreamHandler):
            return handler.writer
    return None
