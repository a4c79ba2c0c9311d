"""``GET /metrics``: everything this process knows, as Prometheus text, from a registry of its own.

`SERIES` lists every series with its type, labels and help; nothing else is ever exported, and
``docs/prometheus.md``, its rules, alerts and dashboard are held to it by a test. Reading changes nothing: no
probe, fetch, lease or rank. A source that fails costs its own group of series and is counted; its exception
goes no further.

Label values are configured ids and aliases, words of closed lists, and at most 256 names of keys: what
callers send never becomes one.
"""

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Final

from routing.config import RouterConfig
from routing.projections import completed, route_names
from routing.router import Router
from telemetry.capacity import build_model_capacity
from telemetry.capacity_series import CAPACITY_SERIES, capacity_points
from telemetry.evidence import ProcessEvidence
from telemetry.series import Point, Series, render
from telemetry.stats import MAX_STATS_LIMIT, build_stats

VERSION: Final = version("anvil-router")

# What has happened since the process started
REQUESTS: Final = Series(
    "anvil_requests_total",
    "counter",
    "Requests that reached a tier's gates, by outcome: served, error or skipped.",
    ("route", "tier", "outcome"),
)
REQUEST_SECONDS: Final = Series(
    "anvil_request_seconds",
    "histogram",
    "From the complete request to the end of its exchange, of requests that were dispatched.",
    ("tier",),
)
FIRST_TOKEN: Final = Series(
    "anvil_time_to_first_token_seconds",
    "histogram",
    "From the complete request to the first event of a streamed answer.",
    ("tier",),
)
OVERHEAD: Final = Series(
    "anvil_router_overhead_seconds",
    "histogram",
    "From the complete request to its dispatch: the time that the router itself took.",
)
TOKENS: Final = Series(
    "anvil_tokens_total", "counter", "Tokens that upstreams reported, by kind.", ("route", "kind")
)
REFUSALS: Final = Series(
    "anvil_refusals_total",
    "counter",
    "Requests that were refused before dispatch; the tier is empty before one was known.",
    ("tier", "reason"),
)
KEY_REQUESTS: Final = Series(
    "anvil_key_requests_total", "counter", "Requests by the name of their API key.", ("key",)
)
KEY_TOKENS: Final = Series(
    "anvil_key_tokens_total", "counter", "Tokens by the name of the API key, by kind.", ("key", "kind")
)
FLAPS: Final = Series(
    "anvil_member_flaps_total",
    "counter",
    "Changes of a scope's readiness since it was configured, but those over a quiesce or readmit; the member "
    "of a direct tier is empty.",
    ("tier", "member"),
)

MANAGEMENT_REFUSALS: Final = Series(
    "anvil_management_refusals_total",
    "counter",
    "Changes of the control plane that were refused, by action and code.",
    ("action", "code"),
)

# What is so now
INFLIGHT: Final = Series(
    "anvil_inflight",
    "gauge",
    "Requests that hold a lease; the member of a direct tier is empty.",
    ("tier", "member"),
)
KEY_INFLIGHT: Final = Series(
    "anvil_key_inflight", "gauge", "Requests that are running now, by the name of their API key.", ("key",)
)
TIER_LIMIT: Final = Series("anvil_tier_ceiling", "gauge", "Effective ceiling of the tier.", ("tier",))
TIER_ADMITTING: Final = Series(
    "anvil_tier_admitting", "gauge", "1 while the tier takes new leases, 0 while it is quiesced.", ("tier",)
)
MEMBER_ADMITTING: Final = Series(
    "anvil_member_admitting",
    "gauge",
    "1 while the member takes new leases, 0 while it is quiesced.",
    ("tier", "member"),
)
MEMBER_READY: Final = Series(
    "anvil_member_ready",
    "gauge",
    "1 when the scope's readiness lets it be chosen, 0 when not; the member of a direct tier is empty.",
    ("tier", "member"),
)

