"""The lock of a data directory: one owner, freed however its process ends."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anvil_site.ownership import LOCK_NAME, LedgerLock

HOLD = """
import sys
from pathlib import Path
from anvil_site.ownership import LedgerLock
lock = LedgerLock(Path(sys.argv[1]))
print(lock.try_acquire(), flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has tried to take the lock; its first line says whether it did."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdin.close()
        process.stdout.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.requirement("house-1")
def test_one_of_two_gets_the_lock(tmp_path: Path) -> None:
    first, second = LedgerLock(tmp_path), LedgerLock(tmp_path)

    assert first.try_acquire()
    assert first.try_acquire()
    assert not second.try_acquire()
    assert (first.held, second.held) == (True, False)
    first.release()
    assert second.try_acquire()
    first.release()
    assert second.held
    second.release()


@pytest.mark.requirement("house-1")
def test_a_killed_owner_blocks_nobody(tmp_path: Path) -> None:
    lock = LedgerLock(tmp_path)
    with another_process(tmp_path) as owner:
        assert said(owner) == "True"
        assert not lock.try_acquire()
        assert lock.owner() == (owner.pid, os.getpid())

        owner.send_signal(signal.SIGKILL)
        owner.wait(10)

        assert lock.try_acquire()
    assert lock.owner() == (os.getpid(), os.getppid())
    lock.release()


@pytest.mark.requirement("house-1")
def test_another_process_does_not_get_a_held_lock(tmp_path: Path) -> None:
    lock = LedgerLock(tmp_path)
    assert lock.try_acquire()
    with another_process(tmp_path) as other:
        assert said(other) == "False"
    lock.release()


def test_a_program_that_the_owner_starts_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock, other = LedgerLock(tmp_path), LedgerLock(tmp_path)
    assert lock.try_acquire()
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    try:
        # Once it speaks it has been through exec, which is where the descriptor goes.
        assert child.stdout is not None
        child.stdout.readline()
        lock.release()
        assert other.try_acquire()
        other.release()
    finally:
        child.kill()
        child.communicate(timeout=10)


def test_the_data_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    lock = LedgerLock(tmp_path / "a" / "data")
    assert lock.try_acquire()

    assert (tmp_path / "a" / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "data" / LOCK_NAME).stat().st_mode & 0o777 == 0o600
    lock.release()


@pytest.mark.parametrize("content", ["", "12", "a b", "1 2 3", "\udcff"])
def test_a_note_that_says_nothing_names_no_owner(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_NAME).write_bytes(content.encode(errors="surrogateescape"))

    assert LedgerLock(tmp_path).owner() is None


def test_without_a_file_there_is_no_owner(tmp_path: Path) -> None:
    assert LedgerLock(tmp_path).owner() is None


def test_what_goes_wrong_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, operation: int) -> None:
        raise OSError("no locks here")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", fail)
    lock = LedgerLock(tmp_path)
    with pytest.raises(OSError, match="no locks here"):
        lock.try_acquire()

    assert not lock.held
    assert len(os.listdir("/proc/self/fd")) == before
