"""The documentation says what the code does: every key, command, URL and reason, and nothing made up."""

import json
import os
import re
import shlex
import shutil
import sqlite3
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver

from anvil_site import gunicorn as process
from anvil_site.cli.parsing import find, parse
from anvil_site.cli.spec import Command, Passthrough
from anvil_site.cli.tree import LEAVES
from anvil_site.mcp.catalog import TOOLS
from demo import fleet
from routing import config, gates, rules, topology
from routing.config import RouterSettings
from routing.dialects import DIALECTS, errors
from routing.document_faults import document_faults
from routing.probes import FAULT_NAMES, PASSED, is_readiness_reason
from routing.records import REASONS
from routing.snapshot import CODES, validate_snapshot
from scripts.handbook import links, pictures, sections, words
from tests.web.test_transitions_matrix import MATRIX

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def flat(text: str) -> str:
    """The text with every run of white space as one blank: lines are broken anywhere."""
    return " ".join(text.split())


def pages() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in links.markdown_files(ROOT)
    }


# What is made ------------------------------------------------------------------------------------------


@pytest.mark.requirement("C-T006")
def test_tables_and_pictures_are_what_the_code_makes_now() -> None:
    wanted = sections.pages(DOCS) | pictures.files(DOCS / "pictures")
    stale = [path.name for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    assert stale == [], "run: python -m scripts.handbook --write"


def test_every_made_section_stands_on_a_page() -> None:
    placed = re.findall(r"<!-- made: (\S+) -->", "".join(pages().values()))
    assert sorted(placed) == sorted(sections.SECTIONS)


def test_a_key_without_words_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(words.CONFIG["replica"], "host_id")
    with pytest.raises(KeyError, match="host_id"):
        sections.SECTIONS["config.replica"]()


def test_rules_are_told_in_the_words_of_their_errors() -> None:
    assert sections.rule_text(rules.integer(1, 8)) == "must be an integer from 1 to 8"
    assert sections.rule_text(rules.url) == (
        "must be an http or https URL with a host and without user, query or fragment"
    )


# Configuration -----------------------------------------------------------------------------------------


@pytest.mark.requirement("C-T006", "Q-T013")
@pytest.mark.parametrize(
    "key",
    sorted(
        {
            *(key for kind, table in config.FIELD_RULES.items() if kind != "model_route" for key in table),
            *(key for table in topology.FIELD_RULES.values() for key in table),
            *(key for table in words.PARAMS.values() for key in table),
        }
    ),
)
def test_every_key_of_both_documents_is_documented(key: str) -> None:
    assert f"| `{key}` |" in page("configuration.md")


@pytest.mark.requirement("C-T006")
def test_rules_between_keys_are_quoted_as_they_are() -> None:
    table = page("configuration.md").split("| Rule | Message |")[1].split("\n\n")[0]
    messages = [
        message for row in table.splitlines()[2:] for message in re.findall(r"`([^`]+)`", row.split("|")[2])
    ]
    source = (ROOT / "routing" / "config.py").read_text() + (ROOT / "routing" / "documents.py").read_text()
    assert len(messages) >= 15
    assert [message for message in messages if message not in source] == []


@pytest.mark.requirement("Q-T013")
def test_snapshot_codes_and_the_closed_result_are_documented() -> None:
    text = page("configuration.md")
    assert [code for code in CODES if f"| `{code}` |" not in text] == []
    for key in (
        "schema_version",
        "valid",
        "error_code",
        "config_sha256",
        "runtime_deployment_identity_verified",
    ):
        assert f"`{key}`" in text
    assert "replica-topology-validation/v1" in text
    assert "Exit 0 is valid, 2 refused" in text


@pytest.mark.requirement("Q-T013")
def test_the_pair_that_is_shown_and_shipped_is_valid() -> None:
    examples = resources.files("anvil_site.cli") / "examples"
    router, place = (examples / "router.toml").read_bytes(), (examples / "topology.toml").read_bytes()
    snapshot = validate_snapshot(router, place)
    assert (snapshot.tier_count, snapshot.replica_tier_count, snapshot.replica_member_count) == (1, 1, 2)
    assert [member.base_url for member in snapshot.config.tiers[0].replicas] == [
        "http://127.0.0.1:8101/v1",
        "http://127.0.0.1:8102/v1",
    ]
    for name in ("router.toml", "topology.toml"):
        assert f'--8<-- "anvil_site/cli/examples/{name}"' in page("configuration.md")
    validate_snapshot(*fleet.render(8101))


def test_faults_that_are_shown_are_the_parsers_own() -> None:
    shown = re.findall(r"^ {4}(config line \d+: .+)$", page("configuration.md"), re.MULTILINE)
    document = """\
        [[router.tiers]]
        id = "a"
        context_limit = 0
        base_url = "http://127.0.0.1:1/v1"
        model = "m"
        [[router.tiers]]
        id = "b"
        context_limit = 1
        model = "m"
        model_identity = true
        colour = 1
        [router.tiers.replica_identity]
        [[router.tiers.replicas]]
    """
    assert len(shown) == 3
    assert set(shown) <= {
        f"{found.place}: {found.fault.message}" for found in document_faults(document.encode())
    }


def _variables(*roots: str) -> set[str]:
    paths = [path for root in roots for path in (ROOT / root).rglob("*.py")]
    text = "".join(path.read_text() for path in paths)
    reading = r"(?:env\.\w+|environ(?:\.get)?|_whole)"
    return set(re.findall(reading + r"[(\[]\s*\"((?:ANVIL_|DATABASE_)[A-Z_]+)\"", text))


def test_every_variable_that_is_read_is_documented_and_no_other() -> None:
    assert set(words.ENVIRONMENT) == _variables("anvil_site", "admission", "routing", "telemetry")


def test_the_environment_file_has_every_variable_of_the_process() -> None:
    text = (ROOT / "deploy" / "anvil.env").read_text()
    of_commands = {"ANVIL_URL", "ANVIL_TRACEBACK", "ANVIL_ADMIN_USER", "ANVIL_ADMIN_PASSWORD"}
    elsewhere = {"ANVIL_DATA", "ANVIL_DEBUG"}  # the unit's, and nobody's in production
    named = set(re.findall(r"^#?([A-Z_]+)=", text, re.MULTILINE))
    assert named - {"UPSTREAM_TOKEN"} == set(words.ENVIRONMENT) - of_commands - elsewhere


# Commands ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-T013")
def test_every_command_and_option_of_the_manifest_is_documented() -> None:
    listed = json.loads(page("cli-manifest.json"))["commands"]
    parts = page("reference/commands.md").split("\n## anvil ")[1:]
    documented = {part.splitlines()[0]: part for part in parts}
    assert list(documented) == [command["command"] for command in listed]
    for command in listed:
        text = documented[command["command"]]
        assert command["summary"] in text
        for option in command["options"]:
            assert option["name"] == "--json" or f"| `{option['name']}` |" in text


def _shown_commands() -> Iterator[tuple[str, str]]:
    """Every ``anvil`` command line in an example, continued lines joined, without what explains it."""
    for name, text in pages().items():
        if name == "CHANGELOG.md":
            continue
        joined = re.sub(r" *\\\n +", " ", text)
        for line in re.findall(r"^ {4,}(anvil .+)$", joined, re.MULTILINE):
            command = re.split(r" {3,}(?=[a-z])", line)[0].strip()
            if "..." not in command and not command.startswith(("anvil COMMAND",)):
                yield name, command
        for command in re.findall(r"`(anvil [^`]+)`", flat(joined)):
            if (
                "..." not in command
                and "|" not in command
                and not re.search(r"\b(ALIAS|ID|NAME|COMMAND)\b", command)
            ):
                yield name, command


@pytest.mark.requirement("C-T006", "Q-T013")
def test_every_command_that_is_shown_is_one_that_the_parser_takes() -> None:
    shown = list(_shown_commands())
    assert len(shown) > 25
    for name, line in shown:
        arguments = shlex.split(line)[1:]
        if arguments == ["--version"]:
            continue
        leaf, taken = find(LEAVES, arguments)
        assert leaf is not None, f"{name}: {line}"
        if isinstance(leaf, Passthrough):
            continue
        assert isinstance(leaf, Command)
        rest = arguments[len(taken) :]
        # A command that is only named in a sentence is not called without its options.
        if rest or not any(option.required for option in leaf.options):
            given = {word for word in rest if word.startswith("--")}
            needed = {f"--{option.name}" for option in leaf.options if option.required}
            if needed <= given:
                parse(leaf, rest)
            else:
                assert given <= {f"--{option.name}" for option in leaf.all_options}, f"{name}: {line}"


@pytest.mark.requirement("C-T006")
def test_member_and_tier_transitions_are_shown_in_full() -> None:
    text = page("operating.md")
    for line in (
        "anvil router quiesce --tier primary --member member-b --reason maintenance --confirm",
        "anvil router drain   --tier primary --member member-b --timeout 600 --confirm",
        "anvil router readmit --tier primary --member member-b --confirm",
    ):
        assert f"    {line}\n" in text
    said = flat(text)
    assert "readmitting a member does not open a quiesced tier" in said
    assert "readmitting a tier does not open a quiesced member" in said
    assert "every stored intent is restored before the first request is let in" in said


def test_the_transition_table_is_the_matrix_that_is_tested() -> None:
    table = page("operating.md").split("| Scope is | quiesce | drain | readmit |")[1].split("\n\n")[0]
    rows = {
        row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:5]]
        for row in table.splitlines()[2:]
    }
    states = {
        "admitting": "admitting",
        "quiesced": "quiesced, at rest",
        "running": "quiesced, requests run",
        "draining": "draining",
    }
    assert set(rows) == set(states.values())
    for action, state, status, outcome, after, _ in MATRIX:
        if action == "status":
            continue
        cell = rows[states[state]][("quiesce", "drain", "readmit").index(action)]
        if outcome == (True, False):
            assert cell == "`drained` at once"
        elif outcome == (False, True):
            assert "`timed_out`" in cell
        else:
            assert f"`{outcome}`" in cell
        assert cell.startswith("409") is (status == 409)
        assert ("the reason replaced" in cell) is (action == "quiesce" and state != "admitting")
        assert after[0] in ("admitting", "quiesced")


