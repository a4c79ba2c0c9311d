"""Socket activation: whoever holds the port keeps connections waiting while one process follows another.

The test holds the listening socket, as systemd's socket unit does, and hands it to ``anvil serve``.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.live.harness import (
    ROOT,
    Answer,
    Engine,
    chat_body,
    direct_tier,
    documents,
    eventually,
    openai_client,
    request,
)
from tests.live.raw import CHAT, HOST, TOKEN

FIRST_DESCRIPTOR: Final = 3
AUTHORISED: Final = {"Authorization": f"Bearer {TOKEN}"}


class Activated:
    """A port, and the processes that get it one after another."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self.engine = engine
        installed = documents(direct_tier(engine))
        directory.mkdir()
        (directory / "router.toml").write_bytes(installed.config)
        (directory / "topology.toml").write_bytes(installed.topology)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ANVIL_", "GUNICORN_", "LISTEN_")) and name != "DATABASE_URL"
        }
        self.log = directory / "router.log"
        self._environ = {
            **inherited,
            "ANVIL_DATA": str(directory / "data"),
            "ANVIL_CONFIG": str(directory / "router.toml"),
            "ANVIL_TOPOLOGY": str(directory / "topology.toml"),
            "ANVIL_TOKEN": TOKEN,
        }
        self._listener = socket.create_server((HOST, 0), backlog=16)
        self.port: int = self._listener.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **variables: str) -> "subprocess.Popen[bytes]":
        """``anvil serve`` with our socket as its first descriptor, as ``sd_listen_fds(3)`` has it."""
        script = f"export LISTEN_PID=$$ LISTEN_FDS=1; exec {sys.executable} -m anvil_site.cli serve"
        # Through a shell, which alone can know the pid that the program is going to have.
        hand_over = f"exec {FIRST_DESCRIPTOR}<&{self._listener.fileno()}; {script}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", hand_over],
                cwd=ROOT,
                env={**self._environ, **variables},
                pass_fds=(self._listener.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self.process

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"the router ended:\n{self.log.read_text()[-4000:]}")
            with contextlib.suppress(OSError):
                return request(self.port, "GET", "/readyz", timeout=5.0).status == 200
            return False

        eventually(ready, timeout=60.0, interval=0.05)

    def chat(self) -> Answer:
        return request(
            self.port, "POST", CHAT, body=chat_body("live.direct"), headers=AUTHORISED, timeout=60.0
        )

    def close(self) -> None:
        self._listener.close()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=10)


@pytest.fixture
def activated(tmp_path: Path, make_engine: Callable[..., Engine]) -> Iterator[Activated]:
    found = Activated(tmp_path / "activated", make_engine())
    yield found
    found.close()


@pytest.mark.requirement("house-5")
def test_connections_wait_through_a_restart(activated: Activated) -> None:
    first = activated.start()
    activated.await_ready()
    assert activated.chat().status == 200
    activated.engine.fault("stall_mid_stream", count=1)
    with openai_client(f"http://{HOST}:{activated.port}/v1", TOKEN) as client:
        stream = client.chat.completions.create(
            model="live.direct", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = iter(stream)
        next(chunks)

        first.send_signal(signal.SIGTERM)

        def draining() -> bool:
            return request(activated.port, "GET", "/readyz").json() == {
                "status": "not_ready",
                "reason": "draining",
            }

        eventually(draining)
        refused = activated.chat()
        assert (refused.status, refused.json()["error"]["code"]) == (503, "server_draining")
        assert refused.headers["retry-after"] == "1"
        assert "x-should-retry" not in refused.headers
        activated.engine.clear()
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] is not None
    assert first.wait(timeout=30) == 0

    with socket.create_connection((HOST, activated.port), timeout=60) as waiting:
        waiting.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        activated.start()
        answer = waiting.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    # Accepting is not yet being ready: the first probes of the new process come first.
    activated.await_ready()
    assert activated.chat().status == 200


@pytest.mark.requirement("contract 2 authentication")
def test_without_authentication_the_socket_is_not_taken_over(activated: Activated) -> None:
    assert activated.start(ANVIL_AUTH="off").wait(timeout=30) == 2
    (line,) = [line for line in activated.log.read_text().splitlines() if "refusing to start" in line]
    assert "ANVIL_AUTH=off is refused under socket activation" in line
