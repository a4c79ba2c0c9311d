"""A stand-in for a vLLM server: one process, one port, standard library only.

    python -m demo.engine --port 8101 --name member-a

It answers ``/health``, ``/version``, ``/v1/models``, ``/metrics`` and ``POST /v1/chat/completions`` in
vLLM's shapes, OpenAI's Responses (`demo.responses`), Anthropic's messages in the strictness of their vendor
(`demo.messages`), and embeddings, rerank, transcriptions and speech (`demo.purposes`). Requests take a slot
for their prefill and a time per token; without a free slot they wait in order of arrival. A client that goes
away, also while it waits or prefills, is noticed at once.

``/control/`` switches faults on (`demo.faults` lists them) and tells what was seen:

    POST /control/faults    {"fault": "cut_mid_stream", "count": 1, "params": {"after": 3}}
    DELETE /control/faults  all, or one kind with ?fault=NAME; what stalls goes on
    POST /control/settings  {"prefill": 10.0, "slots": 2}
    GET /control/stats      counts, peaks, the last requests
    POST /control/reset     counts to zero, faults off

A request leaves the counts before its last bytes are written: whoever goes on at ``[DONE]`` never sees
itself in them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs

from demo.connection import Connection, Job, Listener
from demo.delivery import STREAM_HEADERS, Delivery, Work
from demo.faults import REFUSE, Fault, FaultBoard, FaultError
from demo.messages import count_tokens, messages
from demo.metrics import CONTENT_TYPE, Metrics
from demo.purposes import embeddings, rerank, speech, transcription
from demo.replies import Answer, RequestError, parse_chat
from demo.responses import responses
from demo.ticker import Ticker
from demo.wire import Request, compact_json

VERSION = "0.11.0"
"""The vLLM release that the engine passes for."""

REMEMBERED_REQUESTS = 64
REMEMBERED_BODY_BYTES = 65_536
KV_TOKENS_PER_SLOT = 4096


@dataclass(slots=True, kw_only=True)
class Settings:
    """How the engine behaves; ``POST /control/settings`` changes all of it but ``name``.

    ``prefill``, ``token`` and ``keep_alive`` are seconds, ``tokens`` the length of an answer that the
    request does not limit, ``slots`` how many requests generate at once.
    """

    name: str
    model: str = "demo-model"
    slots: int = 256
    prefill: float = 0.05
    token: float = 0.02
    tokens: int = 24
    max_model_len: int = 32_768
    keep_alive: float = 5.0


class Engine:
    """The engine's state: who is in work, what was seen, which faults are on."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.loop = loop
        self.ticker = Ticker(loop)
        self.metrics = Metrics()
        self.faults = FaultBoard()
        self.connections: set[Connection] = set()
        self.listener: Listener | None = None
        self.control_listener: Listener | None = None
        self._waiting: dict[Job, None] = {}
        self._running: dict[Job, None] = {}
        self._stalled: dict[Job, None] = {}
        self._filling = False
        self._connections_total = 0
        self._refusals = 0
        self._cleared_at = float("-inf")
        self._pages: dict[str, Callable[[], Delivery]] = {
            "/health": self._health,
            "/version": self._version,
            "/v1/models": self._models,
            "/metrics": self._metrics_page,
        }
        self._works: dict[str, Callable[[Request], Work]] = {
            "/v1/chat/completions": self._chat,
            "/v1/responses": self._responses,
            "/v1/messages": self._messages,
            "/v1/messages/count_tokens": lambda request: count_tokens(
                request, model=settings.model, max_model_len=settings.max_model_len
            ),
            "/v1/embeddings": lambda request: embeddings(request.body, model=settings.model),
            "/v1/rerank": lambda request: rerank(request.body, model=settings.model),
            "/v1/audio/transcriptions": self._transcription,
            "/v1/audio/speech": lambda request: speech(request.body, model=settings.model),
        }
        self._zero_counts()

    def _zero_counts(self) -> None:
        self._requests: dict[str, int] = {}
        self._outcomes = {"completed": 0, "cancelled": 0, "failed": 0, "rejected": 0}
        self._received = 0
        self._peak = len(self._running) + len(self._waiting)
        self._peak_running = len(self._running)
        self._last: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_REQUESTS)

    def start(self, host: str, port: int, control_port: int | None) -> None:
        """Listen; both ports may be 0. Raises OSError when a port is taken."""
        self.listener = Listener(host, port, lambda: Connection(self, control=False))
        if control_port is not None:
            self.control_listener = Listener(host, control_port, lambda: Connection(self, control=True))
            self.control_listener.listen()
        self.listener.listen()

    def stop(self) -> None:
        """Give the ports up and drop every connection."""
        for listener in (self.listener, self.control_listener):
            if listener is not None:
                listener.close()
        for connection in list(self.connections):
            connection.reset()

    def opened(self, connection: Connection) -> int:
        """Count a connection; its number, from 1."""
        self.connections.add(connection)
        self._connections_total += 1
        return self._connections_total

    # Work.

    def submit(self, job: Job) -> None:
        """Begin the job, or let it wait for a slot."""
        if not job.counted:
            job.begin()
            return
        self._waiting[job] = None
        self._peak = max(self._peak, len(self._waiting) + len(self._running))
        if job.delivery.immediate:
            job.begin()
            return
        self._fill()
        if job.delivery.early_head and not job.is_over:
            job.send_head()

    def _fill(self) -> None:
        if self._filling:
            return
        self._filling = True
        try:
            while self._waiting and len(self._running) < self.settings.slots:
                job = next(iter(self._waiting))
                del self._waiting[job]
                self._running[job] = None
                self._peak_running = max(self._peak_running, len(self._running))
                self.metrics.prompt_tokens += job.prompt_tokens
                job.begin()
        finally:
            self._filling = False

    def end(self, job: Job, outcome: str) -> None:
        """Take the job out of work, once; the next one in the queue gets its slot."""
        if job.is_over:
            return
        job.is_over = True
        self._stalled.pop(job, None)
        if not job.counted:
            return
        self._outcomes[outcome] += 1
        self._waiting.pop(job, None)
        self._running.pop(job, None)
        if outcome == "completed":
            if job.generated == 0:
                self.metrics.generation_tokens += job.steps
            self.metrics.stopped += 1
            self.metrics.whole_request.observe(self.loop.time() - job.started)
        else:
            self.metrics.aborted += 1
        self._fill()

    def stall(self, job: Job, seconds: float | None) -> None:
        """Keep the job silent: for so long, or until the faults are cleared after it came."""
        self._stalled[job] = None
        if job.started <= self._cleared_at:
            seconds = 0.0
        if seconds is not None:
            self.ticker.at(self.loop.time() + seconds, lambda: self._wake(job))

    def _wake(self, job: Job) -> None:
        if job in self._stalled:
            del self._stalled[job]
            job.resume()

    # Requests.

    def answer(self, connection: Connection, request: Request) -> Job:
        """What a request gets, before it is submitted."""
        if request.path.startswith("/control/"):
            return Job(connection, self._control(connection, request), keep_alive=request.keep_alive)
        path = "" if connection.control else request.path
        page, work = self._pages.get(path), self._works.get(path)
        method = "POST" if work is not None else "GET"
        known = page is not None or work is not None
        counted = path if known else "other"
        self._requests[counted] = self._requests.get(counted, 0) + 1
        if known and request.method != method:
            refusal = Delivery(status=405, body=b'{"detail":"Method Not Allowed"}')
            refusal.headers.append(("allow", method))
            return self._plain(connection, request, refusal)
        if work is not None:
            return self._generate(connection, request, work)
        if page is None:
            return self._plain(connection, request, Delivery(status=404, body=b'{"detail":"Not Found"}'))
        delivery = page()
        self.faults.strike(delivery, path=path, is_work=False)
        return self._plain(connection, request, delivery)

    def _plain(self, connection: Connection, request: Request, delivery: Delivery) -> Job:
        return Job(connection, delivery, keep_alive=request.keep_alive)

    def _generate(self, connection: Connection, request: Request, answer: Callable[[Request], Work]) -> Job:
        self._received += 1
        self._last.append(
            {
                "path": request.path,
                "connection": connection.number,
                "headers": dict(request.headers),
                "body": request.body[:REMEMBERED_BODY_BYTES].decode(errors="replace"),
            }
        )
        try:
            work = answer(request)
        except RequestError as error:
            self._outcomes["rejected"] += 1
            return self._plain(connection, request, Delivery(status=error.status, body=error.body()))
        delivery = work.delivery
        if delivery.streams:
            # A client of HTTP/1.0 knows no chunks.
            delivery.until_eof = request.version == "HTTP/1.0"
        self.faults.strike(delivery, path=request.path, is_work=True)
        return Job(
            connection,
            delivery,
            keep_alive=request.keep_alive,
            counted=True,
            prompt_tokens=work.prompt_tokens,
            steps=work.steps,
        )

    def _chat(self, request: Request) -> Work:
        settings = self.settings
        chat = parse_chat(
            request.body,
            model=settings.model,
            max_model_len=settings.max_model_len,
            tokens=settings.tokens,
        )
        answer = Answer(
            chat, label=settings.name, model=settings.model, request_id=request.headers.get("x-request-id")
        )
        if chat.stream:
            delivery = Delivery(
                headers=list(STREAM_HEADERS), script=answer.script(), whole=answer.body, early_head=True
            )
        else:
            delivery = Delivery(body=answer.body())
        return Work(delivery=delivery, prompt_tokens=chat.prompt_tokens, steps=answer.steps)

    def _responses(self, request: Request) -> Work:
        settings = self.settings
        return responses(
            request,
            label=settings.name,
            model=settings.model,
            max_model_len=settings.max_model_len,
            tokens=settings.tokens,
        )

    def _messages(self, request: Request) -> Work:
        settings = self.settings
        return messages(
            request,
            label=settings.name,
            model=settings.model,
            max_model_len=settings.max_model_len,
            tokens=settings.tokens,
        )

    def _transcription(self, request: Request) -> Work:
        settings = self.settings
        return transcription(
            request.body,
            request.headers.get("content-type", ""),
            label=settings.name,
            model=settings.model,
            tokens=settings.tokens,
        )

    def _health(self) -> Delivery:
        return Delivery(body=b"", headers=[])

    def _version(self) -> Delivery:
        return Delivery(body=compact_json({"version": VERSION}))

    def _models(self) -> Delivery:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
        }
        return Delivery(body=compact_json({"object": "list", "data": [model]}))

    def _metrics_page(self) -> Delivery:
        held = sum(job.prompt_tokens + job.generated for job in self._running)
        page = self.metrics.render(
            model=self.settings.model,
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=min(1.0, held / (KV_TOKENS_PER_SLOT * self.settings.slots)),
        )
        return Delivery(body=page, headers=[("content-type", CONTENT_TYPE)])

    # Control.

    def _control(self, connection: Connection, request: Request) -> Delivery:
        try:
            match request.method, request.path.removeprefix("/control/"):
                case "POST", "faults":
                    self._arm(connection, _json_object(request.body))
                    return Delivery(body=compact_json({"armed": self.faults.describe()}))
                case "DELETE", "faults":
                    self._clear(parse_qs(request.query).get("fault", [""])[0])
                    return Delivery(body=compact_json({"armed": self.faults.describe()}))
                case "POST", "settings":
                    self._change(_json_object(request.body))
                    return Delivery(body=compact_json(asdict(self.settings)))
                case "GET", "stats":
                    return Delivery(body=compact_json(self.stats()))
                case "POST", "reset":
                    self._clear("")
                    self.faults.struck.clear()
                    self._zero_counts()
                    return Delivery(body=compact_json(self.stats()))
        except FaultError as error:
            return Delivery(status=400, body=compact_json({"error": str(error)}))
        return Delivery(status=404, body=compact_json({"error": "no such control"}))

    def _arm(self, connection: Connection, order: dict[str, Any]) -> None:
        name, count, params = order.get("fault"), order.get("count"), order.get("params")
        if name == REFUSE:
            if count is not None:
                raise FaultError("refuse takes no count: give it seconds, or clear it")
            if self.control_listener is None and not (isinstance(params, dict) and params.get("seconds")):
                raise FaultError("refuse without seconds needs a control port to clear it through")
        fault = self.faults.arm(name, count=count, params=params)
        if name == REFUSE:
            self._refuse(fault, connection)

    def _refuse(self, fault: Fault, asker: Connection) -> None:
        assert self.listener is not None
        self.listener.refuse()
        self._refusals += 1
        for connection in list(self.connections):
            if connection is asker:
                continue
            if connection.is_idle:
                connection.close()
            elif fault.params["cut"]:
                connection.reset()
        if fault.params["seconds"] is not None:
            turn = self._refusals

            def over() -> None:
                if self._refusals == turn:
                    self._clear(REFUSE)

            self.ticker.at(self.loop.time() + fault.params["seconds"], over)

    def _clear(self, name: str) -> None:
        """Switch one kind of fault off, or all of them; stalls end with all of them."""
        if name:
            self.faults.drop(name)
        else:
            self.faults.clear()
            self._cleared_at = self.loop.time()
            for job in list(self._stalled):
                self._wake(job)
        if self.listener is not None and name in ("", REFUSE):
            self.listener.listen()

    def _change(self, order: dict[str, Any]) -> None:
        for key, value in order.items():
            current = getattr(self.settings, key, None) if key in _CHANGEABLE else None
            if isinstance(current, str):
                fits = isinstance(value, str)
            else:
                kinds = (int, float) if isinstance(current, float) else int
                fits = current is not None and type(value) is not bool and isinstance(value, kinds)
                fits = fits and 0 <= value < 1_000_000_000
            if not fits:
                raise FaultError(f"no such setting, or not a value for it: {key}")
        for key, value in order.items():
            # JSON writes a whole number of seconds without a point; the setting stays what it was.
            setattr(self.settings, key, type(getattr(self.settings, key))(value))
        self._fill()

    def stats(self) -> dict[str, Any]:
        """What was seen since the start or the last reset, as JSON-ready values.

        ``requests`` counts by path, control aside. ``received`` = completed + cancelled + failed (by a
        fault) + rejected (4xx of the engine's own) + in work; ``peak_concurrency`` is the highest number
        in work at once, waiting ones included.
        """
        return {
            "name": self.settings.name,
            "pid": os.getpid(),
            "requests": self._requests,
            "received": self._received,
            "running": len(self._running),
            "waiting": len(self._waiting),
            "stalled": len(self._stalled),
            "peak_concurrency": self._peak,
            "peak_running": self._peak_running,
            **self._outcomes,
            "connections_open": len(self.connections),
            "connections_total": self._connections_total,
            "faults": self.faults.describe(),
            "struck": dict(self.faults.struck),
            "last_requests": list(self._last),
        }


