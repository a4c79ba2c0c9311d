"""The one path: what is refused where, what is sent once, and the one record that each request leaves."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from admission.core import TierAdmission
from routing.access import Principal
from routing.config import RouterConfig, parse_config
from routing.dialects import DIALECTS
from routing.gateway import Caller, Gateway, Overtaken, Refused, Reply
from routing.passage import Observation
from routing.probes import AvailabilityResult, RuntimeModelMetadata
from routing.records import DecisionRecord
from routing.relay import BlockingDriver, Dispatch, StopSignal
from routing.router import admission_scope
from routing.upstream import ConnectionPool
from tests.unit.routing.exchange_kit import WHOLE, http
from tests.unit.routing.relay_kit import HOST, PATIENCE, Upstream, hang_up, is_closed, reset, tcp_pair

CHAT = DIALECTS["/v1/chat/completions"]
DIGEST = "sha256:" + "0" * 64
CONFIG = f"""
[router]
exhaustion_status = 529
connect_timeout = 2.0
first_byte_timeout = 30.0
relay_timeout = 20.0
[router.model_routes]
"llm.direct" = "direct"
"llm.robin" = "robin"
"llm.dynamic" = "dynamic"
[[router.tiers]]
id = "direct"
base_url = "{{url}}"
context_limit = 128
model = "qwen3-32b"
auth_env = "UPSTREAM_TOKEN"
max_concurrency = 1
max_output_tokens = 100
timeout = 0.2
[[router.tiers]]
id = "dynamic"
base_url = "{{url}}"
context_limit = 1000
metadata_source = "upstream"
[[router.tiers]]
id = "robin"
context_limit = 1000
model = "qwen3-32b"
model_identity = true
tool_support = true
[router.tiers.replica_identity]
model_revision = "r"
engine_version = "e"
image_digest = "{DIGEST}"
config_fingerprint = "{DIGEST}"
"""
MEMBER = """
[[router.tiers.replicas]]
id = "{name}"
base_url = "{url}"
host_id = "h"
resource_id = "{name}"
qualification_ref = "q"
max_concurrency = 1
"""


class Readiness:
    """The availability as the test says."""

    def __init__(self) -> None:
        self.down: set[str | None] = set()
        self.metadata: RuntimeModelMetadata | None = None
        self.marked: list[tuple[str, str | None, str]] = []

    def current(self, tier_id: str, member_id: str | None = None) -> AvailabilityResult:
        if tier_id in self.down:
            return AvailabilityResult(False, "health_http_500")
        metadata = self.metadata if tier_id == "dynamic" else None
        return AvailabilityResult(True, "health_passed", metadata=metadata)

    def readiness(self, tier_id: str) -> dict[str, AvailabilityResult]:
        return {
            name: AvailabilityResult(
                name not in self.down, "health_passed" if name not in self.down else "health_http_500"
            )
            for name in ("member-a", "member-b")
        }

    def mark_unavailable(self, tier_id: str, member_id: str | None, reason: str) -> None:
        self.marked.append((tier_id, member_id, reason))


class Notes:
    """The evidence."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []
        self.observations: list[Observation] = []
        self.refusals: list[tuple[str | None, Refused]] = []
        self.left = 0

    def record(self, record: DecisionRecord, observation: Observation) -> None:
        self.records.append(record)
        self.observations.append(observation)

    def refused(self, tier_id: str | None, reason: Refused, key_name: str | None = None) -> None:
        self.refusals.append((tier_id, reason))

    def leave(self) -> None:
        self.left += 1


