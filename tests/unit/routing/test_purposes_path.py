"""The way to purpose models and audio routes: the look-up, the one attempt, and its one record."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from routing.access import Principal
from routing.config import RouterConfig, parse_config
from routing.dialects import DIALECTS
from routing.dialects.base import JSON
from routing.exchange import Fault
from routing.passage import Caller, Observation, Refused, Reply, Services
from routing.purposes import Purposes
from routing.records import DecisionRecord, RecordBoundary
from routing.relay import BlockingDriver, Dispatch
from routing.upstream import ConnectionPool
from tests.unit.routing.relay_kit import PATIENCE, Upstream, is_closed, reset, tcp_pair

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

CONFIG = """
[router]
first_byte_timeout = 30.0
relay_timeout = 20.0
connect_timeout = 0.5
[router.model_routes]
"chat" = "tier"
[[router.tiers]]
id = "tier"
base_url = "http://127.0.0.1:1/v1"
context_limit = 100
model = "llm"

[[router.purpose_models]]
id = "embed"
kind = "embedding"
model = "BAAI/bge-m3"
base_url = "{url}"
auth_env = "EMBED_TOKEN"
timeout = 3.0
[[router.purpose_models]]
id = "embed-small"
kind = "embedding"
model = "bge-small"
base_url = "{url}"
[[router.purpose_models]]
id = "sort"
kind = "rerank"
model = "bge-small"
base_url = "{url}"

[[router.audio_routes]]
id = "stt-a"
purpose = "stt"
model = "whisper"
base_url = "{url}"
[[router.audio_routes]]
id = "stt-b"
purpose = "stt"
model = "whisper"
default = true
base_url = "{url}"
[[router.audio_routes]]
id = "whisper-tiny"
purpose = "stt"
model = "tiny"
base_url = "{url}"
[[router.audio_routes]]
id = "tts"
purpose = "tts"
model = "kokoro"
base_url = "{url}"
"""

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TRANSCRIPTIONS, SPEECH = "/v1/audio/transcriptions", "/v1/audio/speech"

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def answer(body: bytes) -> bytes:
    return HEAD % len(body) + body


class Notes:
    """The evidence, and how often the front door was left."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []
        self.observations: list[Observation] = []
        self.refusals: list[tuple[str | None, Refused, str | None]] = []
        self.left = 0

    def record(self, record: DecisionRecord, observation: Observation) -> None:
        self.records.append(record)
        self.observations.append(observation)

    def refused(self, tier_id: str | None, reason: Refused, key_name: str | None = None) -> None:
        self.refusals.append((tier_id, reason, key_name))

    def leave(self) -> None:
        self.left += 1


class Place:
    """Purposes over one upstream, and a caller."""

    def __init__(self, upstream: Upstream, config: str = CONFIG) -> None:
        self.upstream = upstream
        self.config: RouterConfig = parse_config(
            config.replace("{url}", f"http://127.0.0.1:{upstream.port}/base/v1").encode()
        )
        self.pool = ConnectionPool()
        self.notes = Notes()
        services = Services(
            pool=self.pool,
            evidence=self.notes,
            boundary=RecordBoundary(self.config),
            connect_timeout=self.config.router.connect_timeout,
        )
        self.purposes = Purposes(self.config, services, {"EMBED_TOKEN": "s3cret"})
        self.caller, self.served = tcp_pair()
        self.caller_id = Caller(
            principal=Principal("ada", frozenset()),
            request_id="r-1",
            run_id=None,
            task_id="t-1",
            arrived=0.0,
            connection=self.served,
            leave=self.notes.leave,
        )

    def ask(self, path: str, body: object, *, content_type: str = JSON) -> Reply | Dispatch | None:
        dialect = DIALECTS[path]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = dialect.parse(data, content_type=content_type)
        return self.purposes.handle(dialect, request, self.caller_id)

    def dispatch(self, path: str, body: object, **more: Any) -> Dispatch:
        dispatch = self.ask(path, body, **more)
        assert isinstance(dispatch, Dispatch)
        return dispatch

    def close(self) -> None:
        for each in (self.pool, self.caller, self.served, self.upstream):
            each.close()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place(Upstream())
    yield place
    place.close()


