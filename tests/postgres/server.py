"""A PostgreSQL server of the tests' own: Debian's binaries, a scratch directory, a free loopback port."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

HOST: Final = "127.0.0.1"
SUPERUSER: Final = "anvil"
START_SECONDS: Final = 60
SCRATCH_BYTES: Final = 1 << 30


def binaries() -> Path | None:
    """The directory of the newest installed server, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class PostgresServer:
    """One running server, reached by password-less TCP from this machine alone."""

    def __init__(self, directory: Path, commands: Path) -> None:
        self._data = directory / "data"
        self._commands = commands
        # The server refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port: int = free.getsockname()[1]
        self._log = directory / "server.log"
        self._run(
            "initdb",
            "--auth=trust",
            f"--username={SUPERUSER}",
            "--encoding=UTF8",
            "--no-sync",
            "-D",
            str(self._data),
        )

    @property
    def url(self) -> str:
        """The value of DATABASE_URL."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgres://{SUPERUSER}@{HOST}:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Make a database; its URL."""
        self._run("createdb", "-h", HOST, "-p", str(self.port), "-U", SUPERUSER, name)
        return self.url_of(name)

    def start(self) -> None:
        # What it stores need not outlive a power cut.
        quick = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_wal_size=128MB")
        settings = (f"listen_addresses={HOST}", "unix_socket_directories=", *quick)
        options = " ".join([f"-p {self.port}", *(f"-c {setting}" for setting in settings)])
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._log), "-o", options, "-w",
                  "-t", str(START_SECONDS), "start")  # fmt: skip

    def stop(self, *, immediately: bool = False) -> None:
        """End it: in order, or as a crash would."""
        mode = "immediate" if immediately else "fast"
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def _run(self, command: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._commands / command, *arguments],
            user=self._user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if command != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if command != "pg_ctl" else subprocess.DEVNULL,
            timeout=START_SECONDS * 2,
        )
        assert done.returncode == 0, (command, (done.stderr or b"").decode())


def _scratch() -> Path | None:
    """Memory, where there is enough: emptying every table after each test is twice as fast there."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > SCRATCH_BYTES else None


@contextlib.contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server, started. Skips the test where PostgreSQL is not installed, except in CI."""
    commands = binaries()
    if commands is None:
        assert os.environ.get("CI") != "true", "PostgreSQL is missing: apt-get install postgresql"
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    directory = Path(tempfile.mkdtemp(prefix="anvil-postgres-", dir=_scratch()))
    try:
        server = PostgresServer(directory, commands)
        server.start()
        try:
            yield server
        finally:
            server.stop(immediately=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
