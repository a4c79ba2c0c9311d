"""Bounded writers: JSONL files with rotation, log lines, and places that are slow, full or gone."""

import contextlib
import json
import logging
import os
import select
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from routing.records import DecisionRecord
from telemetry import decisions
from telemetry.decisions import DecisionLog, JsonlWriter, LineLogger, format_line
from telemetry.writer import BoundedWriter
from tests.unit.routing.records_samples import CAPACITY, CAPACITY_JSON, DIRECT, DIRECT_JSON, REFUSED

TIMEOUT = 10.0

DIRECT_BYTES = (
    b'{"timestamp":"2026-01-01T00:00:00.250Z","route":"llm.direct","kind":"chat","requested_tier":"direct",'
    b'"served_tier":"direct","attempts":[{"tier_id":"direct","outcome":"served","succeeded":true,'
    b'"reason":"served","prompt_tokens":11,"completion_tokens":22}],"total_prompt_tokens":11,'
    b'"total_completion_tokens":22,"request_bytes":301,"response_bytes":402,"latency_ms":12.5,'
    b'"request_id":"req-1","workbench_run_id":"run-2","task_id":"task-3"}\n'
)


class Recording(BoundedWriter[int]):
    """Keeps its batches; waits in `write` while ``gate`` is shut, and raises while ``broken``."""

    def __init__(self, **options: int) -> None:
        super().__init__("recording", linger=0.0, **options)
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = threading.Event()
        self.broken = False

    def write(self, batch: Sequence[int]) -> None:
        self.entered.set()
        assert self.gate.wait(TIMEOUT)
        if self.broken:
            raise OSError("http://10.0.0.7: connection refused")
        self.batches.append(list(batch))

    def close(self) -> None:
        self.closed.set()

    def items(self) -> list[int]:
        return [item for batch in self.batches for item in batch]


@pytest.fixture
def writer() -> Iterator[Recording]:
    writer = Recording(capacity=4, batch_size=2)
    yield writer
    writer.gate.set()
    writer.start()
    assert writer.stop(TIMEOUT)


# The base ------------------------------------------------------------------------------------------------


def test_batches_are_bounded_and_in_order(writer: Recording) -> None:
    assert [writer.offer(item) for item in (1, 2, 3)] == [True, True, True]
    assert [writer.run_once() for _ in range(3)] == [2, 1, 0]
    assert writer.batches == [[1, 2], [3]]
    assert (writer.written, writer.lost, writer.pending) == (3, 0, 0)


def test_full_queue_drops_and_counts(writer: Recording) -> None:
    assert [writer.offer(item) for item in range(6)] == [True] * 4 + [False] * 2
    assert (writer.dropped, writer.lost, writer.pending) == (2, 2, 4)
    writer.run_once()
    assert writer.offer(6) is True


def test_no_thread_exists_before_start() -> None:
    before = threading.active_count()
    writer = Recording(capacity=4, batch_size=2)
    writer.offer(1)
    assert threading.active_count() == before
    assert writer.stop(0.0) is False
    assert writer.offer(2) is False
    writer.start()
    assert threading.active_count() == before


def test_blocked_write_keeps_nobody_waiting(writer: Recording) -> None:
    writer.gate.clear()
    writer.start()
    assert writer.offer(0)
    assert writer.entered.wait(TIMEOUT)
    assert [writer.offer(item) for item in range(1, 7)] == [True] * 4 + [False] * 2
    assert writer.busy_seconds >= 0.0
    assert writer.stop(0.0) is False  # bounded: gives up on a write that is stuck
    assert writer.batches == []
    writer.gate.set()
    assert writer.stop(TIMEOUT) is True
    assert writer.items() == [0, 1, 2, 3, 4]
    assert (writer.written, writer.dropped) == (5, 2)


def test_busy_time_is_that_of_the_write_in_progress() -> None:
    now = [100.0]
    seen: list[float] = []

    class Timed(BoundedWriter[int]):
        def write(self, batch: Sequence[int]) -> None:
            now[0] += 7.5
            seen.append(self.busy_seconds)

    writer = Timed("timed", monotonic=lambda: now[0])
    writer.offer(1)
    assert writer.busy_seconds == 0.0
    writer.run_once()
    assert seen == [7.5]
    assert writer.busy_seconds == 0.0


