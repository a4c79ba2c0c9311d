"""A bounded queue and the one thread that empties it: how evidence reaches slow places.

Whoever has something to write offers it and goes on. A full queue, a failing disk, a blocked pipe or a
database that is gone costs entries, which are counted, and never the time of the one who offered.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BoundedWriter(Generic[T]):
    """Takes entries without waiting and hands them to `write` in batches, in order, from a thread of its own.

    Subclasses implement `write` and, where they hold something open, `close`; both run in that thread only.
    No thread exists before `start`. Entries offered before it wait in the queue.

    ``capacity`` bounds the queue and ``batch_size`` one call of `write`. The thread sleeps while the queue
    is empty and, once it is not, gives a batch up to ``linger`` seconds to fill, so that a busy writer wakes
    once a batch and not once an entry.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity: int = 10_000,
        batch_size: int = 500,
        linger: float = 0.1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= batch_size <= capacity:
            raise ValueError("batch_size must be from 1 to capacity")
        self.name = name
        self._capacity = capacity
        self._batch_size = batch_size
        self._linger = linger
        self._monotonic = monotonic
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._write_began: float | None = None
        self._failing = False
        self.dropped = 0
        """Entries refused because the queue was full or the writer had been stopped."""
        self.failed = 0
        """Entries of the batches whose `write` raised."""
        self.written = 0

    @property
    def lost(self) -> int:
        """Entries that were offered and will never be written."""
        return self.dropped + self.failed

    @property
    def pending(self) -> int:
        """Entries that wait in the queue; a batch being written is not among them."""
        return len(self._items)

    @property
    def busy_seconds(self) -> float:
        """How long the current call of `write` has taken so far; 0.0 between calls. For a watchdog."""
        began = self._write_began
        return 0.0 if began is None else self._monotonic() - began

    def write(self, batch: Sequence[T]) -> None:
        """Write one batch of 1 to ``batch_size`` entries; raise when it could not be written."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what `write` holds open. Called once, after the last batch."""

    def offer(self, item: T) -> bool:
        """Queue ``item`` and return at once: True when it will be written, False when it was dropped."""
        with self._changed:
            if self._stopping or len(self._items) >= self._capacity:
                self.dropped += 1
                return False
            self._items.append(item)
            # The thread waits for the first entry, then for a full batch; nothing in between concerns it.
            if len(self._items) in (1, self._batch_size):
                self._changed.notify()
        return True

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        with self._changed:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Refuse new entries and wait at most ``timeout`` seconds for the thread to write what is queued.

        True when everything was written. False when `write` is stuck; what is queued is lost with the
        process then, which the daemon thread does not hold up.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return not self._items
        thread.join(timeout)
        return not thread.is_alive()

    def run_once(self) -> int:
        """Write one batch of what is queued, without waiting for more; the number of entries taken."""
        with self._changed:
            batch = [self._items.popleft() for _ in range(min(len(self._items), self._batch_size))]
        if not batch:
            return 0
        self._write_began = self._monotonic()
        try:
            self.write(batch)
        except Exception:  # noqa: BLE001  # whatever a disk or database raises costs this batch, not the loop
            self.failed += len(batch)
            self._report(failing=True)
        else:
            self.written += len(batch)
            self._report(failing=False)
        finally:
            self._write_began = None
        return len(batch)

    def _run(self) -> None:
        while self._await_batch():
            self.run_once()
        try:
            self.close()
        except Exception:  # noqa: BLE001  # as above
            self._report(failing=True)

    def _await_batch(self) -> bool:
        """Wait until there is something to write; False when there never will be again."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._stopping)
            self._changed.wait_for(
                lambda: self._stopping or len(self._items) >= self._batch_size, timeout=self._linger
            )
            return bool(self._items)

    def _report(self, *, failing: bool) -> None:
        """One line when writing begins to fail and one when it works again; the error's text stays out."""
        if failing and not self._failing:
            logger.warning("%s cannot write: entries are lost until it can", self.name)
        elif self._failing and not failing:
            logger.warning("%s writes again, %d entries were lost", self.name, self.lost)
        self._failing = failing
