"""Validated snapshots: the join, its nine codes, what is kept (Q-R004, Q-T006, Q-T014, Q-T015)."""

import dataclasses
import hashlib
import os
import socket
import traceback
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import snapshot as snapshot_module
from routing.config import parse_config, read_config
from routing.snapshot import (
    CODES,
    SnapshotError,
    ValidatedSnapshot,
    capture,
    join_faults,
    validate_files,
    validate_snapshot,
    validation_result,
)
from routing.topology import parse_topology
from tests import corpus

PAIR = corpus.read("snapshots/valid-replica/config.toml")
TOPOLOGY = corpus.read("snapshots/valid-replica/topology.toml")
DIRECT = corpus.read("config/valid/direct.toml")

TEXTS = {
    "config_too_large": "The router configuration is larger than 1 MiB.",
    "router_config_invalid": "The router configuration is not valid.",
    "topology_invalid": "The topology is not valid.",
    "replica_resource_missing": "A replica member's resource is not in the topology.",
    "replica_resource_reused": "A resource is used by more than one replica member.",
    "replica_host_mismatch": "A replica member's resource is not on its declared host.",
    "replica_endpoint_missing": "A replica member's resource has no endpoint.",
    "replica_endpoint_mismatch": "A replica member's URL is not its resource's endpoint.",
    "replica_host_split": "The members of a replica tier are not all on one host.",
}


def refusal(config: bytes, topology: bytes | None = None, overlay: bytes | None = None) -> SnapshotError:
    with pytest.raises(SnapshotError) as refused:
        validate_snapshot(config, topology, overlay)
    return refused.value


def edited(data: bytes, *edits: tuple[str, str]) -> bytes:
    text = data.decode()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text.encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- What is kept ---


@pytest.mark.requirement("Q-R004", "Q-T006")
def test_a_snapshot_keeps_the_exact_bytes_their_digests_and_counts() -> None:
    config, topology, overlay = corpus.snapshot_case("valid-overlay").data()
    assert topology is not None
    assert overlay is not None
    snapshot = validate_snapshot(config, topology, overlay)
    assert (snapshot.config_bytes, snapshot.topology_bytes, snapshot.overlay_bytes) == (
        config,
        topology,
        overlay,
    )
    assert snapshot.config_sha256 == sha256(config)
    assert snapshot.topology_sha256 == sha256(topology)
    assert snapshot.overlay_sha256 == sha256(overlay)
    assert snapshot.config == parse_config(config)
    assert snapshot.topology == parse_topology(topology, overlay)
    assert (snapshot.tier_count, snapshot.replica_tier_count, snapshot.replica_member_count) == (1, 1, 2)
    assert snapshot.deployment_identity_source == "declared"
    assert snapshot.runtime_deployment_identity_verified is False
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.tier_count = 2  # type: ignore[misc]


@pytest.mark.requirement("Q-R004", "Q-T015")
def test_bytes_are_kept_as_they_came_line_endings_and_comments_included() -> None:
    config = b"# \xc3\xa9t\xc3\xa9\r\n" + DIRECT.replace(b"\n", b"\r\n")
    assert validate_snapshot(config).config_bytes == config


@pytest.mark.requirement("Q-T006", "Q-R012")
def test_the_repr_shows_counts_and_nothing_of_the_documents() -> None:
    assert repr(validate_snapshot(*corpus.snapshot_case("valid-full").data())) == (
        "ValidatedSnapshot(tier_count=2, replica_tier_count=1, replica_member_count=2, "
        "deployment_identity_source='declared', runtime_deployment_identity_verified=False)"
    )


@pytest.mark.requirement("Q-T006")
def test_a_direct_configuration_needs_no_topology_but_a_given_one_must_be_valid() -> None:
    snapshot = validate_snapshot(DIRECT)
    assert (snapshot.topology, snapshot.topology_bytes, snapshot.topology_sha256) == (None, None, None)
    assert (snapshot.overlay_bytes, snapshot.overlay_sha256) == (None, None)
    assert (snapshot.tier_count, snapshot.replica_tier_count, snapshot.replica_member_count) == (1, 0, 0)
    assert validate_snapshot(DIRECT, TOPOLOGY).topology == parse_topology(TOPOLOGY)
    assert refusal(DIRECT, b"").code == "topology_invalid"


