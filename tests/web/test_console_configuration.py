"""Configuration from the console: import, publish, compare, activate, roll back, load, edit (contract 1)."""

from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from routing import activation, publishing
from routing.models import (
    ActiveSnapshot,
    AuditEntry,
    ModelRoute,
    ReplicaMember,
    RouterSettings,
    RouterSnapshot,
    Tier,
)
from routing.snapshot import validate_snapshot
from routing.working_copy import WorkingCopy, replace_working_copy
from tests.web import control_support
from tests.web.console_support import HTMX, admin, operator, text_of
from tests.web.control_support import PATIENCE, Control

pytestmark = pytest.mark.django_db(transaction=True)

CORPUS = Path(__file__).parents[1] / "corpus"
CONFIG, TOPOLOGY = control_support.CONFIG, control_support.TOPOLOGY


@pytest.fixture
def serving(control: Control) -> Control:
    """The control plane, its configuration stored as a snapshot and active."""
    row = store(CONFIG)
    publishing.point_at(row.pk, actor="tests")
    control_support.install(control.router, snapshot_id=row.pk)
    return control


def store(config: str) -> RouterSnapshot:
    snapshot = validate_snapshot(config.encode(), TOPOLOGY.encode())
    return publishing.store(snapshot, source=RouterSnapshot.Source.CLI, actor="tests")


def upload(client: Client, config: bytes | str, topology: bytes | str | None = None, **more: Any) -> Any:
    def file(name: str, data: bytes | str) -> SimpleUploadedFile:
        return SimpleUploadedFile(name, data.encode() if isinstance(data, str) else data)

    files = {"config": file("router.toml", config)}
    if topology is not None:
        files["topology"] = file("places.toml", topology)
    return client.post("/configuration/import/", {**files, **more}, follow=True)


def activate(control: Control, client: Client, row: RouterSnapshot, **data: str) -> str:
    """Activate from the console and wait for the end; the page of the activation then."""
    assert client.post(f"/configuration/snapshots/{row.pk}/activate/", data).status_code == 302
    job = activation.latest_job(control.router)
    assert job is not None
    assert job.wait(PATIENCE)
    return text_of(client.get("/configuration/activation/"))


# Import -------------------------------------------------------------------------------------------------


def test_a_broken_document_is_told_fault_by_fault_at_its_line(serving: Control) -> None:
    data = (CORPUS / "config/invalid/everywhere.toml").read_bytes()

    page = text_of(upload(admin(), data))

    assert "<strong>19 faults.</strong> Nothing was stored and nothing has changed." in page
    for line, path, message in (
        (2, "title", "is not a known key"),
        (16, "router.tiers[0].context_limit", "must be an integer from 1 to 10000000, not 0"),
        (29, "router.tiers[1].replicas", "must hold 2 to 16 members, not 1"),
        (47, "router.tiers[1].extra_body.stream", "is the router&#x27;s own to set"),
    ):
        row = f"router.toml, line {line}</span></td> <td><code>{path}</code></td> <td>{message}</td>"
        assert row in page
    assert RouterSnapshot.objects.count() == 1


def test_secrets_of_a_refused_document_stay_out_of_the_page(serving: Control) -> None:
    page = text_of(upload(admin(), (CORPUS / "config/invalid/everywhere.toml").read_bytes()))

    assert "sk-live-0123456789abcdef" not in page
    assert "hunter2" not in page


def test_faults_of_the_join_and_of_the_topology_have_their_place(serving: Control) -> None:
    page = text_of(
        upload(admin(), CONFIG, TOPOLOGY.replace('endpoint = "http://beta/v1"', 'colour = "blue"'))
    )

    assert "places.toml, line" in page
    assert "resources[1].colour" in page

    page = text_of(upload(admin("other"), CONFIG, TOPOLOGY.replace("http://beta/v1", "http://gamma/v1")))
    assert "router.tiers[0].replicas[1]" in page


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"connect_timeout = = 2", "router.toml, line 1"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"#" * (1_048_576 + 5), "is larger than 1048576 bytes"),
    ],
)
def test_what_cannot_be_parsed(serving: Control, data: bytes, told: str) -> None:
    assert told in text_of(upload(admin(), data))
    assert RouterSnapshot.objects.count() == 1


