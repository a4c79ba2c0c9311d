"""Dispatches on both drivers: every end releases one lease, once, before the last bytes; nothing is left."""

import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from routing.exchange import Exchange, Fault
from routing.relay import BlockingDriver, Dispatch, StopSignal, StreamBody
from routing.upstream import CallerGone, SendFailure
from tests.unit.routing.exchange_kit import (
    CHUNKS,
    DONE,
    STREAM,
    STREAM_SEEN,
    WHOLE,
    WHOLE_SEEN,
    chunked,
    events,
    http,
    sse,
)
from tests.unit.routing.relay_kit import (
    PATIENCE,
    Drive,
    Journey,
    OpaqueTranslator,
    Roads,
    drive_blocking,
    hang_up,
    is_closed,
    loop_driver,
    reset,
)

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST_EVENT = events(CHUNKS[0])
FIRST_EVENT_SEEN = STREAM_SEEN[: STREAM_SEEN.index(b"\n\n") + 2]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def error_of(body: bytes) -> bytes:
    """The code of the error that ends ``body``."""
    return body.rpartition(b'"code":"')[2].partition(b'"')[0]


@pytest.fixture
def roads() -> Iterator[Roads]:
    roads = Roads()
    yield roads
    roads.close()


@pytest.fixture(params=["blocking", "loop"])
def drive(request: pytest.FixtureRequest) -> Iterator[Drive]:
    if request.param == "blocking":
        yield drive_blocking
        return
    with loop_driver() as looped:
        yield looped


def assert_at_rest(journey: Journey) -> None:
    assert journey.active == 0
    assert journey.overs == 1


@pytest.mark.requirement("Q-T009")
def test_a_stream_arrives_and_its_connection_is_used_again(roads: Roads, drive: Drive) -> None:
    journey = roads.journey()
    driven = drive(journey)
    journey.peer.sendall(sse(STREAM))

    arrival = driven.arrive()

    assert (arrival.status, arrival.body, arrival.proper, arrival.kept) == (200, STREAM_SEEN, True, True)
    assert_at_rest(journey)
    again = roads.pool.acquire(roads.upstream.endpoint, connect_timeout=1.0)
    assert again.reused
    again.close()


@pytest.mark.requirement("house-3")
def test_the_lease_is_released_before_the_last_bytes_go_out(roads: Roads, drive: Drive) -> None:
    seen_at_over: list[bytes] = []
    journey = roads.journey(on_over=lambda dispatch: seen_at_over.append(journey.pending))
    driven = drive(journey)
    journey.peer.sendall(sse(STREAM))

    assert driven.arrive().body.endswith(DONE)
    (seen,) = seen_at_over
    assert DONE not in seen


@pytest.mark.parametrize("end", ["caller_gone", "malformed", "timeout"])
def test_an_upstream_that_is_given_up_is_closed_before_its_lease_is_released(
    roads: Roads, drive: Drive, end: str
) -> None:
    """Found by a chaos run: the next request met the one before it at the engine, one over the ceiling."""
    closed: list[bool] = []
    journey = roads.journey(
        on_over=lambda dispatch: closed.append(dispatch.connection is None),
        first_byte_timeout=0.01 if end == "timeout" else 60.0,
    )
    driven = drive(journey)
    if end == "caller_gone":
        hang_up(journey.caller)
    elif end == "malformed":
        journey.peer.sendall(b"this is not HTTP\r\n\r\n")

    assert journey.over.wait(PATIENCE)
    assert closed == [True]
    assert is_closed(journey.peer)
    if end != "caller_gone":
        driven.arrive()


@pytest.mark.requirement("Q-T008")
def test_a_whole_answer_arrives(roads: Roads, drive: Drive) -> None:
    journey = roads.journey(stream=False)
    driven = drive(journey)
    journey.peer.sendall(http(WHOLE))

    arrival = driven.arrive()

    assert (arrival.status, arrival.body, arrival.kept) == (200, WHOLE_SEEN, True)
    assert_at_rest(journey)


@pytest.mark.requirement("contract 2")
def test_framing_that_comes_after_the_last_event_does_not_cost_the_connection(
    roads: Roads, drive: Drive
) -> None:
    journey = roads.journey()
    driven = drive(journey)
    journey.peer.sendall(SSE_HEAD + chunk(STREAM))
    assert journey.over.wait(5.0)
    journey.peer.sendall(b"0\r\n\r\n")

    assert driven.arrive().body == STREAM_SEEN
    deadline = time.monotonic() + 5.0
    while roads.pooled == 0:
        assert time.monotonic() < deadline, "the connection was not pooled"
        threading.Event().wait(0.005)


@pytest.mark.requirement("case-21", "Q-T009")
def test_a_cut_ends_in_one_error_event_and_the_connection_closes(roads: Roads, drive: Drive) -> None:
    journey = roads.journey()
    driven = drive(journey)
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))
    journey.peer.close()

    arrival = driven.arrive()

    assert arrival.status == 200
    assert arrival.body.startswith(FIRST_EVENT_SEEN)
    assert error_of(arrival.body) == b"upstream_incomplete"
    assert arrival.body.count(b"data: ") == 2
    assert DONE not in arrival.body
    assert (arrival.proper, arrival.kept) == (True, False)
    assert_at_rest(journey)


