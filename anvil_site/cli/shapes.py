"""What of a router's answer is shown: explicit shapes for transitions, a size bound for everything else.

A shape is a function from an untrusted value to the value or, when it is not of its type or bound, to None.
Keys that a shape does not list are dropped.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias, cast

from admission import identifiers

from .outcome import Json

Shape: TypeAlias = Callable[[Json], Json]

MAX_COUNT: Final = 2**53 - 1
MAX_ROWS: Final = 4_096
MAX_TEXT: Final = 4_096
MAX_DEPTH: Final = 12
MAX_VALUES: Final = 500_000


def identifier(value: Json) -> Json:
    return value if identifiers.is_safe_id(value) else None


def reason(value: Json) -> Json:
    return value if identifiers.is_reason_code(value) else None


def boolean(value: Json) -> Json:
    return value if isinstance(value, bool) else None


def count(value: Json) -> Json:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def name(value: Json) -> Json:
    """A served model's name: short, printable, and not a URL."""
    if isinstance(value, str) and len(value) <= 256 and value.isprintable() and "://" not in value:
        return value
    return None


def one_of(*words: str) -> Shape:
    return lambda value: value if isinstance(value, str) and value in words else None


def record(keys: Mapping[str, Shape], optional: Collection[str] = ()) -> Shape:
    """An object with exactly ``keys``, in their order; those that are ``optional`` only where it has them."""

    def shape(value: Json) -> Json:
        if not isinstance(value, Mapping):
            return None
        return {
            key: inner(value.get(key)) for key, inner in keys.items() if key in value or key not in optional
        }

    return shape


def rows(inner: Shape) -> Shape:
    def shape(value: Json) -> Json:
        if not isinstance(value, list) or len(value) > MAX_ROWS:
            return None
        return [inner(item) for item in value]

    return shape


def counts(value: Json) -> Json:
    """Counts by id; null when one is not."""
    if not isinstance(value, Mapping) or len(value) > MAX_ROWS:
        return None
    if all(identifiers.is_safe_id(key) and count(item) is not None for key, item in value.items()):
        return dict(value)
    return None


_STATE: Final = one_of("admitting", "quiesced")
_READINESS: Final[Mapping[str, Shape]] = {
    "ready": boolean,
    "readiness_state": one_of("ready", "unavailable"),
    "readiness_reason": reason,
    "expected_model": name,
    "observed_model": name,
}
_ADMISSION: Final[Mapping[str, Shape]] = {
    "state": _STATE,
    "reason": reason,
    "active_requests": count,
    "draining": boolean,
    "max_concurrency": count,
}
MEMBER_ROW: Final = record({"member_id": identifier, **_ADMISSION, **_READINESS})
TIER_ROW: Final = record(
    {"tier_id": identifier, **_ADMISSION, **_READINESS, "members": rows(MEMBER_ROW)}, optional={"members"}
)
STATUS: Final = record({"tiers": rows(TIER_ROW)})

_SNAPSHOT: Final = record(
    {
        "tier_id": identifier,
        "member_id": identifier,
        **_ADMISSION,
        "member_active_requests": counts,
        "members": rows(record({"member_id": identifier, **_ADMISSION})),
    },
    optional={"tier_id", "member_id", "member_active_requests", "members"},
)
_SCOPE_ROW: Final = record(
    {
        "tier_id": identifier,
        "member_id": identifier,
        **_ADMISSION,
        **_READINESS,
        "members": rows(MEMBER_ROW),
    },
    optional={"tier_id", "member_id", "members"},
)


def _status_or_row(value: Json) -> Json:
    return STATUS(value) if isinstance(value, Mapping) and "tiers" in value else _SCOPE_ROW(value)


RESULTS: Final[Mapping[str, Shape]] = {
    "quiesce": _SCOPE_ROW,
    "drain": record({"drained": boolean, "timed_out": boolean, "snapshot": _SNAPSHOT}),
    "readmit": record({"readmitted": boolean, "reason": reason, "status": _status_or_row}),
}
"""The ``result`` of each action."""


def transition(action: str) -> Shape:
    """The answer to ``action``, applied or previewed."""
    return record(
        {
            "applied": boolean,
            "dry_run": boolean,
            "action": one_of(action),
            "tier_id": identifier,
            "member_id": identifier,
            "result": RESULTS[action],
        },
        optional={"dry_run", "result"},
    )


def bounded(value: object) -> Json:
    """``value`` as it is; None when it is no JSON, or larger, deeper or longer than a router answers."""
    left = MAX_VALUES

    def fits(item: object, depth: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            return False
        if isinstance(item, str):
            return len(item) <= MAX_TEXT
        if isinstance(item, dict):
            return all(
                isinstance(key, str) and len(key) <= MAX_TEXT and fits(inner, depth + 1)
                for key, inner in item.items()
            )
        if isinstance(item, list):
            return all(fits(inner, depth + 1) for inner in item)
        return item is None or isinstance(item, int) or (isinstance(item, float) and math.isfinite(item))

    return cast("Json", value) if fits(value, 0) else None


def rows_of(data: Mapping[str, Json], key: str) -> list[Mapping[str, Json]]:
    """The objects in the list ``data[key]``; none when there is no such list."""
    found = data.get(key)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def table_of(data: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    """The object ``data[key]``; an empty one when there is none."""
    found = data.get(key)
    return found if isinstance(found, Mapping) else {}
