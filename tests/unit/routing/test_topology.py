"""Topologies: values, faults word for word, overlays (Q-R004, Q-T006, contract 1)."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.topology import (
    FIELD_RULES,
    GpuRole,
    Host,
    Resource,
    Topology,
    TopologyError,
    check_field,
    parse_topology,
    table_faults,
)
from tests import corpus

Edit = tuple[str, str]

FULL_TEXT = corpus.read("topology/valid/full.toml").decode()
SAFE_ID = "must be a letter and up to 63 more letters, digits, _ or -"
URL = "must be an http or https URL with a host and without user, query or fragment"

FULL = Topology(
    id="lab",
    hosts=(Host(id="gpu-host-1", roles=("inference", "router"), address="10.0.0.11", os="Debian 13"),),
    gpu_roles=(
        GpuRole(
            id="gpu-main",
            host="gpu-host-1",
            uuid="GPU-6f5d1a52-1111-2222-3333-444455556666",
            vram_mib=97887,
            reserve_mib=2048,
        ),
    ),
    resources=(
        Resource(
            id="llm-a",
            host="gpu-host-1",
            role="llm",
            endpoint="http://127.0.0.1:8101/v1",
            endpoint_kind="openai",
            workload="qwen3-32b",
            gpu_role="gpu-main",
        ),
        Resource(id="llm-b", host="gpu-host-1", role="llm", endpoint="http://127.0.0.1:8102/v1"),
    ),
)


def faults(text: str, overlay: str | None = None) -> list[str]:
    with pytest.raises(TopologyError) as refused:
        parse_topology(text.encode(), None if overlay is None else overlay.encode())
    return [str(fault) for fault in refused.value.faults]


@pytest.mark.requirement("contract 1")
def test_the_full_document_becomes_exactly_these_values() -> None:
    assert parse_topology(FULL_TEXT.encode()) == FULL


@pytest.mark.requirement("contract 1")
def test_the_full_document_uses_every_key_of_the_grammar() -> None:
    for kind, cls, values in (
        ("host", Host, FULL.hosts),
        ("resource", Resource, FULL.resources),
        ("gpu_role", GpuRole, FULL.gpu_roles),
    ):
        assert {field.name for field in dataclasses.fields(cls)} == set(FIELD_RULES[kind])
        assert all(getattr(values[0], key) is not None for key in FIELD_RULES[kind])


def test_optional_keys_are_absent_as_none() -> None:
    assert FULL.resource("llm-b") == Resource(
        id="llm-b",
        host="gpu-host-1",
        role="llm",
        endpoint="http://127.0.0.1:8102/v1",
        endpoint_kind=None,
        workload=None,
        gpu_role=None,
    )
    assert FULL.resource("llm-c") is None
    assert parse_topology(corpus.read("topology/valid/bare.toml")) == Topology(id="bare")


@pytest.mark.requirement("Q-R012")
def test_no_repr_shows_an_address_an_endpoint_or_a_device() -> None:
    shown = repr(parse_topology(FULL_TEXT.encode()))
    for hidden in ("10.0.0.11", "127.0.0.1", "GPU-6f5d"):
        assert hidden not in shown


def test_nothing_in_a_topology_can_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.resources[0].endpoint = None  # type: ignore[misc]


ONE_FAULT: dict[str, tuple[Edit, str]] = {
    "schema_version absent": (("schema_version = 1\n", ""), "schema_version: is required"),
    "schema_version 2": (("schema_version = 1", "schema_version = 2"), "schema_version: must be 1, not 2"),
    "schema_version true": (
        ("schema_version = 1", "schema_version = true"),
        "schema_version: must be 1, not true",
    ),
    "schema_version 1.0": (
        ("schema_version = 1", "schema_version = 1.0"),
        "schema_version: must be 1, not 1.0",
    ),
    "schema_version text": (
        ("schema_version = 1", 'schema_version = "1"'),
        'schema_version: must be 1, not "1"',
    ),
    "id absent": (('id = "lab"\n', ""), "id: is required"),
    "id unsafe": (('id = "lab"', 'id = "the lab"'), f'id: {SAFE_ID}, not "the lab"'),
    "unknown key": (('id = "lab"', 'id = "lab"\nowner = "x"'), "owner: is not a known key"),
    "unknown host key": (("os =", "kernel ="), "hosts[0].kernel: is not a known key"),
    "unknown resource key": (("workload =", "load ="), "resources[0].load: is not a known key"),
    "unknown gpu key": (("vram_mib =", "vram ="), "gpu_roles[0].vram: is not a known key"),
    "hosts is a table": (
        (FULL_TEXT[FULL_TEXT.index("[[hosts]]") :], "[hosts]\n"),
        "hosts: must be an array of tables",
    ),
    "roles absent": (('roles = ["inference", "router"]\n', ""), "hosts[0].roles: is required"),
    "roles text": (
        ('["inference", "router"]', '"inference"'),
        'hosts[0].roles: must be an array of strings, not "inference"',
    ),
    "role unsafe": (('"router"]', '"the router"]'), f'hosts[0].roles[1]: {SAFE_ID}, not "the router"'),
    "role twice": (('"router"]', '"inference"]'), "hosts[0].roles[1]: is listed twice"),
    "address": (
        ('"10.0.0.11"', '"10.0.0.11 "'),
        'hosts[0].address: must be a host name or address of 1 to 253 characters, not "10.0.0.11 "',
    ),
    "os empty": (
        ('"Debian 13"', '""'),
        "hosts[0].os: must be 1 to 64 printable characters without white space around them",
    ),
    "gpu host unknown": (
        ('host = "gpu-host-1"\nuuid', 'host = "gpu-host-2"\nuuid'),
        'gpu_roles[0].host: must be the id of a configured host, not "gpu-host-2"',
    ),
    "uuid absent": (
        ('uuid = "GPU-6f5d1a52-1111-2222-3333-444455556666"\n', ""),
        "gpu_roles[0].uuid: is required",
    ),
    "vram zero": (
        ("vram_mib = 97887", "vram_mib = 0"),
        "gpu_roles[0].vram_mib: must be an integer from 1 to 100000000, not 0",
    ),
    "reserve over vram": (
        ("reserve_mib = 2048", "reserve_mib = 97888"),
        "gpu_roles[0].reserve_mib: must be at most vram_mib, 97887, not 97888",
    ),
    "reserve negative": (
        ("reserve_mib = 2048", "reserve_mib = -1"),
        "gpu_roles[0].reserve_mib: must be an integer from 0 to 100000000, not -1",
    ),
    "resource id twice": (('"llm-b"', '"llm-a"'), "resources[1].id: is the same as resources[0].id"),
    "resource id unsafe": (('"llm-b"', '"llm.b"'), f'resources[1].id: {SAFE_ID}, not "llm.b"'),
    "resource host unknown": (
        ('"llm-b"\nhost = "gpu-host-1"', '"llm-b"\nhost = "gpu-host-9"'),
        'resources[1].host: must be the id of a configured host, not "gpu-host-9"',
    ),
    "resource role absent": (
        ('"gpu-host-1"\nrole = "llm"', '"gpu-host-1"'),
        "resources[0].role: is required",
    ),
    "endpoint empty": (('"http://127.0.0.1:8101/v1"', '""'), f"resources[0].endpoint: {URL}"),
    "endpoint with a user": (("http://127", "http://u:p@127"), f"resources[0].endpoint: {URL}"),
    "gpu role unknown": (
        ('gpu_role = "gpu-main"', 'gpu_role = "gpu-spare"'),
        'resources[0].gpu_role: must be the id of a configured GPU role, not "gpu-spare"',
    ),
}


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize(("edit", "expected"), ONE_FAULT.values(), ids=ONE_FAULT.keys())
def test_each_broken_rule_is_exactly_one_fault(edit: Edit, expected: str) -> None:
    assert edit[0] in FULL_TEXT
    assert faults(FULL_TEXT.replace(edit[0], edit[1], 1)) == [expected]


@pytest.mark.requirement("contract 1")
def test_a_resource_uses_a_gpu_of_its_own_host() -> None:
    text = FULL_TEXT + '[[hosts]]\nid = "gpu-host-2"\nroles = []\n'
    moved = text.replace('id = "llm-a"\nhost = "gpu-host-1"', 'id = "llm-a"\nhost = "gpu-host-2"')
    assert faults(moved) == ["resources[0].gpu_role: must be on the resource's own host"]


@pytest.mark.requirement("contract 1")
@pytest.mark.parametrize("document", corpus.documents("topology", "invalid"), ids=lambda path: path.stem)
def test_all_faults_of_a_document_come_together_in_its_order(document: Path) -> None:
    assert faults_of(document.read_bytes()) == corpus.expected_faults(document)


def faults_of(data: bytes) -> list[str]:
    with pytest.raises(TopologyError) as refused:
        parse_topology(data)
    return [str(fault) for fault in refused.value.faults]


@pytest.mark.requirement("contract 1")
def test_a_topology_of_more_than_one_mebibyte_is_refused() -> None:
    assert faults_of(b"#" * 1_048_577) == ["document: is larger than 1048576 bytes"]


# --- Overlays ---


@pytest.mark.requirement("contract 1")
def test_an_overlay_replaces_whole_entries_in_place_and_adds_others() -> None:
    overlay = """
