"""Quiesce and readmit when the database fails, and what is restored after a restart."""

import contextlib
import logging
import random
import threading
from pathlib import Path

import pytest
from django.db import OperationalError

from admission.intent_document import IntentError
from admission.models import AdmissionIntent
from anvil_site.runtime import Runtime, StartRefused, make_pressure
from routing import publishing, transitions
from routing.audit import Through
from routing.models import RouterSnapshot
from routing.refusals import Refused
from routing.router import Router
from routing.snapshot import validate_snapshot
from tests.web.control_support import (
    CONFIG,
    ENVIRON,
    PATIENCE,
    TOPOLOGY,
    Control,
    audit_rows,
    failing_database,
    in_thread,
    install,
    intent_rows,
    probes,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.requirement("contract 3 intent", "C-T010")]

NOT_PERSISTED = {
    "message": "The scope is quiesced, but the database could not be brought to agree.",
    "type": "server_error",
    "param": None,
    "code": "intent_not_persisted",
}


class TestFailingDatabase:
    @pytest.mark.parametrize("table", ["admission_admissionintent", "routing_auditentry"])
    def test_a_quiesce_holds_in_memory_and_says_that_it_is_not_stored(
        self, control: Control, table: str
    ) -> None:
        with failing_database(table):
            reply = control.do("quiesce", "chat", "member-a", reason="emergency")
        assert (reply.status, reply.json["error"]) == (503, NOT_PERSISTED)
        assert (reply.json["applied"], reply.json["action"]) == (True, "quiesce")
        assert (reply.json["result"]["state"], reply.json["result"]["reason"]) == ("quiesced", "emergency")
        assert control.router.ledger.snapshot("chat").members[0].state == "quiesced"
        assert control.router.availability.cached("chat", "member-a") is None
        assert intent_rows() == []
        assert audit_rows() == []
        assert b"secret" not in reply.body

    def test_a_quiesce_that_is_repeated_is_stored(self, control: Control) -> None:
        with failing_database("admission_admissionintent"):
            assert control.do("quiesce", "solo").status == 503
        assert control.do("quiesce", "solo").status == 200
        assert intent_rows() == [("solo", "", "operator", "bootstrap")]

    def test_a_readmit_whose_intent_cannot_be_removed_opens_nothing(self, control: Control) -> None:
        control.do("quiesce", "solo", reason="kernel-upgrade")
        with failing_database("admission_admissionintent"):
            reply = control.do("readmit", "solo")
        assert (reply.status, reply.json["error"]) == (503, NOT_PERSISTED)
        assert reply.json["applied"] is False
        assert reply.json["result"]["readmitted"] is False
        assert reply.json["result"]["reason"] == "intent_not_persisted"
        assert control.router.ledger.snapshot("solo").reason == "kernel-upgrade"
        assert intent_rows() == [("solo", "", "kernel-upgrade", "bootstrap")]
        assert control.do("readmit", "solo").status == 200

    def test_a_readmit_whose_audit_entry_is_lost_is_done_all_the_same(
        self, control: Control, caplog: pytest.LogCaptureFixture
    ) -> None:
        control.do("quiesce", "solo")
        with failing_database("routing_auditentry"), caplog.at_level(logging.INFO, "anvil.audit"):
            reply = control.do("readmit", "solo")
        assert (reply.status, reply.json["result"]["reason"]) == (200, "readiness_passed")
        assert intent_rows() == []
        assert caplog.messages == ["an audit entry is lost: action=readmit"]

    def test_a_database_that_hangs_does_not_delay_the_ledger(
        self, control: Control, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory first: while one change keeps the intents, the next quiesce has its effect already."""
        closed = threading.Event()
        invalidate = control.router.availability.invalidate

        def invalidate_and_tell(*scope: str | None) -> None:
            invalidate(*scope)
            closed.set()

        monkeypatch.setattr(control.router.availability, "invalidate", invalidate_and_tell)
        with contextlib.ExitStack() as another_change:
            another_change.enter_context(control.router.operations.persisting())
            with in_thread(lambda: control.do("quiesce", "solo")) as reply:
                assert closed.wait(PATIENCE)
                assert control.router.ledger.snapshot("solo").state == "quiesced"
                assert intent_rows() == []
                another_change.close()
                assert reply().status == 200
        assert intent_rows() == [("solo", "", "operator", "bootstrap")]

    def test_a_change_that_waits_too_long_for_another_says_so(
        self, control: Control, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("routing.operations.PERSISTING_PATIENCE", 0.01)
        with control.router.operations.persisting():
            assert control.do("quiesce", "solo").json["error"] == NOT_PERSISTED
            assert control.do("readmit", "solo").json["error"] == NOT_PERSISTED
        assert control.router.ledger.snapshot("solo").state == "quiesced"

    def test_a_refusal_is_one_log_line_and_a_count(
        self, control: Control, caplog: pytest.LogCaptureFixture
    ) -> None:
        from routing import audit

        before = audit.refusals()
        with caplog.at_level(logging.INFO):
            control.do("readmit", "solo")
            control.do("quiesce", "nowhere")
            control.transition(action="drain", tier_id="not safe")
        assert caplog.messages == [
            "refused action=readmit code=scope_not_quiesced actor=bootstrap through=rest",
            "refused action=quiesce code=unknown_tier actor=bootstrap through=rest",
            "refused action=transition code=invalid_request actor=bootstrap through=rest",
        ]
        grown = {key: count - before.get(key, 0) for key, count in audit.refusals().items()}
        assert {key: count for key, count in grown.items() if count} == {
            ("readmit", "scope_not_quiesced"): 1,
            ("quiesce", "unknown_tier"): 1,
            ("transition", "invalid_request"): 1,
        }
        assert audit_rows() == []


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_at_once_rows_and_ledger_agree_in_the_end(control: Control, seed: int) -> None:
    """Four people quiesce and readmit the same scopes."""
    scopes = [("solo", None), ("chat", None), ("chat", "member-a")]
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        choose = random.Random(f"{seed}-{number}")
        barrier.wait(PATIENCE)
        for turn in range(12):
            verb = choose.choice([transitions.quiesce, transitions.readmit])
            scope = choose.choice(scopes)
            with contextlib.suppress(Refused):
                verb(control.router, *scope, reason=f"r{number}.{turn}", actor="ada", through=Through.CONSOLE)

    with contextlib.ExitStack() as threads:
        results = [threads.enter_context(in_thread(lambda number=n: work(number))) for n in range(4)]
        for result in results:
            result()
    held = {
        (snapshot.tier_id, member_id or ""): reason
        for snapshot in control.router.ledger.snapshots()
        for member_id, reason in [
            (None, snapshot.reason),
            *((member.member_id, member.reason) for member in snapshot.members),
        ]
        if reason is not None
    }
    assert {(tier_id, member_id): reason for tier_id, member_id, reason, _ in intent_rows()} == held


def restarted(control: Control) -> Router:
    """The router of the next process, as it is right after it has read its configuration."""
    control.router.close()
    router = Router(
        evidence=control.router.evidence,
        pressure_factory=make_pressure,
        environ=ENVIRON,
        probe_transport=probes(),
    )
    install(router)
    return router


class TestRestore:
    def test_tier_and_member_intents_are_held_before_anything_is_admitted(self, control: Control) -> None:
        control.do("quiesce", "solo", reason="kernel-upgrade")
        control.do("quiesce", "chat", "member-a", reason="swap")
        router = restarted(control)
        solo, chat = router.ledger.snapshot("solo"), router.ledger.snapshot("chat")
        assert (solo.state, solo.reason) == ("quiesced", "kernel-upgrade")
        assert (chat.state, [member.reason for member in chat.members]) == ("admitting", ["swap", None])
        assert router.ledger.acquire("solo") is None
        ready = {"member-a": True, "member-b": True}
        leases = [router.ledger.acquire_member("chat", ready) for _ in range(3)]
        assert [lease.member_id for lease in leases if lease is not None] == ["member-b", "member-b"]
        for lease in leases:
            if lease is not None:
                lease.release()
        router.close()

    def test_a_tiers_promotion_is_not_restored_and_a_members_is(self, control: Control) -> None:
        control.do("quiesce", "solo", reason="promotion")
        control.do("quiesce", "chat", "member-a", reason="promotion")
        router = restarted(control)
        assert router.ledger.snapshot("solo").state == "admitting"
        assert router.ledger.snapshot("chat").members[0].reason == "promotion"
        router.close()

    def test_a_readmitted_scope_is_not_restored(self, control: Control) -> None:
        control.do("quiesce", "chat")
        control.do("quiesce", "chat", "member-a")
        control.do("readmit", "chat")
        router = restarted(control)
        chat = router.ledger.snapshot("chat")
        assert (chat.state, chat.members[0].state) == ("admitting", "quiesced")
        router.close()

    def test_an_intent_of_what_is_not_configured_waits_for_it(self, control: Control) -> None:
        """A member that comes back with a later configuration is held before it opens."""
        for tier_id, member_id in (("gone", ""), ("chat", "member-c"), ("solo", "member-a")):
            AdmissionIntent.objects.create(tier_id=tier_id, member_id=member_id, reason="old", actor="ada")
        rows = intent_rows()
        router = restarted(control)
        assert router.quiesced_scopes() == frozenset()
        install(router, CONFIG.replace('id = "solo"', 'id = "gone"').replace('= "solo"', '= "gone"'))
        assert router.quiesced_scopes() == {("gone", None)}
        assert intent_rows() == rows
        router.close()

    def test_a_swap_reads_the_intents_again_and_opens_nothing(self, control: Control) -> None:
        control.do("quiesce", "chat", "member-a", reason="mine")
        AdmissionIntent.objects.create(tier_id="solo", member_id="", reason="made-elsewhere", actor="ada")
        install(control.router, snapshot_id=2)
        assert control.router.quiesced_scopes() == {("chat", "member-a"), ("solo", None)}
        assert control.router.ledger.snapshot("solo").reason == "made-elsewhere"

    @pytest.mark.parametrize(
        "change",
        [
            {"tier_id": "no/such"},
            {"tier_id": ""},
            {"member_id": "1st"},
            {"member_id": " "},
            {"reason": ""},
            {"reason": "two words"},
        ],
    )
    def test_a_malformed_row_changes_nothing_at_a_swap(
        self, control: Control, change: dict[str, str]
    ) -> None:
        row = {"tier_id": "solo", "member_id": "", "reason": "operator", "actor": "ada"}
        AdmissionIntent.objects.create(**{**row, **change})
        before = control.router.active
        with pytest.raises(IntentError, match=r"^a stored quiesce intent is not of its grammar$"):
            install(control.router, snapshot_id=2)
        assert control.router.active is before
        assert control.router.quiesced_scopes() == frozenset()


class TestStart:
    """The runtime of a process that starts: configuration, intents and keys after the lock."""

    @pytest.fixture
    def directory(self, tmp_path: Path, settings: object) -> Path:
        snapshot = validate_snapshot(CONFIG.encode(), TOPOLOGY.encode())
        publishing.install_into_empty(snapshot, source=RouterSnapshot.Source.CLI, actor="tests")
        return tmp_path / "data"

    def start(self, directory: Path) -> Runtime:
        runtime = Runtime(data_dir=directory, auth=True)
        runtime.router._probe_transport = probes()
        try:
            runtime.start()
        except BaseException:
            runtime.stop()
            raise
        return runtime

    def test_what_was_quiesced_is_quiesced(self, directory: Path) -> None:
        AdmissionIntent.objects.create(tier_id="chat", member_id="member-a", reason="swap", actor="ada")
        AdmissionIntent.objects.create(tier_id="solo", member_id="", reason="promotion", actor="ada")
        runtime = self.start(directory)
        try:
            assert runtime.router.quiesced_scopes() == {("chat", "member-a")}
            assert intent_rows() == [("chat", "member-a", "swap", "ada")]
        finally:
            runtime.stop()

    def test_a_malformed_row_refuses_the_start(self, directory: Path) -> None:
        AdmissionIntent.objects.create(tier_id="solo", member_id="", reason="two words", actor="ada")
        with pytest.raises(StartRefused) as caught:
            self.start(directory)
        assert str(caught.value) == (
            "the stored intents are not valid: a stored quiesce intent is not of its grammar"
        )

    def test_a_malformed_row_refuses_the_start_of_an_empty_router_too(self, tmp_path: Path) -> None:
        AdmissionIntent.objects.create(tier_id="", member_id="", reason="operator", actor="ada")
        with pytest.raises(StartRefused):
            self.start(tmp_path / "data")

    def test_authentication_off_needs_a_loopback_bind(
        self, tmp_path: Path, settings: pytest.FixtureRequest
    ) -> None:
        settings.ANVIL_BIND = "0.0.0.0:8000"  # type: ignore[attr-defined]
        runtime = Runtime(data_dir=tmp_path / "data", auth=False)
        with pytest.raises(StartRefused, match=r"^ANVIL_AUTH=off needs a loopback address in ANVIL_BIND$"):
            runtime.start()
        runtime.stop()


def test_the_database_error_that_these_tests_plant_is_djangos_own() -> None:
    with failing_database("admission_admissionintent"), pytest.raises(OperationalError):
        AdmissionIntent.objects.create(tier_id="solo", reason="operator", actor="ada")