_CHANGEABLE = frozenset({"model", "slots", "prefill", "token", "tokens", "max_model_len", "keep_alive"})


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        raise FaultError("the body is not JSON") from None
    if not isinstance(value, dict):
        raise FaultError("the body is not an object")
    return value


def _raise_descriptor_limit() -> None:
    """A stream takes a descriptor, and the usual soft limit of 1024 is soon reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: Settings, host: str, port: int, control_port: int | None) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(settings, loop)
    engine.start(host, port, control_port)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listeners = (engine.listener, engine.control_listener)
    print(*(listener.port for listener in listeners if listener is not None), flush=True)
    await stop.wait()
    engine.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run an engine until SIGTERM or SIGINT. Prints the port, and the control port if any, when ready."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.engine", description="A stand-in for a vLLM server."
    )
    add = parser.add_argument
    add("--port", type=int, required=True, help="0 takes a free one")
    add("--control-port", type=int, help="for /control/ alone; it answers while the port refuses connections")
    add("--host", default="127.0.0.1")
    add("--name", help="the label in its answers (default: engine-PORT)")
    add("--model", default="demo-model", help="the served model name")
    add("--slots", type=int, default=256, help="requests that generate at once")
    add("--prefill", type=float, default=0.05, help="seconds before the first token")
    add("--token", type=float, default=0.02, help="seconds between tokens")
    add("--tokens", type=int, default=24, help="tokens of an answer that the request does not limit")
    add("--max-model-len", type=int, default=32_768)
    add("--keep-alive", type=float, default=5.0, help="seconds until an idle connection is closed; 0 never")
    options = parser.parse_args(arguments)
    settings = Settings(
        name=options.name or f"engine-{options.port}",
        model=options.model,
        slots=options.slots,
        prefill=options.prefill,
        token=options.token,
        tokens=options.tokens,
        max_model_len=options.max_model_len,
        keep_alive=options.keep_alive,
    )
    _raise_descriptor_limit()
    try:
        asyncio.run(_serve(settings, options.host, options.port, options.control_port))
    except OSError as error:
        print(f"cannot listen: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
