"""A real Prometheus scrapes a real router: the lint of its text, its rules, alerts and a query's answer.

Needs Debian's package ``prometheus``; without it the tests are skipped by name, except in continuous
integration, where it has to be there.
"""

import json
import os
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import (
    ROOT,
    Documents,
    Engine,
    ReservedPorts,
    Router,
    await_rest,
    direct_tier,
    documents,
    eventually,
    replica_tier,
    request,
)

MISSING = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
if MISSING and os.environ.get("CI") == "true":
    raise RuntimeError("Debian's package prometheus is needed: " + ", ".join(MISSING))
pytestmark = pytest.mark.skipif(bool(MISSING), reason="Debian's package prometheus is not installed")

RULES = ROOT / "docs" / "prometheus" / "rules.yml"
ALERTS = ROOT / "docs" / "prometheus" / "alerts.yml"


@pytest.fixture
def fleet(make_engine: Callable[..., Engine]) -> Documents:
    """Two members in capacity mode, and a direct tier."""
    members = [make_engine("member-a"), make_engine("member-b")]
    return documents(replica_tier(members, ceilings=4), direct_tier(make_engine("direct")))


@pytest.fixture
def router(fleet: Documents, make_router: Callable[..., Router]) -> Router:
    started: Router = make_router(fleet).start()
    return started


def scrape(router: Router) -> str:
    answer = router.request("GET", "/metrics")
    assert answer.status == 200, answer.body
    return answer.body.decode()


def values(text: str, name: str) -> dict[str, float]:
    """Label part ("{...}" or "") to value of one series."""
    found = {}
    for line in text.splitlines():
        key, _, value = line.rpartition(" ")
        series, brace, labels = key.partition("{")
        if series == name:
            found[brace + labels] = float(value)
    return found


def use(router: Router, times: int) -> None:
    """Streamed and whole answers through both tiers, and one made-up model."""
    for number in range(times):
        for alias in ("live.chat", "live.direct"):
            answer = router.chat(alias, stream=bool(number % 2), max_tokens=3)
            assert answer.status == 200, answer.body
    assert router.chat("made-up-model").status == 404
    await_rest(router)


@pytest.mark.requirement("C-R012", "C-T011.1")
def test_promtool_finds_nothing_to_say(router: Router) -> None:
    use(router, 4)
    text = scrape(router)
    linted = subprocess.run(
        ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, timeout=30, check=False
    )
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, b"", b"")


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    """`promtool test rules` over made series; the list of alerts in that file is complete."""
    cases = ROOT / "tests" / "live" / "prometheus_alerts.yml"
    for command in (["check", "rules", str(RULES), str(ALERTS)], ["test", "rules", str(cases)]):
        run = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
    for line in ALERTS.read_text().splitlines():
        if "- alert: " in line:
            assert f"alertname: {line.rpartition(' ')[2]}" in cases.read_text()


def test_what_a_scrape_says_after_some_requests(router: Router) -> None:
    use(router, 4)
    text = scrape(router)
    assert values(text, "anvil_requests_total") == {
        '{outcome="served",route="live.chat",tier="chat"}': 4,
        '{outcome="served",route="live.direct",tier="direct"}': 4,
    }
    assert values(text, "anvil_refusals_total") == {'{reason="unknown_model",tier=""}': 1}
    assert values(text, "anvil_inflight") == {
        '{member="",tier="direct"}': 0,
        '{member="member-a",tier="chat"}': 0,
        '{member="member-b",tier="chat"}': 0,
    }
    assert values(text, "anvil_time_to_first_token_seconds_count") == {
        '{tier="chat"}': 2,
        '{tier="direct"}': 2,
    }
    assert values(text, "anvil_request_seconds_count") == {'{tier="chat"}': 4, '{tier="direct"}': 4}
    assert values(text, "anvil_key_requests_total") == {'{key="bootstrap"}': 9}
    assert values(text, "anvil_router_replica_tier_max_concurrency") == {'{tier="chat"}': 8}
    assert values(text, "anvil_router_model_loaded") == {
        '{model="live.chat",tier="chat"}': 1,
        '{model="live.direct",tier="direct"}': 1,
    }
    assert values(text, "anvil_exporter_faults_total") == {"": 0}
    assert values(text, "anvil_owns_ledger") == values(text, "anvil_ready") == {"": 1}
    # The scrape itself is what the management's executor is busy with.
    assert values(text, "anvil_executor_busy") == {'{executor="data"}': 0, '{executor="management"}': 1}
    assert values(text, "anvil_executor_waiting") == {'{executor="data"}': 0, '{executor="management"}': 0}
    assert values(text, "anvil_relay_streams") == values(text, "anvil_front_door_places") == {"": 0}
    for writer in ("lines", "table", "log"):
        assert values(text, "anvil_writer_entries_dropped_total")[f'{{writer="{writer}"}}'] == 0


