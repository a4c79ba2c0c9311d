"""The demo engine's clock: one timer, never early, and one bad call does not stop the rest."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from demo.ticker import Ticker


class FakeLoop:
    """A loop whose time moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.faults: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> "FakeTimer":
        self.timers.append((when, call))
        return FakeTimer(self, (when, call))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    def advance_to(self, when: float) -> None:
        self.now = when
        for timer in [one for one in self.timers if one[0] <= when]:
            self.timers.remove(timer)
            timer[1]()


class FakeTimer:
    def __init__(self, loop: FakeLoop, timer: tuple[float, Callable[[], None]]) -> None:
        self._loop, self._timer = loop, timer

    def cancel(self) -> None:
        if self._timer in self._loop.timers:
            self._loop.timers.remove(self._timer)


def make() -> tuple[FakeLoop, Ticker]:
    loop = FakeLoop()
    return loop, Ticker(cast(asyncio.AbstractEventLoop, loop))


def test_calls_come_in_order_and_never_early() -> None:
    loop, ticker = make()
    called: list[str] = []
    ticker.at(0.0102, lambda: called.append("second"))
    ticker.at(0.0052, lambda: called.append("first"))
    loop.advance_to(0.005)
    assert called == []
    loop.advance_to(0.0061)
    assert called == ["first"]
    loop.advance_to(0.012)
    assert called == ["first", "second"]
    assert loop.timers == []


def test_any_number_of_calls_share_one_timer() -> None:
    loop, ticker = make()
    called: list[int] = []
    for number in range(1000):
        ticker.at(0.001 + number % 7 / 1000, partial(called.append, number))
    assert len(loop.timers) == 1
    loop.advance_to(1.0)
    assert len(called) == 1000


def test_a_call_that_asks_for_another_at_once_waits_for_the_next_tick() -> None:
    loop, ticker = make()
    called: list[float] = []

    def again() -> None:
        called.append(loop.now)
        if len(called) < 3:
            ticker.at(0.0, again)

    ticker.at(0.0, again)
    for when in (0.0011, 0.0021, 0.0031, 0.0041):
        loop.advance_to(when)
    assert called == [0.0011, 0.0021, 0.0031]


def test_one_bad_call_is_reported_and_stops_nothing() -> None:
    loop, ticker = make()
    called: list[str] = []
    ticker.at(0.001, lambda: called.append(str(1 // 0)))
    ticker.at(0.001, lambda: called.append("same tick"))
    ticker.at(0.005, lambda: called.append("later"))
    loop.advance_to(0.003)
    loop.advance_to(0.007)
    assert called == ["same tick", "later"]
    assert [type(fault["exception"]) for fault in loop.faults] == [ZeroDivisionError]
