"""Real processes for the live tests: engines, a router, and what it was given and says of itself.

Everything listens on 127.0.0.1, is stopped by its own pid, and every wait has a deadline. Nothing here knows
the router's modules: it is met as its users meet it.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from openai import OpenAI

from demo.fleet import EngineProcess, spawn_engine
from tests.live.raw import CHAT, HOST, TOKEN

ROOT = Path(__file__).resolve().parents[2]
MODEL = "demo-model"
PROMPT: list[Any] = [{"role": "user", "content": "hi"}]

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, timeout: float = 5.0, interval: float = 0.01) -> T:
    """Ask another process until the answer is true, and return it.

    An AssertionError counts as "not yet". Raises AssertionError when ``timeout`` seconds have passed.
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        try:
            value = condition()
        except AssertionError as error:
            last = error
        else:
            if value:
                return value
            last = value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s; at last: {last}")
        time.sleep(interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A well-framed HTTP answer. Header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    port: int,
    method: str,
    path: str,
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 10.0,
) -> Answer:
    """One request on a connection of its own. ``body`` is bytes, or what is sent as JSON."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = dict(headers or {})
    if data is not None:
        sent.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request(method, path, body=data, headers=sent)
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Answer(status=response.status, headers=received, body=response.read())


class ReservedPorts:
    """Neighbouring ports that nobody else gets, but servers that reuse addresses (ours do) can listen on."""

    def __init__(self, count: int = 1) -> None:
        """Raises OSError when no such run of ports is found."""
        for attempt in range(100):
            self._sockets = [socket.socket() for _ in range(count)]
            try:
                self._sockets[0].bind((HOST, 0))
                self.first: int = self._sockets[0].getsockname()[1]
                for offset, bound in enumerate(self._sockets[1:], start=1):
                    bound.bind((HOST, self.first + offset))
            except (OSError, OverflowError):
                self.close()
                if attempt == 99:
                    raise
            else:
                break
        for bound in self._sockets:
            # Only now, since two that both reuse addresses could be bound to one port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def close(self) -> None:
        """Give them up. Nothing to do twice."""
        for bound in self._sockets:
            bound.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# Engines.


class Engine:
    """A demo engine in a process of its own, on a free port, with the remote control for its faults."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self.name = process.name
        self.port = process.port
        self.pid = process.pid

    @classmethod
    def start(cls, directory: Path, name: str = "engine", *, port: int = 0, **settings: object) -> Self:
        """Start one and wait until it listens. ``settings`` are the engine's options, e.g. ``prefill=0.1``;
        by default it answers at once, in five tokens."""
        options = {"prefill": 0, "token": 0, "tokens": 5, "model": MODEL, **settings}
        arguments = ["--port", str(port), "--control-port", "0"]
        for option, value in options.items():
            arguments += [f"--{option.replace('_', '-')}", str(value)]
        process = spawn_engine(name, directory, arguments)
        try:
            process.await_ready()
        except BaseException:
            process.stop()
            raise
        return cls(process)

    @property
    def url(self) -> str:
        """The base URL that a tier or a client is given."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def log(self) -> str:
        """What the engine wrote to its standard error."""
        return self._process.log.read_text(encoding="utf-8", errors="replace")

    def _control(self, method: str, path: str, body: object = None) -> Any:
        assert self._process.control_port is not None
        answer = request(self._process.control_port, method, f"/control/{path}", body=body)
        assert answer.status == 200, answer.body
        return answer.json()

    def fault(self, name: str, *, count: int | None = None, **params: object) -> None:
        """Switch a fault on for the next ``count`` answers that it fits, or until it is cleared."""
        self._control("POST", "faults", {"fault": name, "count": count, "params": params})

    def clear(self, name: str = "") -> None:
        """Switch one fault off, or all: then what stalls goes on."""
        self._control("DELETE", f"faults?fault={name}" if name else "faults")

    def change(self, **settings: object) -> None:
        """Change settings, e.g. ``slots=2``."""
        self._control("POST", "settings", settings)

    def stats(self) -> dict[str, Any]:
        """What the engine has seen (see `demo.engine.Engine.stats`)."""
        stats: dict[str, Any] = self._control("GET", "stats")
        return stats

    def reset(self) -> None:
        """Counts to zero, faults off."""
        self._control("POST", "reset")

    def await_stats(self, *, timeout: float = 5.0, **expected: object) -> dict[str, Any]:
        """Wait until the stats have these values, e.g. ``running=1``; the stats then."""

        def reached() -> dict[str, Any]:
            stats = self.stats()
            seen = {name: stats[name] for name in expected}
            assert seen == expected, seen
            return stats

        return eventually(reached, timeout=timeout)

    def stop(self) -> None:
        """End the process in order."""
        self._process.stop()

    def kill(self) -> None:
        """End the process as a crash would."""
        self._process.kill()


# Router documents.


@dataclass(frozen=True, slots=True, kw_only=True)
class TierDocument:
    """One tier as the configuration names it; ``members`` are (id, base URL, ceiling or None)."""

    id: str
    alias: str
    settings: Mapping[str, object]
    members: tuple[tuple[str, str, int | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """A router configuration and its topology, as bytes."""

    config: bytes
    topology: bytes


_TIER_DEFAULTS: Mapping[str, object] = {
    "dialect": "openai",
    "context_limit": 32_768,
    "model": MODEL,
    "health_path": "/health",
    "model_identity": True,
    "tool_support": True,
}
_ROUTER_DEFAULTS: Mapping[str, object] = {
    "connect_timeout": 1.0,
    "first_byte_timeout": 20.0,
    "relay_timeout": 20.0,
    "availability_probe_interval": 0.5,
    "availability_probe_timeout": 1.0,
}


def direct_tier(
    engine: Engine, *, tier_id: str = "direct", alias: str = "live.direct", **settings: object
) -> TierDocument:
    """A direct tier on one engine. ``settings`` add to or replace its keys; None leaves a default out."""
    return TierDocument(
        id=tier_id, alias=alias, settings={**_TIER_DEFAULTS, "base_url": engine.url, **settings}
    )


def replica_tier(
    engines: Sequence[Engine],
    *,
    tier_id: str = "chat",
    alias: str = "live.chat",
    strategy: str = "capacity",
    ceilings: int | Sequence[int | None] | None = 2,
    **settings: object,
) -> TierDocument:
    """A replica tier: member-a, member-b, ... in the order of ``engines``. ``ceilings`` are the members', one
    for all or one each; the tier's own is ``max_concurrency`` in ``settings``."""
    each = ceilings if isinstance(ceilings, Sequence) else [ceilings] * len(engines)
    members = tuple(
        (f"member-{chr(ord('a') + index)}", engine.url, ceiling)
        for index, (engine, ceiling) in enumerate(zip(engines, each, strict=True))
    )
    identity = {
        "model_revision": "live",
        "engine_version": "0.11.0",
        "image_digest": f"sha256:{'0' * 64}",
        "config_fingerprint": f"sha256:{'1' * 64}",
    }
    defaults = {**_TIER_DEFAULTS, "replica_strategy": strategy, "replica_identity": identity}
    return TierDocument(id=tier_id, alias=alias, settings={**defaults, **settings}, members=members)


