"""One workload over everything at once: distribution, ceilings, drains, freshness, errors and evidence.

The router is the real one, with its ledger, probes, pressure cache, gateway and decision log. Engines are
loopback sockets that the test serves itself, so a request is at work from when the test asks for it until the
test answers it; probes, metrics pages and the cache's clock are the test's own. Nothing sleeps.
"""

import contextlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from admission.replica_scheduler import ReplicaDecision
from routing import publishing, transitions
from routing.access import ANONYMOUS
from routing.audit import Through
from routing.config import Tier
from routing.dialects import DIALECTS
from routing.dialects.base import JSON
from routing.exchange import Fault
from routing.gateway import Caller, Reply
from routing.models import RouterSnapshot
from routing.records import DecisionRecord
from routing.relay import BlockingDriver, Dispatch, StreamBody
from routing.router import PressureSource, Router, bind
from telemetry.decisions import DecisionLog, summarize_decisions
from telemetry.engine_metrics import MetricsSnapshot, MetricsStatus
from telemetry.evidence import ProcessEvidence
from telemetry.pressure import ReplicaPressureCache
from tests.unit.routing.availability_support import Clock, Script, models
from tests.unit.routing.relay_kit import HOST, PATIENCE, Upstream, hang_up, is_closed, reset
from tests.unit.routing.wires_kit import CHAT_SAMPLE, PAIRS, Pair
from tests.web.publishing_support import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("C-T012", "C-A008", "C-A001", "C-A002", "C-A003", "C-A005", "C-A006", "F-T003"),
]

CEILINGS = {"member-a": 2, "member-b": 3, "member-c": 2}
AGGREGATE = 6
"""Of the tier: one less than its members' together, so that both bounds can be met."""

PROMPT = "a-prompt-that-nobody-may-see"
MODEL = "qwen3-32b"
ENDPOINTS = {
    "/v1/chat/completions": PAIRS["chat from chat"],
    "/v1/responses": PAIRS["responses from chat"],
    "/v1/messages": PAIRS["messages from chat"],
}
PURPOSES: dict[str, tuple[dict[str, Any], bytes]] = {
    "/v1/embeddings": ({"model": "embedder", "input": PROMPT}, b'{"object":"list","data":[]}'),
    "/v1/rerank": ({"model": "sorter", "query": PROMPT, "documents": ["d"]}, b'{"results":[]}'),
    "/v1/audio/speech": ({"model": "speaker", "input": PROMPT, "voice": "v"}, b"RIFF"),
    "/v1/audio/transcriptions": ({"model": "listener", "file": PROMPT}, b'{"text":"t"}'),
}


