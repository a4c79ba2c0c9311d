"""The routers that are measured: how each is installed, configured and started in front of the same engines.

Each Python peer gets a virtual environment of its own under ``var/bench`` (130 to 760 MB), made once. A peer
that cannot be had here is left out by name. Everything listens on 127.0.0.1 and is stopped by its pid.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parent.parent
STATE: Final = ROOT / "var" / "bench"
TOKEN: Final = "sk-bench-0123456789abcdef0123456789abcdef"
ALIAS: Final = "bench.chat"
READY_SECONDS: Final = 90.0
GTHREAD: Final = (sys.executable, "-m", "gunicorn", "-c", "benchmarks/gthread.py")
_DIGEST: Final = "sha256:" + "0" * 64


class PeerMissing(Exception):
    """This peer cannot be had on this machine; the text says what is missing."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Running:
    """A started process and where it listens. ``model`` is the name that its callers ask for."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    model: str = ALIAS
    scratch: Path | None = None
    """A directory that goes with it."""

    def cpu_seconds(self) -> float:
        """User and system time of the process and all its descendants so far."""
        ticks = sum(_cpu_ticks(pid) for pid in _family(self.process.pid))
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_mib(self) -> float:
        """Resident memory of the process and all its descendants."""
        pages = 0
        for pid in _family(self.process.pid):
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> None:
        """Ask it to end, then make it; waits a few seconds at most."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=8)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def start(
    name: str,
    command: Sequence[str],
    port: int,
    *,
    environ: Mapping[str, str] | None = None,
    ready: str | None = None,
    model: str = ALIAS,
) -> Running:
    """Start a server and wait until ``GET ready`` is 200 (without ``ready``: until the port accepts)."""
    STATE.mkdir(parents=True, exist_ok=True)
    log = STATE / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environ or {})},
            cwd=ROOT,
            start_new_session=True,
        )
    running = Running(name, process, port, model)
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerMissing(f"{name} ended at once, see {log}")
        if _answers(port, ready):
            return running
        time.sleep(0.1)
    running.stop()
    raise PeerMissing(f"{name} did not become ready in {READY_SECONDS:.0f} s, see {log}")


def _answers(port: int, path: str | None) -> bool:
    try:
        if path is None:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
            return connection.getresponse().status == 200
    except OSError:
        return False


def environment(name: str, *requirements: str) -> Path:
    """The ``bin`` of a virtual environment that holds ``requirements``; made once."""
    home = STATE / f"venv-{name}"
    stamp = home / ".ready"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"bench: installing {name} (once)", file=sys.stderr, flush=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True)
            pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
            subprocess.run([*pip, *requirements], check=True, capture_output=True, timeout=900)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise PeerMissing(f"{name} could not be installed") from error
        stamp.write_text(wanted)
    return home / "bin"


def anvil(
    engines: Sequence[int],
    *,
    strategy: str = "capacity",
    ceilings: Sequence[int] | None = None,
    cap: int = 1100,
    blocking: bool = False,
) -> Running:
    """Anvil's production command over one replica tier, on a data directory of its own.

    ``blocking``: the same application behind gunicorn's own worker, without the relay loop.
    """
    port = free_port()
    data = STATE / f"anvil-{port}"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    config, topology = documents(engines, strategy, ceilings or [cap] * len(engines))
    (data / "router.toml").write_text(config)
    (data / "topology.toml").write_text(topology)
    environ = {
        "ANVIL_DATA": str(data),
        "ANVIL_BIND": f"127.0.0.1:{port}",
        "ANVIL_CONFIG": str(data / "router.toml"),
        "ANVIL_TOPOLOGY": str(data / "topology.toml"),
        "ANVIL_TOKEN": TOKEN,
        "ANVIL_MAX_CONCURRENCY": str(cap),
        "ANVIL_LOG_LEVEL": "WARNING",
        "ANVIL_GRACEFUL_TIMEOUT": "4",
    }
    command = [sys.executable, "-m", "anvil_site.cli", "serve"]
    if blocking:
        command = [*GTHREAD, "anvil_site.wsgi:application"]
    running = start(f"anvil-{port}", command, port, environ=environ, ready="/readyz")
    running.scratch = data
    return running


def empty() -> Running:
    """An empty WSGI application on gunicorn's gthread worker: the least that a threaded server costs."""
    port = free_port()
    environ = {"ANVIL_BIND": f"127.0.0.1:{port}", "ANVIL_MAX_CONCURRENCY": "64"}
    return start("empty-wsgi", [*GTHREAD, "benchmarks.empty:application"], port, environ=environ)


