"""Where decision records go: the ring in memory, one log line each, the summary, and JSONL files.

Each surface passes its records through `routing.records.canonical_record` before it keeps or shows them.
Recording a decision takes no I/O: whatever is slow sits behind a `BoundedWriter`.
"""

import logging
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from routing.records import (
    ABSENT,
    MAX_EXACT,
    DecisionRecord,
    canonical_record,
    record_as_dict,
    record_from_mapping,
)
from telemetry.writer import BoundedWriter

BUFFER_CAPACITY: Final = 10_000
"""Records that the ring keeps."""

BUFFER_SCOPE: Final = "current_decision_log_buffer"
"""What projections of the ring say they cover: this process, and only as far back as the ring reaches."""

MAX_SUMMARY_LIMIT: Final = 500

OMITTED_FIELDS: Final = (
    "messages",
    "prompt",
    "response",
    "tool_arguments",
    "headers",
    "credentials",
    "urls",
    "addresses",
    "exceptions",
)
"""What a summary says it leaves out. None of it is ever in a record."""


_UNSAFE_IN_LINE = re.compile(r"[\s>]")


class DecisionLog:
    """The newest ``capacity`` records, and the callables that hear of each one.

    ``sinks`` are called in the thread that appends, after the record is in the ring, and must not wait
    (`BoundedWriter.offer`, a counter); one that raises is counted and keeps no other from its record.
    ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        capacity: int = BUFFER_CAPACITY,
        *,
        sinks: Sequence[Callable[[DecisionRecord], object]] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.capacity = capacity
        self.sink_failures = 0
        self._records: deque[DecisionRecord] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._sinks = tuple(sinks)
        self._clock = clock

    def append(self, record: DecisionRecord) -> None:
        """Keep the canonical form of ``record``, stamped with the time unless it brings one."""
        if record.recorded_at is None:
            record = replace(record, recorded_at=self._clock())
        record = canonical_record(record)
        with self._lock:
            self._records.append(record)
        for sink in self._sinks:
            try:
                sink(record)
            except Exception:  # noqa: BLE001  # the request is answered; no sink may turn that into an error
                self.sink_failures += 1

    def records(self, limit: int | None = None) -> list[DecisionRecord]:
        """The newest ``limit`` records (None: all), in the order they were recorded: the newest is last."""
        with self._lock:
            records = list(self._records)
        return records if limit is None else records[max(0, len(records) - limit) :]

    def __len__(self) -> int:
        return len(self._records)


def summarize_decisions(records: Iterable[object], limit: int) -> dict[str, object]:
    """The newest ``limit`` (1 to 500) of ``records`` and their totals, as ``GET /v1/decisions`` shows them.

    Takes decision records, or objects of captured JSON, oldest first; what is neither is not counted.
    ``available`` counts all records given, ``count`` and the totals cover those shown, newest last.
    Raises ValueError for a limit out of bounds.
    """
    check_limit(limit, MAX_SUMMARY_LIMIT)
    available = [record for record in map(_as_record, records) if record is not None]
    shown = available[-limit:]
    served_tiers = Counter(record.served_tier for record in shown if record.served_tier is not None)
    outcomes = Counter(attempt.outcome for record in shown for attempt in record.attempts)
    return {
        "count": len(shown),
        "available": len(available),
        "limit": limit,
        "records": [record_as_dict(record) for record in shown],
        "totals": {
            "prompt_tokens": total(record.total_prompt_tokens for record in shown),
            "completion_tokens": total(record.total_completion_tokens for record in shown),
            "request_bytes": total(record.request_bytes for record in shown),
            "response_bytes": total(record.response_bytes for record in shown),
            "latency_ms": round(sum(record.latency_ms for record in shown), 3),
            "served_tiers": dict(sorted(served_tiers.items())),
            "attempt_outcomes": dict(sorted(outcomes.items())),
        },
        "omitted_fields": list(OMITTED_FIELDS),
    }


def find_request(records: Sequence[DecisionRecord], request_id: str) -> dict[str, object] | None:
    """The newest of ``records`` (newest last) with that request id, as ``GET /v1/requests/{id}`` shows it."""
    for record in reversed(records):
        if record.request_id == request_id:
            return {"object": "router_request", "scope": BUFFER_SCOPE, "record": record_as_dict(record)}
    return None


def format_line(record: DecisionRecord) -> str:
    """``record`` as one line of ``key=value`` words (projections: the log line).

    Sizes and latency appear when one of them is positive, replica and scheduler words when the record has
    them. White space and ``>`` in a value become ``_``.
    """
    record = canonical_record(record)
    words = [
        f"route={_word(record.route)}",
        f"kind={_word(record.kind)}",
        f"served={_word(record.served_tier)}",
        f"outcome={'served' if record.served else 'failed'}",
        f"tier={_word(record.requested_tier)}",
        f"prompt={record.total_prompt_tokens}",
        f"completion={record.total_completion_tokens}",
    ]
    if record.request_bytes or record.response_bytes or record.latency_ms:
        words += [
            f"request_bytes={record.request_bytes}",
            f"response_bytes={record.response_bytes}",
            f"latency_ms={_decimal(record.latency_ms)}",
        ]
    if record.replica_member_id is not None:
        words.append(f"replica_member={_word(record.replica_member_id)}")
    if record.replica_selection is not None:
        words.append(f"replica_selection={_word(record.replica_selection)}")
    if record.replica_scheduler is not None:
        words += [
            "replica_scheduler=capacity",
            "replica_scheduler_reason=selected",
            f"replica_eligible_count={len(record.replica_scheduler.eligible_member_ids)}",
        ]
    return " ".join(words)


class LineLogger(BoundedWriter[DecisionRecord]):
    """Sends each record's line to ``logger`` at level INFO; none is made where nobody listens at that."""

    def __init__(self, logger: logging.Logger, *, capacity: int = 10_000) -> None:
        super().__init__("anvil-decision-lines", capacity=capacity)
        self._logger = logger

    def write(self, batch: Sequence[DecisionRecord]) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            for record in batch:
                self._logger.info(format_line(record))


