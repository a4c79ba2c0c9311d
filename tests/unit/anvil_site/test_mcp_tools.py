"""The tools: closed arguments, nothing sent for bad ones, the command line's own requests for good ones."""

import json
import math
from typing import Any

import jsonschema
import pytest

from anvil_site.cli import client as request_function
from anvil_site.cli import readers, transitions
from anvil_site.cli.outcome import Fault
from anvil_site.mcp import tools
from anvil_site.mcp.catalog import TOOLS
from anvil_site.mcp.tools import Result, call_tool
from tests.unit.anvil_site.cli_support import TOKEN, FakeRouter

pytestmark = pytest.mark.requirement("C-T009", "C-T009.1")

PATH = "/v1/admin/transition"
SCHEMAS: dict[str, Any] = {tool["name"]: tool["inputSchema"] for tool in TOOLS}


def codes(result: Result) -> list[str]:
    errors: Any = result.envelope["errors"]
    return [error["code"] for error in errors]


def messages(result: Result) -> list[str]:
    errors: Any = result.envelope["errors"]
    return [error["message"] for error in errors]


def scope_row(state: str = "quiesced") -> dict[str, Any]:
    return {
        "member_id": "member-a",
        "state": state,
        "reason": "upgrade" if state == "quiesced" else None,
        "active_requests": 0,
        "draining": False,
        "max_concurrency": 2,
        "ready": False,
        "readiness_state": "unavailable",
        "readiness_reason": "probe_pending",
        "expected_model": "qwen",
        "observed_model": None,
    }


# --- Bad arguments ----------------------------------------------------------------------------------------

SCOPE = {"action": "quiesce", "tier": "chat"}
BAD: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("router_transition", {}, "argument_missing", "action"),
    ("router_transition", {"action": "restart"}, "argument_invalid", "action"),
    ("router_transition", {"action": None}, "argument_invalid", "action"),
    ("router_transition", {"action": ["quiesce"]}, "argument_invalid", "action"),
    ("router_transition", {"action": "quiesce"}, "argument_missing", "tier"),
    ("router_transition", {"action": "drain", "confirm": True}, "argument_missing", "tier"),
    ("router_transition", {"action": "status", "member": "member-a"}, "argument_missing", "tier"),
    ("router_transition", {**SCOPE, "member": None}, "argument_invalid", "member"),
    ("router_transition", {**SCOPE, "member": ""}, "argument_invalid", "member"),
    ("router_transition", {**SCOPE, "member": "../secret"}, "argument_invalid", "member"),
    ("router_transition", {**SCOPE, "member": "member-a\n"}, "argument_invalid", "member"),
    ("router_transition", {**SCOPE, "member": "a" * 65}, "argument_invalid", "member"),
    ("router_transition", {**SCOPE, "member": "m\u00e9mber"}, "argument_invalid", "member"),
    ("router_transition", {**SCOPE, "member": 7}, "argument_invalid", "member"),
    ("router_transition", {**SCOPE, "member": {"id": "member-a"}}, "argument_invalid", "member"),
    ("router_transition", {"action": "quiesce", "tier": None}, "argument_invalid", "tier"),
    ("router_transition", {"action": "quiesce", "tier": "1chat"}, "argument_invalid", "tier"),
    ("router_transition", {**SCOPE, "reason": "two words"}, "argument_invalid", "reason"),
    ("router_transition", {**SCOPE, "reason": "r" * 129}, "argument_invalid", "reason"),
    ("router_transition", {**SCOPE, "timeout": 0}, "argument_invalid", "timeout"),
    ("router_transition", {**SCOPE, "timeout": 3600.5}, "argument_invalid", "timeout"),
    ("router_transition", {**SCOPE, "timeout": True}, "argument_invalid", "timeout"),
    ("router_transition", {**SCOPE, "timeout": "5"}, "argument_invalid", "timeout"),
    ("router_transition", {**SCOPE, "timeout": math.nan}, "argument_invalid", "timeout"),
    ("router_transition", {**SCOPE, "timeout": 10**400}, "argument_invalid", "timeout"),
    ("router_transition", {**SCOPE, "confirm": 1}, "argument_invalid", "confirm"),
    ("router_transition", {**SCOPE, "confirm": None}, "argument_invalid", "confirm"),
    ("router_transition", {**SCOPE, "dry_run": "no"}, "argument_invalid", "dry_run"),
    ("router_transition", {**SCOPE, "member_id": "member-a"}, "argument_unknown", None),
    ("router_transition", {**SCOPE, "accept_unverified": True}, "argument_unknown", None),
    ("router_status", {"model": "llm.chat"}, "argument_unknown", None),
    ("router_capacity", {"model": "no spaces"}, "argument_invalid", "model"),
    ("router_capacity", {"model": " llm.chat"}, "argument_invalid", "model"),
    ("router_capacity", {"model": None}, "argument_invalid", "model"),
    ("router_decisions", {"limit": 0}, "argument_invalid", "limit"),
    ("router_decisions", {"limit": 501}, "argument_invalid", "limit"),
    ("router_decisions", {"limit": 5.5}, "argument_invalid", "limit"),
    ("router_decisions", {"limit": True}, "argument_invalid", "limit"),
    ("router_explain", {}, "argument_missing", "model"),
    ("router_explain", {"model": "http://x y"}, "argument_invalid", "model"),
]


