"""Snapshots in the database: the one way in, comparison, and what a process does with an active one."""

import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anvil_site import offline
from anvil_site.runtime import Runtime
from routing import publishing, transitions
from routing.models import ActiveSnapshot, AuditEntry, RouterSnapshot
from routing.records import AttemptRecord, DecisionRecord
from routing.snapshot import SnapshotError, ValidatedSnapshot, validate_snapshot
from tests import corpus
from tests.web.publishing_support import eventually

FULL = corpus.snapshot_case("valid-full").data()
DIRECT = corpus.read("config/valid/direct.toml")


def snapshot(config: bytes, topology: bytes | None = None, overlay: bytes | None = None) -> ValidatedSnapshot:
    return validate_snapshot(config, topology, overlay)


# --- One way in -------------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-T015")
@pytest.mark.parametrize(
    "way_in", [publishing.capture, publishing.store, publishing.install_into_empty, offline.install_snapshot]
)
def test_nothing_is_installed_from_a_path(way_in: Callable[..., Any]) -> None:
    """No path-based install is left that would have to refuse replicas: each way in takes bytes, or what was
    validated from bytes, and all of them are validated by the one function."""
    for name, parameter in inspect.signature(way_in).parameters.items():
        if name in ("source", "actor", "through"):
            continue
        assert parameter.annotation in (bytes, bytes | None, ValidatedSnapshot)


@pytest.mark.django_db
@pytest.mark.requirement("Q-R004", "Q-T015")
@pytest.mark.parametrize("case", corpus.snapshot_cases(valid=False), ids=lambda case: case.name)
def test_what_does_not_pass_leaves_nothing_behind(case: corpus.SnapshotCase, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError) as caught:
        publishing.capture(*case.data(), source=RouterSnapshot.Source.UPLOAD, actor="ada")
    assert caught.value.code == case.name
    assert not RouterSnapshot.objects.exists()


@pytest.mark.requirement("Q-T015")
def test_offline_too_validation_comes_before_the_data_directory_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched() -> None:
        raise AssertionError("the data directory was touched")

    monkeypatch.setattr(offline, "owning_data_directory", touched)
    with pytest.raises(SnapshotError):
        offline.install_snapshot(*corpus.snapshot_case("replica_host_split").data())


@pytest.mark.django_db
def test_a_first_start_installs_once_and_leaves_its_trace() -> None:
    first = publishing.install_into_empty(
        snapshot(DIRECT), source=RouterSnapshot.Source.FIRST_START, actor="start"
    )
    assert first is not None
    again = publishing.install_into_empty(
        snapshot(*FULL), source=RouterSnapshot.Source.FIRST_START, actor="start"
    )
    assert again is None
    assert publishing.active_row() == first
    assert RouterSnapshot.objects.count() == 1
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.through, entry.action, entry.subject, entry.result) == (
        "start",
        "start",
        "activate",
        f"snapshot {first.pk}",
        "activated",
    )


@pytest.mark.django_db
def test_the_pointer_is_one_row_that_can_be_taken_away() -> None:
    row, _ = publishing.capture(DIRECT, None, None, source=RouterSnapshot.Source.CLI, actor="ada")
    publishing.point_at(row.pk, actor="ada")
    publishing.point_at(row.pk, actor="bob")
    assert ActiveSnapshot.objects.values_list("snapshot_id", "activated_by").get() == (row.pk, "bob")
    publishing.point_at(None, actor="ada")
    assert publishing.active_row() is None


@pytest.mark.django_db
def test_documents_that_differ_in_any_one_of_three_are_kept_apart() -> None:
    config, topology, overlay = corpus.snapshot_case("valid-overlay").data()
    assert overlay is not None
    rows = [
        publishing.capture(config, topology, data, source=RouterSnapshot.Source.CLI, actor="ada")
        for data in (overlay, overlay + b"\n", overlay)
    ]
    assert [is_new for _, is_new in rows] == [True, True, False]
    assert rows[0][0] == rows[2][0]
    assert rows[0][0] != rows[1][0]


# --- Comparison -------------------------------------------------------------------------------------------


def test_a_difference_shows_values_and_not_layout() -> None:
    config, topology, _ = FULL
    assert topology is not None
    commented = config + b"# one more comment"
    rewritten = commented.replace(b"first_byte_timeout = 300\n", b"first_byte_timeout = 3e2\n")
    assert rewritten != commented
    assert publishing.diff(snapshot(*FULL), snapshot(rewritten, topology)).is_empty

    changed = config.replace(b"max_concurrency = 12", b"max_concurrency = 10")
    found = publishing.diff(snapshot(*FULL), snapshot(changed, topology + b"# lab\n"))
    assert [line for line in found.config_lines if line[0] in "+-"] == [
        "--- active",
        "+++ candidate",
        "-max_concurrency = 12",
        "+max_concurrency = 10",
    ]
    assert found.topology_lines == ()
    assert [(change.scope.tier_id, change.keys) for change in found.plan.changes] == [
        ("primary", ("max_concurrency",))
    ]


def test_everything_is_new_where_nothing_was_active() -> None:
    found = publishing.diff(None, snapshot(*FULL))
    assert found.config_lines[:2] == ("--- active", "+++ candidate")
    assert 'id = "lab"' in "".join(found.topology_lines)
    assert [change.kind for change in found.plan.changes] == ["added", "added"]


# --- What a process does with it --------------------------------------------------------------------------

QUIET = b"""
[server]
decision_log_path = "first.jsonl"

[router.model_routes]
"llm.a" = "a"

[[router.tiers]]
id = "a"
base_url = "http://127.0.0.1:9/v1"
context_limit = 1000
model = "m"
auth_env = "A_VARIABLE_THAT_IS_NOT_SET"
"""
RECORD = DecisionRecord(
    route="llm.a",
    kind="chat",
    requested_tier="a",
    served_tier="a",
    attempts=(AttemptRecord(tier_id="a", outcome="served", succeeded=True, reason="served"),),
)


@pytest.mark.django_db
@pytest.mark.requirement("contract 1 activation")
def test_decisions_follow_the_active_configurations_path(runtime: Runtime, tmp_path: Path) -> None:
    def install(config: bytes) -> None:
        transitions.install(runtime.router, snapshot(config), snapshot_id=1)

    def lines(name: str) -> int:
        path = tmp_path / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    install(QUIET)
    runtime.log.append(RECORD)
    install(QUIET.replace(b'"http://127.0.0.1:9/v1"', b'"http://127.0.0.1:10/v1"'))
    runtime.log.append(RECORD)
    eventually(lambda: lines("first.jsonl") == 2)
    install(QUIET.replace(b"first", b"second"))
    runtime.log.append(RECORD)
    eventually(lambda: lines("second.jsonl") == 1)
    install(QUIET.replace(b'decision_log_path = "first.jsonl"', b""))
    runtime.log.append(RECORD)
    runtime.stop()
    assert (lines("first.jsonl"), lines("second.jsonl")) == (2, 1)
    assert json.loads((tmp_path / "second.jsonl").read_text())["route"] == "llm.a"


@pytest.mark.django_db
def test_a_variable_that_is_not_set_is_told_by_its_place_alone(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        transitions.install(runtime.router, snapshot(QUIET), snapshot_id=1)
    assert [record.getMessage() for record in caplog.records if record.name == "anvil.runtime"] == [
        "the variable that router.tiers[0].auth_env names is not set: no secret is sent or taken there"
    ]