schema_version = 1

[[resources]]
id = "llm-c"
host = "gpu-host-2"
role = "llm"

[[resources]]
id = "llm-a"
host = "gpu-host-1"
role = "llm"
endpoint = "http://10.0.0.11:9101/v1"

[[hosts]]
id = "gpu-host-2"
roles = []
"""
    topology = parse_topology(FULL_TEXT.encode(), overlay.encode())
    assert topology.id == "lab"
    assert [resource.id for resource in topology.resources] == ["llm-a", "llm-b", "llm-c"]
    assert topology.resource("llm-a") == Resource(
        id="llm-a", host="gpu-host-1", role="llm", endpoint="http://10.0.0.11:9101/v1"
    )
    assert topology.hosts == (*FULL.hosts, Host(id="gpu-host-2", roles=()))
    assert topology.gpu_roles == FULL.gpu_roles


@pytest.mark.requirement("contract 1")
def test_an_overlay_may_rename_the_topology_and_may_be_otherwise_empty() -> None:
    assert parse_topology(FULL_TEXT.encode(), b"schema_version = 1\n") == FULL
    renamed = parse_topology(FULL_TEXT.encode(), b'schema_version = 1\nid = "private"\n')
    assert renamed == dataclasses.replace(FULL, id="private")


@pytest.mark.requirement("contract 1")
def test_references_are_checked_on_the_result_where_they_are_written() -> None:
    """An overlay that moves a GPU to another host breaks the base's reference to it, and its own."""
    overlay = """
schema_version = 1
[[hosts]]
id = "gpu-host-2"
roles = []
[[gpu_roles]]
id = "gpu-main"
host = "gpu-host-2"
uuid = "GPU-2"
[[resources]]
id = "llm-c"
host = "gpu-host-3"
role = "llm"
"""
    assert faults(FULL_TEXT, overlay) == [
        "resources[0].gpu_role: must be on the resource's own host",
        'overlay.resources[0].host: must be the id of a configured host, not "gpu-host-3"',
    ]


