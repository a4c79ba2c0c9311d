"""``anvil promote``: what is asked of the router, and how its answers are told."""

import re
from typing import Any

import pytest

from anvil_site.cli.outcome import Fault
from tests.unit.anvil_site.cli_support import Anvil, FakeRouter

pytestmark = pytest.mark.requirement("contract 5 promote")

PATH = "/v1/admin/promotions"
MOVE = ("promote", "--tier", "primary", "--resource", "llm-b")
PROMOTION: dict[str, Any] = {
    "object": "promotion",
    "id": 3,
    "tier_id": "primary",
    "resource_id": "llm-b",
    "state": "promoted",
    "code": None,
    "next_step": None,
    "steps": [{"at": "2030-01-01", "step": "promote", "outcome": "begun"}],
}
NEXT = "The tier is at its new place."
STOPPED = {**PROMOTION, "state": "stopped", "next_step": NEXT}


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (
            MOVE,
            {
                "action": "promote",
                "tier_id": "primary",
                "resource_id": "llm-b",
                "confirm": False,
                "dry_run": True,
            },
        ),
        (
            (*MOVE, "--drain-timeout", "7", "--confirm"),
            {
                "action": "promote",
                "tier_id": "primary",
                "resource_id": "llm-b",
                "drain_timeout": 7.0,
                "confirm": True,
                "dry_run": False,
            },
        ),
        (("promote", "--resume"), {"action": "resume", "confirm": False, "dry_run": True}),
        (
            ("promote", "--rollback", "--drain-timeout", "7", "--confirm"),
            {"action": "rollback", "drain_timeout": 7.0, "confirm": True, "dry_run": False},
        ),
    ],
)
def test_exactly_what_was_asked_for_is_sent(
    anvil: Anvil, router: FakeRouter, words: tuple[str, ...], body: dict[str, Any]
) -> None:
    confirmed = body["confirm"]
    answer = {"applied": confirmed, "action": body["action"], "promotion": PROMOTION}
    router.answer("POST", PATH, 200, answer)
    result = anvil(*words, "--json")
    assert result.code == 0
    assert result.envelope["data"] == answer
    assert result.envelope["context"] == {"via": "router"}
    (asked,) = router.asked
    assert asked.json == body


@pytest.mark.parametrize(
    ("words", "code", "option"),
    [
        (("promote",), "usage_option_missing", "tier"),
        (("promote", "--tier", "primary"), "usage_option_missing", "resource"),
        (("promote", "--resource", "llm-b", "--confirm"), "usage_option_missing", "tier"),
        (("promote", "--resume", "--rollback"), "usage_options_conflict", "rollback"),
        (("promote", "--resume", "--tier", "primary"), "usage_options_conflict", "tier"),
        (("promote", "--rollback", "--resource", "llm-b"), "usage_options_conflict", "resource"),
        (("promote", "--tier", "a b", "--resource", "llm-b"), "usage_option_invalid", "tier"),
        (("promote", "--tier", "primary", "--resource", "http://x"), "usage_option_invalid", "resource"),
        ((*MOVE, "--drain-timeout", "0"), "usage_option_invalid", "drain-timeout"),
        ((*MOVE, "--confirm", "--confirm"), "usage_option_repeated", "confirm"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(
    anvil: Anvil, router: FakeRouter, words: tuple[str, ...], code: str, option: str
) -> None:
    result = anvil(*words)
    assert (result.code, result.out) == (2, "")
    assert re.fullmatch(rf"promote: .*: --{option}(; .*)? \({code}\)\n", result.err)
    assert router.asked == []


def test_a_preview_says_what_it_waits_for(anvil: Anvil, router: FakeRouter) -> None:
    preview = {
        "applied": False,
        "dry_run": True,
        "action": "promote",
        "tier_id": "primary",
        "resource_id": "llm-b",
        "changes": [
            {
                "tier_id": "primary",
                "member_id": None,
                "change": "changed",
                "keys": ["base_url"],
                "needs_drain": True,
                "starts_cold": True,
            }
        ],
        "settings": [],
        "scopes": [{"tier_id": "primary", "member_id": None}],
    }
    router.answer("POST", PATH, 200, preview)
    assert anvil(*MOVE).out == (
        "preview: promote; nothing was changed, --confirm does it\n"
        "  primary: changed base_url; is to be drained; serves once its own first probe has passed\n"
    )


def test_what_was_done_is_told_step_by_step(anvil: Anvil, router: FakeRouter) -> None:
    router.answer("POST", PATH, 200, {"applied": True, "action": "promote", "promotion": PROMOTION})
    assert anvil(*MOVE, "--confirm").out == (
        "promote: done\n  Keep both configurations: begun\nprimary to llm-b: promoted\n"
    )


def test_a_refusal_shows_the_promotion_and_what_to_do_next(anvil: Anvil, router: FakeRouter) -> None:
    refusal = {
        "error": {"code": "restore_not_persisted", "message": "at /secret/place"},
        "promotion": STOPPED,
    }
    for _ in range(2):
        router.answer("POST", PATH, 503, refusal)
    result = anvil(*MOVE, "--confirm")
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == [
        "promote: what changed could not be verified and stays quiesced; the pointer could not be moved "
        "back; see why: anvil router transition-status (restore_not_persisted)",
        "  Keep both configurations: begun",
        "primary to llm-b: stopped",
        NEXT,
    ]
    envelope = anvil(*MOVE, "--confirm", "--json").envelope
    assert envelope["data"] == {"promotion": STOPPED}
    assert [error["code"] for error in envelope["errors"]] == ["restore_not_persisted"]
    assert "secret" not in str(envelope)


@pytest.mark.requirement("Q-T012", "Q-T012.1")
@pytest.mark.parametrize(
    "code", ["replica_lifecycle_unsupported", "replica_lifecycle_configuration_unavailable"]
)
def test_the_guards_fixed_code_is_rendered_and_the_exit_is_not_zero(
    anvil: Anvil, router: FakeRouter, code: str
) -> None:
    for words in (MOVE, (*MOVE, "--confirm"), ("promote", "--resume"), ("promote", "--rollback")):
        router.answer("POST", PATH, 409, {"error": {"code": code, "message": code}})
        result = anvil(*words)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("promote: ")
        assert result.err.endswith(f" ({code})\n")
        assert "primary" not in result.err


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"applied": True, "action": "promote"},
        {"applied": False, "action": "resume"},
        {"applied": "no", "action": "promote"},
    ],
)
def test_an_answer_to_something_else_is_none(anvil: Anvil, router: FakeRouter, body: dict[str, Any]) -> None:
    router.answer("POST", PATH, 200, body)
    result = anvil(*MOVE)
    assert result.code == 1
    assert result.err == f"promote: {Fault('malformed_answer').line}\n"
