"""Refusals as people read them: what is wrong, where, and what to do next, beside the fixed code."""

from typing import Any

import pytest

from anvil_site.cli.outcome import HINTS, MESSAGES, Fault, clause
from routing.refusals import KEY_RULES, SENTENCES
from routing.snapshot import CODES
from tests.unit.anvil_site.cli_support import Anvil, FakeRouter

TRANSITION = "/v1/admin/transition"
KEYS = "/v1/admin/keys"
MEMBER = ("--tier", "primary", "--member", "member-a", "--confirm")
OPEN = {
    "state": "admitting",
    "reason": None,
    "active_requests": 3,
    "draining": False,
    "max_concurrency": 8,
}


def refusal(code: str, *, param: str | None = None, **extra: Any) -> dict[str, Any]:
    error = {"message": "about http://10.0.0.7", "type": "x", "param": param, "code": code}
    return {"error": error, **extra}


def test_every_hint_is_about_a_code_that_there_is() -> None:
    assert set(HINTS) <= set(MESSAGES)
    assert set(SENTENCES) | set(CODES) <= set(MESSAGES)


def test_a_line_has_the_sentence_what_to_do_and_the_code() -> None:
    assert Fault("not_configured").line == (
        "no configuration is active; install one: anvil router install-config (not_configured)"
    )
    assert Fault("management_busy").line == (
        "the management is at its limit; try again shortly (management_busy)"
    )


class TestTransitions:
    def test_a_drain_of_an_open_scope(self, anvil: Anvil, router: FakeRouter) -> None:
        result = {"drained": False, "timed_out": False, "snapshot": {"member_id": "member-a", **OPEN}}
        place = {"action": "drain", "tier_id": "primary", "member_id": "member-a"}
        router.answer(
            "POST", TRANSITION, 409, refusal("scope_not_quiesced", applied=False, result=result, **place)
        )
        assert anvil("router", "drain", *MEMBER).err == (
            "drain primary/member-a: the scope is not quiesced; quiesce it first: anvil router quiesce "
            "(scope_not_quiesced)\n"
            "  primary/member-a is admitting, 3 active of 8\n"
        )

    def test_a_drain_of_what_is_being_drained(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", TRANSITION, 409, refusal("drain_in_progress"))
        assert anvil("router", "drain", *MEMBER).err == (
            "drain primary/member-a: the scope is being drained already; it goes on by itself; "
            "anvil router transition-status shows when it is over (drain_in_progress)\n"
        )

    @pytest.mark.parametrize(
        ("why", "text"),
        [
            ("health_transport_refused", "its health check found the connection refused"),
            ("all_members_quiesced", "every member of it is quiesced: readmit a member first"),
            ("quiesced_again", "it was quiesced again while it was being verified"),
            ("probe_pending", "no probe of it has been completed yet"),
        ],
    )
    def test_a_refused_readmit_says_why_in_the_consoles_words(
        self, anvil: Anvil, router: FakeRouter, why: str, text: str
    ) -> None:
        result = {"readmitted": False, "reason": why, "status": {"tiers": []}}
        place = {"action": "readmit", "tier_id": "primary", "member_id": None}
        router.answer(
            "POST", TRANSITION, 409, refusal("readmit_refused", applied=False, result=result, **place)
        )
        assert anvil("router", "readmit", "--tier", "primary", "--confirm").err == (
            f"readmit primary: it stays quiesced: {text} ({why}); run it again when that is mended "
            "(readmit_refused)\n"
        )

    def test_a_readmit_of_an_open_scope(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", TRANSITION, 409, refusal("scope_not_quiesced"))
        assert anvil("router", "readmit", *MEMBER).err == (
            "readmit primary/member-a: the scope is not quiesced; it takes requests already "
            "(scope_not_quiesced)\n"
        )

    def test_an_unknown_tier(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", TRANSITION, 404, refusal("unknown_tier"))
        assert anvil("router", "quiesce", *MEMBER).err == (
            "quiesce primary/member-a: no such tier; anvil router transition-status lists what there is "
            "(unknown_tier)\n"
        )

    def test_the_envelope_stays_closed(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", TRANSITION, 409, refusal("scope_not_quiesced"))
        assert anvil("router", "drain", *MEMBER, "--json").envelope["errors"] == [
            {
                "code": "scope_not_quiesced",
                "message": "the scope is not quiesced; quiesce it first: anvil router quiesce",
            }
        ]


class TestKeys:
    def test_without_scopes(self, anvil: Anvil) -> None:
        assert anvil("keys", "create", "--name", "ada").err == (
            "keys create: a required option is missing: --scopes; "
            "it takes one or more of infer,observe,operate,configure (usage_option_missing)\n"
        )

    def test_with_a_wrong_one(self, anvil: Anvil) -> None:
        assert anvil("keys", "create", "--name", "ada", "--scopes", "admin").err == (
            "keys create: an option's value is not of its form: --scopes; "
            "it takes one or more of infer,observe,operate,configure (usage_option_invalid)\n"
        )

    def test_a_name_that_is_taken(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", KEYS, 409, refusal("name_taken", param="name"))
        assert anvil("keys", "create", "--name", "ada", "--scopes", "infer", "--confirm").err == (
            "keys create: there is a key of this name; "
            "take another; a revoked key keeps its name (anvil keys list) (name_taken)\n"
        )

    def test_a_field_that_breaks_its_rule(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", KEYS, 400, refusal("invalid_request", param="name"))
        assert anvil("keys", "create", "--name", "bootstrap", "--scopes", "infer", "--confirm").err == (
            "keys create: the router does not take a value of the request; "
            f"{clause(KEY_RULES['name'])} (invalid_request)\n"
        )