# The decision buffer: figures over the ring, which go back with it
BUFFER_REQUESTS: Final = Series(
    "anvil_router_decision_buffer_requests",
    "gauge",
    "Records in the decision buffer, by outcome: succeeded or failed.",
    ("model", "outcome"),
)
_BUFFER_FIGURES: Final[Mapping[tuple[str, str], Series]] = {
    path: Series(f"anvil_router_decision_buffer_{name}", "gauge", help_text, ("model",))
    for path, name, help_text in (
        (("tokens", "prompt"), "prompt_tokens", "Prompt tokens over the decision buffer."),
        (("tokens", "completion"), "completion_tokens", "Completion tokens over the decision buffer."),
        (("bytes", "request"), "request_bytes", "Bytes of request bodies over the decision buffer."),
        (("bytes", "response"), "response_bytes", "Bytes of response bodies over the decision buffer."),
        (("latency_ms", "average"), "latency_seconds_average", "Mean latency over the decision buffer."),
        (("latency_ms", "p50"), "latency_seconds_p50", "Median latency over the decision buffer."),
        (("latency_ms", "p95"), "latency_seconds_p95", "95th percentile of latency over the buffer."),
        (("latency_ms", "samples"), "latency_samples", "Records of the buffer that have a latency."),
    )
}
BUFFER_CAPACITY: Final = Series(
    "anvil_router_decision_buffer_capacity", "gauge", "Records that the decision buffer holds at most."
)

# The process
START_TIME: Final = Series(
    "anvil_router_process_start_time_seconds", "gauge", "Unix time at which the process started."
)
CLOCK_JUMPS: Final = Series(
    "anvil_wall_clock_jumps_total",
    "counter",
    "How often the wall clock was found set by five seconds or more.",
)
BUILD: Final = Series("anvil_build_info", "gauge", "1, with the version that runs.", ("version",))
OWNS_LEDGER: Final = Series("anvil_owns_ledger", "gauge", "1 when this process owns the admission ledger.")
READY: Final = Series("anvil_ready", "gauge", "1 when /readyz says so.")
DRAINING: Final = Series("anvil_draining", "gauge", "1 while the process is leaving.")
PLACES: Final = Series("anvil_front_door_places", "gauge", "Places of the data plane that are taken.")
PLACES_LIMIT: Final = Series("anvil_front_door_places_limit", "gauge", "Places of the data plane.")
STREAMS: Final = Series("anvil_relay_streams", "gauge", "Exchanges that the relay loop is driving.")
BUFFERED: Final = Series(
    "anvil_relay_buffered_bytes", "gauge", "Bytes that wait in the relay loop for slow callers."
)
TURNS: Final = Series("anvil_relay_turns_total", "counter", "Turns of the relay loop.")
SLOWEST_TURN: Final = Series(
    "anvil_relay_slowest_turn_seconds", "gauge", "Longest turn of the relay loop since the last reading."
)
STALLED: Final = Series(
    "anvil_relay_stalled_seconds",
    "gauge",
    "How long the relay loop has been in its current turn; it grows when the loop is stuck.",
)
BUSY: Final = Series("anvil_executor_busy", "gauge", "Threads of the executor that serve.", ("executor",))
WAITING: Final = Series(
    "anvil_executor_waiting", "gauge", "Requests that wait for a thread of the executor.", ("executor",)
)
PROBER_IDLE: Final = Series(
    "anvil_prober_idle_seconds",
    "gauge",
    "Since a thread of the readiness prober last looked at its schedule.",
)
DESCRIPTORS: Final = Series("anvil_open_descriptors", "gauge", "File descriptors that are open.")
DESCRIPTORS_LIMIT: Final = Series(
    "anvil_open_descriptors_limit", "gauge", "File descriptors that may be open."
)

# Evidence about the evidence
_WRITER: Final = ("writer",)
WRITTEN: Final = Series(
    "anvil_writer_entries_written_total", "counter", "Entries that the writer has written.", _WRITER
)
DROPPED: Final = Series(
    "anvil_writer_entries_dropped_total",
    "counter",
    "Entries that were lost because the writer's queue was full.",
    _WRITER,
)
FAILED: Final = Series(
    "anvil_writer_entries_failed_total",
    "counter",
    "Entries that were lost because they could not be written.",
    _WRITER,
)
PENDING: Final = Series("anvil_writer_queue_entries", "gauge", "Entries that wait to be written.", _WRITER)
WRITER_BUSY: Final = Series(
    "anvil_writer_busy_seconds", "gauge", "How long the writer has been at its current batch.", _WRITER
)
FAULTS: Final = Series(
    "anvil_exporter_faults_total", "counter", "Groups of series that a scrape had to leave out."
)

