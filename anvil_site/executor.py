"""A pool of threads that tells how busy it is, for metrics.

The standard library's own count of idle threads drifts once work has waited for a thread, so this one counts.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from telemetry.evidence import ExecutorReading

P = ParamSpec("P")
T = TypeVar("T")


class Executor(ThreadPoolExecutor):
    """See the module."""

    def __init__(self, threads: int, *, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._busy = 0
        self._counting = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        return super().submit(self._counted, fn, *args, **kwargs)

    def _counted(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._counting:
            self._busy += 1
        try:
            return fn(*args, **kwargs)
        finally:
            with self._counting:
                self._busy -= 1

    def reading(self) -> ExecutorReading:
        """Threads that are at work now, and requests that wait for one."""
        return ExecutorReading(busy=self._busy, waiting=self._work_queue.qsize())
