"""What a transition request asks for: the closed form of its body, checked before anything is looked up.

The rule of ``confirm`` and ``dry_run`` is that of activations and promotions, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

from admission.core import MAX_WAIT_SECONDS
from admission.identifiers import DEFAULT_REASON, is_reason_code, is_safe_id

Action = Literal["status", "quiesce", "drain", "readmit"]

DEFAULT_DRAIN_TIMEOUT: Final = 600.0
"""Seconds; as long as an answer may take to begin by default."""

PREVIOUS_REASON: Final = "X-Anvil-Previous-Reason"
"""Header of the answer to a quiesce, or to its preview, that replaces another reason."""

FIELDS: Final = frozenset(
    {"action", "tier_id", "member_id", "reason", "timeout", "confirm", "dry_run", "accept_unverified"}
)


class OrderError(ValueError):
    """The request is malformed. ``field`` is the name of the field at fault, None for the body as a whole."""

    def __init__(self, field: str | None) -> None:
        super().__init__("the request is malformed")
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A well-formed request; whether its scope exists is still open.

    ``timeout`` is in seconds. ``applies`` is False for a preview: a quiesce or readmit is one unless it says
    ``confirm: true`` and ``dry_run: false``, a drain only when it says ``dry_run: true``.
    """

    action: Action
    tier_id: str | None = None
    member_id: str | None = None
    reason: str = DEFAULT_REASON
    timeout: float = DEFAULT_DRAIN_TIMEOUT
    accept_unverified: bool = False
    applies: bool = True


def parse_order(body: object) -> Order:
    """Check a decoded body. Raises OrderError for the first fault.

    Unknown fields, explicit nulls and values of another type are faults; so is a member without a tier, and
    a missing tier for anything but status.
    """
    if type(body) is not dict or body.keys() - FIELDS:
        raise OrderError(None)
    action = body.get("action")
    if not _is_action(action):
        raise OrderError("action")
    tier_id, member_id = checked_scope(body)
    if tier_id is None and action != "status":
        raise OrderError("tier_id")
    if action == "drain":
        _flag(body, "confirm", default=False)
        applies = not _flag(body, "dry_run", default=False)
    else:
        applies = is_confirmed(body, dry_run=True)
    return Order(
        action=action,
        tier_id=tier_id,
        member_id=member_id,
        reason=_reason(body),
        timeout=_timeout(body),
        accept_unverified=_flag(body, "accept_unverified", default=False),
        applies=applies,
    )


def is_confirmed(body: Mapping[str, object], *, dry_run: bool) -> bool:
    """Whether a change is to be made: ``confirm: true`` and ``dry_run: false``; else it is a preview.

    The one rule of every body that changes something, but for a drain. ``dry_run`` is what a body without it
    means: True for a transition (its contract wants both words), False for an activation and a promotion.
    Raises OrderError for values of another type.
    """
    confirm = _flag(body, "confirm", default=False)
    only_preview = _flag(body, "dry_run", default=dry_run)
    return confirm and not only_preview


def is_wait(value: object) -> TypeGuard[float]:
    """Whether ``value`` is how long a drain may wait: a number of seconds, over 0 and at most 3,600."""
    # NaN fails both comparisons. A number too large for a float is larger than the bound, too.
    return (type(value) is int or type(value) is float) and 0 < value <= MAX_WAIT_SECONDS


def checked_scope(values: Mapping[str, object]) -> tuple[str | None, str | None]:
    """``tier_id`` and ``member_id``, each a safe id or absent; a member needs its tier. Raises OrderError."""
    for field in ("tier_id", "member_id"):
        if field in values and not is_safe_id(values[field]):
            raise OrderError(field)
    if "member_id" in values and "tier_id" not in values:
        raise OrderError("tier_id")
    tier_id, member_id = values.get("tier_id"), values.get("member_id")
    return tier_id if is_safe_id(tier_id) else None, member_id if is_safe_id(member_id) else None


def _is_action(value: object) -> TypeGuard[Action]:
    return type(value) is str and value in ("status", "quiesce", "drain", "readmit")


def _flag(body: Mapping[str, object], field: str, *, default: bool) -> bool:
    value = body.get(field, default)
    if type(value) is not bool:
        raise OrderError(field)
    return value


def _reason(body: Mapping[str, object]) -> str:
    reason = body.get("reason", DEFAULT_REASON)
    if not is_reason_code(reason):
        raise OrderError("reason")
    return reason


def _timeout(body: Mapping[str, object]) -> float:
    timeout = body.get("timeout", DEFAULT_DRAIN_TIMEOUT)
    if not is_wait(timeout):
        raise OrderError("timeout")
    return float(timeout)
