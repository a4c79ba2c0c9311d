"""Restarts one after another while callers keep coming: ceilings hold over old and new, no stream is cut."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.live.harness import (
    Engine,
    Repeating,
    Router,
    await_rest,
    chat_body,
    documents,
    eventually,
    replica_tier,
)
from tests.live.raw import RawConnection

pytestmark = pytest.mark.requirement("house-1", "house-5", "case-18", "case-19")

CEILING = 2
CALLERS = 8
ROUNDS = 3


@pytest.fixture
def engines(make_engine: Callable[..., Engine]) -> list[Engine]:
    """Their streams take a tenth of a second, so that every ceiling is reached."""
    return [make_engine(name, token=0.02, tokens=5) for name in ("a", "b")]


@pytest.fixture
def router(make_router: Callable[..., Router], engines: list[Engine]) -> Router:
    installed = documents(replica_tier(engines, ceilings=CEILING))
    return make_router(installed, environ={"ANVIL_GRACEFUL_TIMEOUT": "20"}).start()


class Callers(Repeating):
    """Streams one after another, each at the first of ``ports`` that does not turn it away."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(CALLERS, patience=60.0)
        self._ports = ports
        self._lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        """How many were ``whole``, and how many ``busy`` (503), ``refused`` (no connection), ``lost`` (the
        connection ended before an answer), or worse."""

    def turn(self) -> None:
        outcome = self._once()
        with self._lock:
            self.seen[outcome] += 1
        if outcome != "whole":
            # As a client does that reads Retry-After, only sooner.
            self.stopping.wait(0.02)

    def _once(self) -> str:
        outcome = "refused"
        for port in self._ports:
            outcome = self._at(port)
            if outcome not in ("refused", "lost", "busy"):
                break
        return outcome

    def _at(self, port: int) -> str:
        try:
            connection = RawConnection(port, timeout=40.0)
        except ConnectionError:
            return "refused"
        with connection:
            try:
                connection.post(chat_body("live.chat", stream=True))
                response = connection.start_response()
            except ConnectionError:
                return "lost"
            if response.status != 200:
                return "busy" if response.status == 503 else str(response.status)
            data = [event.data for event in connection.events(response)]
            return "whole" if data and data[-1] == "[DONE]" else "cut"

    def await_more(self, count: int = 40) -> None:
        """Wait until that many more were served whole."""
        wanted = self.seen["whole"] + count
        eventually(lambda: self.seen["whole"] >= wanted, timeout=40.0)


def assert_ceilings_held(engines: list[Engine]) -> None:
    for engine in engines:
        stats = engine.stats()
        # Reached, and never passed: what arrives is counted until its last byte is written.
        assert stats["peak_concurrency"] == CEILING
        assert stats["completed"] == stats["received"]


def test_a_successor_that_starts_beside_it_takes_over_from_a_router_under_load(
    router: Router, make_router: Callable[..., Router], engines: list[Engine]
) -> None:
    """As a process manager does it: the next one is started first, and the one before then told to stop."""
    beside = make_router(directory=router.directory.parent / "beside")
    beside._environ["ANVIL_DATA"] = str(router.directory / "data")
    beside._environ["ANVIL_GRACEFUL_TIMEOUT"] = "20"
    old, new = router, beside
    with Callers((router.port, beside.port)) as callers:
        for _ in range(ROUNDS):
            callers.await_more()
            new.start(wait=False)
            eventually(lambda new=new: answers(new), timeout=30.0)  # type: ignore[misc]
            assert old.terminate() == 0
            new.await_ready()
            old, new = new, old
        callers.await_more()
    # Who is in the backlog of a port that is given up is lost before anything was read.
    assert set(callers.seen) <= {"whole", "busy", "refused", "lost"}
    await_rest(old)
    assert_ceilings_held(engines)


def answers(router: Router) -> bool:
    try:
        return router.request("GET", "/healthz").status == 200
    except OSError:
        return False


def test_reloads_one_after_another_under_load(router: Router, engines: list[Engine]) -> None:
    with Callers((router.port,)) as callers:
        for _ in range(ROUNDS):
            callers.await_more()
            before = router._children()
            router.signal(signal.SIGHUP)
            eventually(
                lambda before=before: len(router._children()) == 1 and router._children() != before,  # type: ignore[misc]
                timeout=40.0,
            )
        callers.await_more()
    # Whoever comes meanwhile waits in the backlog; full members alone turn anybody away.
    assert set(callers.seen) <= {"whole", "busy"}
    await_rest(router)
    assert_ceilings_held(engines)
