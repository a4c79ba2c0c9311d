"""Stand-ins for what readiness talks to: a clock set by hand, and transports that answer on command."""

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from routing.availability import HttpHealthAvailability, ProbeTarget
from routing.probes import FaultName, ProbeFault

Result = TypeVar("Result")
Answer = tuple[int, bytes] | FaultName

PATIENCE = 10.0
"""Seconds that anything may take before a test gives up; nothing waits that long when all is well."""


def models(*names: str, **more: object) -> Answer:
    """A good model list with these ids; ``more`` is added to each entry."""
    return 200, json.dumps({"object": "list", "data": [{"id": name, **more} for name in names]}).encode()


def member(tier_id: str, member_id: str | None, host: str, **changes: Any) -> ProbeTarget:
    """A target that expects the model "qwen" at ``http://HOST/v1`` and has no health path."""
    values: dict[str, Any] = {"base_url": f"http://{host}/v1", "expected_model": "qwen", **changes}
    return ProbeTarget(tier_id=tier_id, member_id=member_id, **values)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Script:
    """A transport that answers each host at once with what ``answers`` holds for it; counts in ``asked``."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = answers
        self.asked: list[str] = []

    def __call__(
        self, url: str, *, headers: Mapping[str, str], timeout: float, limit: int
    ) -> tuple[int, bytes]:
        host = urlsplit(url).hostname or ""
        self.asked.append(host)
        return _given(self.answers[host])


@dataclass(eq=False)
class Call:
    """One GET that waits for its answer."""

    host: str
    _answer: "queue.SimpleQueue[Answer]" = field(default_factory=queue.SimpleQueue)

    def answer(self, answer: Answer) -> None:
        self._answer.put(answer)

    def wait(self) -> tuple[int, bytes]:
        return _given(self._answer.get(timeout=PATIENCE))


class Held:
    """A transport whose calls wait until the test answers them; ``entered`` yields them as they begin."""

    def __init__(self) -> None:
        self.entered: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.calls: list[Call] = []

    def __call__(
        self, url: str, *, headers: Mapping[str, str], timeout: float, limit: int
    ) -> tuple[int, bytes]:
        call = Call(urlsplit(url).hostname or "")
        self.calls.append(call)
        self.entered.put(call)
        return call.wait()

    def next(self) -> Call:
        """The next call that has begun."""
        return self.entered.get(timeout=PATIENCE)

    def release(self) -> None:
        for call in self.calls:
            call.answer("other")


def _given(answer: Answer) -> tuple[int, bytes]:
    if isinstance(answer, str):
        raise ProbeFault(answer)
    return answer


class Crew:
    """Runs calls in threads; a failing test releases what they wait for before it joins them."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def run(self, call: Callable[..., Result], *args: Any) -> "Future[Result]":
        return self._pool.submit(call, *args)


@contextmanager
def crew(transport: Held) -> Iterator[Crew]:
    with ThreadPoolExecutor(max_workers=20) as pool:
        try:
            yield Crew(pool)
        finally:
            transport.release()


def availability(*targets: ProbeTarget, transport: Any, clock: Clock | None = None) -> HttpHealthAvailability:
    """Interval 5 s, timeout 3 s, a clock that stands still at 1000.0 s, wall clock 1.7e9."""
    return HttpHealthAvailability(
        targets,
        interval=5.0,
        timeout=3.0,
        max_bytes=65_536,
        transport=transport,
        monotonic=clock or Clock(),
        wall_clock=lambda: 1_700_000_000.0,
        environ={},
    )


def prober_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("anvil-prober"))
