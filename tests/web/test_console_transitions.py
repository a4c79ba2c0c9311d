"""Quiesce, drain and readmit from the console (contract 3): what is said before, what is done, what after."""

import pytest
from django.test import Client

from routing import transitions
from tests.unit.routing.availability_support import models
from tests.web.console_support import HTMX, admin, operator, text_of
from tests.web.control_support import PATIENCE, Control, audit_rows, intent_rows

pytestmark = pytest.mark.django_db(transaction=True)


def quiesce(client: Client, *scopes: str, reason: str = "kernel-upgrade") -> object:
    return client.post("/fleet/quiesce/", {"scope": list(scopes), "reason": reason}, follow=True)


# Quiesce ------------------------------------------------------------------------------------------------


def test_quiesce_closes_stores_and_leaves_an_entry(control: Control) -> None:
    control.run_request("chat", "member-a")

    page = text_of(quiesce(operator(), "chat/member-a"))

    assert control.router.quiesced_scopes() == {("chat", "member-a")}
    assert intent_rows() == [("chat", "member-a", "kernel-upgrade", "ada")]
    assert audit_rows() == [("ada", "console", "quiesce", "chat", "member-a", "kernel-upgrade", "quiesced")]
    assert "Quiesced chat/member-a, reason kernel-upgrade." in page
    assert "/fleet/drain/?scope=chat/member-a" in page
    assert "/fleet/readmit/?scope=chat/member-a" in page


@pytest.mark.parametrize(
    ("scope", "told"),
    [
        (
            "chat/member-a",
            [
                "New requests stop at once; one running request goes on to the end.",
                "Requests for llm.chat go on being served by member-b.",
            ],
        ),
        (
            "chat",
            [
                "New requests stop at once; one running request goes on to the end.",
                "Requests for llm.chat are refused with 503 until the tier is readmitted.",
            ],
        ),
        (
            "solo",
            [
                "New requests stop at once; none is running.",
                "Requests for llm.solo are refused with 503 until the tier is readmitted.",
            ],
        ),
        (
            "plain",
            [
                "New requests stop at once; none is running.",
                "Requests to the tier are refused with 503 until the tier is readmitted.",
            ],
        ),
    ],
)
def test_the_confirmation_says_what_will_happen(control: Control, scope: str, told: list[str]) -> None:
    control.run_request("chat", "member-a")

    page = text_of(operator().get("/fleet/quiesce/", {"scope": scope}))

    for sentence in [*told, "It stays quiesced, after a restart of the router too"]:
        assert sentence in page


def test_the_last_member_is_warned_of(control: Control) -> None:
    client = operator()
    quiesce(client, "chat/member-a")

    page = text_of(client.get("/fleet/quiesce/?scope=chat/member-b"))
    assert "No other member is ready: requests for llm.chat are refused with 503 meanwhile." in page

    page = text_of(client.get("/fleet/quiesce/?scope=chat/member-a"))
    assert "It is quiesced already; its reason will be replaced. Until now: kernel-upgrade." in page


def test_the_reason_that_was_replaced_is_told(control: Control) -> None:
    client = operator()
    quiesce(client, "solo", reason="upgrade")

    page = text_of(quiesce(client, "solo", reason="noise"))

    assert "Until now the reason was upgrade." in page


def test_both_members_at_once(control: Control) -> None:
    client = operator()

    page = text_of(client.get("/fleet/quiesce/?scope=chat/member-a&scope=chat/member-b"))
    assert page.count("No other member is ready") == 2

    quiesce(client, "chat/member-a", "chat/member-b")
    assert control.router.quiesced_scopes() == {("chat", "member-a"), ("chat", "member-b")}
    assert len(audit_rows()) == 2


@pytest.mark.parametrize("reason", ["", "two words", "a/b", "x" * 129, "ü"])
def test_a_reason_that_is_none_changes_nothing(control: Control, reason: str) -> None:
    before = control.facts()

    page = text_of(quiesce(operator(), "chat", reason=reason))

    assert 'class="errorlist' in page
    assert control.facts() == before


def test_reasons_are_suggested(control: Control) -> None:
    page = text_of(operator().get("/fleet/quiesce/?scope=chat"))

    for reason in ("maintenance", "upgrade", "investigation"):
        assert f'<option value="{reason}">' in page


# Drain --------------------------------------------------------------------------------------------------


