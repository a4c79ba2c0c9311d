"""Two engines and a router that many tests share: each test finds them at rest, whatever was before."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.live.harness import (
    Engine,
    Router,
    TierDocument,
    await_rest,
    documents,
    eventually,
)

FRONTS = {"loop": "python:anvil_site.gunicorn", "blocking": "tests/live/gthread.py"}
"""gunicorn's configuration for each driver of the relay."""


class Bench:
    """Engines ``a`` and ``b`` behind a router with the tiers that ``tiers`` makes of them."""

    def __init__(
        self,
        directory: Path,
        tiers: Callable[[Sequence[Engine]], Sequence[TierDocument]],
        *,
        front: str = "loop",
        more: str = "",
        **options: Any,
    ) -> None:
        """``more`` is added to the configuration, ``{url}`` in it standing for the first engine's."""
        self.front = front
        self._closing = ExitStack()
        try:
            self.engines = [self._engine(directory, name) for name in ("a", "b")]
            installed = documents(*tiers(self.engines))
            added = more.replace("{url}", self.engines[0].url).encode()
            installed = dataclasses.replace(installed, config=installed.config + added)
            self.router = Router(directory / "router", installed, config=FRONTS[front], **options)
            self._closing.callback(self.router.stop)
            self.router.start()
        except BaseException:
            self.stop()
            raise

    def _engine(self, directory: Path, name: str) -> Engine:
        engine = Engine.start(directory, name)
        self._closing.callback(engine.stop)
        return engine

    def stop(self) -> None:
        self._closing.close()

    def rest(self) -> None:
        """Counts to zero and faults off, nothing running, every member ready again."""
        for engine in self.engines:
            engine.change(prefill=0.0, token=0.0, tokens=5, keep_alive=5.0)
            engine.reset()
        await_rest(self.router)
        for engine in self.engines:
            engine.await_stats(running=0, waiting=0, stalled=0)
            engine.reset()

        def all_ready() -> bool:
            tiers = self.router.request("GET", "/v1/admin/transition").json()["tiers"]
            rows = [row for tier in tiers for row in tier.get("members", [tier])]
            assert all(row["ready"] for row in rows), rows
            return True

        eventually(all_ready)

    def fault(self, name: str, *, count: int | None = None, **params: object) -> None:
        """The same fault on both engines."""
        for engine in self.engines:
            engine.fault(name, count=count, **params)

    def clear(self) -> None:
        for engine in self.engines:
            engine.clear()

    def stats(self) -> list[dict[str, Any]]:
        return [engine.stats() for engine in self.engines]

    def total(self, key: str) -> int:
        return sum(stats[key] for stats in self.stats())
