"""Counters, histograms and the whole of one scrape, over a real router that nobody talks to."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from routing.loop import LoopStats
from routing.passage import Observation, Refused
from routing.router import Router
from routing.snapshot import validate_snapshot
from telemetry.decisions import DecisionLog
from telemetry.evidence import SETTLE_AT, ExecutorReading, ProcessEvidence
from telemetry.exporter import SERIES, PrometheusExporter
from telemetry.pressure import ReplicaPressureCache
from telemetry.tallies import MAX_KEY_NAMES, OTHER_KEYS, Histogram, Tallies
from telemetry.writer import BoundedWriter
from tests.unit.routing.records_samples import DIRECT

CONFIG = b"""
[router.model_routes]
"llm.direct" = "direct"

[[router.tiers]]
id = "direct"
base_url = "http://10.9.8.7:8100/v1"
context_limit = 1000
model = "m"
max_concurrency = 6
"""

SERVED = Observation(
    route="llm.direct",
    tier="direct",
    member=None,
    outcome="served",
    key_name="ada",
    overhead_seconds=0.0004,
    first_token_seconds=0.2,
    seconds=3.0,
    prompt_tokens=10,
    completion_tokens=20,
)


@pytest.fixture
def evidence() -> ProcessEvidence:
    return ProcessEvidence(DecisionLog())


@pytest.fixture
def router(evidence: ProcessEvidence) -> Iterator[Router]:
    """Active, and with nothing to probe: ready once the prober's thread has found that out."""
    made = Router(
        evidence=evidence, pressure_factory=lambda tiers, previous: ReplicaPressureCache(tiers), auth=False
    )
    made.install(validate_snapshot(CONFIG), snapshot_id=1)
    made.owns_ledger = True
    assert made.availability.first_round_done.wait(10)
    yield made
    made.close()


def lines(text: bytes, *names: str) -> list[str]:
    """The sample lines of these series, in order."""
    return [
        line
        for line in text.decode().splitlines()
        if any(line.startswith((f"{name} ", f"{name}{{")) for name in names)
    ]


def test_a_finished_request_in_every_series_that_counts_it(router: Router, evidence: ProcessEvidence) -> None:
    evidence.record(DIRECT, SERVED)
    evidence.record(DIRECT, replace(SERVED, outcome="error", first_token_seconds=None, completion_tokens=0))
    unsent = replace(
        SERVED, overhead_seconds=None, first_token_seconds=None, prompt_tokens=0, completion_tokens=0
    )
    evidence.record(DIRECT, replace(unsent, outcome="skipped"))
    evidence.record(DIRECT, replace(unsent, outcome="error"))
    evidence.refused("direct", Refused.UNAVAILABLE)
    evidence.refused(None, Refused.UNKNOWN_MODEL, "ada")
    evidence.refused(None, Refused.KEY_LIMIT, "flood")
    text = PrometheusExporter(router, evidence).render()
    assert lines(
        text,
        "anvil_requests_total",
        "anvil_tokens_total",
        "anvil_refusals_total",
        "anvil_key_requests_total",
        "anvil_key_tokens_total",
        "anvil_request_seconds_sum",
        "anvil_request_seconds_count",
        "anvil_router_overhead_seconds_count",
        "anvil_time_to_first_token_seconds_bucket",
        "anvil_time_to_first_token_seconds_sum",
    ) == [
        'anvil_requests_total{outcome="served",route="llm.direct",tier="direct"} 1.0',
        'anvil_requests_total{outcome="error",route="llm.direct",tier="direct"} 2.0',
        'anvil_requests_total{outcome="skipped",route="llm.direct",tier="direct"} 1.0',
        'anvil_request_seconds_count{tier="direct"} 2.0',
        'anvil_request_seconds_sum{tier="direct"} 6.0',
        *(
            f'anvil_time_to_first_token_seconds_bucket{{le="{bound}",tier="direct"}} {count}'
            for bound, count in (
                ("0.01", 0.0),
                ("0.025", 0.0),
                ("0.05", 0.0),
                ("0.1", 0.0),
                ("0.25", 1.0),
                ("0.5", 1.0),
                ("1.0", 1.0),
                ("2.5", 1.0),
                ("5.0", 1.0),
                ("10.0", 1.0),
                ("30.0", 1.0),
                ("60.0", 1.0),
                ("120.0", 1.0),
                ("+Inf", 1.0),
            )
        ),
        'anvil_time_to_first_token_seconds_sum{tier="direct"} 0.2',
        "anvil_router_overhead_seconds_count 2.0",
        'anvil_tokens_total{kind="prompt",route="llm.direct"} 20.0',
        'anvil_tokens_total{kind="completion",route="llm.direct"} 20.0',
        'anvil_refusals_total{reason="unavailable",tier="direct"} 1.0',
        'anvil_refusals_total{reason="unknown_model",tier=""} 1.0',
        'anvil_refusals_total{reason="key_limit",tier=""} 1.0',
        'anvil_key_requests_total{key="ada"} 5.0',
        'anvil_key_requests_total{key="flood"} 1.0',
        'anvil_key_tokens_total{key="ada",kind="prompt"} 20.0',
        'anvil_key_tokens_total{key="ada",kind="completion"} 20.0',
    ]