def test_thread_is_named_and_a_second_start_makes_no_second(writer: Recording) -> None:
    writer.start()
    writer.start()
    assert [thread.name for thread in threading.enumerate()].count("recording") == 1


def test_stop_writes_what_is_queued_and_closes(writer: Recording) -> None:
    for item in range(4):
        writer.offer(item)
    writer.start()
    assert writer.stop(TIMEOUT) is True
    assert writer.items() == [0, 1, 2, 3]
    assert writer.closed.is_set()
    assert writer.stop(TIMEOUT) is True
    assert writer.offer(5) is False


def test_failure_costs_its_batch_and_not_the_loop(
    writer: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    writer.broken = True
    for item in range(4):
        writer.offer(item)
    writer.run_once()
    writer.run_once()
    assert (writer.failed, writer.lost, writer.written) == (4, 4, 0)
    writer.broken = False
    writer.offer(7)
    writer.run_once()
    assert (writer.batches, writer.written) == ([[7]], 1)
    assert [record.getMessage() for record in caplog.records] == [
        "recording cannot write: entries are lost until it can",
        "recording writes again, 4 entries were lost",
    ]


def test_thread_outlives_a_failing_write(writer: Recording) -> None:
    writer.broken = True
    writer.start()
    writer.offer(1)
    assert writer.entered.wait(TIMEOUT)
    assert writer.stop(TIMEOUT) is True
    assert (writer.failed, writer.closed.is_set()) == (1, True)


@pytest.mark.parametrize(("capacity", "batch_size"), [(1, 2), (5, 0)])
def test_batch_fits_the_queue(capacity: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="batch_size must be from 1 to capacity"):
        BoundedWriter("x", capacity=capacity, batch_size=batch_size)


# JSONL ---------------------------------------------------------------------------------------------------


def write(writer: JsonlWriter, *records: DecisionRecord) -> None:
    for record in records:
        assert writer.offer(record)
    while writer.run_once():
        pass


@pytest.mark.requirement("Q-T011", "Q-R013")
def test_direct_record_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    writer = JsonlWriter(path)
    write(writer, DIRECT)
    writer.close()
    assert path.read_bytes() == DIRECT_BYTES


@pytest.mark.requirement("C-T005", "Q-T011")
def test_every_record_is_its_projection_with_a_timestamp(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    writer = JsonlWriter(path)
    write(writer, DIRECT, CAPACITY, replace(REFUSED, recorded_at=None))
    writer.close()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines[0] == {"timestamp": "2026-01-01T00:00:00.250Z", **DIRECT_JSON}
    assert lines[1] == {"timestamp": "2026-01-01T00:00:00.250Z", **CAPACITY_JSON}
    assert lines[2]["timestamp"] is None
    assert lines[2]["replica_selection"] == "not_admitted"
    assert "replica_member_id" not in lines[2]


def test_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    for _ in range(2):
        writer = JsonlWriter(path)
        write(writer, DIRECT)
        writer.close()
    assert path.read_bytes() == DIRECT_BYTES * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_line_that_was_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(DIRECT_BYTES[:40])
    writer = JsonlWriter(path)
    write(writer, DIRECT)
    writer.close()
    assert path.read_bytes() == DIRECT_BYTES[:40] + b"\n" + DIRECT_BYTES


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "batch by batch"])
def test_rotation_keeps_the_last_files_whole(tmp_path: Path, together: bool) -> None:
    path = tmp_path / "decisions.jsonl"
    line = len(DIRECT_BYTES)
    writer = JsonlWriter(path, max_bytes=2 * line, backups=2)
    records = [replace(DIRECT, request_id=f"req-{number}") for number in range(9)]
    if together:
        write(writer, *records)
    else:
        for record in records:
            write(writer, record)
    writer.close()
    kept = {
        entry.name: [json.loads(text)["request_id"] for text in entry.read_text().splitlines()]
        for entry in tmp_path.iterdir()
    }
    assert kept == {
        "decisions.jsonl": ["req-8"],
        "decisions.jsonl.1": ["req-6", "req-7"],
        "decisions.jsonl.2": ["req-4", "req-5"],
    }
    assert writer.written == 9


def test_line_larger_than_a_file_has_a_file_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    writer = JsonlWriter(path, max_bytes=10, backups=3)
    write(writer, DIRECT, DIRECT)
    writer.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["decisions.jsonl", "decisions.jsonl.1"]
    assert path.read_bytes() == DIRECT_BYTES


