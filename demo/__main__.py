"""``scripts/demo``: three stand-in engines, the router in front of them, and one real streamed answer."""

import argparse
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from anvil_site.cli.outcome import tell_traceback
from demo import fleet

READY_TIMEOUT = 60.0
MAX_PORT = 65_535
HOST = "127.0.0.1"
ANVIL = Path(sys.executable).with_name("anvil")
ALIAS = "demo.chat"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--port", type=_port, default=8000, help="port of the router and its console (8000)")
    parser.add_argument("--data", type=Path, default=Path("var"), help="data directory (var)")
    parser.add_argument(
        "--engine-base-port", type=_port, default=8101, help="the engines take three ports from here (8101)"
    )
    parser.add_argument("--once", action="store_true", help="prove that it works, then stop")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    demo = Demo(options.port, options.data.resolve(), options.engine_base_port)
    try:
        demo.check_ports()
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


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to {MAX_PORT}")
    return int(text)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


class DemoFailure(Exception):
    """The demo does not work here; the text says what failed and where to look."""


def why_not_free(port: int) -> str | None:
    """Why nothing of ours could listen on ``port`` of loopback, in the system's words; None when it could."""
    with socket.socket() as probe:
        # As servers do: what an earlier one left in TIME_WAIT does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return (error.strerror or "no word").lower()
    return None


class Demo:
    """The processes of one demo, started and stopped together."""

    def __init__(self, port: int, data: Path, engine_base_port: int) -> None:
        self._port = port
        self._data = data
        self._engine_base_port = engine_base_port
        self._url = f"http://{HOST}:{port}"
        # A variable that is set to nothing is as good as none.
        self._made_token = not os.environ.get("ANVIL_TOKEN")
        self._token = os.environ.get("ANVIL_TOKEN") or secrets.token_urlsafe(32)
        self._admin = os.environ.get("ANVIL_ADMIN_USER") or "admin"
        self._made_password = not os.environ.get("ANVIL_ADMIN_PASSWORD")
        self._password = os.environ.get("ANVIL_ADMIN_PASSWORD") or secrets.token_urlsafe(9)
        self._made_admin = False
        self._engines: fleet.Engines | None = None
        self._router: subprocess.Popen[bytes] | None = None

    def check_ports(self) -> None:
        """See that all four ports are there and free, before anything starts. Raises DemoFailure."""
        last = self._engine_base_port + len(fleet.MEMBERS) - 1
        if last > MAX_PORT:
            raise DemoFailure(
                f"--engine-base-port {self._engine_base_port} leaves no room for three ports; "
                f"take {MAX_PORT - len(fleet.MEMBERS) + 1} or less"
            )
        if self._engine_base_port <= self._port <= last:
            raise DemoFailure(
                f"port {self._port} is wanted by the router and by an engine; "
                "give another --port or --engine-base-port"
            )
        wanted = [("the router", "--port", self._port)]
        wanted += [
            (f"engine {name}", "--engine-base-port", self._engine_base_port + offset)
            for offset, name in enumerate(fleet.MEMBERS)
        ]
        for who, option, port in wanted:
            reason = why_not_free(port)
            if reason is not None:
                raise DemoFailure(
                    f"port {port}, for {who}, is not to be had ({reason}); give another {option}"
                )

    def start(self) -> None:
        """Start everything and wait until the router is ready. Raises DemoFailure."""
        try:
            (self._data / "log").mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise DemoFailure(f"--data {self._data} is a file, or is below one; name a directory") from None
        except OSError as error:
            raise DemoFailure(f"--data {self._data} can't be made: {error.strerror}") from None
        if not os.access(self._data, os.W_OK | os.X_OK):
            raise DemoFailure(f"--data {self._data} can't be written to")
        environ = {
            **os.environ,
            "ANVIL_DATA": str(self._data),
            "ANVIL_BIND": f"{HOST}:{self._port}",
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
        from anvil_site.offline import LedgerOwned, ensure_superuser, install_snapshot

        config, topology = fleet.render(self._engine_base_port)
        try:
            install_snapshot(config, topology, None)
            self._made_admin = ensure_superuser(self._admin, self._password)
        except LedgerOwned:
            raise DemoFailure("a router is running on this data directory already (see --data)") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, its name is what helps here
            tell_traceback()
            name = type(error).__name__
            raise DemoFailure(
                f"--data {self._data} can't be set up ({name}); ANVIL_TRACEBACK=1 shows where"
            ) from None

    def _await_ready(self, log: Path) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            ready = self._is_ready()
            # Asked after the answer: it counts only if ours was alive to give it.
            if self._router is not None and self._router.poll() is not None:
                raise DemoFailure(f"the router ended at once; its log is {log}")
            if ready:
                return
            time.sleep(0.1)
        raise DemoFailure(f"the router did not become ready in {READY_TIMEOUT:.0f} s; its log is {log}")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/readyz", timeout=2) as answer:  # noqa: S310 - loopback
                return bool(answer.status == 200)
        except OSError:
            return False

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
        print(f"  console   {self._url}/fleet/   user {self._admin}   {self._password_line()}")
        change = f"ANVIL_DATA={shlex.quote(str(self._data))} {ANVIL} manage changepassword"
        print(f"            another password: {change} {shlex.quote(self._admin)}")
        print(f"  API       {self._url}/v1   aliases demo.chat (two members) and demo.direct")
        print(f"  token     {self._token}" if self._made_token else "  token     from ANVIL_TOKEN")
        print("\n  Ctrl-C stops everything.", flush=True)

    def _password_line(self) -> str:
        if not self._made_admin:
            unused = "" if self._made_password else "; ANVIL_ADMIN_PASSWORD was not used"
            return f"password as it was, since the user was there already{unused}"
        return f"password {self._password}" if self._made_password else "password from ANVIL_ADMIN_PASSWORD"

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
