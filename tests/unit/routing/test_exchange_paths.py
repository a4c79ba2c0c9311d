"""The terminal paths: however an exchange ends, its lease is released once, before the last bytes go out.

The driver here follows the order that `routing.exchange` prescribes and keeps a log of it; every ending is
tried for streamed and for whole answers.
"""

from dataclasses import dataclass

import pytest

from routing.exchange import Exchange, Fault, Outcome
from tests.unit.routing.exchange_kit import (
    DONE,
    STREAM_SEEN,
    WHOLE_SEEN,
    bytewise,
    http,
    sse,
)
from tests.unit.routing.wires_kit import PAIRS, Pair, Sample

pytestmark = pytest.mark.requirement(
    "C-R010", "C-T007", "Q-T009", "contract 2", "cases 1", "cases 2", "cases 3", "cases 6"
)


class Gone:
    """The caller left."""


class Eof:
    """The upstream closed."""


GONE, EOF = Gone(), Eof()
Step = bytes | Gone | Eof | Fault

STREAM_START = sse(b"")[: -len(b"0\r\n\r\n")]
HALF_CHUNK = b"1000\r\n"


@dataclass(frozen=True)
class Path:
    """What happens to an exchange, and how it ends: ``served`` or ``error``, its reason, the status that the
    caller got (0: none), and whether the caller's connection closes."""

    steps: tuple[Step, ...]
    ended: tuple[str, str, int]
    closes: bool = False
    reusable: bool = False


def streamed_paths(sample: Sample) -> dict[str, Path]:
    """Everything that can become of a stream."""
    begun = STREAM_START + HALF_CHUNK + sample.first
    return {
        "success": Path((sse(sample.stream),), ("served", "served", 200), reusable=True),
        "normal end, connection closed": Path(
            (sse(sample.stream, framing="eof"), EOF), ("served", "served", 200)
        ),
        "HTTP error": Path((http(b"oops", status=500),), ("error", "backend_error", 502), reusable=True),
        "the caller's error": Path(
            (http(b"{}", status=400),), ("error", "backend_error", 400), reusable=True
        ),
        "refused": Path((Fault.REFUSED,), ("error", "backend_error", 502)),
        "reset before any byte": Path((Fault.RESET,), ("error", "backend_error", 502)),
        "closed before any byte": Path((EOF,), ("error", "backend_error", 502)),
        "timeout before any byte": Path((Fault.TIMEOUT,), ("error", "backend_error", 504)),
        "timeout in the head": Path((STREAM_START[:20], Fault.TIMEOUT), ("error", "backend_error", 504)),
        "timeout before the first event": Path(
            (STREAM_START, Fault.TIMEOUT), ("error", "completion_error", 504)
        ),
        "timeout in the stream": Path(
            (begun, Fault.TIMEOUT), ("error", "completion_error", 200), closes=True
        ),
        "caller gone before the head": Path((GONE,), ("error", "client_disconnected", 0)),
        "caller gone in the head": Path((STREAM_START[:20], GONE), ("error", "client_disconnected", 0)),
        "caller gone before the first event": Path((STREAM_START, GONE), ("error", "client_disconnected", 0)),
        "caller gone in the stream": Path((begun, GONE), ("error", "client_disconnected", 200)),
        "malformed event": Path(
            (sse(sample.first + b"data: {\n\n" + sample.end),),
            ("error", "completion_error", 200),
            closes=True,
        ),
        "malformed first event": Path((sse(b"data: {\n\n"),), ("error", "completion_error", 502)),
        "error event": Path(
            (sse(sample.first + sample.error + sample.end),),
            ("error", "completion_error", 200),
            closes=True,
        ),
        "missing terminal event": Path(
            (sse(sample.first + sample.middle),), ("error", "completion_error", 200), closes=True
        ),
        "no event at all": Path((sse(b""),), ("error", "completion_error", 502)),
        "upstream cut before the first event": Path((STREAM_START, EOF), ("error", "completion_error", 502)),
        "upstream cut in the stream": Path((begun, EOF), ("error", "completion_error", 200), closes=True),
        "upstream reset in the stream": Path(
            (begun, Fault.RESET), ("error", "completion_error", 200), closes=True
        ),
        "broken framing": Path(
            (STREAM_START + b"%x\r\n%bxx" % (len(sample.first), sample.first),),
            ("error", "completion_error", 200),
            closes=True,
        ),
        "JSON instead": Path((http(sample.whole),), ("error", "completion_error", 502), reusable=True),
    }


