"""HTTP/1.1 responses, incrementally: bytes in, decoded body bytes out. Sans-IO, for one response.

Reads what RFC 9112 allows a server to send in answer to a POST and refuses the rest instead of guessing:
a length that is doubtful on a pooled connection would hand one caller the bytes of another. Does NOT read
requests, does not follow redirects, upgrade, or accept bare LF line ends, folded fields, transfer codings
other than ``chunked`` or content codings other than gzip and deflate.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Final

MAX_HEAD_BYTES: Final = 64 * 1024
"""Bound of a head, of the interim heads before it together with it, and of a trailer section."""

MAX_FIELDS: Final = 100
"""Bound of the fields in a head or a trailer section."""

MAX_CHUNK_LINE_BYTES: Final = 4096
"""Bound of a chunk's size line, extensions included."""

_FIELD = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}:[^\x00-\x08\x0a-\x1f\x7f]*\r\n"
_FIELDS = re.compile(rb"(?:" + _FIELD + rb"){0,%d}" % MAX_FIELDS)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_WANTED = re.compile(
    rb"(?:^|\n)(content-length|transfer-encoding|connection|content-type|content-encoding|retry-after)"
    rb":[ \t]*([^\r]*?)[ \t]*\r",
    re.IGNORECASE,
)
_LENGTH = re.compile(rb"[0-9]{1,15}")

_CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_CHUNK_LINE_BEGUN = re.compile(rb"(?:[0-9a-fA-F]{1,15}(?:[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r?)?)?")

_BARE = re.compile(rb"(?<!\r)\n|\r[^\n]")
"""A line end that is none (RFC 9112, 2.2): no further byte makes lines that contain it valid."""

_PREAMBLE: Final = b"HTTP/1."


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """What the exchange needs of a final (not 1xx) response head.

    ``media_type`` is lower-case without parameters, ``""`` when absent; ``content_type`` the whole value.
    ``retry_after`` is the field's text when it came exactly once.
    """

    status: int
    media_type: str
    content_type: str
    retry_after: str | None


