"""Promotion of a direct tier: its two configurations, its journal, its ways back and its guard."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import IntegrityError

from routing import activation, audit, guard, promotion, publishing, transitions
from routing.audit import Through
from routing.editing import EditError
from routing.models import ActiveSnapshot, AuditEntry, Promotion, RouterSnapshot
from routing.refusals import Refused
from routing.router import Router
from tests.unit.routing.availability_support import models
from tests.web.control_support import (
    CONFIG,
    PATIENCE,
    TOPOLOGY,
    Control,
    failing_database,
    in_thread,
    intent_rows,
)
from tests.web.publishing_support import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 5 promote"),
]

PLACES = (
    TOPOLOGY
    + "".join(
        f"""
[[resources]]
id = "{name}"
host = "gpu-host"
role = "llm"
endpoint = "http://{name}/v1"
"""
        for name in ("gamma", "delta", "solo")
    )
    + """
[[resources]]
id = "nowhere"
host = "gpu-host"
role = "llm"
"""
)
AT_GAMMA = CONFIG.replace('"http://solo/v1"', '"http://gamma/v1"')
AT_DELTA = CONFIG.replace('"http://solo/v1"', '"http://delta/v1"')
SOLO_REPLICATED = CONFIG.replace(
    CONFIG[CONFIG.index('id = "solo"') : CONFIG.index('[[router.tiers]]\nid = "plain"')],
    CONFIG[CONFIG.index('id = "chat"') : CONFIG.index('[[router.tiers]]\nid = "solo"')]
    .replace('id = "chat"', 'id = "solo"')
    .replace("alpha", "gamma")
    .replace("beta", "delta"),
)


class Site:
    """The control plane of a test, with `CONFIG` and `PLACES` stored and active."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.router: Router = control.router
        for host in ("gamma", "delta"):
            control.probes.answers[host] = models("qwen")
        self.first = self.capture(CONFIG)
        self.activate(self.first)
        AuditEntry.objects.all().delete()

    def capture(self, config: str) -> RouterSnapshot:
        row, _ = publishing.capture(
            config.encode(), PLACES.encode(), None, source=RouterSnapshot.Source.REST, actor="ada"
        )
        return row

    def activate(self, config: str | RouterSnapshot, **options: Any) -> None:
        row = self.capture(config) if isinstance(config, str) else config
        activation.activate(self.router, row, actor="ada", through=Through.REST, **options)

    def promote(self, tier: str = "solo", resource: str = "gamma", **options: Any) -> Promotion:
        return promotion.promote(self.router, tier, resource, actor="ada", through=Through.REST, **options)

    def resume(self) -> Promotion:
        return promotion.resume(self.router, actor="eve", through=Through.REST)

    def roll_back(self) -> Promotion:
        return promotion.roll_back(self.router, actor="eve", through=Through.REST)

    def stopped_at(
        self,
        serving: str,
        *,
        promoted: str = AT_GAMMA,
        rollback: str = CONFIG,
        tier: str = "solo",
    ) -> Promotion:
        """The journal of a process that was killed, and the configuration that it left active."""
        rows = {"promoted": self.capture(promoted), "rollback": self.capture(rollback)}
        row = Promotion.objects.create(
            tier_id=tier, resource_id="gamma", drain_timeout=PATIENCE, actor="ada", through="rest", **rows
        )
        target = self.capture(AT_DELTA) if serving == "neither" else rows[serving]
        if self.router.active is not None and self.router.active.snapshot_id != target.pk:
            self.activate(target, drain_timeout=PATIENCE)
        AuditEntry.objects.all().delete()
        return row

    def hold(self) -> None:
        """Quiesce the tier as a promotion does that could not open it again."""
        with self.router.operations.closing(("solo", None)):
            self.router.ledger.quiesce("solo", "promotion")
        self.router.availability.invalidate("solo")

    @property
    def state(self) -> tuple[str, str | None, int]:
        reading = self.router.ledger.snapshot("solo")
        return reading.state, reading.reason, reading.active_requests

    @property
    def place(self) -> str:
        """Where the tier is, with the pointer and the process agreeing."""
        active = self.router.active
        assert active is not None
        assert ActiveSnapshot.objects.get().snapshot_id == active.snapshot_id
        return active.config.tier("solo").base_url

    def facts(self) -> tuple[object, ...]:
        """Everything that a refusal must leave as it was."""
        return (
            self.control.facts(),
            self.place,
            list(RouterSnapshot.objects.values_list("pk", flat=True)),
            list(Promotion.objects.values()),
            self.router.operations.promoting.locked(),
            self.router.operations.activating.locked(),
        )


