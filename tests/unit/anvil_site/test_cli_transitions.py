"""``anvil router transition-status|quiesce|drain|readmit`` against a scripted router on loopback."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from anvil_site.cli import transitions
from anvil_site.cli.outcome import Fault
from tests.unit.anvil_site.cli_support import TOKEN, Anvil, FakeRouter

PATH = "/v1/admin/transition"
ADMISSION = {
    "state": "quiesced",
    "reason": "kernel-upgrade",
    "active_requests": 0,
    "draining": False,
    "max_concurrency": 8,
}
READINESS = {
    "ready": True,
    "readiness_state": "ready",
    "readiness_reason": "identity_passed",
    "expected_model": "Qwen/Qwen3-32B",
    "observed_model": "Qwen/Qwen3-32B",
}
MEMBER = {"member_id": "member-a", **ADMISSION, **READINESS}
TIER = {"tier_id": "primary", **ADMISSION, **READINESS, "members": [MEMBER]}
DRAINED = {"drained": True, "timed_out": False, "snapshot": {"tier_id": "primary", **ADMISSION}}


def applied(action: str, result: dict[str, Any], member: str | None = None) -> dict[str, Any]:
    return {"applied": True, "action": action, "tier_id": "primary", "member_id": member, "result": result}


def preview(action: str, member: str | None = None) -> dict[str, Any]:
    return {"applied": False, "dry_run": True, "action": action, "tier_id": "primary", "member_id": member}


def error(code: str) -> dict[str, Any]:
    return {"error": {"message": "about member-a", "type": "x", "param": "member-a", "code": code}}


@pytest.mark.requirement("C-T009")
class TestStatus:
    def test_all_tiers(self, anvil: Anvil, router: FakeRouter) -> None:
        for _ in range(2):
            router.answer("GET", PATH, 200, {"tiers": [TIER]})
        enveloped = anvil("router", "transition-status", "--json")
        assert enveloped.code == 0
        assert enveloped.envelope == {
            "command": "router transition-status",
            "ok": True,
            "context": {"via": "router"},
            "data": {"tiers": [TIER]},
            "warnings": [],
            "errors": [],
        }
        shown = anvil("router", "transition-status")
        assert (shown.code, shown.err) == (0, "")
        assert shown.out == (
            "primary: quiesced (kernel-upgrade), 0 active of 8, ready (identity_passed)\n"
            "  member-a: quiesced (kernel-upgrade), 0 active of 8, ready (identity_passed)\n"
        )
        assert [asked.query for asked in router.asked] == [{}, {}]

    def test_one_tier_and_one_member(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("GET", PATH, 200, {"tiers": [TIER]})
        router.answer("GET", PATH, 200, {"tiers": [TIER]})
        anvil("router", "transition-status", "--tier", "primary")
        anvil("router", "transition-status", "--tier", "primary", "--member", "member-a")
        assert [asked.query for asked in router.asked] == [
            {"tier_id": "primary"},
            {"tier_id": "primary", "member_id": "member-a"},
        ]

    def test_only_listed_fields_of_their_types_are_shown(self, anvil: Anvil, router: FakeRouter) -> None:
        odd = {
            **TIER,
            "base_url": "http://10.0.0.7:8101/v1",
            "auth": TOKEN,
            "state": "http://10.0.0.7",
            "reason": "see http://10.0.0.7",
            "active_requests": True,
            "max_concurrency": -1,
            "draining": "no",
            "ready": 1,
            "expected_model": "http://10.0.0.7/model",
            "observed_model": "x" * 300,
            "members": [{**MEMBER, "member_id": "../../etc", "endpoint": "10.0.0.7"}, "10.0.0.7"],
        }
        router.answer("GET", PATH, 200, {"tiers": [odd], "router": "10.0.0.7"})
        result = anvil("router", "transition-status", "--json")
        row = result.envelope["data"]["tiers"][0]
        assert row == {
            "tier_id": "primary",
            "state": None,
            "reason": None,
            "active_requests": None,
            "draining": None,
            "max_concurrency": None,
            "ready": None,
            "readiness_state": "ready",
            "readiness_reason": "identity_passed",
            "expected_model": None,
            "observed_model": None,
            "members": [{**MEMBER, "member_id": None}, None],
        }
        assert "10.0.0.7" not in result.text
        assert TOKEN not in result.text

    def test_keys_are_in_the_order_of_the_router(self, anvil: Anvil, router: FakeRouter) -> None:
        member = {"member_id": "member-a", **ADMISSION}
        tier = {"tier_id": "primary", **ADMISSION, "member_active_requests": {}, "members": [member]}
        for action, result in (
            ("quiesce", TIER),
            ("quiesce", MEMBER),
            ("drain", {"drained": True, "timed_out": False, "snapshot": tier}),
            ("drain", {"drained": True, "timed_out": False, "snapshot": member}),
        ):
            router.answer("POST", PATH, 200, applied(action, result))
            shown = anvil("router", action, "--tier", "primary", "--confirm", "--json")
            assert json.dumps(shown.envelope["data"]) == json.dumps(applied(action, result))
        router.answer("POST", PATH, 200, preview("drain"))
        shown = anvil("router", "drain", "--tier", "primary", "--json")
        assert json.dumps(shown.envelope["data"]) == json.dumps(preview("drain"))

    @pytest.mark.parametrize("body", [{}, {"tiers": None}, {"tiers": {}}, {"tiers": [TIER] * 4097}])
    def test_an_answer_without_tiers_is_malformed(
        self, anvil: Anvil, router: FakeRouter, body: dict[str, Any]
    ) -> None:
        router.answer("GET", PATH, 200, body)
        result = anvil("router", "transition-status", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "malformed_answer"

    @pytest.mark.parametrize(
        ("status", "named", "code"),
        [
            (404, "unknown_tier", "unknown_tier"),
            (404, "unknown_member", "unknown_member"),
            (400, "direct_tier", "direct_tier"),
            (503, "not_configured", "not_configured"),
            (400, "anything", "refused"),
        ],
    )
    def test_refusals(self, anvil: Anvil, router: FakeRouter, status: int, named: str, code: str) -> None:
        for _ in range(2):
            router.answer("GET", PATH, status, error(named))
        words = ("router", "transition-status", "--tier", "other-tier", "--member", "member-x")
        enveloped = anvil(*words, "--json")
        assert enveloped.code == 1
        assert enveloped.envelope == {
            "command": "router transition-status",
            "ok": False,
            "context": {"via": "router"},
            "data": None,
            "warnings": [],
            "errors": [{"code": code, "message": Fault(code).message}],
        }
        shown = anvil(*words)
        assert (shown.code, shown.out) == (1, "")
        assert shown.err == f"router transition-status: {Fault(code).line}\n"
        for result in (enveloped, shown):
            for private in ("other-tier", "member-x", "member-a"):
                assert private not in result.text


ACTIONS = ("quiesce", "drain", "readmit")
RESULTS = {
    "quiesce": TIER,
    "drain": DRAINED,
    "readmit": {"readmitted": True, "reason": "readiness_passed", "status": TIER},
}


@pytest.mark.requirement("C-T009")
@pytest.mark.parametrize("action", ACTIONS)
class TestEveryChange:
    def test_without_confirm_it_is_a_dry_run(self, anvil: Anvil, router: FakeRouter, action: str) -> None:
        for _ in range(2):
            router.answer("POST", PATH, 200, preview(action, "member-a"))
        words = ("router", action, "--tier", "primary", "--member", "member-a")
        enveloped = anvil(*words, "--json")
        assert enveloped.code == 0
        assert enveloped.envelope == {
            "command": f"router {action}",
            "ok": True,
            "context": {"via": "router"},
            "data": {
                "applied": False,
                "action": action,
                "tier_id": "primary",
                "member_id": "member-a",
                "dry_run": True,
            },
            "warnings": [],
            "errors": [],
        }
        shown = anvil(*words)
        assert shown.out == (f"preview: {action} primary/member-a; nothing was changed, --confirm does it\n")
        for asked in router.asked:
            assert asked.json == {
                "action": action,
                "tier_id": "primary",
                "member_id": "member-a",
                "confirm": False,
                "dry_run": True,
            }
            assert asked.headers["authorization"] == f"Bearer {TOKEN}"

    def test_every_option_is_sent_and_nothing_else(
        self, anvil: Anvil, router: FakeRouter, action: str
    ) -> None:
        router.answer("POST", PATH, 200, applied(action, RESULTS[action]))
        result = anvil(
            *("router", action, "--tier", "primary", "--reason", "kernel-upgrade", "--timeout", "2.5"),
            *("--accept-unverified", "--confirm", "--json"),
        )
        assert result.code == 0
        assert result.envelope["data"]["applied"] is True
        assert result.envelope["data"]["result"] is not None
        (asked,) = router.asked
        assert asked.json == {
            "action": action,
            "tier_id": "primary",
            "reason": "kernel-upgrade",
            "timeout": 2.5,
            "accept_unverified": True,
            "confirm": True,
            "dry_run": False,
        }

    @pytest.mark.parametrize(
        "option",
        [
            ("--member", "a/b"),
            ("--member", ""),
            ("--member", "member.a"),
            ("--reason", "two words"),
            ("--reason", ""),
            ("--timeout", "0"),
            ("--timeout", "3601"),
            ("--timeout", "nan"),
        ],
    )
    def test_an_unsafe_operand_is_refused_before_any_transport(
        self, anvil: Anvil, router: FakeRouter, action: str, option: tuple[str, str]
    ) -> None:
        result = anvil("router", action, "--tier", "primary", *option, "--confirm", "--json")
        assert result.code == 2
        assert result.envelope["errors"][0]["code"] == "usage_option_invalid"
        assert result.envelope["context"] is None
        assert router.asked == []

    def test_a_missing_tier_is_refused_before_any_transport(
        self, anvil: Anvil, router: FakeRouter, action: str
    ) -> None:
        result = anvil("router", action, "--member", "member-a", "--confirm")
        assert result.code == 2
        assert result.err == (
            f"router {action}: a required option is missing: --tier; "
            "it takes a letter, then up to 63 letters, digits, _ or - (usage_option_missing)\n"
        )
        assert router.asked == []

    @pytest.mark.parametrize(
        "change",
        [
            {"applied": False},
            {"applied": None},
            {"action": "status"},
            {"tier_id": "secondary"},
            {"member_id": "member-b"},
            {"result": None},
        ],
    )
    def test_an_answer_about_something_else_is_no_success(
        self, anvil: Anvil, router: FakeRouter, action: str, change: dict[str, Any]
    ) -> None:
        router.answer("POST", PATH, 200, {**applied(action, RESULTS[action]), **change})
        result = anvil("router", action, "--tier", "primary", "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "malformed_answer"

    def test_a_preview_that_was_applied_is_no_success(
        self, anvil: Anvil, router: FakeRouter, action: str
    ) -> None:
        router.answer("POST", PATH, 200, applied(action, RESULTS[action]))
        result = anvil("router", action, "--tier", "primary", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "malformed_answer"

    def test_without_a_router(self, anvil: Anvil, action: str) -> None:
        result = anvil("router", action, "--tier", "primary", "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["context"] is None
        assert result.envelope["errors"] == [
            {
                "code": "router_unreachable",
                "message": "no router answers at ANVIL_URL; "
                "start it (anvil serve), or say where it is (http://127.0.0.1:8000 when unset)",
            }
        ]


@pytest.mark.requirement("C-T009")
class TestResults:
    def test_quiesce_of_a_member(self, anvil: Anvil, router: FakeRouter) -> None:
        row = {**MEMBER, "base_url": "http://10.0.0.7"}
        router.answer("POST", PATH, 200, applied("quiesce", row, "member-a"))
        result = anvil("router", "quiesce", "--tier", "primary", "--member", "member-a", "--confirm")
        assert result.out == (
            "quiesce primary/member-a: done: quiesced (kernel-upgrade), 0 active of 8, "
            "ready (identity_passed)\n"
        )

    def test_quiesce_again_says_what_the_reason_was(self, anvil: Anvil, router: FakeRouter) -> None:
        header = {"X-Anvil-Previous-Reason": "upgrade"}
        router.answer("POST", PATH, 200, preview("quiesce"), header)
        router.answer("POST", PATH, 200, applied("quiesce", TIER), header)
        router.answer("POST", PATH, 200, applied("quiesce", TIER), header)
        router.answer("POST", PATH, 200, applied("quiesce", TIER), {"X-Anvil-Previous-Reason": "at http://x"})
        words = ("router", "quiesce", "--tier", "primary")
        text = "it was quiesced before, for the reason upgrade"
        assert anvil(*words).err == f"warning: {text}\n"
        assert anvil(*words, "--confirm").err == f"warning: {text}\n"
        assert anvil(*words, "--confirm", "--json").envelope["warnings"] == [text]
        assert anvil(*words, "--confirm", "--json").envelope["warnings"] == []

    def test_quiesce_that_was_not_stored(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", PATH, 503, error("intent_not_persisted"))
        result = anvil("router", "quiesce", "--tier", "primary", "--confirm")
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            "quiesce primary: the scope is quiesced, but the database could not be brought to agree; a "
            "restart may not keep it: see whether the database can be written to, then do it again "
            "(intent_not_persisted)\n"
        )

    def test_drain_that_ran_out_of_time(self, anvil: Anvil, router: FakeRouter) -> None:
        running = {**ADMISSION, "active_requests": 2}
        late = {"drained": False, "timed_out": True, "snapshot": {"tier_id": "primary", **running}}
        for _ in range(2):
            router.answer("POST", PATH, 200, applied("drain", late))
        enveloped = anvil("router", "drain", "--tier", "primary", "--confirm", "--json")
        assert enveloped.code == 1
        assert enveloped.envelope["ok"] is False
        assert enveloped.envelope["data"] == applied("drain", late)
        assert enveloped.envelope["errors"][0]["code"] == "drain_timed_out"
        shown = anvil("router", "drain", "--tier", "primary", "--confirm")
        assert (shown.code, shown.out) == (1, "")
        assert shown.err == (
            "drain primary: leases were still running when the time was up; the scope stays quiesced; "
            "nothing was cancelled; drain it again, with a longer --timeout if need be (drain_timed_out): "
            "quiesced (kernel-upgrade), 2 active of 8\n"
        )

    def test_readmit_that_was_refused_shows_the_evidence(self, anvil: Anvil, router: FakeRouter) -> None:
        refusal = {"readmitted": False, "reason": "identity_mismatch", "status": MEMBER}
        body = {**error("readmit_refused"), **applied("readmit", refusal, "member-a"), "applied": False}
        for _ in range(2):
            router.answer("POST", PATH, 409, body)
        words = ("router", "readmit", "--tier", "primary", "--member", "member-a", "--confirm")
        enveloped = anvil(*words, "--json")
        assert enveloped.code == 1
        assert enveloped.envelope["data"]["result"]["reason"] == "identity_mismatch"
        assert enveloped.envelope["data"]["result"]["readmitted"] is False
        assert enveloped.envelope["errors"] == [
            {
                "code": "readmit_refused",
                "message": "the scope stays quiesced: it could not be verified; "
                "run it again when that is mended",
            }
        ]
        shown = anvil(*words)
        assert shown.err == (
            "readmit primary/member-a: it stays quiesced: it serves another model than the expected one "
            "(identity_mismatch); run it again when that is mended (readmit_refused)\n"
        )

    def test_readmit_of_a_tier_without_identity(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", PATH, 409, error("identity_not_configured"))
        result = anvil("router", "readmit", "--tier", "primary", "--confirm")
        assert result.code == 1
        assert result.err == (
            "readmit primary: the scope stays quiesced: its tier has no identity to verify; "
            "--accept-unverified readmits it anyway (identity_not_configured)\n"
        )

    def test_readmitted_unverified_is_said(self, anvil: Anvil, router: FakeRouter) -> None:
        done = {"readmitted": True, "reason": "readmitted_unverified", "status": {"tiers": [TIER]}}
        router.answer("POST", PATH, 200, applied("readmit", done))
        result = anvil("router", "readmit", "--tier", "primary", "--accept-unverified", "--confirm")
        assert result.code == 0
        assert result.out == (
            "readmit primary: done: nothing could be verified, which you accepted (readmitted_unverified)\n"
        )


@pytest.mark.requirement("C-T009")
class TestDrainInTheBackground:
    """A drain that the router answers with 202 goes on there; the command follows it to its end."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transitions, "POLL_SECONDS", 0.0)

    def _rows(self, router: FakeRouter, *rows: dict[str, Any]) -> None:
        router.answer("POST", PATH, 202, {"accepted": True})
        for row in rows:
            member = {**MEMBER, **row}
            router.answer("GET", PATH, 200, {"tiers": [{**TIER, "members": [member]}]})

    def test_to_a_good_end(self, anvil: Anvil, router: FakeRouter) -> None:
        running = {"draining": True, "active_requests": 1}
        self._rows(router, running, running, {"draining": False, "active_requests": 0})
        result = anvil("router", "drain", "--tier", "primary", "--member", "member-a", "--confirm", "--json")
        assert result.code == 0
        assert result.envelope["data"] == {
            "applied": True,
            "action": "drain",
            "tier_id": "primary",
            "member_id": "member-a",
            "result": {
                "drained": True,
                "timed_out": False,
                "snapshot": {"member_id": "member-a", **ADMISSION},
            },
        }
        assert [(asked.method, asked.query) for asked in router.asked] == [
            ("POST", {}),
            *[("GET", {"tier_id": "primary", "member_id": "member-a"})] * 3,
        ]

    def test_to_a_timeout(self, anvil: Anvil, router: FakeRouter) -> None:
        self._rows(router, {"draining": False, "active_requests": 1})
        result = anvil("router", "drain", "--tier", "primary", "--member", "member-a", "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "drain_timed_out"

    def test_to_a_readmit_by_somebody_else(self, anvil: Anvil, router: FakeRouter) -> None:
        self._rows(router, {"draining": False, "state": "admitting", "reason": None, "active_requests": 3})
        result = anvil("router", "drain", "--tier", "primary", "--member", "member-a", "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "drain_reopened"

    def test_of_a_tier(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", PATH, 202, {})
        router.answer("GET", PATH, 200, {"tiers": [TIER]})
        result = anvil("router", "drain", "--tier", "primary", "--confirm", "--json")
        assert result.code == 0
        assert result.envelope["data"]["result"]["snapshot"]["active_requests"] == 0

    def test_not_beyond_its_time(
        self, anvil: Anvil, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Five seconds and the margin of thirty, by a clock that jumps at the second look."""
        readings = iter([100.0, 134.0, 136.0])
        clock = SimpleNamespace(monotonic=lambda: next(readings), sleep=lambda seconds: None)
        monkeypatch.setattr(transitions, "time", clock)
        running = {"draining": True, "active_requests": 1}
        self._rows(router, running, running, running)
        words = ("router", "drain", "--tier", "primary", "--member", "member-a", "--timeout", "5")
        result = anvil(*words, "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "drain_timed_out"
        assert len(router.asked) == 3

    def test_a_scope_that_vanishes_is_malformed(self, anvil: Anvil, router: FakeRouter) -> None:
        router.answer("POST", PATH, 202, {})
        router.answer("GET", PATH, 200, {"tiers": [{**TIER, "members": []}]})
        result = anvil("router", "drain", "--tier", "primary", "--member", "member-a", "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "malformed_answer"
