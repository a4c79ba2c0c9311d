"""What a slow reader costs the thread that answers it."""

import socket
import threading
from collections.abc import Iterator

import pytest

from anvil_site.outlet import Outlet

PATIENCE = 5.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.settimeout(PATIENCE)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_what_is_taken_at_once_is_not_kept(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outlet = Outlet(ours)
    outlet.sendall(b"hello")
    outlet.sendall(b" world")

    assert outlet.unsent == b""
    assert theirs.recv(64) == b"hello world"


@pytest.mark.requirement("house-2")
def test_what_is_not_taken_is_kept_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outlet = Outlet(ours)
    answer = bytes(range(256)) * 1024
    outlet.sendall(answer)
    outlet.sendall(b"end")

    rest = bytes(outlet.unsent)
    assert rest.endswith(b"end")
    ours.shutdown(socket.SHUT_WR)
    received = b"".join(iter(lambda: theirs.recv(65_536), b""))
    assert received + rest == answer + b"end"


def test_more_than_may_be_kept_waits_for_the_caller(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    outlet = Outlet(ours, max_unsent=1000)
    answer = bytes(200_000)
    received = bytearray()

    def read() -> None:
        while len(received) < len(answer) - 1000:
            received.extend(theirs.recv(65_536))

    reader = threading.Thread(target=read)
    reader.start()
    outlet.sendall(answer)
    reader.join(PATIENCE)

    assert not reader.is_alive()
    assert len(outlet.unsent) <= 1000


def test_a_caller_that_takes_nothing_is_given_up(ends: tuple[socket.socket, socket.socket]) -> None:
    outlet = Outlet(ends[0], max_unsent=1000, silence=0.05)

    with pytest.raises(TimeoutError):
        outlet.sendall(bytes(1 << 20))


def test_a_caller_that_is_gone_is_told_as_a_socket_would(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.close()

    with pytest.raises(BrokenPipeError):
        Outlet(ours).sendall(b"hello")


def test_everything_else_is_the_sockets_own(ends: tuple[socket.socket, socket.socket]) -> None:
    assert Outlet(ends[0]).fileno() == ends[0].fileno()
