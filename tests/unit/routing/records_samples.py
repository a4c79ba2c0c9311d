"""Records, evidence and a configuration that the tests of records and of the decision log share."""

import re
from dataclasses import replace

from admission.replica_scheduler import (
    PressureFreshness,
    ReplicaDecision,
    ReplicaDecisionReason,
    ReplicaScore,
)
from routing.config import (
    AudioRoute,
    PurposeModel,
    ReplicaIdentity,
    ReplicaMember,
    RouterConfig,
    Tier,
)
from routing.records import AttemptRecord, DecisionRecord


def _members(*ceilings: int | None) -> tuple[ReplicaMember, ...]:
    return tuple(
        ReplicaMember(
            id=f"member-{letter}",
            base_url=f"http://127.0.0.1:81{number:02}/v1",
            host_id="gpu-host-1",
            resource_id=f"llm-{letter}",
            qualification_ref="bench.2026-09-01:run-7",
            max_concurrency=ceiling,
        )
        for number, (letter, ceiling) in enumerate(zip("abcdefgh", ceilings, strict=False))
    )


IDENTITY = ReplicaIdentity(
    model_revision="a1b2c3",
    engine_version="0.11.0",
    image_digest="sha256:" + "0" * 64,
    config_fingerprint="sha256:" + "1" * 64,
)

CONFIG = RouterConfig(
    model_routes={"llm.direct": "direct", "llm.rotating": "rotating", "llm.primary": "primary"},
    tiers=(
        Tier(id="direct", base_url="http://127.0.0.1:8100/v1", context_limit=1000, model="m"),
        Tier(
            id="rotating",
            context_limit=1000,
            model="m",
            replica_strategy="round_robin",
            replica_identity=IDENTITY,
            replicas=_members(None, None),
        ),
        Tier(
            id="primary",
            context_limit=1000,
            model="m",
            replica_strategy="capacity",
            replica_identity=IDENTITY,
            replicas=_members(2, 4, 8),
        ),
    ),
    purpose_models=(
        PurposeModel(id="embed", kind="embedding", model="bge", base_url="http://127.0.0.1:8200/v1"),
    ),
    audio_routes=(AudioRoute(id="dictation", purpose="stt", model="w", base_url="http://127.0.0.1:8201/v1"),),
)


def served(tier_id: str, *, reason: str = "served") -> AttemptRecord:
    return AttemptRecord(
        tier_id=tier_id,
        outcome="served",
        succeeded=True,
        reason=reason,
        prompt_tokens=11,
        completion_tokens=22,
    )


DECISION = ReplicaDecision(
    "member-b",
    ReplicaDecisionReason.SELECTED,
    ("member-a", "member-b"),
    (
        ReplicaScore("member-b", 1, 4, PressureFreshness.FRESH, False, 250_000, 0),
        ReplicaScore("member-a", 1, 2, PressureFreshness.STALE, True, None, 2),
    ),
)

DECISION_JSON: dict[str, object] = {
    "selected_member_id": "member-b",
    "reason": "selected",
    "eligible_member_ids": ["member-a", "member-b"],
    "scores": [
        {
            "member_id": "member-b",
            "local_active": 1,
            "local_capacity": 4,
            "freshness": "fresh",
            "upstream_unknown": False,
            "upstream_pressure_ppm": 250_000,
            "rotating_rank": 0,
        },
        {
            "member_id": "member-a",
            "local_active": 1,
            "local_capacity": 2,
            "freshness": "stale",
            "upstream_unknown": True,
            "upstream_pressure_ppm": None,
            "rotating_rank": 2,
        },
    ],
}

DIRECT = DecisionRecord(
    route="llm.direct",
    kind="chat",
    requested_tier="direct",
    served_tier="direct",
    attempts=(served("direct"),),
    total_prompt_tokens=11,
    total_completion_tokens=22,
    request_bytes=301,
    response_bytes=402,
    latency_ms=12.5,
    request_id="req-1",
    workbench_run_id="run-2",
    task_id="task-3",
    recorded_at=1_767_225_600.25,
)

