"""What happens to the router meanwhile: engines that fail, transitions, activations, scrapes."""

import asyncio
import base64
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.chaos.engines import Watch
from tests.chaos.wire import ask, ask_json
from tests.live.harness import Documents

TRANSITION: Final = "/v1/admin/transition"
SNAPSHOTS: Final = "/v1/admin/snapshots"

SETTLED_AFTER: Final = 5.0
"""Seconds after an activation until which a request may still be on its way under the one before."""

WORK_FAULTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("reset", {}),
    ("stall_before_headers", {"seconds": 0.3}),
    ("stall_before_headers", {"seconds": 6.0}),
    ("stall_after_headers", {"seconds": 4.0}),
    ("stall_mid_stream", {"seconds": 0.5}),
    ("stall_mid_stream", {"seconds": 5.0}),
    ("http_500", {}),
    ("http_429", {}),
    ("plain_error", {}),
    ("flat_error", {}),
    ("json_400_on_stream", {}),
    ("json_200_on_stream", {}),
    ("cut_mid_stream", {}),
    ("reset_mid_stream", {}),
    ("malformed_event", {}),
    ("error_event_mid_stream", {}),
    ("no_terminal_event", {}),
    ("no_final_blank_line", {}),
    ("crlf_and_comments", {}),
    ("split_events", {}),
    ("split_utf8", {}),
    ("gzip_unasked", {}),
    ("eof_delimited", {}),
    ("chunk_extras", {}),
    ("extra_1xx", {}),
    ("close_idle", {}),
)
PROBE_FAULTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("slow_health", {"seconds": 0.5}),
    ("slow_health", {"seconds": 2.0}),
    ("health_500", {}),
    ("wrong_model", {}),
    ("models_malformed", {}),
    ("reset", {"path": "/health"}),
    ("metrics_500", {}),
    ("metrics_nan", {}),
    ("metrics_missing", {}),
    ("metrics_text", {"text": "\x00 not a metric"}),
    ("trickling_metrics", {}),
    ("stall_before_headers", {"path": "/metrics", "seconds": 3.0}),
)