@pytest.mark.requirement("C-T003", "C-R009")
def test_an_idle_router_keeps_its_pressure_fresh_and_its_readings_of_direct_tiers(router: Router) -> None:
    """No request has ever come: the process's own housekeeping has the members read."""

    def settled() -> bool:
        text = scrape(router)
        fresh = values(text, "anvil_router_replica_member_pressure_freshness")
        assert fresh['{freshness="fresh",member="member-a",tier="chat"}'] == 1
        assert fresh['{freshness="fresh",member="member-b",tier="chat"}'] == 1
        assert values(text, "anvil_router_model_requests_running") == {
            '{model="live.direct",tier="direct"}': 0
        }
        return True

    eventually(settled, timeout=15.0, interval=0.2)


class Server:
    """Prometheus in a process of its own."""

    def __init__(self, directory: Path, router: Router) -> None:
        self._ports = ReservedPorts()
        self.port = self._ports.first
        directory.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES), str(ALERTS)],
            "scrape_configs": [
                {
                    "job_name": "anvil",
                    "authorization": {"credentials": router.token},
                    "static_configs": [{"targets": [f"127.0.0.1:{router.port}"]}],
                }
            ],
        }
        # JSON is YAML.
        (directory / "prometheus.yml").write_text(json.dumps(config))
        self._log = (directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path: str, **query: str) -> Any:
        try:
            answer = request(self.port, "GET", f"{path}?{urllib.parse.urlencode(query)}")
        except OSError as error:
            raise AssertionError("it does not listen yet") from error
        assert answer.status == 200, answer.body
        return answer.json()["data"]

    def query(self, expression: str) -> dict[str, float]:
        """One value for each set of labels, as JSON with sorted keys and without the scrape's own labels."""
        own = ("__name__", "instance", "job")
        return {
            json.dumps({k: v for k, v in row["metric"].items() if k not in own}, sort_keys=True): float(
                row["value"][1]
            )
            for row in self.get("/api/v1/query", query=expression)["result"]
        }

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        self._log.close()
        self._ports.close()


@pytest.fixture
def prometheus(router: Router, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "prometheus", router)
    yield server
    server.stop()


def test_a_real_prometheus_scrapes_and_answers(router: Router, prometheus: Server) -> None:
    eventually(lambda: prometheus.query("up") == {"{}": 1.0}, timeout=30.0, interval=0.2)
    use(router, 4)
    eventually(
        lambda: (
            prometheus.query('sum by (tier) (anvil_requests_total{outcome="served"})')
            == {'{"tier": "chat"}': 4.0, '{"tier": "direct"}': 4.0}
        ),
        timeout=20.0,
        interval=0.2,
    )
    groups = prometheus.get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    eventually(
        lambda: (
            {rule["health"] for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]}
            == {"ok"}
        ),
        timeout=20.0,
        interval=0.2,
    )
    assert len(rules) > 10


def test_a_member_that_is_out_raises_its_alert(
    make_engine: Callable[..., Engine], make_router: Callable[..., Router], tmp_path: Path
) -> None:
    """The alert is pending as soon as the member is gone, and names it."""
    members = [make_engine("member-a"), make_engine("member-b")]
    router = make_router(documents(replica_tier(members))).start()
    server = Server(tmp_path / "prometheus", router)
    try:
        eventually(lambda: server.query("up") == {"{}": 1.0}, timeout=30.0, interval=0.2)
        members[1].stop()

        def pending() -> bool:
            alerts = server.get("/api/v1/alerts")["alerts"]
            found = {(a["labels"]["alertname"], a["labels"].get("member")) for a in alerts}
            assert ("AnvilMemberOut", "member-b") in found, found
            return True

        eventually(pending, timeout=30.0, interval=0.2)
    finally:
        server.stop()