def test_an_import_without_a_file_asks_for_one(serving: Control) -> None:
    assert "This field is required." in text_of(admin().post("/configuration/import/"))


def test_an_import_keeps_the_exact_bytes_and_shows_the_difference(serving: Control) -> None:
    config = (CONFIG + "\n# a comment\r\n").replace("max_concurrency = 3", "max_concurrency = 4")

    response = upload(admin(), config, TOPOLOGY)
    row = RouterSnapshot.objects.first()
    assert row is not None
    page = text_of(response)

    assert response.redirect_chain == [(f"/configuration/snapshots/{row.pk}/", 302)]
    assert (bytes(row.config_bytes), row.created_by, row.source) == (config.encode(), "root", "upload")
    assert '<div class="diff-removed">-max_concurrency = 3</div>' in page
    assert '<div class="diff-added">+max_concurrency = 4</div>' in page
    assert "Nothing has to be drained" in page
    assert "# a comment" in page  # among the exact bytes, not in the difference


def test_bytes_that_are_known_are_not_stored_twice(serving: Control) -> None:
    page = text_of(upload(admin(), CONFIG, TOPOLOGY))

    assert "These exact bytes are stored already, as snapshot" in page
    assert RouterSnapshot.objects.count() == 1


@pytest.mark.parametrize("query", ["", "?download=1"])
def test_documents_are_given_byte_for_byte(serving: Control, query: str) -> None:
    row = RouterSnapshot.objects.get()
    client = operator()

    response = client.get(f"/configuration/snapshots/{row.pk}/config.toml{query}")

    assert response.content == CONFIG.encode()
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Disposition"].startswith("attachment" if query else "inline")
    assert client.get(f"/configuration/snapshots/{row.pk}/topology.toml").content == TOPOLOGY.encode()
    assert client.get(f"/configuration/snapshots/{row.pk}/overlay.toml").status_code == 404
    assert client.get("/configuration/snapshots/999/").status_code == 404
    assert client.get(f"/configuration/snapshots/{2**70}/").status_code == 404


# Activation ---------------------------------------------------------------------------------------------


def test_activating_is_one_click_where_nothing_needs_a_drain(serving: Control) -> None:
    row = store(CONFIG.replace("max_concurrency = 3", "max_concurrency = 4"))

    page = activate(serving, operator(), row)

    assert f"Snapshot {row.pk} is active." in page
    assert "Move the pointer and swap" in page
    assert ActiveSnapshot.objects.get().snapshot_id == row.pk
    assert serving.router.ledger.snapshot("solo").max_concurrency == 4
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.through, entry.action, entry.result) == (
        *("ada", "console", "activate"),
        "activated",
    )


def test_what_needs_a_drain_is_named_and_refused_while_it_runs(serving: Control) -> None:
    row = store(CONFIG.replace('base_url = "http://solo/v1"', 'base_url = "http://plain/v1"'))
    serving.run_request("solo")
    client = operator()

    page = text_of(client.get(f"/configuration/snapshots/{row.pk}/"))
    assert "solo has to be quiesced and free of requests first." in page
    assert "to be drained" in page

    page = activate(serving, client, row)
    assert "What changes still admits or still runs requests; nothing has changed." in page
    assert "solo is admitting, and one request is running there." in page
    assert ActiveSnapshot.objects.get().snapshot_id != row.pk


def test_drain_and_activate_in_one_go(serving: Control) -> None:
    serving.probes.answers["solo2"] = serving.probes.answers["solo"]
    row = store(CONFIG.replace('base_url = "http://solo/v1"', 'base_url = "http://solo2/v1"'))
    lease = serving.run_request("solo")
    client = operator()
    client.post(f"/configuration/snapshots/{row.pk}/activate/", {"drain": "yes", "drain_timeout": "30"})

    job = activation.latest_job(serving.router)
    assert job is not None
    running = text_of(client.get("/configuration/activation/live", **HTMX))
    assert "It goes on when you close this page." in running
    lease.release()
    assert job.wait(PATIENCE)

    page = text_of(client.get("/configuration/activation/live", **HTMX))
    for step in ("Quiesce solo", "Drain solo", "Verify solo", "Readmit solo"):
        assert step in page
    assert f"Snapshot {row.pk} is active." in page
    assert serving.router.quiesced_scopes() == set()


