"""Readmit with the real readiness checker behind it: what counts as evidence, and what races with it."""

from collections.abc import Iterator

import pytest

from routing.router import Router, bind
from tests.unit.routing.availability_support import Answer, Call, Held, models
from tests.web import control_support
from tests.web.control_support import ENVIRON, PATIENCE, Control, in_thread, install, intent_rows

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 3 transitions", "F-R008", "F-T003", "C-T008"),
]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (models("another-model"), "identity_mismatch"),
        (models("qwen", "qwen"), "identity_mismatch"),
        ((200, b"<html>"), "identity_malformed"),
        ((200, b" " * 65_537), "identity_oversized"),
        ((503, b""), "identity_http_503"),
        ("refused", "identity_transport_refused"),
        ("timeout", "identity_transport_timeout"),
    ],
)
@pytest.mark.parametrize("member_id", [None, "member-a"])
def test_evidence_that_says_no_is_refused_with_its_reason(
    control: Control, answer: Answer, reason: str, member_id: str | None
) -> None:
    tier_id = "solo" if member_id is None else "chat"
    control.do("quiesce", tier_id, member_id, reason="kernel-upgrade")
    control.probes.answers |= {"solo": answer, "alpha": answer}
    rows = intent_rows()
    reply = control.do("readmit", tier_id, member_id)
    assert reply.status == 409
    assert reply.json["error"] == {
        "message": "The scope stays quiesced: it could not be verified.",
        "type": "invalid_request_error",
        "param": None,
        "code": "readmit_refused",
    }
    assert {key: reply.json[key] for key in ("applied", "action", "tier_id", "member_id")} == {
        "applied": False,
        "action": "readmit",
        "tier_id": tier_id,
        "member_id": member_id,
    }
    result = reply.json["result"]
    assert (result["readmitted"], result["reason"]) == (False, reason)
    (tier,) = result["status"]["tiers"]
    row = tier if member_id is None else tier["members"][0]
    assert (row["state"], row["reason"], row["ready"]) == ("quiesced", "kernel-upgrade", False)
    assert (row["readiness_reason"], row["expected_model"]) == (reason, "qwen")
    assert row["observed_model"] is None
    assert intent_rows() == rows
    assert b"another-model" not in reply.body


def test_the_right_model_is_readmitted_after_the_wrong_one_was_refused(control: Control) -> None:
    control.do("quiesce", "chat", "member-a")
    control.probes.answers["alpha"] = models("another-model")
    assert control.do("readmit", "chat", "member-a").json["result"]["reason"] == "identity_mismatch"
    control.probes.answers["alpha"] = models("qwen")
    assert control.do("readmit", "chat", "member-a").json["result"]["reason"] == "readiness_passed"
    assert intent_rows() == []


def test_what_was_ready_before_does_not_count(control: Control) -> None:
    """A cached success from before the readmit is not evidence: it is invalidated first."""
    control.do("quiesce", "solo")
    assert control.router.availability.probe_now("solo").available
    control.probes.answers["solo"] = "refused"
    assert control.do("readmit", "solo").json["result"]["reason"] == "identity_transport_refused"
    assert control.router.ledger.snapshot("solo").state == "quiesced"


def test_a_passed_identity_stays_cached(control: Control) -> None:
    control.do("quiesce", "solo")
    control.do("readmit", "solo")
    asked = list(control.probes.asked)
    result = control.router.availability.check("solo")
    assert (result.available, result.reason) == (True, "identity_passed")
    assert control.probes.asked == asked


