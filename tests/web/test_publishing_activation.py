"""Activation in place: what it needs, what it leaves alone, and how it goes back (contract 1, activation)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection

from admission.models import AdmissionIntent
from routing import activation, publishing, transitions
from routing.access import ANONYMOUS
from routing.activation import REASON, Activated, Step
from routing.audit import Through
from routing.dialects import DIALECTS
from routing.gateway import Caller
from routing.models import ActiveSnapshot, AuditEntry, RouterSnapshot
from routing.refusals import Refused
from routing.upstream import ConnectFailure
from tests.unit.routing.availability_support import models
from tests.web.control_support import (
    CONFIG,
    ENVIRON,
    PATIENCE,
    TOPOLOGY,
    TRANSITION,
    Control,
    failing_database,
    in_thread,
    intent_rows,
)
from tests.web.publishing_support import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 1 activation"),
]

SOLO_ELSEWHERE = CONFIG.replace('"http://solo/v1"', '"http://solo-2/v1"')
WITHOUT_SOLO = CONFIG.replace('"llm.solo" = "solo"\n', "").replace(
    CONFIG[CONFIG.index('[[router.tiers]]\nid = "solo"') : CONFIG.index('[[router.tiers]]\nid = "plain"')], ""
)
MEMBER_C = """
[[router.tiers.replicas]]
id = "member-c"
base_url = "http://gamma/v1"
host_id = "gpu-host"
resource_id = "gamma"
qualification_ref = "bench:run-1"
max_concurrency = 2
"""
WITH_C = CONFIG.replace('[[router.tiers]]\nid = "solo"', MEMBER_C + '\n[[router.tiers]]\nid = "solo"')
C_ELSEWHERE = WITH_C.replace("gamma", "delta")
PLACES = TOPOLOGY + "".join(
    f"""
[[resources]]
id = "{name}"
host = "gpu-host"
role = "llm"
endpoint = "http://{name}/v1"
"""
    for name in ("gamma", "delta")
)


class Site:
    """The control plane of a test, with what it serves stored as the active snapshot."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.router = control.router
        for host in ("solo-2", "gamma", "delta"):
            control.probes.answers[host] = models("qwen")
        self.first = self.capture(CONFIG)
        activation.activate(self.router, self.first, actor="ada", through=Through.REST)
        AuditEntry.objects.all().delete()

    def capture(self, config: str) -> RouterSnapshot:
        row, _ = publishing.capture(
            config.encode(), PLACES.encode(), None, source=RouterSnapshot.Source.REST, actor="ada"
        )
        return row

    def activate(self, config: str | RouterSnapshot, **options: Any) -> Activated:
        row = self.capture(config) if isinstance(config, str) else config
        return activation.activate(self.router, row, actor="ada", through=Through.REST, **options)

    def refused(self, config: str | RouterSnapshot, **options: Any) -> Refused:
        with pytest.raises(Refused) as caught:
            self.activate(config, **options)
        return caught.value

    def quiesce(self, *scope: str) -> None:
        transitions.quiesce(self.router, *scope, reason="maintenance", actor="bob", through=Through.REST)

    def state(self, tier_id: str, member_id: str | None = None) -> tuple[str, str | None, int]:
        reading: Any = self.router.ledger.snapshot(tier_id)
        if member_id is not None:
            (reading,) = (member for member in reading.members if member.member_id == member_id)
        return reading.state, reading.reason, reading.active_requests

    def ready(self, tier_id: str, member_id: str | None = None) -> str | None:
        """The readiness that is held; None for a scope that is cold."""
        result = self.router.availability.cached(tier_id, member_id)
        return None if result is None else result.reason

    @property
    def active(self) -> int | None:
        """The snapshot that is served, which the pointer must agree with."""
        pointed = ActiveSnapshot.objects.values_list("snapshot_id", flat=True).first()
        assert self.router.active is not None
        assert pointed == self.router.active.snapshot_id
        return pointed


@pytest.fixture
def site(control: Control) -> Site:
    return Site(control)


def steps(found: Activated | Refused) -> list[tuple[str, ...]]:
    """Each step as its words: name, tier, member, outcome; absent ones left out."""
    if isinstance(found, Activated):
        rows: Any = [step.as_json() for step in found.steps]
    else:
        rows = found.extra["steps"]
    return [tuple(str(word) for word in row.values() if word is not None) for row in rows]