def read_request(peer: socket.socket) -> tuple[list[str], bytes]:
    """The lines of the head, and the body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += peer.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    (length,) = (int(line[16:]) for line in lines if line.startswith("Content-Length: "))
    while len(body) < length:
        body += peer.recv(65_536)
    return lines, body


def run(place: Place, dispatch: Dispatch) -> bytes:
    driver = BlockingDriver(dispatch, place.served)
    body = driver.run_to_head()
    body += driver.run_to_end()
    dispatch.finish()
    return body


# Which route


@pytest.mark.parametrize(
    ("path", "name", "route", "model"),
    [
        (EMBEDDINGS, "BAAI/bge-m3", "embed", "BAAI/bge-m3"),
        (EMBEDDINGS, " bge-small ", "embed-small", "bge-small"),
        (RERANK, "bge-small", "sort", "bge-small"),
        (SPEECH, "kokoro", "tts", "kokoro"),
        (SPEECH, "tts", "tts", "kokoro"),
        (TRANSCRIPTIONS, "whisper", "stt-b", "whisper"),
        (TRANSCRIPTIONS, "stt-a", "stt-a", "whisper"),
        (TRANSCRIPTIONS, "tiny", "whisper-tiny", "tiny"),
        (TRANSCRIPTIONS, None, "stt-b", "whisper"),
    ],
)
def test_a_name_leads_to_its_route(place, path, name, route, model):
    body = {"model": name, "input": "Hi", "query": "q", "documents": ["d"], "file": "QUJD"}
    dispatch = place.dispatch(path, body)
    lines, sent = read_request(place.upstream.accept())
    dispatch.close()
    assert lines[0] == f"POST /base{path} HTTP/1.1"
    if path == TRANSCRIPTIONS:
        assert b'name="model"\r\n\r\n%b\r\n' % model.encode() in sent
    else:
        assert json.loads(sent)["model"] == model
    assert dispatch.headers == (("X-Anvil-Tier", route),)
    assert [record.route for record in place.notes.records] == [route]


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        (EMBEDDINGS, "bge-M3", "No such embedding model. Configured: BAAI/bge-m3, bge-small."),
        (EMBEDDINGS, "embed", "No such embedding model. Configured: BAAI/bge-m3, bge-small."),
        (EMBEDDINGS, "chat", "No such embedding model. Configured: BAAI/bge-m3, bge-small."),
        (RERANK, "BAAI/bge-m3", "No such rerank model. Configured: bge-small."),
        (TRANSCRIPTIONS, "kokoro", "No such speech-to-text model. Configured: whisper, tiny."),
        (SPEECH, "llm", "No such text-to-speech model. Configured: kokoro."),
    ],
)
@pytest.mark.requirement("cases 29")
def test_an_unknown_name_is_404_and_names_the_configured_ones(place, path, name, message):
    """Aliases of tiers, models of other kinds and ids of purpose models among them; nothing is sent."""
    body = {"model": name, "input": "Hi", "query": "q", "documents": ["d"], "file": "QUJD"}
    reply = place.ask(path, body)
    assert isinstance(reply, Reply)
    assert reply.status == 404
    assert json.loads(reply.body) == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert place.notes.records == []
    assert place.notes.refusals == [(None, Refused.UNKNOWN_MODEL, "ada")]


def test_without_a_default_a_name_must_be_given(place):
    reply = place.ask(SPEECH, {"input": "Hi"})
    assert isinstance(reply, Reply)
    assert reply.status == 400
    assert json.loads(reply.body)["error"] == {
        "message": "'model' must name a text-to-speech model, since none is the default. Configured: kokoro.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "invalid_request",
    }
    assert (place.notes.records, place.notes.refusals) == ([], [])


@pytest.mark.parametrize("path", [EMBEDDINGS, RERANK, TRANSCRIPTIONS, SPEECH])
def test_what_is_not_configured_is_404(path):
    place = Place(Upstream(), CONFIG.partition("[[router.purpose_models]]")[0])
    body = {"model": "m", "input": "Hi", "query": "q", "documents": ["d"], "file": "QUJD"}
    reply = place.ask(path, body)
    place.close()
    assert isinstance(reply, Reply)
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (404, "model_not_found")
    assert error["message"].startswith("No ")
    assert error["message"].endswith(" model is configured.")


def test_chat_is_not_served_this_way(place):
    assert [wire for wire in ("chat", "responses", "messages") if place.purposes.serves(wire)] == []


# One attempt, one record


def test_a_served_request_leaves_one_record_and_its_connection(place):
    dispatch = place.dispatch(EMBEDDINGS, {"model": "BAAI/bge-m3", "input": "Hi"})
    peer = place.upstream.accept()
    lines, sent = read_request(peer)
    peer.sendall(answer(b'{"data":[],"model":"bge","usage":{"total_tokens":7}}'))
    body = run(place, dispatch)

    assert lines[1:] == [
        f"Host: 127.0.0.1:{place.upstream.port}",
        "User-Agent: anvil",
        "Accept: */*",
        "Accept-Encoding: identity",
        "Authorization: Bearer s3cret",
        "Content-Type: application/json",
        f"Content-Length: {len(sent)}",
    ]
    assert body == b'{"data":[],"model":"BAAI/bge-m3","usage":{"total_tokens":7}}'
    (record,) = place.notes.records
    assert (record.route, record.kind, record.requested_tier, record.served_tier) == (
        "embed",
        "embeddings",
        "embed",
        "embed",
    )
    (attempt,) = record.attempts
    assert (attempt.tier_id, attempt.outcome, attempt.reason) == ("embed", "served", "served")
    assert (record.total_prompt_tokens, record.total_completion_tokens) == (7, 0)
    assert (record.request_bytes, record.response_bytes) == (39, len(body))
    assert (record.request_id, record.task_id) == ("r-1", "t-1")
    assert record.replica_selection is record.replica_member_id is record.replica_scheduler is None
    (observation,) = place.notes.observations
    assert (observation.route, observation.tier, observation.member) == ("embed", "embed", None)
    assert place.notes.left == 1

    again = place.dispatch(EMBEDDINGS, {"model": "bge-small", "input": "Hi"})
    lines, _ = read_request(peer)
    assert not any(line.startswith("Authorization") for line in lines)
    again.close()


def test_an_own_timeout_bounds_every_silence_and_else_the_routers_two_do(place):
    own = place.dispatch(EMBEDDINGS, {"model": "BAAI/bge-m3", "input": "Hi"})
    assert (own.first_byte_timeout, own.relay_timeout) == (3.0, 3.0)
    shared = place.dispatch(EMBEDDINGS, {"model": "bge-small", "input": "Hi"})
    assert (shared.first_byte_timeout, shared.relay_timeout) == (30.0, 20.0)
    own.close()
    shared.close()


Ending = Callable[[Place, Dispatch, socket.socket], None]


def fails(fault: Fault) -> Ending:
    return lambda place, dispatch, peer: dispatch.fail(fault) and None  # type: ignore[func-returns-value]


def sends(data: bytes, *, close: bool = False, broken: bool = False) -> Ending:
    def ending(place: Place, dispatch: Dispatch, peer: socket.socket) -> None:
        peer.sendall(data)
        if broken:
            reset(peer)
        elif close:
            peer.close()
        run(place, dispatch)

    return ending


def leaves(place: Place, dispatch: Dispatch, peer: socket.socket) -> None:
    place.caller.close()
    run(place, dispatch)
    assert is_closed(peer)


ENDINGS: dict[str, tuple[Ending, str, int]] = {
    "silence": (fails(Fault.TIMEOUT), "backend_error", 504),
    "stopping": (fails(Fault.STOPPING), "backend_error", 503),
    "reset": (sends(b"", broken=True), "backend_error", 502),
    "closed": (sends(b"", close=True), "backend_error", 502),
    "500": (sends(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"), "backend_error", 502),
    "401": (sends(b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n"), "backend_error", 502),
    "404": (sends(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n"), "backend_error", 502),
    "400": (sends(b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n"), "backend_error", 400),
    "413": (sends(b"HTTP/1.1 413 X\r\nContent-Length: 0\r\n\r\n"), "backend_error", 413),
    "429": (sends(b"HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n"), "backend_error", 429),
    "no HTTP": (sends(b"SSH-2.0\r\n\r\n"), "backend_error", 502),
    "cut in the head": (sends(b"HTTP/1.1 200 OK\r\n", close=True), "backend_error", 502),
    "nothing in it": (sends(answer(b"")), "completion_error", 502),
    "caller gone": (leaves, "client_disconnected", 0),
}

REQUESTS: dict[str, tuple[str, object]] = {
    "embeddings": (EMBEDDINGS, {"model": "bge-small", "input": "Hi"}),
    "rerank": (RERANK, {"model": "bge-small", "query": "q", "documents": ["d"]}),
    "transcription": (TRANSCRIPTIONS, {"model": "tiny", "file": "QUJD"}),
    "streamed transcription": (TRANSCRIPTIONS, {"model": "tiny", "file": "QUJD", "stream": True}),
    "speech": (SPEECH, {"model": "kokoro", "input": "Hi"}),
    "speech events": (SPEECH, {"model": "kokoro", "input": "Hi", "stream_format": "sse"}),
}


@pytest.mark.requirement("C-R010", "C-T007", "Q-T009", "cases 6")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("request_kind", REQUESTS)
def test_whatever_ends_a_request_ends_it_once(place, request_kind, ending):
    path, body = REQUESTS[request_kind]
    end, reason, status = ENDINGS[ending]
    dispatch = place.dispatch(path, body)
    peer = place.upstream.accept()
    read_request(peer)
    end(place, dispatch, peer)
    dispatch.close()

    assert dispatch.over
    (record,) = place.notes.records
    (attempt,) = record.attempts
    assert (record.route, record.served_tier) == (attempt.tier_id, None)
    assert (attempt.outcome, attempt.reason) == ("error", reason)
    assert place.notes.left == 1
    assert dispatch.connection is None
    if status:
        assert dispatch.head is not None
        assert dispatch.head.status == status
        assert ("x-should-retry", "false") in dispatch.head.headers
    else:
        assert dispatch.head is None
    # Nobody else was asked, and nobody is asked again.
    place.upstream.listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        place.upstream.listener.accept()


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_a_refused_connection_is_one_failed_attempt(place, request_kind):
    place.upstream.listener.close()
    path, body = REQUESTS[request_kind]
    reply = place.ask(path, body)
    assert isinstance(reply, Reply)
    assert reply.status == 502
    assert ("x-should-retry", "false") in reply.headers
    assert json.loads(reply.body)["error"]["code"] == "upstream_unreachable"
    (record,) = place.notes.records
    assert [attempt.reason for attempt in record.attempts] == ["backend_error"]
    assert place.notes.left == 1


def test_a_caller_that_leaves_while_its_audio_is_sent_stops_the_sending(place):
    """The upstream does not read: the request cannot get out, and the caller does not wait for it."""
    body = {"model": "tiny", "file": "QUJD" * 4_000_000}
    result: list[object] = []
    thread = threading.Thread(target=lambda: result.append(place.ask(TRANSCRIPTIONS, body)))
    thread.start()
    peer = place.upstream.accept()
    peer.recv(1)
    place.caller.close()
    thread.join(PATIENCE)
    assert result == [None]
    (record,) = place.notes.records
    assert [attempt.reason for attempt in record.attempts] == ["client_disconnected"]
    assert place.notes.left == 1


def test_an_address_never_shows(place):
    dispatch = place.dispatch(EMBEDDINGS, {"model": "bge-small", "input": "Hi"})
    peer = place.upstream.accept()
    read_request(peer)
    told = f'{{"error":{{"message":"no: http://127.0.0.1:{place.upstream.port}/x 127.0.0.1"}}}}'.encode()
    peer.sendall(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n" % len(told) + told)
    body = run(place, dispatch)
    assert json.loads(body)["error"]["message"] == "no: [removed] [removed]"
