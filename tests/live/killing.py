"""gunicorn's configuration of a router that a test can have killed at a point of a promotion.

The point is what the file ``kill`` beside the data directory holds: ``before:STEP`` or ``after:STEP`` of the
journal, where ``begun`` is its row, ``pointer`` the process's swap (the active pointer has moved before it),
and ``outcome`` the end. It is a power cut: master and worker are gone at once, and it happens once.
"""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anvil_site.gunicorn import *  # noqa: F403

if TYPE_CHECKING:
    from gunicorn.workers.base import Worker

ORDER = Path(os.environ["ANVIL_DATA"]).parent / "kill"


def die_at(point: str) -> None:
    if ORDER.exists() and ORDER.read_text() == point:
        ORDER.unlink()
        os.killpg(os.getpgrp(), signal.SIGKILL)


def post_worker_init(worker: "Worker") -> None:
    from routing import promotion
    from routing.router import Router

    def around(owner: Any, name: str, step: str | None) -> None:
        real = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            at = arguments[1] if step is None else step
            die_at(f"before:{at}")
            result = real(*arguments, **options)
            die_at(f"after:{at}")
            return result

        setattr(owner, name, called)

    around(promotion._Run, "_note", None)
    around(promotion._Run, "_finish", "outcome")
    around(promotion, "_begin", "begun")
    around(Router, "install", "pointer")