class Changes:
    """See the module. ``variants`` are the documents that are activated in turn, with their ceilings."""

    def __init__(
        self,
        port: int,
        *,
        seed: int,
        watch: Watch,
        variants: Sequence[tuple[Documents, dict[str, int]]],
        violation: Callable[[str], None],
    ) -> None:
        self._port = port
        self._random = random.Random(f"{seed}/changes")
        self._watch = watch
        self._variants = variants
        self._snapshots: list[int] = []
        self._violation = violation
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0

    async def capture(self) -> None:
        """Store all variants."""
        for documents, _ in self._variants:
            parts = {"config": documents.config, "topology": documents.topology}
            body = {name: base64.b64encode(data).decode() for name, data in parts.items()}
            status, answer = await ask_json(self._port, "POST", SNAPSHOTS, body)
            assert status in (200, 201), answer
            self._snapshots.append(answer["id"])

    # One turn each

    async def fail_an_engine(self) -> None:
        """Arm a fault at some engine, for its next answers."""
        engine = self._random.choice(sorted(self._watch.engines.values(), key=lambda one: one.settings.name))
        turn = self._random.random()
        if turn < 0.04:
            name, params, count = "refuse", {"seconds": 0.3, "cut": self._random.random() < 0.5}, None
            fault = engine.faults.arm(name, params=params)
            engine._refuse(fault, next(iter(engine.connections), None))  # type: ignore[arg-type]
        else:
            kinds = WORK_FAULTS if turn < 0.7 else PROBE_FAULTS
            name, params = self._random.choice(kinds)
            count = self._random.randint(1, 3)
            engine.faults.arm(name, count=count, params=params)
        self.counts["faults"] += 1
        await asyncio.sleep(self._random.random() * 0.4)

    async def transit(self) -> None:
        """Quiesce, drain or readmit some scope."""
        action = self._random.choice(("quiesce", "drain", "readmit", "readmit", "readmit", "readmit"))
        tier, member = self._random.choice(
            [
                ("chat", None),
                ("chat", "member-a"),
                ("chat", "member-b"),
                ("chat", "member-c"),
                ("even", None),
                ("even", "member-a"),
                ("direct", None),
                ("no-such-tier", None),
            ]
        )
        body: dict[str, object] = {"action": action, "tier_id": tier, "confirm": True, "dry_run": False}
        if member is not None:
            body["member_id"] = member
        if action == "drain":
            body["timeout"] = 0.1 + self._random.random()
        status, answer = await ask_json(self._port, "POST", TRANSITION, body)
        self.counts[f"{action} {status}"] += 1
        if status not in (200, 202, 404, 409, 503):
            self._violation(f"{action} answered {status}: {answer}")
        await asyncio.sleep(self._random.random() * 0.5)

    async def activate(self) -> None:
        """Activate another variant, with a drain of what it changes."""
        await asyncio.sleep(1.0 + self._random.random() * 3)
        index = self._random.randrange(len(self._variants))
        wanted, held = self._variants[index][1], dict(self._watch.ceilings)
        # Until it is over, and a little longer, requests of both configurations are on their way.
        names = wanted.keys() | held.keys()
        self._watch.ceilings.update({name: max(wanted.get(name, 0), held.get(name, 0)) for name in names})
        path = f"{SNAPSHOTS}/{self._snapshots[index]}/activate"
        body = {"confirm": True, "dry_run": False, "drain_timeout": 8.0}
        status, answer = await ask_json(self._port, "POST", path, body)
        self.counts[f"activate {status}"] += 1
        if status not in (200, 409, 503):
            self._violation(f"activate answered {status}: {answer}")
        await asyncio.sleep(SETTLED_AFTER)
        self._watch.ceilings.update(wanted if status == 200 else held)

    async def look(self) -> None:
        """Read what people and scrapers read; it must agree with itself and come soon."""
        clock = asyncio.get_running_loop().time
        began = clock()
        status, _ = await ask(self._port, "GET", "/healthz", token=None)
        self.slowest = max(self.slowest, clock() - began)
        _, rows = await ask_json(self._port, "GET", TRANSITION)
        for row in rows["tiers"]:
            members = row.get("members")
            if members is not None:
                self._agree(
                    "status",
                    row["tier_id"],
                    row["active_requests"],
                    [member["active_requests"] for member in members],
                )
        await self.scrape()
        self.counts[f"looks {status}"] += 1
        await asyncio.sleep(1.0)

    async def scrape(self) -> dict[tuple[str, str], float]:
        """The router's own gauges and counters: by name and labels as they are written."""
        _, page = await ask(self._port, "GET", "/metrics")
        return {
            (name, labels or ""): float(value)
            for name, labels, value in re.findall(r"^(\w+)(?:{(.*)})? (\S+)$", page.decode(), re.M)
        }

    def _agree(self, where: str, tier: str, whole: float, parts: Sequence[float]) -> None:
        if whole != sum(parts):
            self._violation(f"{where}: {tier} runs {whole}, its members {list(parts)}")

    async def repeat(self, turn: Callable[[], Any], stop: asyncio.Event) -> None:
        """Take ``turn`` after ``turn``; one that fails is a violation."""
        while not stop.is_set():
            try:
                await turn()
            except Exception as error:
                self._violation(f"{turn.__name__}: {error!r}")
                await asyncio.sleep(0.5)

    async def mend(self) -> None:
        """Faults off, everything readmitted."""
        for engine in self._watch.engines.values():
            engine._clear("")
        for _ in range(100):
            _, rows = await ask_json(self._port, "GET", TRANSITION)
            closed = [
                {"tier_id": row["tier_id"], **({"member_id": one["member_id"]} if "member_id" in one else {})}
                for row in rows["tiers"]
                for one in (*row.get("members", ()), row)
                if one["state"] == "quiesced"
            ]
            if not closed:
                return
            for scope in closed:
                body = {"action": "readmit", "confirm": True, "dry_run": False, **scope}
                await ask(self._port, "POST", TRANSITION, body)
            await asyncio.sleep(0.1)
        self._violation(f"could not be readmitted: {closed}")