@pytest.mark.requirement("case-3")
def test_a_reset_in_mid_stream_ends_like_a_cut(roads: Roads, drive: Drive) -> None:
    journey = roads.journey()
    driven = drive(journey)
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))
    reset(journey.peer)

    arrival = driven.arrive()

    # What had come before the reset may or may not have been read.
    assert arrival.status in (200, 502)
    assert error_of(arrival.body) in (b"upstream_incomplete", b"upstream_unreachable")
    assert_at_rest(journey)


@pytest.mark.requirement("Q-T008")
def test_a_reset_before_any_byte_is_a_502_that_says_unreachable(roads: Roads, drive: Drive) -> None:
    journey = roads.journey()
    driven = drive(journey)
    reset(journey.peer)

    arrival = driven.arrive()

    assert arrival.status == 502
    assert error_of(arrival.body) == b"upstream_unreachable"
    outcome = journey.dispatch.exchange.outcome
    assert outcome is not None
    assert outcome.unreachable
    assert journey.dispatch.transport_reason in ("health_transport_reset", "health_transport_refused")
    assert_at_rest(journey)


@pytest.mark.requirement("contract 2", "case-25")
@pytest.mark.parametrize("stream", [True, False])
def test_silence_before_the_answer_is_a_504(roads: Roads, drive: Drive, stream: bool) -> None:
    journey = roads.journey(stream=stream, first_byte_timeout=0.05)

    arrival = drive(journey).arrive()

    assert arrival.status == 504
    assert error_of(arrival.body) == b"upstream_timeout"
    assert is_closed(journey.peer)
    assert_at_rest(journey)


@pytest.mark.requirement("contract 1")
def test_silence_between_events_is_measured_by_the_relay_timeout(roads: Roads, drive: Drive) -> None:
    journey = roads.journey(first_byte_timeout=60.0, relay_timeout=0.05)
    driven = drive(journey)
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))

    arrival = driven.arrive()

    assert arrival.status == 200
    assert error_of(arrival.body) == b"upstream_timeout"
    assert DONE not in arrival.body
    assert is_closed(journey.peer)
    assert_at_rest(journey)


@pytest.mark.requirement("case-2", "case-26", "house-4")
@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_before_the_answer_ends_the_upstream(
    roads: Roads, drive: Drive, stream: bool
) -> None:
    journey = roads.journey(stream=stream)
    driven = drive(journey)
    journey.caller.close()

    assert is_closed(journey.peer)
    driven.journey.done.wait(5.0)
    assert_at_rest(journey)
    outcome = journey.dispatch.exchange.outcome
    assert outcome is not None
    assert (outcome.reason, outcome.status) == ("client_disconnected", 0)


@pytest.mark.requirement("house-4")
def test_a_caller_that_half_closes_counts_as_gone(roads: Roads, drive: Drive) -> None:
    journey = roads.journey()
    drive(journey)
    journey.caller.shutdown(socket.SHUT_WR)

    assert is_closed(journey.peer)
    assert journey.done.wait(5.0)
    assert_at_rest(journey)


@pytest.mark.requirement("case-1", "Q-T009")
def test_a_caller_that_leaves_in_mid_stream_ends_the_upstream(roads: Roads, drive: Drive) -> None:
    journey = roads.journey()
    drive(journey)
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))
    reset(journey.caller)

    assert is_closed(journey.peer)
    assert journey.done.wait(5.0)
    assert_at_rest(journey)
    outcome = journey.dispatch.exchange.outcome
    assert outcome is not None
    assert outcome.reason == "client_disconnected"


# The dispatch by itself


def test_an_exchange_that_cannot_be_drained_is_not_waited_for(roads: Roads) -> None:
    journey = roads.journey()
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT + b"data: {\n\n"))
    driver = BlockingDriver(journey.dispatch, journey.served)
    driver.run_to_end()
    assert not journey.dispatch.exchange.complete

    began = time.monotonic()
    journey.dispatch.finish(linger=30.0)

    assert time.monotonic() - began < 5.0
    assert is_closed(journey.peer)


@pytest.mark.requirement("Q-T009", "C-T007")
def test_closing_before_the_first_iteration_releases_once(roads: Roads) -> None:
    closed: list[int] = []
    journey = roads.journey()
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))
    driver = BlockingDriver(journey.dispatch, journey.served)
    body = StreamBody(journey.dispatch, driver, driver.run_to_head(), lambda: closed.append(1))
    assert journey.active == 1

    body.close()
    body.close()

    assert_at_rest(journey)
    assert closed == [1]
    assert is_closed(journey.peer)


