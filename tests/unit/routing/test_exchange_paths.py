"""The terminal paths: however an exchange ends, its lease is released once, before the last bytes go out.

The driver here follows the order that `routing.exchange` prescribes and keeps a log of it; every ending is
tried for streamed and for whole answers.
"""

from dataclasses import dataclass

import pytest

from routing.exchange import Fault, Outcome
from tests.unit.routing.exchange_kit import (
    CHUNKS,
    DONE,
    STREAM,
    STREAM_SEEN,
    WHOLE,
    WHOLE_SEEN,
    bytewise,
    chat_exchange,
    events,
    http,
    sse,
)

pytestmark = pytest.mark.requirement(
    "C-R010", "C-T007", "Q-T009", "contract 2", "cases 1", "cases 2", "cases 3"
)


class Gone:
    """The caller left."""


class Eof:
    """The upstream closed."""


GONE, EOF = Gone(), Eof()
Step = bytes | Gone | Eof | Fault

STREAM_START = sse(b"")[: -len(b"0\r\n\r\n")]
HALF_CHUNK = b"1000\r\n"
FIRST = b"data: " + CHUNKS[0] + b"\n\n"
FIRST_SEEN = STREAM_SEEN[: STREAM_SEEN.index(b"\n\n") + 2]


@dataclass(frozen=True)
class Path:
    """What happens to an exchange, and how it ends: ``served`` or ``error``, its reason, the status that the
    caller got (0: none), and whether the caller's connection closes."""

    steps: tuple[Step, ...]
    ended: tuple[str, str, int]
    closes: bool = False
    reusable: bool = False


STREAMED = {
    "success": Path((sse(STREAM),), ("served", "served", 200), reusable=True),
    "normal end, connection closed": Path((sse(STREAM, framing="eof"), EOF), ("served", "served", 200)),
    "HTTP error": Path((http(b"oops", status=500),), ("error", "backend_error", 502), reusable=True),
    "the caller's error": Path((http(b"{}", status=400),), ("error", "backend_error", 400), reusable=True),
    "refused": Path((Fault.REFUSED,), ("error", "backend_error", 502)),
    "reset before any byte": Path((Fault.RESET,), ("error", "backend_error", 502)),
    "closed before any byte": Path((EOF,), ("error", "backend_error", 502)),
    "timeout before any byte": Path((Fault.TIMEOUT,), ("error", "backend_error", 504)),
    "timeout in the head": Path((STREAM_START[:20], Fault.TIMEOUT), ("error", "backend_error", 504)),
    "timeout before the first event": Path((STREAM_START, Fault.TIMEOUT), ("error", "completion_error", 504)),
    "timeout in the stream": Path(
        (STREAM_START + HALF_CHUNK + FIRST, Fault.TIMEOUT), ("error", "completion_error", 200), closes=True
    ),
    "caller gone before the head": Path((GONE,), ("error", "client_disconnected", 0)),
    "caller gone in the head": Path((STREAM_START[:20], GONE), ("error", "client_disconnected", 0)),
    "caller gone before the first event": Path((STREAM_START, GONE), ("error", "client_disconnected", 0)),
    "caller gone in the stream": Path(
        (STREAM_START + HALF_CHUNK + FIRST, GONE), ("error", "client_disconnected", 200)
    ),
    "malformed event": Path(
        (sse(FIRST + b"data: {\n\n" + DONE),), ("error", "completion_error", 200), closes=True
    ),
    "malformed first event": Path((sse(b"data: {\n\n"),), ("error", "completion_error", 502)),
    "error event": Path(
        (sse(FIRST + b'data: {"error":{"message":"m"}}\n\n' + DONE),),
        ("error", "completion_error", 200),
        closes=True,
    ),
    "missing terminal event": Path((sse(events(*CHUNKS)),), ("error", "completion_error", 200), closes=True),
    "no event at all": Path((sse(b""),), ("error", "completion_error", 502)),
    "upstream cut before the first event": Path((STREAM_START, EOF), ("error", "completion_error", 502)),
    "upstream cut in the stream": Path(
        (STREAM_START + HALF_CHUNK + FIRST, EOF), ("error", "completion_error", 200), closes=True
    ),
    "upstream reset in the stream": Path(
        (STREAM_START + HALF_CHUNK + FIRST, Fault.RESET), ("error", "completion_error", 200), closes=True
    ),
    "broken framing": Path(
        (STREAM_START + b"%x\r\n%bxx" % (len(FIRST), FIRST),), ("error", "completion_error", 200), closes=True
    ),
    "JSON instead": Path((http(WHOLE),), ("error", "completion_error", 502), reusable=True),
}

WHOLE_HEAD = http(WHOLE)[: -len(WHOLE)]

