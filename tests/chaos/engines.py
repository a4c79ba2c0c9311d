"""Engines that count: the demo's, in the run's own event loop, each arrival checked against its ceiling."""

import asyncio
import os
import re
import select
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from demo.connection import Connection, Job
from demo.engine import Engine, Settings
from demo.wire import Request
from routing.upstream import POLLRDHUP
from tests.live.raw import HOST

MARK = re.compile(rb"chaos:([0-9a-z]+-[0-9]+);")
"""What a request carries in its prompt, so that an engine knows it again: its id."""


@dataclass(slots=True)
class Watch:
    """What all engines have seen, and what they may see at most.

    ``ceilings`` are by engine and by tier (its engines together); absent: none. `Watch.check` is called
    before a new request is counted. The count is exact: a request is in work until its answer's last bytes
    are written or the router has closed its connection, whether the engine has read that close or not.
    """

    tiers: Mapping[str, tuple[str, ...]]
    violation: Callable[[str], None]
    ceilings: dict[str, int] = field(default_factory=dict)
    engines: dict[str, "WatchedEngine"] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    peaks: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def check(self, name: str, arrival: Connection) -> None:
        """A request is about to be counted at engine ``name``: neither it nor its tier may be full.

        One whose connection the router has closed before it was read is none.
        """
        if _is_closed(arrival):
            return
        tier = next((tier for tier, names in self.tiers.items() if name in names), None)
        for scope, names in ((name, (name,)), *(((tier, self.tiers[tier]),) if tier is not None else ())):
            count = 1 + sum(self.engines[each].in_work for each in names)
            ceiling = self.ceilings.get(scope)
            if ceiling is not None and count > ceiling:
                deliver_what_was_sent()
                if _is_closed(arrival):
                    return
                count = 1 + sum(len(self.engines[each].still_wanted()) for each in names)
                if count > ceiling:
                    self.violation(f"{count} requests at once at {scope}, whose ceiling is {ceiling}")
            self.peaks[scope] = max(self.peaks[scope], count)


def deliver_what_was_sent() -> None:
    """Return when everything that was sent on the loopback before this call has come to its socket.

    The close of one connection and the request on another, sent after it by another thread, may come in
    either order: what a processor sends lies in that processor's own queue until it is worked off. So
    send a datagram through each processor's queue, behind all that is there, and wait until it has come.
    Raises TimeoutError where that takes a second.
    """
    allowed = os.sched_getaffinity(0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as itself:
        itself.settimeout(1.0)
        itself.bind((HOST, 0))
        itself.connect(itself.getsockname())
        try:
            for processor in allowed:
                os.sched_setaffinity(0, {processor})
                itself.send(b"x")
                itself.recv(1)
        finally:
            os.sched_setaffinity(0, allowed)


class WatchedEngine(Engine):
    """One engine of the run."""

    def __init__(self, name: str, watch: Watch, **settings: float | str) -> None:
        values = {"prefill": 0.0, "token": 0.0, "max_model_len": 8_000_000, **settings}
        super().__init__(Settings(name=name, **values), asyncio.get_running_loop())  # type: ignore[arg-type]
        self.watch = watch
        self.start(HOST, 0, None)
        assert self.listener is not None
        self.port = self.listener.port
        self.url = f"http://{HOST}:{self.port}/v1"

    @property
    def in_work(self) -> int:
        return len(self._running) + len(self._waiting)

    def still_wanted(self) -> list[Connection]:
        """Connections of requests in work that the router has not closed, as the kernel knows it."""
        return [job.connection for job in (*self._running, *self._waiting) if not _is_closed(job.connection)]

    def answer(self, connection: Connection, request: Request) -> Job:
        found = MARK.search(request.body)
        if found is not None:
            self.watch.seen[found[1].decode()].append(self.settings.name)
        return super().answer(connection, request)

    def submit(self, job: Job) -> None:
        if job.counted:
            self.watch.check(self.settings.name, job.connection)
        super().submit(job)


def _is_closed(connection: Connection) -> bool:
    peer = connection._transport.get_extra_info("socket")
    if peer is None or peer.fileno() < 0:
        return True
    poller = select.poll()
    poller.register(peer, POLLRDHUP)
    return bool(poller.poll(0))
