"""How one answer goes out: a head, then a script of payloads and accidents, then a way of framing it.

An ordinary answer is a `Delivery` whose script ends in `Final`. A fault (see `demo.faults`) edits the
delivery before it starts, so that the engine needs no special case for any of them.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from demo.wire import frame_chunk, render_head


class Final(bytes):
    """The last payload. The engine takes the request out of work before it writes this one."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Silence: for ``seconds``, or until the faults are cleared when None."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of the connection in the middle of things: a FIN, or a RST with ``reset``."""

    reset: bool = False


Item = bytes | Stall | Cut
Script = Iterator[Item]
Headers = list[tuple[str, str]]
Cutter = Callable[[list[bytes], bool], list[bytes]]
"""Frames and whether they are the last, to the segments to write one by one; it may hold bytes back."""

JSON_HEADERS: Headers = [("content-type", "application/json")]
STREAM_HEADERS: Headers = [("content-type", "text/event-stream; charset=utf-8")]


@dataclass(frozen=True, slots=True)
class WireErrors:
    """How a wire tells of an error: ``body`` of a message, a type and a status; ``events`` of a message."""

    body: Callable[[str, str, int], bytes]
    events: Callable[[str], bytes]


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One answer on its way. Exactly one of ``body`` (sent whole) and ``script`` (streamed) is given;
    a fault that interrupts a whole answer sets ``script`` beside the body it was made from.

    ``whole`` makes the non-streamed twin of a streamed answer. ``early_head`` sends the head as soon as
    the request is accepted, before a slot is free (as vLLM does for streams). ``immediate`` skips the
    queue and all times. ``errors`` are the wire's, where they are not vLLM's. ``interim`` goes out before
    the head, ``parts`` cuts a payload into HTTP chunks of its own, ``cutter`` cuts what is framed into
    segments that are ``gap`` seconds apart, and ``close_silently`` ends a connection that was said to stay
    open.
    """

    status: int = 200
    headers: Headers = field(default_factory=lambda: list(JSON_HEADERS))
    body: bytes | None = None
    script: Script | None = None
    whole: Callable[[], bytes] | None = None
    early_head: bool = False
    immediate: bool = False
    errors: "WireErrors | None" = None
    interim: bytes = b""
    parts: Callable[[bytes], list[bytes]] | None = None
    cutter: Cutter | None = None
    gap: float = 0.0
    chunk_extras: bool = False
    until_eof: bool = False
    close_silently: bool = False
    _compressor: "zlib._Compress | None" = None

    @property
    def streams(self) -> bool:
        """Whether the answer is an event stream."""
        return self.body is None

    def items(self) -> Script:
        """The script, also of an answer that is sent whole."""
        if self.script is not None:
            return self.script
        return iter([Final(self.body or b"")])

    def answer_whole(self, body: bytes, *, status: int = 200, headers: Headers | None = None) -> None:
        """Replace the answer by ``body``, to be sent at once."""
        self.status, self.body, self.script = status, body, None
        self.headers = list(JSON_HEADERS) if headers is None else headers
        self.immediate, self.early_head = True, False

    def compress(self) -> None:
        """Send it as gzip, asked for or not."""
        self.headers = [*self.headers, ("content-encoding", "gzip")]
        compressor = zlib.compressobj(wbits=31)
        if self.body is None:
            self._compressor = compressor
        else:
            self.body = compressor.compress(self.body) + compressor.flush()

    def render_head(self, *, closes: bool) -> bytes:
        """Interim answers, status line and headers; ``closes`` says that the connection will."""
        headers = [("server", "uvicorn"), *self.headers]
        if not self.until_eof:
            if self.body is not None:
                headers.append(("content-length", str(len(self.body))))
            else:
                headers.append(("transfer-encoding", "chunked"))
            if closes:
                headers.append(("connection", "close"))
        version = "HTTP/1.0" if self.until_eof else "HTTP/1.1"
        return self.interim + render_head(self.status, headers, version=version)

    def frame(self, payload: bytes) -> list[bytes]:
        """``payload`` as it goes onto the wire, one entry per HTTP chunk."""
        if self.body is not None:
            return [payload]
        if self.parts is None and self._compressor is None and not self.chunk_extras and not self.until_eof:
            return [frame_chunk(payload)]
        frames = []
        for part in self.parts(payload) if self.parts is not None else [payload]:
            if self._compressor is not None:
                part = self._compressor.compress(part) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
            if not self.until_eof:
                part = frame_chunk(part, extension=b';demo="1"' if self.chunk_extras else b"")
            frames.append(part)
        return frames

    def frame_end(self) -> bytes:
        """What closes the body."""
        if self.body is not None:
            return b""
        rest = self._compressor.flush() if self._compressor is not None else b""
        if self.until_eof:
            return rest
        trailer = b"x-demo-trailer: 1\r\n" if self.chunk_extras else b""
        return frame_chunk(rest) + b"0\r\n" + trailer + b"\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A generation request's answer, and what it costs: tokens to prefill, and decode steps."""

    delivery: Delivery
    prompt_tokens: int
    steps: int