def test_counters_outlive_the_ring(router: Router) -> None:
    evidence = ProcessEvidence(DecisionLog(2))
    for _ in range(5):
        evidence.record(DIRECT, SERVED)
    text = PrometheusExporter(router, evidence).render()
    assert lines(text, "anvil_requests_total", "anvil_router_decision_buffer_requests") == [
        'anvil_requests_total{outcome="served",route="llm.direct",tier="direct"} 5.0',
        'anvil_router_decision_buffer_requests{model="llm.direct",outcome="succeeded"} 2.0',
        'anvil_router_decision_buffer_requests{model="llm.direct",outcome="failed"} 0.0',
    ]


def test_the_decision_buffer_in_figures(router: Router, evidence: ProcessEvidence) -> None:
    for latency in (100, 200, 900):
        evidence.record(replace(DIRECT, latency_ms=latency), SERVED)
    # Of a configuration that is gone: what is not configured is no label.
    evidence.record(replace(DIRECT, route="llm.removed", requested_tier="gone"), SERVED)
    text = PrometheusExporter(router, evidence).render()
    found = [line for line in text.decode().splitlines() if line.startswith("anvil_router_decision_buffer")]
    assert found == [
        "anvil_router_decision_buffer_capacity 10000.0",
        'anvil_router_decision_buffer_requests{model="llm.direct",outcome="succeeded"} 3.0',
        'anvil_router_decision_buffer_requests{model="llm.direct",outcome="failed"} 0.0',
        'anvil_router_decision_buffer_prompt_tokens{model="llm.direct"} 33.0',
        'anvil_router_decision_buffer_completion_tokens{model="llm.direct"} 66.0',
        'anvil_router_decision_buffer_request_bytes{model="llm.direct"} 903.0',
        'anvil_router_decision_buffer_response_bytes{model="llm.direct"} 1206.0',
        'anvil_router_decision_buffer_latency_seconds_average{model="llm.direct"} 0.4',
        'anvil_router_decision_buffer_latency_seconds_p50{model="llm.direct"} 0.2',
        'anvil_router_decision_buffer_latency_seconds_p95{model="llm.direct"} 0.9',
        'anvil_router_decision_buffer_latency_samples{model="llm.direct"} 3.0',
    ]


class Failing(BoundedWriter[Any]):
    def write(self, batch: object) -> None:
        raise OSError("planted-secret")