@pytest.fixture
def site(control: Control) -> Site:
    return Site(control)


@contextmanager
def refused() -> Iterator[Callable[[], Refused]]:
    with pytest.raises(Refused) as caught:
        yield lambda: caught.value


def steps(row: Promotion) -> list[tuple[str, str]]:
    stored = Promotion.objects.get(pk=row.pk)
    assert stored.steps == row.steps
    return [(step["step"], step["outcome"]) for step in stored.steps]


def trail() -> list[tuple[str, ...]]:
    fields = ("actor", "action", "tier_id", "subject", "reason", "result")
    return list(AuditEntry.objects.order_by("id").values_list(*fields))


def solved(row: Promotion) -> tuple[str, str]:
    stored = Promotion.objects.get(pk=row.pk)
    assert (stored.ended_at is None) is (stored.outcome == "")
    return stored.outcome, stored.code


# --- There ------------------------------------------------------------------------------------------------


def test_a_tier_moves_to_another_resource_in_one_operation(site: Site) -> None:
    lease = site.control.run_request("solo")
    elsewhere = site.control.run_request("chat", "member-a")
    with in_thread(lambda: site.promote(drain_timeout=PATIENCE)) as result:
        eventually(lambda: site.router.ledger.snapshot("solo").draining)
        assert site.state == ("quiesced", "promotion", 1)
        assert site.router.ledger.acquire("solo") is None
        assert promotion.stopped(site.router) is None
        (running,) = Promotion.objects.all()
        assert promotion.describe(site.router, running)["state"] == "running"
        lease.release()
        row = result()
    assert steps(row) == [
        ("promote", "begun"),
        ("validate", "passed"),
        ("quiesce", "quiesced"),
        ("drain", "drained"),
        ("activate", "activated"),
        ("verify", "identity_passed"),
        ("readmit", "readmitted"),
    ]
    assert solved(row) == ("promoted", "")
    assert site.state == ("admitting", None, 0)
    assert site.place == "http://gamma/v1"
    assert site.control.probes.asked[-1] == "gamma"
    assert intent_rows() == []
    assert promotion.stopped(site.router) is None
    assert elsewhere.release()
    subject = f"activation of snapshot {row.promoted_id}"
    assert trail() == [
        ("ada", "quiesce", "solo", subject, "promotion", "quiesced"),
        ("ada", "activate", "", f"snapshot {row.promoted_id}", "", "activated"),
        ("ada", "readmit", "solo", subject, "promotion", "readmitted"),
        ("ada", "promote", "solo", "resource gamma", "promotion", "promoted"),
    ]


def test_the_two_snapshots_are_complete_and_differ_in_one_value(site: Site) -> None:
    row = site.promote()
    assert row.rollback == site.first
    assert row.promoted.source == "promotion"
    assert publishing.captured(row.rollback) == (CONFIG.encode(), PLACES.encode(), None)
    assert publishing.captured(row.promoted) == (AT_GAMMA.encode(), PLACES.encode(), None)


def test_a_tier_can_be_promoted_again_and_back(site: Site) -> None:
    first, second, third = site.promote(), site.promote(resource="delta"), site.promote(resource="solo")
    assert [row.outcome for row in (first, second, third)] == ["promoted"] * 3
    assert third.promoted == site.first
    assert site.place == "http://solo/v1"