class TestReplicaTier:
    def test_one_verified_member_is_enough(self, control: Control) -> None:
        control.do("quiesce", "chat")
        control.probes.answers["alpha"] = models("another-model")
        reply = control.do("readmit", "chat")
        assert (reply.status, reply.json["result"]["reason"]) == (200, "readiness_passed")
        (tier,) = reply.json["result"]["status"]["tiers"]
        assert [member["ready"] for member in tier["members"]] == [False, True]

    def test_without_a_verified_member_it_stays_quiesced(self, control: Control) -> None:
        control.do("quiesce", "chat")
        control.probes.answers |= {"alpha": models("another-model"), "beta": "refused"}
        reply = control.do("readmit", "chat")
        assert (reply.status, reply.json["result"]["reason"]) == (409, "identity_mismatch")
        assert control.router.ledger.snapshot("chat").state == "quiesced"

    def test_a_quiesced_member_does_not_count(self, control: Control) -> None:
        control.do("quiesce", "chat")
        control.do("quiesce", "chat", "member-b")
        control.probes.answers["alpha"] = "refused"
        assert control.do("readmit", "chat").json["result"]["reason"] == "identity_transport_refused"

    def test_with_every_member_quiesced_it_is_refused_unprobed(self, control: Control) -> None:
        for scope in (("chat",), ("chat", "member-a"), ("chat", "member-b")):
            control.do("quiesce", *scope)
        asked = list(control.probes.asked)
        reply = control.do("readmit", "chat")
        assert (reply.status, reply.json["result"]["reason"]) == (409, "all_members_quiesced")
        assert control.probes.asked == asked

    def test_a_member_never_opens_its_tier(self, control: Control) -> None:
        control.do("quiesce", "chat")
        control.do("quiesce", "chat", "member-a")
        assert control.do("readmit", "chat", "member-a").status == 200
        snapshot = control.router.ledger.snapshot("chat")
        assert (snapshot.state, snapshot.members[0].state) == ("quiesced", "admitting")


class TestWithoutIdentity:
    @pytest.mark.parametrize("tier_id", ["plain", "healthy"])
    def test_it_is_refused_unprobed(self, control: Control, tier_id: str) -> None:
        control.do("quiesce", tier_id)
        before = control.facts()
        reply = control.do("readmit", tier_id)
        assert reply.status == 409
        assert reply.json["error"]["code"] == "identity_not_configured"
        assert reply.json["result"]["reason"] == "identity_not_configured"
        assert control.facts() == before

    @pytest.mark.parametrize("tier_id", ["plain", "healthy"])
    def test_an_operator_who_knows_may_readmit_it(self, control: Control, tier_id: str) -> None:
        control.do("quiesce", tier_id)
        reply = control.do("readmit", tier_id, accept_unverified=True)
        result = reply.json["result"]
        assert (reply.status, result["readmitted"]) == (200, True)
        assert result["reason"] == "readmitted_unverified"
        assert intent_rows() == []

    def test_but_not_against_a_probe_that_failed(self, control: Control) -> None:
        control.do("quiesce", "healthy")
        control.probes.answers["healthy"] = (500, b"")
        reply = control.do("readmit", "healthy", accept_unverified=True)
        assert (reply.status, reply.json["result"]["reason"]) == (409, "health_http_500")

    def test_accepting_the_unverified_does_not_overrule_a_mismatch(self, control: Control) -> None:
        control.do("quiesce", "solo")
        control.probes.answers["solo"] = models("another-model")
        reply = control.do("readmit", "solo", accept_unverified=True)
        assert (reply.status, reply.json["result"]["reason"]) == (409, "identity_mismatch")


class TestDynamicMetadata:
    def test_valid_metadata_is_evidence(self, control: Control) -> None:
        control.do("quiesce", "dynamic")
        reply = control.do("readmit", "dynamic")
        assert (reply.status, reply.json["result"]["reason"]) == (200, "readiness_passed")

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (models("llama"), "identity_malformed"),
            (models("llama", "qwen", max_model_len=8192), "identity_mismatch"),
            (models("llama", max_model_len=0), "identity_malformed"),
        ],
    )
    def test_other_metadata_is_not(self, control: Control, answer: Answer, reason: str) -> None:
        control.do("quiesce", "dynamic")
        control.probes.answers["dynamic"] = answer
        assert control.do("readmit", "dynamic").json["result"]["reason"] == reason
        assert control.router.ledger.snapshot("dynamic").state == "quiesced"


# Probes that overlap ------------------------------------------------------------------------------------


