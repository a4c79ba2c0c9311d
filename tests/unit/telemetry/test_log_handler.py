"""Logging behind a bounded queue: a pipe that nobody reads stops nobody."""

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from telemetry.log_handler import BoundedStreamHandler, LineWriter

PATIENCE: Final = 10.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            pass


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("anvil", logging.INFO, __file__, 1, message, arguments, None)


def test_lines_arrive_in_order(pipe: tuple[int, int]) -> None:
    handler = BoundedStreamHandler(LineWriter(pipe[1]))
    for number in range(100):
        handler.emit(record("line %d", number))
    handler.close()
    os.close(pipe[1])
    with open(pipe[0], closefd=False) as reader:
        assert reader.read().splitlines() == [f"line {number}" for number in range(100)]


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_costs_counted_lines(pipe: tuple[int, int]) -> None:
    """The pipe holds 4 KiB; the writer's thread is stuck in it while a thousand lines are logged."""
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4096)
    entered = threading.Event()

    class Announcing(LineWriter):
        def write(self, batch: Sequence[str]) -> None:
            entered.set()
            super().write(batch)

    writer = Announcing(pipe[1], capacity=500)
    handler = BoundedStreamHandler(writer)
    handler.emit(record("x" * 8192))
    assert entered.wait(PATIENCE)
    done = threading.Event()

    def log() -> None:
        for number in range(1000):
            handler.emit(record("line %d", number))
        done.set()

    threading.Thread(target=log, daemon=True).start()
    assert done.wait(PATIENCE), "logging waited for the pipe"
    assert (writer.pending, writer.dropped) == (500, 500)
    assert writer.busy_seconds > 0
    # Somebody reads after all: what was queued comes out.
    received = b""
    while received.count(b"\n") < 501:
        received += os.read(pipe[0], 65_536)
    assert received.splitlines()[1:] == [b"line %d" % number for number in range(500)]


def test_a_line_that_cannot_be_formatted_is_one_line_less(pipe: tuple[int, int]) -> None:
    handler = BoundedStreamHandler(LineWriter(pipe[1]))
    handler.emit(record("%d", "not a number"))
    handler.emit(record("sound"))
    handler.close()
    assert os.read(pipe[0], 100) == b"sound\n"
    assert handler.writer.dropped == 1


def test_text_that_no_encoding_knows_is_escaped(pipe: tuple[int, int]) -> None:
    handler = BoundedStreamHandler(LineWriter(pipe[1]))
    handler.emit(record("lone %s", "\udc80"))
    handler.close()
    assert os.read(pipe[0], 100) == b"lone \\udc80\n"


def test_no_thread_before_the_first_line(pipe: tuple[int, int]) -> None:
    before = threading.active_count()
    handler = BoundedStreamHandler(LineWriter(pipe[1]))
    assert threading.active_count() == before
    handler.close()


SCRIPT: Final = """
import logging, os
os.environ["DJANGO_SETTINGS_MODULE"] = "anvil_site.settings"
import django
django.setup()
{body}
"""


def run(tmp_path: object, body: str) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ANVIL_")}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        env={**environ, "ANVIL_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_sites_loggers_all_go_through_it(tmp_path: object) -> None:
    """Each logger's line is out once when the process ends, and none has a handler of another kind."""
    result = run(
        tmp_path,
        """
levels = {"anvil.runtime": 20, "telemetry.writer": 30, "django.db": 30, "gunicorn.error": 20}
for name, level in levels.items():
    logging.getLogger(name).log(level, "said by %s", name)
logging.getLogger("routing.availability").info("too quiet to be told")
seen = set()
for name in ("", "anvil", "telemetry", "routing", "django", "gunicorn.error"):
    seen |= {type(handler).__name__ for handler in logging.getLogger(name).handlers}
print(sorted(seen))
""",
    )
    assert result.stdout == "['BoundedStreamHandler']\n"
    said = [line.rpartition("said by ")[2] for line in result.stderr.splitlines()]
    assert said == ["anvil.runtime", "telemetry.writer", "django.db", "gunicorn.error"]
