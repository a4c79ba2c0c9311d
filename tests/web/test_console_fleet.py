"""What the fleet page reads and says: states, why a tier can't be served, figures, fragments."""

from dataclasses import replace

import pytest

from admission.models import AdmissionIntent
from routing import transitions
from routing.console.fleet import read_fleet
from routing.router import Router, bind
from routing.scopes import ScopeId
from routing.snapshot import validate_snapshot
from routing.transitions import TransitionError
from telemetry.evidence import scope_readings
from tests.unit.routing.availability_support import models
from tests.web import control_support
from tests.web.console_support import HTMX, admin, operator, text_of, viewer
from tests.web.control_support import Control

pytestmark = pytest.mark.django_db(transaction=True)


def trouble(control: Control, tier_id: str) -> str | None:
    return next(
        card.trouble for card in read_fleet(control.router).cards if card.scope.id == ScopeId(tier_id)
    )


def states(control: Control, tier_id: str = "chat") -> list[str]:
    (card,) = [card for card in read_fleet(control.router).cards if card.scope.id.tier_id == tier_id]
    return [card.scope.state, *(member.state for member in card.members)]


def hold(control: Control, tier_id: str, member_id: str | None, reason: str, actor: str) -> None:
    from routing.audit import Through

    transitions.quiesce(control.router, tier_id, member_id, reason=reason, actor=actor, through=Through.REST)


def readmit(control: Control, tier_id: str, member_id: str | None = None) -> None:
    from routing.audit import Through

    transitions.readmit(control.router, tier_id, member_id, actor="ada", through=Through.CONSOLE)


def fail(control: Control, host: str, tier_id: str, member_id: str | None, answer: object) -> None:
    """Let the next probe of an upstream end with ``answer``, and run it."""
    control.probes.answers[host] = answer  # type: ignore[assignment]
    control.router.availability.probe_now(tier_id, member_id)


def test_everything_is_well(control: Control) -> None:
    fleet = read_fleet(control.router)

    assert [str(card.scope.id) for card in fleet.cards] == ["chat", "solo", "plain", "healthy", "dynamic"]
    assert states(control) == ["admitting", "admitting", "admitting"]
    assert [card.trouble for card in fleet.cards] == [None] * 5
    assert fleet.cards[0].aliases == ("llm.chat",)
    assert fleet.cards[0].serving == 2


def test_states_of_a_member(control: Control) -> None:
    lease = control.run_request("chat", "member-a")
    hold(control, "chat", "member-a", "upgrade", "ada")
    fail(control, "beta", "chat", "member-b", "refused")

    assert states(control) == ["not ready", "draining", "not ready"]

    lease.release()
    assert states(control) == ["not ready", "quiesced", "not ready"]


def test_a_maintenance_is_no_flap(control: Control) -> None:
    """Quiesced, stopped, refused while it is down, started, readmitted: all of it is the operator's doing."""
    availability = control.router.availability
    availability.probe_now("chat", "member-a")
    hold(control, "chat", "member-a", "kernel-upgrade", "ada")
    availability.mark_unavailable("chat", "member-a", "health_transport_reset")
    control.probes.answers["alpha"] = "refused"
    with pytest.raises(TransitionError, match="could not be verified"):
        readmit(control, "chat", "member-a")
    control.probes.answers["alpha"] = models("qwen")

    readmit(control, "chat", "member-a")
    assert availability.flaps("chat", "member-a") == 0

    fail(control, "alpha", "chat", "member-a", "refused")
    assert availability.flaps("chat", "member-a") == 1


def test_both_members_are_quiesced(control: Control) -> None:
    hold(control, "chat", "member-a", "kernel-upgrade", "ada")
    hold(control, "chat", "member-b", "maintenance", "bob")

    assert trouble(control, "chat") == (
        "Both members are quiesced: member-a by ada, reason kernel-upgrade, 0 s ago; "
        "member-b by bob, reason maintenance, 0 s ago."
    )


def test_a_hold_without_its_row_says_what_is_known(control: Control) -> None:
    """The intent could not be stored: nobody knows who did it, or since when."""
    hold(control, "chat", "member-a", "kernel-upgrade", "ada")
    hold(control, "chat", "member-b", "kernel-upgrade", "ada")
    AdmissionIntent.objects.all().delete()

    assert trouble(control, "chat") == (
        "Both members are quiesced: member-a reason kernel-upgrade; member-b reason kernel-upgrade."
    )


def test_members_that_are_out_for_different_causes(control: Control) -> None:
    hold(control, "chat", "member-a", "upgrade", "ada")
    fail(control, "beta", "chat", "member-b", (503, b""))

    assert trouble(control, "chat") == (
        "No member can take a request: member-a is quiesced by ada, reason upgrade, 0 s ago; "
        "member-b is not ready: the question for its models was answered 503."
    )


