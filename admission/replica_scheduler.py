"""The capacity rank: which eligible member of one replica tier takes the next request.

Values, one normaliser and one fixed pure rule. No clock, lock, cursor, metrics adapter or engine name:
time and pressure come in as completed values, and the ledger (``core.py``) owns counts and cursor.

The rule (replica scheduler contract) orders members by

1. local load, ``active_requests / max_concurrency``, compared exactly as integers;
2. whether upstream pressure is unknown (every freshness but ``fresh`` counts as unknown);
3. upstream pressure in parts per million of the member's own capacity, not clamped at one;
4. rotating rank: the distance from the cursor in the full sorted membership.

A member that is not eligible, or whose reservations meet its ceiling, is no candidate at all.

All four fit into one integer, so that a choice is one addition per member and one ``min``. From the
least significant end: 4 bits rotating rank (at most 16 members), 51 bits pressure (at most 2 * 10**15
ppm), 1 bit unknown, and above them the local load. Loads compare by cross-product, ``a/p < b/q`` exactly
when ``a*q < b*p``; brought to the common denominator ``L = lcm(ceilings)`` that is ``a*(L/p) < b*(L/q)``,
with factors that depend on the configuration alone.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from operator import add, attrgetter, itemgetter
from typing import Final, NoReturn, TypeVar

from admission.identifiers import is_safe_id

MIN_MEMBERS: Final = 2
MAX_MEMBERS: Final = 16
MAX_MEMBER_CONCURRENCY: Final = 100_000
MAX_ACTIVE_REQUESTS: Final = 1_000_000_000
MAX_REQUEST_COUNT: Final = 1_000_000_000
"""The largest running or waiting count that a sample may carry."""

FRESH_SECONDS: Final = 5.0
"""A sample of exactly this age is still fresh; an older one is stale."""

PPM: Final = 1_000_000
MAX_PRESSURE_PPM: Final = 2 * MAX_REQUEST_COUNT * PPM
"""Two full counts over a capacity of one: 2 * 10**15, below 2**51 (and so below 2**53)."""

_PRESSURE_SHIFT = 4
_PRESSURE_MASK = (1 << 51) - 1
_UNKNOWN = 1 << 55
_LOAD_SHIFT = 56
RANK_MASK: Final = (1 << _PRESSURE_SHIFT) - 1
"""What is left of a key under this is its member's rotating rank."""


class PressureFreshness(StrEnum):
    """How far a pressure sample can be believed; all but ``fresh`` rank as unknown."""

    FRESH = "fresh"
    STALE = "stale"
    FAILED = "failed"
    UNKNOWN = "unknown"


class PressureSignalState(StrEnum):
    """What a sample said about one signal."""

    VALID = "valid"
    MISSING = "missing"
    INVALID = "invalid"


class ReplicaDecisionReason(StrEnum):
    """Why a decision ended as it did."""

    SELECTED = "selected"
    NO_ELIGIBLE_MEMBER = "no-eligible-member"


_T = TypeVar("_T")


# Looked up once: these are compared for each member of each request, and enum classes are slow to ask.
_FRESH, _STALE = PressureFreshness.FRESH, PressureFreshness.STALE
_VALID, _MISSING, _INVALID = PressureSignalState


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _is_count(value: object, low: int, high: int) -> bool:
    """Whether ``value`` is exactly an ``int`` (no bool, no subclass) in ``low..high``."""
    return type(value) is int and low <= value <= high


@dataclass(frozen=True, slots=True)
class ReplicaPressure:
    """One member's normalised upstream pressure; the default says that nothing is known.

    ``pressure_ppm`` (0 to 2 * 10**15) is there exactly when ``freshness`` is fresh. A fresh or stale
    sample has a valid signal and no invalid one. Without a valid request signal a fresh pressure is
    KV pressure, hence at most 1,000,000. Anything else raises ValueError with a fixed text.
    """

    freshness: PressureFreshness = PressureFreshness.UNKNOWN
    pressure_ppm: int | None = None
    requests_state: PressureSignalState = PressureSignalState.MISSING
    kv_state: PressureSignalState = PressureSignalState.MISSING

    def __post_init__(self) -> None:
        _check_pressure(self.freshness, self.pressure_ppm, self.requests_state, self.kv_state)