def test_a_preview_changes_nothing(site: Site) -> None:
    site.control.run_request("solo")
    before = site.facts()
    found = promotion.preview(site.router, "solo", "gamma")
    assert [(change.scope.tier_id, change.keys) for change in found.plan.changes] == [("solo", ("base_url",))]
    assert [scope.tier_id for scope in found.not_at_rest] == ["solo"]
    assert site.facts() == before


@pytest.mark.parametrize(
    ("tier", "resource", "status", "code"),
    [
        ("solo", "absent", 404, "unknown_resource"),
        ("solo", "nowhere", 409, "resource_without_endpoint"),
        ("solo", "alpha", 409, "resource_in_use"),
        ("solo", "solo", 409, "resource_serves_already"),
        ("plain", "gamma", 409, "promotion_unverifiable"),
        ("healthy", "gamma", 409, "promotion_unverifiable"),
    ],
)
def test_what_can_not_be_promoted_is_refused_before_anything_changes(
    site: Site, tier: str, resource: str, status: int, code: str
) -> None:
    before = site.facts()
    for verb in (site.promote, lambda *words: promotion.preview(site.router, *words)):
        with refused() as refusal:
            verb(tier, resource)
        assert (refusal().status, refusal().code) == (status, code)
    assert site.facts() == before


def test_a_configuration_that_can_not_be_edited_in_place_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise EditError

    monkeypatch.setattr(promotion, "with_base_url", refuse)
    before = site.facts()
    with refused() as refusal:
        site.promote()
    assert (refusal().status, refusal().code) == (422, "config_not_editable")
    assert site.facts() == before


def test_another_process_that_owns_the_ledger_refuses_all_verbs(site: Site) -> None:
    site.stopped_at("rollback")
    site.router.owns_ledger = False
    for verb in (site.promote, site.resume, site.roll_back):
        with refused() as refusal:
            verb()
        assert refusal().code == "not_ledger_owner"


# --- And back ---------------------------------------------------------------------------------------------


def test_a_place_with_another_identity_is_left_again_at_once(site: Site) -> None:
    site.control.probes.answers["gamma"] = models("another-model")
    with refused() as refusal:
        site.promote()
    assert (refusal().status, refusal().code) == (409, "verification_failed")
    (row,) = Promotion.objects.all()
    assert steps(row) == [
        ("promote", "begun"),
        ("validate", "passed"),
        ("quiesce", "quiesced"),
        ("drain", "drained"),
        ("activate", "activated"),
        ("verify", "identity_mismatch"),
        ("restore", "restored"),
        ("reopen", "readmitted"),
    ]
    assert solved(row) == ("rolled_back", "verification_failed")
    shown: Any = refusal().extra["promotion"]
    assert (shown["id"], shown["state"], shown["code"]) == (row.pk, "rolled_back", "verification_failed")
    assert (site.place, site.state) == ("http://solo/v1", ("admitting", None, 0))
    assert site.router.availability.current("solo").reason == "identity_passed"
    assert trail()[-1] == ("ada", "promote", "solo", "resource gamma", "promotion", "rolled_back")


def test_a_drain_that_times_out_leaves_everything_as_it_was(site: Site) -> None:
    lease = site.control.run_request("solo")
    with refused() as refusal:
        site.promote(drain_timeout=0.05)
    assert refusal().code == "not_drained"
    (row,) = Promotion.objects.all()
    assert steps(row)[-2:] == [("drain", "timed_out"), ("reopen", "readmitted")]
    assert solved(row) == ("not_promoted", "not_drained")
    assert (site.place, site.state) == ("http://solo/v1", ("admitting", None, 1))
    assert lease.release()


def test_an_activation_at_work_refuses_a_promotion(site: Site) -> None:
    with site.router.operations.activating, refused() as refusal:
        site.promote()
    assert refusal().code == "activation_in_progress"
    (row,) = Promotion.objects.all()
    assert solved(row) == ("not_promoted", "activation_in_progress")