SERIES: Final[Mapping[str, Series]] = {
    series.name: series
    for series in (
        REQUESTS,
        REQUEST_SECONDS,
        FIRST_TOKEN,
        OVERHEAD,
        TOKENS,
        REFUSALS,
        FLAPS,
        MANAGEMENT_REFUSALS,
        INFLIGHT,
        TIER_LIMIT,
        TIER_ADMITTING,
        MEMBER_ADMITTING,
        MEMBER_READY,
        KEY_REQUESTS,
        KEY_TOKENS,
        KEY_INFLIGHT,
        *CAPACITY_SERIES,
        BUFFER_CAPACITY,
        BUFFER_REQUESTS,
        *_BUFFER_FIGURES.values(),
        START_TIME,
        CLOCK_JUMPS,
        BUILD,
        OWNS_LEDGER,
        READY,
        DRAINING,
        PLACES,
        PLACES_LIMIT,
        STREAMS,
        BUFFERED,
        TURNS,
        SLOWEST_TURN,
        STALLED,
        BUSY,
        WAITING,
        PROBER_IDLE,
        DESCRIPTORS,
        DESCRIPTORS_LIMIT,
        WRITTEN,
        DROPPED,
        FAILED,
        PENDING,
        WRITER_BUSY,
        FAULTS,
    )
}


