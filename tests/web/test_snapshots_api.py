"""REST of snapshots: list, capture, exact bytes, activate (contract 1 and 2)."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from routing import activation, keys, publishing
from routing.audit import Through
from routing.models import ActiveSnapshot, RouterSnapshot
from routing.snapshots_api import MAX_UPLOAD_BYTES
from tests import corpus
from tests.unit.routing.availability_support import models
from tests.web.control_support import (
    CONFIG,
    PATIENCE,
    TOKEN,
    TOPOLOGY,
    Control,
    Reply,
    failing_database,
    in_thread,
)
from tests.web.publishing_support import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 2 snapshots"),
]

SNAPSHOTS = "/v1/admin/snapshots"
BROKEN = CONFIG.replace("max_concurrency = 3", "max_concurrency = 0").replace('"llm.solo"', '"capacity"')
CODES = (
    "router_config_invalid",
    "topology_invalid",
    "replica_resource_missing",
    "replica_resource_reused",
    "replica_host_mismatch",
    "replica_endpoint_missing",
    "replica_endpoint_mismatch",
    "replica_host_split",
)


def encoded(data: bytes | str) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def body(config: bytes | str, topology: bytes | str | None = TOPOLOGY) -> dict[str, str]:
    return {"config": encoded(config), **({} if topology is None else {"topology": encoded(topology)})}


def post(control: Control, config: bytes | str, topology: bytes | str | None = TOPOLOGY) -> Reply:
    return control.request("POST", SNAPSHOTS, body(config, topology))


def activate(control: Control, number: int, **order: object) -> Reply:
    wanted = {"confirm": True, **order}
    return control.request("POST", f"{SNAPSHOTS}/{number}/activate", wanted)


@pytest.fixture
def first(control: Control) -> int:
    """What is served, stored and active."""
    row, _ = publishing.capture(
        CONFIG.encode(), TOPOLOGY.encode(), None, source=RouterSnapshot.Source.CLI, actor="ada"
    )
    activation.activate(control.router, row, actor="ada", through=Through.REST)
    return row.pk


# --- Capture ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-R004", "Q-T015")
def test_exactly_the_bytes_that_were_sent_are_kept(control: Control, first: int) -> None:
    config = CONFIG.replace("\n", "\r\n") + "# caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    reply = post(control, config)
    assert reply.status == 201
    number = reply.json["id"]
    assert reply.json == {
        "object": "router_snapshot",
        "id": number,
        "created_at": RouterSnapshot.objects.get(pk=number).created_at.isoformat(),
        "created_by": "bootstrap",
        "source": "rest",
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "topology_sha256": hashlib.sha256(TOPOLOGY.encode()).hexdigest(),
        "tier_count": 5,
        "replica_tier_count": 1,
        "replica_member_count": 2,
        "active": False,
    }
    assert reply.headers["cache-control"] == "no-store"
    shown = control.request("GET", f"{SNAPSHOTS}/{number}")
    assert shown.json == {
        **reply.json,
        "config": encoded(config),
        "topology": encoded(TOPOLOGY),
        "overlay": None,
    }


def test_documents_come_as_files_of_a_form_too(control: Control, first: int) -> None:
    config, topology, overlay = corpus.snapshot_case("valid-overlay").data()
    assert topology is not None
    assert overlay is not None
    files = {
        "config": SimpleUploadedFile("anything.toml", config),
        "topology": SimpleUploadedFile("t", topology),
        "overlay": SimpleUploadedFile("o", overlay),
    }
    response = Client().post(SNAPSHOTS, files, headers={"Authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 201
    row = RouterSnapshot.objects.get(pk=response.json()["id"])
    assert publishing.captured(row) == (config, topology, overlay)


def test_bytes_that_were_captured_before_are_not_kept_twice(control: Control, first: int) -> None:
    again = post(control, CONFIG)
    assert (again.status, again.json["id"], again.json["active"]) == (200, first, True)
    assert post(control, CONFIG + "\n").status == 201
    assert post(control, corpus.read("snapshots/valid-direct/config.toml"), None).status == 201
    assert RouterSnapshot.objects.count() == 3


@pytest.mark.requirement("contract 1")
def test_a_refusal_has_the_code_and_every_fault_with_its_place_and_stores_nothing(
    control: Control, first: int
) -> None:
    reply = post(control, BROKEN)
    assert reply.status == 422
    assert reply.json == {
        "error": {
            "message": "The router configuration is not valid.",
            "type": "invalid_request_error",
            "param": None,
            "code": "router_config_invalid",
        },
        "config_sha256": hashlib.sha256(BROKEN.encode()).hexdigest(),
        "faults": [
            {
                "document": "config",
                "line": 11,
                "path": "router.model_routes.capacity",
                "message": "must be 1 to 128 letters, digits, . _ : / or -, the first a letter or digit, "
                "and none of capacity, capabilities, fingerprints",
            },
            {
                "document": "config",
                "line": 51,
                "path": "router.tiers[1].max_concurrency",
                "message": "must be an integer from 1 to 100000, not 0",
            },
        ],
    }
    assert RouterSnapshot.objects.count() == 1


@pytest.mark.requirement("Q-R004", "Q-T006")
@pytest.mark.parametrize("code", CODES)
def test_each_fixed_code(control: Control, first: int, code: str) -> None:
    config, topology, _ = corpus.snapshot_case(code).data()
    reply = post(control, config, topology)
    assert (reply.status, reply.json["error"]["code"]) == (422, code)
    assert reply.json["faults"]
    assert RouterSnapshot.objects.count() == 1


def test_a_document_that_is_too_large(control: Control, first: int) -> None:
    reply = post(control, b"#" * (1_048_576 + 1))
    assert (reply.status, reply.json["error"]["code"]) == (422, "config_too_large")
    assert reply.json["config_sha256"] is None
    assert reply.json["faults"] == [
        {
            "document": "config",
            "line": None,
            "path": "document",
            "message": "is larger than 1048576 bytes",
        }
    ]
    over = SimpleUploadedFile("c", b"#" * (1_048_576 + 2))
    response = Client().post(SNAPSHOTS, {"config": over}, headers={"Authorization": f"Bearer {TOKEN}"})
    assert (response.status_code, response.json()["error"]["code"]) == (422, "config_too_large")
    reply = control.request("POST", SNAPSHOTS, b'"' + b"#" * MAX_UPLOAD_BYTES)
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")


def test_a_thousand_faults_are_told_of_a_document_that_has_more(control: Control, first: int) -> None:
    reply = post(control, "".join(f"key{number} = 1\n" for number in range(1001)))
    assert len(reply.json["faults"]) == 1000


@pytest.mark.parametrize(
    "sent",
    [
        [],
        {},
        {"topology": encoded(TOPOLOGY)},
        {"config": None},
        {"config": 1},
        {"config": "not base64!"},
        {"config": encoded(CONFIG) + "\n"},
        {"config": encoded(CONFIG), "topology": ["x"]},
        {"config": encoded(CONFIG), "colour": encoded("x")},
        b'{"config": "eA==", "config": "eA=="}',
        b"config = 1",
    ],
)
def test_a_malformed_body_is_refused(control: Control, first: int, sent: Any) -> None:
    reply = control.request("POST", SNAPSHOTS, sent)
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")
    assert RouterSnapshot.objects.count() == 1


@pytest.mark.parametrize(
    "form",
    [
        {"config": "text and no file"},
        {"config": [SimpleUploadedFile("a", b"x"), SimpleUploadedFile("b", b"x")]},
        {"config": SimpleUploadedFile("a", b"x"), "more": "x"},
        {"config": "x" * 3_000_000},
    ],
)
def test_a_malformed_form_is_refused(control: Control, first: int, form: Any) -> None:
    response = Client().post(SNAPSHOTS, form, headers={"Authorization": f"Bearer {TOKEN}"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


def test_a_database_that_fails_keeps_no_snapshot(control: Control, first: int) -> None:
    with failing_database("routing_routersnapshot"):
        reply = post(control, CONFIG + "\n")
    assert (reply.status, reply.json["error"]["code"]) == (503, "not_persisted")
    assert "secret" not in reply.body.decode()


# --- List -------------------------------------------------------------------------------------------------


def test_the_list_is_newest_first_bounded_and_marks_the_active_one(control: Control, first: int) -> None:
    second = post(control, CONFIG + "\n").json["id"]
    third = post(control, CONFIG + "\n\n").json["id"]
    listed = control.request("GET", SNAPSHOTS)
    assert listed.json["object"] == "list"
    assert [(row["id"], row["active"]) for row in listed.json["data"]] == [
        (third, False),
        (second, False),
        (first, True),
    ]
    assert "config" not in listed.json["data"][0]
    page = control.request("GET", f"{SNAPSHOTS}?limit=1&before={third}")
    assert [row["id"] for row in page.json["data"]] == [second]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "before=-1", "limit=1&limit=2", "q=1"])
def test_a_bad_query_is_refused(control: Control, first: int, query: str) -> None:
    assert control.request("GET", f"{SNAPSHOTS}?{query}").status == 400


@pytest.mark.parametrize("path", [f"{SNAPSHOTS}/999999", f"{SNAPSHOTS}/{10**30}"])
def test_an_unknown_snapshot(control: Control, first: int, path: str) -> None:
    for method, where in (("GET", path), ("POST", f"{path}/activate")):
        reply = control.request(method, where, {"confirm": True} if method == "POST" else None)
        assert (reply.status, reply.json["error"]["code"]) == (404, "unknown_snapshot")


# --- Preview ----------------------------------------------------------------------------------------------


def test_documents_can_be_previewed_without_being_kept(control: Control, first: int) -> None:
    before = control.facts()
    reply = control.request("POST", SNAPSHOTS, {**body(SOLO_ELSEWHERE), "dry_run": True})
    assert (reply.status, reply.json) == (
        200,
        {
            "applied": False,
            "dry_run": True,
            "config_sha256": hashlib.sha256(SOLO_ELSEWHERE.encode()).hexdigest(),
            "topology_sha256": hashlib.sha256(TOPOLOGY.encode()).hexdigest(),
            "changes": [CHANGE],
            "settings": [],
            "scopes": [{"tier_id": "solo", "member_id": None}],
        },
    )
    assert control.facts() == before
    assert RouterSnapshot.objects.count() == 1


def test_a_preview_of_bad_documents_tells_their_faults(control: Control, first: int) -> None:
    reply = control.request("POST", SNAPSHOTS, {**body(BROKEN), "dry_run": True})
    assert (reply.status, reply.json["error"]["code"]) == (422, "router_config_invalid")
    assert [fault["path"] for fault in reply.json["faults"]] == [
        "router.model_routes.capacity",
        "router.tiers[1].max_concurrency",
    ]


@pytest.mark.parametrize("value", [None, "true", 1])
def test_a_dry_run_is_a_boolean(control: Control, first: int, value: object) -> None:
    reply = control.request("POST", SNAPSHOTS, {**body(CONFIG), "dry_run": value})
    assert (reply.status, reply.json["error"]["param"]) == (400, "dry_run")


# --- Activate ---------------------------------------------------------------------------------------------

SOLO_ELSEWHERE = CONFIG.replace('"http://solo/v1"', '"http://solo-2/v1"')
CHANGE = {
    "tier_id": "solo",
    "member_id": None,
    "change": "changed",
    "keys": ["base_url"],
    "needs_drain": True,
    "starts_cold": True,
}


@pytest.mark.parametrize(
    "order",
    [{}, {"dry_run": False}, {"confirm": False}, {"confirm": True, "dry_run": True}],
)
def test_without_confirmation_it_says_what_would_happen(
    control: Control, first: int, order: dict[str, object]
) -> None:
    number = post(control, SOLO_ELSEWHERE).json["id"]
    before = control.facts()
    reply = control.request("POST", f"{SNAPSHOTS}/{number}/activate", order)
    assert reply.status == 200
    assert reply.json == {
        "applied": False,
        "dry_run": True,
        "snapshot_id": number,
        "changes": [CHANGE],
        "settings": [],
        "scopes": [{"tier_id": "solo", "member_id": None}],
    }
    assert control.facts() == before


def test_it_activates_and_tells_each_step(control: Control, first: int) -> None:
    control.probes.answers["solo-2"] = models("qwen")
    number = post(control, SOLO_ELSEWHERE).json["id"]
    reply = activate(control, number, drain_timeout=5)
    assert reply.status == 200
    assert reply.json == {
        "applied": True,
        "snapshot_id": number,
        "previous_snapshot_id": first,
        "config_sha256": hashlib.sha256(SOLO_ELSEWHERE.encode()).hexdigest(),
        "changes": [CHANGE],
        "settings": [],
        "steps": [
            {"step": "validate", "outcome": "passed"},
            {"step": "quiesce", "tier_id": "solo", "member_id": None, "outcome": "quiesced"},
            {"step": "drain", "tier_id": "solo", "member_id": None, "outcome": "drained"},
            {"step": "activate", "outcome": "activated"},
            {"step": "verify", "tier_id": "solo", "member_id": None, "outcome": "identity_passed"},
            {"step": "readmit", "tier_id": "solo", "member_id": None, "outcome": "readmitted"},
        ],
    }
    assert ActiveSnapshot.objects.get().snapshot_id == number
    assert control.request("GET", f"{SNAPSHOTS}/{number}").json["active"] is True


def test_a_refusal_names_the_scopes_and_the_steps(control: Control, first: int) -> None:
    control.run_request("solo")
    number = post(control, SOLO_ELSEWHERE).json["id"]
    reply = activate(control, number)
    assert reply.status == 409
    assert reply.json == {
        "error": {
            "message": "What changes still admits or still runs requests; nothing has changed.",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_drained",
        },
        "scopes": [{"tier_id": "solo", "member_id": None, "state": "admitting", "active_requests": 1}],
        "steps": [{"step": "validate", "outcome": "passed"}],
    }


def test_a_second_activation_is_refused_and_the_waiting_one_holds_no_place(
    control: Control, first: int
) -> None:
    control.probes.answers["solo-2"] = models("qwen")
    lease = control.run_request("solo")
    number = post(control, SOLO_ELSEWHERE).json["id"]
    with in_thread(lambda: activate(control, number, drain_timeout=PATIENCE)) as result:
        drains = control.router.operations.drains
        eventually(lambda: drains.latest("solo", None) is not None)
        places = control.router.operations.at_work
        assert [places.acquire(blocking=False) for _ in range(3)] == [True] * 3
        assert activate(control, first).json["error"]["code"] == "activation_in_progress"
        assert control.do("quiesce", "plain").status == 200
        for _ in range(3):
            places.release()
        lease.release()
        assert result().status == 200


@pytest.mark.parametrize(
    "order",
    [
        [],
        {"confirm": 1},
        {"confirm": True, "dry_run": None},
        {"confirm": True, "drain_timeout": 0},
        {"confirm": True, "drain_timeout": 3601},
        {"confirm": True, "drain_timeout": True},
        {"confirm": True, "drain_timeout": "5"},
        {"confirm": True, "colour": "red"},
        b'{"confirm": true, "drain_timeout": NaN}',
    ],
)
def test_a_malformed_order_is_refused(control: Control, first: int, order: Any) -> None:
    reply = control.request("POST", f"{SNAPSHOTS}/{first}/activate", order)
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")


# --- Who may ----------------------------------------------------------------------------------------------

REQUESTS: tuple[tuple[str, str, object], ...] = (
    ("GET", SNAPSHOTS, None),
    ("POST", SNAPSHOTS, body(CONFIG)),
    ("GET", f"{SNAPSHOTS}/1", None),
    ("POST", f"{SNAPSHOTS}/1/activate", {"confirm": True}),
)


@pytest.mark.requirement("contract 2 authentication")
@pytest.mark.parametrize(("method", "path", "sent"), REQUESTS)
def test_configure_is_the_scope(control: Control, first: int, method: str, path: str, sent: object) -> None:
    _, secret = keys.create(
        control.router,
        name="everything-else",
        scopes=["infer", "observe", "operate"],
        actor="ada",
        through=Through.REST,
    )
    assert control.request(method, path, sent, token=secret).status == 403
    control.token = None
    assert control.request(method, path, sent).status == 401
    assert RouterSnapshot.objects.count() == 1


def test_a_process_that_does_not_own_the_ledger_changes_nothing(control: Control, first: int) -> None:
    control.router.owns_ledger = False
    for reply in (
        post(control, CONFIG + "\n"),
        activate(control, first),
        activate(control, first, dry_run=True),
    ):
        assert (reply.status, reply.json["error"]["code"]) == (503, "not_ledger_owner")
    assert RouterSnapshot.objects.count() == 1


@pytest.mark.parametrize("path", [SNAPSHOTS, f"{SNAPSHOTS}/1", f"{SNAPSHOTS}/1/activate"])
def test_other_methods_are_not_there(control: Control, first: int, path: str) -> None:
    reply = control.request("DELETE", path)
    assert reply.status == 405
    assert reply.headers["allow"]


def test_the_faults_of_a_document_are_in_no_log(
    control: Control, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    post(control, BROKEN.replace('"http://solo/v1"', '"http://user:hunter2@solo/v1"'))
    assert "refused action=capture code=router_config_invalid actor=bootstrap through=rest" in caplog.text
    assert "hunter2" not in caplog.text
    assert json.dumps(BROKEN)[1:40] not in caplog.text


@pytest.mark.requirement("Q-T015", "Q-A007")
def test_a_file_that_changes_after_it_was_captured_changes_nothing(
    control: Control, first: int, tmp_path: Path
) -> None:
    path = tmp_path / "router.toml"
    path.write_text(CONFIG + "# first\n")
    number = post(control, path.read_bytes()).json["id"]
    path.write_text("broken")
    assert activate(control, number).status == 200
    assert control.router.active is not None
    assert control.router.active.snapshot.config_bytes == (CONFIG + "# first\n").encode()