def http(body: bytes, *, status: int = 200, content_type: str = JSON, length: int | None = None) -> bytes:
    """A whole answer whose connection is of no more use."""
    return (
        f"HTTP/1.1 {status} Whatever\r\nContent-Type: {content_type}\r\nConnection: close\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    ).encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Form:
    """In what form the workload asks: its endpoint, and whether for a stream."""

    path: str
    stream: bool

    @property
    def pair(self) -> Pair:
        return ENDPOINTS[self.path]

    def body(self, alias: str = "llm.chat") -> bytes:
        document = json.loads(self.pair.request(model=alias, stream=self.stream))
        document["input" if self.path == "/v1/responses" else "messages"] = (
            PROMPT if self.path == "/v1/responses" else [{"role": "user", "content": PROMPT}]
        )
        return json.dumps(document).encode()

    @property
    def begun(self) -> bytes:
        """What an engine sends while it is still at work."""
        return STREAM_HEAD + CHAT_SAMPLE.first if self.stream else http(b"", length=len(CHAT_SAMPLE.whole))

    @property
    def rest(self) -> bytes:
        return CHAT_SAMPLE.middle + CHAT_SAMPLE.end if self.stream else CHAT_SAMPLE.whole


class Engine:
    """One place that requests may come to."""

    def __init__(self) -> None:
        self.upstream = Upstream(backlog=64)
        self.url = f"http://{HOST}:{self.upstream.port}/v1"
        self.arrived = 0

    def take(self) -> Any:
        """The next request's connection, its request read whole."""
        connection = self.upstream.accept()
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65_536)
        head, _, body = data.partition(b"\r\n\r\n")
        (length,) = [
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        ]
        while len(body) < length:
            body += connection.recv(65_536)
        assert PROMPT.encode() in body
        self.arrived += 1
        return connection

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits to be taken."""
        self.upstream.listener.setblocking(False)
        try:
            self.upstream.accept()
        except BlockingIOError:
            return True
        finally:
            self.upstream.listener.settimeout(PATIENCE)
        return False


class Workload:
    """A router, its engines, and requests whose every move the test makes."""

    def __init__(self, strategy: str, form: Form, stack: contextlib.ExitStack) -> None:
        self.strategy, self.form = strategy, form
        self.engines = {name: Engine() for name in (*CEILINGS, "solo", "purposes")}
        for engine in self.engines.values():
            stack.callback(engine.upstream.close)
        self.probes = Script(**{HOST: models(MODEL)})
        self.answers = dict.fromkeys(CEILINGS, models(MODEL))
        self.clock = Clock()
        self.metrics: dict[str, MetricsSnapshot] = {}
        self.log = DecisionLog()
        self.asked: list[str] = []
        self.caches: list[ReplicaPressureCache] = []
        config, topology = self._documents()
        self.snapshot, _ = publishing.capture(
            config.encode(), topology.encode(), None, source=RouterSnapshot.Source.REST, actor="ada"
        )
        self.router = self.start()
        stack.callback(bind, None)
        stack.callback(lambda: self.router.close())

    def start(self) -> Router:
        """A process that starts: nothing in memory, and the stored intents held before anything opens."""
        evidence = ProcessEvidence(self.log)
        router = Router(
            evidence=evidence, pressure_factory=self._cache, environ={}, probe_transport=self._probe
        )
        bind(router)
        router.owns_ledger = True
        transitions.install(router, publishing.load(self.snapshot), snapshot_id=self.snapshot.pk)
        assert router.availability.first_round_done.wait(PATIENCE)
        return router

    def restart(self) -> None:
        self.router.close()
        self.router = self.start()

    def _cache(self, tiers: tuple[Tier, ...], previous: PressureSource | None) -> ReplicaPressureCache:
        return ReplicaPressureCache(tiers, metrics_provider=self._metrics, monotonic=self.clock)

    def _metrics(self, view: Tier) -> MetricsSnapshot:
        return self.metrics.get(self._name_of(view.base_url), MetricsSnapshot(status=MetricsStatus.OK))

    def _probe(self, url: str, **options: Any) -> tuple[int, bytes]:
        name = self._name_of(url)
        self.probes.answers[HOST] = self.answers.get(name, models(MODEL))
        self.probed.append(name)
        return self.probes(url, **options)

    def _name_of(self, url: str) -> str:
        (name,) = [name for name, engine in self.engines.items() if url.startswith(engine.url)]
        return name

    def _documents(self) -> tuple[str, str]:
        self.probed: list[str] = []
        members = "".join(
            f"""
[[router.tiers.replicas]]
id = "{name}"
base_url = "{self.engines[name].url}"
host_id = "gpu-host"
resource_id = "{name}"
qualification_ref = "bench:run-1"
max_concurrency = {ceiling}
"""
            for name, ceiling in CEILINGS.items()
        )
        at = self.engines["purposes"].url
        config = f"""
[router]
availability_probe_interval = 3600.0
connect_timeout = 5.0
[router.model_routes]
"llm.chat" = "chat"
"llm.solo" = "solo"

