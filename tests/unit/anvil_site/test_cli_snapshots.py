"""``anvil snapshots``: what was captured, one of it, and going back to it."""

import base64
from typing import Any

import pytest

from tests.unit.anvil_site.cli_support import Anvil, FakeRouter

PATH = "/v1/admin/snapshots"
SHA = "ab" * 32
ROW: dict[str, Any] = {
    "object": "router_snapshot",
    "id": 7,
    "created_at": "2030-01-02T03:04:05+00:00",
    "created_by": "ada",
    "source": "rest",
    "config_sha256": SHA,
    "topology_sha256": None,
    "tier_count": 2,
    "replica_tier_count": 1,
    "replica_member_count": 3,
    "active": True,
}
LINE = "7: 2030-01-02T03:04:05+00:00 by ada through rest; 2 tiers, 3 members; config abababababab; active"
CONFIG = "# größer\r\n[router]\n".encode()
DOCUMENTS = {"config": base64.b64encode(CONFIG).decode(), "topology": None, "overlay": None}
PREVIEW = {"applied": False, "dry_run": True, "snapshot_id": 7, "changes": [], "settings": [], "scopes": []}


class TestList:
    def test_each_in_a_line_and_the_active_one_marked(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", PATH, 200, {"object": "list", "data": [ROW, {**ROW, "id": 6, "active": False}]})
        result = anvil("snapshots", "list", "--limit", "2")
        assert (result.code, result.out.splitlines()[0]) == (0, LINE)
        assert result.out.splitlines()[1].endswith("config abababababab")
        assert router.asked[0].query == {"limit": "2"}

    def test_there_may_be_none(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", PATH, 200, {"object": "list", "data": []})
        assert anvil("snapshots", "list").out == "no snapshots\n"


class TestShow:
    def test_what_is_known_of_one(self, anvil: Anvil, router: FakeRouter) -> None:
        for _ in range(2):
            # Longer than any text that is shown.
            router.answer("GET", f"{PATH}/7", 200, {**ROW, **DOCUMENTS, "config": "QUFB" * 5000})
        assert anvil("snapshots", "show", "--id", "7").out == (
            f"{LINE}\n  config_sha256 {SHA}\n  documents: config\n"
        )
        assert anvil("snapshots", "show", "--id", "7", "--json").envelope["data"] == {
            **ROW,
            "documents": ["config"],
        }

    def test_a_document_comes_byte_for_byte(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", f"{PATH}/7", 200, {**ROW, **DOCUMENTS})
        result = anvil("snapshots", "show", "--id", "7", "--document", "config")
        assert (result.code, result.out.encode()) == (0, CONFIG)

    def test_a_document_that_it_does_not_have(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", f"{PATH}/7", 200, {**ROW, **DOCUMENTS})
        result = anvil("snapshots", "show", "--id", "7", "--document", "overlay")
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            "snapshots show: the snapshot has no such document; "
            "anvil snapshots show lists those that it has (no_such_document)\n"
        )

    @pytest.mark.parametrize("change", [{"id": 8}, {"config": "no base64!"}, {"config": 5}])
    def test_an_answer_about_another_is_none(
        self, anvil: Anvil, router: FakeRouter, change: dict[str, Any]
    ) -> None:
        router.answer("GET", f"{PATH}/7", 200, {**ROW, **DOCUMENTS, **change})
        result = anvil("snapshots", "show", "--id", "7", "--document", "config", "--json")
        assert [error["code"] for error in result.envelope["errors"]] == ["malformed_answer"]


class TestActivate:
    def test_without_confirm_it_previews(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", f"{PATH}/7/activate", 200, PREVIEW)
        result = anvil("snapshots", "activate", "--id", "7")
        assert result.out == (
            "preview: activate snapshot 7; nothing was changed, --confirm does it\n"
            "  it means exactly what is active now\n"
        )
        assert router.asked[0].json == {"confirm": False, "dry_run": True}

    def test_with_confirm_it_is_done(self, anvil: Anvil, router: FakeRouter) -> None:
        steps = [{"step": "validate", "outcome": "passed"}, {"step": "activate", "outcome": "activated"}]
        done = {"applied": True, "snapshot_id": 7, "steps": steps}
        router.answer("POST", f"{PATH}/7/activate", 200, done)
        result = anvil("snapshots", "activate", "--id", "7", "--drain-timeout", "5", "--confirm")
        assert (result.code, result.out) == (
            0,
            "snapshot 7 is active\n"
            "  Validate the bytes again: passed\n"
            "  Move the pointer and swap: activated\n",
        )
        assert router.asked[0].json == {"confirm": True, "dry_run": False, "drain_timeout": 5.0}

    def test_what_refuses_it_is_told_with_its_scopes(self, anvil: Anvil, router: FakeRouter) -> None:
        scopes = [{"tier_id": "chat", "member_id": "a", "state": "admitting", "active_requests": 2}]
        body = {"error": {"code": "not_drained"}, "scopes": scopes, "steps": []}
        router.answer("POST", f"{PATH}/7/activate", 409, body)
        result = anvil("snapshots", "activate", "--id", "7", "--confirm")
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            "snapshots activate 7: what changes still admits or still runs requests; nothing has changed; "
            "drain it first (anvil router quiesce, then drain), or give --drain-timeout (not_drained)\n"
            "  chat/a: admitting, two running requests\n"
        )

    def test_one_that_there_is_not(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", f"{PATH}/9/activate", 404, {"error": {"code": "unknown_snapshot"}})
        assert anvil("snapshots", "activate", "--id", "9").err == (
            "snapshots activate 9: there is no such snapshot; anvil snapshots list shows them "
            "(unknown_snapshot)\n"
        )

    @pytest.mark.parametrize("change", [{"applied": True}, {"snapshot_id": 8}])
    def test_an_answer_to_something_else_is_none(
        self, anvil: Anvil, router: FakeRouter, change: dict[str, Any]
    ) -> None:
        router.answer("POST", f"{PATH}/7/activate", 200, {**PREVIEW, **change})
        result = anvil("snapshots", "activate", "--id", "7", "--json")
        assert [error["code"] for error in result.envelope["errors"]] == ["malformed_answer"]