# Endpoints ---------------------------------------------------------------------------------------------


def _routes(patterns: list[Any], before: str = "/") -> Iterator[str]:
    for pattern in patterns:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            if path == "/admin/":
                yield path
            else:
                yield from _routes(pattern.url_patterns, path)
        elif isinstance(pattern, URLPattern) and "^" not in path:
            yield re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)


def _documented_paths() -> set[str]:
    text = page("reference/endpoints.md")
    found = set(re.findall(r"`(/[^`\s]*)`", text))
    below = re.findall(r"`(/[^`]+/)` \| one snapshot; (.+) below it", text)
    for base, names in below:
        found |= {base + name for name in re.findall(r"`([^`]+)`", names)}
    return found


@pytest.mark.requirement("contract 2")
def test_every_url_is_documented_and_no_other() -> None:
    routed = {
        *_routes(get_resolver().url_patterns),
        *DIALECTS,
        "/healthz",
        "/readyz",
        "/v1/models",
        "/v1/models/{id}",
    }
    assert _documented_paths() == routed


def test_scopes_of_the_rest_part_are_the_views_own() -> None:
    rows: dict[str, str] = {}
    for row in re.findall(r"^\| (?:GET|POST|DELETE).+$", page("reference/endpoints.md"), re.MULTILINE):
        cells = row.split("|")
        rows |= dict.fromkeys(re.findall(r"`(/[^`]+)`", cells[1]), cells[3].strip())
    for pattern in _views(get_resolver().url_patterns):
        path, view = pattern
        scopes = getattr(view, "scopes", None)
        if scopes:
            assert rows[path] == " or ".join(scope.value for scope in scopes), path