class Place:
    """A gateway over two upstreams, and a caller."""

    def __init__(self) -> None:
        self.upstreams = {"member-a": Upstream(), "member-b": Upstream()}
        self.upstream = self.upstreams["member-a"]
        urls = {name: f"http://{HOST}:{each.port}/base/v1" for name, each in self.upstreams.items()}
        members = "".join(MEMBER.format(name=name, url=url) for name, url in urls.items())
        text = CONFIG.replace("{url}", urls["member-a"]) + members
        self.config: RouterConfig = parse_config(text.encode())
        self.ledger = TierAdmission([admission_scope(tier) for tier in self.config.tiers])
        self.readiness = Readiness()
        self.pool = ConnectionPool()
        self.notes = Notes()
        self.stopping = StopSignal()
        self.gateway = Gateway(
            self.config,
            ledger=self.ledger,
            availability=self.readiness,  # type: ignore[arg-type]
            pressure=lambda tier_id: None,
            pool=self.pool,
            evidence=self.notes,
            environ={"UPSTREAM_TOKEN": "s3cret"},
        )
        self.caller, self.served = tcp_pair()

    def ask(self, alias: str, **fields: object) -> Reply | Dispatch | None:
        caller = Caller(
            principal=Principal("ada", frozenset()),
            request_id="r-1",
            run_id="run-1",
            task_id=None,
            arrived=time.monotonic(),
            connection=self.served,
            leave=self.notes.leave,
            stopping=self.stopping,
        )
        body = {"model": alias, "messages": [{"role": "user", "content": "hi"}], **fields}
        return self.gateway.handle(CHAT, json.dumps(body).encode(), caller)

    def dispatched(self, alias: str, **fields: object) -> Dispatch:
        dispatch = self.ask(alias, **fields)
        assert isinstance(dispatch, Dispatch), dispatch
        return dispatch

    def refused(self, alias: str, **fields: object) -> Reply:
        reply = self.ask(alias, **fields)
        assert isinstance(reply, Reply), reply
        return reply

    def active(self) -> int:
        return sum(snapshot.active_requests for snapshot in self.ledger.snapshots())

    @property
    def record(self) -> DecisionRecord:
        (record,) = self.notes.records
        assert len(self.notes.observations) == 1
        return record

    def close(self) -> None:
        self.pool.close()
        for sock in (self.caller, self.served):
            hang_up(sock)
        for upstream in self.upstreams.values():
            upstream.close()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def read_request(peer: socket.socket) -> tuple[list[str], dict[str, Any]]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += peer.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    (length,) = (int(line[16:]) for line in lines if line.startswith("Content-Length: "))
    while len(body) < length:
        body += peer.recv(65_536)
    return lines, json.loads(body)


def run(place: Place, dispatch: Dispatch) -> bytes:
    driver = BlockingDriver(dispatch, place.served)
    body = driver.run_to_head() + driver.run_to_end()
    dispatch.finish()
    dispatch.close()
    return body


def code_of(reply: Reply) -> str:
    code: str = json.loads(reply.body)["error"]["code"]
    return code


# What is sent


@pytest.mark.requirement("contract 2", "Q-T008", "Q-R009")
def test_a_request_is_sent_once_to_its_tier_and_leaves_one_record(place: Place) -> None:
    dispatch = place.dispatched(" LLM.Direct ", temperature=0.5, unknown={"kept": [1]})
    peer = place.upstream.accept()
    lines, sent = read_request(peer)

    assert lines[0] == "POST /base/v1/chat/completions HTTP/1.1"
    assert lines[1:-1] == [
        f"Host: {HOST}:{place.upstream.port}",
        "User-Agent: anvil",
        "Accept: */*",
        "Accept-Encoding: identity",
        "Authorization: Bearer s3cret",
        "Content-Type: application/json",
    ]
    assert (sent["model"], sent["temperature"], sent["unknown"]) == ("qwen3-32b", 0.5, {"kept": [1]})
    assert place.active() == 1
    assert place.notes.records == []
    peer.sendall(http(WHOLE))
    body = run(place, dispatch)

    # An alias goes out as the caller wrote it.
    assert b"LLM.Direct" in body
    assert (place.active(), place.notes.left) == (0, 1)
    record = place.record
    assert (record.route, record.requested_tier, record.served_tier) == ("llm.direct", "direct", "direct")
    assert (record.request_id, record.workbench_run_id, record.task_id) == ("r-1", "run-1", None)
    (attempt,) = record.attempts
    assert (attempt.outcome, attempt.succeeded, attempt.reason) == ("served", True, "served_output_clamped")
    assert record.response_bytes == len(body)
    assert (record.replica_member_id, record.replica_selection) == (None, None)


@pytest.mark.requirement("Q-R008", "Q-A001", "Q-R012")
def test_members_take_turns_and_are_named(place: Place) -> None:
    served = []
    for _ in range(2):
        dispatch = place.dispatched("llm.robin")
        name = dict(dispatch.headers)["X-Anvil-Member"]
        peer = place.upstreams[name].accept()
        read_request(peer)
        peer.sendall(http(WHOLE))
        run(place, dispatch)
        served.append(name)

    assert served == ["member-a", "member-b"]
    assert [record.replica_member_id for record in place.notes.records] == served
    assert {record.replica_selection for record in place.notes.records} == {"identity_passed"}