def _check_pressure(freshness: object, ppm: object, requests: object, kv: object) -> None:
    sound = (
        type(freshness) is PressureFreshness
        and type(requests) is PressureSignalState
        and type(kv) is PressureSignalState
    )
    if sound and (freshness is _FRESH or freshness is _STALE):
        sound = (requests is _VALID or kv is _VALID) and requests is not _INVALID and kv is not _INVALID
    if sound and freshness is _FRESH:
        sound = _is_count(ppm, 0, MAX_PRESSURE_PPM if requests is _VALID else PPM)
    elif ppm is not None:
        sound = False
    if not sound:
        _refuse("invalid replica pressure")


UNKNOWN_PRESSURE: Final = ReplicaPressure()


@dataclass(frozen=True, slots=True)
class ReplicaCandidate:
    """One configured member as the rank sees it.

    ``active_requests`` (0 to 10**9) may be at or above ``max_concurrency`` (1 to 100,000), after a
    ceiling was lowered for instance: such a member is full. Raises ValueError with a fixed text.
    """

    member_id: str
    eligible: bool
    active_requests: int
    max_concurrency: int
    pressure: ReplicaPressure

    def __post_init__(self) -> None:
        if not (
            is_safe_id(self.member_id)
            and type(self.eligible) is bool
            and _is_count(self.active_requests, 0, MAX_ACTIVE_REQUESTS)
            and _is_count(self.max_concurrency, 1, MAX_MEMBER_CONCURRENCY)
            and type(self.pressure) is ReplicaPressure
        ):
            _refuse("invalid replica candidate")
        copy_replica_pressure(self.pressure)


@dataclass(frozen=True, slots=True)
class ReplicaScore:
    """One eligible member's score, as it stood at the selection.

    ``local_active`` is the count before the reservation, always below ``local_capacity``. The upstream
    is unknown, and its pressure None, exactly when ``freshness`` is not fresh. ``rotating_rank`` is 0 to
    15. Raises ValueError with a fixed text.
    """

    member_id: str
    local_active: int
    local_capacity: int
    freshness: PressureFreshness
    upstream_unknown: bool
    upstream_pressure_ppm: int | None
    rotating_rank: int

    def __post_init__(self) -> None:
        fresh = self.freshness is PressureFreshness.FRESH
        if not (
            is_safe_id(self.member_id)
            and _is_count(self.local_capacity, 1, MAX_MEMBER_CONCURRENCY)
            and _is_count(self.local_active, 0, self.local_capacity - 1)
            and type(self.freshness) is PressureFreshness
            and type(self.upstream_unknown) is bool
            and self.upstream_unknown is not fresh
            and (
                _is_count(self.upstream_pressure_ppm, 0, MAX_PRESSURE_PPM)
                if fresh
                else self.upstream_pressure_ppm is None
            )
            and _is_count(self.rotating_rank, 0, MAX_MEMBERS - 1)
        ):
            _refuse("invalid replica score")


@dataclass(frozen=True, slots=True)
class ReplicaDecision:
    """The outcome of one ranking: scores in winning order, eligible ids in sorted order.

    At most 16 rows; the selected member is the first of them, and without an eligible member both
    tuples are empty. The order of the rows is checked against the rule, rotating ranks do not repeat.
    Raises ValueError with a fixed text.
    """

    selected_member_id: str | None
    reason: ReplicaDecisionReason
    eligible_member_ids: tuple[str, ...]
    scores: tuple[ReplicaScore, ...]

    def __post_init__(self) -> None:
        ids, scores = self.eligible_member_ids, self.scores
        if not (
            type(self.reason) is ReplicaDecisionReason
            and type(ids) is tuple
            and type(scores) is tuple
            and len(ids) == len(scores) <= MAX_MEMBERS
            and all(type(score) is ReplicaScore for score in scores)
            and all(is_safe_id(member_id) for member_id in ids)
        ):
            _refuse("invalid replica decision")
        for score in scores:
            _copy_score(score)
        if not (
            all(low < high for low, high in pairwise(ids))
            and ids == tuple(sorted(score.member_id for score in scores))
            and len({score.rotating_rank for score in scores}) == len(scores)
            and all(_precedes(first, second) for first, second in pairwise(scores))
        ):
            _refuse("invalid replica decision")
        if scores:
            sound = (
                self.reason is ReplicaDecisionReason.SELECTED
                and type(self.selected_member_id) is str
                and self.selected_member_id == scores[0].member_id
            )
        else:
            sound = (
                self.reason is ReplicaDecisionReason.NO_ELIGIBLE_MEMBER and self.selected_member_id is None
            )
        if not sound:
            _refuse("invalid replica decision")