def trail() -> list[tuple[str, ...]]:
    fields = ("actor", "through", "action", "subject", "result")
    return list(AuditEntry.objects.order_by("id").values_list(*fields))


def closed_and_opened(row: RouterSnapshot) -> list[tuple[str, ...]]:
    """The entries of a scope that an activation of ``row`` quiesced and readmitted."""
    subject = f"activation of snapshot {row.pk}"
    return [
        ("ada", "rest", "quiesce", subject, "quiesced"),
        ("ada", "rest", "readmit", subject, "readmitted"),
    ]


# --- What needs nothing -----------------------------------------------------------------------------------


def test_settings_aliases_and_limits_change_under_running_requests(site: Site) -> None:
    running = [site.control.run_request("chat", "member-a"), site.control.run_request("solo")]
    asked = len(site.control.probes.asked)
    changed = (
        CONFIG.replace('"llm.solo" = "solo"', '"llm.other" = "chat"')
        .replace("max_concurrency = 3", "max_concurrency = 1")
        .replace("context_limit = 32768", "context_limit = 16384")
        .replace("[router]\n", "[router]\nrelay_timeout = 7.0\n")
    )
    done = site.activate(changed)
    assert steps(done) == [("validate", "passed"), ("activate", "activated")]
    assert site.active == done.snapshot_id
    assert done.previous_id == site.first.pk
    assert site.state("solo") == ("admitting", None, 1)
    assert site.router.ledger.acquire("solo") is None
    assert site.state("chat", "member-a") == ("admitting", None, 1)
    assert site.ready("chat", "member-a") == "identity_passed"
    assert len(site.control.probes.asked) == asked
    assert [lease.release() for lease in running] == [True, True]
    lease = site.router.ledger.acquire("solo")
    assert lease is not None
    lease.release()
    assert site.router.active is not None
    assert dict(site.router.active.config.model_routes) == {"llm.chat": "chat", "llm.other": "chat"}
    assert trail() == [("ada", "rest", "activate", f"snapshot {done.snapshot_id}", "activated")]


def test_a_member_is_added_while_its_peers_run_and_serves_after_its_own_first_probe(site: Site) -> None:
    site.control.run_request("chat", "member-a")
    site.control.run_request("chat", "member-b")
    readiness = {"member-a": True, "member-b": True, "member-c": True}
    site.control.probes.answers["gamma"] = "refused"
    site.activate(WITH_C)
    assert site.state("chat") == ("admitting", None, 2)
    assert site.ready("chat", "member-a") == "identity_passed"
    results = site.router.availability.readiness("chat")
    assert {name: result.available for name, result in results.items()} == {
        "member-a": True,
        "member-b": True,
        "member-c": False,
    }
    site.control.probes.answers["gamma"] = models("qwen")
    assert site.router.availability.probe_now("chat", "member-c").reason == "identity_passed"
    lease = site.router.ledger.acquire_member("chat", readiness)
    assert lease is not None
    assert lease.member_id == "member-c"
    lease.release()


def test_a_member_gets_another_ceiling_while_it_runs_more_than_that(site: Site) -> None:
    running = [site.control.run_request("chat", "member-a") for _ in range(2)]
    site.activate(CONFIG.replace("max_concurrency = 2", "max_concurrency = 1", 1))
    only_a = {"member-a": True, "member-b": False}
    assert site.state("chat", "member-a") == ("admitting", None, 2)
    assert site.router.ledger.acquire_member("chat", only_a) is None
    running[0].release()
    assert site.router.ledger.acquire_member("chat", only_a) is None
    running[1].release()
    assert site.router.ledger.acquire_member("chat", only_a) is not None


# --- What must be at rest ---------------------------------------------------------------------------------


@pytest.mark.requirement("Q-T015")
@pytest.mark.parametrize("running", [0, 2])
def test_a_changed_tier_that_is_open_is_refused_and_nothing_changes(site: Site, running: int) -> None:
    for _ in range(running):
        site.control.run_request("solo")
    row = site.capture(SOLO_ELSEWHERE)
    before = site.control.facts()
    refusal = site.refused(row)
    assert (refusal.status, refusal.code) == (409, "not_drained")
    assert refusal.extra["scopes"] == [
        {"tier_id": "solo", "member_id": None, "state": "admitting", "active_requests": running}
    ]
    assert site.control.facts() == before
    assert site.active == site.first.pk