@pytest.mark.requirement("Q-R004")
@pytest.mark.parametrize("case", corpus.snapshot_cases(valid=True), ids=lambda case: case.name)
def test_every_valid_case_of_the_corpus_is_accepted(case: corpus.SnapshotCase) -> None:
    assert validate_snapshot(*case.data()) == validate_files(case.config, case.topology, case.overlay)


# --- The join ---


@pytest.mark.requirement("Q-R004")
@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:8101/v1", "HTTP://127.0.0.1:8101/v1"),
        ("http://127.0.0.1:8101/v1", "http://127.0.0.1:8101/v1/"),
        ("http://Engine.Internal/v1", "http://engine.internal:80/v1"),
        ("https://engine.internal:443", "https://ENGINE.internal/"),
        ("http://[::1]:8101/v1", "http://[::1]:8101/v1/"),
        ("http://[2001:DB8::A]:8101", "http://[2001:db8::a]:8101"),
    ],
)
def test_endpoints_match_after_normalisation(url: str, endpoint: str) -> None:
    config = edited(PAIR, ("http://127.0.0.1:8101/v1", url))
    topology = edited(TOPOLOGY, ("HTTP://127.0.0.1:8101/v1/", endpoint))
    assert validate_snapshot(config, topology).replica_member_count == 2


@pytest.mark.requirement("Q-R004")
@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:8101/v1", "https://127.0.0.1:8101/v1"),
        ("http://127.0.0.1:8101/v1", "http://localhost:8101/v1"),
        ("http://127.0.0.1:8101/v1", "http://127.0.0.1:8101"),
        ("http://127.0.0.1:8101/v1", "http://127.0.0.1:8101/V1"),
        ("http://engine.internal/v1", "https://engine.internal:80/v1"),
        ("http://engine.internal/v1", "http://engine.internal.:80/v1"),
        ("http://127.0.0.1:8101/v1", "http://127.0.0.1:8103/v1"),
    ],
)
def test_other_endpoints_do_not_match_not_even_another_name_of_the_same_address(
    url: str, endpoint: str
) -> None:
    config = edited(PAIR, ("http://127.0.0.1:8101/v1", url))
    topology = edited(TOPOLOGY, ("HTTP://127.0.0.1:8101/v1/", endpoint))
    assert refusal(config, topology).code == "replica_endpoint_mismatch"


@pytest.mark.requirement("Q-R004", "Q-T006")
@pytest.mark.parametrize("case", corpus.snapshot_cases(valid=False), ids=lambda case: case.name)
def test_each_refused_case_of_the_corpus_has_the_code_it_is_named_after(case: corpus.SnapshotCase) -> None:
    assert refusal(*case.data()).code == case.name


@pytest.mark.requirement("Q-T006")
def test_the_corpus_shows_every_code_but_the_size_which_is_shown_here() -> None:
    names = {case.name for case in corpus.snapshot_cases(valid=False)}
    assert names | {"config_too_large"} == set(CODES) == set(TEXTS)
    assert refusal(b"#" * 1_048_577).code == "config_too_large"


@pytest.mark.requirement("Q-R004")
def test_a_replica_tier_without_a_topology_has_no_resources() -> None:
    assert refusal(PAIR).code == "replica_resource_missing"
    assert refusal(PAIR, b"schema_version = 1\nid = 'bare'\n").code == "replica_resource_missing"


@pytest.mark.requirement("Q-R004")
def test_a_resource_is_used_once_within_a_tier_and_across_tiers() -> None:
    within = edited(PAIR, ('"llm-b"', '"llm-a"'))
    second = PAIR[PAIR.index(b"[[router.tiers]]") :].replace(b'"pair"', b'"other"')
    assert refusal(within, TOPOLOGY).code == "replica_resource_reused"
    assert refusal(PAIR + second, TOPOLOGY).code == "replica_resource_reused"


