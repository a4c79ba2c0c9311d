"""Sockets: the listening port, its connections, and the answers on their way out."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from demo.delivery import Delivery, Final, Script, Stall
from demo.wire import BadRequest, Request, RequestParser, compact_json

if TYPE_CHECKING:
    from demo.engine import Engine

BACKLOG = 4096
WRITE_AT_ONCE_BYTES = 65_536


class Job:
    """One answer on its way to one connection: waiting, running, over."""

    __slots__ = (
        "_due",
        "_head",
        "_held",
        "_script",
        "connection",
        "counted",
        "delivery",
        "generated",
        "is_over",
        "keep_alive",
        "prompt_tokens",
        "started",
        "steps",
    )

    def __init__(
        self,
        connection: "Connection",
        delivery: Delivery,
        *,
        keep_alive: bool,
        counted: bool = False,
        prompt_tokens: int = 0,
        steps: int = 0,
    ) -> None:
        self.connection = connection
        self.delivery = delivery
        self.keep_alive = keep_alive and not delivery.until_eof
        self.counted = counted
        self.prompt_tokens = prompt_tokens
        self.generated = 0
        self.is_over = False
        self.started = connection.engine.loop.time()
        self.steps = steps
        self._due = 0.0
        self._head: bytes | None = delivery.render_head(closes=not self.keep_alive)
        self._held = False
        self._script: Script = delivery.items()

    def send_head(self) -> None:
        """Send the head ahead of everything else; nothing to do when it is gone already."""
        if self._head is not None:
            self._send([], last=False)

    def begin(self) -> None:
        """Prefill and generate: a slot is free."""
        engine = self.connection.engine
        settings = engine.settings
        if self.delivery.immediate or not self.counted:
            self.advance()
            return
        decoding = 0.0 if self.delivery.streams else self.steps * settings.token
        self._due = engine.loop.time() + settings.prefill + decoding
        if settings.prefill + decoding > 0:
            engine.ticker.at(self._due, self.advance)
        else:
            self.advance()

    def resume(self) -> None:
        """Go on after a stall, from now."""
        self._due = self.connection.engine.loop.time()
        self.advance()

    def writable(self) -> None:
        """The connection takes bytes again."""
        if self._held:
            self._held = False
            self.advance()

    def advance(self) -> None:
        """Send what is due, up to the next wait or the end."""
        if self.is_over:
            return
        engine = self.connection.engine
        delivery = self.delivery
        interval = engine.settings.token if delivery.streams and not delivery.immediate else 0.0
        frames: list[bytes] = []
        pending = 0
        while True:
            if self.connection.write_paused:
                self._held = True
                break
            item = next(self._script)
            if isinstance(item, bytes) and not isinstance(item, Final):
                frames += delivery.frame(item)
                if item and self.counted and delivery.streams:
                    self._count_step(engine)
                if not item or interval > 0 or (pending := pending + len(item)) > WRITE_AT_ONCE_BYTES:
                    self._send(frames, last=False)
                    frames, pending = [], 0
                if item and interval > 0:
                    self._due += interval
                    engine.ticker.at(self._due, self.advance)
                    return
            elif isinstance(item, Final):
                engine.end(self, "failed" if delivery.status >= 400 else "completed")
                frames += [*delivery.frame(item), delivery.frame_end()]
                self._send(frames, last=True)
                close = not self.keep_alive or delivery.close_silently
                self.connection.after_writes(self.connection.close if close else self.connection.answered)
                return
            else:
                self._flush(frames)
                if isinstance(item, Stall):
                    engine.stall(self, item.seconds)
                    return
                engine.end(self, "failed")
                self.connection.after_writes(self.connection.reset if item.reset else self.connection.close)
                return
        self._flush(frames)

    def _flush(self, frames: list[bytes]) -> None:
        if frames:
            self._send(frames, last=False)

    def _send(self, frames: list[bytes], *, last: bool) -> None:
        if self._head is not None:
            frames = [self._head, *frames]
            self._head = None
        if self.delivery.cutter is None:
            self.connection.write(b"".join(frames))
        else:
            self.connection.write_segments(self.delivery.cutter(frames, last), self.delivery.gap)

    def _count_step(self, engine: "Engine") -> None:
        if self.generated == 0:
            engine.metrics.first_token.observe(engine.loop.time() - self.started)
        self.generated += 1
        engine.metrics.generation_tokens += 1


class Connection(asyncio.Protocol):
    """One client connection: requests in, one answer after the other out."""

    def __init__(self, engine: "Engine", *, control: bool) -> None:
        self.engine = engine
        self.control = control
        self.number = 0
        self.job: Job | None = None
        self.write_paused = False
        self._transport: asyncio.Transport
        self._parser = RequestParser()
        self._busy = False
        self._taking = False
        self._closed = False
        self._idle_since: float | None = None
        self._idle_watched = False
        self._segments: deque[bytes] = deque()
        self._gap = 0.0
        self._then: Callable[[], None] | None = None

    # What the loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self.control:
            self.number = self.engine.opened(self)

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        self._parser.feed(data)
        self._take_requests()

    def eof_received(self) -> bool:
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self.engine.connections.discard(self)
        self._gone()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.job is not None:
            self.job.writable()

    # What answers need.

    def write(self, data: bytes) -> None:
        """Send bytes after everything that was written before."""
        if self._segments:
            self._segments.append(data)
        elif not self._closed:
            self._transport.write(data)

    def write_segments(self, segments: list[bytes], gap: float) -> None:
        """Send each segment on its own, ``gap`` seconds after the one before."""
        idle = not self._segments
        self._segments.extend(segment for segment in segments if segment)
        self._gap = gap
        if idle and self._segments:
            self._write_segment()

    def _write_segment(self) -> None:
        if self._closed:
            self._segments.clear()
            return
        self._transport.write(self._segments.popleft())
        if self._segments:
            if self._gap > 0:
                self.engine.ticker.at(self.engine.loop.time() + self._gap, self._write_segment)
            else:
                self.engine.loop.call_soon(self._write_segment)
        elif self._then is not None:
            then, self._then = self._then, None
            then()

    def after_writes(self, then: Callable[[], None]) -> None:
        """Do something once all segments are written."""
        if self._segments:
            self._then = then
        else:
            then()

    def answered(self) -> None:
        """The answer is complete: the next request may be taken."""
        self.job, self._busy = None, False
        if self.number and self.engine.settings.keep_alive > 0:
            self._watch_idle()
        self._take_requests()

    def close(self) -> None:
        """Send what is written, then FIN."""
        self._closed = True
        self._transport.close()

    def reset(self) -> None:
        """RST."""
        self._closed = True
        peer: socket.socket | None = self._transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being answered."""
        return not self._busy

    def _gone(self) -> None:
        if self.job is not None:
            self.engine.end(self.job, "cancelled")

    def _take_requests(self) -> None:
        if self._taking:
            return
        self._taking = True
        try:
            while not self._busy and not self._closed:
                request = self._parser.take()
                if request is None:
                    if self._parser.waits_for_continue:
                        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    break
                self._busy = True
                self._answer(request)
        except BadRequest as error:
            self._busy = True
            delivery = Delivery(status=error.status, body=compact_json({"detail": str(error)}))
            Job(self, delivery, keep_alive=False).begin()
        finally:
            self._taking = False

    def _answer(self, request: Request) -> None:
        self._idle_since = None
        try:
            self.job = self.engine.answer(self, request)
            self.engine.submit(self.job)
        except Exception as error:  # noqa: BLE001 - as a server does: this request fails, the engine goes on
            self.engine.loop.call_exception_handler({"message": "a request failed", "exception": error})
            self._gone()
            self.close()

    def _watch_idle(self) -> None:
        """Close it when it stays idle, as uvicorn does. One timer per connection is under way at most."""
        self._idle_since = self.engine.loop.time()
        if not self._idle_watched:
            self._idle_watched = True
            self.engine.ticker.at(self._idle_since + self.engine.settings.keep_alive, self._end_of_idle_time)

    def _end_of_idle_time(self) -> None:
        self._idle_watched = False
        if self._closed or self._idle_since is None:
            return
        until = self._idle_since + self.engine.settings.keep_alive
        if self.engine.loop.time() >= until:
            self.close()
        else:
            self._idle_watched = True
            self.engine.ticker.at(until, self._end_of_idle_time)


class Listener:
    """A listening port that can refuse connections for a while without losing its number."""

    def __init__(self, host: str, port: int, factory: Callable[[], Connection]) -> None:
        self._factory = factory
        self._server: asyncio.Server | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._socket = self._bind((host, port))
        self.port: int = self._socket.getsockname()[1]

    @staticmethod
    def _bind(address: tuple[str, int]) -> socket.socket:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        return bound

    @property
    def refuses(self) -> bool:
        """Whether connections are refused at the moment."""
        return self._server is None and self._attaching is None

    def listen(self) -> None:
        """Accept connections, queued from the return of this on. Nothing to do when it does already."""
        if self.refuses:
            self._socket.listen(BACKLOG)
            self._attaching = asyncio.get_running_loop().create_task(self._attach())

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._factory, sock=self._socket, backlog=BACKLOG)
        self._attaching = None

    def refuse(self) -> None:
        """Stop accepting. A bound socket that does not listen keeps the port meanwhile."""
        if self._server is not None:
            address = self._socket.getsockname()
            self._socket.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
            self._socket = self._bind(address)

    def close(self) -> None:
        """Give the port up."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