def test_a_promotion_at_work_refuses_another_and_its_resumption(site: Site) -> None:
    site.control.run_request("solo")
    with in_thread(lambda: site.promote(drain_timeout=PATIENCE)) as result:
        eventually(lambda: site.router.ledger.snapshot("solo").draining)
        for verb in (lambda: site.promote("dynamic"), site.resume, site.roll_back):
            with refused() as refusal:
                verb()
            assert refusal().code == "promotion_in_progress"
        site.control.end_requests()
        assert result().outcome == "promoted"


def test_a_configuration_activated_just_before_is_not_undone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading what is active and being alone, somebody else's activation went through."""
    begin = promotion._begin

    def late(*arguments: Any) -> Promotion:
        row = begin(*arguments)
        site.activate(CONFIG.replace("context_limit = 32768", "context_limit = 1024"))
        return row

    monkeypatch.setattr(promotion, "_begin", late)
    with refused() as refusal:
        site.promote()
    assert refusal().code == "promotion_superseded"
    assert site.router.active is not None
    assert site.router.active.config.tier("solo").context_limit == 1024
    assert (site.place, site.state) == ("http://solo/v1", ("admitting", None, 0))
    found = promotion.stopped(site.router)
    assert found is not None
    assert found.serving == "neither"


# --- Somebody else's quiesce ------------------------------------------------------------------------------


def test_what_somebody_had_quiesced_is_verified_and_stays_quiesced(site: Site) -> None:
    transitions.quiesce(site.router, "solo", reason="upgrade", actor="bob", through=Through.REST)
    row = site.promote()
    assert solved(row) == ("promoted", "")
    assert steps(row)[-2:] == [("activate", "activated"), ("verify", "identity_passed")]
    assert site.state == ("quiesced", "upgrade", 0)
    assert intent_rows() == [("solo", "", "upgrade", "bob")]


def test_what_somebody_had_quiesced_is_taken_back_when_its_identity_fails_and_stays_quiesced(
    site: Site,
) -> None:
    site.control.probes.answers["gamma"] = models("another-model")
    transitions.quiesce(site.router, "solo", reason="upgrade", actor="bob", through=Through.REST)
    with refused() as refusal:
        site.promote()
    assert refusal().code == "verification_failed"
    (row,) = Promotion.objects.all()
    assert solved(row) == ("rolled_back", "verification_failed")
    assert ("recover", "identity_mismatch") in steps(row)
    assert (site.place, site.state) == ("http://solo/v1", ("quiesced", "upgrade", 0))


def test_a_quiesce_that_comes_while_it_drains_stays(site: Site) -> None:
    site.control.run_request("solo")
    with in_thread(lambda: site.promote(drain_timeout=PATIENCE)) as result:
        eventually(lambda: site.router.ledger.snapshot("solo").draining)
        transitions.quiesce(site.router, "solo", reason="upgrade", actor="bob", through=Through.REST)
        site.control.end_requests()
        row = result()
    assert steps(row)[-1] == ("readmit", "left_quiesced")
    assert solved(row) == ("promoted", "")
    assert site.state == ("quiesced", "upgrade", 0)


def test_a_quiesce_that_comes_while_a_resumption_verifies_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.stopped_at("promoted")
    site.hold()
    probe = site.router.availability.probe_now

    def quiesced_meanwhile(*place: Any) -> Any:
        transitions.quiesce(site.router, "solo", reason="upgrade", actor="bob", through=Through.REST)
        return probe(*place)

    monkeypatch.setattr(site.router.availability, "probe_now", quiesced_meanwhile)
    row = site.resume()
    assert steps(row)[-1] == ("readmit", "left_quiesced")
    assert site.state == ("quiesced", "upgrade", 0)