def test_a_failed_verification_goes_back_and_says_why(serving: Control) -> None:
    before = ActiveSnapshot.objects.get().snapshot_id
    serving.probes.answers["solo2"] = (503, b"")
    row = store(CONFIG.replace('base_url = "http://solo/v1"', 'base_url = "http://solo2/v1"'))

    page = activate(serving, operator(), row, drain="yes")

    assert "What changed could not be verified; the previous snapshot is active again." in page
    assert "solo: the question for its models was answered 503." in page
    assert "Go back to the previous snapshot" in page
    assert ActiveSnapshot.objects.get().snapshot_id == before


@pytest.mark.parametrize("timeout", ["0", "-1", "3601", "nan", "soon"])
def test_a_drain_time_out_of_bounds_activates_nothing(serving: Control, timeout: str) -> None:
    row = store(CONFIG.replace("max_concurrency = 3", "max_concurrency = 4"))

    response = operator().post(
        f"/configuration/snapshots/{row.pk}/activate/", {"drain": "yes", "drain_timeout": timeout}
    )

    assert response.status_code == 200
    assert activation.latest_job(serving.router) is None


def test_an_older_snapshot_can_be_activated_again(serving: Control) -> None:
    first = RouterSnapshot.objects.get()
    second = store(CONFIG.replace("max_concurrency = 3", "max_concurrency = 4"))
    client = operator()
    activate(serving, client, second)

    page = text_of(client.get(f"/configuration/snapshots/{first.pk}/"))
    assert '<div class="diff-added">+max_concurrency = 3</div>' in page

    activate(serving, client, first)
    assert serving.router.ledger.snapshot("solo").max_concurrency == 3


def test_the_list_of_snapshots_marks_the_active_one(serving: Control) -> None:
    first = RouterSnapshot.objects.get()
    second = store(CONFIG.replace("max_concurrency = 3", "max_concurrency = 4"))
    client = operator()

    listing = text_of(client.get("/admin/routing/routersnapshot/"))
    assert listing.count("badge-active") == 1
    assert second.config_sha256[:16] in listing

    response = client.get(f"/admin/routing/routersnapshot/{first.pk}/change/")
    assert (response.status_code, response["Location"]) == (302, f"/configuration/snapshots/{first.pk}/")
    assert client.get("/admin/routing/routersnapshot/x/change/").status_code == 404


def test_a_snapshot_that_is_damaged_is_told_and_not_offered(serving: Control) -> None:
    row = store(CONFIG)
    RouterSnapshot.objects.filter(pk=row.pk).update(config_bytes=b"[router]\n")

    page = text_of(operator().get(f"/configuration/snapshots/{row.pk}/"))

    assert "These bytes do not pass validation any more: router_config_invalid." in page
    assert f"/configuration/snapshots/{row.pk}/activate/" not in page


# The working copy ---------------------------------------------------------------------------------------


def test_what_is_active_is_loaded_in_one_click_and_published_unchanged(serving: Control) -> None:
    client, row = admin(), RouterSnapshot.objects.get()

    page = text_of(client.post(f"/configuration/snapshots/{row.pk}/load/", follow=True))

    assert f"The working copy is now what snapshot {row.pk} says." in page
    assert "same as what is active" in page
    assert [tier.identifier for tier in Tier.objects.all()] == ["chat", "solo", "plain", "healthy", "dynamic"]
    assert "It means exactly what is active now." in text_of(client.get("/configuration/publish/"))
    assert AuditEntry.objects.get().action == "load_working_copy"


def test_loading_over_unpublished_changes_asks_once_more(serving: Control) -> None:
    client, row = admin(), RouterSnapshot.objects.get()
    Tier.objects.create(identifier="draft", base_url="http://draft/v1", context_limit=1, model="m")

    page = text_of(client.post(f"/configuration/snapshots/{row.pk}/load/"))
    assert "those changes are lost unless they were published" in page
    assert Tier.objects.get().identifier == "draft"

    client.post(f"/configuration/snapshots/{row.pk}/load/", {"confirm": "yes"})
    assert Tier.objects.count() == 5


