"""One router before engines that speak every wire: a direct and a capacity tier for each dialect.

Every request of these tests must reach exactly one engine once, leave one record, and leave no lease behind.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

from tests.live.harness import (
    Engine,
    Router,
    await_rest,
    decisions,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)

ALIASES = ("direct.openai", "capacity.openai", "direct.anthropic", "capacity.anthropic", "direct.native")
"""``native`` serves Responses and messages besides chat: nothing is translated for it."""

WIRES = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
NATIVE_PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SCHEMA_SAMPLE = {"city": "Zürich 你好", "days": 1}
"""What an engine makes of the schema, as arguments and as an answer."""

TOOL_PROMPT = "Ask get_weather and get_time."


@dataclass(frozen=True, slots=True)
class Fleet:
    """The router and its engines, by name."""

    router: Router
    engines: tuple[Engine, ...]

    def openai(self, **options: Any) -> OpenAI:
        """The official client of OpenAI, without retries."""
        return self.router.client(**options)

    def anthropic(self, **options: Any) -> Anthropic:
        """The official client of Anthropic, without retries."""
        given = {"base_url": self.router.url, "api_key": self.router.token, "max_retries": 0, "timeout": 10.0}
        return Anthropic(**{**given, **options})

    def reset(self) -> None:
        """Counts to zero, faults off."""
        for engine in self.engines:
            engine.reset()

    def fault(self, name: str, **params: Any) -> None:
        """Switch a fault on in every engine, for the next answer that it fits."""
        for engine in self.engines:
            engine.fault(name, count=1, **params)

    def change(self, **settings: object) -> None:
        """Change settings of every engine."""
        for engine in self.engines:
            engine.change(**settings)

    def received(self) -> list[dict[str, Any]]:
        """The requests that the engines have seen since the last reset."""
        return [request for engine in self.engines for request in engine.stats()["last_requests"]]

    def sent(self) -> dict[str, Any]:
        """The one request that the engines have seen, wherever it went."""
        (request,) = self.received()
        return request

    def await_counts(self, **expected: int) -> None:
        """Wait until the engines' counts add up to these."""

        def reached() -> bool:
            stats = [engine.stats() for engine in self.engines]
            counts = {name: sum(one[name] for one in stats) for name in expected}
            assert counts == expected
            return True

        eventually(reached)

    def record(self, request_id: str) -> dict[str, Any]:
        """The one decision record of a request."""

        def found() -> list[dict[str, Any]]:
            return [one for one in decisions(self.router) if one["request_id"] == request_id]

        (record,) = eventually(found)
        return record


@contextlib.contextmanager
def wires_fleet(directory: Path, **router_settings: object) -> Iterator[Fleet]:
    """A fleet that ends with the block."""
    engines: list[Engine] = []
    router: Router | None = None
    try:
        for name in ("engine-d", "engine-a", "engine-b"):
            engines.append(Engine.start(directory, name, tokens=12))
        direct, *members = engines
        tiers = []
        for dialect in ("openai", "anthropic"):
            named = {"alias": f"direct.{dialect}", "dialect": dialect}
            tiers.append(direct_tier(direct, tier_id=f"d-{dialect}", max_concurrency=4, **named))
            named["alias"] = f"capacity.{dialect}"
            tiers.append(replica_tier(members, tier_id=f"c-{dialect}", ceilings=2, **named))
        native = ["responses", "messages"]
        tiers.append(direct_tier(direct, tier_id="d-native", alias="direct.native", wires=native))
        router = Router(directory / "router", documents(*tiers, router=router_settings))
        router.start()
        yield Fleet(router, tuple(engines))
        await_rest(router)
    finally:
        if router is not None:
            router.stop()
        for engine in engines:
            engine.stop()


def upstream_path(wire: str, alias: str) -> str:
    """Where a request of ``wire`` for ``alias`` arrives."""
    dialect = alias.partition(".")[2]
    return PATHS[wire] if dialect == "native" else NATIVE_PATHS[dialect]


def spoken(engine_name: str) -> str:
    """What an engine says in twelve tokens."""
    return f"Hello from {engine_name}: one token per word, 你好 and 🙂 too, naïve"
