"""Who owns the ledger: an exclusive ``flock`` in the data directory.

The admission ledger lives in one process's memory and must be the only one. Whoever holds this lock owns it;
the kernel frees it when the process ends, however it ends, so a killed owner blocks nobody.
"""

import fcntl
import os
from pathlib import Path
from typing import Final

LOCK_NAME: Final = "ledger.lock"


class LedgerLock:
    """The lock of one data directory. Not thread-safe: taken and given back by one owner thread.

    The file holds the pids of the owner and of its parent, so that a worker of the same gunicorn master can
    tell a predecessor that is about to leave from a foreign process on the same directory.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / LOCK_NAME
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; True when this object holds it afterwards. Never waits."""
        if self._fd is not None:
            return True
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {os.getppid()}\n".encode(), 0)
        self._fd = fd
        return True

    def owner(self) -> tuple[int, int] | None:
        """The pid and parent pid that the last owner wrote, or None when nothing readable is there."""
        try:
            pid, parent = self._path.read_text().split()
            return int(pid), int(parent)
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