# --- Stopped half-way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("serving", ["rollback", "promoted"])
@pytest.mark.parametrize("held", [False, True])
def test_a_stopped_promotion_is_resumed(site: Site, serving: str, held: bool) -> None:
    row = site.stopped_at(serving)
    if held:
        site.hold()
    found = promotion.stopped(site.router)
    assert found is not None
    assert (found.promotion, found.serving) == (row, serving)
    assert "anvil promote --resume" in found.next_step
    resumed = site.resume()
    assert resumed == row
    assert solved(row) == ("promoted", "")
    assert steps(resumed)[0] == ("resume", serving)
    assert ("verify", "identity_passed") in steps(resumed)
    assert (site.place, site.state) == ("http://gamma/v1", ("admitting", None, 0))
    assert promotion.stopped(site.router) is None
    assert trail()[-1] == ("eve", "promote", "solo", "resource gamma", "promotion", "promoted")


@pytest.mark.parametrize("serving", ["rollback", "promoted"])
@pytest.mark.parametrize("held", [False, True])
def test_a_stopped_promotion_is_rolled_back(site: Site, serving: str, held: bool) -> None:
    row = site.stopped_at(serving)
    if held:
        site.hold()
    rolled = site.roll_back()
    assert solved(row) == ("rolled_back", "")
    assert steps(rolled)[0] == ("roll_back", serving)
    assert (site.place, site.state) == ("http://solo/v1", ("admitting", None, 0))
    assert trail()[-1] == ("eve", "promote", "solo", "resource gamma", "promotion", "rolled_back")


@pytest.mark.parametrize("serving", ["rollback", "promoted"])
@pytest.mark.parametrize("held", [False, True])
def test_a_resumption_that_finds_another_identity_rolls_back_by_itself(
    site: Site, serving: str, held: bool
) -> None:
    row = site.stopped_at(serving)
    if held:
        site.hold()
    site.control.probes.answers["gamma"] = models("another-model")
    with refused() as refusal:
        site.resume()
    assert (refusal().status, refusal().code) == (409, "verification_failed")
    assert solved(row) == ("rolled_back", "verification_failed")
    assert (site.place, site.state) == ("http://solo/v1", ("admitting", None, 0))


def test_a_rollback_to_a_place_that_is_not_what_it_was_stays_stopped_where_it_serves(site: Site) -> None:
    row = site.stopped_at("promoted")
    site.control.probes.answers["solo"] = "refused"
    with refused() as refusal:
        site.roll_back()
    assert refusal().code == "verification_failed"
    assert solved(row) == ("", "")
    shown: Any = refusal().extra["promotion"]
    assert (shown["state"], shown["serving"]) == ("stopped", "promoted")
    assert (site.place, site.state) == ("http://gamma/v1", ("admitting", None, 0))


def test_a_tier_that_is_held_without_evidence_stays_quiesced_and_stopped(site: Site) -> None:
    row = site.stopped_at("rollback")
    site.hold()
    site.control.probes.answers["solo"] = models("another-model")
    with refused() as refusal:
        site.roll_back()
    assert (refusal().status, refusal().code) == (409, "promotion_unverified")
    assert solved(row) == ("", "")
    assert site.state == ("quiesced", "promotion", 0)
    site.control.probes.answers["solo"] = models("qwen")
    site.roll_back()
    assert solved(row) == ("rolled_back", "")
    assert site.state == ("admitting", None, 0)


def test_a_resumption_that_can_not_drain_stays_stopped(site: Site) -> None:
    row = site.stopped_at("rollback")
    site.control.run_request("solo")
    with refused() as refusal:
        promotion.resume(site.router, actor="eve", through=Through.REST, drain_timeout=0.05)
    assert refusal().code == "not_drained"
    assert solved(row) == ("", "")
    assert site.state == ("admitting", None, 1)


def test_without_a_stopped_promotion_there_is_nothing_to_resume(site: Site) -> None:
    site.promote()
    before = site.facts()
    for verb in (site.resume, site.roll_back):
        with refused() as refusal:
            verb()
        assert (refusal().status, refusal().code) == (409, "no_stopped_promotion")
    assert site.facts() == before


