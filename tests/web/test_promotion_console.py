"""Promotions in the console: what people see, confirm, watch and take back."""

import pytest

from routing import guard, promotion
from routing.models import AuditEntry, Promotion
from routing.refusals import SENTENCES
from tests.unit.routing.availability_support import models
from tests.web.console_support import HTMX, operator, person, text_of, viewer
from tests.web.control_support import Control
from tests.web.publishing_support import eventually
from tests.web.test_promotion import Site

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 5 promote"),
]

PAGE, NEW, AGAIN = (
    "/configuration/promotions/",
    "/configuration/promotions/new/",
    "/configuration/promotions/again/",
)
MOVE = {"tier": "solo", "resource": "gamma", "drain_timeout": "10"}


@pytest.fixture
def site(control: Control) -> Site:
    return Site(control)


def over(site: Site) -> bool:
    """Whether a promotion that was begun in the background has come to its end."""
    return Promotion.objects.exists() and not site.router.operations.promoting.locked()


def test_what_can_move_and_where_to_is_offered(site: Site) -> None:
    text = text_of(operator().get(PAGE))
    for tier in ("solo", "dynamic"):
        assert f'<option value="{tier}">' in text
    for other in ("chat", "plain", "healthy"):
        assert f'<option value="{other}">' not in text
    assert '<option value="gamma">' in text
    for resource in ("alpha", "beta", "nowhere"):
        assert f'<option value="{resource}">' not in text
    assert "No promotion was begun yet." in text


def test_a_promotion_is_begun_only_after_its_effects_were_shown(site: Site) -> None:
    client = operator("ada")
    site.control.run_request("solo")
    before = site.facts()
    text = text_of(client.post(NEW, MOVE))
    assert "waits for one running request to end, 10 seconds at most" in text
    assert "Promote now" in text
    assert site.facts() == before
    site.control.end_requests()
    response = client.post(NEW, {**MOVE, "confirm": "yes"})
    assert (response.status_code, response["Location"]) == (302, PAGE)
    eventually(lambda: over(site))
    assert site.place == "http://gamma/v1"
    (row,) = Promotion.objects.all()
    assert (row.outcome, row.actor, row.through) == ("promoted", "ada", "console")
    assert AuditEntry.objects.filter(action="promote", actor="ada", through="console").count() == 1
    text = text_of(client.get(f"{PAGE}live", **HTMX))
    assert "solo to gamma" in text
    assert text.count('<li class="step">') == 7
    assert "it is healthy and serves the expected model" in text


def test_while_it_runs_it_is_shown_as_running(site: Site) -> None:
    client = operator()
    site.control.run_request("solo")
    client.post(NEW, {**MOVE, "confirm": "yes"})
    eventually(lambda: site.router.ledger.snapshot("solo").draining)
    text = text_of(client.get(PAGE))
    assert "running" in text
    assert "stopped" not in text.replace("was stopped half-way", "")
    assert client.post(NEW, MOVE).status_code == 409
    site.control.end_requests()
    eventually(lambda: over(site))


def test_a_promotion_that_came_back_by_itself_says_why(site: Site) -> None:
    client = operator()
    site.control.probes.answers["gamma"] = models("another-model")
    client.post(NEW, {**MOVE, "confirm": "yes"})
    eventually(lambda: over(site))
    text = text_of(client.get(PAGE))
    assert "rolled back" in text
    assert f"<p>{SENTENCES['verification_failed']}</p>" in text
    assert "it serves another model than the expected one" in text
    assert "verification_failed" not in text
    assert "identity_mismatch" not in text
    assert "another-model" not in text


@pytest.mark.parametrize(
    ("verb", "outcome", "place"),
    [("resume", "promoted", "http://gamma/v1"), ("roll_back", "rolled_back", "http://solo/v1")],
)
def test_a_stopped_promotion_is_shown_on_the_fleet_and_given_an_outcome(
    site: Site, verb: str, outcome: str, place: str
) -> None:
    row = site.stopped_at("promoted")
    client = operator()
    fleet = text_of(client.get("/fleet/"))
    assert "The promotion of solo to gamma was stopped half-way." in fleet
    assert PAGE in fleet
    assert promotion.NEXT_STEPS["promoted"].split("`")[0].strip() in text_of(client.get(PAGE))
    assert client.post(AGAIN, {"verb": verb})["Location"] == PAGE
    eventually(lambda: Promotion.objects.filter(pk=row.pk, outcome=outcome).exists())
    eventually(lambda: over(site))
    assert site.place == place
    assert "was stopped half-way" not in text_of(client.get("/fleet/"))


def test_there_may_be_nothing_to_resume(site: Site) -> None:
    client = operator()
    before = site.facts()
    assert client.post(AGAIN, {"verb": "resume"}).status_code == 409
    assert client.post(AGAIN, {"verb": "explode"})["Location"] == PAGE
    assert client.get(AGAIN)["Location"] == PAGE
    assert client.get(NEW)["Location"] == PAGE
    assert site.facts() == before


@pytest.mark.parametrize(
    "change",
    [
        {"tier": "chat"},
        {"tier": "absent"},
        {"resource": "alpha"},
        {"resource": ""},
        {"drain_timeout": "0"},
        {"drain_timeout": "3601"},
        {"drain_timeout": "nan"},
    ],
)
def test_what_is_not_offered_is_refused_at_its_field(site: Site, change: dict[str, str]) -> None:
    before = site.facts()
    response = operator().post(NEW, {**MOVE, **change, "confirm": "yes"})
    assert response.status_code == 200
    assert "errorlist" in text_of(response)
    assert site.facts() == before


@pytest.mark.requirement("Q-T012.1")
def test_the_guards_refusal_is_a_page_of_its_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: object, affected: object) -> None:
        raise guard.ReplicaLifecycleUnsupported

    monkeypatch.setattr(guard, "refuse_replica_tiers", refuse)
    before = site.facts()
    response = operator().post(NEW, {**MOVE, "confirm": "yes"})
    assert response.status_code == 409
    assert "replica_lifecycle_unsupported" in text_of(response)
    assert site.facts() == before


def test_viewers_look_and_do_nothing(site: Site) -> None:
    row = site.stopped_at("rollback")
    client = viewer()
    text = text_of(client.get(PAGE))
    assert "was stopped half-way" in text
    assert "Resume</button>" not in text
    assert "promote-form" not in text
    before = site.facts()
    assert client.post(NEW, {**MOVE, "confirm": "yes"}).status_code == 403
    assert client.post(AGAIN, {"verb": "resume"}).status_code == 403
    assert person("nora").get(PAGE).status_code == 403
    assert site.facts() == before
    assert Promotion.objects.get(pk=row.pk).outcome == ""


def test_an_exception_in_the_background_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Promotion:
        raise RuntimeError("unforeseen")

    promotion.in_background(fail)
    eventually(lambda: "a promotion failed" in caplog.text)
