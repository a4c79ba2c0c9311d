"""HTTP/1.1 from the server's side, without I/O: bytes in, whole requests out.

The parser is stricter than most servers: a request that is framed in two ways, or that names a length
twice, is refused, so that a client with a smuggling bug is noticed by the first test that meets it.
"""

import http
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAX_HEAD_BYTES = 65_536
KNOWN_HEAD_BYTES = 4096
MAX_BODY_BYTES = 128 * 1024 * 1024


class BadRequest(ValueError):
    """What arrived is no request that can be answered; the connection must close after ``status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One whole request. Header names are lower-case; a repeated header's values are joined by ``, ``."""

    method: str
    path: str
    query: str
    version: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def keep_alive(self) -> bool:
        """Whether the client wants the connection to stay open after the answer."""
        tokens = self.headers.get("connection", "").lower()
        return "keep-alive" in tokens if self.version == "HTTP/1.0" else "close" not in tokens


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    path: str
    query: str
    version: str
    headers: dict[str, str]
    length: int
    chunked: bool


class RequestParser:
    """Feed it what arrives; take requests one at a time, in order, however they were cut or pipelined."""

    __slots__ = ("_buffer", "_decoded", "_head")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._decoded = bytearray()
        self._head: _Head | None = None

    def feed(self, data: bytes) -> None:
        """Add bytes in the order in which they arrived."""
        self._buffer += data

    @property
    def waits_for_continue(self) -> bool:
        """Whether the head asked for ``100 Continue`` and nothing of its body is here yet."""
        return (
            self._head is not None
            and not self._buffer
            and not self._decoded
            and self._head.headers.get("expect", "").lower() == "100-continue"
        )

    def take(self) -> Request | None:
        """The next whole request, or None while more bytes are needed. Raises BadRequest."""
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise BadRequest(431, "request header fields too large")
                return None
            head = bytes(self._buffer[:end])
            self._head = _parse_known_head(head) if end <= KNOWN_HEAD_BYTES else _parse_head(head)
            del self._buffer[: end + 4]
        parsed = self._head
        body = self._take_chunked() if parsed.chunked else self._take_sized(parsed.length)
        if body is None:
            return None
        self._head = None
        return Request(
            method=parsed.method,
            path=parsed.path,
            query=parsed.query,
            version=parsed.version,
            headers=parsed.headers,
            body=body,
        )

    def _take_sized(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _take_chunked(self) -> bytes | None:
        while True:
            line_end = self._buffer.find(b"\r\n")
            if line_end < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise BadRequest(400, "chunk header too long")
                return None
            size = _chunk_size(bytes(self._buffer[:line_end]))
            start = line_end + 2
            if size == 0:
                if self._buffer[start : start + 2] == b"\r\n":
                    end = start + 2
                else:
                    trailers = self._buffer.find(b"\r\n\r\n", start)
                    if trailers < 0:
                        return None
                    end = trailers + 4
                del self._buffer[:end]
                body = bytes(self._decoded)
                self._decoded.clear()
                return body
            if len(self._decoded) + size > MAX_BODY_BYTES:
                raise BadRequest(413, "request body too large")
            if len(self._buffer) < start + size + 2:
                return None
            if self._buffer[start + size : start + size + 2] != b"\r\n":
                raise BadRequest(400, "chunk is not closed")
            self._decoded += self._buffer[start : start + size]
            del self._buffer[: start + size + 2]


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        size = int(digits, 16)
    except ValueError:
        raise BadRequest(400, "chunk size is not hexadecimal") from None
    if size < 0 or not digits.isalnum():
        raise BadRequest(400, "chunk size is not hexadecimal")
    return size


def _parse_head(head: bytes) -> _Head:
    request_line, *lines = head.lstrip(b"\r\n").decode("latin-1").split("\r\n")
    try:
        method, target, version = request_line.split(" ")
    except ValueError:
        raise BadRequest(400, "malformed request line") from None
    if version not in ("HTTP/1.1", "HTTP/1.0") or not target.startswith("/"):
        raise BadRequest(400, "malformed request line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line:
            raise BadRequest(400, "malformed header")
        name, value = name.lower(), value.strip()
        if name in headers:
            if name in ("content-length", "transfer-encoding", "host"):
                raise BadRequest(400, f"repeated {name}")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    if version == "HTTP/1.1" and "host" not in headers:
        raise BadRequest(400, "missing host")
    coding = headers.get("transfer-encoding")
    declared = headers.get("content-length")
    if coding is not None and (coding.lower() != "chunked" or declared is not None):
        raise BadRequest(400, "unsupported framing")
    if declared is not None and not (declared.isascii() and declared.isdigit()):
        raise BadRequest(400, "malformed content-length")
    length = int(declared or 0)
    if length > MAX_BODY_BYTES:
        raise BadRequest(413, "request body too large")
    path, _, query = target.partition("?")
    return _Head(method, path, query, version, headers, length, coding is not None)


@lru_cache(maxsize=256)
def _parse_known_head(head: bytes) -> _Head:
    """A client repeats its heads: on a busy connection this is the larger part of a request's cost."""
    return _parse_head(head)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def compact_json(value: Any) -> bytes:
    """``value`` as compact JSON in UTF-8, non-ASCII characters as themselves (as vLLM sends them).

    A lone surrogate becomes a question mark.
    """
    return _ENCODER.encode(value).encode(errors="replace")


def render_head(status: int, headers: Iterable[tuple[str, str]], *, version: str = "HTTP/1.1") -> bytes:
    """Status line and headers, blank line included."""
    try:
        reason = http.HTTPStatus(status).phrase
    except ValueError:
        reason = "Unknown"
    lines = [f"{version} {status} {reason}"]
    lines.extend(f"{name}: {value}" for name, value in headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def frame_chunk(payload: bytes, *, extension: bytes = b"") -> bytes:
    """One HTTP chunk; nothing for an empty payload, since that would end the body."""
    return b"%x%b\r\n%b\r\n" % (len(payload), extension, payload) if payload else b""