def _views(patterns: list[Any], before: str = "/") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _views(pattern.url_patterns, path)
        else:
            view = getattr(pattern.callback, "view_class", getattr(pattern.callback, "cls", None))
            yield re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path), view


def test_every_error_code_of_the_data_plane_is_documented_with_its_status() -> None:
    from routing import gateway, views
    from routing.dialects.base import Failure

    failures = [
        value
        for module in (views, gateway, errors)
        for value in vars(module).values()
        if isinstance(value, Failure)
    ]
    assert len(failures) > 15
    table = page("reference/endpoints.md").split("## Errors")[1].split("\n## ")[0]
    for failure in failures:
        rows = [row for row in table.splitlines() if f"`{failure.code}`" in row]
        assert any(str(int(failure.status)) in row.split("|")[1] for row in rows) or (
            failure.code == "internal_error" and f"{int(failure.status)} `internal_error`" in table
        ), failure.code
    assert set(errors.KEPT_STATUSES) == {400, 413, 415, 422, 429}
    assert gates.BYTES_PER_TOKEN == 8


def test_every_error_code_of_a_body_and_of_the_control_plane_is_documented() -> None:
    from routing.refusals import SENTENCES

    sources = "".join(path.read_text() for path in (ROOT / "routing" / "dialects").glob("*.py"))
    bodies = set(re.findall(r'bad_body\(\s*"(\w+)"', sources))
    assert bodies == {"malformed_json", "malformed_form", "not_an_object"}
    text = page("reference/endpoints.md")
    errors_table, control = text.split("## Errors")[1].split("\n## ")[0], text.split("## Control")[1]
    assert [code for code in bodies if f"`{code}`" not in errors_table] == []
    assert [code for code in SENTENCES if f"| `{code}` |" not in control] == []