def whole_paths(sample: Sample) -> dict[str, Path]:
    """Everything that can become of a whole answer."""
    head = http(sample.whole)[: -len(sample.whole)]
    return {
        "success": Path((http(sample.whole),), ("served", "served", 200), reusable=True),
        "normal end, connection closed": Path(
            (http(sample.whole, framing="eof"), EOF), ("served", "served", 200)
        ),
        "HTTP error": Path((http(b"oops", status=500),), ("error", "backend_error", 502), reusable=True),
        "the caller's error": Path(
            (http(b"{}", status=400),), ("error", "backend_error", 400), reusable=True
        ),
        "refused": Path((Fault.REFUSED,), ("error", "backend_error", 502)),
        "reset before any byte": Path((Fault.RESET,), ("error", "backend_error", 502)),
        "closed before any byte": Path((EOF,), ("error", "backend_error", 502)),
        "timeout before any byte": Path((Fault.TIMEOUT,), ("error", "backend_error", 504)),
        "timeout in the head": Path((head[:20], Fault.TIMEOUT), ("error", "backend_error", 504)),
        "timeout in the body": Path(
            (head + sample.whole[:9], Fault.TIMEOUT), ("error", "completion_error", 504)
        ),
        "caller gone before the head": Path((GONE,), ("error", "client_disconnected", 0)),
        "caller gone in the head": Path((head[:20], GONE), ("error", "client_disconnected", 0)),
        "caller gone in the body": Path((head + sample.whole[:9], GONE), ("error", "client_disconnected", 0)),
        "malformed body": Path((http(b"{"),), ("error", "completion_error", 502)),
        "error in a 200": Path((http(sample.error_body),), ("error", "completion_error", 502), reusable=True),
        "upstream cut in the body": Path((head + sample.whole[:9], EOF), ("error", "completion_error", 502)),
        "upstream reset in the body": Path(
            (head + sample.whole[:9], Fault.RESET), ("error", "completion_error", 502)
        ),
        "broken head": Path((b"HTTP/1.1 200 OK\r\nbroken\r\n\r\n",), ("error", "backend_error", 502)),
        "a stream instead": Path((sse(sample.stream),), ("error", "completion_error", 502)),
    }


PATHS = [
    pytest.param(pair, stream, path, id=f"{wires}, {'streamed' if stream else 'whole'}: {name}")
    for wires, pair in PAIRS.items()
    for stream, paths in ((True, streamed_paths(pair.sample)), (False, whole_paths(pair.sample)))
    for name, path in paths.items()
]


def drive(exchange: Exchange, steps: list[Step]) -> list[object]:
    """Take ``steps`` one by one; returns the log of what the driver did."""
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
    return log


def single(steps: tuple[Step, ...]) -> list[Step]:
    """The same steps, every byte in a read of its own."""
    return [one for step in steps for one in (bytewise(step) if isinstance(step, bytes) else [step])]