def documents(
    *tiers: TierDocument,
    router: Mapping[str, object] | None = None,
    server: Mapping[str, object] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Documents:
    """Configuration and topology of these tiers. ``router`` and ``server`` add to or replace the keys of
    their tables, ``aliases`` (alias to tier id) adds to the tiers' own."""
    routes = {tier.alias: tier.id for tier in tiers} | dict(aliases or {})
    config = [
        _table("[server]", {"auth_env": "ANVIL_TOKEN", **(server or {})}),
        _table("[router]", {**_ROUTER_DEFAULTS, **(router or {})}),
        _table("[router.model_routes]", routes),
    ]
    topology = [
        _table("", {"schema_version": 1, "id": "live"}),
        _table("[[hosts]]", {"id": "live-host", "roles": ["gpu"]}),
    ]
    for tier in tiers:
        config.append(_table("[[router.tiers]]", {"id": tier.id, **tier.settings}))
        for member, url, ceiling in tier.members:
            resource = {"host_id": "live-host", "resource_id": f"{tier.id}-{member}"}
            entry = {"id": member, "base_url": url, **resource, "qualification_ref": "live:run-1"}
            config.append(_table("[[router.tiers.replicas]]", {**entry, "max_concurrency": ceiling}))
            place = {"id": f"{tier.id}-{member}", "host": "live-host", "role": "llm", "endpoint": url}
            topology.append(_table("[[resources]]", place))
    return Documents(config="\n".join(config).encode(), topology="\n".join(topology).encode())


def _table(heading: str, values: Mapping[str, object]) -> str:
    lines = [f"{_toml(key)} = {_toml(value)}" for key, value in values.items() if value is not None]
    return "\n".join([heading, *lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    # JSON writes strings, numbers, booleans and lists of them as TOML does.
    return json.dumps(value, ensure_ascii=True)


# The router.


class Router:
    """The production command on a port and a data directory of its own."""

    def __init__(
        self,
        directory: Path,
        installed: Documents | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        config: str = "python:anvil_site.gunicorn",
    ) -> None:
        """``installed`` is what a first start on this ``directory`` installs; ``environ`` adds variables;
        ``config`` is gunicorn's configuration, where it is not the production one."""
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = ReservedPorts()
        self.port = self._ports.first
        self.directory = directory
        self.token = TOKEN
        self._config = config
        self._log_path = directory / "router.log"
        self._process: subprocess.Popen[bytes] | None = None
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ANVIL_", "GUNICORN_", "DJANGO_")) and name != "DATABASE_URL"
        }
        self._environ = {
            **inherited,
            "ANVIL_DATA": str(directory / "data"),
            "ANVIL_BIND": f"{HOST}:{self.port}",
            "ANVIL_TOKEN": self.token,
        }
        if installed is not None:
            for variable, name, data in (
                ("ANVIL_CONFIG", "router.toml", installed.config),
                ("ANVIL_TOPOLOGY", "topology.toml", installed.topology),
            ):
                (directory / name).write_bytes(data)
                self._environ[variable] = str(directory / name)
        self._environ.update(environ or {})

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """gunicorn's master."""
        assert self._process is not None
        return self._process.pid

    @property
    def worker_pid(self) -> int:
        """The one worker, which owns the ledger."""
        (worker,) = (int(pid) for pid in self._children())
        return worker

    def _children(self) -> list[str]:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [pid for task in tasks for pid in (task / "children").read_text().split()]

    @property
    def log(self) -> str:
        """What the router wrote, over all its starts."""
        if not self._log_path.exists():
            return ""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def start(self, *, wait: bool = True, timeout: float = 60.0) -> Self:
        """Start gunicorn, and wait until ``/readyz`` says 200 unless told not to."""
        assert self._process is None or self._process.poll() is not None, "it runs already"
        command = [sys.executable, "-m", "gunicorn", "--config", self._config]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "anvil_site.wsgi:application"],
                cwd=ROOT,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own, so that `kill` can end master and worker as one power cut would.
                start_new_session=True,
            )
        if wait:
            self.await_ready(timeout=timeout)
        return self

    def await_ready(self, *, timeout: float = 60.0) -> None:
        """Wait for 200 of ``/readyz``. Raises AssertionError when the process ends, or takes too long."""

        def ready() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the router ended:\n{self.log[-4000:]}")
            with contextlib.suppress(OSError):
                return request(self.port, "GET", "/readyz", timeout=2.0).status == 200
            return False

        eventually(ready, timeout=timeout, interval=0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the master."""
        os.kill(self.pid, number)

    def await_exit(self, *, timeout: float = 40.0) -> int:
        """Wait for the master's end; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=timeout)

    def terminate(self, *, timeout: float = 40.0) -> int:
        """SIGTERM, and the exit code. Raises subprocess.TimeoutExpired when it does not end in time."""
        self.signal(signal.SIGTERM)
        return self.await_exit(timeout=timeout)

    def kill(self) -> None:
        """SIGKILL for master and worker at once."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=10)

    def stop(self) -> None:
        """End it whatever it does, and give the port up. Nothing to do twice."""
        if self._process is not None and self._process.poll() is None:
            try:
                self.terminate(timeout=15)
            except subprocess.TimeoutExpired:
                self.kill()
        self._ports.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Answer:
        """One authorised request on a connection of its own."""
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        return request(self.port, method, path, body=body, headers=sent, timeout=timeout)

    def chat(self, alias: str, *, timeout: float = 10.0, **fields: object) -> Answer:
        """One chat completion, whole."""
        return self.request("POST", CHAT, body=chat_body(alias, **fields), timeout=timeout)

    def client(self, **options: Any) -> OpenAI:
        """The official client, without retries. Close it, or use it as a context manager."""
        return openai_client(f"{self.url}/v1", self.token, **options)


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def envelope(self) -> Any:
        """The one JSON line of ``--json``."""
        assert self.err == ""
        return json.loads(self.out)


def anvil(*words: str, environ: Mapping[str, str]) -> Ran:
    """Run the command line as a process of its own, with ``environ`` in the place of our ``ANVIL_`` names."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANVIL_")}
    done = subprocess.run(
        [sys.executable, "-m", "anvil_site.cli", *words],
        cwd=ROOT,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def admission_counts(router: Router) -> dict[str, int]:
    """Running requests by ``tier`` and by ``tier/member``."""
    answer = router.request("GET", "/v1/admin/transition")
    assert answer.status == 200, answer.body
    counts: dict[str, int] = {}
    for tier in answer.json()["tiers"]:
        counts[tier["tier_id"]] = tier["active_requests"]
        for member in tier.get("members", ()):
            counts[f"{tier['tier_id']}/{member['member_id']}"] = member["active_requests"]
    return counts


def await_rest(router: Router, *, timeout: float = 5.0) -> None:
    """Wait until every count is 0."""

    def at_rest() -> bool:
        counts = admission_counts(router)
        assert not any(counts.values()), counts
        return True

    eventually(at_rest, timeout=timeout)


class Repeating:
    """``threads`` of them that take `turn` again and again until it is left."""

    def __init__(self, threads: int, *, patience: float) -> None:
        """``patience`` is how many seconds the last turn of each may take."""
        self.stopping = threading.Event()
        self._patience = patience
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def turn(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self.stopping.is_set():
            self.turn()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(self._patience)


def decisions(router: Router, *, limit: int = 500) -> list[dict[str, Any]]:
    """The newest decision records, as ``/v1/decisions`` gives them."""
    answer = router.request("GET", f"/v1/decisions?limit={limit}")
    assert answer.status == 200, answer.body
    records: list[dict[str, Any]] = answer.json()["records"]
    return records


def openai_client(base_url: str, token: str = "none", **options: Any) -> OpenAI:
    """The official client: no retries, ten seconds at most."""
    return OpenAI(**{"base_url": base_url, "api_key": token, "max_retries": 0, "timeout": 10.0, **options})


def chat_body(model: str = MODEL, **fields: object) -> dict[str, object]:
    """A chat request; ``fields`` add to it or replace."""
    return {"model": model, "messages": list(PROMPT), **fields}
