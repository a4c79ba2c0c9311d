"""Keys, audit trail and intents in the admin: who sees what, and that a key is on one page, once."""

import re

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from admission.models import AdmissionIntent
from routing import keys
from routing.audit import Through
from routing.models import ApiKey, AuditEntry
from tests.web.control_support import Control, failing_database

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 2 authentication", "contract 3 intent", "console"),
]

ADD = "/admin/routing/apikey/add/"
LIST = "/admin/routing/apikey/"


@pytest.fixture
def ada(control: Control) -> Client:
    """A superuser's browser."""
    User.objects.create_superuser("ada", password="a-long-enough-password")
    client = Client()
    assert client.login(username="ada", password="a-long-enough-password")
    return client


def make(client: Client, name: str = "chat", **more: object) -> tuple[int, str]:
    values = {
        "name": name,
        "scopes": ["infer"],
        "max_concurrency": "",
        "expires_at_0": "",
        "expires_at_1": "",
        **more,
    }
    response = client.post(ADD, values)
    return response.status_code, response.content.decode()


def test_a_key_is_shown_in_the_answer_to_the_form_and_never_again(control: Control, ada: Client) -> None:
    status, page = make(ada, scopes=["operate", "infer"], max_concurrency="3")
    assert status == 200
    (secret,) = re.findall(r'<code id="made-key">(anvil_[\w-]{43})</code>', page)
    row = ApiKey.objects.get()
    assert (row.name, row.scopes, row.max_concurrency) == ("chat", ["infer", "operate"], 3)
    assert (row.created_by, row.prefix) == ("ada", secret[:12])
    principal = control.router.ring.verify(secret)
    assert principal is not None
    assert principal.name == "chat"
    for path in (LIST, f"{LIST}{row.pk}/change/", f"{LIST}{row.pk}/history/", "/admin/", ADD):
        response = ada.get(path, follow=True)
        assert response.status_code == 200
        assert secret[12:] not in response.content.decode()
        assert row.digest not in response.content.decode()
    assert not any(secret[12:] in str(cookie) for cookie in ada.cookies.values())
    assert AuditEntry.objects.filter(actor="ada", through="console", action="create_key").count() == 1


def test_that_page_is_not_kept_by_the_browser(control: Control, ada: Client) -> None:
    response = ada.post(
        ADD,
        {"name": "a", "scopes": ["infer"], "max_concurrency": "", "expires_at_0": "", "expires_at_1": ""},
    )
    assert "no-store" in response["Cache-Control"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": ""}, "This field is required."),
        ({"name": "bootstrap"}, "A name has 1 to 100 letters, digits, blanks"),
        ({"scopes": []}, "This field is required."),
        ({"scopes": ["admin"]}, "Select a valid choice."),
        ({"max_concurrency": "0"}, "A key&#x27;s requests at a time are 1 to 100,000."),
        ({"expires_at_0": "2001-01-01", "expires_at_1": "00:00:00"}, "A key expires in the future."),
    ],
)
def test_a_field_that_breaks_its_rule_says_so(
    control: Control, ada: Client, change: dict[str, object], text: str
) -> None:
    status, page = make(ada, **change)  # type: ignore[arg-type]
    assert status == 200
    assert text in page
    assert ApiKey.objects.count() == 0


def test_a_name_that_is_taken_is_a_field_error(control: Control, ada: Client) -> None:
    make(ada)
    status, page = make(ada)
    assert (status, "already exists" in page) == (200, True)
    assert ApiKey.objects.count() == 1


def test_a_key_that_could_not_be_stored_is_not_shown(control: Control, ada: Client) -> None:
    with failing_database("routing_apikey"):
        response = ada.post(
            ADD,
            {"name": "a", "scopes": ["infer"], "max_concurrency": "", "expires_at_0": "", "expires_at_1": ""},
            follow=True,
        )
    assert "The key could not be stored; there is none." in response.content.decode()
    assert "anvil_" not in response.content.decode()
    assert ApiKey.objects.count() == 0


def test_a_process_that_does_not_own_the_ledger_makes_none(control: Control, ada: Client) -> None:
    control.router.owns_ledger = False
    make(ada)
    assert ApiKey.objects.count() == 0


def test_revoking_asks_once_more(control: Control, ada: Client) -> None:
    row, secret = keys.create(
        control.router, name="chat", scopes=["infer"], actor="tests", through=Through.REST
    )
    asked = {"action": "revoke", "_selected_action": [str(row.pk)]}
    page = ada.post(LIST, asked).content.decode()
    assert "These keys fail from their next request on" in page
    assert row.prefix in page
    assert control.router.ring.verify(secret) is not None
    done = ada.post(LIST, {**asked, "confirmed": "yes"}, follow=True).content.decode()
    assert "The key chat is revoked." in done
    assert control.router.ring.verify(secret) is None
    assert AuditEntry.objects.filter(actor="ada", through="console", action="revoke_key").count() == 1
    assert "revoked already" in ada.post(LIST, asked).content.decode()


def test_nothing_of_a_key_can_be_changed_and_none_deleted(control: Control, ada: Client) -> None:
    make(ada)
    row = ApiKey.objects.get()
    page = ada.get(f"{LIST}{row.pk}/change/").content.decode()
    assert 'name="name"' not in page
    assert ada.post(f"{LIST}{row.pk}/change/", {"name": "other"}).status_code == 403
    assert ada.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert ApiKey.objects.get().name == "chat"


@pytest.fixture
def viewer(control: Control) -> Client:
    """The browser of a user who may look and do nothing."""
    user = User.objects.create_user("vera", password="a-long-enough-password", is_staff=True)
    group, _ = Group.objects.get_or_create(name="Viewer")
    from django.apps import apps

    from routing.permissions import grant

    for label in ("admission", "routing", "telemetry"):
        grant(apps.get_app_config(label))
    user.groups.add(group)
    client = Client()
    assert client.login(username="vera", password="a-long-enough-password")
    return client


def test_a_viewer_sees_and_a_forged_post_is_refused(control: Control, viewer: Client) -> None:
    row, secret = keys.create(
        control.router, name="chat", scopes=["infer"], actor="tests", through=Through.REST
    )
    listing = viewer.get(LIST).content.decode()
    assert "chat" in listing
    assert "Revoke selected" not in listing
    assert make(viewer, "mine")[0] == 403
    viewer.post(LIST, {"action": "revoke", "_selected_action": [str(row.pk)], "confirmed": "yes"})
    assert control.router.ring.verify(secret) is not None
    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize("who", ["ada", "viewer"])
def test_audit_trail_and_intents_are_read_only(
    control: Control, who: str, request: pytest.FixtureRequest
) -> None:
    client: Client = request.getfixturevalue(who)
    control.do("quiesce", "chat", "member-a", reason="kernel-upgrade")
    for model, row in (
        ("routing_auditentry", AuditEntry.objects.get()),
        ("admission_admissionintent", AdmissionIntent.objects.get()),
    ):
        page = client.get(reverse(f"admin:{model}_changelist")).content.decode()
        assert "kernel-upgrade" in page
        assert "member-a" in page
        change = reverse(f"admin:{model}_change", args=[row.pk])
        assert client.get(change).status_code == 200
        assert client.post(change, {"reason": "other"}).status_code == 403
        assert (
            client.post(reverse(f"admin:{model}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
        )
        assert client.get(reverse(f"admin:{model}_add")).status_code == 403
    assert AdmissionIntent.objects.get().reason == "kernel-upgrade"