@pytest.mark.parametrize(("name", "given", "code", "argument"), BAD)
def test_bad_arguments_are_refused_in_fixed_words_before_anything_is_sent(
    router: FakeRouter, name: str, given: dict[str, Any], code: str, argument: str | None
) -> None:
    result = call_tool(name, given)
    assert result.is_error
    text = tools.MESSAGES[code]
    assert result.envelope == {
        "command": name,
        "ok": False,
        "context": None,
        "data": None,
        "warnings": [],
        "errors": [{"code": code, "message": text if argument is None else f"{text}: {argument}"}],
    }
    assert router.asked == []


@pytest.mark.parametrize(("name", "given", "code", "argument"), BAD)
def test_the_schema_refuses_what_the_tool_refuses(
    name: str, given: dict[str, Any], code: str, argument: str | None
) -> None:
    """But for what a schema can't say: NaN, a final line end, and which arguments need which."""
    beyond = (
        (code == "argument_missing" and argument == "tier")
        or given.get("member") == "member-a\n"
        or given.get("timeout") != given.get("timeout")
    )
    valid = jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid(given)
    assert valid is beyond


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("router_transition", {"action": "status"}),
        ("router_transition", {**SCOPE, "member": "m" * 64, "reason": "r" * 128, "timeout": 3600}),
        ("router_transition", {"action": "drain", "tier": "t", "timeout": 0.001, "dry_run": True}),
        ("router_status", {}),
        ("router_capacity", {}),
        ("router_capacity", {"model": "LLM.Chat"}),
        ("router_decisions", {"limit": 500}),
        ("router_explain", {"model": "org/model:7b"}),
    ],
)
def test_the_schema_takes_what_the_tool_takes(router: FakeRouter, name: str, given: dict[str, Any]) -> None:
    assert jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid(given)
    result = call_tool(name, given)
    assert codes(result) == ["refused"]
    assert len(router.asked) == 1


def test_a_name_that_is_no_tools_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        call_tool("router_restart", {})


# --- Transitions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{}, {"confirm": False}, {"dry_run": True}, {"confirm": True, "dry_run": True}]
)
@pytest.mark.parametrize("action", ["quiesce", "drain", "readmit"])
def test_a_change_is_a_preview_until_it_is_confirmed(
    router: FakeRouter, action: str, more: dict[str, Any]
) -> None:
    preview = {
        "applied": False,
        "dry_run": True,
        "action": action,
        "tier_id": "chat",
        "member_id": "member-a",
    }
    router.answer("POST", PATH, 200, preview)
    result = call_tool("router_transition", {"action": action, "tier": "chat", "member": "member-a", **more})
    assert not result.is_error
    assert result.envelope["data"] == preview
    (asked,) = router.asked
    assert asked.json == {
        "action": action,
        "tier_id": "chat",
        "member_id": "member-a",
        "confirm": False,
        "dry_run": True,
    }
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"


def test_a_confirmed_change_is_sent_with_exactly_its_scope(router: FakeRouter) -> None:
    answer = {
        "applied": True,
        "action": "quiesce",
        "tier_id": "chat",
        "member_id": "member-a",
        "result": scope_row(),
    }
    router.answer("POST", PATH, 200, answer)
    result = call_tool(
        "router_transition",
        {
            "action": "quiesce",
            "tier": "chat",
            "member": "member-a",
            "reason": "upgrade",
            "timeout": 5,
            "confirm": True,
            "dry_run": False,
        },
    )
    assert not result.is_error
    assert result.envelope["data"] == answer
    assert router.asked[0].json == {
        "action": "quiesce",
        "tier_id": "chat",
        "member_id": "member-a",
        "reason": "upgrade",
        "timeout": 5.0,
        "confirm": True,
        "dry_run": False,
    }


def test_without_a_member_the_whole_tier_is_meant(router: FakeRouter) -> None:
    router.answer(
        "POST",
        PATH,
        200,
        {"applied": False, "dry_run": True, "action": "quiesce", "tier_id": "chat", "member_id": None},
    )
    assert not call_tool("router_transition", SCOPE).is_error
    assert "member_id" not in router.asked[0].json


