"""Embeddings, rerank, transcriptions and speech through the router, by official clients and raw sockets.

The router has one place in its data plane: a request that kept it would turn the next one away.
"""

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import openai
import pytest
from openai import OpenAI

from demo.purposes import spoken
from tests.live.harness import (
    MODEL,
    Documents,
    Engine,
    Router,
    decisions,
    direct_tier,
    documents,
    eventually,
    request,
)
from tests.live.raw import HOST, TOKEN, RawConnection, Response

pytestmark = pytest.mark.requirement("contract 2", "C-R013", "Q-R013")

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TRANSCRIPTIONS, SPEECH = "/v1/audio/transcriptions", "/v1/audio/speech"

AUDIO = b"RIFF\x00\r\n--edge\r\n\xff" + bytes(range(256)) * 40
HEARD = f"engine heard {len(AUDIO)} bytes, {hashlib.sha256(AUDIO).hexdigest()[:8]}:"
TIMEOUT = 1.0
"""Seconds of silence that the routes allow."""

BODY_LIMIT = 131_072

Connect = Callable[..., RawConnection]


def with_purposes(engine: Engine) -> Documents:
    """A chat tier, and every kind of purpose model and audio route, all on ``engine``."""
    tables = []
    for kind in ("embedding", "rerank"):
        tables += ["[[router.purpose_models]]", f'id = "{kind}-a"', f'kind = "{kind}"']
        tables += [f'model = "{MODEL}"', f'base_url = "{engine.url}"', f"timeout = {TIMEOUT}"]
    for purpose in ("stt", "tts"):
        tables += [
            "[[router.audio_routes]]",
            f'id = "{purpose}-a"',
            f'purpose = "{purpose}"',
            "default = true",
        ]
        tables += [f'model = "{MODEL}"', f'base_url = "{engine.url}"', f"timeout = {TIMEOUT}"]
    made = documents(direct_tier(engine))
    return dataclasses.replace(made, config=made.config + "\n".join(["", *tables, ""]).encode())


