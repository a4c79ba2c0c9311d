"""Why a request is refused or served: the steps for an alias now, and what a record says."""

from dataclasses import replace
from typing import Any

import pytest

from admission.core import AdmissionSnapshot
from admission.replica_scheduler import (
    PressureFreshness,
    ReplicaDecision,
    ReplicaDecisionReason,
    ReplicaScore,
)
from routing.availability import RuntimeModelMetadata
from routing.config import parse_config
from routing.probes import AvailabilityResult
from routing.projections import UnknownModelError
from routing.records import AttemptRecord
from telemetry.explain import RouterState, Step, explain_model, explain_record
from tests.unit.routing.records_samples import CAPACITY, DIRECT, DIRECT_REFUSED, REFUSED
from tests.unit.telemetry.capacity_support import (
    CONFIG,
    FRESH,
    PASSED,
    PRIMARY,
    ROTATING,
    SECRETS,
    STALE,
    Ledger,
    Pressure,
    Readiness,
    member,
    readiness,
    tier,
)
from tests.unit.telemetry.capacity_support import DIRECT as DIRECT_SNAPSHOT

OPEN = tier("primary", member("member-a", 1, 2), member("member-b", 2, 4), ceiling=6)


def state(**changes: Any) -> RouterState:
    values: dict[str, Any] = {
        "owns_ledger": True,
        "draining": False,
        "config": CONFIG,
        "admission": Ledger(DIRECT_SNAPSHOT, ROTATING, OPEN),
        "availability": readiness(),
        "pressure": Pressure({"primary": {"member-a": FRESH, "member-b": STALE}}),
        "places": (3, 512),
    }
    return RouterState(**(values | changes))


def test_a_direct_tier_step_by_step() -> None:
    explanation = explain_model(state(), "llm.direct")
    assert explanation.as_dict() == {
        "object": "router_explanation",
        "model": "llm.direct",
        "tier": "direct",
        "strategy": "direct",
        "served": True,
        "summary": "A request for llm.direct is served now: 0 of 6 places are taken.",
        "steps": [
            {"step": "process", "scope": "anvil", "result": "passes", "detail": "owns the ledger"},
            {
                "step": "front_door",
                "scope": "anvil",
                "result": "passes",
                "detail": "3 of 512 places are taken",
            },
            {"step": "alias", "scope": "llm.direct", "result": "passes", "detail": "leads to tier direct"},
            {
                "step": "context",
                "scope": "direct",
                "result": "depends",
                "detail": "refuses over 262,144 bytes of text, a low estimate of 32,768 tokens",
            },
            {
                "step": "media",
                "scope": "direct",
                "result": "depends",
                "detail": "refuses over 4 images or 0 videos",
            },
            {"step": "tools", "scope": "direct", "result": "passes", "detail": "tools are served"},
            {
                "step": "output",
                "scope": "direct",
                "result": "passes",
                "detail": "lowered to 4,096 tokens where a request asks for more",
            },
            {
                "step": "readiness",
                "scope": "direct",
                "result": "passes",
                "detail": "ready, since its health check passed",
            },
            {"step": "admission", "scope": "direct", "result": "passes", "detail": "takes new requests"},
            {"step": "ceiling", "scope": "direct", "result": "passes", "detail": "0 of 6 places are taken"},
        ],
    }


@pytest.mark.requirement("C-R012", "C-T011.1")
def test_a_capacity_tier_lists_its_members_and_names_no_winner() -> None:
    explanation = explain_model(state(admission=Ledger(PRIMARY)), "llm.second")
    assert explanation.served
    assert explanation.summary == "A request for llm.second is served now: 1 of 2 members can be chosen."
    assert explanation.steps[-5:] == (
        Step("admission", "primary", "passes", "takes new requests"),
        Step("ceiling", "primary", "passes", "3 of 6 places are taken"),
        Step(
            "member",
            "primary/member-a",
            "passes",
            "ready, since it is healthy and serves the expected model; 1 of 2 places are taken; "
            "pressure 125.0 %, fresh",
        ),
        Step(
            "member",
            "primary/member-b",
            "refuses",
            "ready, since it is healthy and serves the expected model; quiesced, reason kernel-upgrade; "
            "2 of 4 places are taken; pressure stale",
        ),
        Step("members", "primary", "passes", "1 of 2 members can be chosen"),
    )


