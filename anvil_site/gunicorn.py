"""gunicorn's configuration: one worker, and a refusal of everything that would make a second ledger.

``GUNICORN_CMD_ARGS`` and ``WEB_CONCURRENCY`` override this file after it is read, so the rules are checked on
the final settings, in ``on_starting``, before a socket is open or a worker forked.
"""

import logging
import mmap
import os
import resource
from typing import TYPE_CHECKING, Final

from gunicorn.errors import HaltServer

from routing.access import is_loopback_bind

if TYPE_CHECKING:
    from gunicorn.arbiter import Arbiter
    from gunicorn.config import Config

    from anvil_site.runtime import Runtime

bind = os.environ.get("ANVIL_BIND", "127.0.0.1:8000")
workers = 1
worker_class = "anvil_site.worker.AnvilWorker"
threads = int(os.environ.get("ANVIL_MAX_CONCURRENCY", "512"))
"""Of the data plane: a request that is not streamed keeps one until it is answered."""

# Beside the places of the data plane there must be room for whoever is idle, slow or a person.
worker_connections = 2 * threads + 1024
backlog = 2048
preload_app = False
max_requests = 0
timeout = 60
graceful_timeout = int(os.environ.get("ANVIL_GRACEFUL_TIMEOUT", "30"))
keepalive = 75
control_socket_disable = True
accesslog = None
errorlog = "-"
proc_name = "anvil"

REFUSED_TO_START: Final = 2
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
        (cfg.workers != 1, f"workers must be 1: {_ONE_LEDGER}"),
        (bool(cfg.preload_app), f"preload_app must be off: {_ONE_LEDGER}"),
        (cfg.max_requests != 0, "max_requests must be 0: a recycled worker would cut its streams"),
        (bool(cfg.reload), "reload must be off: a reload would cut every stream"),
        (not cfg.control_socket_disable, "the control socket must be off: it can add workers"),
        (cfg.is_ssl, "certfile and keyfile are refused: TLS is the reverse proxy's"),
        ("h2" in cfg.http_protocols, "HTTP/2 must be off"),
        (cfg.reuse_port, "reuse_port must be off: a second process would take connections unseen"),
    ]
    return [message for broken, message in rules if broken]


DESCRIPTORS_BESIDE_CONNECTIONS: Final = 512
"""Database, logs, pipes, probes, and upstream connections that are idle in the pool."""

# Shared with every worker that is forked: how many reloads there have been.
_reloads = mmap.mmap(-1, 8)


def descriptors_needed(cfg: "Config") -> int:
    """Descriptors at the cap: one a caller's connection, and one more a place for its upstream."""
    return int(cfg.worker_connections) + int(cfg.threads) + DESCRIPTORS_BESIDE_CONNECTIONS


def on_starting(server: "Arbiter") -> None:
    """Refuse unsafe settings, and answer the signals that would fork a second worker with a log line."""
    faults = refusals(server.cfg)
    needed = descriptors_needed(server.cfg)
    if not _raise_descriptor_limit(needed):
        faults.append(f"ANVIL_MAX_CONCURRENCY needs {needed} descriptors and RLIMIT_NOFILE allows fewer")
    if faults:
        raise HaltServer("refusing to start: " + "; ".join(faults), REFUSED_TO_START)

    def refuse(name: str) -> None:
        logging.getLogger("gunicorn.error").warning("SIG%s is ignored: %s", name.upper(), _ONE_LEDGER)

    for name in ("ttin", "ttou", "usr2"):
        setattr(server, f"handle_{name}", lambda name=name: refuse(name))


def _raise_descriptor_limit(needed: int) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True


def on_reload(server: "Arbiter") -> None:
    """Tell the worker that is about to be replaced: it leaves new connections to its successor."""
    _reloads[:8] = (reload_generation() + 1).to_bytes(8, "little")


def reload_generation() -> int:
    """How many reloads the master has begun."""
    return int.from_bytes(_reloads[:8], "little")


def runtime() -> "Runtime":
    """The runtime of this worker process, Django set up first."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "anvil_site.settings")
    django.setup()
    from anvil_site.runtime import get_runtime

    return get_runtime()