@pytest.mark.requirement("Q-R004")
def test_two_tiers_with_members_of_the_same_ids_are_joined_apart() -> None:
    topology = "schema_version = 1\nid = 'lab'\n"
    for host in ("gpu-host-1", "gpu-host-2"):
        topology += f'[[hosts]]\nid = "{host}"\nroles = []\n'
    for name, host, port in (
        ("left-a", 1, 8101),
        ("left-b", 1, 8102),
        ("right-a", 2, 8103),
        ("right-b", 2, 8104),
    ):
        topology += f'[[resources]]\nid = "{name}"\nhost = "gpu-host-{host}"\nrole = "llm"\n'
        topology += f'endpoint = "http://127.0.0.1:{port}/v1"\n'
    snapshot = validate_snapshot(corpus.read("config/valid/inline.toml"), topology.encode())
    assert (snapshot.tier_count, snapshot.replica_tier_count, snapshot.replica_member_count) == (2, 2, 4)


@pytest.mark.requirement("contract 1")
def test_an_overlay_needs_a_topology_and_gives_the_resources_it_holds() -> None:
    config, topology, overlay = corpus.snapshot_case("valid-overlay").data()
    assert refusal(config, topology).code == "replica_resource_missing"
    assert refusal(config, None, overlay).code == "topology_invalid"
    assert refusal(config, topology, b"\xff").code == "topology_invalid"


# Each row breaks one more rule than the row below it. All rows are applied from some row on; the code is the
# first row's. (Size and syntax are whole documents and stand apart.)
SECOND_TIER = PAIR[PAIR.index(b"[[router.tiers]]") :].replace(b'"pair"', b'"other"').decode()
SPLIT_CONFIG = ('"gpu-host-1"\nresource_id = "llm-b"', '"gpu-host-2"\nresource_id = "llm-b"')
LADDER: list[tuple[str, list[tuple[str, str]], list[tuple[str, str]]]] = [
    ("router_config_invalid", [("context_limit = 32768", "context_limit = 0")], []),
    ("topology_invalid", [], [("schema_version = 1", "schema_version = 2")]),
    ("replica_resource_missing", [('"llm-b"\nqualification', '"llm-x"\nqualification')], []),
    ("replica_resource_reused", [("[[router.tiers]]", SECOND_TIER + "\n[[router.tiers]]")], []),
    ("replica_host_mismatch", [], [('"llm-a"\nhost = "gpu-host-1"', '"llm-a"\nhost = "gpu-host-2"')]),
    ("replica_endpoint_missing", [], [('endpoint = "http://127.0.0.1:8102/v1"\n', "")]),
    ("replica_endpoint_mismatch", [], [("HTTP://127.0.0.1:8101/v1/", "http://127.0.0.1:8109/v1")]),
    (
        "replica_host_split",
        [SPLIT_CONFIG],
        [('"llm-b"\nhost = "gpu-host-1"', '"llm-b"\nhost = "gpu-host-2"')],
    ),
]


@pytest.mark.requirement("Q-T006")
@pytest.mark.parametrize("step", range(len(LADDER)), ids=[code for code, _, _ in LADDER])
def test_where_several_rules_are_broken_the_earlier_code_is_the_answer(step: int) -> None:
    """From the last rule upwards, each row is laid over those below it."""
    config = PAIR
    topology = edited(TOPOLOGY, ("[[hosts]]", '[[hosts]]\nid = "gpu-host-2"\nroles = []\n\n[[hosts]]'))
    for _, config_edits, topology_edits in reversed(LADDER[step:]):
        config, topology = edited(config, *config_edits), edited(topology, *topology_edits)
    assert refusal(config, topology).code == LADDER[step][0]
    assert CODES.index(refusal(config, topology).code) == step + 1