def test_edit_publish_compare_activate(serving: Control) -> None:
    client = admin()
    active = serving.router.active
    assert active is not None
    replace_working_copy(active.config, active.snapshot.topology)
    Tier.objects.filter(identifier="solo").update(max_concurrency=7)
    assert "differs from what is active" in text_of(client.get("/configuration/"))

    page = text_of(client.get("/configuration/publish/"))
    assert '<div class="diff-added">+max_concurrency = 7</div>' in page
    assert RouterSnapshot.objects.count() == 1

    response = client.post("/configuration/publish/", follow=True)
    row = RouterSnapshot.objects.first()
    assert row is not None
    assert response.redirect_chain == [(f"/configuration/snapshots/{row.pk}/", 302)]
    assert row.source == "publication"
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.through, entry.action, entry.subject) == (
        *("root", "console", "publish"),
        f"snapshot {row.pk}",
    )
    activate(serving, client, row)
    assert serving.router.ledger.snapshot("solo").max_concurrency == 7


def test_a_working_copy_with_faults_is_told_row_by_row(serving: Control) -> None:
    tier = Tier.objects.create(identifier="draft", base_url="ftp://draft", context_limit=1, model="m")

    page = text_of(admin().post("/configuration/publish/"))

    assert f'<a href="/admin/routing/tier/{tier.pk}/change/">tier draft</a>' in page
    assert '<span class="under">base_url</span>' in page
    assert RouterSnapshot.objects.count() == 1
    assert "1 fault<" in text_of(admin("other").get("/configuration/"))


def test_every_model_of_the_working_copy_has_its_pages(serving: Control) -> None:
    """A row of each, from a document that has every key."""
    full = CORPUS / "snapshots/valid-full"
    snapshot = validate_snapshot((full / "config.toml").read_bytes(), (full / "topology.toml").read_bytes())
    replace_working_copy(snapshot.config, snapshot.topology)
    copy = WorkingCopy.read()
    client = admin()
    rows = [
        *copy.tiers,
        *(member for members in copy.members.values() for member in members),
        *copy.routes,
        *copy.purpose_models,
        *copy.audio_routes,
        *copy.hosts,
        *copy.gpu_roles,
        *copy.resources,
        copy.settings,
    ]

    for row in rows:
        model = row._meta.model_name
        assert client.get(f"/admin/routing/{model}/{row.pk}/change/").status_code == 200, row
        assert client.get(f"/admin/routing/{model}/").status_code in (200, 302), row


# Forms --------------------------------------------------------------------------------------------------


def tier_form(**values: Any) -> dict[str, Any]:
    """The form of a tier as the page posts it: no aliases and no members unless ``values`` has some."""
    return {
        "identifier": "solo",
        "base_url": "http://solo/v1",
        "model": "qwen",
        "context_limit": "4096",
        "dialect": "openai",
        "privacy": "local",
        "metadata_source": "configured",
        "position": "0",
        "wires": "[]",
        "extra_body": "{}",
        "extra_body_defaults": "{}",
        "params": "{}",
        "routes-TOTAL_FORMS": "0",
        "routes-INITIAL_FORMS": "0",
        "members-TOTAL_FORMS": "0",
        "members-INITIAL_FORMS": "0",
        **values,
    }


def members(*rows: dict[str, str]) -> dict[str, str]:
    posted = {"members-TOTAL_FORMS": str(len(rows))}
    for number, row in enumerate(rows):
        default = {
            "identifier": f"member-{number}",
            "base_url": f"http://127.0.0.1:81{number:02}/v1",
            "host_id": "gpu-host",
            "resource_id": f"llm-{number}",
            "qualification_ref": "run-1",
            "max_concurrency": "2",
            "position": str(number),
        }
        posted |= {f"members-{number}-{key}": value for key, value in {**default, **row}.items()}
    return posted


REPLICAS = {
    "base_url": "",
    "replica_strategy": "capacity",
    "model_identity": "on",
    "model_revision": "a1",
    "engine_version": "0.11.0",
    "image_digest": f"sha256:{'1' * 64}",
    "config_fingerprint": f"sha256:{'2' * 64}",
}


