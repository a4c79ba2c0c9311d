"""A front door that is full, and callers by the thousand that send next to nothing: nobody else notices.

The short form is for every day. ``ANVIL_SATURATION=full scripts/test -s tests/live/test_saturation.py`` takes
the sizes of a production router and prints what was measured; it needs a quiet machine with 4 GiB to spare.
"""

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.live.harness import (
    Engine,
    Router,
    await_rest,
    chat_body,
    direct_tier,
    documents,
    eventually,
)
from tests.live.raw import CHAT, RawConnection, build_request

pytestmark = pytest.mark.requirement("house 2", "contract 2 wire")

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much comes. ``body`` and ``budget`` are bytes."""

    places: int
    crowd: int
    bodies: int
    body: int
    budget: int


SHORT: Final = Size(places=32, crowd=1000, bodies=16, body=8 * MIB, budget=64 * MIB)
FULL: Final = Size(places=512, crowd=4000, bodies=512, body=32 * MIB, budget=512 * MIB)
SIZE: Final = FULL if os.environ.get("ANVIL_SATURATION") == "full" else SHORT

PROMPT_ANSWER: Final = 1.0
"""Seconds in which management, and whoever finds room, must be answered whatever others do."""

MANAGEMENT: Final = (
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/v1/admin/transition"),
    ("GET", "/admin/login/"),
)

HEAD_SECONDS: Final = 10.0
"""After which the router gives up on a head."""

TURNED_AWAY: Final = "requests are turned away: every place or the whole body budget is taken"

HALF_A_HEAD: Final = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-"
HALF_A_BODY: Final = build_request("POST", CHAT, body=b"{" + b" " * 5000)[:-4000]

_TCP_REPAIR: Final = 19
"""Closed in this mode of Linux's, a socket is gone without a word to its peer."""


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    return make_engine(slots=2 * SIZE.places)


@pytest.fixture
def router(make_router: Callable[..., Router], engine: Engine) -> Router:
    environ = {"ANVIL_MAX_CONCURRENCY": str(SIZE.places), "ANVIL_BODY_BUDGET": str(SIZE.budget)}
    started = make_router(documents(direct_tier(engine)), environ=environ).start()
    # What a first answer costs, once in the life of a process, is not what is measured here.
    for method, path in MANAGEMENT:
        assert started.request(method, path).status == 200
    return started