@pytest.mark.requirement("contract 2")
@pytest.mark.parametrize(
    ("asked", "sent", "told"),
    [
        (500, 100, {"X-Anvil-Max-Tokens-Requested": "500", "X-Anvil-Max-Tokens-Effective": "100"}),
        (None, 100, {"X-Anvil-Max-Tokens-Effective": "100"}),
        (50, 50, {}),
    ],
)
def test_the_output_cap_is_applied_and_told(
    place: Place, asked: int | None, sent: int, told: Mapping[str, str]
) -> None:
    dispatch = place.dispatched("llm.direct", **({} if asked is None else {"max_tokens": asked}))
    _, body = read_request(place.upstream.accept())

    assert body["max_tokens"] == sent
    headers = dict(dispatch.headers)
    assert {name: value for name, value in headers.items() if "Max-Tokens" in name} == told
    assert headers.get("Warning") == ('299 anvil "output limited to 100 tokens"' if told else None)
    dispatch.close()


def test_an_upstream_that_names_its_own_model_is_asked_for_that(place: Place) -> None:
    # Nothing is known of it yet.
    assert place.refused("llm.dynamic").status == 529
    assert place.notes.records.pop().attempts[0].reason == "unavailable"
    place.readiness.metadata = RuntimeModelMetadata(served_model="found", max_model_len=8)

    dispatch = place.dispatched("llm.dynamic")
    _, sent = read_request(place.upstream.accept())
    assert sent["model"] == "found"
    dispatch.close()
    # And its own limit is the gate.
    long = [{"role": "user", "content": "x" * 1000}]
    assert (place.refused("llm.dynamic", messages=long).status, place.notes.refusals[-1]) == (
        413,
        ("dynamic", Refused.OVER_CONTEXT),
    )


# What is refused, and where


@pytest.mark.requirement("contract 2", "Q-R001", "case-29")
def test_an_unknown_alias_is_counted_and_not_recorded(place: Place) -> None:
    for alias in ("nobody", "direct", "qwen3-32b"):
        reply = place.refused(alias)
        assert (reply.status, code_of(reply)) == (404, "model_not_found")

    assert place.notes.records == []
    assert place.notes.refusals == [(None, Refused.UNKNOWN_MODEL)] * 3


@pytest.mark.requirement("case-28")
def test_what_is_no_request_is_neither_counted_nor_recorded(place: Place) -> None:
    caller = Caller(
        principal=Principal("ada", frozenset()),
        request_id="r",
        run_id=None,
        task_id=None,
        arrived=0.0,
        connection=None,
        leave=place.notes.leave,
    )
    reply = place.gateway.handle(CHAT, b"{", caller)

    assert isinstance(reply, Reply)
    assert reply.status == 400
    assert (place.notes.records, place.notes.refusals) == ([], [])


@pytest.mark.requirement("Q-R009", "Q-R010", "C-R003", "contract 2")
@pytest.mark.parametrize(
    ("alias", "fields", "status", "word", "reason"),
    [
        (
            "llm.direct",
            {"messages": [{"role": "user", "content": "x" * 2000}]},
            413,
            Refused.OVER_CONTEXT,
            "over_context",
        ),
        (
            "llm.direct",
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            400,
            Refused.TOOLS,
            "tools_unsupported",
        ),
        (
            "llm.robin",
            {"messages": [{"role": "user", "content": "x" * 10_000}]},
            413,
            Refused.OVER_CONTEXT,
            None,
        ),
    ],
)
def test_gates_refuse_before_anything_is_reserved(
    place: Place, alias: str, fields: dict[str, object], status: int, word: Refused, reason: str | None
) -> None:
    """Even a tier that is not ready says what is wrong with the request."""
    place.readiness.down = {"direct", "member-a", "member-b"}
    reply = place.refused(alias, **fields)

    assert reply.status == status
    assert "Retry-After" not in dict(reply.headers)
    assert place.notes.refusals == [(place.record.requested_tier, word)]
    if reason is None:
        assert (place.record.attempts, place.record.replica_selection) == ((), "request_rejected")
    else:
        (attempt,) = place.record.attempts
        assert (attempt.outcome, attempt.reason) == ("skipped", reason)