def test_members_that_fail_alike_are_told_together(control: Control) -> None:
    fail(control, "alpha", "chat", "member-a", models("another"))
    fail(control, "beta", "chat", "member-b", models("another"))

    assert trouble(control, "chat") == (
        "Both members are not ready: member-a and member-b: it serves another model than the expected one."
    )


def test_a_quiesced_tier_says_so_first(control: Control) -> None:
    control.run_request("chat", "member-a")
    hold(control, "chat", None, "investigation", "ada")
    fail(control, "beta", "chat", "member-b", "refused")

    assert trouble(control, "chat") == (
        "The tier is quiesced by ada, reason investigation, 0 s ago; one request is still running."
    )


def test_a_direct_tier_that_is_not_ready(control: Control) -> None:
    fail(control, "solo", "solo", None, "timeout")

    assert trouble(control, "solo") == (
        "The upstream is not ready: the question for its models was not answered in time."
    )


def test_full_tiers_say_that_they_are_full(control: Control) -> None:
    for member_id in ("member-a", "member-a", "member-b", "member-b"):
        control.run_request("chat", member_id)
    for _ in range(3):
        control.run_request("solo")

    assert trouble(control, "chat") == "All four places of the tier are taken: new requests are refused."
    assert trouble(control, "solo") == "All three places of the tier are taken: new requests wait."


def test_the_only_ready_member_is_full(control: Control) -> None:
    hold(control, "chat", "member-b", "upgrade", "ada")
    control.run_request("chat", "member-a")
    assert trouble(control, "chat") is None

    control.run_request("chat", "member-a")
    assert trouble(control, "chat") == (
        "Every member that is ready is at its ceiling: new requests are refused."
    )


def places(control: Control, tier_id: str = "chat") -> tuple[int, int | None, bool]:
    (card,) = [card for card in read_fleet(control.router).cards if card.scope.id.tier_id == tier_id]
    return card.scope.places.taken, card.scope.places.usable, card.scope.is_full


def test_a_tier_is_measured_by_the_places_that_are_open(control: Control) -> None:
    """Two members of two places each: with one of them out, two taken places are all that there are."""
    assert places(control) == (0, 4, False)
    running = control.run_request("chat", "member-b")
    hold(control, "chat", "member-b", "upgrade", "ada")
    control.run_request("chat", "member-a")
    assert places(control) == (1, 2, False)

    control.run_request("chat", "member-a")
    assert places(control) == (2, 2, True)
    page = text_of(operator("otto").get("/fleet/"))
    assert '<use href="#shape-full"/></svg>full' in page
    assert 'aria-label="2 of 2 places taken"' in page
    assert '2 / 2</span> <span class="quiet">open, 4 in all' in page
    assert "1 more at members that are out" in page
    running.release()

    hold(control, "chat", "member-a", "upgrade", "ada")
    assert places(control) == (2, 4, False)
    assert states(control)[0] == "not ready"


def test_a_tier_without_a_ceiling_is_never_full(control: Control) -> None:
    control.run_request("plain")

    assert places(control, "plain") == (1, None, False)


def test_the_page_shows_state_by_word_and_shape(control: Control) -> None:
    hold(control, "chat", "member-a", "kernel-upgrade", "ada")
    control.run_request("chat", "member-b")

    page = text_of(operator("otto").get("/fleet/"))

    assert '<use href="#shape-quiesced"/></svg>quiesced' in page
    assert "kernel-upgrade, ada, 0 s ago" in page
    assert 'aria-label="1 of 2 places taken"' in page
    assert '<use href="#shape-unknown"/></svg>unknown' in page  # no engine has been asked for its pressure
    assert '<use href="#shape-not-probed"/></svg>not probed' in page
    assert "1 of 2 members serving" in page
    assert "/fleet/readmit/?scope=chat/member-a" in page
    assert "/fleet/quiesce/?scope=chat/member-b" in page


def test_figures_come_from_the_history(control: Control, runtime: object) -> None:
    from routing.gateway import Observation
    from telemetry import process

    history = process.evidence().history
    seen = Observation(
        route="llm.chat",
        tier="chat",
        member="member-a",
        outcome="served",
        key_name="tests",
        overhead_seconds=0.001,
        first_token_seconds=0.087,
        seconds=1.0,
        prompt_tokens=1,
        completion_tokens=1,
    )
    for observation in (seen, replace(seen, first_token_seconds=1.25), replace(seen, outcome="error")):
        history.observe(observation)
    for _ in range(2):
        history.observe(replace(seen, outcome="skipped", member=None, first_token_seconds=None))
    control.run_request("chat", "member-a")
    history.run_once(scope_readings(control.router))

    page = text_of(viewer().get("/fleet/live"))

    assert "<dt>Requests</dt><dd>3.0/s</dd>" in page
    assert '<dt>Refused</dt><dd><span class="alarm">2.0/s</span></dd>' in page
    assert "<dt>First token p50</dt><dd>87 ms</dd>" in page
    assert "<dt>First token p95</dt><dd>1.25 s</dd>" in page
    assert "<dt>Errors</dt><dd>33.3 %</dd>" in page
    assert "running requests in the last 15 minutes: 1 now, 1 at most" in page
    assert '<td data-label="Selected" class="number">3</td>' in page