@pytest.mark.requirement("Q-T006")
def test_size_comes_before_everything() -> None:
    assert refusal(b"\xff" * 1_048_577, b"\xff", b"\xff").code == "config_too_large"
    assert refusal(b"\xff" * 1_048_576, b"\xff", b"\xff").code == "router_config_invalid"
    assert refusal(PAIR, b"#" * 1_048_577).code == "topology_invalid"


@pytest.mark.requirement("Q-T006")
def test_a_configuration_with_other_faults_is_invalid_whatever_its_members_share() -> None:
    broken = edited(PAIR, SPLIT_CONFIG, ("context_limit = 32768", "context_limit = 0"))
    assert refusal(broken, TOPOLOGY).code == "router_config_invalid"


def test_faults_that_the_join_let_pass_are_refused_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading leaves cross-host members to the join; should that miss them, they stay refused."""
    monkeypatch.setattr(snapshot_module, "_join", lambda config, topology: None)
    case = corpus.snapshot_case("replica_host_split")
    assert refusal(*case.data()).code == "router_config_invalid"


@pytest.mark.requirement("contract 1")
def test_the_owner_is_told_every_broken_rule_of_the_join_in_document_order() -> None:
    """What the code alone does not say; only offline, and for the documents' owner."""
    second = PAIR[PAIR.index(b"[[router.tiers]]") :].replace(b'"pair"', b'"other"')
    config = edited(PAIR, SPLIT_CONFIG) + edited(second, ('"llm-b"', '"llm-x"'))
    topology = edited(TOPOLOGY, ('endpoint = "http://127.0.0.1:8102/v1"\n', ""), ("8101", "8109"))
    reading = read_config(config)
    assert reading.config is not None
    told = [(code, str(fault)) for code, fault in join_faults(reading.config, parse_topology(topology))]
    first, other = "router.tiers[0].replicas", "router.tiers[1].replicas"
    mismatch = "is 'http://127.0.0.1:8101/v1', but the resource's endpoint is 'HTTP://127.0.0.1:8109/v1/'"
    assert told == [
        ("replica_endpoint_mismatch", f"{first}[0].base_url: {mismatch}"),
        ("replica_host_split", f"{first}[1].host_id: must be the same as {first}[0].host_id"),
        (
            "replica_host_mismatch",
            f"{first}[1].host_id: is 'gpu-host-2', but the resource is on 'gpu-host-1'",
        ),
        ("replica_endpoint_missing", f"{first}[1].resource_id: names a resource without an endpoint"),
        ("replica_resource_reused", f"{other}[0].resource_id: is the same as {first}[0].resource_id"),
        ("replica_endpoint_mismatch", f"{other}[0].base_url: {mismatch}"),
        ("replica_resource_missing", f"{other}[1].resource_id: 'llm-x' is not in the topology"),
    ]
    assert refusal(config, topology).code == "replica_resource_missing"
    without = [str(fault) for _, fault in join_faults(parse_config(PAIR), None)]
    assert without == [f"{first}[{n}].resource_id: can't be found: no topology is given" for n in (0, 1)]


# --- What a refusal tells ---


@pytest.mark.requirement("Q-T006", "Q-T015")
@pytest.mark.parametrize("case", corpus.snapshot_cases(valid=False), ids=lambda case: case.name)
def test_a_refusal_has_its_fixed_text_and_no_chained_exception(case: corpus.SnapshotCase) -> None:
    error = refusal(*case.data())
    assert str(error) == TEXTS[case.name]
    assert error.args == (TEXTS[case.name],)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert error.config_sha256 == sha256(case.config.read_bytes())
    told = "".join(traceback.format_exception(error)) + repr(error)
    for hidden in (
        "127.0.0.1",
        "gpu-host",
        "llm-",
        "qwen3",
        "member-",
        "810",
        str(corpus.ROOT / "snapshots"),
    ):
        assert hidden not in told


@pytest.mark.requirement("Q-T006")
@pytest.mark.parametrize("data", [b"\xff", b"= 1", b"a = " + b"[" * 9999, b"a = " + b"9" * 9999])
def test_no_decoding_or_parsing_error_is_chained(data: bytes) -> None:
    for error in (refusal(data), refusal(DIRECT, data), refusal(DIRECT, TOPOLOGY, data)):
        assert (error.__cause__, error.__context__) == (None, None)


