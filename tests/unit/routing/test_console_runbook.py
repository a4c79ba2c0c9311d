"""The runbook of the console is the documentation's, and answers every alert."""

import re
from pathlib import Path

from routing.console.runbook import SOURCE, Part, parse, runbook

DOCS = Path(__file__).parents[3] / "docs"


def test_it_is_the_documentations_own_text() -> None:
    """Mend: copy that part of docs/prometheus.md to routing/console/runbook.txt."""
    whole = (DOCS / "prometheus.md").read_text()

    assert SOURCE.read_text() == whole[whole.index("## Alerts, and what to do at night") :]


def test_every_alert_has_its_entry() -> None:
    rules = (DOCS / "prometheus" / "alerts.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)

    assert alerts
    assert sorted(alerts) == sorted(advice.name for advice in runbook().alerts)
    for anchor in re.findall(r"runbook: docs/prometheus\.md#(\w+)", rules):
        assert anchor in {advice.anchor for advice in runbook().alerts}


def test_marks_become_parts_and_nothing_else() -> None:
    found = parse("## Title\n\nSay `code <b>` and\n*more*.\n\n### First\n\nOne.\n\nTwo.\n")

    assert found.title == "Title"
    assert found.lead == (
        (
            Part("plain", "Say "),
            Part("code", "code <b>"),
            Part("plain", " and "),
            Part("strong", "more"),
            Part("plain", "."),
        ),
    )
    assert [advice.anchor for advice in found.alerts] == ["first"]
    assert found.alerts[0].paragraphs == ((Part("plain", "One."),), (Part("plain", "Two."),))
