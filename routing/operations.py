"""What the management of one process holds in memory: its places, its drains, the order of its effects."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from routing.drains import Drains

if TYPE_CHECKING:
    from routing.activation import Job

MAX_AT_WORK: Final = 4
"""Management requests at work at once; one more is refused."""

MAX_WAITING: Final = 8
"""Requests that may wait for the end of their drain at once; one more polls."""

PERSISTING_PATIENCE: Final = 10.0
"""Seconds to wait for a change that is storing its intent; SQLite itself waits five for its lock."""

Scope = tuple[str, str | None]


class Overdue(Exception):
    """Another change keeps the intents for too long."""


class Operations:
    """One per router. Thread-safe.

    `closing` and `opening` see to it that a readmit never undoes a quiesce that came after the readmit began.
    """

    def __init__(self) -> None:
        self.at_work: Final = threading.BoundedSemaphore(MAX_AT_WORK)
        self.waiting: Final = threading.BoundedSemaphore(MAX_WAITING)
        self.drains: Final = Drains()
        self.loading_keys: Final = threading.Lock()
        self.activating: Final = threading.Lock()
        """Held by the one activation that runs."""
        self.activation: Job | None = None
        """The activation that was started last in a thread of its own."""
        self.promoting: Final = threading.Lock()
        """Held by whoever carries a promotion on or back."""
        self._quiesces: Counter[Scope] = Counter()
        self._order = threading.Lock()
        self._persisting = threading.Lock()

    @contextmanager
    def persisting(self) -> Iterator[None]:
        """Around what makes the stored intents and the ledger agree: one change does that at a time.

        A quiesce closes the ledger before it comes here, so that a database that hangs can't delay it. Raises
        Overdue, too, when it hangs for somebody else.
        """
        if not self._persisting.acquire(timeout=PERSISTING_PATIENCE):
            raise Overdue
        try:
            yield
        finally:
            self._persisting.release()

    def quiesces(self, scope: Scope) -> int:
        """How often ``scope`` has been quiesced; what a readmit notes as it begins."""
        with self._order:
            return self._quiesces[scope]

    @contextmanager
    def closing(self, scope: Scope) -> Iterator[None]:
        """Around a quiesce of ``scope`` in the ledger; no I/O in here."""
        with self._order:
            self._quiesces[scope] += 1
            yield

    @contextmanager
    def opening(self, scope: Scope, *, since: int) -> Iterator[bool]:
        """Around a readmit in the ledger: whether no quiesce came since it was noted; no I/O in here."""
        with self._order:
            yield self._quiesces[scope] == since