def test_members_that_are_out_refuse_everything() -> None:
    explanation = explain_model(state(), "llm.rotating")
    assert not explanation.served
    assert explanation.summary == (
        "A request for llm.rotating is refused now by rotating: 0 of 2 members can be chosen."
    )
    assert explanation.steps[-3:] == (
        Step(
            "member",
            "rotating/one",
            "refuses",
            "unavailable, since its health check found the connection refused; no requests run, no ceiling",
        ),
        Step(
            "member",
            "rotating/two",
            "refuses",
            "unavailable, since it serves another model than the expected one; no requests run, no ceiling",
        ),
        Step("members", "rotating", "refuses", "0 of 2 members can be chosen"),
    )


FULL = tier("primary", member("member-a", 2, 2), member("member-b", 4, 4), ceiling=6)
QUIESCED = replace(PRIMARY, state="quiesced", reason="maintenance", draining=True)
DIRECT_QUIESCED = replace(DIRECT_SNAPSHOT, state="quiesced", reason="upgrade")


@pytest.mark.parametrize(
    ("alias", "changes", "summary"),
    [
        (
            "llm.primary",
            {"owns_ledger": False},
            "A request for llm.primary is refused now by anvil: another process owns the ledger.",
        ),
        (
            "llm.primary",
            {"draining": True},
            "A request for llm.primary is refused now by anvil: the process is shutting down.",
        ),
        (
            "llm.primary",
            {"places": (512, 512)},
            "A request for llm.primary is refused now by anvil: 512 of 512 places are taken.",
        ),
        (
            "llm.primary",
            {"admission": Ledger(QUIESCED)},
            "A request for llm.primary is refused now by primary: quiesced, reason maintenance.",
        ),
        (
            "llm.primary",
            {"admission": Ledger(FULL)},
            "A request for llm.primary is refused now by primary: 6 of 6 places are taken.",
        ),
        (
            "llm.direct",
            {"admission": Ledger(DIRECT_QUIESCED)},
            "A request for llm.direct is refused now by direct: quiesced, reason upgrade.",
        ),
        (
            "llm.direct",
            {"availability": None},
            "A request for llm.direct is refused now by direct: unavailable, since no probe of it has been "
            "completed yet.",
        ),
        (
            "llm.direct",
            {"admission": Ledger(replace(DIRECT_SNAPSHOT, active_requests=6))},
            "A request for llm.direct is served now: 6 of 6 places are taken; a request waits for one.",
        ),
    ],
)
def test_the_first_scope_that_refuses_is_the_answer(
    alias: str, changes: dict[str, Any], summary: str
) -> None:
    explanation = explain_model(state(**changes), alias)
    assert explanation.summary == summary
    assert explanation.served is ("served" in summary)


def test_without_a_front_door_there_is_no_such_step() -> None:
    steps = explain_model(state(places=None), "llm.direct").steps
    assert [step.step for step in steps[:2]] == ["process", "alias"]


@pytest.mark.parametrize("alias", ["made-up", "primary", "", "LLM.PRIMARY"])
def test_an_alias_that_is_not_configured(alias: str) -> None:
    with pytest.raises(UnknownModelError):
        explain_model(state(), alias)


def test_a_swap_in_between_is_no_error_of_the_askers() -> None:
    class Leaving:
        def snapshot(self, tier_id: str) -> AdmissionSnapshot:
            raise ValueError("unknown tier")

    with pytest.raises(UnknownModelError):
        explain_model(state(admission=Leaving()), "llm.direct")


@pytest.mark.parametrize(
    ("metadata", "result", "detail", "limit"),
    [
        (None, "refuses", "its upstream has not reported its model", 32_768),
        (
            RuntimeModelMetadata(served_model="intruder-model", max_model_len=4096),
            "passes",
            "its upstream reported the model",
            4096,
        ),
    ],
)
def test_a_tier_that_asks_its_upstream(
    metadata: RuntimeModelMetadata | None, result: str, detail: str, limit: int
) -> None:
    """The served name is an upstream's word, and is not repeated."""
    config = parse_config(
        b'[router.model_routes]\n"a" = "t"\n[[router.tiers]]\nid = "t"\nbase_url = "http://127.0.0.1/v1"\n'
        b'context_limit = 32768\nmetadata_source = "upstream"\n'
    )
    known = AvailabilityResult(True, "identity_passed", metadata=metadata)
    explanation = explain_model(
        state(
            config=config,
            admission=Ledger(replace(DIRECT_SNAPSHOT, tier_id="t")),
            availability=Readiness({("t", None): known}),
        ),
        "a",
    )
    assert Step("model", "t", result, detail) in explanation.steps  # type: ignore[arg-type]
    context = f"refuses over {limit * 8:,} bytes of text, a low estimate of {limit:,} tokens"
    assert Step("context", "t", "depends", context) in explanation.steps
    assert "intruder" not in repr(explanation)


