"""docs/prometheus.md, the rules, the alerts and the dashboard name what exists, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from telemetry.exporter import SERIES
from telemetry.series import Series

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "prometheus.md").read_text()
FOLDER = ROOT / "docs" / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())

NAME = re.compile(r"\banvil[a-z0-9_]*(?::[a-z0-9_]+)*\b(?!\")")
MATCHERS = re.compile(r"\{([^}]*)\}")
LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
BY = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def exported(series: Series) -> set[str]:
    """The names under which a series is scraped."""
    if series.kind != "histogram":
        return {series.name}
    return {f"{series.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")}


SCRAPED = {name for series in SERIES.values() for name in exported(series)}
LABELS = {label for series in SERIES.values() for label in series.labels} | {"instance", "job", "le"}


def rules(document: Any) -> list[dict[str, Any]]:
    return [rule for group in document["groups"] for rule in group["rules"]]


RECORDED = {rule["record"] for rule in rules(RULES)}


def expressions() -> Iterator[tuple[str, str]]:
    """Every PromQL expression with its place."""
    for rule in rules(RULES):
        yield rule["record"], rule["expr"]
    for rule in rules(ALERTS):
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]


EXPRESSIONS = dict(expressions())


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_an_expression_uses_series_and_labels_that_exist(place: str) -> None:
    text = EXPRESSIONS[place]
    bare = re.sub(r'"[^"]*"', '""', text)
    names = set(NAME.findall(bare))
    assert names or "up{" in bare, "it reads nothing of Anvil's"
    assert names - SCRAPED - RECORDED == set()
    used = {label for part in MATCHERS.findall(bare) for label in LABEL.findall(part)}
    used |= {label.strip() for part in BY.findall(bare) for label in part.split(",")}
    assert used - LABELS == set()


def test_a_matcher_uses_a_value_that_its_label_can_have() -> None:
    """Label values of closed lists; a rule over a value that never comes would never fire."""
    closed = {"outcome": {"served", "error", "skipped"}, "freshness": {"fresh", "stale", "failed", "unknown"}}
    for place, text in EXPRESSIONS.items():
        for label, values in closed.items():
            for given in re.findall(rf'\b{label}=~?"([^"]*)"', text):
                assert set(given.split("|")) <= values, place


def test_rules_record_each_name_once_and_alerts_have_what_a_night_needs() -> None:
    assert len(RECORDED) == len(rules(RULES))
    names = [rule["alert"] for rule in rules(ALERTS)]
    assert len(set(names)) == len(names)
    assert {
        "AnvilMemberOut",
        "AnvilTierOut",
        "AnvilTierAtCeiling",
        "AnvilMemberFlapping",
        "AnvilPressureStale",
        "AnvilRecordsDropped",
    } <= set(names)
    for rule in rules(ALERTS):
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/prometheus.md#{rule['alert'].lower()}"


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    sections = re.findall(r"^### (Anvil\w+)$\n\n(.+?)(?=\n\n###|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert [title for title, _ in sections] == [rule["alert"] for rule in rules(ALERTS)]
    assert all(len(text.split()) > 15 for _, text in sections)


def test_every_series_is_documented_as_it_is() -> None:
    rows = re.findall(r"^\| `(anvil_[a-z0-9_]+)` \| (\w+) \| ([^|]+) \| (.+) \|$", PAGE, re.MULTILINE)
    documented = {name: (kind, labels, text) for name, kind, labels, text in rows}
    assert len(rows) == len(documented)
    assert documented == {
        series.name: (series.kind, ", ".join(series.labels) or "-", series.help) for series in SERIES.values()
    }


def test_every_recording_rule_is_documented() -> None:
    rows = re.findall(r"^\| `(anvil:[a-z0-9_:]+)` \| .+ \|$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(RECORDED)


def test_the_page_names_nothing_that_does_not_exist() -> None:
    prose = re.sub(r"\]\([^)]*\)", "", PAGE)
    named = set(re.findall(r"\banvil[_:][a-z0-9_:]+\b", prose))
    assert named - SCRAPED - RECORDED - set(SERIES) == set()


def test_names_follow_prometheus_own_rules() -> None:
    for series in SERIES.values():
        assert re.fullmatch(r"anvil_[a-z][a-z0-9_]*", series.name)
        assert (series.kind == "counter") == series.name.endswith("_total"), series.name
        assert not series.name.endswith(("_count", "_sum", "_bucket")), series.name
        assert series.help.endswith("."), series.name


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert DASHBOARD["title"] == "Anvil"
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"], panel["title"]
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