[[router.tiers]]
id = "chat"
context_limit = 32768
model = "{MODEL}"
model_identity = true
replica_strategy = "{self.strategy}"
max_concurrency = {AGGREGATE}
[router.tiers.replica_identity]
model_revision = "a1b2c3"
engine_version = "0.11.0"
image_digest = "sha256:{"1" * 64}"
config_fingerprint = "sha256:{"2" * 64}"
{members}
[[router.tiers]]
id = "solo"
base_url = "{self.engines["solo"].url}"
context_limit = 32768
model = "{MODEL}"
model_identity = true

[[router.purpose_models]]
id = "embed"
kind = "embedding"
model = "embedder"
base_url = "{at}"
[[router.purpose_models]]
id = "sort"
kind = "rerank"
model = "sorter"
base_url = "{at}"
[[router.audio_routes]]
id = "hear"
purpose = "stt"
model = "listener"
base_url = "{at}"
[[router.audio_routes]]
id = "speak"
purpose = "tts"
model = "speaker"
base_url = "{at}"
"""
        resources = "".join(
            f'[[resources]]\nid = "{name}"\nhost = "gpu-host"\nrole = "llm"\nendpoint = "{engine.url}"\n'
            for name, engine in self.engines.items()
            if name in CEILINGS
        )
        hosts = 'schema_version = 1\nid = "tests"\n[[hosts]]\nid = "gpu-host"\nroles = ["gpu"]\n'
        return config, hosts + resources

    # Asking and answering

    def ask(self, alias: str = "llm.chat") -> Reply | Dispatch:
        self.asked.append(alias)
        return self.send(self.form.path, self.form.body(alias))

    def send(self, path: str, body: bytes, content_type: str = JSON) -> Reply | Dispatch:
        caller = Caller(
            principal=ANONYMOUS,
            request_id="r-1",
            run_id=None,
            task_id=None,
            arrived=0.0,
            connection=None,
            leave=lambda: None,
        )
        found = self.router.handle(DIALECTS[path], body, caller, content_type=content_type)
        assert found is not None
        return found

    def admitted(self, alias: str = "llm.chat") -> tuple[Dispatch, str, Any]:
        """A request that is at work: its dispatch, the engine that has it, and the connection to there."""
        dispatch = self.ask(alias)
        assert isinstance(dispatch, Dispatch)
        name = dict(dispatch.headers).get("X-Anvil-Member", "solo")
        return dispatch, name, self.engines[name].take()

    def refused(self, alias: str = "llm.chat") -> None:
        """A request that nobody gets."""
        reply = self.ask(alias)
        assert isinstance(reply, Reply)
        assert (reply.status, dict(reply.headers)["Retry-After"]) == (503, "1")
        record = self.log.records(1)[0]
        if alias == "llm.chat":
            assert (record.replica_member_id, record.replica_selection) == (None, "not_admitted")
            assert record.attempts == ()

    def answer(self, dispatch: Dispatch, connection: Any) -> bytes:
        """Let the engine answer from the beginning; what the caller gets."""
        connection.sendall(self.form.begun)
        return self.finish(dispatch, connection)

    def finish(self, dispatch: Dispatch, connection: Any) -> bytes:
        """Let an engine that has begun come to its end."""
        connection.sendall(self.form.rest)
        hang_up(connection)
        body = BlockingDriver(dispatch, None).run_to_end()
        dispatch.finish()
        dispatch.close()
        return body

    def begin(self, dispatch: Dispatch, connection: Any) -> None:
        """Let the engine begin, and the caller see it where the answer comes in parts."""
        connection.sendall(self.form.begun)
        if self.form.stream:
            BlockingDriver(dispatch, None).run_to_head()

    def serve(self, alias: str = "llm.chat") -> str:
        """One request from beginning to end; who served it."""
        dispatch, name, connection = self.admitted(alias)
        body = self.answer(dispatch, connection)
        assert b"Hi" in body
        assert dispatch.exchange.outcome is not None
        assert dispatch.exchange.outcome.reason == "served"
        return name

    # Looking

    @property
    def counts(self) -> dict[str, int]:
        """Running requests of the members, which the tier's must be the sum of."""
        reading = self.router.ledger.snapshot("chat")
        counts = dict(reading.member_active_requests)
        assert reading.active_requests == sum(counts.values())
        assert all(counts[name] <= ceiling for name, ceiling in CEILINGS.items())
        assert reading.active_requests <= AGGREGATE
        return counts

    @property
    def at_rest(self) -> bool:
        return not any(self.counts.values()) and self.router.ledger.snapshot("solo").active_requests == 0

    def measure(self, **fractions: float | None) -> None:
        """Have all metrics read anew: each member's KV cache fraction, or None for a page without it."""
        self.metrics = {
            f"member-{name}": MetricsSnapshot(status=MetricsStatus.OK, kv_cache_usage_fraction=fraction)
            for name, fraction in fractions.items()
        }
        self.clock.advance(2.0)
        source = self.router.pressure
        assert source is not None
        source.snapshot("chat")
        wanted = {
            f"member-{name}": "unknown" if fraction is None else "fresh"
            for name, fraction in fractions.items()
        }
        cache: Any = source
        eventually(
            lambda: (
                {name: value.freshness.value for name, value in cache.peek("chat").items()} == wanted
                and all(age == 0.0 for age in cache.ages("chat").values())
            )
        )

    def quiesce(self, *scope: str) -> None:
        transitions.quiesce(self.router, *scope, reason="upgrade", actor="bob", through=Through.REST)

    def readmit(self, *scope: str) -> str:
        """The reason of what comes of it."""
        try:
            done = transitions.readmit(self.router, *scope, actor="bob", through=Through.REST)
        except transitions.TransitionError as error:
            result: Any = error.extra["result"]
            return str(result["reason"])
        return str(done["reason"])

    def state(self, member: str | None = None) -> tuple[str, str | None]:
        reading: Any = self.router.ledger.snapshot("chat")
        if member is not None:
            (reading,) = (one for one in reading.members if one.member_id == member)
        return reading.state, reading.reason


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