def test_a_quiesced_tier_that_still_runs_a_request_is_refused(site: Site) -> None:
    lease = site.control.run_request("solo")
    site.quiesce("solo")
    refusal = site.refused(SOLO_ELSEWHERE)
    assert refusal.extra["scopes"] == [
        {"tier_id": "solo", "member_id": None, "state": "quiesced", "active_requests": 1}
    ]
    lease.release()
    site.activate(SOLO_ELSEWHERE)


def test_what_was_quiesced_stays_quiesced_until_it_is_readmitted_at_its_new_place(site: Site) -> None:
    site.quiesce("solo")
    site.activate(SOLO_ELSEWHERE)
    assert site.state("solo") == ("quiesced", "maintenance", 0)
    assert site.ready("solo") is None
    result = transitions.readmit(site.router, "solo", actor="bob", through=Through.REST)
    assert result["readmitted"] is True
    assert site.control.probes.asked[-1] == "solo-2"


def test_a_member_is_removed_while_its_peers_run(site: Site) -> None:
    site.activate(WITH_C)
    site.control.run_request("chat", "member-a")
    site.control.run_request("chat", "member-c")
    refusal = site.refused(CONFIG)
    assert refusal.extra["scopes"] == [
        {"tier_id": "chat", "member_id": "member-c", "state": "admitting", "active_requests": 1}
    ]
    site.quiesce("chat", "member-c")
    assert site.refused(CONFIG).extra["scopes"] == [
        {"tier_id": "chat", "member_id": "member-c", "state": "quiesced", "active_requests": 1}
    ]
    site.control.end_requests()
    lease = site.control.run_request("chat", "member-a")
    site.activate(site.first)
    assert site.state("chat") == ("admitting", None, 1)
    assert lease.release()


@pytest.mark.requirement("contract 3 intent", "case 19")
def test_the_intents_of_members_and_tiers_that_come_back_hold_before_anything_opens(site: Site) -> None:
    site.activate(WITH_C)
    site.quiesce("chat", "member-c")
    site.quiesce("solo")
    site.activate(WITHOUT_SOLO)
    assert intent_rows() == [("chat", "member-c", "maintenance", "bob"), ("solo", "", "maintenance", "bob")]
    site.activate(WITH_C)
    assert site.state("chat", "member-c") == ("quiesced", "maintenance", 0)
    assert site.state("solo") == ("quiesced", "maintenance", 0)
    assert site.router.ledger.acquire("solo") is None


# --- One operation ----------------------------------------------------------------------------------------


