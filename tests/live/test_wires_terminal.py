"""Every way in which a request can end, for every pair of caller's and upstream's wire, through real sockets.

The endings are those of the chat path (test_terminal_paths); each is met by each pair of wires, on a direct
or a capacity tier in turn. However it ends: one upstream request, one lease that is given back, one decision.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.live.bench import Bench
from tests.live.harness import (
    Engine,
    TierDocument,
    await_rest,
    direct_tier,
    eventually,
    replica_tier,
)
from tests.live.raw import RawConnection, Response
from tests.live.test_terminal_paths import BOTH, HASTY, STREAMED, WHOLE, Ending, the_decision
from tests.live.wires_fleet import PATHS

pytestmark = [
    pytest.mark.requirement("C-R010", "C-R013", "C-T007", "Q-R013", "Q-T009", "contract 2"),
    pytest.mark.requirement("cases 1", "cases 2", "cases 6", "cases 20", "cases 21", "cases 22", "cases 25"),
    pytest.mark.requirement("cases 26", "cases 27"),
]

STRATEGIES = ("direct", "capacity")
SERVED: dict[str, dict[str, Any]] = {
    "openai": {"dialect": "openai"},
    "anthropic": {"dialect": "anthropic"},
    "native": {"dialect": "openai", "wires": ["responses", "messages"]},
}
PAIRS = [
    (wire, served)
    for served in SERVED
    for wire in PATHS
    if (wire, served) not in (("chat", "openai"), ("chat", "native"))
]

MESSAGES = {
    "upstream_error": "The upstream server failed to answer the request.",
    "upstream_rejected": "The engine says no.",
    "upstream_rate_limited": "Too many requests",
    "upstream_timeout": "The upstream server did not answer in time.",
    "upstream_unreachable": "The upstream server could not be reached.",
    "upstream_incomplete": "The upstream server's answer ended before it was complete.",
    "upstream_invalid_response": "The upstream server sent an answer that cannot be used.",
}
TYPES = {400: "invalid_request_error", 429: "rate_limit_error", 504: "timeout_error"}


def tiers(engines: Sequence[Engine]) -> list[TierDocument]:
    """A direct and a capacity tier for each way to serve wires, and one of each that has little patience."""
    made = []
    for served, fields in SERVED.items():
        for strategy in STRATEGIES:
            for suffix, patience in (("", {}), ("-hasty", HASTY)):
                name = f"{served}-{strategy}{suffix}"
                common: dict[str, Any] = {"tier_id": name, "alias": name, **fields, **patience}
                if strategy == "direct":
                    made.append(direct_tier(engines[0], max_concurrency=2, **common))
                else:
                    made.append(replica_tier(engines, ceilings=2, **common))
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("wires"), tiers)
    yield bench
    bench.stop()


@pytest.fixture
def bench(shared: Bench) -> Bench:
    shared.rest()
    return shared


@dataclass(frozen=True)
class Case:
    """One ending, met by one pair of wires on one kind of tier."""

    ending: Ending
    stream: bool
    wire: str
    served: str
    strategy: str

    @property
    def tier(self) -> str:
        return f"{self.served}-{self.strategy}{'-hasty' if self.ending.hasty else ''}"

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.tier, "stream": self.stream}
        said = [{"role": "user", "content": "说 你好 🙂"}]
        if self.wire == "responses":
            return {**body, "input": said}
        return {**body, "messages": said, **({"max_tokens": 64} if self.wire == "messages" else {})}


def cases() -> Iterator[Any]:
    endings = [(True, one) for one in BOTH + STREAMED] + [(False, one) for one in BOTH + WHOLE]
    for number, (stream, ending) in enumerate(endings):
        for turn, (wire, served) in enumerate(PAIRS):
            case = Case(ending, stream, wire, served, STRATEGIES[(number + turn) % 2])
            mode = "streamed" if stream else "whole"
            yield pytest.param(case, id=f"{wire} on {served}, {mode}: {ending.name}")


@pytest.mark.parametrize("case", list(cases()))
def test_every_end_costs_one_attempt_and_leaves_nothing(bench: Bench, case: Case) -> None:
    ending = case.ending
    if ending.fault is not None:
        bench.fault(ending.fault, **ending.params)
    request_id = uuid.uuid4().hex
    with RawConnection(bench.router.port) as connection:
        connection.post(case.body(), path=PATHS[case.wire], headers={"X-Request-Id": request_id})
        response = ending.client(bench, connection)
        if response is not None:
            check_answer(response, case, request_id)

    await_rest(bench.router)
    for engine in bench.engines:
        engine.await_stats(running=0, waiting=0, stalled=0)
    assert bench.total("received") == 1
    record = eventually(lambda: the_decision(bench.router, request_id))
    (attempt,) = record["attempts"]
    assert (record["kind"], attempt["tier_id"], attempt["reason"]) == (case.wire, case.tier, ending.reason)
    if case.strategy == "capacity":
        assert record["replica_selection"] == "identity_passed"
        assert record["replica_scheduler"]["selected_member_id"] == record["replica_member_id"]


def check_answer(response: Response, case: Case, request_id: str) -> None:
    head, ending = response.head, case.ending
    assert head.status == ending.status
    assert head.get("x-request-id") == request_id
    assert head.get("x-anvil-tier") == case.tier
    if not (case.stream and ending.status == 200):
        assert response.ending == "length"
        assert head.get("content-type") == "application/json"
        if ending.code is None:
            assert "Hello from " in said(response.json(), case.wire)
        else:
            check_error(response.json(), case, ending.status)
            assert head.get("x-should-retry") == "false"
            assert head.get("retry-after") == ("7" if ending.status == 429 else None)
        return
    assert response.ending == "chunked"
    assert head.get("x-accel-buffering") == "no"
    assert head.get("content-type") == "text/event-stream; charset=utf-8"
    events = [one if one == "[DONE]" else json.loads(one) for one in response.data]
    if ending.code is None:
        assert is_end(events[-1])
        assert [is_end(event) for event in events].count(True) == 1
        assert "Hello from " in "".join(delta(event) for event in events if event != "[DONE]")
    else:
        assert len(events) > 1
        assert not any(is_end(event) for event in events)
        assert [event.get("error") is not None for event in events].index(True) == len(events) - 1
        status = 504 if ending.code == "upstream_timeout" else 502
        check_error(events[-1], case, status)


def check_error(body: Any, case: Case, status: int) -> None:
    """The caller's envelope, and nothing beside it but what its events have."""
    code = case.ending.code or ""
    told = (
        "EngineCore encountered an issue." if "error_event" in (case.ending.fault or "") else MESSAGES[code]
    )
    error = body["error"]
    assert error["message"] == told
    if case.wire == "messages":
        assert body == {"type": "error", "error": {"type": TYPES.get(status, "api_error"), "message": told}}
    else:
        assert (error["code"], error["param"]) == (code, None)
        assert set(error) == {"message", "type", "param", "code"}
    if "type" in body and case.wire == "responses":
        assert (body["type"], body["message"], body["code"]) == ("error", told, code)


def is_end(event: Any) -> bool:
    return event == "[DONE]" or event.get("type") in ("message_stop", "response.completed")


def delta(event: Any) -> str:
    if "choices" in event:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if event["type"] == "content_block_delta":
        return str(event["delta"]["text"])
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


def said(body: Any, wire: str) -> str:
    if wire == "chat":
        return str(body["choices"][0]["message"]["content"])
    if wire == "messages":
        return str(body["content"][0]["text"])
    return str(body["output"][0]["content"][0]["text"])