def test_the_process_its_server_and_its_writers(router: Router, evidence: ProcessEvidence) -> None:
    evidence.server.loop = lambda: LoopStats(
        flows=3, buffered_bytes=4096, turns=70, slowest_turn_seconds=0.25, stalled_seconds=1.5
    )
    evidence.server.places = lambda: (5, 512)
    evidence.server.executors["management"] = lambda: ExecutorReading(busy=2, waiting=1)
    writer = Failing("planted", capacity=2, batch_size=2)
    for number in range(5):
        writer.offer(number)
    writer.run_once()
    evidence.writers = lambda: {"table": writer}
    evidence.management_refusals = lambda: {("quiesce", "unknown_tier"): 2}
    evidence.started_at = 1_767_225_600.5
    evidence.wall_clock_jumps = 2
    lease = router.ledger.acquire("direct")
    text = PrometheusExporter(router, evidence).render()
    expected = [
        'anvil_inflight{member="",tier="direct"} 1.0',
        'anvil_tier_ceiling{tier="direct"} 6.0',
        'anvil_tier_admitting{tier="direct"} 1.0',
        'anvil_member_ready{member="",tier="direct"} 1.0',
        'anvil_member_flaps_total{member="",tier="direct"} 0.0',
        "anvil_router_process_start_time_seconds 1.7672256005e+09",
        "anvil_wall_clock_jumps_total 2.0",
        "anvil_owns_ledger 1.0",
        "anvil_draining 0.0",
        'anvil_management_refusals_total{action="quiesce",code="unknown_tier"} 2.0',
        "anvil_front_door_places 5.0",
        "anvil_front_door_places_limit 512.0",
        "anvil_relay_streams 3.0",
        "anvil_relay_buffered_bytes 4096.0",
        "anvil_relay_turns_total 70.0",
        "anvil_relay_slowest_turn_seconds 0.25",
        "anvil_relay_stalled_seconds 1.5",
        'anvil_executor_busy{executor="management"} 2.0',
        'anvil_executor_waiting{executor="management"} 1.0',
        'anvil_writer_entries_written_total{writer="table"} 0.0',
        'anvil_writer_entries_dropped_total{writer="table"} 3.0',
        'anvil_writer_entries_failed_total{writer="table"} 2.0',
        'anvil_writer_queue_entries{writer="table"} 0.0',
        'anvil_writer_busy_seconds{writer="table"} 0.0',
        "anvil_exporter_faults_total 0.0",
    ]
    found = text.decode().splitlines()
    assert [line for line in expected if line not in found] == []
    assert "planted" not in text.decode()
    assert lease is not None
    lease.release()


def test_a_source_that_fails_costs_its_own_group(router: Router, evidence: ProcessEvidence) -> None:
    def fail() -> Any:
        raise RuntimeError("planted-secret http://10.9.8.7")

    evidence.writers = fail
    evidence.server.places = fail
    evidence.record(DIRECT, SERVED)
    exporter = PrometheusExporter(router, evidence)
    exporter.render()
    text = exporter.render()
    assert lines(text, "anvil_exporter_faults_total", "anvil_requests_total", "anvil_front_door_places") == [
        'anvil_requests_total{outcome="served",route="llm.direct",tier="direct"} 1.0',
        "anvil_exporter_faults_total 4.0",
    ]
    assert b"planted" not in text
    assert b"10.9.8.7" not in text


def test_a_process_without_a_configuration_says_so(evidence: ProcessEvidence) -> None:
    router = Router(
        evidence=evidence, pressure_factory=lambda tiers, previous: ReplicaPressureCache(tiers), auth=False
    )
    text = PrometheusExporter(router, evidence).render()
    assert lines(
        text, "anvil_owns_ledger", "anvil_ready", "anvil_exporter_faults_total", "anvil_inflight"
    ) == [
        "anvil_owns_ledger 0.0",
        "anvil_ready 0.0",
        "anvil_exporter_faults_total 0.0",
    ]


def test_a_scrape_changes_nothing_but_what_is_queued(router: Router, evidence: ProcessEvidence) -> None:
    evidence.record(DIRECT, SERVED)
    exporter = PrometheusExporter(router, evidence)
    volatile = (b"anvil_open_descriptors", b"anvil_prober_idle_seconds")

    def stable() -> list[bytes]:
        return [line for line in exporter.render().splitlines() if not line.startswith(volatile)]

    assert stable() == stable()
    assert router.ledger.snapshot("direct").active_requests == 0


