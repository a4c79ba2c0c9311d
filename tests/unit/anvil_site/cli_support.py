"""What the tests of the command line share: a scripted router on loopback, and a way to run ``anvil``."""

import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from anvil_site.cli import main

TOKEN = "sk-very-private-token-0123456789"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def envelope(self) -> dict[str, Any]:
        """The one JSON line on stdout; nothing else may have been printed."""
        assert self.err == ""
        assert self.out.count("\n") == 1
        value: dict[str, Any] = json.loads(self.out)
        assert list(value) == ["command", "ok", "context", "data", "warnings", "errors"]
        return value


class Anvil:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str) -> Result:
        self._capsys.readouterr()
        code = main(list(argv))
        captured = self._capsys.readouterr()
        return Result(code, captured.out, captured.err)


@dataclass(frozen=True)
class Asked:
    """One request as the fake router received it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class FakeRouter:
    """Answers each method and path from a queue; what was not scripted is answered 418."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    answers: dict[tuple[str, str], deque[tuple[int, bytes, dict[str, str]]]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    def answer(
        self, method: str, path: str, status: int, body: object = None, headers: dict[str, str] | None = None
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[method, path].append((status, data, headers or {}))


def _handler(router: FakeRouter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            headers = {key.lower(): value for key, value in self.headers.items()}
            router.asked.append(Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body))
            queue = router.answers[self.command, parts.path]
            status, data, extra = queue.popleft() if queue else (418, b"", {})
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for key, value in extra.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextmanager
def running_router() -> Iterator[FakeRouter]:
    router = FakeRouter(url="")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(router))
    server.daemon_threads = True
    router.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield router
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
