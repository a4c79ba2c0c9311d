"""A short chaos run (`scripts/chaos` runs long ones): callers, faults and changes, and no violation."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.engines import Watch, WatchedEngine
from tests.chaos.run import run
from tests.live.harness import MODEL, chat_body
from tests.live.raw import RawConnection

pytestmark = pytest.mark.requirement("contract 3", "house 1", "house 3", "cases 1", "cases 2", "cases 7")


def test_nothing_breaks_an_invariant(tmp_path: Path) -> None:
    report = run(seconds=12.0, seed=8, callers=24, keep=tmp_path / "router")

    assert report.violations == Counter(), str(report)
    assert report.requests > 500
    assert report.received > 100
    assert report.statuses[200] > 50
    assert len(report.struck) > 5


def test_the_count_at_an_engine_is_exact() -> None:
    """A close that was sent before a request counts, whatever the engine reads first; one request too many is
    seen however short the overlap is."""

    async def scene() -> tuple[list[str], dict[str, int]]:
        told: list[str] = []
        watch = Watch({"direct": ("f",)}, told.append, ceilings={"f": 1, "direct": 1})
        engine = watch.engines["f"] = WatchedEngine("f", watch, model=MODEL, prefill=60.0)

        async def received(count: int) -> None:
            async with asyncio.timeout(5.0):
                while engine.stats()["received"] < count:
                    await asyncio.sleep(0)

        try:
            before = RawConnection(engine.port)
            before.post(chat_body())
            await received(1)
            for number in range(2, 102):
                after = RawConnection(engine.port)
                # The engine's loop stands still meanwhile, so that it finds both at once.
                before.close()
                after.post(chat_body())
                await received(number)
                before = after
            assert told == []
            with RawConnection(engine.port) as too_many:
                too_many.post(chat_body())
                await received(102)
            before.close()
        finally:
            engine.stop()
        return told, dict(watch.peaks)

    told, peaks = asyncio.run(scene())
    assert told == [
        "2 requests at once at f, whose ceiling is 1",
        "2 requests at once at direct, whose ceiling is 1",
    ]
    assert peaks == {"f": 2, "direct": 2}