@pytest.mark.requirement("C-R012", "C-R014")
def test_ten_thousand_made_up_models_add_no_series_and_no_entry(
    router: Router, evidence: ProcessEvidence
) -> None:
    """A refusal of an unknown model carries no name at all, so there is nothing that could grow."""
    exporter = PrometheusExporter(router, evidence)
    evidence.refused(None, Refused.UNKNOWN_MODEL, "ada")
    before = exporter.render()
    for _ in range(10_000):
        evidence.refused(None, Refused.UNKNOWN_MODEL, "ada")
    after = exporter.render()
    assert [line.rpartition(b" ")[0] for line in before.splitlines()] == [
        line.rpartition(b" ")[0] for line in after.splitlines()
    ]
    assert b'anvil_refusals_total{reason="unknown_model",tier=""} 10001.0' in after
    assert len(evidence.log) == 0


@pytest.mark.requirement("C-R014")
def test_key_names_beyond_the_bound_share_one_label() -> None:
    tallies = Tallies()
    for number in range(1000):
        tallies.observe(replace(SERVED, key_name=f"key-{number}"))
    assert len(tallies.key_requests) == MAX_KEY_NAMES == 256
    assert tallies.key_requests[OTHER_KEYS] == 1000 - 255
    assert tallies.key_requests["key-254"] == 1
    assert sum(tallies.key_tokens.values()) == 30_000


def test_keys_that_are_running_use_the_same_labels(router: Router, evidence: ProcessEvidence) -> None:
    with evidence.settled() as tallies:
        for number in range(255):
            tallies.key_label(f"key-{number}")
    for name in ("key-0", "new-1", "new-2"):
        router.ring.enter(replace(router.ring.verify(None), name=name))  # type: ignore[type-var]
    text = PrometheusExporter(router, evidence).render()
    assert lines(text, "anvil_key_inflight") == [
        'anvil_key_inflight{key="key-0"} 1.0',
        'anvil_key_inflight{key="(other)"} 2.0',
    ]


def test_a_histograms_bounds_belong_to_the_bucket_they_end() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 8.0


def test_counting_from_many_threads_loses_nothing(evidence: ProcessEvidence) -> None:
    """Requests append while others settle; a full queue is counted by the request that filled it."""
    threads = 8
    each = SETTLE_AT // 4
    start = threading.Barrier(threads + 1)

    def run() -> None:
        start.wait()
        for _ in range(each):
            evidence.refused("direct", Refused.UNAVAILABLE)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    while any(worker.is_alive() for worker in workers):
        evidence.settle()
    for worker in workers:
        worker.join()
    assert evidence.refusals() == {("direct", "unavailable"): threads * each}


def test_a_queue_that_nobody_settles_stays_bounded(evidence: ProcessEvidence) -> None:
    for _ in range(SETTLE_AT - 1):
        evidence.refused("direct", Refused.UNAVAILABLE)
    assert len(evidence._queue) == SETTLE_AT - 1
    evidence.refused("direct", Refused.UNAVAILABLE)
    assert len(evidence._queue) == 0
    assert evidence.refusals() == {("direct", "unavailable"): SETTLE_AT}


def test_every_series_of_a_scrape_is_in_the_list(router: Router, evidence: ProcessEvidence) -> None:
    """And has the type, the help and exactly the labels that the list says."""
    evidence.record(DIRECT, SERVED)
    text = PrometheusExporter(router, evidence).render().decode()
    described = [line for line in text.splitlines() if line.startswith("# ")]
    for line in described:
        _, word, name, rest = line.split(" ", 3)
        series = SERIES[name]
        assert rest == (series.help if word == "HELP" else series.kind)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, _, labels = line.rpartition(" ")[0].partition("{")
        base = name
        for suffix in ("_bucket", "_sum", "_count"):
            if name.endswith(suffix) and name.removesuffix(suffix) in SERIES:
                base = name.removesuffix(suffix)
        found = {pair.split("=")[0] for pair in labels.rstrip("}").split(",") if pair} - {"le"}
        assert found == set(SERIES[base].labels), line
