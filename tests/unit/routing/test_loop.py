"""The relay loop by itself: framing, back-pressure, deadlines, and what may not stop it or be left behind."""

import contextlib
import os
import select
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from routing.exchange import Exchange
from routing.loop import (
    DRAIN_SECONDS,
    HIGH_WATER,
    LARGE_ANSWER,
    WRITE_SILENCE,
    Flow,
    RelayLoop,
    frame,
    http_date,
    render_head,
    status_phrase,
    unacknowledged,
)
from routing.relay import RECEIVE_SIZE, BlockingDriver
from tests.unit.routing.exchange_kit import (
    CHUNKS,
    DONE,
    STREAM,
    STREAM_SEEN,
    WHOLE,
    WHOLE_SEEN,
    events,
    http,
    sse,
)
from tests.unit.routing.relay_kit import (
    PATIENCE,
    Journey,
    ManualLoop,
    OpaqueTranslator,
    Roads,
    dechunk,
    is_closed,
    reset,
    tcp_pair,
)

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST_EVENT = events(CHUNKS[0])
TRUNCATED = http(b"RIFF----", content_type="audio/wav", framing="length")[:-4]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(size: int) -> bytes:
    """One event whose text has that many bytes."""
    return events(b'{"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}' % (b"x" * size))


@pytest.fixture
def roads() -> Iterator[Roads]:
    roads = Roads()
    yield roads
    roads.close()


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.end_all()
    loop._halt()
    loop.turn(0)


def add(loop: RelayLoop, journey: Journey, **options: Any) -> Flow:
    flow = journey.flow(**options)
    loop.add(flow)
    return flow


def fill(roads: Roads, loop: ManualLoop, journey: Journey, flow: Flow) -> int:
    """Send events until the loop has stopped reading for this caller; how many bytes were sent."""
    sent = 0
    journey.peer.setblocking(False)
    data = chunk(delta(10_000))
    rest = SSE_HEAD
    while not (flow.paused and not select.select([], [journey.peer], [], 0)[1]):
        rest = rest or data
        try:
            count = journey.peer.send(rest)
        except BlockingIOError:
            count = 0
        sent += count
        rest = rest[count:]
        loop.turn(0)
        assert flow.backlog <= HIGH_WATER + 2 * RECEIVE_SIZE
        assert sent < 1 << 27, "the reading of the upstream never stops"
    journey.peer.settimeout(PATIENCE)
    if rest:
        roads.spawn(partial(journey.peer.sendall, rest))
    return sent


# Framing