@pytest.mark.requirement("contract 1")
def test_a_replaced_entry_of_the_base_no_longer_needs_its_references() -> None:
    base = FULL_TEXT.replace('gpu_role = "gpu-main"', 'gpu_role = "gpu-main"', 1).replace(
        '[[gpu_roles]]\nid = "gpu-main"', '[[gpu_roles]]\nid = "gpu-other"'
    )
    overlay = 'schema_version = 1\n[[resources]]\nid = "llm-a"\nhost = "gpu-host-1"\nrole = "llm"\n'
    assert faults(base) == ['resources[0].gpu_role: must be the id of a configured GPU role, not "gpu-main"']
    assert parse_topology(base.encode(), overlay.encode()).resources[0].gpu_role is None


@pytest.mark.requirement("contract 1")
def test_faults_of_both_documents_come_together() -> None:
    assert faults(
        "schema_version = 2\nid = 'x'\n", "hosts = [{ id = 'h', roles = [], x = 1 }, { id = 'h' }]"
    ) == [
        "schema_version: must be 1, not 2",
        "overlay.schema_version: is required",
        "overlay.hosts[0].x: is not a known key",
        "overlay.hosts[1].roles: is required",
        "overlay.hosts[1].id: is the same as overlay.hosts[0].id",
    ]


@pytest.mark.requirement("contract 1")
def test_a_document_that_can_not_be_parsed_leaves_no_references_to_check() -> None:
    resource = 'schema_version = 1\n[[resources]]\nid = "llm-a"\nhost = "gpu-host-1"\nrole = "llm"\n'
    assert faults("= 1", resource) == ["document: is not valid TOML: Invalid statement (at line 1, column 1)"]
    assert faults(FULL_TEXT, "= 1") == ["overlay: is not valid TOML: Invalid statement (at line 1, column 1)"]
    with pytest.raises(TopologyError) as refused:
        parse_topology(b"\xff", b"\xff")
    assert str(refused.value) == "document: is not UTF-8\noverlay: is not UTF-8"


# --- One value or table at a time, and anything at all ---


def test_a_single_value_or_table_is_held_to_its_rules() -> None:
    assert check_field("host", "roles", ["a", "b"]) == ("a", "b")
    with pytest.raises(ValueError, match=r"^must be 1, not 2$"):
        check_field("topology", "schema_version", 2)
    role = {"id": "g", "host": "elsewhere", "uuid": "u", "vram_mib": 1, "reserve_mib": 2}
    assert [str(fault) for fault in table_faults("gpu_role", role)] == [
        "reserve_mib: must be at most vram_mib, 1, not 2"
    ]
    assert [str(fault) for fault in table_faults("host", {"id": "h"})] == ["roles: is required"]


@pytest.mark.requirement("contract 1")
@given(st.binary(max_size=200), st.none() | st.binary(max_size=200))
def test_arbitrary_bytes_are_accepted_or_refused_with_faults(data: bytes, overlay: bytes | None) -> None:
    try:
        parse_topology(data, overlay)
    except TopologyError as error:
        assert error.faults  # noqa: PT017 - both outcomes are right; only the kind of refusal is at stake


@pytest.mark.requirement("contract 1")
@given(st.integers(0, len(FULL_TEXT)), st.integers(0, 40), st.binary(max_size=8), st.booleans())
def test_a_damaged_document_is_accepted_or_refused_with_faults(
    start: int, length: int, put: bytes, as_overlay: bool
) -> None:
    whole = FULL_TEXT.encode()
    damaged = whole[:start] + put + whole[start + length :]
    try:
        parse_topology(whole if as_overlay else damaged, damaged if as_overlay else None)
    except TopologyError as error:
        assert error.faults  # noqa: PT017 - both outcomes are right; only the kind of refusal is at stake
