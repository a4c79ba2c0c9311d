"""``anvil router install-config``: the validated bytes, all of them, and only those."""

import base64
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anvil_site import offline
from anvil_site.cli import install
from anvil_site.cli.outcome import Fault
from tests import corpus
from tests.unit.anvil_site.cli_support import Anvil, FakeRouter

PATH = "/v1/admin/snapshots"
CASE = corpus.snapshot_case("valid-overlay")
DIGEST = hashlib.sha256(CASE.config.read_bytes()).hexdigest()


ACTIVATED = {"applied": True, "snapshot_id": 7, "previous_snapshot_id": 6, "steps": []}


def change(scope: str, kind: str, *keys: str, drain: bool) -> dict[str, Any]:
    tier, _, member = scope.partition("/")
    return {
        "tier_id": tier,
        "member_id": member or None,
        "change": kind,
        "keys": list(keys),
        "needs_drain": drain,
        "starts_cold": drain and kind != "removed",
    }


PREVIEW = {
    "applied": False,
    "dry_run": True,
    "config_sha256": DIGEST,
    "changes": [
        change("pair/member-a", "changed", "base_url", drain=True),
        change("pair/member-b", "removed", drain=True),
        change("solo", "changed", "max_concurrency", "timeout", drain=False),
    ],
    "settings": ["router.relay_timeout"],
    "scopes": [{"tier_id": "pair", "member_id": "member-a"}],
}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The options that name the documents of CASE, in a directory that a test may change."""
    shutil.copytree(CASE.config.parent, tmp_path / "private.example")
    found: list[str] = ["router", "install-config"]
    for option, name in (
        ("config", "config.toml"),
        ("topology", "topology.toml"),
        ("topology-overlay", "overlay.toml"),
    ):
        found += [f"--{option}", str(tmp_path / "private.example" / name)]
    return found


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes | None, bytes | None]]:
    """The offline way, recorded instead of taken."""
    installed: list[tuple[bytes, bytes | None, bytes | None]] = []

    def record(config: bytes, topology: bytes | None, overlay: bytes | None) -> dict[str, object]:
        installed.append((config, topology, overlay))
        return {"activated": True, "snapshot_id": 1}

    monkeypatch.setattr(offline, "install_snapshot", record)
    return installed


def decoded(body: dict[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(value, validate=True) for key, value in body.items()}


@pytest.mark.requirement("Q-T015")
class TestThroughTheRouter:
    def test_the_captured_bytes_are_sent_and_activated(
        self, anvil: Anvil, router: FakeRouter, words: list[str]
    ) -> None:
        router.answer("POST", PATH, 201, {"id": 7, "config_sha256": DIGEST})
        router.answer("POST", f"{PATH}/7/activate", 200, ACTIVATED)
        result = anvil(*words, "--confirm", "--json")
        assert result.code == 0
        envelope = result.envelope
        assert envelope["context"] == {"via": "router"}
        assert envelope["data"]["applied"] is True
        assert envelope["data"]["dry_run"] is False
        assert envelope["data"]["validation"]["config_sha256"] == DIGEST
        assert envelope["data"]["activation"] == ACTIVATED
        upload, activate = router.asked
        config, topology, overlay = CASE.data()
        assert decoded(upload.json) == {"config": config, "topology": topology, "overlay": overlay}
        assert activate.json == {"confirm": True, "dry_run": False}

    def test_only_the_documents_that_there_are(
        self, anvil: Anvil, router: FakeRouter, tmp_path: Path
    ) -> None:
        data = corpus.snapshot_case("valid-direct").config.read_bytes().replace(b"\n", b"\r\n")
        config = tmp_path / "config.toml"
        config.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        router.answer("POST", PATH, 201, {"id": 8, "config_sha256": digest})
        router.answer("POST", f"{PATH}/8/activate", 200, {**ACTIVATED, "snapshot_id": 8})
        result = anvil("router", "install-config", "--config", str(config), "--confirm")
        assert (result.code, result.out) == (0, "installed and active: snapshot 8\n")
        assert decoded(router.asked[0].json) == {"config": data}

    def test_a_file_that_changes_after_its_capture_changes_nothing(
        self, anvil: Anvil, router: FakeRouter, words: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        router.answer("POST", PATH, 201, {"id": 7, "config_sha256": DIGEST})
        router.answer("POST", f"{PATH}/7/activate", 200, ACTIVATED)
        upload: Callable[..., int] = install._upload

        def change_first(snapshot: Any) -> int:
            for path in words[3::2]:
                Path(path).unlink()
            return upload(snapshot)

        monkeypatch.setattr(install, "_upload", change_first)
        assert anvil(*words, "--confirm").code == 0
        config, topology, overlay = CASE.data()
        sent = decoded(router.asked[0].json)
        assert sent == {"config": config, "topology": topology, "overlay": overlay}

    @pytest.mark.parametrize(
        "answer",
        [
            {"id": 7, "config_sha256": "0" * 64},
            {"id": 7},
            {"id": "7/../8", "config_sha256": DIGEST},
            {"id": True, "config_sha256": DIGEST},
            {"id": 0, "config_sha256": DIGEST},
            {},
        ],
    )
    def test_a_snapshot_of_anything_else_is_not_activated(
        self, anvil: Anvil, router: FakeRouter, words: list[str], answer: dict[str, Any]
    ) -> None:
        router.answer("POST", PATH, 201, answer)
        result = anvil(*words, "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "malformed_answer"
        assert result.envelope["data"]["applied"] is False
        assert len(router.asked) == 1

    def test_the_drain_timeout_is_sent(self, anvil: Anvil, router: FakeRouter, words: list[str]) -> None:
        steps = [
            {"step": "quiesce", "tier_id": "pair", "member_id": None, "outcome": "quiesced"},
            {"step": "verify", "tier_id": "pair", "member_id": "member-a", "outcome": "identity_passed"},
            {"step": "activate", "outcome": "activated"},
        ]
        router.answer("POST", PATH, 201, {"id": 7, "config_sha256": DIGEST})
        router.answer("POST", f"{PATH}/7/activate", 200, {**ACTIVATED, "steps": steps})
        result = anvil(*words, "--confirm", "--drain-timeout", "12.5")
        assert result.out == (
            "installed and active: snapshot 7\n"
            "  Quiesce pair: quiesced\n"
            "  Verify pair/member-a: it is healthy and serves the expected model\n"
            "  Move the pointer and swap: activated\n"
        )
        assert router.asked[1].json == {"confirm": True, "dry_run": False, "drain_timeout": 12.5}

    def test_what_is_not_drained_is_named(self, anvil: Anvil, router: FakeRouter, words: list[str]) -> None:
        scopes = [{"tier_id": "pair", "member_id": None}]
        body = {"error": {"code": "not_drained", "message": "m"}, "scopes": scopes}
        for _ in range(2):
            router.answer("POST", PATH, 201, {"id": 7, "config_sha256": DIGEST})
            router.answer("POST", f"{PATH}/7/activate", 409, body)
        enveloped = anvil(*words, "--confirm", "--json")
        assert enveloped.code == 1
        assert enveloped.envelope["data"]["applied"] is False
        assert enveloped.envelope["data"]["activation"] == {"scopes": scopes}
        assert enveloped.envelope["errors"] == [
            {"code": "not_drained", "message": Fault("not_drained").message},
        ]
        shown = anvil(*words, "--confirm")
        assert (shown.code, shown.out) == (1, "")
        assert shown.err == (
            "router install-config: what changes still admits or still runs requests; nothing has changed; "
            "drain it first (anvil router quiesce, then drain), or give --drain-timeout (not_drained)\n"
            "  pair\n"
        )

    @pytest.mark.parametrize("status", [401, 403, 409, 500, 503])
    def test_a_refused_upload_is_not_activated_and_never_goes_round_the_router(
        self,
        anvil: Anvil,
        router: FakeRouter,
        words: list[str],
        status: int,
        no_data_directory: list[object],
    ) -> None:
        router.answer("POST", PATH, status, {})
        assert anvil(*words, "--confirm").code == 1
        assert len(router.asked) == 1
        assert no_data_directory == []


@pytest.mark.requirement("Q-T015")
class TestBeforeAnything:
    def test_without_confirm_the_router_says_what_it_would_change(
        self, anvil: Anvil, router: FakeRouter, words: list[str], no_data_directory: list[object]
    ) -> None:
        """The preview said that the files were valid, and nothing of what they would do."""
        for _ in range(2):
            router.answer("POST", PATH, 200, PREVIEW)
        enveloped = anvil(*words, "--json")
        assert enveloped.code == 0
        assert enveloped.envelope["context"] == {"via": "router"}
        assert enveloped.envelope["data"]["applied"] is False
        assert enveloped.envelope["data"]["dry_run"] is True
        assert enveloped.envelope["data"]["validation"]["valid"] is True
        assert enveloped.envelope["data"]["activation"] == PREVIEW
        shown = anvil(*words)
        assert shown.out.splitlines()[1:] == [
            "preview: nothing was changed, --confirm installs it",
            "  pair/member-a: changed base_url; is to be drained; serves once its own first probe has passed",
            "  pair/member-b: removed; is drained; gone afterwards",
            "  solo: changed max_concurrency, timeout; needs nothing; its traffic does not notice",
            "  router.relay_timeout: changed; applies to the next request",
        ]
        config, topology, overlay = CASE.data()
        for asked in router.asked:
            sent = asked.json
            assert sent.pop("dry_run") is True
            assert decoded(sent) == {"config": config, "topology": topology, "overlay": overlay}
        assert no_data_directory == []

    def test_a_preview_that_is_about_something_else_is_none(
        self, anvil: Anvil, router: FakeRouter, words: list[str]
    ) -> None:
        for change in ({"applied": True}, {"config_sha256": "0" * 64}):
            router.answer("POST", PATH, 200, {**PREVIEW, **change})
            assert anvil(*words, "--json").envelope["errors"][0]["code"] == "malformed_answer"

    def test_a_preview_without_a_router_says_that_it_does_not_know(
        self,
        anvil: Anvil,
        words: list[str],
        no_data_directory: list[object],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("ANVIL_URL", "http://127.0.0.1:9")
        shown = anvil(*words)
        assert shown.code == 0
        assert shown.out.splitlines()[1:] == ["preview: nothing was changed, --confirm installs it"]
        assert shown.err == (
            "warning: no router answers at ANVIL_URL: what it would change there is not known\n"
        )
        assert no_data_directory == []

    @pytest.mark.parametrize("case", corpus.snapshot_cases(valid=False), ids=lambda case: case.name)
    def test_a_refused_configuration_reaches_nobody(
        self,
        anvil: Anvil,
        router: FakeRouter,
        case: corpus.SnapshotCase,
        no_data_directory: list[object],
    ) -> None:
        words = ["--config", str(case.config), "--confirm"]
        if case.topology is not None:
            words += ["--topology", str(case.topology)]
        enveloped = anvil("router", "install-config", *words, "--json")
        assert enveloped.code == 2
        assert enveloped.envelope["data"]["applied"] is False
        assert enveloped.envelope["data"]["validation"]["error_code"] == case.name
        assert enveloped.envelope["errors"] == [{"code": case.name, "message": Fault(case.name).message}]
        shown = anvil("router", "install-config", *words)
        assert (shown.code, shown.out) == (2, "")
        first, *places = shown.err.splitlines()
        assert first == f"router install-config: {Fault(case.name).line}"
        # Where, and nothing of what stands there.
        assert places
        assert all(re.fullmatch(r"  (config|topology) line \d+: [a-z_.\[\]0-9]+", place) for place in places)
        assert str(case.config) not in enveloped.text + shown.text
        assert router.asked == []
        assert no_data_directory == []

    def test_a_url_that_is_none_is_bad_input(
        self, anvil: Anvil, words: list[str], monkeypatch: pytest.MonkeyPatch, no_data_directory: list[object]
    ) -> None:
        monkeypatch.setenv("ANVIL_URL", "router.example:8000")
        assert anvil(*words, "--confirm").code == 2
        assert no_data_directory == []


@pytest.mark.requirement("Q-T015", "house 9")
class TestWithoutARouter:
    def test_here_the_data_directory_itself_is_changed(
        self, anvil: Anvil, words: list[str], no_data_directory: list[object]
    ) -> None:
        enveloped = anvil(*words, "--confirm", "--json")
        assert enveloped.code == 0
        assert enveloped.envelope["context"] is None
        assert enveloped.envelope["data"]["applied"] is True
        assert enveloped.envelope["data"]["activation"] == {"activated": True, "snapshot_id": 1}
        assert no_data_directory == [CASE.data()]
        shown = anvil(*words, "--confirm")
        assert shown.out == "installed; it is active when the router starts\n"

    def test_a_router_elsewhere_is_never_stood_in_for(
        self, anvil: Anvil, words: list[str], monkeypatch: pytest.MonkeyPatch, no_data_directory: list[object]
    ) -> None:
        def unreachable(*arguments: object, **options: object) -> None:
            raise install.RouterFault("router_unreachable")

        monkeypatch.setenv("ANVIL_URL", "https://router.example")
        monkeypatch.setattr(install, "call", unreachable)
        result = anvil(*words, "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["errors"][0]["code"] == "router_unreachable"
        assert no_data_directory == []

    def test_a_shell_without_the_environment_makes_no_second_router(
        self, anvil: Anvil, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("ANVIL_DATA", raising=False)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        result = anvil(*words, "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["data"]["applied"] is False
        assert result.envelope["errors"][0]["code"] == "data_directory_missing"
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_directory_that_another_process_owns(
        self, anvil: Anvil, words: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def owned(*documents: bytes | None) -> None:
            raise offline.LedgerOwned

        monkeypatch.setattr(offline, "install_snapshot", owned)
        result = anvil(*words, "--confirm", "--json")
        assert result.code == 1
        assert result.envelope["data"]["applied"] is False
        assert result.envelope["errors"] == [
            {"code": "ledger_owned", "message": Fault("ledger_owned").message}
        ]

    def test_a_database_error_says_nothing_of_itself(
        self, anvil: Anvil, words: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*documents: bytes | None) -> None:
            raise RuntimeError("unable to open /srv/private.example/anvil.sqlite3")

        monkeypatch.setattr(offline, "install_snapshot", broken)
        for flags in ((), ("--json",)):
            result = anvil(*words, "--confirm", *flags)
            assert result.code == 1
            assert "sqlite3" not in result.text
            assert Fault("offline_failed").message in result.text
