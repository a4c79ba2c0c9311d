"""An engine's /metrics page, read into one small frozen value.

One table of adapters tells which series of vLLM, SGLang, llama.cpp and TGI mean what. The adapter goes by
the series found on the page, never by the ``engine`` label of the configuration (contract 3, pressure). Only
the lines of wanted series reach prometheus_client's parser, so that a page of a megabyte costs a few
milliseconds.

Rules of the reading:

- Several series of one engine (data-parallel ranks): requests and counters add up, KV usage is the maximum.
- A series that is not there is None, never zero. One that is there but holds no usable number is None, too,
  and its field is named in ``unreadable``: "missing" and "invalid" rank alike but are told apart in evidence.
- Every fault is a ``MetricsStatus``; no exception, address or text of the page leaves this module.

What the fetch does NOT do: follow redirects, read proxy settings from the environment, keep cookies or
connections, retry.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final, Protocol
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from routing.probes import ProbeFault, Transport, http_get

MAX_PAGE_BYTES: Final = 1_048_576
"""A page may have this many bytes; one more makes it oversized (replica scheduler contract, collector)."""

FETCH_TIMEOUT: Final = 1.0
"""Seconds from the first step of a fetch to its last byte (replica scheduler contract, collector)."""

MAX_COUNT: Final = 2**53 - 1
"""Counts above this are not exact in JSON, so they are not usable."""

_MAX_WANTED_BYTES = 65_536
"""All lines of wanted series together: about 500 of them. An engine on one host has a few ranks."""

_MAX_LINE_BYTES = 2_048
"""One line of a wanted series. The parser walks labels character by character."""

_MAX_MENTIONS = 4_096
"""How often a wanted name may occur on a page, longer names and comments included."""

_HTTP_OK = 200


class MetricsStatus(StrEnum):
    """What became of one reading. Only ``OK`` carries values."""

    OK = "ok"
    MISSING = "missing"
    """The page holds no series of any engine in the table."""
    INVALID = "invalid"
    """A wanted line is not Prometheus text, or there are too many of them."""
    OVERSIZED = "oversized"
    """The page is longer than its bound; none of it was used."""
    HTTP_ERROR = "http_error"
    """Any status but 200, redirects included."""
    TRANSPORT_ERROR = "transport_error"
    """Not reached, cut off, or not HTTP."""
    TIMEOUT = "timeout"
    """Not complete within the timeout, however it trickled."""


class EngineFamily(StrEnum):
    """Which engine's series a page holds."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    TGI = "tgi"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """One reading of one engine. Numbers are safe to show: counts are 0 to 2^53 - 1, the fraction is 0 to 1.

    ``unreadable`` holds the names of fields whose series are on the page without a usable number (NaN, an
    infinity, a negative or fractional count, a fraction above 1, the same series twice).
    """

    status: MetricsStatus
    family: EngineFamily | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    kv_cache_usage_fraction: float | None = None
    preemptions_total: int | None = None
    multimodal_cache_queries_total: int | None = None
    multimodal_cache_hits_total: int | None = None
    unreadable: frozenset[str] = frozenset()


class MetricsEndpoint(Protocol):
    """What the fetch needs to know of an engine; a direct ``Tier`` or the view of one member is one."""

    @property
    def base_url(self) -> str: ...

    @property
    def auth_env(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adapter:
    """The series of one engine family, by field of the snapshot; the first name that the page holds counts.

    ``copies``: labels whose values are views of the same requests (tensor and pipeline ranks of one
    scheduler); of series that differ only there, the maximum counts once. ``breakdown``: a label that is
    empty on the total and set on its parts, which must not be added to it.
    """

    family: EngineFamily
    fields: Mapping[str, tuple[str, ...]]
    copies: frozenset[str] = frozenset()
    breakdown: str | None = None


_ADAPTERS: Final = (
    _Adapter(
        family=EngineFamily.VLLM,
        fields={
            "requests_running": ("vllm:num_requests_running",),
            "requests_waiting": ("vllm:num_requests_waiting",),
            # Renamed with the V1 engine; pages of the change-over hold both.
            "kv_cache_usage_fraction": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "preemptions_total": ("vllm:num_preemptions_total",),
            "multimodal_cache_queries_total": ("vllm:mm_cache_queries_total",),
            "multimodal_cache_hits_total": ("vllm:mm_cache_hits_total",),
        },
    ),
    _Adapter(
        family=EngineFamily.SGLANG,
        fields={
            "requests_running": ("sglang:num_running_reqs",),
            "requests_waiting": ("sglang:num_queue_reqs",),
            "kv_cache_usage_fraction": ("sglang:token_usage",),
        },
        copies=frozenset({"tp_rank", "pp_rank", "moe_ep_rank"}),
        breakdown="priority",
    ),
    _Adapter(
        family=EngineFamily.LLAMACPP,
        fields={
            "requests_running": ("llamacpp:requests_processing",),
            "requests_waiting": ("llamacpp:requests_deferred",),
            "kv_cache_usage_fraction": ("llamacpp:kv_cache_usage_ratio",),
        },
    ),
    _Adapter(
        family=EngineFamily.TGI,
        fields={
            "requests_running": ("tgi_batch_current_size",),
            "requests_waiting": ("tgi_queue_size",),
        },
    ),
)


def parse_engine_metrics(page: bytes) -> MetricsSnapshot:
    """Read a /metrics page in Prometheus text format; never raises.

    A page above ``MAX_PAGE_BYTES`` is ``OVERSIZED``, one without a known series ``MISSING``, one with a
    wanted line that is not Prometheus text ``INVALID``; else ``OK`` with what the page holds.
    """
    if len(page) > MAX_PAGE_BYTES:
        return MetricsSnapshot(status=MetricsStatus.OVERSIZED)
    try:
        for adapter in _ADAPTERS:
            lines = list(_wanted_lines(page, chain(*adapter.fields.values())))
            if lines:
                return _read(adapter, _parse(lines))
    except _UnusablePageError:
        return MetricsSnapshot(status=MetricsStatus.INVALID)
    return MetricsSnapshot(status=MetricsStatus.MISSING)


def fetch_engine_metrics(
    endpoint: MetricsEndpoint,
    *,
    environ: Mapping[str, str] = os.environ,
    timeout: float = FETCH_TIMEOUT,
    max_bytes: int = MAX_PAGE_BYTES,
    transport: Transport = http_get,
) -> MetricsSnapshot:
    """Fetch and read the page at the endpoint's origin + ``/metrics``; never raises.

    ``timeout`` (seconds) bounds the fetch as a whole, a trickling body included. The token is the value of
    the variable named ``auth_env``; unset or empty sends no Authorization header.
    """
    parts = urlsplit(endpoint.base_url)
    if not parts.netloc:  # the empty sentinel of a replica tier: its members have the addresses
        return MetricsSnapshot(status=MetricsStatus.TRANSPORT_ERROR)
    headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "Connection": "close"}
    token = environ.get(endpoint.auth_env, "") if endpoint.auth_env else ""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    url = f"{parts.scheme}://{parts.netloc}/metrics"
    try:
        status, page = transport(url, headers=headers, timeout=timeout, limit=max_bytes + 1)
    except ProbeFault as fault:
        late = fault.name == "timeout"
        return MetricsSnapshot(status=MetricsStatus.TIMEOUT if late else MetricsStatus.TRANSPORT_ERROR)
    if status != _HTTP_OK:
        return MetricsSnapshot(status=MetricsStatus.HTTP_ERROR)
    if len(page) > max_bytes:
        return MetricsSnapshot(status=MetricsStatus.OVERSIZED)
    return parse_engine_metrics(page)


# -- the page --------------------------------------------------------------------------------------------


class _UnusablePageError(Exception):
    """A wanted line is not Prometheus text, or the wanted lines pass a bound."""


def _wanted_lines(page: bytes, names: Iterable[str]) -> Iterator[str]:
    """The sample lines of exactly these series, found by name rather than by splitting the page."""
    size = 0
    for name in names:
        needle = name.encode("ascii")
        at = page.find(needle)
        mentions = 0
        while at >= 0:
            mentions += 1
            if mentions > _MAX_MENTIONS:
                raise _UnusablePageError
            after = at + len(needle)
            # A longer name, a comment or a label value is not the series.
            if page[after : after + 1] in (b"{", b" ", b"\t") and _starts_line(page, at):
                end = page.find(b"\n", after)
                line = page[at : end if end >= 0 else len(page)]
                size += len(line)
                if len(line) > _MAX_LINE_BYTES or size > _MAX_WANTED_BYTES:
                    raise _UnusablePageError
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise _UnusablePageError from error
            at = page.find(needle, after)


def _starts_line(page: bytes, at: int) -> bool:
    """Whether only blanks (the format ignores them; 16 are enough) stand before ``at`` on its line."""
    before = page[max(0, at - 16) : at].rstrip(b" \t")
    return before.endswith(b"\n") or (not before and at <= 16)


def _parse(lines: Iterable[str]) -> dict[str, list[Sample]]:
    series: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines)):
            for sample in family.samples:
                series.setdefault(sample.name, []).append(sample)
    except (ValueError, IndexError) as error:  # the parser slices before it checks
        raise _UnusablePageError from error
    return series


class _UnreadableError(Exception):
    """A series is there, but it holds no usable number."""


class _Reading:
    """Takes the fields of one page out of its samples and remembers which of them were unreadable."""

    def __init__(self, adapter: _Adapter, series: Mapping[str, list[Sample]]) -> None:
        self._adapter = adapter
        self._series = series
        self.unreadable: set[str] = set()

    def count(self, field: str) -> int | None:
        """The sum over ranks; None when the series is missing or unreadable."""
        groups: dict[frozenset[tuple[str, str]], int] = {}
        try:
            for sample in self._samples(field):
                rank = frozenset(
                    pair for pair in sample.labels.items() if pair[0] not in self._adapter.copies
                )
                groups[rank] = max(groups.get(rank, 0), _whole(sample.value))
            return _whole(sum(groups.values())) if groups else None
        except _UnreadableError:
            self.unreadable.add(field)
            return None

    def fraction(self, field: str) -> float | None:
        """The maximum over ranks; None when the series is missing or unreadable."""
        try:
            return max((_part(sample.value) for sample in self._samples(field)), default=None)
        except _UnreadableError:
            self.unreadable.add(field)
            return None

    def _samples(self, field: str) -> list[Sample]:
        names = self._adapter.fields.get(field, ())
        samples = next((self._series[name] for name in names if name in self._series), [])
        if len({frozenset(sample.labels.items()) for sample in samples}) != len(samples):
            raise _UnreadableError  # one series twice: whichever is right, adding both is wrong
        if self._adapter.breakdown is not None:
            return [s for s in samples if not s.labels.get(self._adapter.breakdown)] or samples
        return samples


def _whole(value: float) -> int:
    if not 0 <= value <= MAX_COUNT or value != int(value):  # NaN fails the first comparison
        raise _UnreadableError
    return int(value)


def _part(value: float) -> float:
    if not 0 <= value <= 1:
        raise _UnreadableError
    return float(value)


def _read(adapter: _Adapter, series: Mapping[str, list[Sample]]) -> MetricsSnapshot:
    reading = _Reading(adapter, series)
    return MetricsSnapshot(
        status=MetricsStatus.OK,
        family=adapter.family,
        requests_running=reading.count("requests_running"),
        requests_waiting=reading.count("requests_waiting"),
        kv_cache_usage_fraction=reading.fraction("kv_cache_usage_fraction"),
        preemptions_total=reading.count("preemptions_total"),
        multimodal_cache_queries_total=reading.count("multimodal_cache_queries_total"),
        multimodal_cache_hits_total=reading.count("multimodal_cache_hits_total"),
        # Evaluated last: the readings above fill it.
        unreadable=frozenset(reading.unreadable),
    )