@dataclass
class Site:
    engine: Engine
    router: Router

    def client(self, **options: Any) -> OpenAI:
        return self.router.client(**options)

    def record(self, request_id: str) -> dict[str, Any]:
        """The one record of a request."""
        found = [one for one in decisions(self.router) if one["request_id"] == request_id]
        assert len(found) == 1, found
        return found[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("purposes")
    engine = Engine.start(directory / "engine")
    environ = {"ANVIL_MAX_CONCURRENCY": "1", "ANVIL_MAX_BODY_BYTES": str(BODY_LIMIT)}
    router = Router(directory / "router", with_purposes(engine), environ=environ)
    try:
        yield Site(engine, router.start())
    finally:
        router.stop()
        engine.stop()


@pytest.fixture
def site(running: Site) -> Site:
    """Engine and router as if just started: no faults, no counts, every place free."""
    running.engine.reset()
    return running


# Official clients


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
def test_embeddings(site: Site, options: Any) -> None:
    """In base64, which the client asks for when left alone and decodes itself, and in plain numbers."""
    with site.client() as client:
        answer = client.embeddings.create(model=MODEL, input=["Zürich", "你好"], **options)
    assert (answer.object, answer.model) == ("list", MODEL)
    assert [len(one.embedding) for one in answer.data] == [8, 8]
    assert math.isclose(sum(x * x for x in answer.data[0].embedding), 1.0, rel_tol=1e-5)
    assert answer.usage.prompt_tokens == 4
    assert site.engine.stats()["requests"] == {EMBEDDINGS: 1} | probes(site)


def probes(site: Site) -> dict[str, int]:
    """What the engine was asked by the router on its own account."""
    asked: dict[str, int] = site.engine.stats()["requests"]
    return {path: count for path, count in asked.items() if path in ("/health", "/v1/models", "/metrics")}


def test_rerank(site: Site) -> None:
    body = {"model": MODEL, "query": "red fox", "documents": ["a dog", "red fox"], "top_n": 1}
    answer = site.router.request("POST", RERANK, body=body, headers={"X-Request-Id": "rank-1"})
    assert answer.status == 200
    assert answer.headers["x-anvil-tier"] == "rerank-a"
    assert answer.json() == {
        "id": "rerank-demo",
        "model": MODEL,
        "usage": {"total_tokens": 8},
        "results": [{"index": 1, "document": {"text": "red fox"}, "relevance_score": 1.0}],
    }
    record = site.record("rank-1")
    assert (record["route"], record["kind"], record["served_tier"]) == ("rerank-a", "rerank", "rerank-a")
    assert record["total_prompt_tokens"] == 8


@pytest.mark.parametrize("model", [MODEL, "stt-a"])
def test_a_transcription(site: Site, model: str) -> None:
    with site.client() as client:
        heard = client.audio.transcriptions.create(model=model, file=("talk.wav", AUDIO), language="de")
        assert heard.text == HEARD
        text = client.audio.transcriptions.create(
            model=model, file=("talk.wav", AUDIO), response_format="text"
        )
        assert text == f"{HEARD}\n"  # type: ignore[comparison-overlap]
        verbose = client.audio.transcriptions.create(
            model=model,
            file=("talk.wav", AUDIO),
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
    assert verbose.text == HEARD
    assert verbose.duration == pytest.approx(0.321, abs=0.01)
    assert site.engine.stats()["requests"][TRANSCRIPTIONS] == 3


def test_a_streamed_transcription(site: Site) -> None:
    with site.client() as client:
        stream = client.audio.transcriptions.create(model=MODEL, file=("talk.wav", AUDIO), stream=True)
        events = list(stream)
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * 5
    assert "".join(getattr(event, "delta", "") for event in events) == HEARD
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == HEARD


@pytest.mark.parametrize(
    "document",
    [
        {"file": base64.b64encode(AUDIO).decode()},
        {"audio_b64": base64.b64encode(AUDIO).decode(), "format": "wav"},
        {"input_audio": {"data": base64.b64encode(AUDIO).decode(), "format": "wav"}, "model": "stt-a"},
    ],
)
def test_a_transcription_in_json(site: Site, document: dict[str, object]) -> None:
    answer = site.router.request("POST", TRANSCRIPTIONS, body=document)
    assert (answer.status, answer.json()["text"]) == (200, HEARD)


def test_speech_arrives_while_it_is_being_spoken(site: Site) -> None:
    """The engine stops after its second word and goes on when the caller has the first."""
    expected = b"".join(spoken("one two three four", voice="alloy", kind="wav"))
    site.engine.fault("stall_mid_stream", count=1, after=2)
    with (
        site.client() as client,
        client.audio.speech.with_streaming_response.create(
            model=MODEL, voice="alloy", input="one two three four", response_format="wav"
        ) as response,
    ):
        pieces = response.iter_bytes(1024)
        audio = next(pieces)
        site.engine.clear()
        audio += b"".join(pieces)
    assert response.headers["content-type"] == "audio/wav"
    assert response.headers["x-anvil-tier"] == "tts-a"
    assert audio == expected


def test_speech_as_events_without_a_model(site: Site) -> None:
    body = {"input": "one two", "voice": "v", "stream_format": "sse"}
    answer = site.router.request("POST", SPEECH, body=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *deltas, last = [json.loads(line[6:]) for line in answer.body.splitlines() if line]
    assert [base64.b64decode(one["audio"]) for one in deltas] == spoken("one two", voice="v", kind="mp3")
    assert last["type"] == "speech.audio.done"


def test_every_kind_of_request_goes_over_one_pooled_connection(site: Site) -> None:
    with site.client() as client:
        client.embeddings.create(model=MODEL, input="Hi")
        client.audio.transcriptions.create(model=MODEL, file=("a.wav", AUDIO))
        list(client.audio.transcriptions.create(model=MODEL, file=("a.wav", AUDIO), stream=True))
        client.audio.speech.create(model=MODEL, voice="v", input="Hi").read()
        client.chat.completions.create(model="live.direct", messages=[{"role": "user", "content": "Hi"}])
    assert len({one["connection"] for one in site.engine.stats()["last_requests"]}) == 1


def test_models_are_the_aliases_alone(site: Site) -> None:
    with site.client() as client:
        assert [model.id for model in client.models.list()] == ["live.direct"]


# Refusals


@pytest.mark.requirement("cases 29")
@pytest.mark.parametrize("model", ["other", "live.direct", "embedding-a"])
def test_an_unknown_name_is_404_and_asks_nobody(site: Site, model: str) -> None:
    with site.client() as client, pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model=model, input="Hi")
    assert caught.value.code == "model_not_found"
    assert f"No such embedding model. Configured: {MODEL}." in caught.value.message
    assert site.engine.stats()["received"] == 0


@pytest.mark.parametrize("model", [MODEL, "embedding-a", "stt-a"])
def test_a_purpose_is_no_chat_model(site: Site, model: str) -> None:
    answer = site.router.chat(model)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert site.engine.stats()["received"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (EMBEDDINGS, b"{", 400, "malformed_json"),
        (EMBEDDINGS, {"model": MODEL}, 400, "invalid_request"),
        (RERANK, {"model": MODEL, "query": "q"}, 400, "invalid_request"),
        (TRANSCRIPTIONS, {"model": MODEL}, 400, "invalid_request"),
        (SPEECH, {"model": MODEL}, 400, "invalid_request"),
        (SPEECH, {"input": "x" * BODY_LIMIT}, 413, "request_too_large"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anybody_is_asked(
    site: Site, path: str, body: object, status: int, code: str
) -> None:
    answer = site.router.request("POST", path, body=body)
    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    assert site.engine.stats()["received"] == 0


def test_audio_over_the_limit_is_413(site: Site) -> None:
    with site.client() as client, pytest.raises(openai.APIStatusError) as caught:
        client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"\0" * BODY_LIMIT))
    assert caught.value.status_code == 413
    assert site.engine.stats()["received"] == 0


def test_another_media_type_is_415(site: Site) -> None:
    answer = site.router.request("POST", TRANSCRIPTIONS, body=AUDIO, headers={"Content-Type": "audio/wav"})
    assert (answer.status, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", [EMBEDDINGS, RERANK, TRANSCRIPTIONS, SPEECH])
def test_a_key_and_the_right_method_are_needed(site: Site, path: str) -> None:
    assert request(site.router.port, "POST", path, body={}).status == 401
    answer = site.router.request("GET", path)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


def test_official_clients_do_not_retry_what_was_dispatched(site: Site) -> None:
    site.engine.fault("http_error", status=500)
    with site.client(max_retries=2) as client:
        with pytest.raises(openai.InternalServerError):
            client.embeddings.create(model=MODEL, input="Hi")
        with pytest.raises(openai.InternalServerError):
            client.audio.transcriptions.create(model=MODEL, file=("a.wav", AUDIO))
    assert site.engine.stats()["received"] == 2


# However a request ends

EDGE = "multipart/form-data; boundary=edge-of-it"
FORM = (
    b'--edge-of-it\r\nContent-Disposition: form-data; name="stream"\r\n\r\n%b\r\n'
    b'--edge-of-it\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    + AUDIO.replace(b"%", b"%%")
    + b"\r\n--edge-of-it--\r\n"
)
WORDS = "one two three four"


@dataclass(frozen=True)
class Kind:
    """A request, what its answer is (``whole``, ``events`` or ``bytes``), and where it leads."""

    path: str
    answer: str
    route: str
    body: bytes
    content_type: str = "application/json"

    def post(self, connection: RawConnection, request_id: str) -> None:
        head = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {HOST}",
            f"Authorization: Bearer {TOKEN}",
            f"X-Request-Id: {request_id}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "",
            "",
        ]
        connection.send("\r\n".join(head).encode() + self.body)


def in_json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


KINDS = {
    "embeddings": Kind(EMBEDDINGS, "whole", "embedding-a", in_json(model=MODEL, input="Hi")),
    "rerank": Kind(RERANK, "whole", "rerank-a", in_json(model=MODEL, query="q", documents=["d"])),
    "transcription": Kind(TRANSCRIPTIONS, "whole", "stt-a", FORM % b"false", EDGE),
    "streamed transcription": Kind(TRANSCRIPTIONS, "events", "stt-a", FORM % b"true", EDGE),
    "speech": Kind(SPEECH, "bytes", "tts-a", in_json(input=WORDS, voice="v")),
    "speech events": Kind(SPEECH, "events", "tts-a", in_json(input=WORDS, voice="v", stream_format="sse")),
}


@dataclass(frozen=True)
class Ending:
    """A fault of the engine's: the status before anything was sent, or of a head that was (None: as the kind
    of answer has it), and the record's reason by kind of answer."""

    fault: str
    status: int | None
    reason: str
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)


BROKEN = {"after": 1}
ENDINGS = {
    "an error of its own": Ending("http_error", 502, "backend_error", {"status": 500}),
    "an error of the caller's": Ending("http_error", 400, "backend_error", {"status": 400, "message": "no"}),
    "too many": Ending("http_error", 429, "backend_error", {"status": 429, "headers": {"retry-after": "7"}}),
    "a flat error": Ending("flat_error", 400, "backend_error", {"status": 400}),
    "not its model": Ending("http_error", 502, "backend_error", {"status": 404}),
    "reset": Ending("reset", 502, "backend_error"),
    "silence": Ending("stall_before_headers", 504, "backend_error"),
    "silence after the head": Ending("stall_after_headers", 504, "completion_error"),
    "cut": Ending("cut_mid_stream", None, "completion_error", BROKEN),
    "reset in the middle": Ending("reset_mid_stream", None, "completion_error", BROKEN),
    "silence in the middle": Ending("stall_mid_stream", None, "completion_error", BROKEN),
}


@pytest.fixture
def served(site: Site, connect: Connect) -> Callable[[Kind], Response]:
    """``served(kind)`` asks again, after whatever happened, and is served: no place and no count is lost."""

    def again(kind: Kind) -> Response:
        site.engine.reset()
        connection = connect(site.router.port)

        def ask() -> Response:
            kind.post(connection, "again")
            response = connection.read_response()
            assert response.status == 200, response.body
            return response

        return eventually(ask)

    return again


@pytest.mark.requirement("C-R010", "C-T007", "Q-T009", "cases 3", "cases 6", "cases 21", "cases 25")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_upstream_is_asked_once(
    site: Site, connect: Connect, served: Callable[[Kind], Response], kind: str, ending: str
) -> None:
    asked, fault = KINDS[kind], ENDINGS[ending]
    request_id = f"{kind}-{ending}".replace(" ", "-").replace("'", "")
    site.engine.fault(fault.fault, **fault.params)
    connection = connect(site.router.port)
    asked.post(connection, request_id)
    response = connection.read_response()

    began = fault.status is None and asked.answer != "whole"
    if not began:
        status = fault.status or (504 if fault.fault == "stall_mid_stream" else 502)
        assert (response.status, response.ending) == (status, "length")
        assert response.head.get("x-should-retry") == "false"
        assert response.head.get("retry-after") == ("7" if ending == "too many" else None)
        assert response.json()["error"]["message"]
    elif asked.answer == "events":
        assert (response.status, response.ending) == (200, "chunked")
        assert json.loads(response.data[-1])["error"]["type"] == "server_error"
        assert len(response.data) == 2
    else:
        # Bytes have no error event; the message is left without its end.
        assert response.status == 200
        assert response.ending in ("cut", "reset")
        assert b"".join(spoken(WORDS, voice="v", kind="mp3")).startswith(response.body)

    assert site.engine.stats()["received"] == 1
    record = site.record(request_id)
    (attempt,) = record["attempts"]
    assert (record["route"], record["served_tier"]) == (asked.route, "-")
    assert (attempt["outcome"], attempt["reason"]) == ("error", fault.reason)
    site.engine.clear()
    site.engine.await_stats(running=0, waiting=0, stalled=0)
    served(asked)


@pytest.mark.requirement("C-R010", "C-T007", "Q-T009")
@pytest.mark.parametrize("kind", KINDS)
def test_an_upstream_that_refuses_connections_is_502(
    site: Site, connect: Connect, served: Callable[[Kind], Response], kind: str
) -> None:
    site.engine.fault("refuse")
    connection = connect(site.router.port)
    KINDS[kind].post(connection, f"refused-{kind.replace(' ', '-')}")
    response = connection.read_response()
    assert (response.status, response.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert response.head.get("x-should-retry") == "false"
    (attempt,) = site.record(f"refused-{kind.replace(' ', '-')}")["attempts"]
    assert attempt["reason"] == "backend_error"
    served(KINDS[kind])


@pytest.mark.requirement("C-R010", "C-T007", "Q-T009", "cases 1", "cases 2", "cases 26")
@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_that_leaves_takes_its_request_along(
    site: Site, connect: Connect, served: Callable[[Kind], Response], kind: str, how: str
) -> None:
    """Before the head, and where there is one, in the middle of the answer."""
    asked = KINDS[kind]
    for moment in ("before", "after"):
        if moment == "after" and asked.answer == "whole":
            continue
        site.engine.reset()
        site.engine.fault("stall_before_headers" if moment == "before" else "stall_mid_stream")
        request_id = f"gone-{moment}-{how}-{kind.replace(' ', '-')}"
        connection = connect(site.router.port)
        asked.post(connection, request_id)
        site.engine.await_stats(stalled=1)
        if moment == "after":
            assert connection.start_response().status == 200
        getattr(connection, how)()
        site.engine.await_stats(cancelled=1, running=0, stalled=0)

        (attempt,) = eventually(partial(site.record, request_id))["attempts"]
        assert (attempt["outcome"], attempt["reason"]) == ("error", "client_disconnected")
        assert site.engine.stats()["received"] == 1
        served(asked)
