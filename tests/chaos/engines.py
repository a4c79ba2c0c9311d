"""Engines that count: the demo's, in the run's own event loop, each arrival checked against its ceiling."""

import asyncio
import re
import select
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


OVERLAP = 0.01
"""Seconds. The end of one connection and the request on another are not ordered on their way, not even on a
loopback: an arrival that is one too many is only held against the router when nothing has ended by then."""


@dataclass(slots=True)
class Watch:
    """What all engines have seen, and what they may see at most.

    ``ceilings`` are by engine and by tier (its engines together); absent: none. `Watch.check` is called
    before a new request is counted, with the requests whose connections the router has not closed.
    """

    tiers: Mapping[str, tuple[str, ...]]
    violation: Callable[[str], None]
    ceilings: dict[str, int] = field(default_factory=dict)
    engines: dict[str, "WatchedEngine"] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    peaks: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    overlaps: int = 0
    """Arrivals that came up to `OVERLAP` seconds before the end of the connection they took the place of."""

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
                others = [each for name in names for each in self.engines[name].still_wanted()]
                count = 1 + len(others)
                if count > ceiling:
                    loop = asyncio.get_running_loop()
                    loop.call_later(OVERLAP, self._judge, scope, ceiling, [*others, arrival])
                    continue
            self.peaks[scope] = max(self.peaks[scope], count)

    def _judge(self, scope: str, ceiling: int, counted: list[Connection]) -> None:
        """Whether the arrival was one too many after all, or one of them was just being closed."""
        count = sum(not _is_closed(each) for each in counted)
        if count > ceiling:
            self.violation(f"{count} requests at once at {scope}, whose ceiling is {ceiling}")
        else:
            self.overlaps += 1


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
