"""One coarse clock for thousands of waits."""

import asyncio
import heapq
from collections.abc import Callable

TICK = 0.001
"""Seconds. 512 streams at 50 events per second are 26 calls a tick, and one timer of the loop."""


class Ticker:
    """Calls at coarse times (never early, at most a tick late), with one loop timer for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[int, list[Callable[[], None]]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._turning = -1

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call once the loop's clock has passed ``when``; there is no way to take it back."""
        slot = max(int(when / TICK), self._turning) + 1
        calls = self._due.get(slot)
        if calls is not None:
            calls.append(call)
            return
        self._due[slot] = [call]
        heapq.heappush(self._order, slot)
        if self._order[0] == slot:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._order[0] * TICK, self._turn) if self._order else None

    def _turn(self) -> None:
        self._turning = int(self._loop.time() / TICK)
        while self._order and self._order[0] <= self._turning:
            for call in self._due.pop(heapq.heappop(self._order)):
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - one answer's fault must not stop the clock of the others
                    self._loop.call_exception_handler({"message": "a timed call failed", "exception": error})
        self._arm()