class JsonlWriter(BoundedWriter[DecisionRecord]):
    """Appends each record as one JSON object a line to ``path``, with its time as ``timestamp``.

    A file that a batch would carry over ``max_bytes`` is first renamed to ``path.1``, the one before to
    ``path.2``, and so on up to ``path.<backups>``; what was there is overwritten. Files are readable by
    their owner only. A write that fails costs its batch; the file is opened anew for the next.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 64 * 1_048_576,
        backups: int = 5,
        capacity: int = 10_000,
    ) -> None:
        if max_bytes < 1 or backups < 1:
            raise ValueError("max_bytes and backups must be at least 1")
        super().__init__("anvil-decision-jsonl", capacity=capacity)
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._backups = backups
        self._descriptor: int | None = None
        self._size = 0

    def write(self, batch: Sequence[DecisionRecord]) -> None:
        try:
            chunk = bytearray()
            for line in map(_json_line, batch):
                self._open()
                if self._size + len(chunk) and self._size + len(chunk) + len(line) > self._max_bytes:
                    self._append(chunk)
                    chunk.clear()
                    self._rotate()
                chunk += line
            self._append(chunk)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> None:
        if self._descriptor is not None:
            return
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        # A line that a crash or a full disk cut short must not swallow the next one.
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._append(b"\n")

    def _append(self, data: bytes | bytearray) -> None:
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            self._size += written
            view = view[written:]

    def _rotate(self) -> None:
        self.close()
        for number in range(self._backups, 0, -1):
            newer = self._backup(number - 1)
            if newer.exists():
                newer.replace(self._backup(number))
        self._open()

    def _backup(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


def total(counts: Iterable[int]) -> int:
    """The sum of ``counts``, kept within what a JSON number carries exactly."""
    return min(sum(counts), MAX_EXACT)


def utc_text(unix: float | None) -> str | None:
    """A moment as ISO 8601 in UTC, to the millisecond; None for none."""
    if unix is None:
        return None
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_limit(limit: int, maximum: int) -> None:
    """Raise ValueError, with a text that does not repeat it, unless ``limit`` is 1 to ``maximum``."""
    if type(limit) is not int or not 1 <= limit <= maximum:
        raise ValueError(f"limit must be from 1 to {maximum}")


def _as_record(value: object) -> DecisionRecord | None:
    if type(value) is DecisionRecord:
        return canonical_record(value)
    return record_from_mapping(value)


def _word(value: str | None) -> str:
    """``value`` as one word: no grammar of a record admits white space, and no log line hangs on that."""
    return ABSENT if value is None else _UNSAFE_IN_LINE.sub("_", value)


def _decimal(milliseconds: float) -> str:
    return f"{milliseconds:.3f}".rstrip("0").rstrip(".")


def _json_line(record: DecisionRecord) -> bytes:
    record = canonical_record(record)
    return msgspec.json.encode({"timestamp": utc_text(record.recorded_at), **record_as_dict(record)}) + b"\n"
