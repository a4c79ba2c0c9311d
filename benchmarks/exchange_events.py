"""How long the exchange takes for one server-sent event, without sockets.

    python benchmarks/exchange_events.py [ROUNDS]

Two shapes, as a relay meets them: 512 events in one read of a busy stream, and one event in each read. Every
event is one HTTP chunk, as inference servers write them. Prints the median over the rounds of events a second
and microseconds an event of `Exchange.receive` alone.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from routing.dialects.base import Target
from routing.dialects.openai_chat import CHAT
from routing.exchange import Exchange

EVENTS = 512
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
REQUEST = b'{"model":"bench.chat","stream":true,"messages":[{"role":"user","content":"hello"}]}'
TARGET = Target(dialect="openai")


def chunk(number: int) -> bytes:
    """One HTTP chunk with one event of the size and shape that vLLM sends."""
    event = (
        b'data: {"id":"chatcmpl-8f3b2c1d4e5f60718293a4b5c6d7e8f9","object":"chat.completion.chunk",'
        b'"created":1758000000,"model":"qwen3-32b","choices":[{"index":0,"delta":{"content":" token %d"},'
        b'"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n' % number
    )
    return b"%x\r\n%b\r\n" % (len(event), event)


def time_receive(reads: Sequence[bytes]) -> float:
    """Microseconds an event when ``reads`` arrive one after the other on a stream that has begun."""
    exchange = Exchange(CHAT.parse(REQUEST).prepare(TARGET, model="qwen3-32b").translator)
    exchange.receive(HEAD + chunk(0))
    receive = exchange.receive
    started = time.perf_counter()
    for data in reads:
        receive(data)
    elapsed = time.perf_counter() - started
    if exchange.over:
        raise SystemExit("the stream ended: nothing was measured")
    return elapsed / EVENTS * 1e6


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    chunks = [chunk(number) for number in range(EVENTS)]
    for name, reads in ((f"{EVENTS} events a read", [b"".join(chunks)]), ("one event a read", chunks)):
        median = statistics.median(time_receive(reads) for _ in range(rounds))
        print(f"{name:20} {median:6.2f} us an event   {1e6 / median:10,.0f} events/s")


if __name__ == "__main__":
    main()