def test_a_drain_counts_down_and_ends_in_a_plain_result(control: Control) -> None:
    client = operator()
    first, second = control.run_request("chat", "member-a"), control.run_request("chat", "member-a")
    quiesce(client, "chat/member-a")

    page = text_of(client.post("/fleet/drain/", {"scope": "chat/member-a", "timeout": "60"}, follow=True))
    assert "<strong>2</strong> <span>running requests left</span>" in page
    assert "Draining for 0:00 of at most 1:00." in page

    first.release()
    page = text_of(client.get("/fleet/scopes/live?scope=chat/member-a", **HTMX))
    assert "<strong>1</strong> <span>running request left</span>" in page

    second.release()
    drain = control.router.operations.drains.latest("chat", "member-a")
    assert drain is not None
    assert drain.wait(PATIENCE)
    page = text_of(client.get("/fleet/scopes/live?scope=chat/member-a", **HTMX))
    assert "<strong>Drained</strong> <span>after 0:00; nothing is running here.</span>" in page
    assert audit_rows()[-1] == ("ada", "console", "drain", "chat", "member-a", "operator", "drained")


def test_a_drain_goes_on_without_its_page(control: Control) -> None:
    client = operator()
    lease = control.run_request("chat", "member-a")
    quiesce(client, "chat/member-a")
    client.post("/fleet/drain/", {"scope": "chat/member-a", "timeout": "60"})
    client.logout()

    progress = transitions.drain_progress(control.router, "chat", "member-a")

    assert progress is not None
    assert (progress.outcome, progress.leases_left) == (None, 1)
    lease.release()


def test_a_drain_that_times_out_says_so_and_cancels_nothing(control: Control) -> None:
    client = operator()
    control.run_request("chat", "member-a")
    quiesce(client, "chat/member-a")
    client.post("/fleet/drain/", {"scope": "chat/member-a", "timeout": "0.1"})
    drain = control.router.operations.drains.latest("chat", "member-a")
    assert drain is not None
    assert drain.wait(PATIENCE)

    page = text_of(client.get("/fleet/scopes/?scope=chat/member-a"))

    assert (
        "<strong>Timed out</strong> <span>after 0:00; 1 still running, nothing was cancelled.</span>" in page
    )
    assert control.router.ledger.snapshot("chat").active_requests == 1


def test_a_drain_of_an_open_scope_is_refused(control: Control) -> None:
    before = control.facts()

    client = operator()
    page = text_of(client.post("/fleet/drain/", {"scope": "chat", "timeout": "60"}))

    assert "chat: The scope is not quiesced." in page
    assert "It still admits requests: quiesce it first." in page
    assert control.facts() == before


@pytest.mark.parametrize("timeout", ["", "0", "-1", "3601", "nan", "inf", "soon"])
def test_a_time_out_of_bounds_begins_no_drain(control: Control, timeout: str) -> None:
    client = operator()
    quiesce(client, "chat")

    page = text_of(client.post("/fleet/drain/", {"scope": "chat", "timeout": timeout}))

    assert 'class="errorlist' in page
    assert control.router.operations.drains.latest("chat", None) is None


# Readmit ------------------------------------------------------------------------------------------------


def test_readmit_shows_the_evidence(control: Control) -> None:
    client = operator()
    quiesce(client, "chat/member-a")

    page = text_of(client.post("/fleet/readmit/", {"scope": "chat/member-a"}, follow=True))

    assert control.router.quiesced_scopes() == set()
    assert "Readmitted chat/member-a: it was verified." in page
    assert "<dt>Expected model</dt><dd>qwen</dd>" in page
    assert "<dt>Observed model</dt><dd>qwen</dd>" in page
    assert "<dt>Probe took</dt>" in page
    assert audit_rows()[-1] == (
        *("ada", "console", "readmit", "chat", "member-a", "operator"),
        "readiness_passed",
    )


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (models("another"), "it serves another model than the expected one."),
        ((503, b""), "the question for its models was answered 503."),
        (
            "refused",
            "the question for its models found the connection refused.",
        ),
    ],
)
def test_a_refused_readmit_says_why_and_leaves_it_quiesced(
    control: Control, answer: object, told: str
) -> None:
    client = operator()
    quiesce(client, "chat/member-a")
    control.probes.answers["alpha"] = answer  # type: ignore[assignment]

    page = text_of(client.post("/fleet/readmit/", {"scope": "chat/member-a"}))

    assert f"chat/member-a stays quiesced: {told}" in page
    assert control.router.quiesced_scopes() == {("chat", "member-a")}
    assert "another" not in page.replace("another model", "")
    assert len(audit_rows()) == 1