class Stubborn:
    """A socket that also raises when it is closed."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def shutdown(self, how: int) -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    def close(self) -> None:
        self._sock.close()
        raise OSError(errno.ECONNRESET, "reset by peer")


@pytest.mark.requirement("case-3", "house-3")
def test_a_connection_that_raises_when_it_is_closed_keeps_no_lease(roads: Roads, drive: Drive) -> None:
    journey = roads.journey()
    connection = journey.dispatch.connection
    assert connection is not None
    connection.sock = Stubborn(connection.sock)  # type: ignore[assignment]
    driven = drive(journey)
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))
    journey.peer.close()

    assert error_of(driven.arrive().body) == b"upstream_incomplete"
    assert_at_rest(journey)


@pytest.mark.requirement("house-3")
def test_whatever_is_called_after_the_end_releases_nothing_more(roads: Roads) -> None:
    journey = roads.journey()
    dispatch = journey.dispatch
    dispatch.on_caller_gone()
    taken = journey.ledger.acquire("tier")
    assert taken is not None

    dispatch.on_caller_gone()
    dispatch.fail(Fault.STOPPING)
    dispatch.finish(linger=1.0)
    dispatch.close()

    assert journey.active == 1
    assert journey.overs == 1
    taken.release()


def test_without_a_connection_nothing_can_be_sent(roads: Roads) -> None:
    journey = roads.journey()
    journey.dispatch.on_caller_gone()

    with pytest.raises(SendFailure):
        journey.dispatch.send(b"", None)
    assert journey.dispatch.on_readable() == b""


def test_a_request_that_nobody_takes_ends_when_its_caller_leaves(roads: Roads) -> None:
    journey = roads.journey()
    journey.caller.close()

    with pytest.raises(CallerGone):
        journey.dispatch.send(b"x" * (64 << 20), journey.served)
    journey.dispatch.on_caller_gone()


# The blocking driver by itself


@pytest.mark.requirement("house-5")
def test_a_stop_signal_ends_what_a_thread_waits_for(roads: Roads) -> None:
    stopping = StopSignal()
    journey = roads.journey(stream=False)
    driver = BlockingDriver(journey.dispatch, journey.served, stopping)
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(driver.run_to_end()))
    thread.start()

    stopping.set()
    thread.join(5.0)

    assert not thread.is_alive()
    assert journey.dispatch.head is not None
    assert journey.dispatch.head.status == 503
    assert error_of(results[0]) == b"server_stopping"
    assert_at_rest(journey)


def test_bytes_that_have_come_outrun_a_deadline_that_has_passed(roads: Roads) -> None:
    journey = roads.journey(stream=False, first_byte_timeout=1e-9)
    journey.peer.sendall(http(WHOLE))
    connection = journey.dispatch.connection
    assert connection is not None
    wait_readable(connection.sock)

    body = BlockingDriver(journey.dispatch, journey.served).run_to_end()

    assert body == WHOLE_SEEN


def wait_readable(sock: socket.socket) -> None:
    sock.settimeout(5.0)
    assert sock.recv(1, socket.MSG_PEEK)
    sock.setblocking(False)


@pytest.mark.requirement("house-2")
def test_an_opaque_answer_that_breaks_off_gets_no_proper_end_from_the_wsgi_server(roads: Roads) -> None:
    journey = roads.journey(exchange=Exchange(OpaqueTranslator()))
    journey.peer.sendall(http(b"RIFF----", content_type="audio/wav", framing="length")[:-4])
    journey.peer.close()
    driver = BlockingDriver(journey.dispatch, journey.served)
    body = StreamBody(journey.dispatch, driver, driver.run_to_head(), lambda: None)

    received = []
    with pytest.raises(ConnectionResetError):
        received.extend(body)
    body.close()

    assert b"".join(received) == b"RIFF"
    assert_at_rest(journey)


def test_a_stream_body_gives_out_events_as_they_come(roads: Roads) -> None:
    journey = roads.journey()
    driver = BlockingDriver(journey.dispatch, journey.served)
    journey.peer.sendall(SSE_HEAD + chunk(FIRST_EVENT))
    body = StreamBody(journey.dispatch, driver, driver.run_to_head(), lambda: None)

    assert next(body) == FIRST_EVENT_SEEN
    journey.peer.sendall(chunked(STREAM[len(FIRST_EVENT) :]))
    assert b"".join(body) == STREAM_SEEN[len(FIRST_EVENT_SEEN) :]
    body.close()
    assert_at_rest(journey)


@pytest.mark.requirement("house-3")
def test_a_dispatch_without_a_lease_still_tells_its_end_once(roads: Roads) -> None:
    overs: list[Dispatch] = []
    dispatch = Dispatch(
        Exchange(OpaqueTranslator()),
        None,
        pool=roads.pool,
        endpoint=roads.upstream.endpoint,
        first_byte_timeout=1.0,
        relay_timeout=1.0,
        streams=True,
        headers=(),
        on_over=overs.append,
    )

    dispatch.fail(Fault.REFUSED)
    dispatch.close()

    assert overs == [dispatch]
    assert dispatch.transport_reason == "health_transport_refused"
