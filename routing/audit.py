"""The trail of what was done: an entry for every change, a log line and a count for every refusal.

Nothing secret comes in here: actors, ids, codes and names of keys only.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import django.db

from routing.models import AuditEntry
from routing.refusals import Refused

logger = logging.getLogger("anvil.audit")

Through = AuditEntry.Through

_refusals: Counter[tuple[str, str]] = Counter()
_lock: Final = threading.Lock()


def record(
    *,
    actor: str,
    through: Through,
    action: str,
    tier_id: str = "",
    member_id: str | None = None,
    subject: str = "",
    reason: str = "",
    result: str = "",
) -> None:
    """Add an entry: who did what to which scope (or ``subject``), why, how it ended, through what.

    Raises django.db.Error. Called within the transaction of the change, it is kept or lost together with it.
    """
    AuditEntry.objects.create(
        actor=actor,
        through=through,
        action=action,
        tier_id=tier_id,
        member_id=member_id or "",
        subject=subject,
        reason=reason,
        result=result,
    )


@contextmanager
def after_the_fact(action: str) -> Iterator[None]:
    """Around `record` of a change that has happened: a failing database costs the entry, not the answer."""
    try:
        yield
    except django.db.Error:
        logger.error("an audit entry is lost: action=%s", action)


@contextmanager
def telling_refusals(action: str, *, actor: str, through: Through) -> Iterator[None]:
    """Around a verb: log and count its refusal."""
    try:
        yield
    except Refused as refusal:
        tell(refusal, action=action, actor=actor, through=through)
        raise


def tell(refusal: Refused, *, action: str, actor: str, through: Through) -> None:
    """Leave the one log line of a refusal and count it, unless that is done already."""
    if refusal.told:
        return
    refusal.told = True
    with _lock:
        _refusals[action, refusal.code] += 1
    who = actor.replace(" ", "_")
    logger.info("refused action=%s code=%s actor=%s through=%s", action, refusal.code, who, through.value)


def refusals() -> dict[tuple[str, str], int]:
    """Refused changes of this process so far, by action and code; both from closed vocabularies."""
    with _lock:
        return dict(_refusals)