def test_the_tools_for_assistants_are_the_catalog() -> None:
    assert re.findall(r"^\| `(\w+)` \|", page("mcp.md"), re.MULTILINE) == [tool["name"] for tool in TOOLS]


# What things mean --------------------------------------------------------------------------------------


@pytest.mark.requirement("Q-T001")
def test_alias_resolution_and_member_selection_are_two_decisions() -> None:
    record, concepts = flat(page("adr/0009-bounded-same-host-replicas.md")), flat(page("concepts.md"))
    assert "Alias resolution and member selection are two decisions" in record
    assert "An alias names exactly one tier" in record
    assert "Same host and exact equivalence are required" in record
    assert "A request is dispatched once" in record
    assert "Qualification is not readiness" in record
    for excluded in (
        "A scheduler across hosts",
        "Substituting another model, tier or member behind the caller's back",
        "Authority over the life of engines",
        "Replay after dispatch",
    ):
        assert excluded in record.split("**Excluded.**")[1].split("**Why.**")[0]
    assert "Two decisions, never one" in concepts
    assert "An alias names exactly one tier" in concepts
    assert "A request is dispatched at most once" in concepts


@pytest.mark.requirement("C-T006")
def test_six_concepts_are_told_apart_by_who_decides_and_when() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+?) \| (.+?) \|$", page("concepts.md"), re.MULTILINE)
    assert [row[0] for row in rows] == [
        "Alias resolution",
        "Eligibility",
        "Scheduling",
        "Runtime metrics",
        "Qualification",
        "Promotion",
    ]
    assert all(len(set(column)) == 6 for column in zip(*(row[:3] for row in rows), strict=True))


@pytest.mark.requirement("C-T006")
def test_the_rank_is_told_in_its_order() -> None:
    text = flat(page("scheduling.md").split("## The rank")[1].split("![One choice]")[0])
    places = [
        text.index(word) for word in ("**Local load:**", "**Whether the engine", "**Pressure:**", "**Turn:**")
    ]
    assert places == sorted(places)
    freshness = page("scheduling.md").split("## How fresh pressure is")[1]
    for word in ("fresh", "stale", "failed", "unknown"):
        assert f"| `{word}` |" in freshness


