"""Why a request is refused or served: for an alias now, and for a request what its record holds.

`explain_model` walks the path that a request would take, in its order, over completed values: it probes,
reserves and ranks nothing, so it says which members could be chosen and not which one would be. It knows no
request, so a gate that depends on one says on what.

`explain_record` says what the record says and no more. A record of a refusal does not tell which scope
refused, and neither does this.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from admission.core import AdmissionSnapshot, MemberAdmissionSnapshot
from admission.replica_scheduler import PressureFreshness, ReplicaPressure, ReplicaScore
from routing import wording
from routing.config import RouterConfig, Tier
from routing.gates import BYTES_PER_TOKEN
from routing.projections import (
    ReadinessSource,
    UnknownModelError,
    completed,
    context_limit,
    declared,
    flag,
    tier_readiness,
    whole,
)
from routing.records import DecisionRecord
from routing.router import Router
from telemetry.capacity import AdmissionSource, PressurePeek

Result = Literal["passes", "refuses", "depends"]


@dataclass(frozen=True, slots=True)
class Step:
    """One gate or scope: ``depends`` is of the request, ``refuses`` refuses any. ``detail`` is a phrase."""

    step: str
    scope: str
    result: Result
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExplanation:
    """What would become of a request for ``alias`` now, step by step; ``summary`` is one sentence."""

    alias: str
    tier_id: str
    strategy: str
    served: bool
    summary: str
    steps: tuple[Step, ...]

    def as_dict(self) -> dict[str, object]:
        """``GET /v1/admin/explain``."""
        return {
            "object": "router_explanation",
            "model": self.alias,
            "tier": self.tier_id,
            "strategy": self.strategy,
            "served": self.served,
            "summary": self.summary,
            "steps": [
                {"step": step.step, "scope": step.scope, "result": step.result, "detail": step.detail}
                for step in self.steps
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterState:
    """What the explanation reads: the process, its configuration and the owners of completed values."""

    owns_ledger: bool
    draining: bool
    config: RouterConfig
    admission: AdmissionSource
    availability: ReadinessSource | None
    pressure: PressurePeek | None = None
    places: tuple[int, int] | None = None
    """Taken and all places of the front door, where they are known."""

    @staticmethod
    def of(router: Router, *, places: tuple[int, int] | None = None) -> "RouterState | None":
        """The state of ``router``; None without an active configuration."""
        active = router.active
        if active is None:
            return None
        return RouterState(
            owns_ledger=router.owns_ledger,
            draining=router.draining,
            config=active.config,
            admission=router.ledger,
            availability=router.availability,
            pressure=router.pressure,
            places=places,
        )


def explain_model(state: RouterState, alias: str) -> ModelExplanation:
    """The way of a request for ``alias`` (as configured). Raises `UnknownModelError`."""
    tier_id = state.config.model_routes.get(alias)
    if tier_id is None:
        raise UnknownModelError
    tier = state.config.tier(tier_id)
    try:
        snapshot = state.admission.snapshot(tier.id)
    except ValueError:  # the configuration is just being replaced
        raise UnknownModelError from None
    steps = [
        *_process(state),
        Step("alias", alias, "passes", f"leads to tier {tier.id}"),
        *_gates(state, tier),
        *(_replica(state, tier, snapshot) if tier.is_replica else _direct(state, tier, snapshot)),
    ]
    # A member that cannot be chosen refuses nobody while another can.
    refusing = [step for step in steps if step.result == "refuses" and step.step != "member"]
    if refusing:
        first = refusing[0]
        summary = f"A request for {alias} is refused now by {first.scope}: {first.detail}."
    else:
        summary = f"A request for {alias} is served now: {steps[-1].detail}."
    return ModelExplanation(
        alias=alias,
        tier_id=tier.id,
        strategy=tier.strategy,
        served=not refusing,
        summary=summary,
        steps=tuple(steps),
    )


def _process(state: RouterState) -> list[Step]:
    if not state.owns_ledger:
        steps = [Step("process", "anvil", "refuses", "another process owns the ledger")]
    elif state.draining:
        steps = [Step("process", "anvil", "refuses", "the process is shutting down")]
    else:
        steps = [Step("process", "anvil", "passes", "owns the ledger")]
    if state.places is not None:
        taken, limit = state.places
        result: Result = "passes" if taken < limit else "refuses"
        steps.append(Step("front_door", "anvil", result, f"{taken:,} of {limit:,} places are taken"))
    return steps


def _gates(state: RouterState, tier: Tier) -> list[Step]:
    """What `routing.gates` would ask of a request, and the served model that it needs."""
    tokens = context_limit(tier, tier_readiness(state.availability, tier))
    steps = [
        Step(
            "context",
            tier.id,
            "depends",
            f"refuses over {tokens * BYTES_PER_TOKEN:,} bytes of text, a low estimate of {tokens:,} tokens",
        ),
        _media(tier),
        Step("tools", tier.id, "passes", "tools are served")
        if tier.tool_support
        else Step("tools", tier.id, "depends", "refuses requests with tools"),
    ]
    limit = tier.max_output_tokens
    output = "no limit" if limit is None else f"lowered to {limit:,} tokens where a request asks for more"
    steps.append(Step("output", tier.id, "passes", output))
    if tier.model is None:
        known = completed(state.availability, tier.id).metadata is not None
        detail = "its upstream reported the model" if known else "its upstream has not reported its model"
        steps.append(Step("model", tier.id, "passes" if known else "refuses", detail))
    return steps


def _media(tier: Tier) -> Step:
    policy = declared(tier, "capacity")
    if flag(policy, "media_admission_enabled") is not True:
        return Step("media", tier.id, "passes", "images and videos are not limited")
    images, videos = whole(policy, "image_limit"), whole(policy, "video_limit")
    estimates = (whole(policy, "image_tokens_estimate"), whole(policy, "video_tokens_estimate"))
    if images is None or videos is None or None in estimates:
        return Step("media", tier.id, "depends", "refuses images and videos: the policy is incomplete")
    return Step(
        "media",
        tier.id,
        "depends",
        f"refuses over {_counted(images, 'image')} or {_counted(videos, 'video')}",
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _quiesce(snapshot: AdmissionSnapshot) -> Step:
    if snapshot.state == "quiesced":
        return Step("admission", snapshot.tier_id, "refuses", f"quiesced, reason {snapshot.reason}")
    return Step("admission", snapshot.tier_id, "passes", "takes new requests")


def _ceiling(snapshot: AdmissionSnapshot, *, full: Result) -> Step:
    ceiling, active = snapshot.max_concurrency, snapshot.active_requests
    if ceiling is None or active < ceiling:
        return Step("ceiling", snapshot.tier_id, "passes", _places(active, ceiling))
    waits = "; a request waits for one" if full == "depends" else ""
    return Step("ceiling", snapshot.tier_id, full, _places(active, ceiling) + waits)


def _places(active: int, ceiling: int | None) -> str:
    if ceiling is None:
        return f"{wording.count(active, 'request runs', 'requests run')}, no ceiling"
    return f"{active:,} of {ceiling:,} places are taken"


def _direct(state: RouterState, tier: Tier, snapshot: AdmissionSnapshot) -> list[Step]:
    """Readiness first, then the ledger, where a request may wait for a place."""
    result = completed(state.availability, tier.id)
    word = f"{result.state}, since {wording.readiness(result.reason)}"
    return [
        Step("readiness", tier.id, "passes" if result.available else "refuses", word),
        _quiesce(snapshot),
        _ceiling(snapshot, full="depends"),
    ]


def _replica(state: RouterState, tier: Tier, snapshot: AdmissionSnapshot) -> list[Step]:
    """The tier's scope, then each member's; a full replica tier refuses at once."""
    steps = [_quiesce(snapshot), _ceiling(snapshot, full="refuses")]
    pressure = _pressure(state.pressure, tier) if tier.strategy == "capacity" else {}
    members = [_member(state, tier, member, pressure) for member in snapshot.members]
    able = sum(step.result == "passes" for step in members)
    steps += members
    detail = f"{able} of {len(members)} members can be chosen"
    steps.append(Step("members", tier.id, "passes" if able else "refuses", detail))
    return steps


def _member(
    state: RouterState, tier: Tier, member: MemberAdmissionSnapshot, pressure: Mapping[str, ReplicaPressure]
) -> Step:
    readiness = completed(state.availability, tier.id, member.member_id)
    ceiling = member.max_concurrency
    full = ceiling is not None and member.active_requests >= ceiling
    open_ = readiness.available and member.state == "admitting" and not full
    words = [f"{readiness.state}, since {wording.readiness(readiness.reason)}"]
    if member.state == "quiesced":
        words.append(f"quiesced, reason {member.reason}")
    words.append(_places(member.active_requests, ceiling))
    sample = pressure.get(member.member_id)
    if sample is not None:
        known = "" if sample.pressure_ppm is None else f"{sample.pressure_ppm / 10_000:.1f} %, "
        words.append(f"pressure {known}{sample.freshness.value}")
    scope = f"{tier.id}/{member.member_id}"
    return Step("member", scope, "passes" if open_ else "refuses", "; ".join(words))


def _pressure(source: PressurePeek | None, tier: Tier) -> Mapping[str, ReplicaPressure]:
    try:
        return source.peek(tier.id) if source is not None else {}
    except ValueError:  # the configuration is just being replaced
        return {}


# A record ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordExplanation:
    """What one record says. ``candidates`` are the eligible members in rank order, the winner first.

    ``choice`` says why the first of them won; both are absent without scheduler evidence.
    """

    summary: str
    choice: str | None
    candidates: tuple[ReplicaScore, ...]


def explain_record(record: DecisionRecord) -> RecordExplanation:
    """A canonical record in words."""
    reason = record.attempts[-1].reason if record.attempts else record.replica_selection
    summary = (
        wording.sentence(wording.attempt(reason)) if reason else "The record does not say what became of it."
    )
    decision = record.replica_scheduler
    if decision is None or not decision.scores:
        return RecordExplanation(summary=summary, choice=None, candidates=())
    return RecordExplanation(summary=summary, choice=_choice(decision.scores), candidates=decision.scores)


def _choice(scores: tuple[ReplicaScore, ...]) -> str:
    """Why the first row won over the second, by the rule's own order."""
    winner = scores[0]
    if len(scores) == 1:
        return f"{winner.member_id} was the only member that could be chosen."
    second = scores[1]
    name, other = winner.member_id, second.member_id
    if winner.local_active * second.local_capacity != second.local_active * winner.local_capacity:
        return (
            f"{name} was the least loaded: {winner.local_active}/{winner.local_capacity} against "
            f"{second.local_active}/{second.local_capacity} of {other}."
        )
    equal = f"{name} and {other} were equally loaded"
    if winner.upstream_unknown != second.upstream_unknown:
        return (
            f"{equal}; the pressure of {name} was known, that of {other} was not ({second.freshness.value})."
        )
    if winner.upstream_pressure_ppm != second.upstream_pressure_ppm:
        return (
            f"{equal}; {name} had the lower pressure: {winner.upstream_pressure_ppm:,} against "
            f"{second.upstream_pressure_ppm:,} ppm."
        )
    known = "of equal pressure" if winner.freshness is PressureFreshness.FRESH else "of unknown pressure"
    return f"{equal} and {known}; it was the turn of {name}."