def test_a_promotion_that_was_finished_meanwhile_is_not_resumed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = site.stopped_at("rollback")
    check = promotion.check

    def late(router: Router) -> Promotion:
        found = check(router)
        Promotion.objects.filter(pk=row.pk).update(outcome="rolled_back")
        return found

    monkeypatch.setattr(promotion, "check", late)
    with refused() as refusal:
        site.resume()
    assert refusal().code == "no_stopped_promotion"
    assert site.place == "http://solo/v1"


def test_a_new_promotion_waits_for_what_becomes_of_a_stopped_one(site: Site) -> None:
    row = site.stopped_at("rollback")
    before = site.facts()
    with refused() as refusal:
        site.promote("dynamic")
    assert (refusal().status, refusal().code) == (409, "promotion_unfinished")
    shown: Any = refusal().extra["promotion"]
    assert (shown["id"], shown["state"]) == (row.pk, "stopped")
    assert site.facts() == before


def test_another_configuration_since_is_not_undone_by_a_resumption(site: Site) -> None:
    row = site.stopped_at("neither")
    with refused() as refusal:
        site.resume()
    assert refusal().code == "promotion_superseded"
    assert solved(row) == ("", "")
    assert site.place == "http://delta/v1"
    site.roll_back()
    assert solved(row) == ("superseded", "")
    assert (site.place, site.state) == ("http://delta/v1", ("admitting", None, 0))


def test_a_new_promotion_closes_one_that_was_superseded(site: Site) -> None:
    row = site.stopped_at("neither")
    new = site.promote(resource="gamma")
    assert solved(row) == ("superseded", "")
    assert solved(new) == ("promoted", "")


# --- A failing database -----------------------------------------------------------------------------------


def test_what_can_not_be_recorded_is_not_begun(site: Site) -> None:
    before = site.facts()
    with failing_database("routing_promotion"), refused() as refusal:
        site.promote()
    assert (refusal().status, refusal().code) == (503, "promotion_not_persisted")
    assert "secret" not in str(refusal())
    assert site.facts() == before


def test_a_step_that_can_not_be_recorded_does_not_stop_the_change(site: Site) -> None:
    """Only the outcome must be stored: without it the promotion counts as stopped, which is true."""
    row = site.stopped_at("rollback")
    with failing_database("routing_promotion"), refused() as refusal:
        site.resume()
    assert (refusal().status, refusal().code) == (503, "promotion_not_recorded")
    assert (site.place, site.state) == ("http://gamma/v1", ("admitting", None, 0))
    found = promotion.stopped(site.router)
    assert found is not None
    assert (found.promotion, found.serving) == (row, "promoted")
    site.resume()
    assert solved(row) == ("promoted", "")


def test_a_way_back_that_can_not_be_recorded_is_told_as_what_it_is(site: Site) -> None:
    row = site.stopped_at("rollback")
    site.control.probes.answers["gamma"] = models("another-model")
    with failing_database("routing_promotion"), refused() as refusal:
        site.resume()
    assert refusal().code == "verification_failed"
    assert (site.place, site.state) == ("http://solo/v1", ("admitting", None, 0))
    found = promotion.stopped(site.router)
    assert found is not None
    assert (found.promotion, found.serving) == (row, "rollback")


def test_a_journal_that_is_resumed_over_and_over_keeps_its_newest_steps(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "MAX_STEPS", 4)
    row = site.promote()
    assert [name for name, _ in steps(row)] == ["drain", "activate", "verify", "readmit"]


# --- The guard --------------------------------------------------------------------------------------------

UNSUPPORTED = "replica_lifecycle_unsupported"
UNAVAILABLE = "replica_lifecycle_configuration_unavailable"


