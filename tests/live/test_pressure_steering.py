"""Load that the router did not send steers its next choice, and the decision explains it with its numbers."""

from collections.abc import Callable
from typing import Any

import pytest

from admission.replica_scheduler import (
    PressureFreshness,
    PressureSignalState,
    ReplicaCandidate,
    ReplicaPressure,
    decision_as_dict,
    rank_replicas,
)
from routing.records import record_from_mapping
from telemetry.explain import explain_record
from tests.live.harness import (
    Engine,
    Router,
    await_rest,
    chat_body,
    decisions,
    documents,
    eventually,
    replica_tier,
)
from tests.live.raw import RawConnection

CEILING = 4


def telemetry(router: Router) -> dict[str, dict[str, Any]]:
    """Each member's cached pressure, as the capacity projection shows it."""
    (row,) = router.request("GET", "/v1/models/capacity").json()["data"]
    return {member["id"]: member["telemetry"] for member in row["metadata"]["members"]}


def reranked(scheduler: dict[str, Any]) -> dict[str, object]:
    """What the rank makes of the very candidates that a decision names."""
    scores = {score["member_id"]: score for score in scheduler["scores"]}
    names = sorted(scores)
    candidates = tuple(
        ReplicaCandidate(
            name,
            True,
            scores[name]["local_active"],
            scores[name]["local_capacity"],
            ReplicaPressure(
                PressureFreshness.FRESH, scores[name]["upstream_pressure_ppm"], PressureSignalState.VALID
            ),
        )
        for name in names
    )
    cursor = -scores[names[0]]["rotating_rank"] % len(names)
    return decision_as_dict(rank_replicas(candidates, cursor))


@pytest.mark.requirement("C-R006", "C-R008", "C-R012", "C-T005")
def test_pressure_from_outside_steers_the_next_choice_as_the_rank_says(
    make_engine: Callable[..., Engine],
    make_router: Callable[..., Router],
    connect: Callable[..., RawConnection],
) -> None:
    busy, idle = make_engine("member-a"), make_engine("member-b")
    router = make_router(documents(replica_tier([busy, idle], ceilings=CEILING))).start()
    busy.change(prefill=60)
    for _ in range(3):
        connect(busy.port).post(chat_body(stream=True))
    busy.await_stats(running=3)
    busy.change(prefill=0)

    def seen() -> bool:
        found = telemetry(router)
        assert [each["freshness"] for each in found.values()] == ["fresh", "fresh"], found
        assert found["member-a"]["pressure_ppm"] >= 750_000, found
        assert found["member-b"]["pressure_ppm"] == 0, found
        return True

    eventually(seen, timeout=15.0, interval=0.05)
    # One after another: both are at 0/4 whenever one is chosen, and the turn alone would alternate.
    members = [router.chat("live.chat").headers["x-anvil-member"] for _ in range(4)]
    assert members == ["member-b"] * 4
    await_rest(router)
    records = decisions(router)
    assert len(records) == 4
    for record in records:
        scheduler = record["replica_scheduler"]
        assert [score["member_id"] for score in scheduler["scores"]] == ["member-b", "member-a"]
        assert [score["local_active"] for score in scheduler["scores"]] == [0, 0]
        assert reranked(scheduler) == scheduler
        canonical = record_from_mapping(record)
        assert canonical is not None
        least, most = (score["upstream_pressure_ppm"] for score in scheduler["scores"])
        assert explain_record(canonical).choice == (
            "member-b and member-a were equally loaded; member-b had the lower pressure: "
            f"{least:,} against {most:,} ppm."
        )
