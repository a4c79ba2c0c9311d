"""``anvil topology validate-router-config`` and ``anvil router check``: offline, and nothing changes."""

import hashlib
import os
import re
import shutil
import socket
import threading
from pathlib import Path

import pytest

from anvil_site.cli import topology
from routing.snapshot import CODES
from tests import corpus
from tests.unit.anvil_site.cli_support import Anvil, Result

LABEL = "topology validate-router-config"
PRIVATE_DIRECTORY = "host-7.private.example"
CHECK = "anvil router check, with the same options, shows each fault with its place and value"
MESSAGES = {
    "config_too_large": "the router configuration is larger than 1 MiB",
    "router_config_invalid": "the router configuration can't be read or breaks a rule",
    "topology_invalid": "the topology or its overlay can't be read or breaks a rule",
    "replica_resource_missing": "a replica member's resource is not in the topology",
    "replica_resource_reused": "a resource is used by more than one replica member",
    "replica_host_mismatch": "a replica member's resource is not on its declared host",
    "replica_endpoint_missing": "a replica member's resource has no endpoint",
    "replica_endpoint_mismatch": "a replica member's URL is not its resource's endpoint",
    "replica_host_split": "the members of a replica tier are not all on one host",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("an offline command used the network")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A directory whose name must never be seen."""
    directory = tmp_path / PRIVATE_DIRECTORY
    directory.mkdir()
    return directory


def operands(case: corpus.SnapshotCase, directory: Path) -> list[str]:
    """The options that name ``case``'s documents, copied to ``directory``."""
    words: list[str] = []
    for option, source in (
        ("config", case.config),
        ("topology", case.topology),
        ("topology-overlay", case.overlay),
    ):
        if source is not None:
            shutil.copy(source, directory / source.name)
            words += [f"--{option}", str(directory / source.name)]
    return words


def refusal(code: str, digest: str | None) -> dict[str, object]:
    return {
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


def assert_refused(anvil: Anvil, words: list[str], code: str, digest: str | None) -> None:
    """Exit 2, the closed dictionary in a closed envelope, and one line derived from it."""
    enveloped = anvil(*LABEL.split(), *words, "--json")
    assert enveloped.code == 2
    assert enveloped.envelope == {
        "command": LABEL,
        "ok": False,
        "context": None,
        "data": refusal(code, digest),
        "warnings": [],
        "errors": [{"code": code, "message": f"{MESSAGES[code]}; {CHECK}"}],
    }
    shown = anvil(*LABEL.split(), *words)
    assert (shown.code, shown.out, shown.err) == (2, "", f"refused: {code}\n")
    for result in (enveloped, shown):
        assert_input_free(result, words)


def assert_input_free(result: Result, words: list[str]) -> None:
    """Nothing of the paths, and nothing of what stands in the documents, but digests and counts."""
    assert PRIVATE_DIRECTORY not in result.text
    for path in words[1::2]:
        assert path not in result.text
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError):
            continue
        # Plain words (``text``, ``local``) are part of the output's own vocabulary, too.
        for value in re.findall(r'"([^"]*[-./:_0-9][^"]*)"', text):
            assert value not in result.text, value
        assert "127.0.0.1" not in result.text


class TestValidateRouterConfig:
    @pytest.mark.requirement("Q-T014", "Q-R004", "Q-R005")
    def test_a_valid_replica_configuration(self, anvil: Anvil, private: Path) -> None:
        case = corpus.snapshot_case("valid-replica")
        words = operands(case, private)
        digest = hashlib.sha256(case.config.read_bytes()).hexdigest()
        enveloped = anvil(*LABEL.split(), *words, "--json")
        assert enveloped.code == 0
        assert enveloped.envelope == {
            "command": LABEL,
            "ok": True,
            "context": None,
            "data": {
                "schema_version": "replica-topology-validation/v1",
                "valid": True,
                "error_code": None,
                "config_sha256": digest,
                "tier_count": 1,
                "replica_tier_count": 1,
                "replica_member_count": 2,
                "deployment_identity_source": "declared",
                "runtime_deployment_identity_verified": False,
            },
            "warnings": [],
            "errors": [],
        }
        shown = anvil(*LABEL.split(), *words)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out == f"valid: tiers 1, replica tiers 1, replica members 2; sha256 {digest}\n"
        for result in (enveloped, shown):
            assert_input_free(result, words)

    @pytest.mark.requirement("Q-T014")
    @pytest.mark.parametrize("case", corpus.snapshot_cases(valid=True), ids=lambda case: case.name)
    def test_every_valid_example_passes_and_stays_as_it_is(
        self, anvil: Anvil, private: Path, case: corpus.SnapshotCase
    ) -> None:
        words = operands(case, private)
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in private.iterdir()}
        result = anvil(*LABEL.split(), *words, "--json")
        assert result.code == 0
        assert result.envelope["data"]["valid"] is True
        assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in private.iterdir()} == before
        assert_input_free(result, words)

    @pytest.mark.requirement("Q-T014")
    @pytest.mark.parametrize("case", corpus.snapshot_cases(valid=False), ids=lambda case: case.name)
    def test_every_fixed_code(self, anvil: Anvil, private: Path, case: corpus.SnapshotCase) -> None:
        digest = hashlib.sha256(case.config.read_bytes()).hexdigest()
        assert_refused(anvil, operands(case, private), case.name, digest)

    def test_the_examples_cover_the_vocabulary(self) -> None:
        named = {case.name for case in corpus.snapshot_cases(valid=False)}
        assert named | {"config_too_large"} == set(CODES) == set(MESSAGES)

    @pytest.mark.requirement("Q-T014", "Q-T006")
    def test_one_byte_more_than_a_mebibyte(self, anvil: Anvil, private: Path) -> None:
        path = private / "large.toml"
        path.write_bytes(b"#" * 1_048_577)
        assert_refused(anvil, ["--config", str(path)], "config_too_large", None)

    @pytest.mark.requirement("Q-T014")
    def test_a_mebibyte_is_captured_whole(self, anvil: Anvil, private: Path) -> None:
        direct = corpus.snapshot_case("valid-direct").config.read_bytes()
        exact = direct + b"\n#" + b"x" * (1_048_576 - len(direct) - 2)
        path = private / "exact.toml"
        path.write_bytes(exact)
        result = anvil(*LABEL.split(), "--config", str(path), "--json")
        assert result.code == 0
        assert result.envelope["data"]["config_sha256"] == hashlib.sha256(exact).hexdigest()

    @pytest.mark.requirement("Q-T014")
    def test_a_configuration_that_cannot_be_read(self, anvil: Anvil, private: Path) -> None:
        for path in (private / "missing.toml", private, private / "missing.toml" / "below"):
            assert_refused(anvil, ["--config", str(path)], "router_config_invalid", None)

    @pytest.mark.requirement("Q-T014")
    def test_a_topology_or_overlay_that_cannot_be_read(self, anvil: Anvil, private: Path) -> None:
        case = corpus.snapshot_case("valid-replica")
        words = operands(case, private)
        digest = hashlib.sha256(case.config.read_bytes()).hexdigest()
        missing = str(private / "missing.toml")
        assert_refused(anvil, [*words[:2], "--topology", missing], "topology_invalid", digest)
        assert_refused(anvil, [*words, "--topology-overlay", missing], "topology_invalid", digest)
        assert_refused(anvil, [*words[:2], "--topology-overlay", words[3]], "topology_invalid", digest)

    @pytest.mark.requirement("Q-T014")
    @pytest.mark.parametrize("data", [b"\xff\xfe", b"= sk-secret-value", b"", b"[router]\nx = '127.0.0.1'"])
    def test_bytes_that_are_no_configuration(self, anvil: Anvil, private: Path, data: bytes) -> None:
        path = private / "router.toml"
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        assert_refused(anvil, ["--config", str(path)], "router_config_invalid", digest)
        assert "sk-secret-value" not in anvil(*LABEL.split(), "--config", str(path)).text

    @pytest.mark.requirement("Q-T014")
    def test_it_is_the_shared_validator_that_decides(
        self, anvil: Anvil, private: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Negative control: without the snapshot validator nothing passes."""
        words = operands(corpus.snapshot_case("valid-replica"), private)

        def refuse(*arguments: object) -> None:
            raise topology.SnapshotError("replica_host_split")

        monkeypatch.setattr(topology, "validate_files", refuse)
        assert_refused(anvil, words, "replica_host_split", None)


class TestCheck:
    """``anvil router check``, which shows the owner of the file what is wrong in it."""

    @pytest.mark.requirement("contract 5")
    @pytest.mark.parametrize(
        "case",
        corpus.snapshot_cases(valid=True) + corpus.snapshot_cases(valid=False),
        ids=lambda case: case.name,
    )
    def test_its_verdict_is_the_validators(
        self, anvil: Anvil, private: Path, case: corpus.SnapshotCase
    ) -> None:
        words = operands(case, private)
        checked = anvil("router", "check", *words, "--json")
        validated = anvil(*LABEL.split(), *words, "--json")
        data = dict(checked.envelope["data"])
        faults = data.pop("faults")
        assert data == validated.envelope["data"]
        assert checked.code == validated.code
        assert bool(faults) is (checked.code == 2)

    @pytest.mark.requirement("contract 5")
    @pytest.mark.parametrize("document", corpus.documents("config", "invalid"), ids=lambda path: path.stem)
    def test_every_fault_with_its_place(self, anvil: Anvil, document: Path) -> None:
        result = anvil("router", "check", "--config", str(document), "--json")
        assert result.code == 2
        faults = result.envelope["data"]["faults"]
        shown = [f"{fault['path']}: {fault['message']}" for fault in faults]
        # Where only members' relations are wrong, the join (here with no topology) has its say, too.
        no_topology = "can't be found: no topology is given"
        assert [line for line in shown if no_topology not in line] == corpus.expected_faults(document)
        assert {fault["document"] for fault in faults} == {"config"}

    @pytest.mark.requirement("contract 5")
    def test_faults_of_the_join_have_places_and_values(self, anvil: Anvil, private: Path) -> None:
        case = corpus.snapshot_case("valid-replica")
        words = operands(case, private)
        text = case.config.read_text()
        config = private / "config.toml"
        config.write_text(
            text.replace('resource_id = "llm-a"', 'resource_id = "llm-z"')
            .replace("http://127.0.0.1:8102/v1", "http://127.0.0.1:8109/v1")
            .replace(
                'host_id = "gpu-host-1"\nresource_id = "llm-b"', 'host_id = "else"\nresource_id = "llm-b"'
            )
        )
        result = anvil("router", "check", *words)
        assert (result.code, result.out) == (2, "")
        assert result.err.splitlines() == [
            "config line 21: router.tiers[0].replicas[0].resource_id: 'llm-z' is not in the topology",
            # In the order of the lines: the URL stands before the host that names it.
            "config line 26: router.tiers[0].replicas[1].base_url: is 'http://127.0.0.1:8109/v1', but the "
            "resource's endpoint is 'http://127.0.0.1:8102/v1'",
            "config line 27: router.tiers[0].replicas[1].host_id: must be the same as "
            "router.tiers[0].replicas[0].host_id",
            "config line 27: router.tiers[0].replicas[1].host_id: is 'else', but the resource is on "
            "'gpu-host-1'",
            "refused: replica_resource_missing",
        ]

    def test_lines_are_those_of_the_document_that_is_at_fault(self, anvil: Anvil, private: Path) -> None:
        case = corpus.snapshot_case("valid-overlay")
        words = operands(case, private)
        topology, overlay = private / "topology.toml", private / "overlay.toml"
        topology.write_text("# one\n" + topology.read_text() + "\n[[hosts]]\nroles = []\n")
        overlay.write_text("# one\n# two\ncolour = 1\n" + overlay.read_text())
        result = anvil("router", "check", *words)
        count = len(topology.read_text().splitlines())
        last = topology.read_text().count("[[hosts]]") - 1
        assert result.err.splitlines()[:2] == [
            f"topology line {count - 1}: hosts[{last}].id: is required",
            "overlay line 3: overlay.colour: is not a known key",
        ]

    def test_a_fault_of_the_syntax_has_the_line_where_the_parser_stopped(
        self, anvil: Anvil, private: Path
    ) -> None:
        config = private / "config.toml"
        config.write_text("[router]\n\nconnect_timeout = = 2\n")
        result = anvil("router", "check", "--config", str(config))
        assert result.err.splitlines()[0] == (
            "config line 3: document: is not valid TOML: Invalid value (at line 3, column 19)"
        )

    def test_a_variable_that_is_not_set_is_warned_of(
        self, anvil: Anvil, private: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = private / "config.toml"
        config.write_text(
            '[server]\nauth_env = "A_TOKEN"\n[router]\n[[router.tiers]]\nid = "solo"\ncontext_limit = 10\n'
            'base_url = "http://127.0.0.1:1/v1"\nmodel = "m"\nauth_env = "B_TOKEN"\n'
            '[router.model_routes]\n"llm" = "solo"\n'
        )
        monkeypatch.delenv("A_TOKEN", raising=False)
        monkeypatch.setenv("B_TOKEN", "")
        result = anvil("router", "check", "--config", str(config))
        assert result.code == 0
        here = "names a variable that is not set here; where the router runs without it"
        assert result.err.splitlines() == [
            f"warning: server.auth_env {here}: no bootstrap token",
            f"warning: router.tiers[0].auth_env {here}: no Authorization header is sent",
        ]
        monkeypatch.setenv("A_TOKEN", "x")
        monkeypatch.setenv("B_TOKEN", "x")
        assert anvil("router", "check", "--config", str(config)).err == ""

    @pytest.mark.requirement("contract 5")
    def test_documents_that_cannot_be_read(self, anvil: Anvil, private: Path) -> None:
        missing = str(private / "missing.toml")
        words = ["--config", missing, "--topology", missing, "--topology-overlay", missing]
        result = anvil("router", "check", *words)
        assert (result.code, result.out) == (2, "")
        assert result.err.splitlines() == [
            "config: document: can't be read",
            "topology: document: can't be read",
            "overlay: document: can't be read",
            "refused: router_config_invalid",
        ]

    @pytest.mark.requirement("contract 5")
    def test_an_overlay_alone(self, anvil: Anvil, private: Path) -> None:
        words = operands(corpus.snapshot_case("valid-replica"), private)
        result = anvil("router", "check", *words[:2], "--topology-overlay", words[3])
        assert result.err.splitlines() == [
            "overlay: document: needs a topology below it",
            "refused: topology_invalid",
        ]

    @pytest.mark.requirement("contract 5")
    def test_a_document_may_come_through_a_pipe(self, anvil: Anvil) -> None:
        data = corpus.snapshot_case("valid-direct").config.read_bytes()
        reader, writer = os.pipe()

        def write() -> None:
            with open(writer, "wb") as pipe:
                pipe.write(data)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            result = anvil("router", "check", "--config", f"/dev/fd/{reader}", "--json")
        finally:
            os.close(reader)
            thread.join(10)
        assert result.code == 0
        assert result.envelope["data"]["config_sha256"] == hashlib.sha256(data).hexdigest()