@pytest.mark.requirement("contract 2", "Q-A003")
@pytest.mark.parametrize("why", ["not ready", "quiesced", "full"])
@pytest.mark.parametrize("alias", ["llm.direct", "llm.robin"])
def test_unavailability_is_one_fixed_answer_however_it_came(place: Place, alias: str, why: str) -> None:
    tier = alias.removeprefix("llm.")
    held = []
    if why == "not ready":
        place.readiness.down = {"direct", "member-a", "member-b"}
    elif why == "quiesced":
        place.ledger.quiesce(tier)
    else:
        held = [place.dispatched(alias) for _ in range(1 if tier == "direct" else 2)]
    reply = place.refused(alias)

    # The status is the configuration's.
    assert (reply.status, dict(reply.headers)["Retry-After"]) == (529, "1")
    assert code_of(reply) == "model_unavailable"
    assert "x-should-retry" not in dict(reply.headers)
    assert place.notes.refusals == [(tier, Refused.UNAVAILABLE)]
    if tier == "direct":
        (attempt,) = place.record.attempts
        assert (attempt.outcome, attempt.reason) == (
            "skipped",
            "quiesced" if why == "quiesced" else "unavailable",
        )
    else:
        assert (place.record.attempts, place.record.replica_selection) == ((), "not_admitted")
    for dispatch in held:
        dispatch.close()


@pytest.mark.requirement("Q-A003")
def test_a_member_that_is_out_is_passed_over_without_a_reservation(place: Place) -> None:
    place.readiness.down = {"member-a"}
    for _ in range(2):
        dispatch = place.dispatched("llm.robin")
        assert dict(dispatch.headers)["X-Anvil-Member"] == "member-b"
        dispatch.close()


# Attempts that fail


@pytest.mark.requirement("Q-T008", "contract 2")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("alias", ["llm.direct", "llm.robin"])
def test_a_refused_connection_is_answered_at_once_and_takes_the_member_out(
    place: Place, alias: str, stream: bool
) -> None:
    """Its caller once got the head of this error without its body."""
    for upstream in place.upstreams.values():
        upstream.listener.close()
    reply = place.refused(alias, stream=stream)

    assert (reply.status, code_of(reply)) == (502, "upstream_unreachable")
    headers = dict(reply.headers)
    assert headers["x-should-retry"] == "false"
    assert headers["X-Anvil-Tier"] == alias.removeprefix("llm.")
    assert "Content-Length" not in headers
    member = "member-a" if alias == "llm.robin" else None
    assert headers.get("X-Anvil-Member") == member
    assert place.readiness.marked == [(alias.removeprefix("llm."), member, "health_transport_refused")]
    assert (place.active(), place.notes.left) == (0, 1)
    (attempt,) = place.record.attempts
    assert (attempt.outcome, attempt.reason) == ("error", "backend_error")
    assert place.record.response_bytes == len(reply.body)


@pytest.mark.requirement("contract 2")
def test_a_reset_before_the_first_byte_takes_the_member_out_too(place: Place) -> None:
    dispatch = place.dispatched("llm.robin")
    peer = place.upstream.accept()
    read_request(peer)
    reset(peer)
    run(place, dispatch)

    assert place.readiness.marked == [("robin", "member-a", "health_transport_reset")]
    assert place.record.attempts[0].reason == "backend_error"


def test_an_error_that_came_through_takes_nobody_out(place: Place) -> None:
    dispatch = place.dispatched("llm.robin")
    peer = place.upstream.accept()
    read_request(peer)
    peer.sendall(http(b"{}", status=500))
    run(place, dispatch)

    assert place.readiness.marked == []


def test_an_upstream_that_answers_before_it_has_read_everything_is_heard(place: Place) -> None:
    """It says 413 and hangs up: the caller is told that, not that the server could not be reached."""
    with_much = [{"role": "user", "content": [{"type": "text", "text": "hi"}], "padding": "x" * (16 << 20)}]
    listener = place.upstream.listener

    def answer_early() -> None:
        peer, _ = listener.accept()
        peer.settimeout(PATIENCE)
        peer.recv(1024)
        peer.sendall(http(b'{"error":{"message":"too much for me"}}', status=413))
        peer.close()

    thread = threading.Thread(target=answer_early)
    thread.start()
    dispatch = place.dispatched("llm.robin", messages=with_much)
    body = run(place, dispatch)
    thread.join(PATIENCE)

    assert dispatch.head is not None
    assert dispatch.head.status == 413
    assert b"too much for me" in body
    assert place.readiness.marked == []