def test_an_incomplete_media_policy_refuses_media() -> None:
    config = parse_config(
        b'[router.model_routes]\n"a" = "t"\n[[router.tiers]]\nid = "t"\nbase_url = "http://127.0.0.1/v1"\n'
        b'context_limit = 10\nmodel = "m"\n[router.tiers.params.capacity]\nmedia_admission_enabled = true\n'
    )
    explanation = explain_model(
        state(
            config=config,
            admission=Ledger(replace(DIRECT_SNAPSHOT, tier_id="t", max_concurrency=None)),
            availability=Readiness({("t", None): PASSED}),
        ),
        "a",
    )
    assert Step("media", "t", "depends", "refuses images and videos: the policy is incomplete") in (
        explanation.steps
    )
    assert Step("tools", "t", "depends", "refuses requests with tools") in explanation.steps
    assert Step("output", "t", "passes", "no limit") in explanation.steps
    assert explanation.steps[-1] == Step("ceiling", "t", "passes", "no requests run, no ceiling")


@pytest.mark.requirement("C-R012", "Q-R012")
def test_no_explanation_holds_an_address_or_the_name_of_a_secret() -> None:
    for alias in CONFIG.model_routes:
        shown = repr(explain_model(state(), alias).as_dict())
        assert [secret for secret in SECRETS if secret in shown] == []


# Records -------------------------------------------------------------------------------------------------


def score(name: str, active: int, ceiling: int, ppm: int | None, rank: int) -> ReplicaScore:
    freshness = PressureFreshness.FAILED if ppm is None else PressureFreshness.FRESH
    return ReplicaScore(name, active, ceiling, freshness, ppm is None, ppm, rank)


def decision(*scores: ReplicaScore) -> ReplicaDecision:
    names = tuple(sorted(each.member_id for each in scores))
    return ReplicaDecision(scores[0].member_id, ReplicaDecisionReason.SELECTED, names, scores)


@pytest.mark.requirement("C-R012", "C-T005")
@pytest.mark.parametrize(
    ("scores", "choice"),
    [
        (
            (score("member-b", 0, 4, None, 0),),
            "member-b was the only member that could be chosen.",
        ),
        (
            (score("member-b", 1, 4, None, 1), score("member-a", 1, 2, 0, 0)),
            "member-b was the least loaded: 1/4 against 1/2 of member-a.",
        ),
        (
            (score("member-b", 1, 2, 900_000, 1), score("member-a", 2, 4, None, 0)),
            "member-b and member-a were equally loaded; the pressure of member-b was known, that of member-a "
            "was not (failed).",
        ),
        (
            (score("member-b", 1, 2, 100, 1), score("member-a", 1, 2, 200, 0)),
            "member-b and member-a were equally loaded; member-b had the lower pressure: 100 against "
            "200 ppm.",
        ),
        (
            (score("member-b", 1, 2, 100, 0), score("member-a", 1, 2, 100, 1)),
            "member-b and member-a were equally loaded and of equal pressure; it was the turn of member-b.",
        ),
        (
            (score("member-b", 1, 2, None, 0), score("member-a", 1, 2, None, 1)),
            "member-b and member-a were equally loaded and of unknown pressure; it was the turn of member-b.",
        ),
    ],
)
def test_why_the_winner_won(scores: tuple[ReplicaScore, ...], choice: str) -> None:
    explanation = explain_record(replace(CAPACITY, replica_scheduler=decision(*scores)))
    assert explanation.choice == choice
    assert explanation.candidates == scores
    assert explanation.summary == "It was served."


def test_a_refusal_is_not_explained_beyond_its_record() -> None:
    explanation = explain_record(REFUSED)
    assert (explanation.choice, explanation.candidates) == (None, ())
    assert explanation.summary == (
        "No member was chosen: the record does not say whether for readiness, quiesce or ceilings, of the "
        "tier or of its members."
    )


@pytest.mark.parametrize(
    ("reason", "summary"),
    [
        ("tools_unsupported", "It needed tools, which the tier does not serve."),
        ("unavailable", "The tier was not available."),
        ("quiesced", "The tier was quiesced."),
    ],
)
def test_a_direct_tiers_refusal_has_its_reason(reason: str, summary: str) -> None:
    attempt = AttemptRecord(tier_id="direct", outcome="skipped", succeeded=False, reason=reason)
    assert explain_record(replace(DIRECT_REFUSED, attempts=(attempt,))).summary == summary


def test_a_record_without_anything_to_say() -> None:
    bare = replace(DIRECT, attempts=(), served_tier=None)
    assert explain_record(bare).summary == "The record does not say what became of it."
