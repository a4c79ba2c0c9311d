"""Bytes that an upstream might send, and a driver that feeds them to an exchange in any cut."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from hypothesis import strategies as st

from routing.dialects.base import Target, Translator
from routing.dialects.openai_chat import CHAT
from routing.exchange import Exchange, Head, Outcome

Framing = Literal["length", "chunked", "eof"]

OPENAI = Target(dialect="openai")
ALIAS = "demo.chat"
SERVED = "qwen3-32b"

STREAM_HEAD = Head(
    status=200,
    headers=(
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Cache-Control", "no-cache"),
        ("X-Accel-Buffering", "no"),
    ),
    streaming=True,
)

CHUNKS = (
    b'{"id":"c1","model":"qwen3-32b","choices":[{"index":0,"delta":{"role":"assistant"}}]}',
    b'{"id":"c1","model":"qwen3-32b","choices":[{"index":0,"delta":{"content":"Hi"}}]}',
    b'{"id":"c1","model":"qwen3-32b","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    b'{"id":"c1","model":"qwen3-32b","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}',
)
DONE = b"data: [DONE]\n\n"

WHOLE = (
    b'{"id":"c1","model":"qwen3-32b","choices":[{"index":0,"message":{"content":"Hi"}}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":2}}'
)


def events(*payloads: bytes) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


STREAM = events(*CHUNKS) + DONE
STREAM_SEEN = (
    b'data: {"id":"c1","model":"demo.chat","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    b'data: {"id":"c1","model":"demo.chat","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    b'data: {"id":"c1","model":"demo.chat","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
WHOLE_SEEN = (
    b'{"id":"c1","model":"demo.chat","choices":[{"index":0,"message":{"content":"Hi"}}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":2}}'
)


def chunked(*parts: bytes, trailer: bytes = b"") -> bytes:
    return (
        b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n" + trailer + b"\r\n"
    )


def http(
    body: bytes,
    *,
    status: int = 200,
    content_type: str | None = "application/json",
    framing: Framing = "length",
    headers: Iterable[str] = (),
) -> bytes:
    """A whole response; with ``chunked`` framing its body is one chunk."""
    lines = [f"HTTP/1.1 {status} Whatever", *headers]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    if framing == "length":
        lines.append(f"Content-Length: {len(body)}")
    elif framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        body = chunked(body)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def sse(body: bytes, *, framing: Framing = "chunked", headers: Iterable[str] = ()) -> bytes:
    return http(body, content_type="text/event-stream", framing=framing, headers=headers)


def chat_translator(*, stream: bool, body: bytes | None = None) -> Translator:
    if body is None:
        flag = b"true" if stream else b"false"
        body = b'{"model":"demo.chat","stream":' + flag + b',"messages":[{"role":"user","content":"Hi"}]}'
    return CHAT.parse(body).prepare(OPENAI, model=SERVED).translator


def chat_exchange(
    *,
    stream: bool,
    strike: Sequence[str] = (),
    clamped: bool = False,
    max_body: int = 1 << 26,
    max_event: int = 1 << 20,
) -> Exchange:
    return Exchange(
        chat_translator(stream=stream), strike=strike, clamped=clamped, max_body=max_body, max_event=max_event
    )


@dataclass
class Run:
    """What a caller got, and what the driver saw."""

    exchange: Exchange
    body: bytes = b""
    over_after: int | None = None
    """Index of the call at which the exchange was over."""
    given_by_then: bytes = field(default=b"", repr=False)

    @property
    def head(self) -> Head | None:
        return self.exchange.head

    @property
    def outcome(self) -> Outcome:
        assert self.exchange.outcome is not None
        return self.exchange.outcome

    @property
    def seen(self) -> tuple[Head | None, bytes, Outcome, bool, bool]:
        """All that may not depend on how the bytes were cut."""
        return (self.head, self.body, self.outcome, self.exchange.close_client, self.exchange.truncated)


def feed(exchange: Exchange, reads: Iterable[bytes], *, eof: bool = False) -> Run:
    """Drive ``exchange`` and hold it to what every driver relies on."""
    run = Run(exchange)
    calls = [(exchange.receive, (data,)) for data in reads if data]
    if eof:
        calls.append((exchange.receive_eof, ()))  # type: ignore[arg-type]
    for index, (call, arguments) in enumerate(calls):
        was_over, before = exchange.over, (exchange.head, exchange.outcome, exchange.close_client)
        body = call(*arguments)
        if was_over:
            assert body == b""
            assert (exchange.head, exchange.outcome, exchange.close_client) == before
            continue
        run.body += body
        assert not body or exchange.head is not None
        assert exchange.over == (exchange.outcome is not None)
        assert not exchange.reusable or exchange.over
        if exchange.over:
            run.over_after = index
            assert exchange.outcome is not None
            assert exchange.outcome.response_bytes == len(run.body)
            if exchange.head is not None and not exchange.head.streaming:
                assert dict(exchange.head.headers)["Content-Length"] == str(len(run.body))
    return run


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in pairwise(bounds) if start < end]


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


PLACES = st.lists(st.integers(min_value=0, max_value=1 << 16), max_size=40)
"""Where to cut a response: anywhere, also inside a line end or a character."""