# --- The workload, part by part ---------------------------------------------------------------------------


def distribution(work: Workload) -> None:
    """Each in its turn while all are equal; in capacity mode, then, by local load, unknown and pressure."""
    assert [work.serve() for _ in range(4)] == ["member-a", "member-b", "member-c", "member-a"]
    if work.strategy == "round_robin":
        held = [work.admitted() for _ in range(2)]
        assert [name for _, name, _ in held] == ["member-b", "member-c"]
        for dispatch, _, connection in held:
            work.answer(dispatch, connection)
        return
    # Unknown does not beat a fresh zero at equal load, whoever's turn it is.
    work.measure(a=None, b=None, c=0.0)
    assert [work.serve() for _ in range(2)] == ["member-c", "member-c"]
    # Lower local load wins, though its pressure is unknown.
    dispatch, name, connection = work.admitted()
    assert name == "member-c"
    assert work.serve() in ("member-a", "member-b")
    # A third of member-b's places is less than half of the others'.
    work.measure(a=0.0, b=0.9, c=0.0)
    others = [work.admitted() for _ in range(3)]
    assert [name for _, name, _ in others] == ["member-a", "member-b", "member-b"]
    for each, _, peer in [*others, (dispatch, "", connection)]:
        work.answer(each, peer)
    # At equal load the lower pressure, and equal pressure by turns.
    work.measure(a=0.5, b=0.25, c=0.5)
    assert work.serve() == "member-b"
    work.measure(a=0.1, b=0.25, c=0.1)
    assert sorted(work.serve() for _ in range(2)) == ["member-a", "member-c"]
    # What is old is unknown: the last good reading of an engine that stopped reporting wins nothing.
    work.measure(a=0.0, b=0.5, c=0.5)
    assert work.serve() == "member-a"
    work.metrics = {}
    work.clock.advance(5.1)
    assert sorted(work.serve() for _ in range(3)) == ["member-a", "member-b", "member-c"]