class ResponseParser:
    """One response. ``max_decoded`` bounds the body of a content-coded response, in bytes after decoding.

    Attributes to read: ``head`` (None until the final head is complete), ``complete`` (the message has been
    read to its end), ``malformed`` (it cannot be; nothing more is read), ``reusable`` (complete, nothing
    came after it, and the server keeps the connection).

    Body bytes that precede a fault in the same call are still returned: look at ``malformed`` afterwards.
    """

    __slots__ = (
        "_buffer",
        "_chunked",
        "_head_bytes",
        "_in_trailer",
        "_inflater",
        "_keep_alive",
        "_left",
        "_max_decoded",
        "_until_eof",
        "_wants_crlf",
        "complete",
        "head",
        "malformed",
        "reusable",
    )

    def __init__(self, *, max_decoded: int) -> None:
        self.head: ResponseHead | None = None
        self.complete = False
        self.malformed = False
        self.reusable = False
        self._max_decoded = max_decoded
        self._buffer = b""
        """Bytes of a head, a chunk's size line or a trailer that is not complete yet."""
        self._head_bytes = 0
        self._keep_alive = False
        self._chunked = False
        self._until_eof = False
        self._left = 0
        """Bytes to come of the body, or of the current chunk."""
        self._wants_crlf = False
        self._in_trailer = False
        self._inflater: _Inflater | None = None

    @property
    def will_be_reusable(self) -> bool:
        """Whether the connection becomes reusable if the rest of the message comes and nothing after it."""
        return self._keep_alive and not self.complete and not self.malformed

    def feed(self, data: bytes) -> bytes:
        """The body bytes in ``data``."""
        if self.complete:
            if data:
                self.reusable = False
            return b""
        if self.malformed:
            return b""
        if self.head is None:
            data = self._read_head(data)
            if self.head is None:
                return b""
        if self._chunked:
            body = self._read_chunks(data)
        elif self._until_eof:
            body = data
        else:
            body = self._read_counted(data)
        return body if self._inflater is None else self._inflate(body)

    def feed_eof(self) -> None:
        """The server closed: the proper end of a body without length, and the middle of any other."""
        if self._until_eof and not self.malformed:
            self._end()
            if self._inflater is not None:
                self._inflate(b"")
        self.reusable = False

    def _end(self) -> None:
        self.complete = True
        self.reusable = self._keep_alive

    def _fault(self) -> None:
        self.malformed = True
        self.complete = False
        self.reusable = False
        self._buffer = b""

    def _read_head(self, data: bytes) -> bytes:
        """Reads heads up to the final one; returns what follows it."""
        data = self._buffer + data
        while True:
            if not data.startswith(_PREAMBLE[: len(data)]):
                self._fault()
                return b""
            end = data.find(b"\r\n\r\n")
            size = len(data) if end < 0 else end + 4
            if self._head_bytes + size > MAX_HEAD_BYTES:
                self._fault()
                return b""
            if end < 0:
                self._keep_lines(data)
                return b""
            self._buffer = b""
            self._head_bytes += size
            self._take_head(data[: end + 2])
            data = data[end + 4 :]
            if self.head is not None or self.malformed:
                break
            if not data:
                return b""
        if self.complete and data:
            self.reusable = False
        return data

    def _take_head(self, block: bytes) -> None:
        """One head: status line and fields, each with its line end."""
        line = _STATUS_LINE.match(block)
        if line is None or _FIELDS.fullmatch(block, line.end()) is None:
            return self._fault()
        status = int(line[2])
        if 100 <= status < 200:
            # Interim answers are skipped; nobody asked to switch protocols.
            return self._fault() if status == 101 else None
        wanted: dict[bytes, list[bytes]] = {}
        for name, value in _WANTED.findall(block, line.end() - 1):
            wanted.setdefault(name.lower(), []).append(value)

        tokens = [token.strip() for token in b",".join(wanted.get(b"connection", ())).lower().split(b",")]
        self._keep_alive = b"close" not in tokens and (line[1] == b"1" or b"keep-alive" in tokens)

        if not self._take_framing(status, line[1], wanted) or not self._take_coding(wanted):
            return self._fault()
        types = wanted.get(b"content-type", [b""])
        retry_after = wanted.get(b"retry-after", [])
        content_type = types[0].decode("latin-1")
        self.head = ResponseHead(
            status=status,
            media_type=content_type.partition(";")[0].strip().lower(),
            content_type=content_type,
            retry_after=retry_after[0].decode("latin-1") if len(retry_after) == 1 else None,
        )
        return None

    def _take_framing(self, status: int, version: bytes, wanted: dict[bytes, list[bytes]]) -> bool:
        """How the body ends (RFC 9112, 6.3). False where two readers could disagree about it."""
        lengths = wanted.get(b"content-length", [])
        codings = wanted.get(b"transfer-encoding", [])
        if len(lengths) > 1 or (lengths and (codings or _LENGTH.fullmatch(lengths[0]) is None)):
            return False
        if codings and (version == b"0" or [coding.lower() for coding in codings] != [b"chunked"]):
            return False
        if status in (204, 304):
            self._end()
        elif codings:
            self._chunked = True
        elif lengths:
            self._left = int(lengths[0])
            if self._left == 0:
                self._end()
        else:
            self._until_eof = True
            self._keep_alive = False
        return True

    def _take_coding(self, wanted: dict[bytes, list[bytes]]) -> bool:
        """Content codings are never asked for; the two that every server knows are decoded all the same."""
        codings = [coding.lower() for coding in wanted.get(b"content-encoding", []) if coding]
        if self.complete or codings in ([], [b"identity"]):
            return True
        if codings not in ([b"gzip"], [b"x-gzip"], [b"deflate"]):
            return False
        self._inflater = _Inflater(gzip=codings != [b"deflate"], limit=self._max_decoded)
        return True

    def _read_counted(self, data: bytes) -> bytes:
        size = len(data)
        if size < self._left:
            self._left -= size
            return data
        body = data[: self._left]
        self._left = 0
        if not self.complete:
            self._end()
        if len(body) < size:
            self.reusable = False
        return body

    def _read_chunks(self, data: bytes) -> bytes:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            if self._in_trailer:
                self._read_trailer(data[at:])
                break
            if self._left:
                end = at + self._left
                if end > size:
                    parts.append(data[at:])
                    self._left = end - size
                    break
                parts.append(data[at:end])
                at = end
                self._left = 0
                self._wants_crlf = True
            elif self._wants_crlf:
                if data.startswith(b"\r\n", at):
                    at += 2
                    self._wants_crlf = False
                else:
                    self._keep_or_fault(data[at:], begun=data[at:] == b"\r")
                    break
            else:
                line = _CHUNK_LINE.match(data, at)
                if line is None:
                    rest = data[at:]
                    self._keep_or_fault(rest, begun=_CHUNK_LINE_BEGUN.fullmatch(rest) is not None)
                    break
                if line.end() - at > MAX_CHUNK_LINE_BYTES:
                    self._fault()
                    break
                at = line.end()
                self._left = int(line[1], 16)
                self._in_trailer = self._left == 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _keep_or_fault(self, rest: bytes, *, begun: bool) -> None:
        if begun and len(rest) <= MAX_CHUNK_LINE_BYTES:
            self._buffer = rest
        else:
            self._fault()

    def _keep_lines(self, data: bytes) -> None:
        """Keep lines whose blank line has not come yet, unless there is no waiting for it."""
        if _BARE.search(data) is None:
            self._buffer = data
        else:
            self._fault()

    def _read_trailer(self, data: bytes) -> None:
        """The lines after the last chunk: read past, never used."""
        fields = 0 if data.startswith(b"\r\n") else data.find(b"\r\n\r\n") + 2
        unfinished = fields == 1
        if (len(data) if unfinished else fields + 2) > MAX_HEAD_BYTES:
            self._fault()
        elif unfinished:
            self._keep_lines(data)
        elif _FIELDS.fullmatch(data, 0, fields) is None:
            self._fault()
        else:
            self._end()
            if len(data) > fields + 2:
                self.reusable = False

    def _inflate(self, body: bytes) -> bytes:
        inflater = self._inflater
        if inflater is None:
            return body
        decoded = inflater.feed(body)
        if inflater.failed or (self.complete and inflater.unfinished):
            self._fault()
        return decoded


class _Inflater:
    """Undoes gzip or deflate; ``failed`` once it is corrupt, goes on after its end, or passes ``limit``."""

    __slots__ = ("_gzip", "_left", "_start", "_stream", "failed")

    def __init__(self, *, gzip: bool, limit: int) -> None:
        self.failed = False
        self._gzip = gzip
        self._left = limit
        self._start = b""
        self._stream: zlib._Decompress | None = None

    @property
    def unfinished(self) -> bool:
        """Whether data has come and its end has not."""
        return bool(self._start) if self._stream is None else not self._stream.eof

    def feed(self, data: bytes) -> bytes:
        if self.failed or not data:
            return b""
        if self._stream is None:
            # "deflate" means the zlib format; some servers send the bare one. The first two bytes tell.
            self._start += data
            if len(self._start) < 2:
                return b""
            data, self._start = self._start, b""
            zlib_format = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
            self._stream = zlib.decompressobj(31 if self._gzip else 15 if zlib_format else -15)
        try:
            decoded = self._stream.decompress(data, self._left + 1)
        except zlib.error:
            self.failed = True
            return b""
        if len(decoded) > self._left or self._stream.unused_data:
            self.failed = True
            decoded = decoded[: self._left]
        self._left -= len(decoded)
        return decoded