def test_a_tier_without_identity_is_readmitted_by_a_tick(control: Control) -> None:
    client = operator()
    quiesce(client, "plain")
    assert "accept_unverified" in text_of(client.get("/fleet/readmit/?scope=plain"))
    assert "accept_unverified" not in text_of(client.get("/fleet/readmit/?scope=chat"))

    page = text_of(client.post("/fleet/readmit/", {"scope": "plain"}))
    assert "plain: The scope stays quiesced: its tier has no identity to verify." in page

    client.post("/fleet/readmit/", {"scope": "plain", "accept_unverified": "on"})
    assert control.router.quiesced_scopes() == set()
    assert audit_rows()[-1][-1] == "readmitted_unverified"


def test_some_of_several_are_refused(control: Control) -> None:
    """Each scope is told of on its own; what was done stays done."""
    client = operator()
    quiesce(client, "chat/member-a", "chat/member-b")
    control.probes.answers["beta"] = models("another")

    page = text_of(client.post("/fleet/readmit/", {"scope": ["chat/member-a", "chat/member-b"]}))

    assert "Readmitted chat/member-a: it was verified." in page
    assert "chat/member-b stays quiesced: it serves another model than the expected one" in page
    assert control.router.quiesced_scopes() == {("chat", "member-b")}


def test_the_readmit_of_a_tier_says_what_stays(control: Control) -> None:
    client = operator()
    quiesce(client, "chat")
    quiesce(client, "chat/member-b")

    page = text_of(client.get("/fleet/readmit/?scope=chat"))
    assert (
        "First its members that are not quiesced are probed; it opens only when qwen is served there." in page
    )
    assert "What stays quiesced: member-b." in page

    page = text_of(client.get("/fleet/readmit/?scope=chat/member-b"))
    assert "Its tier stays quiesced and is readmitted on its own." in page


# The database, the admin --------------------------------------------------------------------------------


def test_a_quiesce_that_could_not_be_stored_says_what_is_true(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    def fails(*args: object, **kwargs: object) -> None:
        raise OperationalError("disk full: /secret/path")

    client = operator()
    monkeypatch.setattr("admission.intents.store", fails)

    page = text_of(quiesce(client, "chat"))

    assert "chat: The scope is quiesced, but the database could not be brought to agree." in page
    assert "/secret/path" not in page
    assert control.router.quiesced_scopes() == {("chat", None)}


@pytest.mark.parametrize(
    ("model", "rows", "scopes"),
    [
        ("tier", ["chat", "solo"], "scope=chat&scope=solo"),
        ("replicamember", ["member-a", "member-b"], "scope=chat/member-a&scope=chat/member-b"),
    ],
)
@pytest.mark.parametrize("verb", ["quiesce", "drain", "readmit"])
def test_bulk_actions_lead_to_the_confirmation(
    control: Control, model: str, rows: list[str], scopes: str, verb: str
) -> None:
    from routing.models import ReplicaMember, Tier
    from routing.working_copy import replace_working_copy

    active = control.router.active
    assert active is not None
    replace_working_copy(active.config, active.snapshot.topology)
    found = (Tier if model == "tier" else ReplicaMember).objects.filter(identifier__in=rows)
    chosen = {"action": verb, "_selected_action": [row.pk for row in found]}

    response = admin().post(f"/admin/routing/{model}/", chosen)

    assert (response.status_code, response["Location"]) == (302, f"/fleet/{verb}/?{scopes}")


def test_a_row_that_is_not_served_is_left_out(control: Control) -> None:
    from routing.models import Tier

    row = Tier.objects.create(identifier="draft", base_url="http://draft/v1", context_limit=1, model="m")
    client = admin()

    response = client.post(
        "/admin/routing/tier/", {"action": "quiesce", "_selected_action": [row.pk]}, follow=True
    )

    assert "None of them is served now." in text_of(response)
    assert "not served" in text_of(client.get("/admin/routing/tier/"))
    assert "/fleet/quiesce/" not in text_of(client.get(f"/admin/routing/tier/{row.pk}/change/"))


def test_the_page_of_a_tier_has_its_buttons(control: Control) -> None:
    from routing.models import Tier

    row = Tier.objects.create(identifier="solo", base_url="http://solo/v1", context_limit=1, model="qwen")
    client = admin()
    assert "/fleet/quiesce/?scope=solo" in text_of(client.get(f"/admin/routing/tier/{row.pk}/change/"))

    quiesce(client, "solo")

    page = text_of(client.get(f"/admin/routing/tier/{row.pk}/change/"))
    assert "/fleet/drain/?scope=solo" in page
    assert "/fleet/readmit/?scope=solo" in page