@pytest.mark.requirement("F-T004")
def test_every_readiness_reason_is_documented() -> None:
    table = page("evidence.md").split("## Readiness reasons")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_A-Z]+)`", table))
    whole = {name for name in named if not name.endswith(("NNN", "NAME"))}
    assert set(PASSED) <= whole
    assert set(FAULT_NAMES) <= whole
    reasons = {*PASSED, "identity_oversized", "identity_malformed", "identity_mismatch"}
    reasons |= {"probe_pending", "probe_invalidated", "probe_superseded"}
    assert whole - set(FAULT_NAMES) - {"availability_probe_max_bytes"} == reasons
    assert all(is_readiness_reason(reason) for reason in reasons)
    assert {
        "health_http_NNN",
        "health_transport_NAME",
        "identity_http_NNN",
        "identity_transport_NAME",
    } <= named


@pytest.mark.requirement("F-T004")
def test_a_current_observation_is_kept_apart_from_admission_and_qualification() -> None:
    text = flat(page("operating.md").split("## What readiness proves")[1].split("\n## ")[0])
    assert "`probe_invalidated`" in text
    assert "`probe_superseded`" in text
    assert "a different thing from admission" in text
    assert "and from qualification" in text
    assert "quiesce, readmit, activation" in text
    assert "is not noticed as a replacement" in text
    assert "does **not** prove that the engine generates" in text


@pytest.mark.requirement("C-T006")
def test_every_reason_of_an_attempt_is_documented() -> None:
    rows = {
        row.split("|")[1].strip(" `"): set(re.findall(r"`([a-z_]+)`", row.split("|")[2]))
        for row in page("evidence.md").split("| Outcome | Reasons |")[1].split("\n\n")[0].splitlines()[2:]
    }
    assert rows == {outcome: set(reasons) for outcome, reasons in REASONS.items()}


@pytest.mark.requirement("Q-T013", "C-T013")
def test_nothing_declared_is_called_attested_or_verified() -> None:
    claims = re.compile(r"[^.|]*\b(?:attest\w*|verified deployment|verified identity)\b[^.|]*", re.IGNORECASE)
    denied = re.compile(r"\b(?:not|no|never|nobody|unverified)\b", re.IGNORECASE)
    for name, text in pages().items():
        if name in ("docs/requirements.md",):
            continue
        assert [claim for claim in claims.findall(flat(text)) if not denied.search(claim)] == [], name
    assert 'deployment_identity_source: "declared"' in flat(page("concepts.md"))
    assert "runtime_deployment_identity_verified: false" in flat(page("concepts.md"))


@pytest.mark.requirement("C-T013")
def test_the_qualification_procedure_is_whole_inert_and_the_commands_own() -> None:
    text = page("qualification.md")
    assert '--8<-- "anvil_site/cli/qualification.txt"' in text
    said = flat(text)
    assert "It runs nothing and authorises nothing" in said
    assert "A readiness probe is not a qualification" in said
    assert "says nothing about routed behaviour" in said
    plan = flat((resources.files("anvil_site.cli") / "qualification.txt").read_text())
    for part in (
        "its own authorisation",
        "as declared; it does not attest them",
        "directly against one member, then through the router's alias",
        "for at least 30 minutes",
        "stop one member, make it hang, let it serve another model",
        "Restore the state",
        "reads the artifacts and decides",
    ):
        assert part in plan


@pytest.mark.requirement("C-T013")
def test_measurements_are_called_synthetic_and_no_figure_is_without_its_table() -> None:
    said = flat(page("benchmarks/index.md"))
    assert "Engines are stand-ins" in said
    assert "no qualification" in said
    claim = re.compile(r"\b\d[\d,.]*\s*(?:%|x|times)\s+(?:faster|slower|less|more|lower|higher|of)\b")
    claiming = {name for name in pages() if claim.search(pages()[name]) and "/benchmarks/" not in name}
    assert {name for name in claiming if "](benchmarks/" not in pages()[name]} == set()


# Links, addresses, site --------------------------------------------------------------------------------


@pytest.mark.requirement("Q-T013", "C-T006")
def test_every_link_resolves_and_none_leads_away() -> None:
    assert links.markdown_faults(ROOT) == []


def test_the_link_check_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# Two words\n")
    (tmp_path / "a.md").write_text(
        "# A\n[gone](docs/c.md) [x](docs/b.md#three) [ok](docs/b.md#two-words)\n"
        "https://anvil.example.com/a http://127.0.0.1:8000/b\n"
        "https://cdn.example.net.evil.test/script.js `[code](nowhere.md)`\n"
    )
    assert links.markdown_faults(tmp_path) == [
        "a.md: leads away: https://cdn.example.net.evil.test/script.js",
        "a.md: no such file: docs/c.md",
        "a.md: no such heading: docs/b.md#three",
    ]