class PrometheusExporter:
    """Renders the state of one router and its evidence. Thread-safe; keeps nothing but a count of faults."""

    def __init__(self, router: Router, evidence: ProcessEvidence) -> None:
        self._router = router
        self._evidence = evidence
        self._faults = 0
        self._groups: tuple[Callable[[], Iterator[Point]], ...] = (
            self._counters,
            self._keys,
            self._scopes,
            self._capacity,
            self._buffer,
            self._process,
            self._server,
            self._prober,
            self._descriptors,
            self._writers,
        )

    def render(self) -> bytes:
        """One scrape, as Prometheus text."""
        points: list[Point] = []
        for group in self._groups:
            try:
                points += list(group())
            except Exception:  # noqa: BLE001  # the rest is still worth a scrape, and the fault shows in it
                self._faults += 1
        points.append(Point(FAULTS, (), self._faults))
        return render(points)

    def _counters(self) -> Iterator[Point]:
        with self._evidence.settled() as tallies:
            for labels, count in tallies.requests.items():
                yield Point(REQUESTS, labels, count)
            for tier_id, histogram in tallies.request_seconds.items():
                yield Point(REQUEST_SECONDS, (tier_id,), histogram.copy())
            for tier_id, histogram in tallies.first_token_seconds.items():
                yield Point(FIRST_TOKEN, (tier_id,), histogram.copy())
            yield Point(OVERHEAD, (), tallies.overhead_seconds.copy())
            for pair, count in tallies.tokens.items():
                yield Point(TOKENS, pair, count)
            for pair, count in tallies.refusals.items():
                yield Point(REFUSALS, pair, count)
            for key, count in tallies.key_requests.items():
                yield Point(KEY_REQUESTS, (key,), count)
            for pair, count in tallies.key_tokens.items():
                yield Point(KEY_TOKENS, pair, count)

    def _keys(self) -> Iterator[Point]:
        running = self._router.ring.in_flight()
        labelled: dict[str, int] = {}
        with self._evidence.settled() as tallies:
            for name, count in running.items():
                label = tallies.key_label(name)
                labelled[label] = labelled.get(label, 0) + count
        for label, count in labelled.items():
            yield Point(KEY_INFLIGHT, (label,), count)

    def _scopes(self) -> Iterator[Point]:
        """Leases, ceilings and readiness of every tier and member, from one reading of each tier."""
        config = self._config()
        if config is None:
            return
        configured = {tier.id for tier in config.tiers}
        availability = self._router.availability
        for snapshot in self._router.ledger.snapshots():
            tier_id = snapshot.tier_id
            if tier_id not in configured:
                continue
            if snapshot.max_concurrency is not None:
                yield Point(TIER_LIMIT, (tier_id,), snapshot.max_concurrency)
            yield Point(TIER_ADMITTING, (tier_id,), int(snapshot.state == "admitting"))
            if not snapshot.members:
                yield Point(INFLIGHT, (tier_id, ""), snapshot.active_requests)
            for member in snapshot.members:
                labels = (tier_id, member.member_id)
                yield Point(INFLIGHT, labels, member.active_requests)
                yield Point(MEMBER_ADMITTING, labels, int(member.state == "admitting"))
            member_ids: list[str | None] = [member.member_id for member in snapshot.members]
            for member_id in member_ids or [None]:
                labels = (tier_id, member_id or "")
                yield Point(MEMBER_READY, labels, int(completed(availability, tier_id, member_id).available))
                yield Point(FLAPS, labels, availability.flaps(tier_id, member_id))

    def _capacity(self) -> Iterator[Point]:
        config, router = self._config(), self._router
        if config is None:
            return
        payload = build_model_capacity(
            config,
            availability=router.availability,
            admission=router.ledger,
            replica_pressure=router.pressure,
            live=self._evidence.live,
        )
        yield from capacity_points(payload)

    def _buffer(self) -> Iterator[Point]:
        log, config = self._evidence.log, self._config()
        yield Point(BUFFER_CAPACITY, (), log.capacity)
        if config is None:
            return
        known = route_names(config)
        figures = build_stats(log.records(), model=None, limit=MAX_STATS_LIMIT)["routes"]
        assert isinstance(figures, dict)
        for name, figure in figures.items():
            if name not in known:
                continue
            for outcome in ("succeeded", "failed"):
                yield Point(BUFFER_REQUESTS, (name, outcome), figure["requests"][outcome])
            for (group, key), series in _BUFFER_FIGURES.items():
                value = figure[group][key]
                if value is None:
                    continue
                seconds = group == "latency_ms" and key != "samples"
                yield Point(series, (name,), value / 1000 if seconds else value)

    def _process(self) -> Iterator[Point]:
        router = self._router
        yield Point(START_TIME, (), self._evidence.started_at)
        yield Point(CLOCK_JUMPS, (), self._evidence.wall_clock_jumps)
        yield Point(BUILD, (VERSION,), 1)
        yield Point(OWNS_LEDGER, (), int(router.owns_ledger))
        yield Point(READY, (), int(router.not_ready_reason() is None))
        yield Point(DRAINING, (), int(router.draining))
        for pair, count in self._evidence.management_refusals().items():
            yield Point(MANAGEMENT_REFUSALS, pair, count)

    def _server(self) -> Iterator[Point]:
        server = self._evidence.server
        if server.places is not None:
            taken, limit = server.places()
            yield Point(PLACES, (), taken)
            yield Point(PLACES_LIMIT, (), limit)
        if server.loop is not None:
            stats = server.loop()
            yield Point(STREAMS, (), stats.flows)
            yield Point(BUFFERED, (), stats.buffered_bytes)
            yield Point(TURNS, (), stats.turns)
            yield Point(SLOWEST_TURN, (), stats.slowest_turn_seconds)
            yield Point(STALLED, (), stats.stalled_seconds)
        for name, read in server.executors.items():
            reading = read()
            yield Point(BUSY, (name,), reading.busy)
            yield Point(WAITING, (name,), reading.waiting)

    def _prober(self) -> Iterator[Point]:
        if self._router.active is not None:
            yield Point(PROBER_IDLE, (), self._router.availability.seconds_since_turn())

    def _descriptors(self) -> Iterator[Point]:
        yield Point(DESCRIPTORS, (), len(os.listdir("/proc/self/fd")))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            yield Point(DESCRIPTORS_LIMIT, (), soft)

    def _writers(self) -> Iterator[Point]:
        for name, writer in self._evidence.writers().items():
            yield Point(WRITTEN, (name,), writer.written)
            yield Point(DROPPED, (name,), writer.dropped)
            yield Point(FAILED, (name,), writer.failed)
            yield Point(PENDING, (name,), writer.pending)
            yield Point(WRITER_BUSY, (name,), writer.busy_seconds)

    def _config(self) -> RouterConfig | None:
        active = self._router.active
        return active.config if active is not None else None