@pytest.fixture
def held(control: Control) -> Iterator[Held]:
    """The same control plane over probes that wait until the test answers them; their first round is over."""
    transport = Held()
    router = Router(
        evidence=control.router.evidence,
        pressure_factory=control.router._pressure_factory,
        environ=ENVIRON,
        probe_transport=transport,
    )
    control.router.close()
    install(router)
    for _ in range(5):
        answer(transport.next())
    assert router.availability.first_round_done.wait(PATIENCE)
    router.owns_ledger = True
    control.router = router
    bind(router)
    yield transport
    transport.release()
    router.close()


def answer(call: Call, *, well: bool = True) -> None:
    answers = control_support.probes().answers
    call.answer(answers[call.host] if well else models("another-model"))


def test_an_old_probe_that_crosses_a_quiesce_is_no_evidence(control: Control, held: Held) -> None:
    """Readiness fencing: the baseline published the old success, and gave it to its caller."""
    availability = control.router.availability
    with in_thread(lambda: availability.probe_now("solo")) as old_result:
        old = held.next()
        assert control.do("quiesce", "solo").status == 200
        answer(old)
        assert (old_result().available, old_result().reason) == (False, "probe_invalidated")
    assert availability.cached("solo") is None
    assert control.router.ledger.snapshot("solo").state == "quiesced"


def test_a_readmit_while_an_old_flight_is_out_is_refused_and_then_decided_anew(
    control: Control, held: Held
) -> None:
    availability = control.router.availability
    availability.invalidate("solo")
    old = held.next()  # the prober's own
    control.do("quiesce", "solo")
    reply = control.do("readmit", "solo")
    assert (reply.status, reply.json["result"]["reason"]) == (409, "probe_pending")
    assert intent_rows() == [("solo", "", "operator", "bootstrap")]
    answer(old)

    # The old flight has settled without a trace; another alias was usable all along.
    assert availability.cached("healthy") is not None
    with in_thread(lambda: control.do("readmit", "solo")) as settle:
        answer(own(held, "solo"), well=False)
        assert settle().json["result"]["reason"] == "identity_mismatch"
    assert control.router.ledger.snapshot("solo").state == "quiesced"

    with in_thread(lambda: control.do("readmit", "solo")) as retry:
        answer(own(held, "solo"))
        assert retry().json["result"]["reason"] == "readiness_passed"
    cached = availability.cached("solo")
    assert cached is not None
    assert cached.reason == "identity_passed"
    assert intent_rows() == []


def own(held: Held, host: str) -> Call:
    """The next probe, which the readmit itself has begun: the prober leaves a quiesced scope alone."""
    call = held.next()
    assert call.host == host
    return call


def test_a_quiesce_during_the_verification_wins(control: Control, held: Held) -> None:
    """An emergency quiesce is never undone by a readmit that began before it."""
    control.do("quiesce", "solo", reason="first")
    with in_thread(lambda: control.do("readmit", "solo")) as readmitted:
        probe = held.next()
        assert control.do("quiesce", "solo", reason="emergency").status == 200
        answer(probe)
        reply = readmitted()
    assert (reply.status, reply.json["result"]["reason"]) == (409, "probe_invalidated")
    assert control.router.ledger.snapshot("solo").reason == "emergency"
    assert intent_rows() == [("solo", "", "emergency", "bootstrap")]


def test_a_quiesce_after_the_verification_wins_too(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """The narrowest gap: between the removal of the intent and the opening of the ledger."""
    from admission import intents

    remove = intents.remove

    def remove_and_be_overtaken(*scope: str | None) -> None:
        remove(*scope)
        with control.router.operations.closing(("solo", None)):
            control.router.ledger.quiesce("solo", "emergency")

    control.do("quiesce", "solo", reason="first")
    monkeypatch.setattr(intents, "remove", remove_and_be_overtaken)
    reply = control.do("readmit", "solo")
    assert (reply.status, reply.json["result"]["reason"]) == (409, "quiesced_again")
    assert control.router.ledger.snapshot("solo").reason == "emergency"


def test_leases_of_a_readmitted_scope_are_released_once(control: Control) -> None:
    lease = control.run_request("solo")
    control.do("quiesce", "solo")
    control.do("readmit", "solo")
    assert control.router.ledger.snapshot("solo").active_requests == 1
    assert (lease.release(), lease.release()) == (True, False)
    assert control.router.ledger.snapshot("solo").active_requests == 0