@pytest.mark.parametrize(("pair", "stream", "path"), PATHS)
@pytest.mark.parametrize("split", [list, single], ids=["one read", "byte by byte"])
def test_every_path_ends_once(pair, stream, path, split):
    exchange = pair.exchange(stream=stream)
    log = drive(exchange, split(path.steps))

    outcome: Outcome = exchange.outcome
    assert (outcome.outcome, outcome.reason, outcome.status) == path.ended
    assert log.count("release") == 1
    assert exchange.close_client == path.closes
    assert exchange.reusable == path.reusable
    assert not exchange.truncated

    body = b"".join(part for part in log if isinstance(part, bytes))
    begun = exchange.head is not None and exchange.head.streaming
    assert outcome.response_bytes == len(body)
    if path.ended[1] == "client_disconnected":
        # Nothing is written once the caller has gone.
        assert log[-1] == "release"
    elif path.ended[0] == "error":
        # What comes after the release is the error, in one piece.
        assert isinstance(log[-1], bytes)
        assert pair.errors(log[-1], stream=begun) == 1
        assert pair.errors(body, stream=begun) == 1
        assert pair.ends(body) == 0
    else:
        # The terminal event is given in the call in which the lease ends, not before it.
        assert pair.ends(body) == (1 if stream else 0)
        assert pair.errors(body, stream=begun) == 0
        assert isinstance(log[-1], bytes)
        assert log.index("release") < len(log) - 1
        if stream:
            assert pair.ends(log[-1]) == 1
            assert log[-1].endswith(pair.end)


@pytest.mark.parametrize("split", [list, single], ids=["one read", "byte by byte"])
def test_a_path_that_is_served_gives_what_was_sent(split):
    pair = PAIRS["chat from chat"]
    streamed = drive(pair.exchange(stream=True), split((sse(pair.sample.stream),)))
    whole = drive(pair.exchange(stream=False), split((http(pair.sample.whole),)))

    assert b"".join(part for part in streamed if isinstance(part, bytes)) == STREAM_SEEN
    assert b"".join(part for part in whole if isinstance(part, bytes)) == WHOLE_SEEN


@pytest.mark.parametrize(("pair", "stream", "path"), PATHS)
@pytest.mark.parametrize("late", [b"HTTP/1.1 200 OK\r\n\r\n", DONE, EOF, GONE, *Fault], ids=str)
def test_nothing_that_comes_after_the_end_changes_it(pair, stream, path, late):
    after = pair.exchange(stream=stream)
    log = drive(after, list(path.steps))
    before = (after.head, after.outcome, after.close_client)

    assert drive(after, [late, late]) in ([], ["head"])
    assert (after.head, after.outcome, after.close_client) == before
    assert log.count("release") == 1
    assert not after.reusable or late is GONE


EACH_PAIR = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


@EACH_PAIR
@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_at_any_byte_ends_the_exchange_there(pair: Pair, stream):
    response = sse(pair.sample.stream) if stream else http(pair.sample.whole)
    served = 0
    for at in range(len(response) + 1):
        exchange = pair.exchange(stream=stream)
        log = drive(exchange, [*([response[:at]] if at else []), GONE])
        assert log.count("release") == 1
        served += exchange.outcome.outcome == "served"
        assert exchange.outcome.outcome == "served" or not exchange.reusable

    # From the terminal event's blank line on it was served: the last chunk may still be on its way.
    assert served == (len(b"\n\r\n0\r\n\r\n") if stream else 1)


@EACH_PAIR
@pytest.mark.requirement("C-T007")
def test_an_exchange_that_was_never_driven_ends_without_a_byte(pair: Pair):
    exchange = pair.exchange(stream=True)

    assert drive(exchange, [GONE, GONE]) == ["release"]
    assert exchange.outcome.response_bytes == 0
    assert not exchange.outcome.unreachable


@EACH_PAIR
@pytest.mark.parametrize("stream", [True, False])
def test_the_upstream_connection_of_a_caller_that_left_is_not_drained(pair: Pair, stream):
    response = sse(pair.sample.stream) if stream else http(pair.sample.whole)
    exchange = pair.exchange(stream=stream)
    exchange.receive(response[:-20])
    exchange.abort()

    assert not exchange.drainable
    exchange.receive(response[-20:])
    assert exchange.complete
    assert not exchange.reusable


@EACH_PAIR
def test_a_caller_that_leaves_after_the_terminal_event_spoils_nothing(pair: Pair):
    response = sse(pair.sample.stream)
    exchange = pair.exchange(stream=True)
    exchange.receive(response[:-5])
    exchange.abort()

    assert exchange.drainable
    exchange.receive(response[-5:])
    assert exchange.reusable