def _precedes(first: ReplicaScore, second: ReplicaScore) -> bool:
    """Whether ``first`` ranks before ``second``; loads by cross-product."""
    left = first.local_active * second.local_capacity
    right = second.local_active * first.local_capacity
    if left != right:
        return left < right
    return (first.upstream_unknown, first.upstream_pressure_ppm or 0, first.rotating_rank) < (
        second.upstream_unknown,
        second.upstream_pressure_ppm or 0,
        second.rotating_rank,
    )


# Normalising -------------------------------------------------------------------------------------------


def normalize_replica_pressure(
    *,
    observed_at: object,
    now_monotonic: object,
    successful: object,
    requests_running: object = None,
    requests_waiting: object = None,
    scheduler_capacity: object = None,
    kv_cache_usage_fraction: object = None,
) -> ReplicaPressure:
    """Turn one completed metrics sample into pressure; never raises and keeps no raw value.

    Clocks are monotonic seconds. Counts are integral numbers 0 to 10**9, ``scheduler_capacity`` an exact
    int 1 to 100,000, ``kv_cache_usage_fraction`` finite and 0 to 1; only exact ``int`` and ``float`` count
    as numbers. None means missing, an incomplete request triple is missing, and one malformed value makes
    its signal invalid whatever else is missing.

    - ``successful is False``: failed. The sample's other values cannot change that.
    - ``successful is True``, sound clocks, a valid signal and no invalid one: fresh up to and including
      5 seconds of age, stale beyond.
    - anything else, a clock that is not finite and nonnegative or that lies in the future included: unknown.

    Fresh pressure is the larger of the valid signals, each rounded up to whole ppm:
    ``ceil((running + waiting) * 1000000 / capacity)``, in whole numbers, and ``ceil(fraction * 1000000)``,
    multiplied as floats, so that 0.1 gives 100000 although its float lies a little above 1/10.
    """
    requests_state, requests_ppm = _request_signal(requests_running, requests_waiting, scheduler_capacity)
    kv_state, kv_ppm = _kv_signal(kv_cache_usage_fraction)
    freshness = _freshness(observed_at, now_monotonic, successful, (requests_state, kv_state))
    ppm = max(requests_ppm, kv_ppm) if freshness is PressureFreshness.FRESH else None
    return ReplicaPressure(freshness, ppm, requests_state, kv_state)


def _freshness(
    observed_at: object, now: object, successful: object, states: tuple[PressureSignalState, ...]
) -> PressureFreshness:
    if successful is False:
        return PressureFreshness.FAILED
    if (
        successful is not True
        or PressureSignalState.INVALID in states
        or PressureSignalState.VALID not in states
    ):
        return PressureFreshness.UNKNOWN
    observed_seconds, now_seconds = _clock(observed_at), _clock(now)
    if observed_seconds is None or now_seconds is None or now_seconds < observed_seconds:
        return PressureFreshness.UNKNOWN
    fresh = now_seconds - observed_seconds <= FRESH_SECONDS
    return PressureFreshness.FRESH if fresh else PressureFreshness.STALE


def _clock(value: object) -> float | None:
    """A finite, nonnegative reading in seconds, or None."""
    if type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return None
    if type(value) is float and math.isfinite(value) and value >= 0:
        return value
    return None


