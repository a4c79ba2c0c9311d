"""``/v1/admin/transition``: every action on every scope in every state, with literal answers.

A refusal leaves everything as it was: ledger, readiness, probes, stored intents and audit trail.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.web.control_support import TRANSITION, Control, audit_rows, intent_rows

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 3 transitions", "C-R011", "C-T008", "projections: transition answers"),
]

ACTIONS = ("status", "quiesce", "drain", "readmit")
MODES: dict[str, dict[str, object]] = {
    "apply": {"confirm": True, "dry_run": False},
    "preview": {"confirm": False, "dry_run": True},
}
READY = {
    "ready": True,
    "readiness_state": "ready",
    "readiness_reason": "identity_passed",
    "expected_model": "qwen",
    "observed_model": "qwen",
}
PENDING = {
    "ready": False,
    "readiness_state": "unavailable",
    "readiness_reason": "probe_pending",
    "expected_model": "qwen",
    "observed_model": None,
}


def admission(
    ceiling: int | None, *, reason: str | None = None, active: int = 0, draining: bool = False
) -> dict[str, object]:
    return {
        "state": "admitting" if reason is None else "quiesced",
        "reason": reason,
        "active_requests": active,
        "draining": draining,
        "max_concurrency": ceiling,
    }


def answered(action: str, tier_id: str, member_id: str | None, result: object) -> dict[str, object]:
    return {"applied": True, "action": action, "tier_id": tier_id, "member_id": member_id, "result": result}


def error(message: str, code: str, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


# States ------------------------------------------------------------------------------------------------


def admitting(control: Control) -> None:
    pass


def quiesced(control: Control) -> None:
    for scope in (("chat",), ("chat", "member-a"), ("solo",)):
        assert control.do("quiesce", *scope, reason="kernel-upgrade").status == 200


def running(control: Control) -> None:
    """Quiesced while a request of each scope still runs."""
    control.run_request("chat", "member-a")
    control.run_request("solo")
    quiesced(control)


def draining(control: Control) -> None:
    """The same, and each scope is being drained."""
    from routing import transitions
    from routing.audit import Through

    running(control)
    for scope in (("chat",), ("chat", "member-a"), ("solo",)):
        transitions.drain(control.router, *scope, timeout=60.0, actor="ada", through=Through.CONSOLE)


STATES: tuple[Callable[[Control], None], ...] = (admitting, quiesced, running, draining)

# Targets that there are not ----------------------------------------------------------------------------

NOT_VALID = "The request is not valid."
BAD_TARGETS: tuple[tuple[dict[str, object], int, dict[str, object]], ...] = (
    ({"tier_id": "nowhere"}, 404, error("No such tier.", "unknown_tier")),
    ({"tier_id": "nowhere", "member_id": "member-a"}, 404, error("No such tier.", "unknown_tier")),
    ({"tier_id": "chat", "member_id": "member-z"}, 404, error("No such member.", "unknown_member")),
    ({"tier_id": "chat", "member_id": "chat"}, 404, error("No such member.", "unknown_member")),
    (
        {"tier_id": "solo", "member_id": "member-a"},
        400,
        error("A direct tier has no members.", "direct_tier"),
    ),
    ({"member_id": "member-a"}, 400, error(NOT_VALID, "invalid_request", "tier_id")),
    *(
        ({"tier_id": unsafe}, 400, error(NOT_VALID, "invalid_request", "tier_id"))
        for unsafe in (None, "", "no/such", "1st", "x" * 65, "chat ", 7, True, ["chat"], {"chat": 1})
    ),
    *(
        ({"tier_id": "chat", "member_id": unsafe}, 400, error(NOT_VALID, "invalid_request", "member_id"))
        for unsafe in (None, "", "../member-a", "member.a", "member-a\n", "ﬁ", 7, False, ["member-a"], {})
    ),
    ({"tier_id": None, "member_id": None}, 400, error(NOT_VALID, "invalid_request", "tier_id")),
)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_target_that_there_is_not_is_refused_and_nothing_changes(
    control: Control, action: str, state: Callable[[Control], None]
) -> None:
    state(control)
    before = control.facts()
    targets = BAD_TARGETS
    if action != "status":
        targets = (*targets, ({}, 400, error(NOT_VALID, "invalid_request", "tier_id")))
    for target, status, body in targets:
        for mode in MODES.values():
            reply = control.transition(action=action, **target, **mode)
            assert (reply.status, reply.json) == (status, body), (target, mode)
    assert control.facts() == before


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("action", ACTIONS[1:])
@pytest.mark.parametrize("scope", [("chat", None), ("chat", "member-a"), ("solo", None)])
def test_a_preview_answers_that_nothing_was_applied_and_changes_nothing(
    control: Control, action: str, state: Callable[[Control], None], scope: tuple[str, str | None]
) -> None:
    state(control)
    before = control.facts()
    tier_id, member_id = scope
    target: dict[str, object] = {"tier_id": tier_id}
    if member_id is not None:
        target["member_id"] = member_id
    previews: list[dict[str, object]] = [
        MODES["preview"],
        {"dry_run": True},
        {"confirm": True, "dry_run": True},
    ]
    if action != "drain":
        previews += [{}, {"confirm": True}, {"confirm": False}, {"dry_run": False}]
        previews += [{"confirm": False, "dry_run": False}]
    for mode in previews:
        reply = control.transition(action=action, **target, **mode)
        assert reply.status == 200
        assert reply.json == {
            "applied": False,
            "dry_run": True,
            "action": action,
            "tier_id": tier_id,
            "member_id": member_id,
        }
    assert control.facts() == before


# The whole matrix --------------------------------------------------------------------------------------

OPEN = ("admitting", None)
HELD = ("quiesced", "kernel-upgrade")
AGAIN = ("quiesced", "again")

MATRIX: tuple[tuple[str, str, int, object, tuple[str, str | None], int], ...] = (
    # action, state before; status, code or outcome; state and reason after, requests that run
    ("status", "admitting", 200, None, OPEN, 0),
    ("status", "quiesced", 200, None, HELD, 0),
    ("status", "running", 200, None, HELD, 1),
    ("status", "draining", 200, None, HELD, 1),
    ("quiesce", "admitting", 200, "quiesced", AGAIN, 0),
    ("quiesce", "quiesced", 200, "quiesced", AGAIN, 0),
    ("quiesce", "running", 200, "quiesced", AGAIN, 1),
    ("quiesce", "draining", 200, "quiesced", AGAIN, 1),
    ("drain", "admitting", 409, "scope_not_quiesced", OPEN, 0),
    ("drain", "quiesced", 200, (True, False), HELD, 0),
    ("drain", "running", 200, (False, True), HELD, 1),
    ("drain", "draining", 409, "drain_in_progress", HELD, 1),
    ("readmit", "admitting", 409, "scope_not_quiesced", OPEN, 0),
    ("readmit", "quiesced", 200, "readiness_passed", OPEN, 0),
    ("readmit", "running", 200, "readiness_passed", OPEN, 1),
    ("readmit", "draining", 200, "readiness_passed", OPEN, 1),
)


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row[0]}-{row[1]}")
@pytest.mark.parametrize("scope", [("chat", None), ("chat", "member-a"), ("solo", None)])
def test_action_by_scope_by_state(
    control: Control, row: tuple[Any, ...], scope: tuple[str, str | None]
) -> None:
    action, before, status, outcome, after, active = row
    next(state for state in STATES if state.__name__ == before)(control)
    peers = [peer for peer in control.router.ledger.snapshots() if peer.tier_id != scope[0]]
    reply = control.do(action, *scope, reason="again", timeout=0.05)
    assert reply.status == status
    if action == "status":
        assert reply.json.keys() == {"tiers"}
    elif status == 409:
        assert (reply.json["error"]["code"], reply.json["applied"]) == (outcome, False)
    else:
        result = reply.json["result"]
        word = {
            "quiesce": result.get("state"),
            "drain": (result.get("drained"), result.get("timed_out")),
            "readmit": result.get("reason"),
        }
        assert (word[action], reply.json["applied"]) == (outcome, True)
    tier = control.router.ledger.snapshot(scope[0])
    found: Any = tier if scope[1] is None else tier.members[0]
    assert ((found.state, found.reason), found.active_requests) == (after, active)
    assert [peer for peer in control.router.ledger.snapshots() if peer.tier_id != scope[0]] == peers


# Status ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["GET", "POST"])
class TestStatus:
    def ask(self, control: Control, by: str, **scope: str) -> tuple[int, Any]:
        if by == "POST":
            reply = control.transition(action="status", **scope)
        else:
            query = "&".join(f"{name}={value}" for name, value in scope.items())
            reply = control.request("GET", f"{TRANSITION}?{query}")
        assert reply.headers["cache-control"] == "no-store"
        return reply.status, reply.json

    def test_a_tier_with_its_members(self, control: Control, by: str) -> None:
        running(control)
        members = [
            {"member_id": "member-a", **admission(2, reason="kernel-upgrade", active=1, draining=True)},
            {"member_id": "member-b", **admission(2)},
        ]
        row = {
            "tier_id": "chat",
            **admission(4, reason="kernel-upgrade", active=1, draining=True),
            **PENDING,
            "members": [{**member, **PENDING} for member in members],
        }
        assert self.ask(control, by, tier_id="chat") == (200, {"tiers": [row]})

    def test_one_member_is_listed_alone(self, control: Control, by: str) -> None:
        row = {
            "tier_id": "chat",
            **admission(4),
            **READY,
            "members": [{"member_id": "member-b", **admission(2), **READY}],
        }
        assert self.ask(control, by, tier_id="chat", member_id="member-b") == (200, {"tiers": [row]})

    def test_a_direct_tier(self, control: Control, by: str) -> None:
        control.run_request("solo")
        row = {"tier_id": "solo", **admission(3, active=1), **READY}
        assert self.ask(control, by, tier_id="solo") == (200, {"tiers": [row]})

    def test_all_tiers_in_the_order_of_the_configuration(self, control: Control, by: str) -> None:
        status, body = self.ask(control, by)
        assert status == 200
        ids = [row["tier_id"] for row in body["tiers"]]
        assert ids == ["chat", "solo", "plain", "healthy", "dynamic"]
        assert ["members" in row for row in body["tiers"]] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        ("tier_id=nowhere", 404, error("No such tier.", "unknown_tier")),
        ("tier_id=", 400, error(NOT_VALID, "invalid_request", "tier_id")),
        ("member_id=member-a", 400, error(NOT_VALID, "invalid_request", "tier_id")),
        ("tier_id=chat&member_id=", 400, error(NOT_VALID, "invalid_request", "member_id")),
        ("tier_id=chat&member_id=a%2Fb", 400, error(NOT_VALID, "invalid_request", "member_id")),
        ("tier_id=chat&member_id=member-z", 404, error("No such member.", "unknown_member")),
        ("tier_id=solo&member_id=member-a", 400, error("A direct tier has no members.", "direct_tier")),
        ("tier=chat", 400, error(NOT_VALID, "invalid_request")),
        ("tier_id=chat&tier_id=solo", 400, error(NOT_VALID, "invalid_request")),
    ],
)
def test_a_status_query_is_as_strict(
    control: Control, query: str, status: int, body: dict[str, object]
) -> None:
    reply = control.request("GET", f"{TRANSITION}?{query}")
    assert (reply.status, reply.json) == (status, body)


# Quiesce -----------------------------------------------------------------------------------------------


class TestQuiesce:
    def test_a_member(self, control: Control) -> None:
        control.run_request("chat", "member-a")
        reply = control.do("quiesce", "chat", "member-a", reason="kernel-upgrade")
        row = {
            "member_id": "member-a",
            **admission(2, reason="kernel-upgrade", active=1, draining=True),
            **PENDING,
        }
        assert (reply.status, reply.json) == (200, answered("quiesce", "chat", "member-a", row))
        assert intent_rows() == [("chat", "member-a", "kernel-upgrade", "bootstrap")]
        assert audit_rows() == [
            ("bootstrap", "rest", "quiesce", "chat", "member-a", "kernel-upgrade", "quiesced")
        ]

    def test_a_member_leaves_tier_and_peer_open(self, control: Control) -> None:
        control.do("quiesce", "chat", "member-a")
        snapshot = control.router.ledger.snapshot("chat")
        assert snapshot.state == "admitting"
        assert [member.state for member in snapshot.members] == ["quiesced", "admitting"]
        assert control.router.availability.cached("chat", "member-b") is not None

    def test_a_tier_with_the_default_reason(self, control: Control) -> None:
        reply = control.do("quiesce", "chat")
        row = {
            "tier_id": "chat",
            **admission(4, reason="operator"),
            **PENDING,
            "members": [
                {"member_id": "member-a", **admission(2), **PENDING},
                {"member_id": "member-b", **admission(2), **PENDING},
            ],
        }
        assert (reply.status, reply.json) == (200, answered("quiesce", "chat", None, row))
        assert intent_rows() == [("chat", "", "operator", "bootstrap")]

    def test_a_direct_tier(self, control: Control) -> None:
        reply = control.do("quiesce", "solo", reason="a.B_c-9")
        row = {"tier_id": "solo", **admission(3, reason="a.B_c-9"), **PENDING}
        assert (reply.status, reply.json) == (200, answered("quiesce", "solo", None, row))

    def test_again_replaces_the_reason_and_keeps_the_moment(self, control: Control) -> None:
        from admission.models import AdmissionIntent

        control.do("quiesce", "solo", reason="first")
        since = AdmissionIntent.objects.get().since
        reply = control.do("quiesce", "solo", reason="second")
        assert reply.json["result"]["reason"] == "second"
        assert intent_rows() == [("solo", "", "second", "bootstrap")]
        assert AdmissionIntent.objects.get().since == since

    @pytest.mark.parametrize("scope", [("solo", None), ("chat", "member-a")])
    def test_what_it_replaces_is_told_and_audited(
        self, control: Control, scope: tuple[str, str | None]
    ) -> None:
        """The reason of whoever was there first went without a word."""
        from routing.models import AuditEntry

        name = "x-anvil-previous-reason"
        first = control.do("quiesce", *scope, reason="upgrade")
        same = control.do("quiesce", *scope, reason="upgrade")
        place = {"tier_id": scope[0], **({} if scope[1] is None else {"member_id": scope[1]})}
        preview = control.transition(action="quiesce", reason="noise", **place)
        second = control.do("quiesce", *scope, reason="noise")
        told = [reply.headers.get(name) for reply in (first, same, preview, second)]
        assert told == [None, None, "upgrade", "upgrade"]
        entries = AuditEntry.objects.order_by("id").values_list("reason", "subject")
        assert list(entries) == [("upgrade", ""), ("upgrade", ""), ("noise", "reason was upgrade")]

    def test_scopes_are_rows_of_their_own(self, control: Control) -> None:
        quiesced(control)
        assert intent_rows() == [
            ("chat", "", "kernel-upgrade", "bootstrap"),
            ("chat", "member-a", "kernel-upgrade", "bootstrap"),
            ("solo", "", "kernel-upgrade", "bootstrap"),
        ]


# Drain -------------------------------------------------------------------------------------------------


class TestDrain:
    @pytest.mark.parametrize("scope", [("chat", None), ("chat", "member-a"), ("solo", None)])
    def test_an_open_scope_is_a_conflict(self, control: Control, scope: tuple[str, str | None]) -> None:
        before = control.facts()
        reply = control.do("drain", *scope)
        assert reply.status == 409
        assert reply.json.items() >= error("The scope is not quiesced.", "scope_not_quiesced").items()
        assert reply.json["applied"] is False
        assert (reply.json["tier_id"], reply.json["member_id"]) == scope
        assert (reply.json["result"]["drained"], reply.json["result"]["timed_out"]) == (False, False)
        assert control.facts() == before

    def test_a_member_of_a_quiesced_tier_is_open(self, control: Control) -> None:
        control.do("quiesce", "chat")
        assert control.do("drain", "chat", "member-a").json["error"]["code"] == "scope_not_quiesced"

    def test_a_second_drain_is_a_conflict(self, control: Control) -> None:
        draining(control)
        before = control.facts()
        reply = control.do("drain", "chat", "member-a", timeout=1)
        snapshot = {
            "member_id": "member-a",
            **admission(2, reason="kernel-upgrade", active=1, draining=True),
        }
        assert reply.status == 409
        assert reply.json == {
            **error("The scope is being drained already.", "drain_in_progress"),
            "applied": False,
            "action": "drain",
            "tier_id": "chat",
            "member_id": "member-a",
            "result": {"drained": False, "timed_out": False, "snapshot": snapshot},
        }
        assert control.facts() == before

    def test_a_member_at_rest(self, control: Control) -> None:
        control.do("quiesce", "chat", "member-a", reason="kernel-upgrade")
        reply = control.do("drain", "chat", "member-a")
        snapshot = {"member_id": "member-a", **admission(2, reason="kernel-upgrade")}
        result = {"drained": True, "timed_out": False, "snapshot": snapshot}
        assert (reply.status, reply.json) == (200, answered("drain", "chat", "member-a", result))
        assert audit_rows()[1:] == [("bootstrap", "rest", "drain", "chat", "member-a", "operator", "drained")]

    def test_a_tier_at_rest(self, control: Control) -> None:
        control.do("quiesce", "chat", reason="kernel-upgrade")
        reply = control.do("drain", "chat", reason="swap")
        snapshot = {
            "tier_id": "chat",
            **admission(4, reason="kernel-upgrade"),
            "member_active_requests": {"member-a": 0, "member-b": 0},
            "members": [
                {"member_id": "member-a", **admission(2)},
                {"member_id": "member-b", **admission(2)},
            ],
        }
        result = {"drained": True, "timed_out": False, "snapshot": snapshot}
        assert (reply.status, reply.json) == (200, answered("drain", "chat", None, result))
        assert audit_rows()[1:] == [("bootstrap", "rest", "drain", "chat", "", "swap", "drained")]

    def test_it_needs_no_confirmation(self, control: Control) -> None:
        """Contract: quiesce and readmit need one; a drain only waits."""
        control.do("quiesce", "solo")
        reply = control.transition(action="drain", tier_id="solo")
        assert reply.json["applied"] is True
        assert reply.json["result"]["drained"] is True

    def test_out_of_time_says_so_and_stays_quiesced(self, control: Control) -> None:
        control.run_request("solo")
        control.do("quiesce", "solo", reason="kernel-upgrade")
        reply = control.do("drain", "solo", timeout=0.05)
        snapshot = {
            "tier_id": "solo",
            **admission(3, reason="kernel-upgrade", active=1, draining=True),
            "member_active_requests": {},
            "members": [],
        }
        result = {"drained": False, "timed_out": True, "snapshot": snapshot}
        assert (reply.status, reply.json) == (200, answered("drain", "solo", None, result))
        assert audit_rows()[1:] == [("bootstrap", "rest", "drain", "solo", "", "operator", "timed_out")]


# Readmit -----------------------------------------------------------------------------------------------


class TestReadmit:
    @pytest.mark.parametrize("scope", [("chat", None), ("chat", "member-a"), ("solo", None)])
    def test_an_open_scope_is_a_conflict(self, control: Control, scope: tuple[str, str | None]) -> None:
        before = control.facts()
        reply = control.do("readmit", *scope)
        assert reply.status == 409
        assert reply.json["error"]["code"] == "scope_not_quiesced"
        assert reply.json["applied"] is False
        assert reply.json["result"]["readmitted"] is False
        assert reply.json["result"]["reason"] == "scope_not_quiesced"
        assert control.facts() == before

    def test_a_member(self, control: Control) -> None:
        quiesced(control)
        reply = control.do("readmit", "chat", "member-a", reason="done")
        row = {
            "tier_id": "chat",
            **admission(4, reason="kernel-upgrade"),
            **READY,
            "members": [{"member_id": "member-a", **admission(2), **READY}],
        }
        result = {"readmitted": True, "reason": "readiness_passed", "status": {"tiers": [row]}}
        assert (reply.status, reply.json) == (200, answered("readmit", "chat", "member-a", result))
        assert intent_rows() == [
            ("chat", "", "kernel-upgrade", "bootstrap"),
            ("solo", "", "kernel-upgrade", "bootstrap"),
        ]
        assert audit_rows()[3:] == [
            ("bootstrap", "rest", "readmit", "chat", "member-a", "done", "readiness_passed")
        ]

    def test_a_member_probes_that_member_alone(self, control: Control) -> None:
        control.do("quiesce", "chat", "member-a")
        control.probes.asked.clear()
        assert control.do("readmit", "chat", "member-a").status == 200
        assert control.probes.asked == ["alpha"]

    def test_a_tier_leaves_its_members_quiesce_alone(self, control: Control) -> None:
        quiesced(control)
        control.probes.asked.clear()
        reply = control.do("readmit", "chat")
        row = {
            "tier_id": "chat",
            **admission(4),
            **READY,
            "members": [
                {"member_id": "member-a", **admission(2, reason="kernel-upgrade"), **PENDING},
                {"member_id": "member-b", **admission(2), **READY},
            ],
        }
        result = {"readmitted": True, "reason": "readiness_passed", "status": {"tiers": [row]}}
        assert (reply.status, reply.json) == (200, answered("readmit", "chat", None, result))
        assert control.probes.asked == ["beta"]
        assert intent_rows() == [
            ("chat", "member-a", "kernel-upgrade", "bootstrap"),
            ("solo", "", "kernel-upgrade", "bootstrap"),
        ]

    def test_a_direct_tier(self, control: Control) -> None:
        control.do("quiesce", "solo")
        reply = control.do("readmit", "solo")
        row = {"tier_id": "solo", **admission(3), **READY}
        result = {"readmitted": True, "reason": "readiness_passed", "status": {"tiers": [row]}}
        assert (reply.status, reply.json) == (200, answered("readmit", "solo", None, result))
        assert intent_rows() == []

    def test_while_requests_of_it_still_run(self, control: Control) -> None:
        """A readmit may come before the drain is over; that drain ends, undrained."""
        draining(control)
        reply = control.do("readmit", "solo")
        assert reply.json["result"]["readmitted"] is True
        drain = control.router.operations.drains.latest("solo", None)
        assert drain is not None
        assert drain.wait(10.0)
        assert drain.outcome == "reopened"


# Bodies ------------------------------------------------------------------------------------------------

WHOLE = {"action": "quiesce", "tier_id": "solo", "confirm": True, "dry_run": False}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"action": "pause"}, "action"),
        ({"action": "Quiesce"}, "action"),
        ({"action": None}, "action"),
        ({"action": ["quiesce"]}, "action"),
        ({"action": {"quiesce": 1}}, "action"),
        ({"reason": ""}, "reason"),
        ({"reason": None}, "reason"),
        ({"reason": "two words"}, "reason"),
        ({"reason": "x" * 129}, "reason"),
        ({"reason": "naïve"}, "reason"),
        ({"reason": 1}, "reason"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 3600.001}, "timeout"),
        ({"timeout": 10**400}, "timeout"),
        ({"timeout": "60"}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": [1]}, "timeout"),
        ({"confirm": 1}, "confirm"),
        ({"confirm": "true"}, "confirm"),
        ({"confirm": None}, "confirm"),
        ({"dry_run": 0}, "dry_run"),
        ({"dry_run": None}, "dry_run"),
        ({"accept_unverified": 1}, "accept_unverified"),
        ({"accept_unverified": None}, "accept_unverified"),
        ({"force": True}, None),
        ({"Tier_id": "solo"}, None),
    ],
)
@pytest.mark.django_db(transaction=False)
def test_every_field_is_of_its_exact_type_and_bound(
    control: Control, change: dict[str, object], param: str | None
) -> None:
    before = control.facts()
    reply = control.request("POST", TRANSITION, {**WHOLE, **change})
    assert (reply.status, reply.json) == (400, error(NOT_VALID, "invalid_request", param))
    assert control.facts() == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b'"quiesce"',
        b"{",
        b"\xff\xfe",
        b'{"action": "quiesce", "tier_id": "solo", "tier_id": "chat", "confirm": true, "dry_run": false}',
        b'{"action": "drain", "tier_id": "solo", "timeout": NaN}',
        b'{"action": "drain", "tier_id": "solo", "timeout": Infinity}',
        b'{"action": "drain", "tier_id": "solo", "timeout": 1e999}',
        b'{"action": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b"\xef\xbb\xbf" + b'{"action": "status"}',
    ],
)
@pytest.mark.django_db(transaction=False)
def test_a_body_that_is_no_strict_object_is_refused(control: Control, body: bytes) -> None:
    before = control.facts()
    reply = control.request("POST", TRANSITION, body)
    assert reply.status == 400
    assert reply.json["error"]["code"] == "invalid_request"
    assert control.facts() == before


@pytest.mark.django_db(transaction=False)
def test_a_body_that_is_too_large_is_refused(control: Control) -> None:
    reply = control.request("POST", TRANSITION, b" " * 65_537)
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")


@pytest.mark.django_db(transaction=False)
def test_bounds_are_inclusive(control: Control) -> None:
    for change in ({"timeout": 3600}, {"timeout": 3600.0}, {"timeout": 0.001}, {"reason": "x" * 128}):
        assert control.request("POST", TRANSITION, {**WHOLE, **change}).status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.django_db(transaction=False)
def test_other_methods_are_refused(control: Control, method: str) -> None:
    reply = control.request(method, TRANSITION, WHOLE)
    assert (reply.status, reply.json["error"]["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "GET, POST, HEAD"


# When nothing can be done ------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.django_db(transaction=False)
class TestUnavailable:
    def test_another_process_owns_the_ledger(
        self, control: Control, action: str, mode: dict[str, object]
    ) -> None:
        before = control.facts()
        control.router.owns_ledger = False
        reply = control.transition(action=action, tier_id="solo", **mode)
        assert (reply.status, reply.json["error"]["code"]) == (503, "not_ledger_owner")
        assert reply.headers["retry-after"] == "1"
        assert control.facts() == before

    def test_malformed_comes_first(self, control: Control, action: str, mode: dict[str, object]) -> None:
        control.router.owns_ledger = False
        assert control.transition(action=action, tier_id=None, **mode).status == 400

    def test_four_management_requests_are_at_work(
        self, control: Control, action: str, mode: dict[str, object]
    ) -> None:
        before = control.facts()
        for _ in range(4):
            assert control.router.operations.at_work.acquire(blocking=False)
        reply = control.transition(action=action, tier_id="solo", **mode)
        assert (reply.status, reply.json["error"]["code"]) == (503, "management_busy")
        assert reply.headers["retry-after"] == "1"
        assert control.facts() == before
        control.router.operations.at_work.release()
        assert control.transition(action=action, tier_id="nowhere", **mode).status == 404
        assert control.transition(action=action, tier_id="nowhere", **mode).status == 404


@pytest.mark.django_db(transaction=False)
def test_without_a_configuration(control: Control) -> None:
    control.router.active = None
    for reply in (control.do("quiesce", "solo"), control.request("GET", TRANSITION)):
        assert (reply.status, reply.json["error"]["code"]) == (503, "not_configured")