def documents(engines: Sequence[int], strategy: str, ceilings: Sequence[int]) -> tuple[str, str]:
    """Configuration and topology of one replica tier over ``engines``, with these member ceilings."""
    config = [
        '[server]\nauth_env = "ANVIL_TOKEN"\n\n[router.model_routes]\n'
        f'"{ALIAS}" = "bench"\n\n[[router.tiers]]\nid = "bench"\ncontext_limit = 32768\n'
        f'model = "demo-model"\nmodel_identity = true\nreplica_strategy = "{strategy}"\n'
        f"\n[router.tiers.replica_identity]\n"
        f'model_revision = "bench"\nengine_version = "1"\nimage_digest = "{_DIGEST}"\n'
        f'config_fingerprint = "{_DIGEST}"\n'
    ]
    topology = ['schema_version = 1\nid = "bench"\n\n[[hosts]]\nid = "bench-host"\nroles = ["inference"]\n']
    for number, (port, ceiling) in enumerate(zip(engines, ceilings, strict=True)):
        url = f"http://127.0.0.1:{port}/v1"
        config.append(
            f'\n[[router.tiers.replicas]]\nid = "member-{number}"\nbase_url = "{url}"\n'
            f'host_id = "bench-host"\nresource_id = "engine-{number}"\nqualification_ref = "bench:none"\n'
            f"max_concurrency = {ceiling}\n"
        )
        topology.append(
            f'\n[[resources]]\nid = "engine-{number}"\nhost = "bench-host"\nrole = "llm"\n'
            f'endpoint = "{url}"\n'
        )
    return "".join(config), "".join(topology)


def rust_router(distribution: str, engines: Sequence[int], *, policy: str = "power_of_two") -> Running:
    """vllm-router, sglang-router or smg: flags of one family."""
    binary = environment(distribution, distribution)
    port, metrics_port = free_port(), free_port()
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    common = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, "--policy", policy]
    common += ["--prometheus-port", str(metrics_port)]
    commands = {
        "vllm-router": [str(binary / "vllm-router"), *common],
        "sglang-router": [
            str(binary / "python"),
            "-m",
            "sglang_router.launch_router",
            *common,
            "--disable-retries",
        ],
        "smg": [
            str(binary / "smg"),
            "launch",
            *common,
            "--disable-retries",
            "--prometheus-host",
            "127.0.0.1",
        ],
    }
    return start(
        f"{distribution}-{policy}", commands[distribution], port, ready="/health", model="demo-model"
    )


def litellm(engines: Sequence[int]) -> Running:
    """LiteLLM's proxy, least busy, no retries."""
    binary = environment("litellm", "litellm[proxy]")
    port = free_port()
    config = STATE / "litellm.yaml"
    STATE.mkdir(parents=True, exist_ok=True)
    models = "".join(
        f"  - model_name: {ALIAS}\n    litellm_params: {{model: openai/demo-model, api_key: none, "
        f"api_base: 'http://127.0.0.1:{engine}/v1'}}\n"
        for engine in engines
    )
    config.write_text(
        f"model_list:\n{models}router_settings: {{routing_strategy: least-busy, num_retries: 0}}\n"
        f"general_settings: {{master_key: {TOKEN}}}\n"
    )
    command = [str(binary / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return start(
        "litellm", [*command, "--num_workers", "1"], port, environ=environ, ready="/health/liveliness"
    )


def haproxy(engines: Sequence[int]) -> Running:
    """HAProxy leastconn, one thread: the floor of what a proxy costs."""
    binary = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        raise PeerMissing("haproxy is not installed (Debian package haproxy)")
    port = free_port()
    servers = "".join(f"  server e{n} 127.0.0.1:{engine}\n" for n, engine in enumerate(engines))
    STATE.mkdir(parents=True, exist_ok=True)
    config = STATE / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n  maxconn 8000\ndefaults\n  mode http\n  option http-no-delay\n"
        "  timeout connect 2s\n  timeout client 120s\n  timeout server 120s\n"
        f"listen bench\n  bind 127.0.0.1:{port}\n  balance leastconn\n{servers}"
    )
    return start("haproxy", [binary, "-db", "-f", str(config)], port, model="demo-model")


def set_token(engine: int, seconds: float) -> None:
    """Set the time between two tokens of the engine on that port."""
    _control(engine, "settings", {"token": seconds})


def hide_metrics(engine: int) -> None:
    """Let the engine on that port answer ``/metrics`` with 404 from now on: its pressure stays unknown."""
    _control(engine, "faults", {"fault": "http_error", "params": {"path": "/metrics", "status": 404}})


def _control(engine: int, what: str, order: Mapping[str, object]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", engine, timeout=5)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/control/{what}", json.dumps(order), headers)
        if connection.getresponse().status != 200:
            raise PeerMissing(f"the engine did not take its {what}")


def engine(*, slots: int = 2000, prefill: float = 0.0, token: float = 0.02, tokens: int = 100) -> Running:
    """One stand-in engine."""
    port = free_port()
    command = [sys.executable, "-m", "demo.engine", "--port", str(port), "--slots", str(slots)]
    command += [
        "--prefill",
        str(prefill),
        "--token",
        str(token),
        "--tokens",
        str(tokens),
        "--keep-alive",
        "0",
    ]
    return start(f"engine-{port}", command, port, ready="/health", model="demo-model")