WHOLES = {
    "success": Path((http(WHOLE),), ("served", "served", 200), reusable=True),
    "normal end, connection closed": Path((http(WHOLE, framing="eof"), EOF), ("served", "served", 200)),
    "HTTP error": Path((http(b"oops", status=500),), ("error", "backend_error", 502), reusable=True),
    "the caller's error": Path((http(b"{}", status=400),), ("error", "backend_error", 400), reusable=True),
    "refused": Path((Fault.REFUSED,), ("error", "backend_error", 502)),
    "reset before any byte": Path((Fault.RESET,), ("error", "backend_error", 502)),
    "closed before any byte": Path((EOF,), ("error", "backend_error", 502)),
    "timeout before any byte": Path((Fault.TIMEOUT,), ("error", "backend_error", 504)),
    "timeout in the head": Path((WHOLE_HEAD[:20], Fault.TIMEOUT), ("error", "backend_error", 504)),
    "timeout in the body": Path((WHOLE_HEAD + WHOLE[:9], Fault.TIMEOUT), ("error", "completion_error", 504)),
    "caller gone before the head": Path((GONE,), ("error", "client_disconnected", 0)),
    "caller gone in the head": Path((WHOLE_HEAD[:20], GONE), ("error", "client_disconnected", 0)),
    "caller gone in the body": Path((WHOLE_HEAD + WHOLE[:9], GONE), ("error", "client_disconnected", 0)),
    "malformed body": Path((http(b"{"),), ("error", "completion_error", 502)),
    "error in a 200": Path((http(b'{"error":{}}'),), ("error", "completion_error", 502), reusable=True),
    "upstream cut in the body": Path((WHOLE_HEAD + WHOLE[:9], EOF), ("error", "completion_error", 502)),
    "upstream reset in the body": Path(
        (WHOLE_HEAD + WHOLE[:9], Fault.RESET), ("error", "completion_error", 502)
    ),
    "broken head": Path((b"HTTP/1.1 200 OK\r\nbroken\r\n\r\n",), ("error", "backend_error", 502)),
    "a stream instead": Path((sse(STREAM),), ("error", "completion_error", 502)),
}

PATHS = [
    pytest.param(stream, path, id=f"{'streamed' if stream else 'whole'}: {name}")
    for stream, paths in ((True, STREAMED), (False, WHOLES))
    for name, path in paths.items()
]


def drive(stream: bool, steps: list[Step]) -> tuple[object, list[object]]:
    """Take ``steps`` one by one; returns the exchange and the log of what the driver did."""
    exchange = chat_exchange(stream=stream)
    log: list[object] = []
    for step in steps:
        was_over = exchange.over
        if isinstance(step, Gone):
            exchange.abort()
            body = b""
        elif isinstance(step, Eof):
            body = exchange.receive_eof()
        elif isinstance(step, Fault):
            body = exchange.fail(step)
        else:
            body = exchange.receive(step)
        if exchange.over and not was_over:
            log.append("release")
        if exchange.head is not None and "head" not in log:
            log.append("head")
        if body:
            log.append(body)
    return exchange, log


def single(steps: tuple[Step, ...]) -> list[Step]:
    """The same steps, every byte in a read of its own."""
    return [one for step in steps for one in (bytewise(step) if isinstance(step, bytes) else [step])]


@pytest.mark.parametrize(("stream", "path"), PATHS)
@pytest.mark.parametrize("split", [list, single], ids=["one read", "byte by byte"])
def test_every_path_ends_once(stream, path, split):
    exchange, log = drive(stream, split(path.steps))

    outcome: Outcome = exchange.outcome
    assert (outcome.outcome, outcome.reason, outcome.status) == path.ended
    assert log.count("release") == 1
    assert exchange.close_client == path.closes
    assert exchange.reusable == path.reusable
    assert not exchange.truncated

    body = b"".join(part for part in log if isinstance(part, bytes))
    assert outcome.response_bytes == len(body)
    if path.ended[1] == "client_disconnected":
        # Nothing is written once the caller has gone.
        assert log[-1] == "release"
    elif path.ended[0] == "error":
        # What comes after the release is the error, in one piece.
        assert isinstance(log[-1], bytes)
        assert log[-1].count(b'{"error":') == 1
        assert b"[DONE]" not in body
    else:
        assert body == (STREAM_SEEN if stream else WHOLE_SEEN)
        # The terminal event is given in the call in which the lease ends, not before it.
        terminal = next(part for part in log if isinstance(part, bytes) and part.endswith(body[-5:]))
        assert log.index("release") < log.index(terminal)


@pytest.mark.parametrize(("stream", "path"), PATHS)
@pytest.mark.parametrize("late", [b"HTTP/1.1 200 OK\r\n\r\n", DONE, EOF, GONE, *Fault], ids=str)
def test_nothing_that_comes_after_the_end_changes_it(stream, path, late):
    before, log = drive(stream, list(path.steps))
    after, longer_log = drive(stream, [*path.steps, late, late])

    assert longer_log == log
    assert (after.head, after.outcome) == (before.head, before.outcome)
    assert after.close_client == before.close_client
    assert not after.reusable or late is GONE


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_at_any_byte_ends_the_exchange_there(stream):
    response = sse(STREAM) if stream else http(WHOLE)
    served = 0
    for at in range(len(response) + 1):
        exchange, log = drive(stream, [*([response[:at]] if at else []), GONE])
        assert log.count("release") == 1
        served += exchange.outcome.outcome == "served"
        assert exchange.outcome.outcome == "served" or not exchange.reusable

    # From the terminal event's blank line on it was served: the last chunk may still be on its way.
    assert served == (len(b"\n\r\n0\r\n\r\n") if stream else 1)


@pytest.mark.requirement("C-T007")
def test_an_exchange_that_was_never_driven_ends_without_a_byte():
    exchange, log = drive(True, [GONE, GONE])

    assert log == ["release"]
    assert exchange.outcome.response_bytes == 0
    assert not exchange.outcome.unreachable


@pytest.mark.parametrize("stream", [True, False])
def test_the_upstream_connection_of_a_caller_that_left_is_not_drained(stream):
    response = sse(STREAM) if stream else http(WHOLE)
    exchange = chat_exchange(stream=stream)
    exchange.receive(response[:-20])
    exchange.abort()

    assert not exchange.drainable
    exchange.receive(response[-20:])
    assert exchange.complete
    assert not exchange.reusable


def test_a_caller_that_leaves_after_the_terminal_event_spoils_nothing():
    response = sse(STREAM)
    exchange = chat_exchange(stream=True)
    exchange.receive(response[:-5])
    exchange.abort()

    assert exchange.drainable
    exchange.receive(response[-5:])
    assert exchange.reusable
