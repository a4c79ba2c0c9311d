"""gunicorn's configuration: one worker, and a refusal of everything that would make a second ledger.

The command line and ``GUNICORN_CMD_ARGS`` override this file after it is read, so the rules are checked on
the final settings, in the first hook that sees them: before a socket is open, a worker forked, or the
application loaded where somebody asked to preload it.
"""

import logging
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Final

from gunicorn.errors import HaltServer

from anvil_site import boot, reloads
from routing.access import is_loopback_bind

if TYPE_CHECKING:
    from gunicorn.arbiter import Arbiter
    from gunicorn.config import Config
    from gunicorn.workers.base import Worker

    from anvil_site.runtime import Runtime

REFUSED_TO_START: Final = 2


def _whole(name: str, default: int) -> int:
    """A variable that is read before there are settings: a whole number, or the end of the start."""
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        sys.stderr.write(f"refusing to start: {name} must be a whole number\n")
        raise SystemExit(REFUSED_TO_START)
    return int(text)


bind = os.environ.get("ANVIL_BIND", "127.0.0.1:8000")
workers = 1
worker_class = "anvil_site.worker.AnvilWorker"
threads = _whole("ANVIL_MAX_CONCURRENCY", 512)
"""Of the data plane: a request keeps one until it is sent upstream; it may wait for a direct tier's place."""

# Beside the places of the data plane there must be room for whoever is idle, slow or a person.
worker_connections = 2 * threads + 1024
backlog = 2048
preload_app = False
max_requests = 0
timeout = 60
graceful_timeout = _whole("ANVIL_GRACEFUL_TIMEOUT", 30)
keepalive = 75
control_socket_disable = True
accesslog = None
errorlog = "-"
proc_name = "anvil"

# The worker has checked heads before gunicorn's own parser sees them, and sends files itself.
limit_request_line = 0
limit_request_field_size = 65_536
sendfile = False

_log = logging.getLogger("gunicorn.error")
_ONE_LEDGER = "the admission ledger lives in one process"


def refusals(cfg: "Config") -> list[str]:
    """Why these final settings would break an invariant of the process; empty when they would not."""
    auth_off = os.environ.get("ANVIL_AUTH") == "off"
    # What is no pair of host and port is a Unix socket or a descriptor: some proxy is in front of it.
    binds = [f"{it[0]}:{it[1]}" if isinstance(it, tuple) else "" for it in cfg.address]
    rules = [
        (
            auth_off and not all(map(is_loopback_bind, binds)),
            "ANVIL_AUTH=off needs a loopback address to listen on",
        ),
        (
            auth_off and os.environ.get("LISTEN_PID") == str(os.getpid()),
            "ANVIL_AUTH=off is refused under socket activation: the address is not ours to check",
        ),
        (cfg.workers != 1, f"workers must be 1: {_ONE_LEDGER}"),
        (
            os.environ.get("WEB_CONCURRENCY", "1") != "1",
            f"WEB_CONCURRENCY must be 1 or unset: {_ONE_LEDGER}",
        ),
        (cfg.settings["worker_class"].get() != worker_class, f"worker_class must be {worker_class}"),
        (cfg.threads != threads, "threads must be left alone: ANVIL_MAX_CONCURRENCY sets them"),
        (bool(cfg.preload_app), f"preload_app must be off: {_ONE_LEDGER}"),
        (cfg.max_requests != 0, "max_requests must be 0: a recycled worker would cut its streams"),
        (bool(cfg.reload), "reload must be off: a reload would cut every stream"),
        (not cfg.control_socket_disable, "the control socket must be off: it can add workers"),
        (cfg.is_ssl, "certfile and keyfile are refused: TLS is the reverse proxy's"),
        ("h2" in cfg.http_protocols, "HTTP/2 must be off"),
        (cfg.proxy_protocol != "off", "proxy_protocol must be off: the worker reads heads itself"),
        (cfg.protocol != "http", "protocol must be http: the worker reads heads itself"),
        (cfg.reuse_port, "reuse_port must be off: a second process would take connections unseen"),
    ]
    return [message for broken, message in rules if broken]


DESCRIPTORS_BESIDE_CONNECTIONS: Final = 512
"""Database, logs, pipes, probes, and upstream connections that are idle in the pool."""


def descriptors_needed(cfg: "Config") -> int:
    """Descriptors at the cap: one a caller's connection, and one more a place for its upstream."""
    return int(cfg.worker_connections) + int(cfg.threads) + DESCRIPTORS_BESIDE_CONNECTIONS


def nworkers_changed(server: "Arbiter", new: int, old: int | None) -> None:
    """Refuse unsafe settings. The first of all hooks at a start, and called again by every reload."""
    faults = refusals(server.cfg)
    needed = descriptors_needed(server.cfg)
    if not _raise_descriptor_limit(needed):
        faults.append(f"ANVIL_MAX_CONCURRENCY needs {needed} descriptors and RLIMIT_NOFILE allows fewer")
    if not faults:
        return
    reason = "refusing to start: " + "; ".join(faults)
    if old is None:
        # Nothing runs yet that would have to be stopped.
        _log.error(reason)
        raise SystemExit(REFUSED_TO_START)
    raise HaltServer(reason, REFUSED_TO_START)


def on_starting(server: "Arbiter") -> None:
    """Answer the signals that would fork a second worker with a log line."""

    def refuse(name: str) -> None:
        _log.warning("SIG%s is ignored: %s", name.upper(), _ONE_LEDGER)

    for name in ("ttin", "ttou", "usr2"):
        setattr(server, f"handle_{name}", lambda name=name: refuse(name))


def _raise_descriptor_limit(needed: int) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True


def post_fork(server: "Arbiter", worker: "Worker") -> None:
    """Let a signal to stop end a worker that has no handlers yet; those that it inherited would lose it."""
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def on_reload(server: "Arbiter") -> None:
    """Tell the worker that is about to be replaced: it leaves new connections to its successor."""
    reloads.begin()


def on_exit(server: "Arbiter") -> None:
    """Say last of all why the worker did not come up."""
    if sentence := boot.refusal():
        _log.error("refusing to start: %s", sentence)


def runtime() -> "Runtime":
    """The runtime of this worker process, Django set up first."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "anvil_site.settings")
    django.setup()
    from anvil_site.runtime import get_runtime

    return get_runtime()