# --- Files ---


@pytest.mark.requirement("Q-T015", "Q-R004")
def test_a_file_changed_after_capture_changes_nothing(tmp_path: Path) -> None:
    path, topology_path = tmp_path / "router.toml", tmp_path / "topology.toml"
    path.write_bytes(PAIR)
    topology_path.write_bytes(TOPOLOGY)
    captured, captured_topology = capture(path), capture(topology_path, unreadable="topology_invalid")
    path.write_bytes(b"no longer a configuration")
    topology_path.unlink()
    snapshot = validate_snapshot(captured, captured_topology)
    assert (snapshot.config_bytes, snapshot.topology_bytes) == (PAIR, TOPOLOGY)


@pytest.mark.requirement("Q-T006")
def test_each_file_is_opened_once_and_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = corpus.snapshot_case("valid-overlay")
    opened: list[object] = []
    real_read = snapshot_module.read_bounded

    def counting_read(source: object) -> bytes:
        opened.append(source)
        return real_read(source)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot_module, "read_bounded", counting_read)
    validate_files(case.config, case.topology, case.overlay)
    assert opened == [case.config, case.topology, case.overlay]


@pytest.mark.requirement("Q-T006")
def test_an_open_descriptor_can_be_captured(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_bytes(DIRECT)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert capture(descriptor) == DIRECT
    finally:
        os.close(descriptor)


@pytest.mark.requirement("Q-T014")
def test_a_file_that_can_not_be_read_has_the_code_of_its_document(tmp_path: Path) -> None:
    absent = tmp_path / "absent-secret-name.toml"
    good = tmp_path / "router.toml"
    good.write_bytes(DIRECT)
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"= 1")
    topology = tmp_path / "topology.toml"
    topology.write_bytes(TOPOLOGY)
    for arguments, code, digest in (
        ((absent,), "router_config_invalid", None),
        ((tmp_path,), "router_config_invalid", None),
        (("nul\0character",), "router_config_invalid", None),
        ((good, absent), "topology_invalid", sha256(DIRECT)),
        ((good, topology, absent), "topology_invalid", sha256(DIRECT)),
        ((good, None, topology), "topology_invalid", sha256(DIRECT)),
        ((bad, absent), "router_config_invalid", sha256(b"= 1")),
    ):
        with pytest.raises(SnapshotError) as refused:
            validate_files(*arguments)  # type: ignore[arg-type]
        error = refused.value
        assert (error.code, error.config_sha256) == (code, digest)
        assert (error.__cause__, error.__context__) == (None, None)
        assert "absent-secret-name" not in str(error)


# --- The closed result ---


@pytest.mark.requirement("Q-T014")
def test_the_result_of_a_valid_snapshot() -> None:
    snapshot = validate_snapshot(*corpus.snapshot_case("valid-full").data())
    assert validation_result(snapshot) == {
        "schema_version": "replica-topology-validation/v1",
        "valid": True,
        "error_code": None,
        "config_sha256": sha256(corpus.read("config/valid/full.toml")),
        "tier_count": 2,
        "replica_tier_count": 1,
        "replica_member_count": 2,
        "deployment_identity_source": "declared",
        "runtime_deployment_identity_verified": False,
    }


@pytest.mark.requirement("Q-T014")
@pytest.mark.parametrize(
    ("documents", "code", "digest"),
    [
        ((b"#" * 1_048_577,), "config_too_large", None),
        ((b"= 1",), "router_config_invalid", sha256(b"= 1")),
        ((PAIR, b""), "topology_invalid", sha256(PAIR)),
        ((PAIR,), "replica_resource_missing", sha256(PAIR)),
    ],
)
def test_the_result_of_a_refusal_has_the_same_keys(
    documents: tuple[bytes, ...], code: str, digest: str | None
) -> None:
    """The digest is there when the capture is complete, whatever else is wrong."""
    assert validation_result(refusal(*documents)) == {
        "schema_version": "replica-topology-validation/v1",
        "valid": False,
        "error_code": code,
        "config_sha256": digest,
        "tier_count": None,
        "replica_tier_count": None,
        "replica_member_count": None,
        "deployment_identity_source": None,
        "runtime_deployment_identity_verified": False,
    }


