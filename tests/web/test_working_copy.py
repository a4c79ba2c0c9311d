"""The working copy: rows in, documents out, and back (contract 1; house "One pipeline for configuration")."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError
from django.db import models as django_models

from routing import config, publishing, topology, working_copy
from routing.audit import Through
from routing.config import parse_config
from routing.models import (
    AudioRoute,
    AuditEntry,
    GpuRole,
    Host,
    ModelRoute,
    PurposeModel,
    ReplicaMember,
    Resource,
    RouterSettings,
    RouterSnapshot,
    Tier,
)
from routing.rendering import config_document, topology_document
from routing.snapshot import SnapshotError
from routing.topology import parse_topology
from routing.working_copy import (
    WorkingCopy,
    load_snapshot_into_working_copy,
    replace_working_copy,
    tier_faults,
)
from tests import corpus

pytestmark = pytest.mark.django_db

DIRECT: dict[str, Any] = {"identifier": "solo", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
MINIMAL = corpus.read("config/valid/direct.toml")


def capture(name: str, *, actor: str = "ada") -> RouterSnapshot:
    row, _ = publishing.capture(
        *corpus.snapshot_case(name).data(), source=RouterSnapshot.Source.CLI, actor=actor
    )
    return row


def load(name: str) -> None:
    load_snapshot_into_working_copy(capture(name))


def publish() -> RouterSnapshot:
    row, _ = working_copy.publish(actor="ada", through=Through.CONSOLE)
    return row


def names(document: Path) -> str:
    return document.stem


# --- No key is lost ---------------------------------------------------------------------------------------

COLUMNS_OF: dict[str, type[django_models.Model]] = {
    "server": RouterSettings,
    "router": RouterSettings,
    "model_route": ModelRoute,
    "tier": Tier,
    "replica_identity": Tier,
    "replica": ReplicaMember,
    "purpose_model": PurposeModel,
    "audio_route": AudioRoute,
    "host": Host,
    "resource": Resource,
    "gpu_role": GpuRole,
}


@pytest.mark.parametrize("table", [*config.FIELD_RULES, *topology.FIELD_RULES])
def test_every_key_of_both_grammars_has_a_column(table: str) -> None:
    if table == "topology":
        # The version is the grammar's own; there is one.
        assert set(topology.FIELD_RULES[table]) == {"schema_version", "id"}
        assert RouterSettings._meta.get_field("topology_id")
        return
    rules = config.FIELD_RULES.get(table) or topology.FIELD_RULES[table]
    model = COLUMNS_OF[table]
    columns = getattr(model, "COLUMNS", {})
    for key in rules:
        assert model._meta.get_field(columns.get(key, key) if table != "replica_identity" else key)


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize("document", corpus.documents("config", "valid"), ids=names)
def test_a_configuration_comes_back_from_the_rows_equal(document: Path) -> None:
    parsed = parse_config(document.read_bytes())
    replace_working_copy(parsed, None)
    rendered, no_topology = WorkingCopy.read().render()
    again = parse_config(rendered)
    assert again == parsed
    assert no_topology is None
    # Stricter than ==, to which 1 and true are the same, and in document order.
    assert json.dumps(config_document(again)) == json.dumps(config_document(parsed))
    assert list(again.model_routes.items()) == list(parsed.model_routes.items())


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize("document", corpus.documents("topology", "valid"), ids=names)
def test_a_topology_comes_back_from_the_rows_equal(document: Path) -> None:
    parsed = parse_topology(document.read_bytes())
    replace_working_copy(parse_config(MINIMAL), parsed)
    _, rendered = WorkingCopy.read().render()
    assert rendered is not None
    assert parse_topology(rendered) == parsed


@pytest.mark.requirement("contract 1", "Q-R004")
@pytest.mark.parametrize("case", corpus.snapshot_cases(valid=True), ids=lambda case: case.name)
def test_a_snapshot_is_loaded_published_and_loaded_again_without_a_difference(
    case: corpus.SnapshotCase,
) -> None:
    original = publishing.load(capture(case.name))
    load(case.name)
    assert WorkingCopy.read().faults() == ()
    assert not WorkingCopy.read().differs_from(original)
    published = publishing.load(publish())
    assert published.config == original.config
    assert published.topology == original.topology
    assert publishing.diff(original, published).is_empty
    assert publishing.diff(original, published).plan.is_empty


def test_what_an_overlay_changed_is_in_the_one_topology_that_is_published() -> None:
    load("valid-overlay")
    row = publish()
    assert row.overlay_bytes is None
    effective = publishing.load(row).topology
    assert effective is not None
    assert {resource.id: resource.endpoint for resource in effective.resources} == {
        "llm-a": "http://127.0.0.1:8101/v1",
        "llm-b": "http://127.0.0.1:8102/v1",
    }


def test_loading_replaces_everything_and_keeps_the_order() -> None:
    load("valid-full")
    load("valid-replica")
    loaded = WorkingCopy.read()
    assert [tier.identifier for tier in loaded.tiers] == ["pair"]
    assert [member.identifier for member in loaded.members[loaded.tiers[0].pk]] == ["member-a", "member-b"]
    assert (loaded.purpose_models, loaded.audio_routes) == ((), ())
    Tier.objects.create(**DIRECT, context_limit=1, position=0)
    Tier.objects.filter(identifier="pair").update(position=1)
    assert [tier.identifier for tier in WorkingCopy.read().tiers] == ["solo", "pair"]


def test_a_snapshot_that_is_not_valid_any_more_leaves_the_working_copy_alone() -> None:
    load("valid-direct")
    row = capture("valid-full")
    row.topology_bytes = b"schema_version = 2"
    row.save()
    with pytest.raises(SnapshotError) as caught:
        load_snapshot_into_working_copy(row)
    assert caught.value.code == "topology_invalid"
    assert [tier.identifier for tier in WorkingCopy.read().tiers] == ["primary"]


# --- Publishing -------------------------------------------------------------------------------------------


def test_publishing_writes_the_rows_once_and_captures_those_bytes() -> None:
    load("valid-full")
    row = publish()
    assert publishing.captured(row) == (*WorkingCopy.read().render(), None)
    assert (row.source, row.created_by) == ("publication", "ada")
    assert publishing.active_row() is None


def test_a_publication_and_its_audit_entry_are_kept_or_lost_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load("valid-full")
    stored = RouterSnapshot.objects.count()

    def fail(**entry: object) -> None:
        raise OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("routing.audit.record", fail)
        with pytest.raises(OperationalError):
            publish()
    assert RouterSnapshot.objects.count() == stored

    row = publish()
    assert publish() == row
    assert list(AuditEntry.objects.values_list("actor", "through", "action", "subject", "result")) == [
        ("ada", "console", "publish", f"snapshot {row.pk}", "stored")
    ]


def test_an_empty_working_copy_can_not_be_published() -> None:
    assert WorkingCopy.read().is_empty
    with pytest.raises(SnapshotError) as caught:
        publish()
    assert caught.value.code == "router_config_invalid"
    assert not RouterSnapshot.objects.exists()
    assert [str(fault) for fault in WorkingCopy.read().faults()] == ["config: router.tiers: is required"]


def test_it_differs_from_what_is_active_by_meaning_and_not_by_layout() -> None:
    active = publishing.load(capture("valid-full"))
    assert WorkingCopy.read().differs_from(active)
    load("valid-full")
    assert not WorkingCopy.read().differs_from(active)
    tier = Tier.objects.get(identifier="primary")
    tier.extra_body = {**tier.extra_body, "skip_special_tokens": 1}
    tier.save()
    assert WorkingCopy.read().differs_from(active)
    assert WorkingCopy.read().differs_from(None)


# --- Faults, and where to mend them -----------------------------------------------------------------------


def test_every_fault_of_the_working_copy_names_its_row_and_column() -> None:
    load("valid-full")
    settings = RouterSettings.current()
    settings.relay_timeout = 0.0
    settings.save()
    pair = Tier.objects.get(identifier="primary")
    pair.image_digest = "sha256:1"
    pair.params = {"capacity": {"image_limit": -1}}
    pair.save()
    member = ReplicaMember.objects.get(identifier="member-b")
    member.base_url = "http://127.0.0.1:9999/v1"
    member.max_concurrency = None
    member.save()
    AudioRoute.objects.filter(identifier="whisper").update(source_sample_rate=16000)
    Resource.objects.filter(identifier="llm-a").update(endpoint="ftp://x")
    route = ModelRoute.objects.get(alias="llm.fast")
    route.alias = "capacity"
    route.save()
    found = [
        (str(fault.fault.fault.path), type(fault.row).__name__, str(fault.row), fault.column)
        for fault in WorkingCopy.read().faults()
    ]
    assert found == [
        ("router.relay_timeout", "RouterSettings", "router settings", "relay_timeout"),
        ("router.model_routes.capacity", "ModelRoute", "capacity", None),
        ("router.tiers[0].params.capacity.image_limit", "Tier", "primary", "params"),
        ("router.tiers[0].replica_identity.image_digest", "Tier", "primary", "image_digest"),
        ("router.tiers[0].replicas[1].max_concurrency", "ReplicaMember", "member-b", "max_concurrency"),
        ("router.audio_routes[0].source_sample_rate", "AudioRoute", "whisper", "source_sample_rate"),
        ("resources[0].endpoint", "Resource", "llm-a", "endpoint"),
    ]


def test_a_fault_of_the_join_is_at_the_member() -> None:
    load("valid-replica")
    ReplicaMember.objects.filter(identifier="member-b").update(base_url="http://127.0.0.1:9/v1")
    (fault,) = WorkingCopy.read().faults()
    assert fault.fault.code == "replica_endpoint_mismatch"
    assert (str(fault.row), fault.column) == ("member-b", "base_url")


def test_a_tier_with_a_url_and_members_is_at_fault_itself() -> None:
    load("valid-replica")
    Tier.objects.update(base_url="http://127.0.0.1:9/v1")
    (fault,) = WorkingCopy.read().faults()
    assert str(fault) == "config: router.tiers[0]: must have exactly one of base_url and replicas"
    assert (str(fault.row), fault.column) == ("pair", None)


# --- Field errors in the console --------------------------------------------------------------------------


def errors_of(row: django_models.Model) -> dict[str, list[str]]:
    try:
        row.full_clean()
    except ValidationError as error:
        return error.message_dict
    return {}


@pytest.mark.parametrize("name", ["valid-full", "valid-replica", "valid-direct", "valid-overlay"])
def test_every_row_of_a_valid_snapshot_is_clean(name: str) -> None:
    load(name)
    loaded = WorkingCopy.read()
    members = [member for found in loaded.members.values() for member in found]
    for row in (
        loaded.settings,
        *loaded.tiers,
        *members,
        *loaded.routes,
        *loaded.purpose_models,
        *loaded.audio_routes,
        *loaded.hosts,
        *loaded.gpu_roles,
        *loaded.resources,
    ):
        assert errors_of(row) == {}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("identifier", "9", 'must be a letter and up to 63 more letters, digits, _ or -, not "9"'),
        (
            "base_url",
            "http://user@host/",
            "must be an http or https URL with a host and without user, query or fragment",
        ),
        ("context_limit", 0, "must be an integer from 1 to 10000000, not 0"),
        ("timeout", 3601.0, "must be a number over 0 and at most 3600, not 3601.0"),
        (
            "auth_env",
            "sk-secret",
            "must be the name of an environment variable (A-Z, 0-9 and _), never a secret itself",
        ),
        ("wires", ["chat", "smoke"], '[1]: must be "chat" or "responses" or "messages", not "smoke"'),
        ("extra_body", {"model": "x"}, "model: is the router's own to set"),
        ("params", {"capacity": {"gpu": 1}}, "capacity.gpu: is not a known key"),
        ("max_output_tokens", 2000, "must be at most context_limit, 1000, not 2000"),
        ("replica_strategy", "capacity", "is for replica tiers only"),
        ("model", "", 'is required, unless metadata_source is "upstream"'),
        ("image_digest", "sha256:1", "must be sha256: and 64 lower-case hex digits"),
    ],
)
def test_a_rule_is_an_error_of_its_field_told_once(column: str, value: Any, message: str) -> None:
    row = Tier(**{**DIRECT, "context_limit": 1000, column: value})
    errors = errors_of(row)
    assert [text for text in errors[column] if text.startswith(message)] == errors[column]
    assert len(errors[column]) == 1


def test_a_replica_tier_is_held_to_its_shape_without_its_members() -> None:
    assert errors_of(Tier(identifier="pair", context_limit=1)) == {
        "model": ["is required on a replica tier"],
        "model_revision": ["is required on a replica tier"],
        "model_identity": ["must be true on a replica tier"],
    }


def test_the_members_of_a_tier_are_judged_with_it() -> None:
    load("valid-full")
    tier = Tier.objects.get(identifier="primary")
    first, second = tier.members.all()
    second.max_concurrency = None
    assert [str(fault) for fault in tier_faults(tier, [first, second])] == [
        "replicas[1].max_concurrency: is required on every member in capacity mode"
    ]
    assert [str(fault) for fault in tier_faults(tier, [first])] == [
        "replicas: must hold 2 to 16 members, not 1"
    ]


def test_an_alias_is_kept_in_the_form_in_which_it_is_looked_up() -> None:
    load("valid-direct")
    tier = Tier.objects.get()
    route = ModelRoute(alias="  LLM.Other ", tier=tier)
    route.full_clean()
    assert route.alias == "llm.other"
    twin = ModelRoute(alias="LLM.Primary", tier=tier)
    assert "alias" in errors_of(twin)
    assert "alias" in errors_of(ModelRoute(alias="capabilities", tier=tier))


def test_settings_and_topology_rows_are_held_to_their_rules_too() -> None:
    assert errors_of(RouterSettings(exhaustion_status=500, auth_env="sk-x")).keys() == {
        "exhaustion_status",
        "auth_env",
    }
    assert errors_of(RouterSettings(topology_id="9")).keys() == {"topology_id"}
    host = Host.objects.create(identifier="gpu-host", roles=["gpu"])
    assert errors_of(GpuRole(identifier="main", host=host, uuid="GPU-1", vram_mib=1, reserve_mib=2)) == {
        "reserve_mib": ["must be at most vram_mib, 1, not 2"]
    }
    assert errors_of(Resource(identifier="r", host=host, role="llm", endpoint="nowhere")).keys() == {
        "endpoint"
    }
    assert errors_of(
        AudioRoute(identifier="a", purpose="stt", model="m", base_url="http://h/", source_sample_rate=8000)
    ) == {"source_sample_rate": ["is for tts only"]}


def test_a_zero_that_the_grammar_allows_is_a_value() -> None:
    host = Host.objects.create(identifier="gpu-host", roles=[])
    GpuRole.objects.create(identifier="main", host=host, uuid="GPU-1", reserve_mib=0)
    settings = RouterSettings.current()
    settings.topology_id = "lab"
    settings.save()
    rendered = WorkingCopy.read().render()[1]
    assert rendered is not None
    parsed = parse_topology(rendered)
    assert parsed.gpu_roles[0].reserve_mib == 0
    assert parsed.hosts[0].roles == ()
    assert parsed.id == "lab"
    assert topology_document(parsed)["hosts"] == [{"id": "gpu-host", "roles": []}]