ROUND_ROBIN = replace(
    DIRECT,
    route="llm.rotating",
    requested_tier="rotating",
    served_tier="rotating",
    attempts=(served("rotating"),),
    replica_member_id="member-a",
    replica_selection="identity_passed",
)

CAPACITY = replace(
    DIRECT,
    route="llm.primary",
    requested_tier="primary",
    served_tier="primary",
    attempts=(served("primary"),),
    replica_member_id="member-b",
    replica_selection="identity_passed",
    replica_scheduler=DECISION,
)

REFUSED = replace(
    CAPACITY,
    served_tier=None,
    attempts=(),
    total_prompt_tokens=0,
    total_completion_tokens=0,
    replica_member_id=None,
    replica_selection="not_admitted",
    replica_scheduler=None,
)

DIRECT_REFUSED = replace(
    DIRECT,
    served_tier=None,
    attempts=(
        AttemptRecord(tier_id="direct", outcome="skipped", succeeded=False, reason="tools_unsupported"),
    ),
    total_prompt_tokens=0,
    total_completion_tokens=0,
)

DIRECT_JSON: dict[str, object] = {
    "route": "llm.direct",
    "kind": "chat",
    "requested_tier": "direct",
    "served_tier": "direct",
    "attempts": [
        {
            "tier_id": "direct",
            "outcome": "served",
            "succeeded": True,
            "reason": "served",
            "prompt_tokens": 11,
            "completion_tokens": 22,
        }
    ],
    "total_prompt_tokens": 11,
    "total_completion_tokens": 22,
    "request_bytes": 301,
    "response_bytes": 402,
    "latency_ms": 12.5,
    "request_id": "req-1",
    "workbench_run_id": "run-2",
    "task_id": "task-3",
}

CAPACITY_JSON: dict[str, object] = {
    "route": "llm.primary",
    "kind": "chat",
    "requested_tier": "primary",
    "served_tier": "primary",
    "attempts": [
        {
            "tier_id": "primary",
            "outcome": "served",
            "succeeded": True,
            "reason": "served",
            "prompt_tokens": 11,
            "completion_tokens": 22,
        }
    ],
    "total_prompt_tokens": 11,
    "total_completion_tokens": 22,
    "request_bytes": 301,
    "response_bytes": 402,
    "latency_ms": 12.5,
    "request_id": "req-1",
    "workbench_run_id": "run-2",
    "task_id": "task-3",
    "replica_member_id": "member-b",
    "replica_selection": "identity_passed",
    "replica_scheduler": DECISION_JSON,
}


