"""Random callers: what each of them sends, how it behaves meanwhile, and what it must get."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.wire import PATIENCE, Ended, Line, Reply
from tests.live.raw import CHAT, build_request

MAX_BODY: Final = 2_000_000
"""ANVIL_MAX_BODY_BYTES of the run."""

RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
EMBEDDINGS: Final = "/v1/embeddings"
PATHS: Final = (CHAT, CHAT, CHAT, RESPONSES, MESSAGES)

ENDS: Final = {
    CHAT: b"data: [DONE]",
    RESPONSES: b"event: response.",
    MESSAGES: b"event: message_stop",
}
"""What the proper end of a stream holds; an error event says ``error`` instead."""

REFUSED_WITH_RECORD: Final = frozenset({"model_unavailable", "context_length_exceeded"})
NO_RECORD: Final = frozenset(
    {
        "model_not_found",
        "server_busy",
        "request_too_large",
        "invalid_api_key",
        "method_not_allowed",
        "bad_request",
        "invalid_json",
        "invalid_request",
    }
)


@dataclass(slots=True)
class Sent:
    """One request: what was sent of it, and what came of that."""

    id: str
    path: str
    complete: bool = False
    status: int | None = None
    dispatched: bool | None = None
    """Whether its answer names the tier that it was sent to; None without an answer."""
    recorded: bool | None = None
    """Whether its answer is one that leaves a record."""


@dataclass(slots=True)
class Tally:
    """What all callers have met. ``violation`` is told of what must not be."""

    violation: Callable[[str], None]
    sent: dict[str, Sent] = field(default_factory=dict)
    behaviours: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)


class Caller:
    """One caller after another, on connections of their own, until ``stop`` is set."""

    def __init__(self, number: int, *, seed: int, port: int, aliases: tuple[str, ...], tally: Tally) -> None:
        self._random = random.Random(f"{seed}/{number}")
        self._name = f"{seed:x}x{number:x}"
        self._count = 0
        self._turned_away = False
        self._over = False
        """Whether the router ends the connection after the last answer."""
        self._port = port
        self._aliases = aliases
        self._tally = tally

    async def run(self, stop: asyncio.Event) -> None:
        names, weights = zip(*BEHAVIOURS.items(), strict=True)
        while not stop.is_set():
            behaviour = self._random.choices(names, weights)[0]
            self._tally.behaviours[behaviour.__name__] += 1
            try:
                await asyncio.wait_for(behaviour(self), PATIENCE)
            except TimeoutError:
                self._tally.violation(f"{behaviour.__name__}: no end within {PATIENCE:.0f} s")
            except Ended as error:
                self._tally.violation(f"{behaviour.__name__}: the connection ended {error}")
            except OSError as error:
                self._tally.violation(f"{behaviour.__name__}: {type(error).__name__}")
            except Exception as error:  # an answer that makes no sense is a finding, too
                self._tally.violation(f"{behaviour.__name__}: {error!r}")
            else:
                if self._turned_away:
                    # As a client does that reads Retry-After, only sooner.
                    self._turned_away = False
                    await asyncio.sleep(self._random.random() * 0.2)

    # Requests

    def _request(self, *, path: str | None = None, padding: int = 0, **headers: str) -> tuple[Sent, bytes]:
        """A request that an engine knows again, and its bytes; ``padding`` bytes make it larger."""
        self._count += 1
        sent = Sent(f"{self._name}-{self._count}", path or self._random.choice(PATHS))
        self._tally.sent[sent.id] = sent
        prompt = f"chaos:{sent.id}; {'x' * padding}"
        body: dict[str, object] = {"model": self._random.choice(self._aliases)}
        if sent.path == EMBEDDINGS:
            body = {"model": "chaos-embedding", "input": prompt}
        elif sent.path == RESPONSES:
            body |= {"input": prompt, "max_output_tokens": self._tokens(), "stream": self._streams()}
        else:
            messages = [{"role": "user", "content": prompt}]
            body |= {"messages": messages, "max_tokens": self._tokens(), "stream": self._streams()}
        data = json.dumps(body).encode()
        return sent, build_request("POST", sent.path, body=data, headers={"X-Request-Id": sent.id, **headers})

    def _tokens(self) -> int:
        return self._random.choice((1, 2, 5, 5, 12, 30))

    def _streams(self) -> bool:
        return self._random.random() < 0.7

    # Answers

    def _note(self, sent: Sent, reply: Reply, body: bytes) -> None:
        """Check an answer that came whole, and note what it says about the request's way."""
        sent.status = reply.status
        self._tally.statuses[reply.status] += 1
        sent.dispatched = "x-anvil-tier" in reply.headers
        self._turned_away = reply.status == 503
        self._over = reply.headers.get("connection") == "close"
        if reply.headers.get("x-request-id", sent.id) != sent.id:
            self._tally.violation("an answer carries another request's id")
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            tail = body[-2000:]
            if b"error" in tail:
                # What ends in an error event ends its connection, too.
                self._over = True
            elif ENDS[sent.path] not in tail:
                self._tally.violation(f"a stream of {sent.path} ended in {tail[-80:]!r}")
            return
        answer = json.loads(body)
        if reply.status == 200:
            return
        if not isinstance(answer["error"]["message"], str) or (sent.path == MESSAGES) != (
            answer.get("type") == "error"
        ):
            self._tally.violation(f"{reply.status} of {sent.path} is not in its caller's dialect")
        if reply.status == 500:
            self._tally.violation("the router answered 500")
        code = answer["error"].get("code")
        if sent.path != MESSAGES and not sent.dispatched:
            sent.recorded = code in REFUSED_WITH_RECORD
            if code not in REFUSED_WITH_RECORD | NO_RECORD:
                self._tally.violation(f"{reply.status} with the code {code!r}")

    async def _exchange(self, line: Line, sent: Sent, data: bytes) -> None:
        sent.complete = True
        await line.send(data)
        self._note(sent, *await line.whole())

    # Behaviours: those who stay must be answered

    async def one(self) -> None:
        async with await Line.open(self._port) as line:
            await self._exchange(line, *self._request())

    async def several(self) -> None:
        """One after another on one connection, in any order of wires."""
        async with await Line.open(self._port) as line:
            for _ in range(self._random.randint(2, 6)):
                await self._exchange(line, *self._request(path=self._random.choice((*PATHS, EMBEDDINGS))))
                if self._over:
                    return

    async def pipelined(self) -> None:
        """Several requests in one write; their answers come in their order."""
        requests = [self._request() for _ in range(self._random.randint(2, 4))]
        async with await Line.open(self._port) as line:
            await line.send(b"".join(data for _, data in requests))
            for sent, _ in requests:
                reply, body = await line.whole()
                sent.complete = True
                self._note(sent, reply, body)
                if self._over:
                    return

    async def in_pieces(self) -> None:
        """Head and body in many small writes."""
        sent, data = self._request()
        async with await Line.open(self._port) as line:
            while data:
                size = self._random.randint(1, 200)
                await line.send(data[:size])
                data = data[size:]
                await asyncio.sleep(self._random.random() * 0.005)
            await self._exchange(line, sent, b"")

    async def chunked(self) -> None:
        sent, data = self._request()
        head, _, body = data.partition(b"\r\n\r\n")
        head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        size = self._random.randint(1, 400)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        framed = b"".join(b"%x;x=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        async with await Line.open(self._port) as line:
            await self._exchange(line, sent, head + b"\r\n\r\n" + framed + b"0\r\nx-trailer: 1\r\n\r\n")

    async def slow_reader(self) -> None:
        """Takes what comes in small sips."""
        sent, data = self._request()
        async with await Line.open(self._port, small=True) as line:
            sent.complete = True
            await line.send(data)
            reply = await line.head()
            body = b""
            async for piece in line.body(reply):
                body += piece
                await asyncio.sleep(self._random.random() * 0.02)
            self._note(sent, reply, body)

    async def huge(self) -> None:
        """Bodies up to the limit, and over it: the answer may come before the body is through."""
        padding = self._random.choice((100_000, 500_000, MAX_BODY - 400, MAX_BODY + 400))
        sent, data = self._request(padding=padding)
        async with await Line.open(self._port) as line:
            line.writer.write(data)
            sent.complete = True
            reply, body = await line.whole()
            self._note(sent, reply, body)

    async def malformed(self) -> None:
        """A body, a head, a path or a key that is none."""
        sent, data = self._request()
        head, _, body = data.partition(b"\r\n\r\n")
        bad = self._random.choice(
            (
                build_request("POST", sent.path, body=b""),
                build_request("POST", sent.path, body=b'{"model":'),
                build_request("POST", sent.path, body=b"\xff\xfe\x00" * 5),
                build_request("POST", sent.path, body=b"[" * 5000),
                build_request("POST", sent.path, body={"model": "no.such", "messages": [], "input": ""}),
                build_request("POST", sent.path, body=body, token="wrong"),
                build_request("GET", sent.path),
                data.replace(b"Host:", b"Host :"),
                data.replace(b"\r\n", b"\n"),
                head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
                head + b"\r\nContent-Length: 1\r\n\r\n" + body,
                head + b"\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
            )
        )
        async with await Line.open(self._port) as line:
            line.writer.write(bad)
            reply, _ = await line.whole()
            self._tally.statuses[reply.status] += 1
            if not 400 <= reply.status < 500 and reply.status != 503:
                self._tally.violation(f"a malformed request was answered {reply.status}")

    # Behaviours: those who leave get nothing, and leave nothing

    async def _leave(self, line: Line) -> None:
        if self._random.random() < 0.5:
            line.reset()

    async def aborts_while_sending(self) -> None:
        _, data = self._request(padding=self._random.choice((0, 0, 50_000)))
        async with await Line.open(self._port) as line:
            await line.send(data[: self._random.randrange(len(data))])
            await asyncio.sleep(self._random.random() * 0.02)
            await self._leave(line)

    async def aborts_before_answer(self) -> None:
        sent, data = self._request()
        sent.complete = True
        async with await Line.open(self._port) as line:
            await line.send(data)
            await asyncio.sleep(self._random.choice((0, 0.001, 0.005, 0.05)))
            await self._leave(line)

    async def aborts_within_answer(self) -> None:
        sent, data = self._request()
        sent.complete = True
        async with await Line.open(self._port) as line:
            await line.send(data)
            pieces = line.body(await line.head())
            for _ in range(self._random.randint(0, 4)):
                await anext(pieces, None)
            await pieces.aclose()  # type: ignore[attr-defined]
            await self._leave(line)

    async def half_closes(self) -> None:
        """Sends FIN behind its request, which counts as gone, and reads whatever comes."""
        sent, data = self._request()
        sent.complete = True
        async with await Line.open(self._port) as line:
            await line.send(data)
            line.writer.write_eof()
            try:
                while await line.reader.read(65_536):
                    pass
            except ConnectionError:
                pass

    async def says_nothing(self) -> None:
        async with await Line.open(self._port) as line:
            await line.send(b"POST"[: self._random.randrange(5)])
            await asyncio.sleep(self._random.random())
            await self._leave(line)


BEHAVIOURS: Final[dict[Callable[[Caller], Awaitable[None]], int]] = {
    Caller.one: 30,
    Caller.several: 20,
    Caller.pipelined: 6,
    Caller.in_pieces: 3,
    Caller.chunked: 5,
    Caller.slow_reader: 5,
    Caller.huge: 1,
    Caller.malformed: 6,
    Caller.aborts_while_sending: 5,
    Caller.aborts_before_answer: 8,
    Caller.aborts_within_answer: 8,
    Caller.half_closes: 4,
    Caller.says_nothing: 2,
}
"""What callers do, and how often beside each other."""