def test_an_upstream_that_answers_and_reads_no_further_is_heard_and_its_connection_not_used_again(
    place: Place,
) -> None:
    """It says 413 and keeps the connection, in which half a request stands: the next would end that one."""
    padded = [{"role": "user", "content": "hi", "padding": "x" * (32 << 20)}]
    peers: list[socket.socket] = []

    def answer_early() -> None:
        peer = place.upstream.accept()
        peers.append(peer)
        peer.recv(1024)
        peer.sendall(http(b'{"error":{"message":"too much for me"}}', status=413))

    thread = threading.Thread(target=answer_early)
    thread.start()
    dispatch = place.dispatched("llm.direct", messages=padded)
    body = run(place, dispatch)
    thread.join(PATIENCE)

    assert dispatch.head is not None
    assert dispatch.head.status == 413
    assert b"too much for me" in body
    assert is_closed_after_all(peers[0])
    assert place.active() == 0


def test_an_upstream_that_takes_nothing_is_a_504(place: Place) -> None:
    padded = [{"role": "user", "content": "hi", "padding": "x" * (32 << 20)}]
    reply = place.refused("llm.direct", messages=padded)

    assert (reply.status, code_of(reply)) == (504, "upstream_timeout")
    assert is_closed_after_all(place.upstream.accept())
    assert place.active() == 0


def is_closed_after_all(peer: socket.socket) -> bool:
    try:
        while peer.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.requirement("house-4", "Q-T009")
def test_a_caller_that_leaves_while_its_request_is_sent_needs_no_answer(place: Place) -> None:
    place.caller.close()
    padded = [{"role": "user", "content": "hi", "padding": "x" * (32 << 20)}]

    assert place.ask("llm.robin", messages=padded) is None
    assert (place.active(), place.notes.left) == (0, 1)
    (attempt,) = place.record.attempts
    assert attempt.reason == "client_disconnected"
    assert is_closed_after_all(place.upstream.accept())


@pytest.mark.requirement("house-3")
def test_a_fault_of_our_own_keeps_no_lease(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **more: object) -> None:
        raise RuntimeError("inside")

    monkeypatch.setattr(place.pool, "acquire", broken)
    with pytest.raises(RuntimeError, match="inside"):
        place.ask("llm.robin")

    assert (place.active(), place.notes.left) == (0, 1)


# Waiting and swaps


@pytest.mark.requirement("contract 3", "house-4")
def test_who_waits_for_a_place_stops_when_its_caller_leaves(place: Place) -> None:
    """It used to be recorded as a tier that was unavailable."""
    held = place.dispatched("llm.direct")
    place.caller.close()

    assert place.ask("llm.direct") is None
    assert place.active() == 1
    assert place.notes.refusals == []
    record = place.record
    (attempt,) = record.attempts
    assert (attempt.outcome, attempt.reason) == ("error", "client_disconnected")
    assert (record.requested_tier, record.served_tier, record.response_bytes) == ("direct", None, 0)
    (observation,) = place.notes.observations
    assert (observation.outcome, observation.overhead_seconds) == ("error", None)
    held.close()


@pytest.mark.requirement("house-5")
def test_a_process_that_ends_gives_no_place_to_who_waits(place: Place) -> None:
    place.stopping.set()

    assert place.refused("llm.direct").status == 529
    assert place.active() == 0


def test_a_lease_of_the_next_configuration_is_given_back(place: Place) -> None:
    place.gateway.overtaken = frozenset({"robin"})
    with pytest.raises(Overtaken):
        place.ask("llm.robin")

    assert place.active() == 0
    assert place.notes.records == []


@pytest.mark.requirement("Q-T009", "C-R010")
def test_readiness_that_is_lost_after_dispatch_changes_nothing_for_it(place: Place) -> None:
    dispatch = place.dispatched("llm.robin")
    peer = place.upstream.accept()
    read_request(peer)
    place.readiness.down = {"member-a", "member-b"}
    assert place.refused("llm.robin").status == 529

    peer.sendall(http(WHOLE))
    run(place, dispatch)
    assert place.notes.records[-1].attempts[0].reason == "served"
    assert is_still_open(peer)


def is_still_open(peer: socket.socket) -> bool:
    """It is in the pool now, for the next request."""
    peer.setblocking(False)
    try:
        return bool(peer.recv(1))
    except BlockingIOError:
        return True


def test_closing_after_the_end_of_an_exchange_closes_its_connection(place: Place) -> None:
    dispatch = place.dispatched("llm.robin")
    peer = place.upstream.accept()
    read_request(peer)
    dispatch.close()

    assert is_closed(peer)
    assert place.record.attempts[0].reason == "client_disconnected"
