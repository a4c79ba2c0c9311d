"""A caller that may do anything at any byte, on raw sockets: afterwards nothing of it is left."""

import contextlib
import select
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.live.harness import (
    Engine,
    Router,
    await_rest,
    chat_body,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.live.raw import CHAT, RawConnection, build_request

pytestmark = pytest.mark.requirement("house-2", "house-3", "house-4")


class Target:
    """A router and its engines, and what the router holds."""

    def __init__(self, directory: Path) -> None:
        self._closing = ExitStack()
        self.engines = [Engine.start(directory, name) for name in ("a", "b")]
        for engine in self.engines:
            self._closing.callback(engine.stop)
            engine.change(token=0.001, tokens=8)
        tiers = [direct_tier(self.engines[0]), replica_tier(self.engines, ceilings=8)]
        self.router = Router(directory / "router", documents(*tiers))
        self._closing.callback(self.router.stop)
        try:
            self.router.start()
        except BaseException:
            self.close()
            raise
        self.worker = self.router.worker_pid
        for alias in ("live.direct", "live.chat"):
            for stream in (True, False):
                assert self.router.chat(alias, stream=stream).status == 200
        self.router.request("GET", "/admin/login/")
        self.at_rest = self.descriptors()

    def close(self) -> None:
        self._closing.close()

    def descriptors(self) -> int:
        """Descriptors of the worker that are sockets."""
        count = 0
        for each in Path(f"/proc/{self.worker}/fd").iterdir():
            with contextlib.suppress(OSError):
                count += each.readlink().name.startswith("socket:")
        return count

    def assert_nothing_left(self) -> None:
        await_rest(self.router)
        seen = eventually(self._quiet)
        assert seen["anvil_relay_buffered_bytes"] == 0
        for engine in self.engines:
            engine.await_stats(running=0, waiting=0, stalled=0)
        # Pooled upstream connections end after two seconds; their number is bounded by what ran at once.
        eventually(lambda: self.descriptors() <= self.at_rest + 4)
        assert self.router.worker_pid == self.worker
        assert "Traceback" not in self.router.log

    def _quiet(self) -> dict[str, float] | None:
        lines = self.router.request("GET", "/metrics").body.decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith("anvil_"))
        seen = {name: float(value) for name, _, value in pairs}
        quiet = seen["anvil_relay_streams"] == seen["anvil_front_door_places"] == 0
        return seen if quiet else None


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = Target(tmp_path_factory.mktemp("fuzz"))
    yield target
    target.close()


Kind = Literal["stream", "whole", "health", "page", "transition", "unknown", "chunks"]
End = Literal["reads", "half-closes", "closes", "resets"]
KINDS: tuple[Kind, ...] = ("stream", "whole", "health", "page", "transition", "unknown", "chunks")


def request_bytes(kind: Kind) -> bytes:
    body = chat_body("live.chat", stream=kind != "whole")
    match kind:
        case "health":
            return build_request("GET", "/healthz")
        case "page":
            return build_request("GET", "/admin/login/")
        case "transition":
            return build_request("POST", "/v1/admin/transition", body={"action": "status"})
        case "unknown":
            return build_request("POST", CHAT, body=chat_body("nobody"))
        case "chunks":
            whole = build_request("POST", CHAT, body=body)
            head, _, data = whole.partition(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
            lines.append(b"Transfer-Encoding: chunked")
            parts = [data[at : at + 50] for at in range(0, len(data), 50)]
            framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
            return b"\r\n".join(lines) + b"\r\n\r\n" + framed + b"0\r\n\r\n"
        case _:
            return build_request("POST", CHAT, body=body)


@dataclass(frozen=True)
class Conduct:
    """What a caller sends, where it stops for a moment, after how many bytes it ends, and how."""

    kinds: tuple[Kind, ...]
    cuts: tuple[int, ...]
    stop_after: int | None
    end: End
    reads: int
    """Bytes of answers that it reads before it ends, if it does not read them all."""


conducts = st.builds(
    Conduct,
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4).map(tuple),
    cuts=st.lists(st.integers(min_value=0, max_value=1500), max_size=6).map(tuple),
    stop_after=st.none() | st.integers(min_value=0, max_value=1200),
    end=st.sampled_from(["reads", "half-closes", "closes", "resets"]),
    reads=st.integers(min_value=0, max_value=3000),
)

BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def behave(port: int, conduct: Conduct) -> None:
    data = b"".join(request_bytes(kind) for kind in conduct.kinds)
    if conduct.stop_after is not None:
        data = data[: conduct.stop_after]
    bounds = [0, *sorted({cut for cut in conduct.cuts if cut < len(data)}), len(data)]
    with RawConnection(port) as connection:
        for start, end in pairwise(bounds):
            with contextlib.suppress(ConnectionError):
                connection.send(data[start:end])
        if conduct.end == "reads" and conduct.stop_after is None:
            for kind in conduct.kinds:
                response = connection.read_response()
                assert response.status == {"unknown": 404}.get(kind, 200), (kind, response)
                if kind in ("stream", "chunks"):
                    assert response.data[-1] == "[DONE]"
            return
        with contextlib.suppress(ConnectionError, OSError):
            if conduct.end == "half-closes":
                connection.half_close()
            read = 0
            while read < conduct.reads and readable(connection):
                got = connection.receive(at_most=conduct.reads - read)
                if not got:
                    break
                read += len(got)
            if conduct.end == "resets":
                connection.reset()


def readable(connection: RawConnection) -> bool:
    """Whether something comes within a few milliseconds; a request that is not whole has no answer."""
    return bool(select.select([connection._socket], [], [], 0.02)[0])


@BOUNDED
@given(conduct=conducts)
def test_whatever_a_caller_does_nothing_is_left_of_it(target: Target, conduct: Conduct) -> None:
    behave(target.router.port, conduct)

    with RawConnection(target.router.port) as connection:
        connection.send(request_bytes("health"))
        assert connection.read_response().status == 200


def test_nothing_was_left_by_any_of_them(target: Target) -> None:
    target.assert_nothing_left()


@BOUNDED
@given(data=st.binary(min_size=1, max_size=400), place=st.integers(min_value=0, max_value=400))
def test_bytes_changed_anywhere_in_a_request_are_answered_or_refused(
    target: Target, data: bytes, place: int
) -> None:
    whole = request_bytes("chunks")
    place = min(place, len(whole))
    with RawConnection(target.router.port) as connection:
        connection.send(whole[:place] + data + whole[place + len(data) :] + b"\r\n\r\n")
        connection.half_close()
        with contextlib.suppress(ConnectionError):
            response = connection.read_response()
            assert response.status in (200, 400, 401, 404, 405, 408, 413, 417, 431, 501)


def test_nothing_was_left_by_those_either(target: Target) -> None:
    target.assert_nothing_left()


@settings(parent=BOUNDED, max_examples=12)
@given(
    conducts=st.lists(conducts, min_size=4, max_size=12),
    fault=st.sampled_from(
        ["", "cut_mid_stream", "malformed_event", "stall_mid_stream", "split_events", "http_500"]
    ),
)
def test_many_at_once_and_an_engine_that_fails_leave_nothing(
    target: Target, conducts: list[Conduct], fault: str
) -> None:
    if fault:
        for engine in target.engines:
            engine.fault(fault)
    with ExitStack() as stack:
        for conduct in conducts:
            connection = stack.enter_context(RawConnection(target.router.port))
            data = b"".join(request_bytes(kind) for kind in conduct.kinds)
            with contextlib.suppress(ConnectionError):
                connection.send(data[: conduct.stop_after])
                if conduct.end == "half-closes":
                    connection.half_close()
                elif readable(connection) and conduct.reads:
                    connection.receive(at_most=conduct.reads)
                if conduct.end == "resets":
                    connection.reset()
    for engine in target.engines:
        engine.clear()

    target.assert_nothing_left()