def _request_count(value: object) -> int | None:
    """An integral count 0 to 10**9 given as int or float, or None."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and 0 <= value <= MAX_REQUEST_COUNT:
        return value
    return None


def _request_signal(running: object, waiting: object, capacity: object) -> tuple[PressureSignalState, int]:
    running_count, waiting_count = _request_count(running), _request_count(waiting)
    slots = capacity if type(capacity) is int and 1 <= capacity <= MAX_MEMBER_CONCURRENCY else None
    for supplied, accepted in ((running, running_count), (waiting, waiting_count), (capacity, slots)):
        if supplied is not None and accepted is None:
            return PressureSignalState.INVALID, 0
    if running_count is None or waiting_count is None or slots is None:
        return PressureSignalState.MISSING, 0
    return PressureSignalState.VALID, -(-(running_count + waiting_count) * PPM // slots)


def _kv_signal(fraction: object) -> tuple[PressureSignalState, int]:
    if fraction is None:
        return PressureSignalState.MISSING, 0
    # A NaN fails both comparisons.
    if (type(fraction) is int or type(fraction) is float) and 0 <= fraction <= 1:
        return PressureSignalState.VALID, math.ceil(fraction * PPM)
    return PressureSignalState.INVALID, 0


# Ranking -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankScale:
    """The integers that depend on one tier's sorted membership alone; built once per configuration.

    ``weights[i]`` is member i's key per active request; ``rotations[cursor]`` are the rotating ranks.
    A key at or above ``blocked`` belongs to a member that must not be chosen. Without ceilings (round
    robin) every weight is 0 and the rotating rank decides alone.
    """

    member_ids: tuple[str, ...]
    ceilings: tuple[int, ...] | None
    weights: tuple[int, ...] = field(init=False, repr=False)
    blocked: int = field(init=False, repr=False)
    rotations: tuple[tuple[int, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = len(self.member_ids)
        common = math.lcm(*self.ceilings) if self.ceilings else 1
        weights = [(common // ceiling) << _LOAD_SHIFT for ceiling in self.ceilings or ()] or [0] * size
        # An open member's load is below one, that is below ``common`` in these units.
        object.__setattr__(self, "weights", tuple(weights))
        object.__setattr__(self, "blocked", common << _LOAD_SHIFT)
        rotations = tuple(tuple((index - cursor) % size for index in range(size)) for cursor in range(size))
        object.__setattr__(self, "rotations", rotations)


def upstream_key(pressure_ppm: int | None) -> int:
    """The part of a key that upstream pressure gives; None is unknown, after every known pressure."""
    return _UNKNOWN if pressure_ppm is None else pressure_ppm << _PRESSURE_SHIFT


def rank(local: Sequence[int], upstream: Sequence[int], rotation: Sequence[int]) -> Iterator[list[int]]:
    """The fixed rank over a membership, set up but not yet run; the best key comes first.

    ``(keys,) = rank(...)`` runs it, on the values that the sequences have at that moment. The ledger sets
    it up before it takes its lock and runs it inside, where it costs one instruction that no other thread
    can get between. ``local`` and ``upstream`` carry ``RankScale.blocked`` for a member that must not be
    chosen.
    """
    return map(sorted, (map(add, map(add, local, upstream), rotation),))


def _slot_setters(kind: type) -> list[Callable[[object, object], None]]:
    """What fills each field of a frozen, slotted dataclass without running its constructor."""
    return [vars(kind)[item.name].__set__ for item in fields(kind)]


_new = object.__new__
(
    _set_member_id,
    _set_local_active,
    _set_local_capacity,
    _set_freshness,
    _set_upstream_unknown,
    _set_upstream_pressure_ppm,
    _set_rotating_rank,
) = _slot_setters(ReplicaScore)
_set_selected_member_id, _set_reason, _set_eligible_member_ids, _set_scores = _slot_setters(ReplicaDecision)


def decision_from_keys(
    scale: RankScale, keys: list[int], cursor: int, freshness: Sequence[PressureFreshness]
) -> ReplicaDecision:
    """Spell out what ``rank`` found; a key holds all that its score row says but the freshness.

    The rows are filled without their constructors, which would check again, for 20 microseconds at 16
    members, what the keys were made from. ``copy_replica_decision`` does check.
    """
    member_ids, ceilings, weights, blocked = scale.member_ids, scale.ceilings, scale.weights, scale.blocked
    assert ceilings is not None, "only a capacity tier has decisions"
    size = len(member_ids)
    scores = []
    for key in keys:
        if key >= blocked:
            break
        rotating_rank = key & RANK_MASK
        index = (rotating_rank + cursor) % size
        level = freshness[index]
        unknown = level is not _FRESH
        row = _new(ReplicaScore)
        _set_member_id(row, member_ids[index])
        _set_local_active(row, key // weights[index])
        _set_local_capacity(row, ceilings[index])
        _set_freshness(row, level)
        _set_upstream_unknown(row, unknown)
        _set_upstream_pressure_ppm(row, None if unknown else key >> _PRESSURE_SHIFT & _PRESSURE_MASK)
        _set_rotating_rank(row, rotating_rank)
        scores.append(row)
    if not scores:
        return ReplicaDecision(None, ReplicaDecisionReason.NO_ELIGIBLE_MEMBER, (), ())
    decision = _new(ReplicaDecision)
    _set_selected_member_id(decision, scores[0].member_id)
    _set_reason(decision, ReplicaDecisionReason.SELECTED)
    eligible = member_ids if len(scores) == size else tuple(sorted([row.member_id for row in scores]))
    _set_eligible_member_ids(decision, eligible)
    _set_scores(decision, tuple(scores))
    return decision


def rank_replicas(candidates: tuple[ReplicaCandidate, ...], cursor: int) -> ReplicaDecision:
    """Rank a tier's complete membership; the order in which candidates come does not matter.

    ``candidates`` is an exact tuple of 2 to 16 exact ReplicaCandidate with unique ids, ``cursor`` an exact
    int from 0 to their number minus one: the position, in sorted id order, at which rotation starts. No
    eligible candidate is an ordinary decision. Invalid input raises ValueError with a fixed text.
    """
    if type(candidates) is not tuple or not MIN_MEMBERS <= len(candidates) <= MAX_MEMBERS:
        _refuse("invalid replica candidates")
    for candidate in candidates:
        if type(candidate) is not ReplicaCandidate:
            _refuse("invalid replica candidates")
        _copy_candidate(candidate)
    if len({candidate.member_id for candidate in candidates}) != len(candidates):
        _refuse("invalid replica candidates")
    if not _is_count(cursor, 0, len(candidates) - 1):
        _refuse("invalid replica cursor")
    members = sorted(candidates, key=attrgetter("member_id"))
    scale = RankScale(
        tuple(member.member_id for member in members), tuple(member.max_concurrency for member in members)
    )
    local = [
        member.active_requests * weight
        if member.eligible and member.active_requests < member.max_concurrency
        else scale.blocked
        for member, weight in zip(members, scale.weights, strict=True)
    ]
    upstream = [upstream_key(member.pressure.pressure_ppm) for member in members]
    (keys,) = rank(local, upstream, scale.rotations[cursor])
    return decision_from_keys(scale, keys, cursor, [member.pressure.freshness for member in members])


# Copying, JSON -----------------------------------------------------------------------------------------


def copy_replica_pressure(value: object) -> ReplicaPressure:
    """A copy of an exact ReplicaPressure through its constructor; raises ValueError for anything else."""
    if type(value) is not ReplicaPressure:
        _refuse("invalid replica pressure")
    try:
        return ReplicaPressure(value.freshness, value.pressure_ppm, value.requests_state, value.kv_state)
    except AttributeError:
        raise ValueError("invalid replica pressure") from None


def _copy_candidate(value: ReplicaCandidate) -> ReplicaCandidate:
    try:
        return ReplicaCandidate(
            value.member_id, value.eligible, value.active_requests, value.max_concurrency, value.pressure
        )
    except AttributeError:
        raise ValueError("invalid replica candidate") from None


def _copy_score(value: ReplicaScore) -> ReplicaScore:
    try:
        return ReplicaScore(
            value.member_id,
            value.local_active,
            value.local_capacity,
            value.freshness,
            value.upstream_unknown,
            value.upstream_pressure_ppm,
            value.rotating_rank,
        )
    except AttributeError:
        raise ValueError("invalid replica score") from None


def copy_replica_decision(value: object) -> ReplicaDecision:
    """A deep copy of an exact ReplicaDecision through the constructors; ValueError for anything else.

    This is the check at each boundary of the evidence: an instance that was forged, subclassed or
    tampered with does not get through.
    """
    if type(value) is not ReplicaDecision:
        _refuse("invalid replica decision")
    try:
        scores = value.scores
        if type(scores) is not tuple or not all(type(score) is ReplicaScore for score in scores):
            _refuse("invalid replica decision")
        if len(scores) > MAX_MEMBERS:
            _refuse("invalid replica decision")
        copies = tuple(_copy_score(score) for score in scores)
        return ReplicaDecision(value.selected_member_id, value.reason, value.eligible_member_ids, copies)
    except AttributeError:
        raise ValueError("invalid replica decision") from None


_DECISION_KEYS = frozenset({"selected_member_id", "reason", "eligible_member_ids", "scores"})
_SCORE_KEYS = frozenset(
    {
        "member_id",
        "local_active",
        "local_capacity",
        "freshness",
        "upstream_unknown",
        "upstream_pressure_ppm",
        "rotating_rank",
    }
)


def decision_as_dict(decision: ReplicaDecision, *, checked: bool = False) -> dict[str, object]:
    """The canonical JSON form: exactly four keys, and seven in each score; enums as plain strings.

    Checks the decision first (``copy_replica_decision``), so it raises ValueError for a forged one. That is
    most of the work; ``checked`` says that it was done: the decision is a canonical record's.
    """
    if not checked:
        decision = copy_replica_decision(decision)
    return {
        "selected_member_id": decision.selected_member_id,
        "reason": decision.reason.value,
        "eligible_member_ids": list(decision.eligible_member_ids),
        "scores": [
            {
                "member_id": score.member_id,
                "local_active": score.local_active,
                "local_capacity": score.local_capacity,
                "freshness": score.freshness.value,
                "upstream_unknown": score.upstream_unknown,
                "upstream_pressure_ppm": score.upstream_pressure_ppm,
                "rotating_rank": score.rotating_rank,
            }
            for score in decision.scores
        ],
    }


def decision_from_mapping(raw: object) -> ReplicaDecision:
    """Read the canonical form back from captured JSON; raises ValueError with a fixed text otherwise.

    Exact dicts with exactly the canonical keys, exact lists of at most 16 items, exact primitives. Sizes
    and types are checked before anything is walked through.
    """
    data = _closed(raw, _DECISION_KEYS)
    member_ids, rows = data["eligible_member_ids"], data["scores"]
    if type(member_ids) is not list or type(rows) is not list:
        _refuse("invalid replica decision")
    if len(member_ids) > MAX_MEMBERS or len(rows) > MAX_MEMBERS:
        _refuse("invalid replica decision")
    scores = []
    for row in rows:
        score = _closed(row, _SCORE_KEYS)
        freshness = _FRESHNESS_WORDS.get(_word(score["freshness"]))
        scores.append(ReplicaScore(**{**score, "freshness": freshness}))  # type: ignore[arg-type]
    return ReplicaDecision(
        data["selected_member_id"],  # type: ignore[arg-type]
        _REASON_WORDS.get(_word(data["reason"])),  # type: ignore[arg-type]
        tuple(member_ids),
        tuple(scores),
    )


_FRESHNESS_WORDS = {item.value: item for item in PressureFreshness}
_REASON_WORDS = {item.value: item for item in ReplicaDecisionReason}


def _closed(raw: object, keys: frozenset[str]) -> dict[str, object]:
    if type(raw) is not dict or len(raw) != len(keys) or any(type(key) is not str for key in raw):
        _refuse("invalid replica decision")
    if raw.keys() != keys:
        _refuse("invalid replica decision")
    return raw


def _word(value: object) -> str:
    return value if type(value) is str else ""


# Completed snapshots -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False, eq=False)
class ValidatedReadiness(Mapping[str, bool]):
    """A complete readiness snapshot of one replica tier, checked when it is made and immutable.

    Its owner makes one per round of probes; the ledger then compares the membership and nothing else.
    ``member_ids`` is sorted, ``flags`` follows it. Raises ValueError with a fixed text unless given an
    exact dict of 2 to 16 safe member ids and exact bools.
    """

    member_ids: tuple[str, ...]
    flags: tuple[bool, ...]

    def __init__(self, readiness: dict[str, bool]) -> None:
        member_ids = _membership(readiness, "invalid replica readiness")
        object.__setattr__(self, "member_ids", member_ids)
        object.__setattr__(self, "flags", check_readiness(readiness, member_ids))

    def __getitem__(self, member_id: str) -> bool:
        return self.flags[_position(self.member_ids, member_id)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.member_ids)

    def __len__(self) -> int:
        return len(self.member_ids)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class ValidatedPressure(Mapping[str, ReplicaPressure]):
    """A complete pressure snapshot of one replica tier, checked when it is made and immutable.

    ``member_ids`` is sorted, ``pressures`` follows it, and so do the ``upstream_keys`` made from them once.
    Raises ValueError with a fixed text unless given an exact dict of 2 to 16 safe member ids and exact
    ReplicaPressure values.
    """

    member_ids: tuple[str, ...]
    pressures: tuple[ReplicaPressure, ...]
    freshness: tuple[PressureFreshness, ...] = field(repr=False)
    upstream_keys: tuple[int, ...] = field(repr=False)

    def __init__(self, pressure: dict[str, ReplicaPressure]) -> None:
        member_ids = _membership(pressure, "invalid replica pressure")
        values = _values_in_order(pressure, member_ids, ReplicaPressure, "invalid replica pressure")
        pressures = tuple(copy_replica_pressure(value) for value in values)
        object.__setattr__(self, "member_ids", member_ids)
        object.__setattr__(self, "pressures", pressures)
        object.__setattr__(self, "freshness", tuple(value.freshness for value in pressures))
        keys = tuple(upstream_key(value.pressure_ppm) for value in pressures)
        object.__setattr__(self, "upstream_keys", keys)

    def __getitem__(self, member_id: str) -> ReplicaPressure:
        return self.pressures[_position(self.member_ids, member_id)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.member_ids)

    def __len__(self) -> int:
        return len(self.member_ids)


def check_readiness(readiness: object, member_ids: tuple[str, ...]) -> tuple[bool, ...]:
    """The flags of ``readiness`` in the order of ``member_ids``: copied, and checked to be complete.

    Takes a ValidatedReadiness, or an exact dict whose keys are exactly ``member_ids`` and whose values
    are exact bools. Raises ValueError with a fixed text for anything else.
    """
    if type(readiness) is ValidatedReadiness:
        if readiness.member_ids != member_ids:
            _refuse("invalid replica readiness")
        return readiness.flags
    return _values_in_order(readiness, member_ids, bool, "invalid replica readiness")


def check_pressure(
    pressure: object, member_ids: tuple[str, ...]
) -> tuple[Sequence[int], Sequence[PressureFreshness]]:
    """The upstream keys and the freshness of ``pressure`` in the order of ``member_ids``.

    Takes a ValidatedPressure, or an exact dict whose keys are exactly ``member_ids`` and whose values are
    exact ReplicaPressure; each of those is checked again. Raises ValueError with a fixed text otherwise.
    """
    if type(pressure) is ValidatedPressure:
        if pressure.member_ids != member_ids:
            _refuse("invalid replica pressure")
        return pressure.upstream_keys, pressure.freshness
    keys, levels = [], []
    for value in _values_in_order(pressure, member_ids, ReplicaPressure, "invalid replica pressure"):
        try:
            freshness, ppm = value.freshness, value.pressure_ppm
            requests, kv = value.requests_state, value.kv_state
        except AttributeError:
            raise ValueError("invalid replica pressure") from None
        # The ordinary case spares the call: fresh, by requests at least.
        if not (
            freshness is _FRESH
            and requests is _VALID
            and (kv is _VALID or kv is _MISSING)
            and type(ppm) is int
            and 0 <= ppm <= MAX_PRESSURE_PPM
        ):
            _check_pressure(freshness, ppm, requests, kv)
        keys.append(_UNKNOWN if ppm is None else ppm << _PRESSURE_SHIFT)
        levels.append(freshness)
    return keys, levels


def _values_in_order(
    mapping: object, member_ids: tuple[str, ...], kind: type[_T], text: str
) -> tuple[_T, ...]:
    """The values of an exact dict whose keys are exactly ``member_ids``, each exactly of type ``kind``.

    The copy comes first and is a single C call, so nobody can change it while it is looked at. The types
    of all keys, then of all values, are compared as one set: that is what makes 16 members cheap.
    """
    if type(mapping) is not dict:
        _refuse(text)
    copy = mapping.copy()
    if len(copy) != len(member_ids) or set(map(type, copy)) != {str}:
        _refuse(text)
    try:
        values: tuple[_T, ...] = itemgetter(*member_ids)(copy)
    except KeyError:
        raise ValueError(text) from None
    if set(map(type, values)) != {kind}:
        _refuse(text)
    return values


def _membership(mapping: object, text: str) -> tuple[str, ...]:
    """The sorted keys of an exact dict of 2 to 16 safe ids; raises ValueError(text) otherwise."""
    if type(mapping) is not dict or not MIN_MEMBERS <= len(mapping) <= MAX_MEMBERS:
        _refuse(text)
    member_ids = tuple(mapping)
    if not all(map(is_safe_id, member_ids)):
        _refuse(text)
    return tuple(sorted(member_ids))


def _position(member_ids: tuple[str, ...], member_id: object) -> int:
    for index, known in enumerate(member_ids):
        if known == member_id:
            return index
    raise KeyError(member_id)