class Tripwire:
    """Fails the test when anything looks into it or turns it into text."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        if name == "__class__":  # asked for by isinstance, which reads no more than the type
            return Tripwire
        raise AssertionError(f"looked into an arbitrary object: {name}")

    def __str__(self) -> str:
        raise AssertionError("converted an arbitrary object")

    __repr__ = __str__
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared an arbitrary object")

    def __bool__(self) -> bool:
        raise AssertionError("judged an arbitrary object")


class SubclassedDecision(ReplicaDecision):
    """Equal in every field, and not the exact type."""


class SubclassedScore(ReplicaScore):
    """Likewise."""


def forged(base: ReplicaDecision = DECISION, **changes: object) -> ReplicaDecision:
    """A decision that never saw its constructor."""
    decision = object.__new__(ReplicaDecision)
    for name in ("selected_member_id", "reason", "eligible_member_ids", "scores"):
        object.__setattr__(decision, name, changes.get(name, getattr(base, name)))
    return decision


def forged_score(base: ReplicaScore = DECISION.scores[0], **changes: object) -> ReplicaScore:
    score = object.__new__(ReplicaScore)
    for name in (
        "member_id",
        "local_active",
        "local_capacity",
        "freshness",
        "upstream_unknown",
        "upstream_pressure_ppm",
        "rotating_rank",
    ):
        object.__setattr__(score, name, changes.get(name, getattr(base, name)))
    return score


FIRST, SECOND = DECISION.scores
SECRET_URL = "http://10.0.0.7:8101/v1"

BAD_DECISIONS: dict[str, object] = {
    "a dictionary": dict(DECISION_JSON),
    "a string": SECRET_URL,
    "an arbitrary object": Tripwire(),
    "a subclass": SubclassedDecision(
        DECISION.selected_member_id, DECISION.reason, DECISION.eligible_member_ids, DECISION.scores
    ),
    "a subclassed score": forged(
        scores=(SubclassedScore("member-b", 1, 4, PressureFreshness.FRESH, False, 250_000, 0), SECOND)
    ),
    "an empty shell": object.__new__(ReplicaDecision),
    "nobody eligible": ReplicaDecision(None, ReplicaDecisionReason.NO_ELIGIBLE_MEMBER, (), ()),
    "another member selected": ReplicaDecision(
        "member-a", ReplicaDecisionReason.SELECTED, ("member-a",), (SECOND,)
    ),
    "a reason that is text": forged(reason="selected"),
    "a URL as the selected member": forged(selected_member_id=SECRET_URL),
    "a URL among the eligible": forged(eligible_member_ids=("member-a", SECRET_URL)),
    "eligible as a list": forged(eligible_member_ids=["member-a", "member-b"]),
    "eligible out of order": forged(eligible_member_ids=("member-b", "member-a")),
    "eligible twice": forged(eligible_member_ids=("member-b", "member-b")),
    "eligible without a score": forged(eligible_member_ids=("member-a", "member-b", "member-c")),
    "scores as a list": forged(scores=[FIRST, SECOND]),
    "scores out of order": forged(selected_member_id="member-b", scores=(SECOND, FIRST)),
    "a score twice": forged(scores=(FIRST, FIRST)),
    "a score that is an object": forged(scores=(FIRST, Tripwire())),
    "an empty score": forged(scores=(FIRST, object.__new__(ReplicaScore))),
    "seventeen scores": forged(scores=(FIRST,) * 17, eligible_member_ids=("member-b",) * 17),
    "a count at its ceiling": forged(scores=(forged_score(local_active=4), SECOND)),
    "a negative count": forged(scores=(forged_score(local_active=-1), SECOND)),
    "a count that is a Boolean": forged(scores=(forged_score(local_active=True), SECOND)),
    "a count that is a float": forged(scores=(forged_score(local_active=1.0), SECOND)),
    "a ceiling of zero": forged(scores=(forged_score(local_capacity=0), SECOND)),
    "a ceiling of 100001": forged(scores=(forged_score(local_capacity=100_001), SECOND)),
    "pressure of 2^53": forged(scores=(forged_score(upstream_pressure_ppm=2**53), SECOND)),
    "fresh but unknown": forged(scores=(forged_score(upstream_unknown=True), SECOND)),
    "fresh without pressure": forged(scores=(forged_score(upstream_pressure_ppm=None), SECOND)),
    "stale with pressure": forged(scores=(FIRST, forged_score(SECOND, upstream_pressure_ppm=1))),
    "freshness that is text": forged(scores=(forged_score(freshness="fresh"), SECOND)),
    "a raw metric line": forged(scores=(forged_score(freshness="vllm:num_requests_running 3.0"), SECOND)),
    "a rank of sixteen": forged(scores=(forged_score(rotating_rank=16), SECOND)),
    "the same rank twice": forged(scores=(forged_score(rotating_rank=2), SECOND)),
}


class SubclassedDict(dict[str, object]):
    """Equal to a dict, and not the exact type."""


class SubclassedList(list[object]):
    """Likewise."""


class SubclassedText(str):
    __slots__ = ()


class SubclassedInt(int):
    __slots__ = ()


def _captured(**changes: object) -> dict[str, object]:
    return {**DECISION_JSON, **changes}


def _captured_score(**changes: object) -> dict[str, object]:
    first, second = _rows()
    return _captured(scores=[{**first, **changes}, second])


def _rows() -> tuple[dict[str, object], dict[str, object]]:
    rows = DECISION_JSON["scores"]
    assert isinstance(rows, list)
    return rows[0], rows[1]


def _without(mapping: dict[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in mapping.items() if name != key}


BAD_CAPTURED_DECISIONS: dict[str, object] = {
    "a list": [dict(DECISION_JSON)],
    "a string": SECRET_URL,
    "an arbitrary object": Tripwire(),
    "a subclassed dictionary": SubclassedDict(DECISION_JSON),
    "an extra key": _captured(base_url=SECRET_URL),
    "an extra key in a score": _captured_score(host="10.0.0.7"),
    "a key for another": {**_without(DECISION_JSON, "reason"), "note": "selected"},
    "a missing key": _without(DECISION_JSON, "eligible_member_ids"),
    "a missing key in a score": _captured(scores=[_without(_rows()[0], "freshness"), _rows()[1]]),
    "a key that is no string": {**_without(DECISION_JSON, "reason"), 7: "selected"},
    "no reason": _captured(reason="no-eligible-member"),
    "an unknown reason": _captured(reason="Traceback (most recent call last)"),
    "a reason that is an object": _captured(reason=Tripwire()),
    "a subclassed member id": _captured(selected_member_id=SubclassedText("member-b")),
    "another member selected": _captured(selected_member_id="member-a"),
    "eligible as a tuple": _captured(eligible_member_ids=("member-a", "member-b")),
    "eligible as a subclassed list": _captured(eligible_member_ids=SubclassedList(["member-a", "member-b"])),
    "eligible out of order": _captured(eligible_member_ids=["member-b", "member-a"]),
    "eligible twice": _captured(eligible_member_ids=["member-b", "member-b"]),
    "an object among the eligible": _captured(eligible_member_ids=["member-a", Tripwire()]),
    "a million eligible": _captured(eligible_member_ids=["member-a"] * 1_000_000),
    "scores as a dictionary": _captured(scores={"0": _rows()[0]}),
    "seventeen scores": _captured(scores=[_rows()[0]] * 17),
    "scores out of order": _captured(scores=list(reversed(_rows()))),
    "a score that is a list": _captured(scores=[list(_rows()[0].values()), _rows()[1]]),
    "a subclassed score": _captured(scores=[SubclassedDict(_rows()[0]), _rows()[1]]),
    "a count that is text": _captured_score(local_active="1"),
    "a count that is a Boolean": _captured_score(local_active=True),
    "a count that is a float": _captured_score(local_active=1.0),
    "a subclassed count": _captured_score(local_active=SubclassedInt(1)),
    "a count at its ceiling": _captured_score(local_active=4),
    "an endless number": _captured_score(upstream_pressure_ppm=10**400),
    "a pressure that is text": _captured_score(upstream_pressure_ppm="sk-secret"),
    "fresh without pressure": _captured_score(upstream_pressure_ppm=None),
    "stale with pressure": _captured_score(freshness="stale"),
    "unknown as a number": _captured_score(upstream_unknown=0),
    "freshness unheard of": _captured_score(freshness="vllm:num_requests_running 3.0"),
    "freshness that is an object": _captured_score(freshness=Tripwire()),
    "nesting": _captured_score(member_id={"base_url": SECRET_URL}),
}

PLANTED = {
    "url": "http://10.0.0.7:8101/v1",
    "userinfo url": "https://user:pa55@engine.internal/v1?key=1",
    "host": "engine.internal:8101",
    "address": "10.0.0.7",
    "token": "Bearer sk-live-abcdef0123456789",
    "prompt": "Tell me how to pick a lock",
    "response": "First, you take a pick.\nThen",
    "model name": "Qwen/Qwen3-32B-Evil Edition",
    "metric line": 'vllm:num_requests_running{model_name="m"} 3.0',
    "exception": "ConnectionRefusedError: [Errno 111] Connection refused",
}
"""What must never appear. None of it fits a grammar without a configuration, except where a test says so."""

PLANTED_TRACE = re.compile(
    r"10\.0\.0\.7|engine|internal|8101|pa55|Bearer|sk-live|pick|Qwen|Evil|vllm|Errno|Refused|Tell|First|://"
)
"""Some piece of each planted value."""