class Spies:
    """Everything that a promotion does to the world, counted as it begins."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        router = site.router
        places: list[tuple[object, str]] = [
            (activation, "activate"),
            (publishing, "capture"),
            (publishing, "point_at"),
            (audit, "record"),
            (transitions, "install"),
            (Promotion.objects, "create"),
            (router, "install"),
            (router.ledger, "quiesce"),
            (router.ledger, "readmit"),
            (router.ledger, "reconfigure"),
            (router.availability, "invalidate"),
            (router.availability, "probe_now"),
            (router.operations.drains, "start"),
            (promotion, "_only_one"),
            (promotion._Run, "_note"),
        ]
        for owner, name in places:
            monkeypatch.setattr(owner, name, self._spy(name, getattr(owner, name)))

    def _spy(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return real(*arguments, **options)

        return called


def without_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "refuse_replica_tiers", lambda config, affected: None)


@pytest.mark.requirement("Q-T012", "Q-T012.1")
class TestGuard:
    @pytest.mark.parametrize(("tier", "code"), [("chat", UNSUPPORTED), ("absent", UNAVAILABLE)])
    def test_a_promotion_is_refused_at_its_entry_with_no_mutation(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, tier: str, code: str
    ) -> None:
        before, spies = site.facts(), Spies(site, monkeypatch)
        for verb in (site.promote, lambda *words: promotion.preview(site.router, *words)):
            with refused() as refusal:
                verb(tier, "gamma")
            assert (refusal().status, refusal().code, str(refusal())) == (409, code, code)
            assert refusal().__cause__ is None
        assert spies.calls == []
        assert site.facts() == before

    def test_a_promotion_without_an_active_configuration_is_refused(self, site: Site) -> None:
        active, site.router.active = site.router.active, None
        try:
            with refused() as refusal:
                site.promote()
        finally:
            site.router.active = active
        assert refusal().code == UNAVAILABLE

    @pytest.mark.parametrize(
        "resource", ["absent", "alpha", "nowhere"], ids=["no resource", "a member", "no endpoint"]
    )
    def test_a_replica_tier_is_told_before_anything_about_its_resource(
        self, site: Site, resource: str
    ) -> None:
        """However many endpoints seem to back it: none, one or several."""
        with refused() as refusal:
            site.promote("chat", resource)
        assert refusal().code == UNSUPPORTED

    @pytest.mark.parametrize("verb", ["resume", "roll_back"])
    @pytest.mark.parametrize("serving", ["rollback", "promoted"])
    @pytest.mark.parametrize("replica_side", ["promoted", "rollback"])
    def test_a_resumption_and_a_rollback_are_refused_with_a_replica_tier_on_either_side(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, verb: str, serving: str, replica_side: str
    ) -> None:
        row = site.stopped_at(serving, **{replica_side: SOLO_REPLICATED})
        active, before = site.router.active, list(Promotion.objects.values())
        spies = Spies(site, monkeypatch)
        with refused() as refusal:
            getattr(site, verb)()
        assert (refusal().status, refusal().code) == (409, UNSUPPORTED)
        assert spies.calls == []
        assert site.router.active is active
        assert list(Promotion.objects.values()) == before
        assert solved(row) == ("", "")

    @pytest.mark.parametrize("verb", ["resume", "roll_back"])
    @pytest.mark.parametrize("serving", ["rollback", "promoted"])
    def test_taking_the_guard_out_lets_the_same_order_mutate(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, verb: str, serving: str
    ) -> None:
        """The negative control of the test before this one."""
        replica_side = "rollback" if verb == "roll_back" else "promoted"
        site.stopped_at(serving, **{replica_side: SOLO_REPLICATED})
        without_guard(monkeypatch)
        spies = Spies(site, monkeypatch)
        with suppress(Refused):
            getattr(site, verb)()
        assert {"_only_one", "_note", "probe_now", "record"} <= set(spies.calls)

    def test_taking_the_guard_out_of_the_entry_lets_the_sentinel_through(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control of the entry: the empty sentinel reaches what reads URLs."""
        without_guard(monkeypatch)
        with pytest.raises(ValueError, match="not an accepted URL"):
            site.promote("chat")

    @pytest.mark.parametrize("verb", ["resume", "roll_back"])
    def test_a_configuration_that_can_no_longer_be_loaded_is_not_one_of_direct_tiers(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        row = site.stopped_at("rollback")
        RouterSnapshot.objects.filter(pk=row.promoted_id).update(config_bytes=b"not = a configuration")
        spies = Spies(site, monkeypatch)
        with refused() as refusal:
            getattr(site, verb)()
        assert (refusal().status, refusal().code) == (409, UNAVAILABLE)
        assert "configuration" not in str(refusal()).replace(UNAVAILABLE, "")
        assert spies.calls == []

    def test_it_is_asked_about_both_configurations_and_the_affected_tier_alone(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`chat` is a replica tier in all of them, and stands in nobody's way."""
        asked: list[tuple[str, tuple[str, ...]]] = []
        real = guard.refuse_replica_tiers

        def spy(config: Any, affected: tuple[str, ...]) -> None:
            asked.append((config.tier("solo").base_url, affected))
            real(config, affected)

        monkeypatch.setattr(guard, "refuse_replica_tiers", spy)
        site.promote()
        new, old = ("http://gamma/v1", ("solo",)), ("http://solo/v1", ("solo",))
        # At the entry what is active and what was made of it; then before the way back that might follow.
        assert asked == [old, new, new, old]
        asked.clear()
        site.stopped_at("promoted")
        site.control.probes.answers["gamma"] = models("another-model")
        with refused():
            site.resume()
        # At the entry, at the recovery by itself, and before the way back from that.
        assert asked == [new, old] * 3

    def test_a_refusal_before_the_way_back_stops_everything_where_it_is(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.control.probes.answers["gamma"] = models("another-model")
        spies = Spies(site, monkeypatch)
        probe = site.router.availability.probe_now

        def refuse_from_now_on(*place: Any) -> Any:
            def refuse(config: Any, affected: Any) -> None:
                raise guard.ReplicaLifecycleUnsupported

            monkeypatch.setattr(guard, "refuse_replica_tiers", refuse)
            return probe(*place)

        monkeypatch.setattr(site.router.availability, "probe_now", refuse_from_now_on)
        with refused() as refusal:
            site.promote()
        assert refusal().code == UNSUPPORTED
        assert spies.calls[-2:] == ["probe_now", "_note"]
        assert (site.place, site.state) == ("http://gamma/v1", ("quiesced", "promotion", 0))
        found = promotion.stopped(site.router)
        assert found is not None
        assert found.serving == "promoted"

    def test_a_refusal_before_a_recovery_changes_nothing_more(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.stopped_at("promoted")
        site.control.probes.answers["gamma"] = models("another-model")
        spies = Spies(site, monkeypatch)
        calls = 0
        real = guard.refuse_replica_tiers

        def refuse_the_third(config: Any, affected: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise guard.ReplicaLifecycleUnsupported
            real(config, affected)

        monkeypatch.setattr(guard, "refuse_replica_tiers", refuse_the_third)
        with refused() as refusal:
            site.resume()
        assert refusal().code == UNSUPPORTED
        assert spies.calls == ["_only_one", "_note", "probe_now", "_note"]
        assert (site.place, site.state) == ("http://gamma/v1", ("admitting", None, 0))


def test_only_one_promotion_is_without_an_outcome(site: Site) -> None:
    site.stopped_at("rollback")
    with pytest.raises(IntegrityError):
        site.stopped_at("rollback")


def test_the_lock_of_promotions_is_free_after_each_of_their_ends(site: Site) -> None:
    site.control.probes.answers["gamma"] = models("another-model")
    with refused():
        site.promote()
    assert not site.router.operations.promoting.locked()
    assert not site.router.operations.activating.locked()
    assert not any(thread.name.startswith("anvil-verify") for thread in threading.enumerate())
