"""The caller's socket as gunicorn's response writes to it: a slow reader does not hold the thread."""

import select
import socket
from typing import Any, Final

MAX_UNSENT: Final = 512 * 1024
"""Bytes that are kept of an answer beyond what the kernel takes; only a longer one waits for its caller."""

SILENCE: Final = 30.0
"""Seconds without taking one byte after which a caller that is waited for counts as gone."""

_DONT_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Outlet:
    """What gunicorn's ``Response`` needs of a socket. ``unsent`` is what is left to send at the end.

    Everything but writing is the socket's own.
    """

    def __init__(
        self, sock: socket.socket, *, max_unsent: int = MAX_UNSENT, silence: float = SILENCE
    ) -> None:
        self.unsent = bytearray()
        self._sock = sock
        self._max_unsent = max_unsent
        self._silence = silence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        """Send, or keep to be sent. Raises OSError when the caller is gone or takes nothing."""
        was_empty = not self.unsent
        self.unsent += data
        if was_empty:
            self._push()
        while len(self.unsent) > self._max_unsent:
            poller = select.poll()
            poller.register(self._sock, select.POLLOUT)
            if not poller.poll(self._silence * 1000):
                raise TimeoutError
            self._push()

    def _push(self) -> None:
        try:
            sent = self._sock.send(self.unsent, _DONT_WAIT)
        except (BlockingIOError, InterruptedError):
            return
        del self.unsent[:sent]
