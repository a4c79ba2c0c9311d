"""What one request's routing decided, and the only form in which that may be kept or shown.

A `DecisionRecord` is evidence. It passes `canonical_record` before it reaches any surface (ring, log line,
summary, JSONL, table), and `record_as_dict` spells out each key that leaves. What is not of its closed
vocabulary, grammar or bound is absent from the result; nothing is converted to text, so no URL, address,
credential, prompt, response or exception text can travel in a record.

Two depths of check, since only the router knows what is configured:

- `RecordBoundary` (or `canonical_record(record, config=...)`) at the routing boundary holds every name and
  all scheduler evidence against the configuration that routed the request.
- `canonical_record(record)` and `record_from_mapping(value)` at each surface hold types, grammars, bounds
  and the rules between fields. A grammar cannot tell a tier id from another word of the same letters; the
  routing boundary can.

Sources: replica contract T011 (member evidence), capacity contract "replica_scheduler" (scheduler
evidence), projections "decisions" and "attempt reasons".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from admission.core import AdmissionLease, MemberAdmissionLease
from admission.identifiers import is_alias, is_correlation_id, is_safe_id
from admission.replica_scheduler import (
    ReplicaDecision,
    ReplicaDecisionReason,
    copy_replica_decision,
    decision_as_dict,
    decision_from_mapping,
)
from routing.config import RouterConfig, Tier
from routing.dialects.base import Wire

ABSENT: Final = "-"
"""How an absent string is shown."""

MAX_EXACT: Final = 2**53 - 1
"""Upper bound of every count in evidence: what a JSON number carries exactly in any reader."""

MAX_ATTEMPTS: Final = 16
"""Upper bound of attempts in a captured record. This router makes at most one."""

_MAX_RECORDED_AT: Final = 253_402_300_799  # the last second that a four-digit year can name

Outcome = Literal["served", "error", "skipped"]
ReplicaSelection = Literal["identity_passed", "not_admitted", "request_rejected"]

_KINDS: Final = frozenset(get_args(Wire))
_ALIAS_KINDS: Final = frozenset({"chat", "responses", "messages"})
"""The wires that are routed by alias; the others name a purpose model or an audio route."""

REASONS: Final[dict[str, frozenset[str]]] = {
    "served": frozenset({"served", "served_output_clamped"}),
    "error": frozenset({"client_disconnected", "backend_error", "completion_error"}),
    # Direct tiers only: a replica tier's refusal has no attempt.
    "skipped": frozenset(
        {
            "over_context",
            "media_admission_image_limit",
            "media_admission_video_limit",
            "media_admission_invalid_policy",
            "tools_unsupported",
            "unavailable",
            "quiesced",
            "backend_unbound",
        }
    ),
}
"""The closed reasons of an attempt, by outcome."""

_NOTHING: Final[frozenset[str]] = frozenset()

_FALLBACK_REASON: Final[dict[str, str]] = {"served": "served", "error": "backend_error", "skipped": ABSENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One dispatch to a tier, or on a direct tier the refusal to make one (outcome ``skipped``).

    ``succeeded`` is true exactly when ``outcome`` is ``served``. ``reason`` is one of `REASONS`.
    """

    tier_id: str
    outcome: Outcome
    succeeded: bool
    reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One request: which alias, which tier, what came of it.

    ``route`` is the alias (or the purpose model's or audio route's id) and ``kind`` the caller's wire.
    ``served_tier`` is None unless an attempt on it served an answer. Counts are 0 to 2^53-1, ``latency_ms``
    is finite milliseconds, ``recorded_at`` Unix seconds (None until something stamps it).

    The replica fields belong to replica tiers. A selected member goes with ``identity_passed`` and exactly
    one attempt; ``not_admitted`` and ``request_rejected`` go with no member and no attempt. A scheduler
    decision goes with the selected member of a capacity tier. `canonical_record` enforces all of it.
    """

    route: str | None
    kind: Wire | None
    requested_tier: str | None
    served_tier: str | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    total_prompt_tokens: int = 0
    total_completion_tokens: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    latency_ms: float = 0
    request_id: str | None = None
    workbench_run_id: str | None = None
    task_id: str | None = None
    replica_member_id: str | None = None
    replica_selection: ReplicaSelection | None = None
    replica_scheduler: ReplicaDecision | None = None
    recorded_at: float | None = None
    # Set by canonical_record on what it built, so that the next surface need not check the same value again.
    _canonical: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def served(self) -> bool:
        """Whether a complete answer was served. A selected member alone does not make it so."""
        return self.served_tier is not None


class RecordBoundary:
    """The check at the routing boundary, prepared for one configuration: what its aliases may name.

    Immutable and cheap to ask: a gateway builds one and passes every record of its requests through it.
    """

    __slots__ = ("_others", "_routed")

    def __init__(self, config: RouterConfig) -> None:
        tiers = {tier.id: _TierNames.of(tier) for tier in config.tiers}
        self._routed = {alias: tiers[tier_id] for alias, tier_id in config.model_routes.items()}
        others = [model.id for model in config.purpose_models] + [route.id for route in config.audio_routes]
        self._others = {name: _TierNames(name) for name in others}

    def canonical(self, record: DecisionRecord, *, lease: AdmissionLease | None = None) -> DecisionRecord:
        """The canonical form of ``record`` without any name or evidence that the configuration denies.

        ``lease`` is the one under which the request ran. The decision that the ledger itself attached to it
        is exact, frozen and made from checked values, so it is held against the configuration but not copied
        through its constructors again; that would cost 40 microseconds at 16 members. Any other decision is
        copied and checked. Raises TypeError when ``record`` is not exactly a `DecisionRecord`.
        """
        return _canonical(record, self, lease)

    def named(self, route: str | None, kind: Wire | None) -> "_TierNames | None":
        """What ``route`` names on the wire ``kind``, or None when nothing is configured under it."""
        if route is None or kind is None:
            return None
        return (self._routed if kind in _ALIAS_KINDS else self._others).get(route)


class _TierNames(NamedTuple):
    """What a record of one tier may name: its id, its members, and in capacity mode their ceilings.

    A purpose model or an audio route stands as a tier without members.
    """

    tier_id: str
    member_ids: frozenset[str] = frozenset()
    ceilings: Mapping[str, int | None] | None = None

    @staticmethod
    def of(tier: Tier) -> "_TierNames":
        ceilings = {member.id: member.max_concurrency for member in tier.replicas}
        return _TierNames(tier.id, frozenset(ceilings), ceilings if tier.strategy == "capacity" else None)

    def declares(self, *, requested_tier: str | None, member_id: str | None) -> bool:
        """Whether this is a replica tier, the requested one, and has the member (if there is one)."""
        if not self.member_ids or self.tier_id != requested_tier:
            return False
        return member_id is None or member_id in self.member_ids

    def agrees(self, decision: ReplicaDecision) -> bool:
        """Whether a capacity tier could have made ``decision``: its members, and the ceilings they have.

        A checked decision has its counts below its ceilings already, and no member without a score.
        """
        ceilings = self.ceilings
        return ceilings is not None and all(
            ceilings.get(score.member_id) == score.local_capacity for score in decision.scores
        )


def canonical_record(record: DecisionRecord, *, config: RouterConfig | None = None) -> DecisionRecord:
    """The same record with everything taken out that may not be kept.

    Invalid replica metadata goes as a pair, invalid scheduler evidence alone; the rest of the record stays.
    With ``config``, names that the configuration does not know and evidence that disagrees with it go too
    (`RecordBoundary` does the same for many records of one configuration).
    Raises TypeError when ``record`` is not exactly a `DecisionRecord`.
    """
    if config is not None:
        return RecordBoundary(config).canonical(record)
    if type(record) is DecisionRecord and record._canonical:
        return record
    return _canonical(record, None, None)


def _canonical(
    record: DecisionRecord, boundary: RecordBoundary | None, lease: AdmissionLease | None
) -> DecisionRecord:
    if type(record) is not DecisionRecord:
        raise TypeError("not a decision record")
    kind = cast("Wire | None", _kept(record.kind, _KINDS.__contains__))
    route = _kept(record.route, _is_route)
    is_tier: Callable[[str], bool] = is_safe_id
    names: _TierNames | None = None
    if boundary is not None:
        names = boundary.named(route, kind)
        if names is None:
            route = None
            is_tier = _NOTHING.__contains__
        else:
            is_tier = names.tier_id.__eq__
    requested_tier = _kept(record.requested_tier, is_tier)
    attempts = _canonical_attempts(record.attempts, is_tier)
    served_tier = _kept(record.served_tier, is_tier)
    if served_tier not in [attempt.tier_id for attempt in attempts if attempt.succeeded]:
        served_tier = None
    member_id, selection = _replica_pair(
        record.replica_member_id, record.replica_selection, requested_tier=requested_tier, attempts=attempts
    )
    if boundary is not None and not (
        names is not None and names.declares(requested_tier=requested_tier, member_id=member_id)
    ):
        member_id = selection = None
    decision = None
    if member_id is not None and record.replica_scheduler is not None:
        if _issued(record.replica_scheduler, lease, requested_tier, member_id):
            decision = record.replica_scheduler
        else:
            decision = _canonical_decision(record.replica_scheduler, member_id)
        if decision is not None and names is not None and not names.agrees(decision):
            decision = None
    result = DecisionRecord(
        route=route,
        kind=kind,
        requested_tier=requested_tier,
        served_tier=served_tier,
        attempts=attempts,
        total_prompt_tokens=_count(record.total_prompt_tokens),
        total_completion_tokens=_count(record.total_completion_tokens),
        request_bytes=_count(record.request_bytes),
        response_bytes=_count(record.response_bytes),
        latency_ms=_latency(record.latency_ms),
        request_id=_kept(record.request_id, is_correlation_id),
        workbench_run_id=_kept(record.workbench_run_id, is_correlation_id),
        task_id=_kept(record.task_id, is_correlation_id),
        replica_member_id=member_id,
        replica_selection=selection,
        replica_scheduler=decision,
        recorded_at=_unix_time(record.recorded_at),
    )
    object.__setattr__(result, "_canonical", True)
    return result


def record_from_mapping(value: object) -> DecisionRecord | None:
    """The canonical record in one object of captured JSON, or None when it is not exactly a ``dict``.

    Reads the keys of `record_as_dict` and no other; what is not of their exact types is neither traversed
    nor formatted.
    """
    if type(value) is not dict:
        return None
    fields = cast("dict[str, Any]", value)
    # The raw values stand under the record's types only until canonical_record has looked at each.
    return canonical_record(
        DecisionRecord(
            route=fields.get("route"),
            kind=fields.get("kind"),
            requested_tier=fields.get("requested_tier"),
            served_tier=fields.get("served_tier"),
            attempts=_captured_attempts(fields.get("attempts")),
            total_prompt_tokens=_count(fields.get("total_prompt_tokens")),
            total_completion_tokens=_count(fields.get("total_completion_tokens")),
            request_bytes=_count(fields.get("request_bytes")),
            response_bytes=_count(fields.get("response_bytes")),
            latency_ms=_latency(fields.get("latency_ms")),
            request_id=fields.get("request_id"),
            workbench_run_id=fields.get("workbench_run_id"),
            task_id=fields.get("task_id"),
            replica_member_id=fields.get("replica_member_id"),
            replica_selection=fields.get("replica_selection"),
            replica_scheduler=_captured_decision(fields.get("replica_scheduler")),
        )
    )


def record_as_dict(record: DecisionRecord) -> dict[str, object]:
    """The projection of ``record`` that summaries and JSONL share: an explicit list of keys, in this order.

    Absent strings are "-"; absent replica fields are left out, so that a direct tier's record has the keys
    it always had.
    """
    record = canonical_record(record)
    result: dict[str, object] = {
        "route": record.route or ABSENT,
        "kind": record.kind or ABSENT,
        "requested_tier": record.requested_tier or ABSENT,
        "served_tier": record.served_tier or ABSENT,
        "attempts": [
            {
                "tier_id": attempt.tier_id,
                "outcome": attempt.outcome,
                "succeeded": attempt.succeeded,
                "reason": attempt.reason,
                "prompt_tokens": attempt.prompt_tokens,
                "completion_tokens": attempt.completion_tokens,
            }
            for attempt in record.attempts
        ],
        "total_prompt_tokens": record.total_prompt_tokens,
        "total_completion_tokens": record.total_completion_tokens,
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
        "latency_ms": record.latency_ms,
        "request_id": record.request_id or ABSENT,
        "workbench_run_id": record.workbench_run_id or ABSENT,
        "task_id": record.task_id or ABSENT,
    }
    if record.replica_member_id is not None:
        result["replica_member_id"] = record.replica_member_id
    if record.replica_selection is not None:
        result["replica_selection"] = record.replica_selection
    if record.replica_scheduler is not None:
        result["replica_scheduler"] = decision_as_dict(record.replica_scheduler, checked=True)
    return result


def _kept(value: object, test: Callable[[str], bool]) -> str | None:
    """``value`` when it is exactly a ``str`` that passes ``test``; nothing is ever converted to one."""
    return value if type(value) is str and test(value) else None


def _is_route(value: str) -> bool:
    # The alias grammar admits every character of a URL; no alias is one.
    return (is_alias(value) or is_safe_id(value)) and "://" not in value


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MAX_EXACT else 0


def _latency(value: object) -> float:
    """Milliseconds, to the microsecond."""
    if type(value) is int:
        return _count(value)
    if type(value) is float and 0.0 <= value <= MAX_EXACT:  # a comparison with NaN is false
        return abs(round(value, 3))  # no negative zero
    return 0


def _unix_time(value: object) -> float | None:
    if type(value) is int or type(value) is float:
        return float(value) if 0 <= value <= _MAX_RECORDED_AT else None
    return None


def _canonical_attempts(value: object, is_tier: Callable[[str], bool]) -> tuple[AttemptRecord, ...]:
    if type(value) is not tuple or len(value) > MAX_ATTEMPTS:
        return ()
    return tuple(_canonical_attempt(item, is_tier) for item in value if type(item) is AttemptRecord)


def _canonical_attempt(attempt: AttemptRecord, is_tier: Callable[[str], bool]) -> AttemptRecord:
    outcome = cast("Outcome | None", _kept(attempt.outcome, REASONS.__contains__))
    # Success is claimed only where both fields say so.
    if outcome is None or (outcome == "served" and attempt.succeeded is not True):
        outcome = "error"
    return AttemptRecord(
        tier_id=_kept(attempt.tier_id, is_tier) or ABSENT,
        outcome=outcome,
        succeeded=outcome == "served",
        reason=_kept(attempt.reason, REASONS[outcome].__contains__) or _FALLBACK_REASON[outcome],
        prompt_tokens=_count(attempt.prompt_tokens),
        completion_tokens=_count(attempt.completion_tokens),
    )


def _captured_attempts(value: object) -> tuple[AttemptRecord, ...]:
    if type(value) is not list or len(value) > MAX_ATTEMPTS:
        return ()
    return tuple(
        AttemptRecord(
            tier_id=item.get("tier_id", ABSENT),
            outcome=item.get("outcome", "error"),
            succeeded=item.get("succeeded", False),
            reason=item.get("reason", ABSENT),
            prompt_tokens=_count(item.get("prompt_tokens")),
            completion_tokens=_count(item.get("completion_tokens")),
        )
        for item in value
        if type(item) is dict
    )


def _replica_pair(
    member_id: object, selection: object, *, requested_tier: str | None, attempts: tuple[AttemptRecord, ...]
) -> tuple[str | None, ReplicaSelection | None]:
    """The member and how it was selected, or neither (replica contract T011: pair rules)."""
    if type(selection) is not str or requested_tier is None:
        return None, None
    if selection == "identity_passed":
        one_dispatch = len(attempts) == 1 and attempts[0].outcome != "skipped"
        if is_safe_id(member_id) and one_dispatch and attempts[0].tier_id == requested_tier:
            return member_id, "identity_passed"
    elif selection in ("not_admitted", "request_rejected") and member_id is None and not attempts:
        return None, cast("ReplicaSelection", selection)
    return None, None


def _issued(
    decision: ReplicaDecision, lease: AdmissionLease | None, requested_tier: str | None, member_id: str
) -> bool:
    """Whether ``decision`` is the very object that the ledger attached to ``lease``, for this member."""
    return (
        type(lease) is MemberAdmissionLease
        and type(decision) is ReplicaDecision
        and decision is lease.selection
        and decision.reason is ReplicaDecisionReason.SELECTED
        and decision.selected_member_id == member_id == lease.member_id
        and requested_tier == lease.tier_id
    )


def _canonical_decision(value: object, member_id: str) -> ReplicaDecision | None:
    """A checked copy of an exact decision that selected ``member_id``, or None."""
    try:
        decision = copy_replica_decision(value)
    except ValueError:
        return None
    selected = decision.reason is ReplicaDecisionReason.SELECTED
    return decision if selected and decision.selected_member_id == member_id else None


def _captured_decision(value: object) -> ReplicaDecision | None:
    try:
        return decision_from_mapping(value)
    except ValueError:
        return None
