"""Who gets into the console, what they see there, and that nothing is done without the right to it."""

from typing import Any

import pytest
from django.test import Client

from routing.models import AuditEntry, RouterSnapshot, Tier
from routing.working_copy import replace_working_copy
from tests.web import control_support
from tests.web.console_support import HTMX, admin, operator, person, text_of, viewer
from tests.web.control_support import Control

pytestmark = pytest.mark.django_db

PAGES = (
    "/fleet/",
    "/fleet/live",
    "/fleet/guide/",
    "/fleet/runbook/",
    "/fleet/scopes/?scope=chat",
    "/fleet/scopes/live?scope=chat/member-a",
    "/fleet/leases/live?scope=chat",
    "/configuration/",
    "/explain/",
    "/admin/routing/tier/",
    "/admin/routing/replicamember/",
    "/admin/routing/routersnapshot/",
    "/admin/routing/auditentry/",
    "/admin/telemetry/decisionentry/",
    "/admin/admission/admissionintent/",
)
"""What a viewer may look at."""

OPERATE = ("/fleet/quiesce/", "/fleet/drain/", "/fleet/readmit/")
ACTIVATE = ("/configuration/import/", "/configuration/publish/", "/configuration/demo/")


@pytest.fixture
def serving(control: Control) -> Control:
    """The control plane with its configuration stored, active and loaded into the working copy."""
    from routing import publishing
    from routing.snapshot import validate_snapshot

    snapshot = validate_snapshot(control_support.CONFIG.encode(), control_support.TOPOLOGY.encode())
    row = publishing.store(snapshot, source=RouterSnapshot.Source.CLI, actor="tests")
    publishing.point_at(row.pk, actor="tests")
    control_support.install(control.router, snapshot_id=row.pk)
    replace_working_copy(snapshot.config, snapshot.topology)
    return control


@pytest.mark.parametrize("path", PAGES)
def test_whoever_is_not_logged_in_is_sent_to_the_log_in(serving: Control, path: str) -> None:
    response = Client().get(path)

    assert response.status_code == 302
    assert response["Location"].startswith("/admin/login/?next=/")


def test_a_fragment_after_the_session_reloads_its_page(serving: Control) -> None:
    """Otherwise the log-in would be swapped into the fleet."""
    response = Client().get("/fleet/live", **HTMX)

    assert (response.status_code, response["HX-Refresh"], response.content) == (200, "true", b"")


def test_the_root_leads_to_the_fleet() -> None:
    response = Client().get("/")

    assert (response.status_code, response["Location"]) == (302, "/fleet/")


@pytest.mark.parametrize("path", PAGES[:9])
def test_staff_without_rights_sees_nothing(serving: Control, path: str) -> None:
    response = person("nora").get(path)

    assert response.status_code == 403
    assert "member-a" not in text_of(response)


@pytest.mark.parametrize("path", PAGES)
def test_a_viewer_may_look(serving: Control, path: str) -> None:
    assert viewer().get(path).status_code == 200


def test_a_viewer_sees_no_buttons(serving: Control) -> None:
    client = viewer()

    for path in ("/fleet/", "/fleet/live", "/fleet/scopes/?scope=chat/member-a"):
        page = text_of(client.get(path))
        for verb in ("quiesce", "drain", "readmit"):
            assert f"/fleet/{verb}/" not in page
    assert "/configuration/import/" not in text_of(client.get("/configuration/"))
    assert "/configuration/publish/" not in text_of(client.get("/configuration/"))
    assert 'name="action"' not in text_of(client.get("/admin/routing/tier/"))


@pytest.mark.parametrize("path", OPERATE)
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_viewers_forged_request_is_refused_and_changes_nothing(
    serving: Control, path: str, method: str
) -> None:
    client = viewer()
    before = serving.facts()
    data = {"scope": "chat/member-a", "reason": "forged", "timeout": "5", "accept_unverified": "on"}

    response = getattr(client, method)(path, data)

    assert response.status_code == 403
    assert serving.facts() == before


@pytest.mark.parametrize("path", [*ACTIVATE, "activate", "load"])
def test_a_viewer_cannot_configure(serving: Control, path: str) -> None:
    row = RouterSnapshot.objects.get()
    if "/" not in path:
        path = f"/configuration/snapshots/{row.pk}/{path}/"
    Tier.objects.filter(identifier="solo").delete()

    assert viewer().post(path, {"confirm": "yes"}).status_code == 403
    assert RouterSnapshot.objects.count() == 1
    assert Tier.objects.count() == 4
    assert AuditEntry.objects.count() == 0


@pytest.mark.parametrize("path", OPERATE)
def test_a_post_without_the_token_of_its_page_is_refused(serving: Control, path: str) -> None:
    client = person("olga", "Operator", enforce_csrf=True)
    before = serving.facts()

    response = client.post(path, {"scope": "chat", "reason": "forged", "timeout": "5"})

    assert response.status_code == 403
    assert serving.facts() == before


@pytest.mark.parametrize("path", OPERATE)
def test_looking_at_a_confirmation_changes_nothing(serving: Control, path: str) -> None:
    client = operator()
    before = serving.facts()

    assert client.get(path, {"scope": "chat/member-a", "reason": "looking"}).status_code == 200
    assert client.get(path, {"scope": "chat"}, **HTMX).status_code == 200
    assert serving.facts() == before


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"scope": ""},
        {"scope": "nowhere"},
        {"scope": "chat/nobody"},
        {"scope": "solo/member-a"},
        {"scope": "chat/"},
        {"scope": "chat/member-a/x"},
        {"scope": "../chat"},
        {"scope": ["chat", "no where"]},
        {"scope": [f"t{number}" for number in range(65)]},
    ],
)
@pytest.mark.parametrize("path", ["/fleet/scopes/", "/fleet/quiesce/"])
def test_a_scope_that_is_not_configured_is_not_found(
    serving: Control, path: str, query: dict[str, Any]
) -> None:
    assert operator().get(path, query).status_code == 404


def test_an_operator_may_act_and_activate_and_not_edit(serving: Control) -> None:
    client = operator()
    pages = text_of(client.get("/fleet/")) + text_of(client.get("/configuration/"))

    assert "/fleet/quiesce/?scope=chat/member-a" in pages
    assert "/configuration/import/" in pages
    assert "/load/" not in pages
    assert client.get("/admin/routing/tier/add/").status_code == 403


def test_a_process_that_stands_by_says_so(serving: Control) -> None:
    serving.router.owns_ledger = False

    response = operator().get("/fleet/")

    assert response.status_code == 503
    assert response["Retry-After"] == "1"
    assert "Another process is serving." in text_of(response)


def test_the_admins_pages_link_to_the_fleet(serving: Control) -> None:
    page = text_of(admin().get("/admin/"))

    assert '<a class="landing-link" href="/fleet/">' in page
    assert "Working copy" in page


def test_pages_hold_no_script_and_no_style_of_their_own(serving: Control) -> None:
    """A content security policy without exceptions can be set."""
    client = admin()
    paths = [*PAGES, "/fleet/quiesce/?scope=chat", "/configuration/publish/", "/configuration/import/"]
    row = RouterSnapshot.objects.get()
    for path in [*paths, f"/configuration/snapshots/{row.pk}/", "/admin/"]:
        page = text_of(client.get(path))
        assert "<style" not in page, path
        assert " style=" not in page, path
        assert "<script>" not in page, path
        assert " onclick=" not in page, path
        assert "hx-on" not in page, path
