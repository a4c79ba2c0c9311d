"""The demo's three engines as processes, and the router documents that name them."""

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Final

MEMBERS: Final = ("member-a", "member-b", "direct")
"""The engines, in the order of their ports from the base port on."""

READY_TIMEOUT: Final = 20.0
STOP_TIMEOUT: Final = 5.0
_HERE = Path(__file__).parent


class EngineFailure(Exception):
    """An engine did not start; the text says which one and why."""


def render(base_port: int) -> tuple[bytes, bytes]:
    """Router configuration and topology of the demo, its engines at ``base_port`` to ``base_port + 2``.

    Raises ValueError when that is not a range of ports.
    """
    if not 1 <= base_port <= 65_535 - 2:
        raise ValueError("the engines take three ports from the base port on")
    ports = {"port_a": base_port, "port_b": base_port + 1, "port_direct": base_port + 2}
    config, topology = (
        Template((_HERE / name).read_text(encoding="utf-8")).substitute(ports).encode()
        for name in ("router.toml", "topology.toml")
    )
    return config, topology


class EngineProcess:
    """One engine as a process of its own. Start it with `start_engine`."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.log = log
        self.port = 0
        self.control_port: int | None = None
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def await_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until it listens. Raises EngineFailure when it ends or is not ready in ``timeout`` seconds."""
        output = self._process.stdout
        assert output is not None
        line = b""
        deadline = time.monotonic() + timeout
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            part = output.read(1) if readable else None
            if part is None:
                raise EngineFailure(f"engine {self.name} was not ready within {timeout:.0f} s")
            if not part:
                reason = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise EngineFailure(
                    f"engine {self.name} ended at once: {reason[-1] if reason else 'no word'}"
                )
            line += part
        self.port, *control = map(int, line.split())
        self.control_port = control[0] if control else None

    def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL when it does not listen. Nothing to do twice."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(timeout=STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(timeout=STOP_TIMEOUT)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """End the process as a crash would: SIGKILL."""
        self._process.kill()
        self.stop()


def spawn_engine(name: str, log_dir: Path, options: Sequence[str]) -> EngineProcess:
    """Start an engine with command-line ``options``; its errors go to a log in ``log_dir``. It may not be
    ready yet (`EngineProcess.await_ready`)."""
    log_dir.mkdir(parents=True, exist_ok=True)
    log = log_dir / f"{name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "demo.engine", "--name", name, *options],
            cwd=_HERE.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        )
    return EngineProcess(name, process, log)


class Engines:
    """The demo's engines, stopped together. A context manager."""

    def __init__(self, engines: Sequence[EngineProcess]) -> None:
        self.engines = tuple(engines)

    def stop(self) -> None:
        """End every engine; nothing to do twice."""
        with contextlib.ExitStack() as stack:
            for engine in self.engines:
                stack.callback(engine.stop)

    def __enter__(self) -> "Engines":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def start_engines(base_port: int, log_dir: Path, options: Sequence[str] = ()) -> Engines:
    """Start the demo's engines at ``base_port`` to ``base_port + 2`` and wait until they are ready.

    ``options`` are further arguments of `demo.engine` for each. Raises EngineFailure, with none left running.
    """
    engines = Engines(
        [
            spawn_engine(name, log_dir, ["--port", str(base_port + offset), *options])
            for offset, name in enumerate(MEMBERS)
        ]
    )
    try:
        for engine in engines.engines:
            engine.await_ready()
    except BaseException:
        engines.stop()
        raise
    return engines