def test_rotation_counts_what_an_earlier_process_wrote(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(DIRECT_BYTES * 2)
    writer = JsonlWriter(path, max_bytes=2 * len(DIRECT_BYTES), backups=1)
    write(writer, DIRECT)
    writer.close()
    assert path.read_bytes() == DIRECT_BYTES
    assert (tmp_path / "decisions.jsonl.1").read_bytes() == DIRECT_BYTES * 2


@pytest.mark.parametrize(("max_bytes", "backups"), [(0, 1), (1, 0)])
def test_rotation_bounds(max_bytes: int, backups: int) -> None:
    with pytest.raises(ValueError, match="max_bytes and backups must be at least 1"):
        JsonlWriter("decisions.jsonl", max_bytes=max_bytes, backups=backups)


def test_full_disk_is_counted_and_stays_out_of_the_way(caplog: pytest.LogCaptureFixture) -> None:
    writer = JsonlWriter("/dev/full")
    log = DecisionLog(sinks=(writer.offer,))
    log.append(DIRECT)
    assert writer.run_once() == 1
    assert (writer.failed, writer.lost, log.sink_failures, log.records()) == (1, 1, 0, [DIRECT])
    assert [record.getMessage() for record in caplog.records] == [
        "anvil-decision-jsonl cannot write: entries are lost until it can"
    ]


def test_directory_that_comes_back_is_written_to_again(tmp_path: Path) -> None:
    path = tmp_path / "later" / "decisions.jsonl"
    writer = JsonlWriter(path)
    write(writer, DIRECT)
    assert writer.failed == 1
    path.parent.mkdir()
    write(writer, DIRECT)
    writer.close()
    assert (writer.failed, writer.written, path.read_bytes()) == (1, 1, DIRECT_BYTES)


def test_blocked_disk_blocks_no_append(tmp_path: Path) -> None:
    """A pipe that nobody reads stands for the disk; it is full before the writer starts."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(filler, b"\n" * 4096)
    os.close(filler)
    writer = JsonlWriter(path, capacity=600)
    log = DecisionLog(sinks=(writer.offer,))
    writer.start()
    for _ in range(2000):
        log.append(DIRECT)
    assert len(log) == 2000
    assert writer.dropped >= 2000 - 600 - 500
    assert writer.stop(0.0) is False
    received = bytearray()
    while select.select([reader], [], [], TIMEOUT)[0]:
        chunk = os.read(reader, 65_536)
        if not chunk:  # the writer has closed its end
            break
        received += chunk
    os.close(reader)
    assert writer.stop(TIMEOUT) is True
    assert received.lstrip(b"\n") == DIRECT_BYTES * writer.written
    assert writer.written + writer.dropped == 2000


# Lines ---------------------------------------------------------------------------------------------------

DIRECT_LINE = (
    "route=llm.direct kind=chat served=direct outcome=served tier=direct prompt=11 completion=22"
    " request_bytes=301 response_bytes=402 latency_ms=12.5"
)


@pytest.mark.parametrize(("level", "told"), [(logging.INFO, 1), (logging.WARNING, 0)])
def test_a_line_goes_to_the_logger_at_level_info(
    level: int, told: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[DecisionRecord] = []
    monkeypatch.setattr(decisions, "format_line", lambda record: made.append(record) or format_line(record))
    writer = LineLogger(logging.getLogger("lines"))
    with caplog.at_level(level, logger="lines"):
        writer.offer(DIRECT)
        assert writer.run_once() == 1
    lines = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert lines == [("lines", "INFO", DIRECT_LINE)] * told
    assert len(made) == told


def test_blocked_stderr_blocks_no_append() -> None:
    entered, gate = threading.Event(), threading.Event()
    lines: list[str] = []

    class Blocked(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            assert gate.wait(TIMEOUT)
            lines.append(record.getMessage())

    lines_logger = logging.Logger("lines", logging.INFO)
    lines_logger.addHandler(Blocked())
    writer = LineLogger(lines_logger, capacity=500)
    log = DecisionLog(sinks=(writer.offer,))
    writer.start()
    log.append(DIRECT)
    assert entered.wait(TIMEOUT)
    for _ in range(600):
        log.append(DIRECT)
    assert (len(log), lines, writer.dropped) == (601, [], 100)
    gate.set()
    assert writer.stop(TIMEOUT) is True
    assert lines == [DIRECT_LINE] * 501