@pytest.mark.requirement("contract 2")
def test_a_stream_is_framed_for_http_1_1(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey()
    add(loop, journey)
    journey.peer.sendall(sse(STREAM))
    loop.turn_until(journey.done.is_set)

    data = journey.read_until(b"0\r\n\r\n")

    head, body, proper = dechunk(data)
    assert (body, proper, journey.kept) == (STREAM_SEEN, True, True)
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"Connection: keep-alive" in lines
    assert b"Content-Type: text/event-stream; charset=utf-8" in lines
    assert b"X-Accel-Buffering: no" in lines
    assert b"X-Anvil-Tier: tier" in lines


@pytest.mark.requirement("contract 2")
def test_a_caller_of_http_1_0_gets_unframed_bytes_that_the_close_ends(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey()
    add(loop, journey, chunked=False)
    journey.peer.sendall(sse(STREAM))
    loop.turn_until(journey.done.is_set)

    head, _, body = journey.read_all().partition(b"\r\n\r\n")

    assert body == STREAM_SEEN
    assert b"Transfer-Encoding" not in head
    assert b"Connection: close" in head
    assert journey.kept is False


@pytest.mark.requirement("contract 2")
def test_a_whole_answer_has_its_length_and_keeps_the_connection(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey(stream=False)
    add(loop, journey, on_large=pytest.fail)
    journey.peer.sendall(http(WHOLE))
    loop.turn_until(journey.done.is_set)

    head, _, body = journey.read_until(WHOLE_SEEN).partition(b"\r\n\r\n")

    assert (body, journey.kept, journey.overs) == (WHOLE_SEEN, True, 1)
    assert f"Content-Length: {len(WHOLE_SEEN)}".encode() in head.split(b"\r\n")
    assert b"Transfer-Encoding" not in head
    assert roads.pooled == 1


LARGE = WHOLE.replace(b"Hi", b"x" * (2 * LARGE_ANSWER))


def grow(loop: ManualLoop, journey: Journey, until: threading.Event) -> bytes:
    """Send the large answer until the loop lets go of it; what is left to be sent."""
    answer = http(LARGE)
    for start in range(0, len(answer), 16_384):
        journey.peer.sendall(answer[start : start + 16_384])
        loop.turn(0.1)
        if until.is_set():
            return answer[start + 16_384 :]
    pytest.fail("the loop judges a large answer")


@pytest.mark.requirement("house-2")
def test_a_large_answer_is_left_to_a_thread_before_it_is_judged(roads: Roads, loop: ManualLoop) -> None:
    journey, large = roads.journey(stream=False), threading.Event()
    add(loop, journey, on_large=large.set)
    rest = grow(loop, journey, large)

    assert (loop.stats().flows, journey.active, journey.done.is_set()) == (0, 1, False)
    turns = loop.stats().turns
    roads.spawn(partial(journey.peer.sendall, rest))
    loop.turn(0)
    body = BlockingDriver(journey.dispatch, journey.served).run_to_end()
    journey.dispatch.finish()

    assert body == WHOLE_SEEN.replace(b"Hi", b"x" * (2 * LARGE_ANSWER))
    assert loop.stats().turns == turns + 1
    assert (journey.active, journey.overs, roads.pooled, journey.pending) == (0, 1, 1, b"")


@pytest.mark.requirement("house-2")
def test_a_large_answer_that_finds_no_thread_leaves_nothing_behind(
    roads: Roads, loop: ManualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    journey, asked = roads.journey(stream=False), threading.Event()

    def refuse() -> None:
        asked.set()
        raise RuntimeError("the executor is shut down")

    add(loop, journey, on_large=refuse)
    grow(loop, journey, asked)

    assert (journey.kept, journey.active, journey.overs, loop.stats().flows) == (False, 0, 1, 0)
    assert is_closed(journey.peer)
    assert "a large answer found no thread" in caplog.text


@pytest.mark.requirement("contract 2")
def test_an_error_before_the_first_event_keeps_the_connection(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey()
    add(loop, journey)
    journey.peer.sendall(http(b'{"error":{"message":"no"}}', status=400))
    loop.turn_until(journey.done.is_set)

    head, _, body = journey.pending.partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert b"Transfer-Encoding" not in head
    assert journey.kept is True


def test_a_flow_whose_exchange_is_over_already_is_told_at_once(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey()
    journey.peer.sendall(http(b"{}", status=500))
    journey.dispatch.on_readable()
    while not journey.dispatch.over:
        journey.dispatch.on_readable()
    add(loop, journey)
    loop.turn(0)

    assert journey.done.is_set()
    assert journey.dispatch.connection is None


@pytest.mark.requirement("house-2")
def test_an_opaque_answer_that_breaks_off_lacks_its_last_chunk(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey(exchange=Exchange(OpaqueTranslator()))
    add(loop, journey)
    journey.peer.sendall(TRUNCATED)
    journey.peer.close()
    loop.turn_until(journey.done.is_set)

    _, body, proper = dechunk(journey.read_all())

    assert (body, proper, journey.kept) == (b"RIFF", False, False)


@pytest.mark.requirement("house-2")
def test_an_unframed_opaque_answer_that_breaks_off_ends_in_a_reset(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey(exchange=Exchange(OpaqueTranslator()))
    add(loop, journey, chunked=False)
    journey.peer.sendall(TRUNCATED)
    loop.turn_until(lambda: b"RIFF" in journey.pending)
    journey.peer.close()
    loop.turn_until(journey.done.is_set)

    received = []
    with pytest.raises(ConnectionResetError):
        received.extend(iter(lambda: journey.caller.recv(65_536), b""))


def test_the_rest_of_an_answer_is_delivered_without_a_dispatch(loop: ManualLoop) -> None:
    caller, served = tcp_pair(receive_buffer=4096)
    kept: list[bool] = []
    rest = os.urandom(8 << 20)
    with caller, served:
        loop.deliver(served, rest, keep_alive=True, on_done=kept.append)
        received = bytearray()
        while len(received) < len(rest):
            loop.turn(0)
            if select.select([caller], [], [], 0)[0]:
                received += caller.recv(1 << 20)
        loop.turn_until(lambda: kept)
        assert received == rest
        assert kept == [True]
        assert loop.stats().flows == 0


def test_what_is_left_of_an_answer_is_not_copied_each_time_its_caller_takes_some(loop: ManualLoop) -> None:
    """A large rest once was, in the thread of the loop: a few of them held every stream up."""
    caller, served = tcp_pair(receive_buffer=4096)
    rest = os.urandom(8 << 20)
    with caller, served:
        loop.deliver(served, rest, keep_alive=True, on_done=lambda keep: None)
        loop.turn(0)
        tracemalloc.start()
        try:
            received, before = bytearray(), loop.stats().buffered_bytes
            while loop.stats().buffered_bytes == before:
                received += caller.recv(65_536)
                loop.turn(0)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert peak < len(received) * 2 + (1 << 20)
        while len(received) < len(rest):
            received += caller.recv(1 << 20)
            loop.turn(0)
        assert received == rest


# Back-pressure


@pytest.mark.requirement("house-2")
def test_a_slow_caller_stops_the_reading_of_its_own_upstream_and_nobody_elses(
    roads: Roads, loop: ManualLoop
) -> None:
    slow, quick = roads.journey(receive_buffer=4096), roads.journey()
    flow = add(loop, slow)
    add(loop, quick)
    loop.turn(0)
    sent = fill(roads, loop, slow, flow)
    assert loop.stats().buffered_bytes <= HIGH_WATER + 2 * RECEIVE_SIZE

    quick.peer.sendall(sse(STREAM))
    loop.turn_until(quick.done.is_set)
    assert dechunk(quick.read_until(b"0\r\n\r\n"))[1] == STREAM_SEEN

    # Then the slow one reads: it gets every byte, in order, and its one end.
    slow_data = bytearray()

    def read() -> None:
        while not slow_data.endswith(b"\r\n0\r\n\r\n"):
            slow_data.extend(slow.caller.recv(1 << 20))

    reader = roads.spawn(read)
    loop.turn_until(lambda: not flow.paused)
    roads.spawn(partial(slow.peer.sendall, chunk(DONE) + b"0\r\n\r\n"))
    loop.turn_until(slow.done.is_set)
    reader.join(PATIENCE)
    _, body, proper = dechunk(bytes(slow_data))
    assert proper
    assert body.endswith(DONE)
    assert len(body) > sent * 0.9
    assert set(body.split(b"\n\n")[:-2]) == {delta(10_000).replace(b'"m"', b'"demo.chat"').strip()}


@pytest.mark.requirement("house-2")
def test_an_upstream_that_ends_while_its_caller_lags_gives_one_end_and_no_work(
    roads: Roads, loop: ManualLoop
) -> None:
    """The loop once added a last chunk at every turn until such a caller had read everything."""
    journey = roads.journey(receive_buffer=4096)
    flow = add(loop, journey)
    stream = SSE_HEAD + chunk(delta(100_000)) * 40 + chunk(DONE)
    roads.spawn(partial(journey.peer.sendall, stream), journey.peer.close)
    reader_may_go = threading.Event()
    received = bytearray()

    def read() -> None:
        reader_may_go.wait(PATIENCE)
        while not (received.endswith(b"\r\n0\r\n\r\n")):
            received.extend(journey.caller.recv(1 << 20))

    reader = roads.spawn(read)
    loop.turn(0)
    loop.turn_until(lambda: flow.paused)
    loop.turn(0.05)
    reader_may_go.set()
    loop.turn_until(journey.done.is_set)
    reader.join(PATIENCE)

    assert journey.pending == b""
    assert received.count(b"\r\n0\r\n\r\n") == 1
    assert dechunk(bytes(received))[2]
    assert journey.kept is True


@pytest.mark.requirement("house-3")
def test_the_upstream_is_free_when_the_exchange_is_over_however_long_its_caller_reads(
    roads: Roads, loop: ManualLoop
) -> None:
    journey = roads.journey(receive_buffer=4096)
    flow = add(loop, journey)
    # More than the kernel takes for this caller, and less than stops the reading.
    journey.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    journey.peer.sendall(sse(delta(100_000) + STREAM))
    loop.turn_until(lambda: journey.dispatch.over)
    assert flow.backlog > 0

    assert journey.dispatch.connection is None
    assert roads.pooled == 1
    assert journey.active == 0
    assert not journey.done.is_set()
    before = flow.backlog
    reset(journey.peer)
    loop.turn(0.02)
    loop.turn(0)
    assert flow.backlog == before


@pytest.mark.requirement("house-2")
def test_a_reset_of_a_paused_upstream_costs_no_turns(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey(receive_buffer=4096)
    flow = add(loop, journey)
    loop.turn(0)
    fill(roads, loop, journey, flow)
    reset(journey.peer)

    # Nothing is told of it, so the loop sleeps.
    assert loop._epoll.poll(0.05) == []
    assert flow.paused
    assert not journey.dispatch.over


# Deadlines and callers that leave


@pytest.mark.requirement("house-4")
def test_a_caller_that_takes_nothing_for_too_long_counts_as_gone(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey(receive_buffer=4096)
    flow = add(loop, journey)
    loop.turn(0)
    fill(roads, loop, journey, flow)

    loop.ahead = WRITE_SILENCE - 1
    loop.turn(0)
    assert not journey.done.is_set()
    loop.ahead = WRITE_SILENCE + 1
    loop.turn(0)

    assert journey.kept is False
    assert journey.active == 0
    assert is_closed_after_rest(journey.peer)
    outcome = journey.dispatch.exchange.outcome
    assert outcome is not None
    assert outcome.reason == "client_disconnected"


def is_closed_after_rest(peer: socket.socket) -> bool:
    """The upstream's end is closed, or reset since bytes of its own were left unread."""
    peer.settimeout(PATIENCE)
    try:
        return peer.recv(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


@pytest.mark.requirement("house-2")
def test_a_caller_that_takes_a_little_is_not_given_up(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey(receive_buffer=4096)
    flow = add(loop, journey)
    loop.turn(0)
    fill(roads, loop, journey, flow)
    before = unacknowledged(journey.served)

    # So little that the loop's socket does not become writable by it.
    taken = 0
    while unacknowledged(journey.served) >= before:
        taken += len(journey.caller.recv(1024))
    loop.ahead = WRITE_SILENCE + 1
    loop.turn(0)
    assert not journey.done.is_set(), f"given up after it had taken {taken} bytes"

    loop.ahead = 2 * WRITE_SILENCE + 3
    loop.turn(0)
    assert journey.kept is False


def test_a_paused_upstream_is_not_timed_out_and_gets_its_whole_silence_afterwards(
    roads: Roads, loop: ManualLoop
) -> None:
    journey = roads.journey(receive_buffer=4096, relay_timeout=30.0)
    flow = add(loop, journey)
    loop.turn(0)
    fill(roads, loop, journey, flow)
    loop.ahead = 40.0
    loop.turn(0)
    assert not journey.dispatch.over

    roads.spawn(journey.read_all)
    loop.turn_until(lambda: not flow.paused)
    assert journey.dispatch.deadline > journey.dispatch.relay_timeout
    assert not journey.dispatch.over


@pytest.mark.requirement("case-25")
def test_a_silent_upstream_is_timed_out_by_the_sweep(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey(first_byte_timeout=600.0)
    add(loop, journey)
    loop.turn(0)
    assert not journey.done.is_set()

    loop.ahead = 601.0
    loop.turn(0)

    assert journey.done.is_set()
    assert journey.pending.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
    assert journey.kept is True


@pytest.mark.requirement("contract 2")
def test_a_connection_whose_last_framing_never_comes_is_closed(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey()
    add(loop, journey)
    journey.peer.sendall(SSE_HEAD + chunk(STREAM))
    loop.turn_until(journey.done.is_set)
    assert roads.pooled == 0
    assert journey.dispatch.connection is not None

    loop.ahead = DRAIN_SECONDS + 1
    loop.turn(0)

    assert journey.dispatch.connection is None
    assert is_closed(journey.peer)


def test_a_caller_that_leaves_while_the_rest_is_sent_leaves_the_pooled_connection_alone(
    roads: Roads, loop: ManualLoop
) -> None:
    journey = roads.journey(receive_buffer=4096)
    journey.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    add(loop, journey)
    # Its last chunk is still to come: the connection is watched for it.
    journey.peer.sendall(SSE_HEAD + chunk(delta(100_000) + STREAM))
    loop.turn_until(lambda: journey.dispatch.over)
    reset(journey.caller)
    loop.turn_until(journey.done.is_set)
    assert journey.kept is False

    journey.peer.sendall(b"0\r\n\r\n")
    loop.turn_until(lambda: roads.pooled == 1)


# What may not stop the loop


@pytest.mark.requirement("house-6")
def test_an_exception_ends_its_own_stream_only(
    roads: Roads, loop: ManualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = roads.journey(), roads.journey()

    def fail(data: bytes) -> bytes:
        raise RuntimeError("inside")

    broken.dispatch.exchange = Failing(broken.dispatch.exchange, fail)  # type: ignore[assignment]
    add(loop, broken)
    add(loop, sound)
    broken.peer.sendall(b"HTTP/1.1 200 OK\r\n")
    loop.turn_until(broken.done.is_set)

    assert (broken.kept, broken.active, broken.overs) == (False, 0, 1)
    assert is_closed(broken.peer)
    assert "a stream failed inside the relay" in caplog.text
    sound.peer.sendall(sse(STREAM))
    loop.turn_until(sound.done.is_set)
    assert sound.kept is True


class Failing:
    """An exchange that raises where it is fed."""

    def __init__(self, exchange: Exchange, receive: Any) -> None:
        self._exchange = exchange
        self.receive = receive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)


def test_a_stream_that_cannot_begin_is_dropped(
    roads: Roads, loop: ManualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    journey = roads.journey()
    flow = add(loop, journey)
    flow.client_fd = 1 << 20
    loop.turn(0)

    assert journey.kept is False
    assert journey.active == 0
    assert "a stream could not begin" in caplog.text


@pytest.mark.requirement("house-3")
def test_caller_and_upstream_that_end_in_one_turn_end_the_stream_once(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey()
    add(loop, journey)
    loop.turn(0)
    journey.peer.close()
    journey.caller.close()
    select.select([journey.served], [], [], PATIENCE)
    loop.turn_until(journey.done.is_set)

    # Whether the caller is kept depends on whose end was seen first.
    assert (journey.active, journey.overs) == (0, 1)
    assert loop.stats().flows == 0


@pytest.mark.requirement("house-3")
def test_a_descriptor_that_was_opened_again_is_not_taken_for_the_old_one(
    roads: Roads, loop: ManualLoop
) -> None:
    journey = roads.journey()
    flow = add(loop, journey)
    loop.turn(0)
    old = flow.upstream_fd
    # An event for the upstream is queued, and its caller leaves.
    journey.peer.sendall(b"HTTP/1.1 200 OK\r\n")
    journey.caller.close()
    loop.turn_until(journey.done.is_set)
    with contextlib.ExitStack() as stack:
        pairs = [tuple(map(stack.enter_context, socket.socketpair())) for _ in range(8)]
        ours, theirs = next(
            (a, b) if a.fileno() == old else (b, a) for a, b in pairs if old in (a.fileno(), b.fileno())
        )
        theirs.sendall(b"not for the loop")
        loop.turn(0.01)
        loop.turn(0)
        assert ours.recv(64) == b"not for the loop"


@pytest.mark.requirement("house-6")
def test_commands_that_fail_do_not_keep_the_next_from_running(
    loop: ManualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()
    loop._call(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    loop._call(ran.set)
    loop.turn(0)

    assert ran.is_set()
    assert "a command of the relay loop failed" in caplog.text


# The end


@pytest.mark.requirement("house-5")
def test_ending_all_tells_running_streams_and_leaves_finished_ones_alone(
    roads: Roads, loop: ManualLoop
) -> None:
    running, waiting, reading = roads.journey(), roads.journey(), roads.journey(receive_buffer=4096)
    reading.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for journey in (running, waiting, reading):
        add(loop, journey)
    running.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))
    reading.peer.sendall(sse(delta(100_000) + STREAM))
    loop.turn_until(lambda: running.pending and reading.dispatch.over)

    loop.end_all()
    loop.turn(0)

    _, body, proper = dechunk(running.read_all())
    assert proper
    assert b'"code":"server_stopping"' in body
    assert DONE not in body
    assert running.kept is False
    assert waiting.pending.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert not reading.done.is_set()
    assert dechunk_later(loop, reading).endswith(DONE)


def dechunk_later(loop: ManualLoop, journey: Journey) -> bytes:
    data = bytearray()
    while not data.endswith(b"\r\n0\r\n\r\n"):
        loop.turn(0)
        if select.select([journey.caller], [], [], 0)[0]:
            data += journey.caller.recv(1 << 20)
    return dechunk(bytes(data))[1]


@pytest.mark.requirement("house-6")
def test_stopping_ends_the_thread_and_everything_in_it(roads: Roads) -> None:
    loop = RelayLoop()
    loop.stop()
    streaming, draining = roads.journey(), roads.journey()
    add(loop, streaming)
    add(loop, draining)
    draining.peer.sendall(SSE_HEAD + chunk(STREAM))
    assert draining.done.wait(PATIENCE)

    loop.stop()
    loop.stop()

    assert not any(thread.name == "anvil-relay" for thread in threading.enumerate())
    assert streaming.done.is_set()
    assert streaming.active == 0
    for journey in (streaming, draining):
        assert is_closed(journey.peer)
    assert loop.stats().flows == 0


def test_a_loop_starts_no_thread_before_its_first_stream(roads: Roads) -> None:
    before = threading.active_count()
    loop = RelayLoop()
    assert threading.active_count() == before
    journey = roads.journey()
    add(loop, journey)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "anvil-relay"] == [True]
    loop.stop()


@pytest.mark.requirement("house-6")
def test_the_readings_show_a_turn_that_does_not_end(roads: Roads, loop: ManualLoop) -> None:
    journey = roads.journey()
    add(loop, journey)
    loop.turn(0)
    assert loop.stalled_seconds < 1.0
    loop.ahead = 7.0
    assert loop.stalled_seconds >= 7.0

    stats = loop.stats()
    assert (stats.flows, stats.buffered_bytes, stats.turns) == (1, 0, 1)
    assert stats.slowest_turn_seconds > 0.0
    assert loop.stats().slowest_turn_seconds == 0.0


# Heads


def test_a_head_is_rendered_with_its_framing_and_fate() -> None:
    head = render_head(
        200, (("Content-Type", "text/plain"), ("X-Name", "café")), chunked=True, keep_alive=True
    )

    assert head == (
        b"HTTP/1.1 200 OK\r\nDate: " + http_date() + b"\r\nConnection: keep-alive\r\n"
        b"Transfer-Encoding: chunked\r\nContent-Type: text/plain\r\nX-Name: caf\xe9\r\n\r\n"
    )
    assert b"Connection: close\r\n" in render_head(503, (), chunked=False, keep_alive=False)


def test_a_status_without_a_name_gets_a_plain_word() -> None:
    assert status_phrase(503) == "Service Unavailable"
    assert status_phrase(599) == "Status"


def test_a_chunk_says_its_size_in_hexadecimal() -> None:
    assert frame(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
