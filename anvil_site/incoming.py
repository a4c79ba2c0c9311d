"""HTTP/1.1 requests as the worker takes them in: a strict head, and a chunked body read as it comes.

Pure: bytes in, values out. What is not plain HTTP/1.1 as RFC 9112 wants it from a client (a bare line feed,
a folded field, two lengths, a transfer coding besides chunked) is refused rather than repaired, since a proxy
in front may have read it otherwise.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 100
MAX_TRAILER_BYTES: Final = 8 * 1024

CHUNKS_AT_ONCE: Final = 1_000
"""Lines of a chunked body that are read in one go: a millisecond's work. 256 KiB can hold 43,000 chunks."""

BODY_SILENCE: Final = 30.0
"""Seconds without a byte of a body after which its caller is not waited for (house, process 2)."""

BODY_MIN_RATE: Final = 8 * 1024
"""Bytes a second at which a body has to come on average, so that nobody holds a budget by sending a byte now
and then. Kestrel asks for 240 and Apache's mod_reqtimeout for 500, where nothing is kept of a body; here
everything is. No client that works is so slow, and 32 MiB are over in 68 minutes."""

_FIELD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*"
_HEAD = re.compile(
    rb"([A-Z]{3,16}) (?:https?://[A-Za-z0-9.:\[\]_-]+)?(/[!-~]*) HTTP/1\.([01])\r\n"
    rb"((?:" + _FIELD + rb"\r\n)*)"
)
_BARE = rb"(?<!\r)\n|\r[^\n]"
_BARE_LINE_END = re.compile(_BARE)
_HOPELESS = re.compile(rb"\A[^A-Z\r]|" + _BARE)
_TRAILER = re.compile(_FIELD)
_LENGTH = re.compile(r"[0-9]{1,15}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")

_SINGLE: Final = frozenset({"host", "content-length", "transfer-encoding", "authorization", "x-api-key"})
"""Fields whose repetition is refused: two readers could each believe another one."""


class BadRequest(ValueError):
    """The bytes are not a request that may be served; ``status`` says why, the text names nothing of it."""

    def __init__(self, status: Literal[400, 417, 431, 501]) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """One request's head. ``fields`` are (lower-case name, stripped value) in order.

    ``path`` is still encoded. ``content_length`` is None for a chunked body, 0 when the request has none.
    """

    method: str
    path: str
    query: str
    http11: bool
    keep_alive: bool
    content_length: int | None
    expects_continue: bool
    fields: tuple[tuple[str, str], ...]

    @property
    def decoded_path(self) -> str:
        """The path as WSGI's PATH_INFO has it."""
        return unquote_to_bytes(self.path).decode("latin-1") if "%" in self.path else self.path

    def field(self, name: str) -> str | None:
        """The value of the first field of that lower-case name."""
        return next((value for key, value in self.fields if key == name), None)

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


def cannot_become_head(beginning: bytes | bytearray, seen: int = 0) -> bool:
    """Whether no further bytes can make a head of ``beginning``, in which no blank line has come yet.

    Who sends line feeds alone, or speaks another protocol, need not wait for a deadline to hear of it. The
    first ``seen`` bytes were looked at before: who sends a head byte by byte has each byte looked at once.
    """
    return _HOPELESS.search(beginning, max(0, seen - 1)) is not None


def next_body_deadline(
    deadline: float, *, now: float, received: int, silence: float, min_rate: float
) -> float:
    """Until when a body is waited for after ``received`` more bytes of it came ``now``, all on one clock.

    Bytes buy time at ``min_rate``, but never more than ``silence`` seconds ahead: a burst pays for no
    trickle. A body begins with all of that time.
    """
    return min(now + silence, deadline + received / min_rate)


def parse_head(data: bytes) -> RequestHead:
    """The head in ``data``, which ends with its blank line. Raises BadRequest."""
    match = _HEAD.fullmatch(data, 0, len(data) - 2)
    if match is None:
        raise BadRequest(400)
    method, target, minor, block = match.groups()
    fields: list[tuple[str, str]] = []
    found: dict[str, str] = {}
    for line in block.decode("latin-1").split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        name = name.lower()
        value = value.strip(" \t")
        if name in found and name in _SINGLE:
            raise BadRequest(400)
        found[name] = value
        fields.append((name, value))
    if len(fields) > MAX_FIELDS:
        raise BadRequest(431)
    http11 = minor == b"1"
    if http11 and "host" not in found:
        raise BadRequest(400)
    path, _, query = target.decode("ascii").partition("?")
    options = {option.strip().lower() for option in found.get("connection", "").split(",")}
    keep_alive = "close" not in options if http11 else "keep-alive" in options
    expect = found.get("expect", "").lower()
    if expect not in ("", "100-continue"):
        raise BadRequest(417)
    return RequestHead(
        method=method.decode("ascii"),
        path=path,
        query=query,
        http11=http11,
        keep_alive=keep_alive,
        content_length=_content_length(found, http11=http11),
        expects_continue=expect != "" and http11,
        fields=tuple(fields),
    )


def _content_length(found: dict[str, str], *, http11: bool) -> int | None:
    coding = found.get("transfer-encoding")
    length = found.get("content-length")
    if coding is not None:
        if not http11 or length is not None:
            raise BadRequest(400)
        if coding.lower() != "chunked":
            raise BadRequest(501)
        return None
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise BadRequest(400)
    return int(length)


class ChunkedBody:
    """A chunked body, decoded as it arrives. ``take`` consumes what it can from the front of a buffer, at
    most `CHUNKS_AT_ONCE` lines; ``unfinished`` says that it stopped for their number."""

    __slots__ = ("_left", "_state", "_trailer", "body", "unfinished")

    def __init__(self) -> None:
        self.body = bytearray()
        self.unfinished = False
        self._left = 0
        self._trailer = 0
        self._state: Literal["size", "data", "end", "trailer"] = "size"

    def take(self, buffer: bytearray) -> bool:
        """Consume from ``buffer``; True once the body is complete. Raises BadRequest."""
        self.unfinished = False
        for _ in range(CHUNKS_AT_ONCE):
            if self._state == "data":
                part = buffer[: self._left]
                self.body += part
                del buffer[: len(part)]
                self._left -= len(part)
                if self._left:
                    return False
                self._state = "end"
            end = buffer.find(b"\r\n")
            if end < 0:
                is_stray = self._state == "end" and buffer and buffer != b"\r"
                if is_stray or len(buffer) > MAX_TRAILER_BYTES or _BARE_LINE_END.search(buffer):
                    raise BadRequest(400)
                return False
            line = bytes(buffer[:end])
            if self._state == "end" and line:
                raise BadRequest(400)
            del buffer[: end + 2]
            if self._state == "size":
                match = _CHUNK_SIZE.fullmatch(line)
                if match is None:
                    raise BadRequest(400)
                self._left = int(match[1], 16)
                self._state = "data" if self._left else "trailer"
            elif self._state == "end":
                self._state = "size"
            elif not line:
                return True
            elif _TRAILER.fullmatch(line) is None:
                raise BadRequest(400)
            else:
                self._trailer += len(line)
                if self._trailer > MAX_TRAILER_BYTES:
                    raise BadRequest(400)
        self.unfinished = True
        return False
