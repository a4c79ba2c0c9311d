"""The load: streams that are opened one after another, closed loops, and bursty open-loop arrivals.

One asyncio process on raw sockets, because a client library would cost more than the routers it measures.
Each request carries ``ignore_eos`` and an exact number of tokens, so that every router is asked for the same.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks.peers import TOKEN

REQUEST_SECONDS: Final = 90.0


@dataclass
class Result:
    """What came of one load; times in seconds."""

    first_token: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    events: int = 0
    refused: int = 0
    failed: int = 0
    seconds: float = 0.0


def percentile(values: list[float], share: float) -> float:
    """Nearest rank; NaN of nothing."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))] if ranked else float("nan")


def _request(model: str, *, stream: bool, tokens: int, close: bool) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "stream": stream,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "hello, how are you today?"}],
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {TOKEN}\r\nConnection: {'close' if close else 'keep-alive'}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _stream(port: int, request: bytes, result: Result) -> None:
    began = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        result.failed += 1
        return
    try:
        writer.write(request)
        seen, status, tail, events, done = False, b"", b"", 0, False
        while not done:
            part = await asyncio.wait_for(reader.read(262_144), REQUEST_SECONDS)
            if not part:
                break
            status = status or part[:12]
            window = tail + part
            events += window.count(b"data: {") - tail.count(b"data: {")
            if events and not seen:
                seen = True
                result.first_token.append(time.perf_counter() - began)
            done = b"data: [DONE]" in window
            tail = window[-16:]
        if not status.endswith(b"200"):
            result.refused += 1
        elif not done:
            result.failed += 1
        else:
            result.events += events
            result.whole.append(time.perf_counter() - began)
    except (OSError, TimeoutError):
        result.failed += 1
    finally:
        writer.close()


async def streams(port: int, model: str, count: int, *, tokens: int, spacing: float) -> Result:
    """``count`` streams of ``tokens`` tokens, opened ``spacing`` seconds apart."""
    result, request = Result(), _request(model, stream=True, tokens=tokens, close=True)
    began = time.perf_counter()

    async def one(number: int) -> None:
        await asyncio.sleep(number * spacing)
        await _stream(port, request, result)

    await asyncio.gather(*(one(number) for number in range(count)))
    result.seconds = time.perf_counter() - began
    return result


async def closed_loop(port: int, model: str, clients: int, seconds: float) -> Result:
    """``clients`` that each ask for a whole answer again and again on one connection."""
    result, request = Result(), _request(model, stream=False, tokens=1, close=False)
    end = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while time.perf_counter() < end:
                began = time.perf_counter()
                writer.write(request)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS)
                lower = head.lower()
                if b"content-length:" in lower:
                    length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
                    await reader.readexactly(length)
                else:
                    await reader.readuntil(b"0\r\n\r\n")
                if head[9:12] != b"200":
                    result.refused += 1
                    return
                result.whole.append(time.perf_counter() - began)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            result.failed += 1
        finally:
            writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    result.seconds = time.perf_counter() - began
    return result


async def bursts(port: int, model: str, *, rate: float, seconds: float, seed: int) -> Result:
    """Poisson arrivals at ``rate`` a second, doubled one second in five; 80% short answers, 20% long.

    The same seed gives the same arrivals and lengths, whichever router they go through.
    """
    result, chance = Result(), random.Random(seed)
    requests = {n: _request(model, stream=True, tokens=n, close=True) for n in (16, 160)}
    tasks: list[asyncio.Task[None]] = []
    began, at = time.perf_counter(), 0.0
    while at < seconds:
        at += chance.expovariate(rate * (2.0 if at % 5 >= 4 else 1.0))
        tokens = 160 if chance.random() < 0.2 else 16
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        tasks.append(asyncio.create_task(_stream(port, requests[tokens], result)))
    await asyncio.gather(*tasks)
    result.seconds = time.perf_counter() - began
    return result