@pytest.mark.requirement("Q-T013")
def test_no_page_names_a_real_address_or_key() -> None:
    for name, text in pages().items():
        addresses = set(re.findall(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", text))
        assert addresses <= {"127.0.0.1", "0.0.0.0"}, name
        assert re.findall(r"\b(?:anvil_|sk-)(?=[\w-]*[A-Z])[\w-]{20,}", text) == [], name


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert links.site_faults(tmp_path / "site") == []
    built = yaml.safe_load(re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text()))
    assert built["theme"]["font"] is False


# README and deployment ---------------------------------------------------------------------------------


def test_the_readme_is_one_screen_and_names_a_pair_that_there_is() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    named = re.findall(r"`(anvil_site/cli/examples/\S+\.toml)`", text)
    assert sorted(named) == ["anvil_site/cli/examples/router.toml", "anvil_site/cli/examples/topology.toml"]
    assert all((ROOT / name).is_file() for name in named)
    for script in re.findall(r"\bscripts/\w+", text):
        assert (ROOT / script).is_file(), script


def test_what_stands_in_front_waits_longer_and_takes_as_much_as_the_router() -> None:
    nginx = (ROOT / "deploy" / "nginx.conf").read_text()
    caddy = (ROOT / "deploy" / "Caddyfile").read_text()
    longest = RouterSettings().first_byte_timeout
    for found in (
        *re.findall(r"proxy_read_timeout (\d+)s", nginx),
        *re.findall(r"header_timeout (\d+)s", caddy),
    ):
        assert int(found) > longest
    assert "client_max_body_size 32m;" in nginx
    assert settings.ANVIL_MAX_BODY_BYTES == 32 * 1024 * 1024
    assert "proxy_buffering off;" in nginx
    assert "flush_interval -1" in caddy


def test_the_unit_lets_running_requests_end() -> None:
    unit = (ROOT / "deploy" / "systemd" / "anvil.service").read_text()
    grace = int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0])
    assert grace > process.graceful_timeout
    assert "KillMode=mixed\n" in unit
    assert "ExecStart=/opt/anvil/bin/anvil serve\n" in unit
    files = int(re.findall(r"LimitNOFILE=(\d+)", unit)[0])
    assert files >= 2 * process.worker_connections + process.threads
    assert re.search(r"--stop-timeout (\d+)", page("deployment.md"))


def test_the_changes_name_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_commands_of_backup_and_restore_do_it(tmp_path: Path) -> None:
    """A private copy of a database in use; restored, nothing of the newer database is left in it."""
    section = page("operating.md").split("## Backup\n")[1]
    backup, restore = re.findall(r"(?:^    .+\n)+", section, re.MULTILINE)
    data, after_power_cut = tmp_path / "data", tmp_path / "after"
    data.mkdir()

    def run(commands: str, directory: Path) -> int:
        environment = {**os.environ, "ANVIL_DATA": str(directory)}
        return subprocess.run(
            ["bash", "-euc", commands], cwd=tmp_path, env=environment, check=False, timeout=60
        ).returncode

    assert run(backup, data) != 0
    assert list(data.iterdir()) == [], "no copy is made of a database that is not there"

    router = sqlite3.connect(data / "anvil.sqlite3", isolation_level=None)
    router.execute("PRAGMA journal_mode = WAL")
    router.execute("CREATE TABLE shift (word TEXT)")
    router.execute("INSERT INTO shift VALUES ('before')")
    assert run(backup, data) == 0
    assert stat.S_IMODE((data / "copy.sqlite3").stat().st_mode) == 0o600
    router.execute("INSERT INTO shift VALUES ('after')")
    # Copied while it is open, so with its log beside it, as a power cut leaves it.
    shutil.copytree(data, after_power_cut)
    router.close()
    assert (after_power_cut / "anvil.sqlite3-wal").stat().st_size > 0

    assert run(restore, after_power_cut) == 0
    restored = sqlite3.connect(after_power_cut / "anvil.sqlite3")
    assert restored.execute("SELECT word FROM shift").fetchall() == [("before",)]
    assert restored.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    restored.close()
    assert stat.S_IMODE((after_power_cut / "anvil.sqlite3").stat().st_mode) == 0o600