class Watch:
    """Lets a test wait for a step of an activation that runs in another thread."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def __call__(self, step: Step) -> None:
        with self._changed:
            self._seen.append((step.name, step.outcome))
            self._changed.notify_all()

    def await_step(self, name: str, outcome: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: (name, outcome) in self._seen, PATIENCE)


def test_quiesce_drain_activate_verify_and_readmit_are_one_operation(site: Site) -> None:
    lease = site.control.run_request("solo")
    elsewhere = site.control.run_request("chat", "member-a")
    watch = Watch()
    with in_thread(lambda: site.activate(SOLO_ELSEWHERE, drain_timeout=PATIENCE, on_step=watch)) as result:
        watch.await_step("quiesce", "quiesced")
        assert site.state("solo") == ("quiesced", REASON, 1)
        assert site.router.ledger.acquire("solo") is None
        lease.release()
        done = result()
    assert steps(done) == [
        ("validate", "passed"),
        ("quiesce", "solo", "quiesced"),
        ("drain", "solo", "drained"),
        ("activate", "activated"),
        ("verify", "solo", "identity_passed"),
        ("readmit", "solo", "readmitted"),
    ]
    assert site.state("solo") == ("admitting", None, 0)
    assert site.ready("solo") == "identity_passed"
    assert site.control.probes.asked[-1] == "solo-2"
    assert site.active == done.snapshot_id
    assert intent_rows() == []
    assert elsewhere.release()


def test_members_are_drained_and_verified_each_for_itself(site: Site) -> None:
    site.activate(WITH_C)
    done = site.activate(C_ELSEWHERE, drain_timeout=PATIENCE)
    assert steps(done) == [
        ("validate", "passed"),
        ("quiesce", "chat", "member-c", "quiesced"),
        ("drain", "chat", "member-c", "drained"),
        ("activate", "activated"),
        ("verify", "chat", "member-c", "identity_passed"),
        ("readmit", "chat", "member-c", "readmitted"),
    ]
    done = site.activate(CONFIG, drain_timeout=PATIENCE)
    assert steps(done)[-2:] == [("drain", "chat", "member-c", "drained"), ("activate", "activated")]
    assert intent_rows() == []


def test_a_drain_that_times_out_undoes_the_quiesce(site: Site) -> None:
    site.control.run_request("solo")
    row = site.capture(SOLO_ELSEWHERE)
    refusal = site.refused(row, drain_timeout=0.05)
    assert (refusal.status, refusal.code) == (409, "not_drained")
    assert refusal.extra["scopes"] == [
        {"tier_id": "solo", "member_id": None, "state": "quiesced", "active_requests": 1}
    ]
    assert steps(refusal) == [
        ("validate", "passed"),
        ("quiesce", "solo", "quiesced"),
        ("drain", "solo", "timed_out"),
        ("reopen", "solo", "readmitted"),
    ]
    assert site.state("solo") == ("admitting", None, 1)
    assert site.active == site.first.pk
    assert trail() == closed_and_opened(row)


def test_a_failed_verification_brings_the_previous_snapshot_back_and_reopens_it(site: Site) -> None:
    site.control.probes.answers["solo-2"] = models("another-model")
    row = site.capture(SOLO_ELSEWHERE)
    refusal = site.refused(row, drain_timeout=PATIENCE)
    assert (refusal.status, refusal.code) == (409, "verification_failed")
    assert refusal.extra["scopes"] == [{"tier_id": "solo", "member_id": None, "reason": "identity_mismatch"}]
    assert steps(refusal) == [
        ("validate", "passed"),
        ("quiesce", "solo", "quiesced"),
        ("drain", "solo", "drained"),
        ("activate", "activated"),
        ("verify", "solo", "identity_mismatch"),
        ("restore", "restored"),
        ("reopen", "solo", "readmitted"),
    ]
    assert site.active == site.first.pk
    assert site.state("solo") == ("admitting", None, 0)
    assert site.router.availability.current("solo").reason == "identity_passed"
    assert site.control.probes.asked[-1] == "solo"
    quiesced, readmitted = closed_and_opened(row)
    assert trail() == [
        quiesced,
        ("ada", "rest", "activate", f"snapshot {row.pk}", "activated"),
        ("ada", "rest", "activate", f"snapshot {site.first.pk}", "restored"),
        readmitted,
    ]


def test_one_verified_member_is_enough_for_a_tier(site: Site) -> None:
    site.control.probes.answers["alpha"] = "refused"
    other = CONFIG.replace('replica_strategy = "capacity"', 'replica_strategy = "round_robin"')
    done = site.activate(other, drain_timeout=PATIENCE)
    assert ("verify", "chat", "identity_passed") in steps(done)
    assert site.ready("chat", "member-a") == "identity_transport_refused"
    assert site.state("chat") == ("admitting", None, 0)


def test_a_tier_whose_members_are_all_quiesced_has_nothing_to_verify_and_opens(site: Site) -> None:
    for member in ("member-a", "member-b"):
        site.quiesce("chat", member)
    other = CONFIG.replace('replica_strategy = "capacity"', 'replica_strategy = "round_robin"')
    done = site.activate(other, drain_timeout=PATIENCE)
    assert ("verify", "chat", "no_open_member") in steps(done)
    assert site.state("chat") == ("admitting", None, 0)
    assert site.state("chat", "member-a") == ("quiesced", "maintenance", 0)


@pytest.mark.parametrize(
    ("tier", "outcome"), [("plain", "availability_not_configured"), ("healthy", "health_passed")]
)
def test_a_tier_without_identity_settings_serves_after_its_activation(
    site: Site, tier: str, outcome: str
) -> None:
    site.control.probes.answers[f"{tier}-2"] = (200, b"")
    done = site.activate(
        CONFIG.replace(f'"http://{tier}/v1"', f'"http://{tier}-2/v1"'), drain_timeout=PATIENCE
    )
    assert steps(done)[-2:] == [("verify", tier, outcome), ("readmit", tier, "readmitted")]
    assert site.router.availability.current(tier).available
    assert site.router.ledger.acquire(tier) is not None


def test_what_somebody_had_quiesced_is_neither_verified_nor_opened(site: Site) -> None:
    site.control.probes.answers["solo-2"] = models("another-model")
    site.quiesce("solo")
    done = site.activate(SOLO_ELSEWHERE, drain_timeout=PATIENCE)
    assert steps(done) == [
        ("validate", "passed"),
        ("quiesce", "solo", "already_quiesced"),
        ("drain", "solo", "drained"),
        ("activate", "activated"),
    ]
    assert site.state("solo") == ("quiesced", "maintenance", 0)


def test_what_somebody_quiesces_meanwhile_is_left_quiesced(site: Site) -> None:
    lease = site.control.run_request("solo")
    watch = Watch()
    with in_thread(lambda: site.activate(SOLO_ELSEWHERE, drain_timeout=PATIENCE, on_step=watch)) as result:
        watch.await_step("quiesce", "quiesced")
        site.quiesce("solo")
        lease.release()
        done = result()
    assert steps(done)[-1] == ("readmit", "solo", "left_quiesced")
    assert site.state("solo") == ("quiesced", "maintenance", 0)
    assert intent_rows() == [("solo", "", "maintenance", "bob")]


def test_what_somebody_readmits_meanwhile_is_not_at_rest(site: Site) -> None:
    site.control.run_request("solo")
    watch = Watch()

    def run() -> Refused:
        return site.refused(SOLO_ELSEWHERE, drain_timeout=PATIENCE, on_step=watch)

    with in_thread(run) as result:
        watch.await_step("quiesce", "quiesced")
        drains = site.router.operations.drains
        eventually(lambda: drains.latest("solo", None) is not None)
        transitions.readmit(site.router, "solo", actor="bob", through=Through.REST)
        refusal = result()
    assert refusal.code == "not_drained"
    assert ("drain", "solo", "reopened") in steps(refusal)
    assert site.state("solo") == ("admitting", None, 1)


def test_a_member_of_a_tier_that_somebody_has_quiesced_is_waited_for_and_opened_by_itself(site: Site) -> None:
    site.activate(WITH_C)
    lease = site.control.run_request("chat", "member-c")
    site.quiesce("chat")
    watch = Watch()
    with in_thread(lambda: site.activate(C_ELSEWHERE, drain_timeout=PATIENCE, on_step=watch)) as result:
        watch.await_step("quiesce", "quiesced")
        lease.release()
        done = result()
    assert steps(done)[1:3] == [
        ("quiesce", "chat", "member-c", "quiesced"),
        ("drain", "chat", "member-c", "drained"),
    ]
    assert site.state("chat") == ("quiesced", "maintenance", 0)
    assert site.state("chat", "member-c") == ("admitting", None, 0)


def test_a_tier_takes_another_shape_and_back(site: Site) -> None:
    start, end = CONFIG.index('[[router.tiers]]\nid = "chat"'), CONFIG.index('[[router.tiers]]\nid = "solo"')
    direct = CONFIG[:start] + CONFIG[end:].replace('id = "solo"', 'id = "chat"', 1)
    direct = direct.replace('"llm.solo" = "solo"\n', "")
    done = site.activate(direct, drain_timeout=PATIENCE)
    assert ("verify", "chat", "identity_passed") in steps(done)
    assert site.state("chat") == ("admitting", None, 0)
    lease = site.router.ledger.acquire("chat")
    assert lease is not None
    lease.release()
    done = site.activate(site.first, drain_timeout=PATIENCE)
    assert ("readmit", "chat", "readmitted") in steps(done)
    assert site.state("chat", "member-b") == ("admitting", None, 0)
    assert site.ready("chat", "member-b") == "identity_passed"


def test_somebody_elses_drain_that_is_shorter_does_not_end_the_wait(site: Site) -> None:
    lease = site.control.run_request("solo")
    site.quiesce("solo")
    short = transitions.drain(site.router, "solo", timeout=0.05, actor="bob", through=Through.REST)
    watch = Watch()
    with in_thread(lambda: site.activate(SOLO_ELSEWHERE, drain_timeout=PATIENCE, on_step=watch)) as result:
        watch.await_step("quiesce", "already_quiesced")
        assert short.wait(PATIENCE)
        lease.release()
        done = result()
    assert ("drain", "solo", "drained") in steps(done)


def test_somebody_elses_drain_of_the_scope_is_joined(site: Site) -> None:
    lease = site.control.run_request("solo")
    site.quiesce("solo")
    transitions.drain(site.router, "solo", timeout=PATIENCE, actor="bob", through=Through.REST)
    watch = Watch()
    with in_thread(lambda: site.activate(SOLO_ELSEWHERE, drain_timeout=PATIENCE, on_step=watch)) as result:
        watch.await_step("quiesce", "already_quiesced")
        lease.release()
        done = result()
    assert ("drain", "solo", "drained") in steps(done)


# --- One at a time ----------------------------------------------------------------------------------------


def test_there_is_one_activation_at_a_time(site: Site) -> None:
    lease = site.control.run_request("solo")
    row = site.capture(SOLO_ELSEWHERE)
    job = activation.start(site.router, row, actor="ada", through=Through.CONSOLE, drain_timeout=PATIENCE)
    assert activation.latest_job(site.router) is job
    refusal = site.refused(site.first)
    assert (refusal.status, refusal.code) == (409, "activation_in_progress")
    assert job.outcome is None
    lease.release()
    assert job.wait(PATIENCE)
    assert isinstance(job.outcome, Activated)
    assert job.steps == job.outcome.steps
    assert site.active == row.pk
    site.activate(CONFIG, drain_timeout=PATIENCE)


def test_a_refused_job_says_so_and_lets_the_next_one_in(site: Site) -> None:
    job = activation.start(site.router, site.capture(SOLO_ELSEWHERE), actor="ada", through=Through.CONSOLE)
    assert job.wait(PATIENCE)
    assert isinstance(job.outcome, Refused)
    assert job.outcome.code == "not_drained"
    assert site.active == site.first.pk
    site.activate(site.first)


# --- Refusals and failures --------------------------------------------------------------------------------


@pytest.mark.requirement("Q-R004", "Q-T015")
def test_a_snapshot_that_does_not_pass_any_more_is_refused_before_any_step(site: Site) -> None:
    row = site.capture(SOLO_ELSEWHERE)
    row.config_bytes = row.config_bytes.replace(b"alpha", b"elsewhere")
    row.save()
    before = site.control.facts()
    refusal = site.refused(row, drain_timeout=PATIENCE)
    assert (refusal.status, refusal.code) == (422, "replica_resource_missing")
    assert refusal.__context__ is None
    assert steps(refusal) == []
    assert site.control.facts() == before
    assert site.active == site.first.pk


def test_only_the_owner_of_the_ledger_activates(site: Site) -> None:
    site.router.owns_ledger = False
    refusal = site.refused(site.first)
    assert (refusal.status, refusal.code) == (503, "not_ledger_owner")


@pytest.mark.parametrize("table", ["routing_activesnapshot", "routing_auditentry"])
def test_a_pointer_that_can_not_be_moved_changes_nothing(site: Site, table: str) -> None:
    row = site.capture(SOLO_ELSEWHERE)
    with failing_database(table):
        refusal = site.refused(row, drain_timeout=PATIENCE)
    assert (refusal.status, refusal.code) == (503, "activation_not_persisted")
    assert steps(refusal)[-1] == ("reopen", "solo", "readmitted")
    assert site.active == site.first.pk
    assert site.state("solo") == ("admitting", None, 0)
    # Entries of what has happened already are lost with a table that fails, and cost nothing else.
    assert trail() == ([] if table == "routing_auditentry" else closed_and_opened(row))


def test_a_stored_intent_that_breaks_the_grammar_stops_the_swap(site: Site) -> None:
    AdmissionIntent.objects.create(tier_id="9", reason="maintenance", actor="nobody")
    refusal = site.refused(WITH_C)
    assert (refusal.status, refusal.code) == (503, "activation_not_persisted")
    assert site.active == site.first.pk


@contextmanager
def failing_update(number: int) -> Iterator[None]:
    """The statement that moves the pointer for the ``number``-th time fails, and every one after it."""
    moves = 0

    def refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal moves
        if sql.startswith(("UPDATE", "INSERT")) and "routing_activesnapshot" in sql:
            moves += 1
            if moves >= number:
                raise OperationalError("disk I/O error: /secret/place")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        yield


def test_a_pointer_that_can_not_be_moved_back_leaves_what_failed_quiesced(site: Site) -> None:
    site.control.probes.answers["solo-2"] = "refused"
    row = site.capture(SOLO_ELSEWHERE)
    with failing_update(2):
        refusal = site.refused(row, drain_timeout=PATIENCE)
    assert (refusal.status, refusal.code) == (503, "restore_not_persisted")
    assert site.active == row.pk
    assert site.state("solo") == ("quiesced", REASON, 0)
    site.control.probes.answers["solo-2"] = models("qwen")
    transitions.readmit(site.router, "solo", actor="bob", through=Through.REST)
    assert site.state("solo") == ("admitting", None, 0)


def test_a_swap_that_fails_leaves_pointer_and_process_at_the_previous_snapshot(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise LookupError("made for this test")

    row = site.capture(WITH_C)
    with monkeypatch.context() as patched:
        patched.setattr(site.router, "_pressure_factory", broken)
        with pytest.raises(LookupError):
            site.activate(row, drain_timeout=PATIENCE)
    assert site.active == site.first.pk
    assert [result for *_, result in trail()] == ["activated", "restored"]
    site.activate(row)
    assert site.active == row.pk


@pytest.mark.requirement("Q-T015")
def test_whenever_the_process_ends_the_pointer_names_a_snapshot_that_passes(site: Site) -> None:
    """Either the old or the new one; a start reads no more than that and the intents."""
    row = site.capture(SOLO_ELSEWHERE)
    seen: list[tuple[str, int]] = []

    def look(step: Step) -> None:
        pointed = publishing.active_row()
        assert pointed is not None
        publishing.load(pointed)
        assert not AdmissionIntent.objects.exists()
        seen.append((step.name, pointed.pk))

    site.activate(row, drain_timeout=PATIENCE, on_step=look)
    assert seen == [
        ("validate", site.first.pk),
        ("quiesce", site.first.pk),
        ("drain", site.first.pk),
        ("activate", row.pk),
        ("verify", row.pk),
        ("readmit", row.pk),
    ]


# --- Back and forth ---------------------------------------------------------------------------------------


def test_rolling_back_is_activating_an_older_snapshot(site: Site) -> None:
    site.activate(WITH_C)
    site.quiesce("chat", "member-c")
    done = site.activate(site.first)
    assert done.snapshot_id == site.first.pk
    assert site.active == site.first.pk
    assert site.router.active is not None
    assert site.router.active.config.tier("chat").member_ids == ("member-a", "member-b")


def test_a_request_that_meets_the_swap_half_way_is_sent_to_the_new_place(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read readiness under the old configuration, and reserves when the new one is active."""
    router = site.router
    current = router.availability.current
    asked: list[str] = []

    def swap_after_the_first_reading(tier_id: str) -> Any:
        result = current(tier_id)
        if not asked:
            asked.append("swap")
            site.activate(SOLO_ELSEWHERE, drain_timeout=PATIENCE)
        return result

    def connect(endpoint: Any, **options: object) -> None:
        asked.append(endpoint.host)
        raise ConnectFailure("refused")

    monkeypatch.setattr(router.availability, "current", swap_after_the_first_reading)
    monkeypatch.setattr(router.pool, "acquire", connect)
    caller = Caller(
        principal=ANONYMOUS,
        request_id="r-1",
        run_id=None,
        task_id=None,
        arrived=time.monotonic(),
        connection=None,
        leave=lambda: None,
    )
    body = b'{"model": "llm.solo", "messages": [{"role": "user", "content": "hi"}]}'
    assert router.handle(DIALECTS["/v1/chat/completions"], body, caller) is not None
    assert asked == ["swap", "solo-2"]
    assert site.state("solo") == ("admitting", None, 0)


@pytest.mark.requirement("contract 2 authentication")
def test_the_bootstrap_token_is_the_new_configurations_from_the_swap_on(site: Site) -> None:
    assert site.control.request("GET", TRANSITION).status == 200
    site.activate(CONFIG.replace('auth_env = "ANVIL_TOKEN"', 'auth_env = "OTHER_TOKEN"'))
    assert site.control.request("GET", TRANSITION).status == 401
    assert site.control.request("GET", TRANSITION, token=ENVIRON["OTHER_TOKEN"]).status == 200
