"""What every page of the console has in common: the way back from it, its heading, what is read aloud."""

import re

import pytest
from django.test import Client
from django.urls import reverse

from routing import publishing
from routing.audit import Through
from routing.models import RouterSnapshot
from routing.transitions import quiesce
from tests.web import control_support
from tests.web.console_support import HTMX, admin, person, text_of
from tests.web.control_support import Control

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def serving(control: Control) -> Control:
    config, topology = control_support.CONFIG.encode(), control_support.TOPOLOGY.encode()
    source = RouterSnapshot.Source.CLI
    row, _ = publishing.capture(config, topology, None, source=source, actor="tests", through=Through.REST)
    publishing.point_at(row.pk, actor="tests")
    control_support.install(control.router, snapshot_id=row.pk)
    return control


def trail(client: Client, path: str) -> str:
    found = re.search(r'<div class="breadcrumbs">(.*?)</div>', text_of(client.get(path)))
    assert found is not None, path
    return re.sub(r"<[^>]*>", "", found[1]).replace("&rsaquo;", ">").strip()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/fleet/", "Home > Fleet"),
        ("/fleet/guide/", "Home > Fleet > First steps"),
        ("/fleet/scopes/?scope=chat", "Home > Fleet > chat"),
        ("/fleet/scopes/?scope=chat/member-a", "Home > Fleet > chat > chat/member-a"),
        ("/fleet/quiesce/?scope=solo", "Home > Fleet > solo > Quiesce"),
        ("/fleet/drain/?scope=chat/member-a", "Home > Fleet > chat > chat/member-a > Drain"),
        ("/fleet/readmit/?scope=chat&scope=solo", "Home > Fleet > chat and solo > Readmit"),
        ("/configuration/", "Home > Configuration"),
        ("/configuration/import/", "Home > Configuration > Import a TOML file"),
        ("/configuration/publish/", "Home > Configuration > Publish the working copy"),
        ("/configuration/promotions/", "Home > Configuration > Promotions"),
        ("/explain/?model=llm.chat", "Home > Why is it refused?"),
        ("/admin/telemetry/decisionentry/", "Home > Telemetry > Decisions"),
        ("/admin/routing/apikey/", "Home > Routing > API keys"),
    ],
)
def test_every_page_shows_the_way_back(serving: Control, path: str, told: str) -> None:
    assert " ".join(trail(admin(), path).split()) == told


def test_what_was_captured_and_what_is_not_there_show_it_too(serving: Control) -> None:
    client = admin()
    row = RouterSnapshot.objects.get()
    path = reverse("console:snapshot", args=[row.pk])

    assert " ".join(trail(client, path).split()) == f"Home > Configuration > Snapshot {row.pk}"
    assert " ".join(trail(client, "/fleet/scopes/?scope=gone").split()) == "Home > Nothing here"
    assert " ".join(trail(person("nobody"), "/fleet/").split()) == "Home > Not allowed"


def test_a_fragment_has_no_trail(serving: Control) -> None:
    assert "breadcrumbs" not in text_of(admin().get("/fleet/quiesce/?scope=chat", **HTMX))


def test_headings_name_their_scopes(serving: Control) -> None:
    client = admin()
    quiesce(serving.router, "solo", reason="upgrade", actor="ada", through=Through.CONSOLE)
    serving.run_request("chat", "member-a")
    quiesce(serving.router, "chat", "member-a", reason="upgrade", actor="ada", through=Through.CONSOLE)

    assert "<h1>Drain chat/member-a</h1>" in text_of(client.get("/fleet/drain/?scope=chat/member-a"))
    page = text_of(client.post("/fleet/drain/", {"scope": "chat/member-a", "timeout": "60"}, follow=True))
    assert "<h2>Drain of chat/member-a</h2>" in page
    assert '<div class="drain drain-running" id="drain-of-chat.member-a" aria-live="polite">' in page
    five = "&".join(f"scope={name}" for name in ("chat", "solo", "plain", "healthy", "dynamic"))
    assert "<h1>Quiesce five scopes</h1>" in text_of(client.get(f"/fleet/quiesce/?{five}"))


def test_moments_name_their_zone(serving: Control) -> None:
    client = admin()
    row = RouterSnapshot.objects.get()
    moment = row.created_at.strftime("%Y-%m-%d %H:%M:%S UTC")

    assert f"{moment}, by tests" in text_of(client.get(f"/configuration/snapshots/{row.pk}/"))
    assert moment in text_of(client.get("/admin/routing/routersnapshot/"))


def test_lists_that_are_only_read_carry_their_name_and_say_codes_in_words(serving: Control) -> None:
    client = admin()
    client.post("/fleet/quiesce/", {"scope": "plain", "reason": "upgrade"})
    client.post("/fleet/readmit/", {"scope": "plain", "accept_unverified": "on"})

    page = text_of(client.get("/admin/routing/auditentry/"))

    assert "<h1>Audit entries</h1>" in page
    assert '<td class="field-ended">unverified</td>' in page
    assert "readmitted_unverified" not in page
    assert '<td class="field-what">plain</td>' in page


def test_an_empty_working_copy_has_nothing_to_publish(serving: Control) -> None:
    client = admin()

    assert "The working copy is empty: there is nothing to publish yet." in text_of(
        client.get("/configuration/publish/")
    )
    assert "/configuration/publish/" not in text_of(client.get("/configuration/"))