# --- Offline ---


@pytest.mark.requirement("Q-T006", "Q-T014")
def test_validation_opens_no_socket_resolves_no_name_and_starts_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("validation left the process")

    for module, name in (
        (socket, "socket"),
        (socket, "create_connection"),
        (socket, "getaddrinfo"),
        (socket, "gethostbyname"),
        (socket, "getfqdn"),
        (os, "system"),
        (os, "posix_spawn"),
        (os, "fork"),
    ):
        monkeypatch.setattr(module, name, forbidden)
    config = edited(PAIR, ("127.0.0.1:8101", "engine-a.example"), ("127.0.0.1:8102", "engine-b.example"))
    topology = edited(
        TOPOLOGY, ("127.0.0.1:8101", "engine-a.example"), ("127.0.0.1:8102", "engine-b.example")
    )
    assert validate_snapshot(config, topology).replica_member_count == 2
    for case in corpus.snapshot_cases(valid=False):
        assert validation_result(refusal(*case.data()))["error_code"] == case.name


# --- Anything at all ---


@pytest.mark.requirement("Q-T006")
@given(
    st.binary(max_size=100) | st.sampled_from([PAIR, DIRECT]),
    st.none() | st.binary(max_size=100) | st.just(TOPOLOGY),
    st.none() | st.binary(max_size=100),
)
def test_arbitrary_documents_are_accepted_or_refused_with_a_code(
    config: bytes, topology: bytes | None, overlay: bytes | None
) -> None:
    try:
        outcome: ValidatedSnapshot | SnapshotError = validate_snapshot(config, topology, overlay)
    except SnapshotError as error:
        outcome = error
    assert len(validation_result(outcome)) == 9


HOSTS, RESOURCES = ("h1", "h2"), ("r1", "r2", "r3")


@pytest.mark.requirement("Q-R004", "Q-T006")
@given(
    st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from(RESOURCES)), min_size=2, max_size=3),
    st.fixed_dictionaries({resource: st.sampled_from(HOSTS) for resource in RESOURCES}),
)
def test_what_the_join_accepts_is_exactly_what_the_rules_say(
    members: list[tuple[str, str]], homes: dict[str, str]
) -> None:
    """Hosts and resources at random, endpoints always right; the rules are stated a second time here."""
    config = PAIR[: PAIR.index(b"[[router.tiers.rep")].decode()
    for number, (host, resource) in enumerate(members):
        config += f'[[router.tiers.replicas]]\nid = "m{number}"\nbase_url = "http://127.0.0.1:{number + 1}"\n'
        config += f'host_id = "{host}"\nresource_id = "{resource}"\nqualification_ref = "q"\n'
    topology = 'schema_version = 1\nid = "lab"\n'
    topology += "".join(f'[[hosts]]\nid = "{host}"\nroles = []\n' for host in HOSTS)
    used = {resource: number for number, (_, resource) in enumerate(members)}
    for resource, home in homes.items():
        topology += f'[[resources]]\nid = "{resource}"\nhost = "{home}"\nrole = "llm"\n'
        topology += f'endpoint = "http://127.0.0.1:{used.get(resource, 99) + 1}"\n'
    if len({resource for _, resource in members}) < len(members):
        expected = "replica_resource_reused"
    elif any(homes[resource] != host for host, resource in members):
        expected = "replica_host_mismatch"
    elif len({host for host, _ in members}) > 1:
        expected = "replica_host_split"
    else:
        assert validate_snapshot(config.encode(), topology.encode()).config == parse_config(config.encode())
        return
    assert refusal(config.encode(), topology.encode()).code == expected
