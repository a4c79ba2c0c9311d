"""Engines, routers and raw connections that end with their test, and their logs beside a failure."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import Documents, Engine, Router
from tests.live.raw import RawConnection

_LOGS = pytest.StashKey[list[tuple[str, Callable[[], str]]]]()
_LOG_TAIL = 8000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for title, read in item.stash.get(_LOGS, []):
            report.sections.append((title, read()[-_LOG_TAIL:]))
    return report


@pytest.fixture
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """``make_engine("name", prefill=0.1, ...)``: an engine that ends with the test."""
    engines: list[Engine] = []
    logs = request.node.stash.setdefault(_LOGS, [])

    def make(name: str = "engine", **settings: Any) -> Engine:
        engine = Engine.start(tmp_path / "engines", name, **settings)
        engines.append(engine)
        logs.append((f"log of {name}", lambda: engine.log))
        return engine

    yield make
    for engine in engines:
        engine.stop()


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    """An engine that answers at once."""
    return make_engine()


@pytest.fixture
def make_router(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Router]]:
    """``make_router(documents, environ={...})``: a router that is not started yet and ends with the test."""
    routers: list[Router] = []
    logs = request.node.stash.setdefault(_LOGS, [])

    def make(installed: Documents | None = None, *, directory: Path | None = None, **options: Any) -> Router:
        router = Router(directory or tmp_path / f"router-{len(routers)}", installed, **options)
        routers.append(router)
        logs.append((f"log of router {len(routers) - 1}", lambda: router.log))
        return router

    yield make
    for router in routers:
        router.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., RawConnection]]:
    """``connect(port)``: a raw connection that is closed with the test."""
    connections: list[RawConnection] = []

    def make(port: int, **options: Any) -> RawConnection:
        connection = RawConnection(port, **options)
        connections.append(connection)
        return connection

    yield make
    for connection in connections:
        connection.close()
