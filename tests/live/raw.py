"""An HTTP/1.1 client on a raw socket: it misbehaves as told, and reads strictly."""

import json
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

HOST = "127.0.0.1"
TOKEN = "live-test-token"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status line and headers as they came; ``headers`` keeps order and repeats, names lower-case."""

    version: str
    status: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """The header's first value."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event (or comment) as it came, without its blank line, and when (monotonic seconds)."""

    at: float
    raw: bytes

    @property
    def data(self) -> str | None:
        """Its data lines joined; None when it has none."""
        lines = [line[5:].removeprefix(b" ") for line in self.raw.splitlines() if line.startswith(b"data:")]
        return b"\n".join(lines).decode() if lines else None

    def json(self) -> Any:
        assert self.data is not None
        return json.loads(self.data)


@dataclass(slots=True, kw_only=True)
class Response:
    """An answer read to its end. ``ending`` says how that came: ``length`` or ``chunked`` as announced,
    ``eof`` where the connection's end is the body's, ``cut`` or ``reset`` before an announced end."""

    head: Head
    interim: list[Head] = field(default_factory=list)
    body: bytes = b""
    trailers: tuple[tuple[str, str], ...] = ()
    ending: str = ""

    @property
    def status(self) -> int:
        return self.head.status

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[str]:
        """The data of each event of the body, a last one without its blank line too."""
        events = (Event(at=0.0, raw=raw) for raw in self.body.replace(b"\r\n", b"\n").split(b"\n\n"))
        return [event.data for event in events if event.data is not None]

    @property
    def text(self) -> str:
        """The content deltas of the first choice, joined."""
        chunks = (json.loads(data) for data in self.data if data != "[DONE]")
        choices = (chunk["choices"][0] for chunk in chunks if chunk.get("choices"))
        return "".join(choice["delta"].get("content") or "" for choice in choices)


class _Ended(Exception):
    """The connection ended: ``cut`` or ``reset``."""


def build_request(
    method: str,
    path: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    token: str | None = TOKEN,
) -> bytes:
    """A request's bytes, to be sent whole or in pieces."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class RawConnection:
    """A TCP connection that speaks HTTP/1.1 as badly as it is told to. Its reader is strict.

    ``timeout`` bounds each call, in seconds. A context manager; leaving it closes the socket.
    """

    def __init__(self, port: int, *, timeout: float = 10.0, receive_buffer: int | None = None) -> None:
        self._timeout = timeout
        self._buffer = bytearray()
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect((HOST, port))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def post(self, body: object, *, path: str = CHAT, **options: Any) -> None:
        """Send a whole POST request (see `build_request`)."""
        self.send(build_request("POST", path, body=body, **options))

    def half_close(self) -> None:
        """Send FIN, and go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Send RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        """Close in order; nothing to do twice."""
        self._socket.close()

    def receive(self, *, at_most: int = 65_536) -> bytes:
        """The next bytes as one read gives them, ``b""`` at the end. Raises TimeoutError, ConnectionError."""
        if self._buffer:
            data = bytes(self._buffer[:at_most])
            del self._buffer[:at_most]
            return data
        return self._socket.recv(at_most)

    def await_end(self) -> str:
        """Read on until the connection ends: ``cut`` for FIN, ``reset`` for RST."""
        try:
            while True:
                self._fill()
                self._buffer.clear()
        except _Ended as end:
            return str(end)

    def _fill(self) -> None:
        try:
            data = self._socket.recv(65_536)
        except ConnectionResetError:
            raise _Ended("reset") from None
        if not data:
            raise _Ended("cut")
        self._buffer += data

    def _take_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            assert b"\n" not in self._buffer, "a bare line feed"
            self._fill()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _take_fields(self) -> tuple[tuple[str, str], ...]:
        fields = []
        while line := self._take_line():
            name, colon, value = line.decode("latin-1").partition(":")
            assert colon, line
            assert name == name.strip(), line
            fields.append((name.lower(), value.strip()))
        return tuple(fields)

    def read_head(self) -> Head:
        """The next head, interim ones too. Raises ConnectionError when the connection ends before."""
        try:
            version, status, _ = self._take_line().decode("latin-1").split(" ", 2)
            return Head(version=version, status=int(status), headers=self._take_fields())
        except _Ended as end:
            raise ConnectionError(f"no head: {end}") from None

    def read_response(self) -> Response:
        """The next answer, read to its end, whatever that end is."""
        response = self.start_response()
        for piece in self.pieces(response):
            response.body += piece
        return response

    def start_response(self) -> Response:
        """The next answer's head, after any interim ones; its body is still to be read."""
        interim = []
        while 100 <= (head := self.read_head()).status < 200:
            interim.append(head)
        return Response(head=head, interim=interim)

    def pieces(self, response: Response) -> Iterator[bytes]:
        """The body as it comes, by HTTP chunks or reads. Sets the response's ``ending`` and ``trailers``."""
        head = response.head
        length = head.get("content-length")
        try:
            if head.get("transfer-encoding") == "chunked":
                assert length is None, "framed in two ways"
                while size := int(self._take_line().partition(b";")[0], 16):
                    yield self._take(size)
                    assert self._take(2) == b"\r\n", "a chunk is not closed"
                response.trailers = self._take_fields()
                response.ending = "chunked"
            elif length is not None:
                rest = int(length)
                while rest:
                    if not self._buffer:
                        self._fill()
                    piece = self._take(min(rest, len(self._buffer)))
                    rest -= len(piece)
                    yield piece
                response.ending = "length"
            else:
                while True:
                    if self._buffer:
                        yield self._take(len(self._buffer))
                    self._fill()
        except _Ended as end:
            by_eof = length is None and head.get("transfer-encoding") is None and str(end) == "cut"
            response.ending = "eof" if by_eof else str(end)

    def events(self, response: Response) -> Iterator[Event]:
        """The events of a streamed answer as they come. Adds to its body; sets its ``ending`` at last."""
        rest = b""
        for piece in self.pieces(response):
            at = time.monotonic()
            response.body += piece
            rest = (rest + piece).replace(b"\r\n", b"\n")
            *whole, rest = rest.split(b"\n\n")
            yield from (Event(at=at, raw=raw) for raw in whole)
        if rest:
            yield Event(at=time.monotonic(), raw=rest)