def errors_of(response: Any) -> dict[str, list[str]]:
    """Field errors of the tier, and of each member as ``members[0].field``."""
    context = response.context
    found = {name: list(told) for name, told in context["adminform"].form.errors.items()}
    for inline in context["inline_admin_formsets"]:
        formset = inline.formset
        for number, told in enumerate(formset.errors):
            found |= {f"{formset.prefix}[{number}].{name}": list(each) for name, each in told.items()}
        if formset.non_form_errors():
            found[formset.prefix] = list(formset.non_form_errors())
    return found


def test_a_tier_with_members_and_aliases_is_added_in_one_form(serving: Control) -> None:
    alias = {"routes-TOTAL_FORMS": "1", "routes-0-alias": " LLM.Chat ", "routes-0-position": "0"}

    response = admin().post("/admin/routing/tier/add/", tier_form(**REPLICAS, **members({}, {}), **alias))

    assert response.status_code == 302, errors_of(response)
    assert [member.identifier for member in ReplicaMember.objects.all()] == ["member-0", "member-1"]
    assert ModelRoute.objects.get().alias == "llm.chat"


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"identifier": "no good"}, ["identifier"]),
        ({"context_limit": "0"}, ["context_limit"]),
        ({"base_url": "http://user:pw@solo/v1"}, ["base_url"]),
        ({"auth_env": "sk-live-0123456789abcdef"}, ["auth_env"]),
        ({"max_output_tokens": "5000"}, ["max_output_tokens"]),
        ({"extra_body": '{"stream": true}'}, ["extra_body"]),
        ({"params": '{"capacity": {"gpu_colour": 1}}'}, ["params"]),
        ({"timeout": "3601"}, ["timeout"]),
        ({"replica_strategy": "capacity"}, ["replica_strategy"]),
        ({**REPLICAS, **members({}, {}), "model_revision": ""}, ["model_revision"]),
        ({**REPLICAS, **members({})}, ["members"]),
        ({**REPLICAS, **members({}, {"base_url": "no url"})}, ["members[1].base_url"]),
        ({**REPLICAS, **members({}, {"identifier": "member-0"})}, ["members", "members[1].__all__"]),
        ({**REPLICAS, **members({}, {"max_concurrency": ""})}, ["members[1].max_concurrency"]),
        ({**REPLICAS, **members({}, {"resource_id": "llm-0"})}, ["members[1].resource_id"]),
        ({**REPLICAS, **members({}, {"host_id": "other"})}, ["members[1].host_id"]),
        (members({}, {}), ["members"]),
        (REPLICAS, ["members"]),
    ],
)
def test_the_rules_of_the_grammar_are_field_errors(
    serving: Control, values: dict[str, str], fields: list[str]
) -> None:
    response = admin().post("/admin/routing/tier/add/", tier_form(**values))

    assert response.status_code == 200
    assert sorted(errors_of(response)) == fields
    assert Tier.objects.count() == 0


def test_a_secret_in_a_field_is_told_without_repeating_it_in_the_message(serving: Control) -> None:
    response = admin().post("/admin/routing/tier/add/", tier_form(auth_env="sk-live-0123456789abcdef"))

    assert "sk-live" not in " ".join(errors_of(response)["auth_env"])


def test_settings_are_one_row_that_is_there_from_the_start(serving: Control) -> None:
    client = admin()
    page = "/admin/routing/routersettings/1/change/"
    assert client.get("/admin/routing/routersettings/")["Location"] == page
    assert client.get("/admin/routing/routersettings/2/change/").status_code == 302
    settings = RouterSettings.current()
    posted = {
        field.name: getattr(settings, field.name)
        for field in settings._meta.fields
        if field.name != "id" and getattr(settings, field.name) is not None
    }

    response = client.post(page, {**posted, "exhaustion_status": "529"})
    assert response.status_code == 302
    assert RouterSettings.objects.get().exhaustion_status == 529

    response = client.post(page, {**posted, "relay_timeout": "0"})
    assert list(response.context["adminform"].form.errors) == ["relay_timeout"]
    assert client.get("/admin/routing/routersettings/add/").status_code == 403