def ceilings(work: Workload) -> None:
    """Twenty at once, of which exactly so many come in as there are places; then as many again."""
    for _ in range(2):
        barrier = threading.Barrier(20)
        found: list[Reply | Dispatch] = []

        def attempt(barrier: threading.Barrier = barrier, found: list[Reply | Dispatch] = found) -> None:
            barrier.wait(PATIENCE)
            found.append(work.ask())

        threads = [threading.Thread(target=attempt) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        dispatches = [one for one in found if isinstance(one, Dispatch)]
        assert (len(found), len(dispatches)) == (20, AGGREGATE)
        by_member = Counter(dict(one.headers)["X-Anvil-Member"] for one in dispatches)
        assert work.counts == dict(by_member)
        assert {one.status for one in found if isinstance(one, Reply)} == {503}
        peers = {
            peer.getpeername(): peer
            for name, count in by_member.items()
            for peer in (work.engines[name].take() for _ in range(count))
        }
        for dispatch in dispatches:
            assert dispatch.connection is not None
            work.answer(dispatch, peers[_local_address(dispatch)])
        assert work.at_rest


def _local_address(dispatch: Dispatch) -> Any:
    assert dispatch.connection is not None
    with socket.socket(fileno=os.dup(dispatch.connection.fileno())) as twin:
        return twin.getsockname()


def drains(work: Workload) -> None:
    """A member's and a tier's, independent, and neither cancels anything."""
    dispatch, name, connection = work.admitted()
    work.begin(dispatch, connection)
    work.quiesce("chat", name)
    drain = transitions.drain(work.router, "chat", name, timeout=PATIENCE, actor="bob", through=Through.REST)
    assert not drain.wait(0.0)
    others = sorted(set(CEILINGS) - {name})
    assert {work.serve() for _ in range(4)} == set(others)
    assert work.state() == ("admitting", None)

    # The tier on top of it: nobody comes in, both running requests go on.
    second, other, peer = work.admitted()
    work.begin(second, peer)
    work.quiesce("chat")
    work.refused()
    assert work.serve("llm.solo") == "solo"
    whole = transitions.drain(work.router, "chat", timeout=PATIENCE, actor="bob", through=Through.REST)
    assert b"Hi" in work.finish(dispatch, connection)
    assert drain.wait(PATIENCE)
    assert drain.outcome == "drained"
    assert not whole.wait(0.0)
    assert b"Hi" in work.finish(second, peer)
    assert whole.wait(PATIENCE)
    assert whole.outcome == "drained"

    # A restart restores both, each for itself.
    work.restart()
    assert work.state() == ("quiesced", "upgrade")
    assert work.state(name) == ("quiesced", "upgrade")
    assert work.state(other) == ("admitting", None)
    work.refused()

    # The tier's readmit asks the members that may serve, and does not open the one that may not.
    work.probed.clear()
    assert work.readmit("chat") == "readiness_passed"
    assert sorted(set(work.probed)) == others
    assert {work.serve() for _ in range(4)} == set(others)
    assert work.state(name) == ("quiesced", "upgrade")

    # The member's asks it alone, and exact identity decides.
    work.answers[name] = models("another-model")
    work.probed.clear()
    assert work.readmit("chat", name) == "identity_mismatch"
    assert set(work.probed) == {name}
    assert work.state(name) == ("quiesced", "upgrade")
    work.answers[name] = models(MODEL)
    assert work.readmit("chat", name) == "readiness_passed"
    assert {work.serve() for _ in range(3)} == set(CEILINGS)


def purposes(work: Workload) -> None:
    """Routes without members are none of the tier's business: one attempt each while it is quiesced."""
    work.quiesce("chat")
    engine = work.engines["purposes"]
    for path, (fields, answer) in PURPOSES.items():
        body, content_type = json.dumps(fields).encode(), JSON
        if path.endswith("transcriptions"):
            parts = "".join(
                f'--x\r\nContent-Disposition: form-data; name="{name}"'
                f"{'; filename=' + chr(34) + 'a.wav' + chr(34) if name == 'file' else ''}\r\n\r\n{value}\r\n"
                for name, value in fields.items()
            )
            body, content_type = f"{parts}--x--\r\n".encode(), "multipart/form-data; boundary=x"
        dispatch = work.send(path, body, content_type)
        assert isinstance(dispatch, Dispatch), (path, dispatch)
        connection = engine.take()
        is_speech = path.endswith("speech")
        connection.sendall(http(answer, content_type="audio/wav" if is_speech else JSON))
        assert BlockingDriver(dispatch, None).run_to_end() == answer
        dispatch.close()
        hang_up(connection)
        record = work.log.records(1)[0]
        assert [attempt.reason for attempt in record.attempts] == ["served"]
        assert record.replica_member_id is None
    assert engine.is_idle
    assert work.readmit("chat") == "readiness_passed"


Ending = Callable[[Workload, Dispatch, Any], None]


def _http_error(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    connection.sendall(http(b'{"error":{"message":"at http://10.0.0.7/secret"}}', status=500))
    BlockingDriver(dispatch, None).run_to_end()
    assert dispatch.head is not None
    assert dispatch.head.status == 502


def _reset(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    reset(connection)
    BlockingDriver(dispatch, None).run_to_end()
    assert dispatch.head is not None
    assert dispatch.head.status == 502


def _silence(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    dispatch.on_timeout()
    assert dispatch.head is not None
    assert dispatch.head.status == 504


def _malformed(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    begun, broken = (
        (STREAM_HEAD + CHAT_SAMPLE.first, b"data: {\n\n") if work.form.stream else (b"", http(b"{"))
    )
    connection.sendall(begun + broken)
    body = BlockingDriver(dispatch, None).run_to_end()
    assert work.form.pair.errors(body, stream=work.form.stream) == 1
    assert work.form.pair.ends(body) == 0


def _cut(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    work.begin(dispatch, connection)
    hang_up(connection)
    BlockingDriver(dispatch, None).run_to_end()


def _caller_gone(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    work.begin(dispatch, connection)
    dispatch.on_caller_gone()
    assert is_closed(connection)


def _closed_before_the_first_iteration(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    closed: list[None] = []
    StreamBody(dispatch, BlockingDriver(dispatch, None), b"", lambda: closed.append(None)).close()
    assert closed == [None]
    assert is_closed(connection)


def _stopping(work: Workload, dispatch: Dispatch, connection: Any) -> None:
    work.begin(dispatch, connection)
    dispatch.fail(Fault.STOPPING)


ENDINGS: tuple[tuple[Ending, str], ...] = (
    (_http_error, "backend_error"),
    (_reset, "backend_error"),
    (_silence, "backend_error"),
    (_malformed, "completion_error"),
    (_cut, "completion_error"),
    (_caller_gone, "client_disconnected"),
    (_closed_before_the_first_iteration, "client_disconnected"),
    (_stopping, "completion_error"),
)


def errors(work: Workload) -> None:
    """Whatever ends a request, it was one attempt at one member, and its place is free again, once."""
    for ending, reason in ENDINGS:
        dispatch, name, connection = work.admitted()
        assert work.counts[name] == 1
        ending(work, dispatch, connection)
        assert work.at_rest, ending
        assert dispatch.lease is not None
        assert dispatch.lease.release() is False
        dispatch.close()
        hang_up(connection)
        record = work.log.records(1)[0]
        assert record.replica_member_id == name
        ((attempt,), served) = (record.attempts, record.served_tier)
        expected = {reason} if work.form.stream else {reason, "backend_error"}
        assert attempt.reason in expected, (ending, attempt)
        assert (attempt.outcome, attempt.succeeded, served) == ("error", False, None)
        assert all(engine.is_idle for engine in work.engines.values()), ending
        for member in CEILINGS:
            assert work.router.availability.probe_now("chat", member).available


def readiness(work: Workload) -> None:
    """A member that can't be reached is one failed attempt, and out from then on; a running stream stays."""
    dispatch, name, connection = work.admitted()
    work.begin(dispatch, connection)
    others = sorted(set(CEILINGS) - {name})
    work.answers[name] = models("another-model")
    work.router.availability.probe_now("chat", name)
    assert {work.serve() for _ in range(4)} == set(others)
    assert b"Hi" in work.finish(dispatch, connection)

    # Nobody listens at one of the two that are left: the first that goes there fails, and it alone.
    gone = work.engines[others[0]].upstream
    work.answers[others[0]] = "refused"
    gone.listener.close()
    found = work.ask()
    if isinstance(found, Dispatch):
        work.answer(found, work.engines[others[1]].take())
        found = work.ask()
    assert isinstance(found, Reply)
    assert found.status == 502
    record = work.log.records(1)[0]
    assert (record.replica_member_id, len(record.attempts)) == (others[0], 1)
    assert [work.serve() for _ in range(3)] == [others[1]] * 3
    work.answers[others[1]] = "refused"
    work.router.availability.probe_now("chat", others[1])
    work.refused()
    assert work.serve("llm.solo") == "solo"
    assert work.at_rest


def evidence(work: Workload) -> None:
    """As many attempts as requests arrived, each by itself; and in none of it what must not be there."""
    records = work.log.records()
    of_tier = [record for record in records if record.requested_tier == "chat"]
    arrived = {name: work.engines[name].arrived for name in CEILINGS}
    selected = Counter(record.replica_member_id for record in of_tier if record.replica_member_id)
    assert len(of_tier) == work.asked.count("llm.chat")
    # One attempt was refused its connection, so nothing of it arrived.
    assert sum(selected.values()) == sum(arrived.values()) + 1
    assert all(selected[name] - arrived[name] in (0, 1) for name in CEILINGS)
    for record in of_tier:
        assert len(record.attempts) == (record.replica_member_id is not None)
        assert record.replica_selection == ("identity_passed" if record.attempts else "not_admitted")
        assert record.kind == work.form.pair.dialect.wire
        _check_decision(work, record)
    text = json.dumps([summarize_decisions(records, 500), list(map(str, records))])
    secrets = (PROMPT, HOST, "http", "secret", "another-model", "Hi", "Traceback", "gpu-host", "bench:run-1")
    assert [secret for secret in secrets if secret in text] == []
    for engine in work.engines.values():
        assert f":{engine.upstream.port}" not in text
    work.router.evidence.settle()  # type: ignore[attr-defined]
    refused = work.router.evidence.refusals()  # type: ignore[attr-defined]
    assert refused["chat", "unavailable"] >= 1


def _check_decision(work: Workload, record: DecisionRecord) -> None:
    """The scheduler's inputs, of admitted requests of a capacity tier alone."""
    decision = record.replica_scheduler
    if work.strategy == "round_robin" or record.replica_member_id is None:
        assert decision is None
        return
    assert isinstance(decision, ReplicaDecision)
    assert (decision.selected_member_id, decision.reason) == (record.replica_member_id, "selected")
    assert decision.scores[0].member_id == record.replica_member_id
    assert decision.eligible_member_ids == tuple(sorted(score.member_id for score in decision.scores))
    for score in decision.scores:
        assert 0 <= score.local_active < score.local_capacity == CEILINGS[score.member_id]
        assert (score.upstream_pressure_ppm is not None) is (score.freshness == "fresh")
        assert score.upstream_unknown is (score.freshness != "fresh")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", list(ENDPOINTS))
@pytest.mark.parametrize("strategy", ["round_robin", "capacity"])
def test_the_workload(strategy: str, path: str, stream: bool, stack: contextlib.ExitStack) -> None:
    work = Workload(strategy, Form(path, stream), stack)
    for part in (distribution, ceilings, drains, purposes, errors, readiness, evidence):
        part(work)
        assert work.at_rest, part
