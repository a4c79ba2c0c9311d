"""Decisions and explanations in the console (contract 4): the list, one in words, why it is refused."""

import datetime

import pytest

from admission.replica_scheduler import (
    PressureFreshness,
    ReplicaDecision,
    ReplicaDecisionReason,
    ReplicaScore,
)
from routing.records import AttemptRecord, DecisionRecord
from telemetry.entries import values_of
from telemetry.models import DecisionEntry
from tests.web.console_support import admin, person, text_of, viewer
from tests.web.control_support import Control

pytestmark = pytest.mark.django_db(transaction=True)

AT = datetime.datetime(2026, 5, 1, 12, 30, 45, tzinfo=datetime.UTC)
LIST = "/admin/telemetry/decisionentry/"


def score(member_id: str, active: int, ppm: int | None, rank: int) -> ReplicaScore:
    fresh = ppm is not None
    return ReplicaScore(
        member_id=member_id,
        local_active=active,
        local_capacity=8,
        freshness=PressureFreshness.FRESH if fresh else PressureFreshness.STALE,
        upstream_unknown=not fresh,
        upstream_pressure_ppm=ppm,
        rotating_rank=rank,
    )


def stored(**changes: object) -> DecisionEntry:
    """A stored decision: member-b was chosen before member-a, for its lower pressure."""
    attempt = AttemptRecord(
        tier_id="chat",
        outcome="served",
        succeeded=True,
        reason="served",
        prompt_tokens=7,
        completion_tokens=24,
    )
    values: dict[str, object] = {
        "route": "llm.chat",
        "kind": "chat",
        "requested_tier": "chat",
        "served_tier": "chat",
        "attempts": (attempt,),
        "total_prompt_tokens": 7,
        "total_completion_tokens": 24,
        "request_bytes": 89,
        "response_bytes": 5797,
        "latency_ms": 541.6,
        "request_id": "req-1",
        "replica_member_id": "member-b",
        "replica_selection": "identity_passed",
        "replica_scheduler": ReplicaDecision(
            selected_member_id="member-b",
            reason=ReplicaDecisionReason.SELECTED,
            eligible_member_ids=("member-a", "member-b"),
            scores=(score("member-b", 2, 150_000, 1), score("member-a", 2, 480_000, 0)),
        ),
        "recorded_at": AT.timestamp(),
        **changes,
    }
    entry = DecisionEntry(**values_of(DecisionRecord(**values)))  # type: ignore[arg-type]
    entry.save()
    return entry


REFUSED = {
    "served_tier": None,
    "attempts": (),
    "replica_member_id": None,
    "replica_selection": "not_admitted",
    "replica_scheduler": None,
    "request_id": "req-2",
}


def test_the_list_is_filtered_and_searched(control: Control) -> None:
    stored()
    stored(**REFUSED)
    stored(request_id="req-3", route="llm.solo", requested_tier="solo", replica_member_id=None)
    client = viewer()

    def ids(query: str) -> list[str]:
        found = client.get(f"{LIST}{query}").context["cl"].result_list
        return sorted(entry.request_id for entry in found)

    assert ids("") == ["req-1", "req-2", "req-3"]
    assert ids("?outcome__exact=refused") == ["req-2"]
    assert ids("?route=llm.solo") == ["req-3"]
    assert ids("?requested_tier=chat") == ["req-1", "req-2"]
    assert ids("?replica_member_id=member-b") == ["req-1"]
    assert ids("?reason=not_admitted") == ["req-2"]
    assert ids("?freshness__exact=fresh") == ["req-1"]
    assert ids("?q=req-2") == ["req-2"]
    assert ids("?q=req") == []
    assert ids("?recorded_at__year=2026&recorded_at__month=5&recorded_at__day=1") == [
        *("req-1", "req-2", "req-3"),
    ]
    assert "2026-05-01 12:30:45" in text_of(client.get(LIST))


def test_a_choice_is_explained_in_words_and_in_a_table(control: Control) -> None:
    entry = stored()

    page = text_of(viewer().get(f"{LIST}{entry.pk}/change/"))

    assert "member-b and member-a were equally loaded; member-b had the lower pressure:" in page
    assert "150,000 against 480,000 ppm." in page
    first, second = page.split("<tbody>")[1].split("</tbody>")[0].split("</tr>")[:2]
    for told in ("member-b", "2 of 8 places taken", "25.0 %", "150,000 ppm", "15.0 %", "fresh", "selected"):
        assert told in first
    for told in ("member-a", "2 of 8 places taken", "480,000 ppm", "48.0 %", "fresh"):
        assert told in second
    assert "selected" not in second
    assert "2026-05-01 12:30:45 UTC" in page


def test_a_refusal_says_what_its_record_holds_and_no_more(control: Control) -> None:
    entry = stored(**REFUSED)

    page = text_of(viewer().get(f"{LIST}{entry.pk}/change/"))

    assert "No member was chosen: the record does not say whether for readiness, quiesce or ceilings" in page
    assert "The record holds no ranking of members." in page


def test_what_is_not_there_is_not_found(control: Control) -> None:
    client = viewer()

    assert client.get(f"{LIST}999/change/").status_code == 404
    assert client.get(f"{LIST}x/change/").status_code == 404
    entry = stored()
    assert person("nora").get(f"{LIST}{entry.pk}/change/").status_code == 403


def test_nobody_adds_changes_or_deletes_a_decision(control: Control) -> None:
    entry = stored()
    client = admin()

    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}{entry.pk}/delete/").status_code == 403
    assert 'name="action"' not in text_of(client.get(LIST))


# Why is it refused? -------------------------------------------------------------------------------------


def test_an_alias_is_explained_step_by_step(control: Control) -> None:
    page = text_of(viewer().get("/explain/?model=LLM.Chat"))

    assert "A request for llm.chat is served now: 2 of 2 members can be chosen." in page
    assert '<th scope="row">member</th><td data-label="Scope">chat/member-a</td>' in page
    assert '<option value="llm.solo">' in page


def test_a_refusal_now_names_its_scope(control: Control) -> None:
    control.router.ledger.quiesce("chat", "upgrade")

    page = text_of(viewer().get("/explain/?model=llm.chat"))

    assert "A request for llm.chat is refused now by chat: quiesced, reason upgrade." in page
    assert '<use href="#shape-refuses"/></svg>refuses' in page


@pytest.mark.parametrize("alias", ["llm.nowhere", "<script>alert(1)</script>", "x" * 500])
def test_an_unknown_alias_is_told_and_escaped(control: Control, alias: str) -> None:
    page = text_of(viewer().get("/explain/", {"model": alias}))

    assert "No such model is configured." in page
    assert "<script>alert" not in page


def test_a_request_id_leads_to_its_decisions(control: Control) -> None:
    entry = stored()
    other = stored(**REFUSED)
    client = viewer()

    page = text_of(client.get("/explain/?request_id=req-1"))
    assert (
        f'<a href="{LIST}{entry.pk}/change/">Decision {entry.pk}</a>, 2026-05-01 12:30:45 UTC: It was served.'
        in (page)
    )
    page = text_of(client.get("/explain/?request_id=req-2"))
    assert f"Decision {other.pk}" in page

    for unknown in ("req-9", "no good", "<b>"):
        page = text_of(client.get("/explain/", {"request_id": unknown}))
        assert "There is no record of this request id." in page