@pytest.mark.parametrize(
    ("given", "query"),
    [
        ({}, {}),
        ({"tier": "chat"}, {"tier_id": "chat"}),
        ({"tier": "chat", "member": "member-a"}, {"tier_id": "chat", "member_id": "member-a"}),
    ],
)
def test_status_reads_all_tiers_one_or_one_member(
    router: FakeRouter, given: dict[str, Any], query: dict[str, str]
) -> None:
    router.answer("GET", PATH, 200, {"tiers": []})
    result = call_tool("router_transition", {"action": "status", **given})
    assert result.envelope["data"] == {"tiers": []}
    assert router.asked[0].query == query


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "unknown_tier", "unknown_tier"),
        (404, "unknown_member", "unknown_member"),
        (400, "direct_tier", "direct_tier"),
        (409, "readmit_refused", "readmit_refused"),
        (409, "identity_not_configured", "identity_not_configured"),
        (401, "invalid_api_key", "unauthorised"),
        (403, "insufficient_scope", "forbidden"),
        (503, "not_ledger_owner", "not_ledger_owner"),
        (503, "intent_not_persisted", "intent_not_persisted"),
        (500, "secret_word", "router_failed"),
    ],
)
def test_the_routers_refusals_are_errors_in_fixed_words(
    router: FakeRouter, status: int, code: str, expected: str
) -> None:
    router.answer("POST", PATH, status, {"error": {"code": code, "message": "at http://10.0.0.7/secret"}})
    result = call_tool("router_transition", {**SCOPE, "confirm": True})
    assert result.is_error
    assert codes(result) == [expected]
    assert messages(result) == [Fault(expected).message]
    assert "secret" not in json.dumps(result.envelope)


def test_a_drain_that_times_out_is_an_error_with_its_result(router: FakeRouter) -> None:
    row = {
        "state": "quiesced",
        "reason": "upgrade",
        "active_requests": 1,
        "draining": False,
        "max_concurrency": 2,
    }
    router.answer(
        "POST",
        PATH,
        200,
        {
            "applied": True,
            "action": "drain",
            "tier_id": "chat",
            "member_id": None,
            "result": {"drained": False, "timed_out": True, "snapshot": row},
        },
    )
    result = call_tool("router_transition", {"action": "drain", "tier": "chat", "confirm": True})
    assert result.is_error
    assert codes(result) == ["drain_timed_out"]
    data: Any = result.envelope["data"]
    assert data["result"]["snapshot"]["active_requests"] == 1


# --- Readings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "path", "query"),
    [
        ("router_status", {}, "/v1/router/status", {}),
        ("router_capacity", {}, "/v1/models/capacity", {}),
        ("router_capacity", {"model": "LLM.Chat"}, "/v1/models/capacity", {"model": "llm.chat"}),
        ("router_decisions", {}, "/v1/decisions", {}),
        ("router_decisions", {"limit": 5}, "/v1/decisions", {"limit": "5"}),
        ("router_explain", {"model": "llm.chat"}, "/v1/admin/explain", {"model": "llm.chat"}),
    ],
)
def test_readings_are_those_of_the_command_line(
    router: FakeRouter, name: str, given: dict[str, Any], path: str, query: dict[str, str]
) -> None:
    router.answer("GET", path, 200, {"object": "something"})
    result = call_tool(name, given)
    assert (result.is_error, result.envelope["data"]) == (False, {"object": "something"})
    (asked,) = router.asked
    assert (asked.method, asked.path, asked.query) == ("GET", path, query)


# --- One request function ---------------------------------------------------------------------------------


def test_there_is_one_request_function(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transitions.call is request_function.call
    assert readers.call is request_function.call
    called: list[str] = []

    def record(method: str, path: str, **options: Any) -> Any:
        called.append(f"{method} {path}")
        raise request_function.RouterFault("router_unreachable")

    for module in (transitions, readers):
        monkeypatch.setattr(module, "call", record)
    for name in tools.NAMES:
        given = {"router_transition": {"action": "status"}, "router_explain": {"model": "a"}}.get(name, {})
        assert codes(call_tool(name, given)) == ["router_unreachable"]
    assert called == [
        "GET /v1/admin/transition",
        "GET /v1/router/status",
        "GET /v1/models/capacity",
        "GET /v1/decisions",
        "GET /v1/admin/explain",
    ]


def test_what_goes_wrong_here_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("sk-secret at /secret/place")

    monkeypatch.setattr(readers, "call", fail)
    result = call_tool("router_status", {})
    assert (result.is_error, codes(result)) == (True, ["internal_error"])
    assert "secret" not in json.dumps(result.envelope)


def test_a_bad_environment_is_an_error_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANVIL_URL", "ftp://user:secret@host")
    result = call_tool("router_status", {})
    assert (result.is_error, codes(result)) == (True, ["environment_invalid"])
    assert "secret" not in json.dumps(result.envelope)