@pytest.fixture
def crowd() -> Iterator[list[RawConnection]]:
    """Connections that end with the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    with contextlib.ExitStack() as stack:
        connections: list[RawConnection] = []
        stack.callback(lambda: [each.close() for each in connections])
        yield connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def gather(router: Router, crowd: list[RawConnection], count: int, beginning: bytes) -> None:
    """That many connections more, each with the beginning of a request."""
    for _ in range(count):
        connection = RawConnection(router.port)
        crowd.append(connection)
        connection.send(beginning)


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do it in a thread until it is through, or told to stop at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60.0)
        assert not thread.is_alive()


def slowest_of_management(router: Router) -> float:
    """The most seconds that any of its pages took; each must have been prompt."""
    slowest = 0.0
    for method, path in MANAGEMENT:
        began = time.monotonic()
        answer = router.request(method, path, timeout=10.0)
        seconds = time.monotonic() - began
        assert answer.status == 200, path
        assert seconds < PROMPT_ANSWER, path
        slowest = max(slowest, seconds)
    return slowest


def slowest_of_chats(router: Router) -> float:
    slowest = 0.0
    for _ in range(10):
        began = time.monotonic()
        assert router.chat("live.direct").status == 200
        seconds = time.monotonic() - began
        assert seconds < PROMPT_ANSWER
        slowest = max(slowest, seconds)
    return slowest


def memory(router: Router) -> int:
    """Bytes that the worker holds."""
    lines = Path(f"/proc/{router.worker_pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def descriptors(router: Router) -> int:
    return len(list(Path(f"/proc/{router.worker_pid}/fd").iterdir()))


def tell(what: str, **seconds: float) -> None:
    """A line of figures for whoever looks (``-s``)."""
    print(f"\n{what}: " + ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in seconds.items()))


def test_silent_streams_that_take_every_place_stop_nobody_but_the_next_stream(
    router: Router, engine: Engine, crowd: list[RawConnection]
) -> None:
    engine.fault("stall_before_headers")
    for _ in range(SIZE.places):
        connection = RawConnection(router.port)
        crowd.append(connection)
        connection.post(chat_body("live.direct", stream=True))
    engine.await_stats(stalled=SIZE.places, timeout=30.0)

    management = slowest_of_management(router)
    began = time.monotonic()
    refused = router.chat("live.direct", stream=True)
    refusal = time.monotonic() - began
    assert (refused.status, refused.json()["error"]["code"]) == (503, "server_busy")
    assert refused.headers["retry-after"] == "1"
    assert refusal < PROMPT_ANSWER
    body = {"action": "quiesce", "tier_id": "direct", "confirm": True, "dry_run": False}
    began = time.monotonic()
    assert router.request("POST", "/v1/admin/transition", body=body).status == 200
    quiesce = time.monotonic() - began
    assert quiesce < PROMPT_ANSWER
    metrics = router.request("GET", "/metrics").body.decode()
    assert f"anvil_front_door_places {SIZE.places}.0" in metrics
    assert 'anvil_refusals_total{reason="server_busy",tier=""} 1.0' in metrics
    eventually(lambda: router.log.count(TURNED_AWAY) == 1)
    tell(f"{SIZE.places} silent streams", management=management, refusal=refusal, quiesce=quiesce)

    for connection in crowd:
        connection.close()
    await_rest(router)


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"", id="that say nothing"),
        pytest.param(HALF_A_HEAD, id="with half a head"),
        pytest.param(HALF_A_BODY, id="with half a body"),
    ],
)
def test_a_thousand_connections(
    router: Router, engine: Engine, crowd: list[RawConnection], beginning: bytes
) -> None:
    assert router.chat("live.direct").status == 200
    before = memory(router)
    gather(router, crowd, SIZE.crowd, beginning)

    management, chat = slowest_of_management(router), slowest_of_chats(router)
    more = memory(router) - before
    assert more < 64 * MIB
    assert engine.stats()["running"] == 0
    what = f"{SIZE.crowd} connections with {len(beginning)} bytes: {more / MIB:.0f} MiB more"
    tell(what, management=management, chat=chat)


@pytest.mark.parametrize(
    ("beginning", "more_of_it"),
    [pytest.param(HALF_A_HEAD, b"y", id="a head"), pytest.param(HALF_A_BODY, b" ", id="a body")],
)
def test_a_thousand_that_send_a_byte_now_and_then(
    router: Router, crowd: list[RawConnection], beginning: bytes, more_of_it: bytes
) -> None:
    assert router.chat("live.direct").status == 200
    before = memory(router)
    gather(router, crowd, SIZE.crowd, beginning)
    rounds = 0

    def trickle(stop: threading.Event) -> None:
        nonlocal rounds
        while not stop.wait(0.05):
            for connection in crowd:
                # The router may have given this one up.
                with contextlib.suppress(OSError):
                    connection.send(more_of_it)
            rounds += 1

    with meanwhile(trickle):
        assert eventually(lambda: rounds > 3, timeout=30.0)
        management, chat = slowest_of_management(router), slowest_of_chats(router)
        assert memory(router) - before < 64 * MIB
    tell(f"{SIZE.crowd} that trickle {more_of_it!r}", management=management, chat=chat)


def test_a_thousand_whose_callers_are_gone_without_a_word(router: Router, crowd: list[RawConnection]) -> None:
    """Half-open connections: no FIN ever comes. They go when their time for a head is over."""
    assert router.chat("live.direct").status == 200
    before = descriptors(router)
    for beginning in (b"", HALF_A_HEAD):
        gather(router, crowd, SIZE.crowd // 2, beginning)
    for connection in crowd:
        try:
            connection._socket.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
        except PermissionError:
            pytest.skip("only a privileged user can vanish like that")
        connection.close()

    management, chat = slowest_of_management(router), slowest_of_chats(router)
    assert descriptors(router) > before + SIZE.crowd // 4
    eventually(lambda: descriptors(router) < before + 20, timeout=HEAD_SECONDS + 10.0, interval=0.2)
    tell(f"{SIZE.crowd} half-open connections", management=management, chat=chat)


def test_bodies_beyond_the_budget_cost_no_more_than_it_and_starve_nobody(
    router: Router, crowd: list[RawConnection]
) -> None:
    """All of them are sent at once, but for their last byte, and then held."""
    assert router.chat("live.direct").status == 200
    before = memory(router)
    head = build_request("POST", CHAT, body=b"x" * SIZE.body)[: -SIZE.body]
    gather(router, crowd, SIZE.bodies, head)
    sending = dict.fromkeys(crowd, SIZE.body - 1)
    piece = memoryview(b"x" * (256 * 1024))
    most = 0

    def pour(stop: threading.Event) -> None:
        """A piece for each of them in turn, as much as it takes."""
        while sending and not stop.is_set():
            for connection, left in list(sending.items()):
                try:
                    sent = connection._socket.send(piece[: min(left, len(piece))], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except OSError:
                    sent = left
                sending[connection] = left - sent
                if sending[connection] == 0:
                    del sending[connection]

    management = 0.0
    with meanwhile(pour):
        while sending:
            management = max(management, slowest_of_management(router))
            most = max(most, memory(router) - before)
    assert most < 2 * SIZE.budget
    metrics = router.request("GET", "/metrics").body.decode()
    assert 'anvil_refusals_total{reason="server_busy",tier=""}' in metrics

    eventually(lambda: router.log.count(TURNED_AWAY) == 1)

    # What is held is full, and those who hold it do not go on: who has come since gets their room.
    assert eventually(lambda: router.chat("live.direct").status == 200)
    chat = slowest_of_chats(router)
    what = f"{SIZE.bodies} bodies of {SIZE.body // MIB} MiB: {most / MIB:.0f} MiB more at most"
    tell(what, management=management, chat=chat)
    for connection in crowd:
        connection.close()
    # The allocator keeps some of it for the next time.
    eventually(lambda: memory(router) - before < SIZE.budget * 3 // 4)