def test_the_fragment_is_the_part_alone(control: Control) -> None:
    response = viewer().get("/fleet/live", **HTMX)
    page = response.content.decode()

    assert response.status_code == 200
    assert "HX-Request" in response["Vary"]
    assert "no-cache" in response["Cache-Control"]
    assert 'id="card-chat"' in page
    assert "<html" not in page
    assert "<h1" not in page


def test_a_dialog_gets_a_page_without_its_frame(control: Control) -> None:
    page = operator().get("/fleet/quiesce/?scope=chat/member-a", **HTMX).content.decode()

    assert "<h1>Quiesce chat/member-a</h1>" in page
    assert "csrfmiddlewaretoken" in page
    assert "<html" not in page


def test_trouble_leads_to_what_to_do_about_it(control: Control) -> None:
    for _ in range(3):
        control.run_request("solo")
    hold(control, "chat", None, "upgrade", "ada")

    page = text_of(viewer().get("/fleet/"))

    assert '<a href="/fleet/runbook/#anviltierout">What to do</a>' in page
    assert '<a href="/fleet/runbook/#anviltieratceiling">What to do</a>' in page
    assert '<section class="advice" id="anviltierout">' in text_of(viewer("val").get("/fleet/runbook/"))


def test_a_promotion_that_was_stopped_says_what_to_do_next(control: Control) -> None:
    from routing import publishing
    from routing.models import Promotion, RouterSnapshot

    snapshot = validate_snapshot(control_support.CONFIG.encode(), control_support.TOPOLOGY.encode())
    row = publishing.store(snapshot, source=RouterSnapshot.Source.PROMOTION, actor="ada")
    publishing.point_at(row.pk, actor="ada")
    control_support.install(control.router, snapshot_id=row.pk)
    Promotion.objects.create(
        tier_id="solo",
        resource_id="beta",
        promoted=publishing.store(snapshot, source=RouterSnapshot.Source.PROMOTION, actor="ada"),
        rollback=row,
        drain_timeout=5.0,
        actor="ada",
        through="rest",
    )

    page = text_of(viewer().get("/fleet/"))

    assert "The promotion of solo to beta was stopped half-way." in page
    assert "The tier is at its old place." in page
    assert "anvil promote --resume" in page


def test_ids_reach_the_page_as_text(control: Control) -> None:
    """The grammar lets no markup in; a reason is the freest of what is shown."""
    hold(control, "chat", None, "a.b_c-d", "<b>ada</b>")

    page = text_of(viewer().get("/fleet/"))

    assert "&lt;b&gt;ada&lt;/b&gt;" in page
    assert "<b>ada</b>" not in page


# First run ----------------------------------------------------------------------------------------------


@pytest.fixture
def empty(runtime: object) -> Router:
    """An owner of the ledger that has no configuration and no key."""
    router: Router = runtime.router  # type: ignore[attr-defined]
    router.owns_ledger = True
    bind(router)
    return router


def test_an_empty_router_is_a_guide(empty: Router) -> None:
    page = text_of(admin().get("/fleet/"))

    assert "Tell the router what to serve" in page
    for path in (
        "/configuration/import/",
        "/admin/routing/tier/add/",
        "/configuration/demo/",
        "/admin/routing/apikey/add/?name=first&amp;scopes=infer",
    ):
        assert path in page
    assert "badge-done" not in page


def test_the_guide_offers_a_viewer_nothing(empty: Router) -> None:
    page = text_of(viewer().get("/fleet/"))

    assert "Tell the router what to serve" in page
    assert "/configuration/import/" not in page
    assert "/admin/routing/apikey/add/" not in page


def test_the_demo_is_one_click_from_its_comparison(empty: Router) -> None:
    response = admin().post("/configuration/demo/", follow=True)
    page = text_of(response)

    assert response.redirect_chain[-1][0].startswith("/configuration/snapshots/")
    assert "demo.chat" in page
    assert "Nothing has to be drained" in page


def test_the_fleet_says_that_there_is_no_key(control: Control) -> None:
    without_token = control_support.CONFIG.replace('[server]\nauth_env = "ANVIL_TOKEN"\n', "")
    control_support.install(control.router, without_token)

    assert "There is no API key yet" in text_of(admin().get("/fleet/"))


def test_other_pages_of_an_empty_router(empty: Router) -> None:
    client = admin()

    assert client.get("/fleet/live").status_code == 503
    assert client.get("/fleet/scopes/?scope=chat").status_code == 503
    assert client.get("/configuration/").status_code == 200
    assert client.get("/explain/?model=llm.chat").status_code == 200
    assert client.get("/admin/routing/tier/").status_code == 200
    assert client.get("/configuration/activation/").status_code == 302
