"""gunicorn's configuration of a router that can be killed within a change, or whose database is full.

A file ``kill`` beside the data directory holds the point, ``before:POINT`` or ``after:POINT``. It is a power
cut: master and worker are gone at once, and it happens once. While a file ``full`` is there, no new
connection lets the database grow by a page.
"""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anvil_site.gunicorn import *  # noqa: F403

if TYPE_CHECKING:
    from gunicorn.workers.base import Worker

_BESIDE = Path(os.environ["ANVIL_DATA"]).parent
ORDER = _BESIDE / "kill"
FULL = _BESIDE / "full"


def die_at(point: str) -> None:
    if ORDER.exists() and ORDER.read_text() == point:
        ORDER.unlink()
        os.killpg(os.getpgrp(), signal.SIGKILL)


def post_worker_init(worker: "Worker") -> None:
    from django.db.backends.signals import connection_created

    from admission import intents
    from routing import audit, publishing, transitions
    from routing.router import Router

    def around(owner: Any, name: str, point: str) -> None:
        real = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            die_at(f"before:{point}")
            result = real(*arguments, **options)
            die_at(f"after:{point}")
            return result

        setattr(owner, name, called)

    around(transitions, "_close", "close")
    around(transitions, "_store", "store")
    around(transitions, "_verify", "verify")
    around(transitions, "_open", "open")
    around(intents, "store", "row")
    around(intents, "remove", "no-row")
    around(publishing, "point_at", "pointer")
    around(audit, "record", "audit")
    around(Router, "install", "swap")

    def bound(connection: Any, **named: Any) -> None:
        if FULL.exists() and connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                pages = cursor.execute("PRAGMA page_count").fetchone()[0]
                cursor.execute(f"PRAGMA max_page_count = {pages}")

    connection_created.connect(bound, weak=False)
