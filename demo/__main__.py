"""``scripts/demo``: three stand-in engines, the router in front of them, and one real streamed answer."""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from demo import fleet

READY_TIMEOUT = 60.0
ALIAS = "demo.chat"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the router and its console")
    parser.add_argument("--data", type=Path, default=Path("var"), help="data directory")
    parser.add_argument(
        "--engine-base-port", type=int, default=8101, help="the engines take three ports from here"
    )
    parser.add_argument("--once", action="store_true", help="prove that it works, then stop")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    demo = Demo(options.port, options.data.resolve(), options.engine_base_port)
    try:
        demo.start()
        demo.prove()
        if not options.once:
            demo.introduce()
            demo.wait()
    except KeyboardInterrupt:
        print("\ndemo: stopping", flush=True)
    except DemoFailure as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    finally:
        demo.stop()
    return 0


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


class DemoFailure(Exception):
    """The demo does not work here; the text says what failed and where to look."""


class Demo:
    """The processes of one demo, started and stopped together."""

    def __init__(self, port: int, data: Path, engine_base_port: int) -> None:
        self._port = port
        self._data = data
        self._engine_base_port = engine_base_port
        self._url = f"http://127.0.0.1:{port}"
        self._made_token = "ANVIL_TOKEN" not in os.environ
        self._token = os.environ.get("ANVIL_TOKEN") or secrets.token_urlsafe(32)
        self._admin = os.environ.get("ANVIL_ADMIN_USER") or "admin"
        self._made_password = "ANVIL_ADMIN_PASSWORD" not in os.environ
        self._password = os.environ.get("ANVIL_ADMIN_PASSWORD") or secrets.token_urlsafe(9)
        self._engines: fleet.Engines | None = None
        self._router: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start everything and wait until the router is ready. Raises DemoFailure."""
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        environ = {
            **os.environ,
            "ANVIL_DATA": str(self._data),
            "ANVIL_BIND": f"127.0.0.1:{self._port}",
            "ANVIL_TOKEN": self._token,
            "ANVIL_ADMIN_USER": self._admin,
            "ANVIL_ADMIN_PASSWORD": self._password,
        }
        os.environ.update(environ)
        self._step("starting three engines")
        try:
            self._engines = fleet.start_engines(self._engine_base_port, self._data / "log")
        except fleet.EngineFailure as failure:
            raise DemoFailure(str(failure)) from None
        self._step("installing the demo configuration")
        self._install()
        self._step("starting the router")
        log = self._data / "log" / "router.log"
        with log.open("wb") as output:
            self._router = subprocess.Popen(
                [sys.executable, "-m", "anvil_site.cli", "serve"],
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._await_ready(log)

    def _install(self) -> None:
        from anvil_site.offline import LedgerOwned, install_snapshot, set_superuser

        config, topology = fleet.render(self._engine_base_port)
        try:
            install_snapshot(config, topology, None)
            set_superuser(self._admin, self._password)
        except LedgerOwned:
            raise DemoFailure("a router is running on this data directory already (see --data)") from None

    def _await_ready(self, log: Path) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            if self._router is not None and self._router.poll() is not None:
                raise DemoFailure(f"the router ended at once; its log is {log}")
            try:
                with urllib.request.urlopen(f"{self._url}/readyz", timeout=2) as answer:  # noqa: S310 - loopback
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        raise DemoFailure(f"the router did not become ready in {READY_TIMEOUT:.0f} s; its log is {log}")

    def prove(self) -> None:
        """Stream one answer through the router with the official client. Raises DemoFailure."""
        from openai import OpenAI, OpenAIError

        self._step(f"asking {ALIAS} for a streamed answer")
        client = OpenAI(base_url=f"{self._url}/v1", api_key=self._token, max_retries=0, timeout=30)
        try:
            with client.chat.completions.with_streaming_response.create(
                model=ALIAS,
                messages=[{"role": "user", "content": "Who are you?"}],
                stream=True,
            ) as response:
                member = response.headers.get("x-anvil-member", "?")
                print("\n  ", end="")
                words = 0
                for chunk in response.parse():
                    text = chunk.choices[0].delta.content if chunk.choices else None
                    if text:
                        words += 1
                        print(text, end="", flush=True)
        except OpenAIError as error:
            raise DemoFailure(f"no answer came through: {type(error).__name__}") from None
        if not words:
            raise DemoFailure("the answer was empty")
        print(f"\n\n  streamed through tier chat, served by {member}\n", flush=True)

    def introduce(self) -> None:
        """Say what there is to try."""
        print(f"  console   {self._url}/fleet/   user {self._admin}", end="")
        print(
            f"   password {self._password}"
            if self._made_password
            else "   password from ANVIL_ADMIN_PASSWORD"
        )
        print(f"  API       {self._url}/v1   aliases demo.chat (two members) and demo.direct")
        print(f"  token     {self._token}" if self._made_token else "  token     from ANVIL_TOKEN")
        print("\n  Ctrl-C stops everything.", flush=True)

    def wait(self) -> None:
        """Until Ctrl-C. Raises DemoFailure when the router ends by itself."""
        if self._router is not None:
            self._router.wait()
            raise DemoFailure("the router ended")

    def stop(self) -> None:
        """Stop what was started, by pid."""
        if self._router is not None and self._router.poll() is None:
            self._router.terminate()
            try:
                self._router.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self._router.kill()
                self._router.wait(timeout=10)
        if self._engines is not None:
            self._engines.stop()

    def _step(self, text: str) -> None:
        print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
