"""A database that threads can share, and a control plane over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections

import anvil_site.runtime
from anvil_site.runtime import Runtime, make_pressure
from routing.router import Router, bind
from telemetry import process
from tests.unit.routing.availability_support import Script
from tests.web import control_support
from tests.web.control_support import ENVIRON, PATIENCE, Control


@pytest.fixture(scope="session")
def django_db_modify_db_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """SQLite in a file, as in production: one in memory knows no waiting for a lock."""
    database = tmp_path_factory.mktemp("database") / "test.sqlite3"
    connections["default"].settings_dict["TEST"]["NAME"] = str(database)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """This process's runtime, not started: nothing but what a test does happens in it."""
    made = Runtime(data_dir=tmp_path, auth=True)
    monkeypatch.setattr(anvil_site.runtime, "_runtime", made)
    process.bind(made.evidence)
    yield made
    made.router.close()
    bind(None)
    process.bind(None)


@pytest.fixture
def probes() -> Script:
    """How upstreams answer; a test changes the answers."""
    return control_support.probes()


@pytest.fixture
def control(runtime: Runtime, probes: Script) -> Iterator[Control]:
    """An owner of the ledger with `control_support.CONFIG` active and every upstream found well."""
    router = Router(
        evidence=runtime.evidence,
        pressure_factory=make_pressure,
        environ=ENVIRON,
        probe_transport=probes,
    )
    runtime.router = router
    bind(router)
    control_support.install(router)
    assert router.availability.first_round_done.wait(PATIENCE)
    router.owns_ledger = True
    made = Control(router=router, probes=probes)
    yield made
    made.end_requests()
