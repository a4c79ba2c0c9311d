"""A pool of threads for requests: hands work over for the price of one queue, and tells how busy it is.

The standard library's pool makes a future with a lock and a condition for every piece of work, which nobody
here waits for, and joins its threads at exit; a stream that hangs would hold up the end of the process.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from telemetry.evidence import ExecutorReading

logger = logging.getLogger(__name__)

Work = Callable[[], object]


class Executor:
    """At most ``threads`` daemon threads, each started when work comes and every other one is busy.

    Work runs in the order in which it came, and is expected to see to its own failures: what it raises is
    logged. Thread-safe.
    """

    def __init__(self, threads: int, *, name: str) -> None:
        self._limit = threads
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False

    def submit(self, function: Callable[..., object], /, *args: object) -> None:
        """Call ``function(*args)`` as soon as a thread is free. Raises RuntimeError after `shutdown`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor is shut down")
            self._unfinished += 1
            starting = len(self._threads) < min(self._unfinished, self._limit)
            if starting:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
            self._queue.put(partial(function, *args))
        if starting:
            self._start(thread)

    def shutdown(self, wait: bool = False) -> None:
        """Take no more work and forget what has not begun; ``wait`` for what has."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                while True:
                    self._queue.get_nowait()
                    self._unfinished -= 1
            except Empty:
                pass
            threads = tuple(self._threads)
            for _ in threads:
                self._queue.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def reading(self) -> ExecutorReading:
        """Threads that are at work now, and requests that wait for one."""
        with self._lock:
            busy = min(self._unfinished, len(self._threads))
            return ExecutorReading(busy=busy, waiting=self._unfinished - busy)

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError:
            # The work waits for a thread that runs already, or for one that the next request starts.
            logger.error("no thread could be started in %s", self._name)
            with self._lock:
                self._threads.remove(thread)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException:
                logger.exception("work failed in %s", self._name)
            finally:
                # Not one name of it may live on in a thread that sleeps.
                del work
                with self._lock:
                    self._unfinished -= 1
