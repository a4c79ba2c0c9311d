"""The last fifteen minutes, second by second, under a clock set by hand."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from admission.core import MemberScope, TierAdmission, TierScope
from admission.replica_scheduler import PressureFreshness, PressureSignalState, ReplicaPressure
from routing.passage import Observation
from routing.router import Router
from telemetry.evidence import scope_readings
from telemetry.history import History, Minute, Sample, ScopeReading

OBSERVATION = Observation(
    route="llm.chat",
    tier="chat",
    member="member-a",
    outcome="served",
    key_name="ada",
    overhead_seconds=0.001,
    first_token_seconds=0.25,
    seconds=2.0,
    prompt_tokens=1,
    completion_tokens=2,
)
FRESH = ReplicaPressure(PressureFreshness.FRESH, 400_000, PressureSignalState.VALID)
TIER = ScopeReading(tier_id="chat", member_id=None, active=3, ceiling=6)
MEMBER = ScopeReading(tier_id="chat", member_id="member-a", active=2, ceiling=3, pressure=FRESH)
PEER = ScopeReading(tier_id="chat", member_id="member-b", active=1, ceiling=3)

NOTHING = Minute(
    requests_per_second=0.0,
    refused_per_second=0.0,
    error_share=None,
    first_token_p50=None,
    first_token_p95=None,
    selected=0,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_767_225_600.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> History:
    return History(monotonic=clock)


def test_a_second_of_a_tier_and_of_its_members(history: History, clock: Clock) -> None:
    history.observe(OBSERVATION)
    history.observe(replace(OBSERVATION, first_token_seconds=0.5))
    history.observe(replace(OBSERVATION, member="member-b", outcome="error", first_token_seconds=None))
    history.observe(replace(OBSERVATION, member=None, outcome="skipped", first_token_seconds=None))
    history.run_once([TIER, MEMBER, PEER])
    assert history.samples("chat") == (
        Sample(
            at=clock.now,
            active=3,
            ceiling=6,
            pressure_ppm=None,
            freshness=None,
            requests=3,
            errors=1,
            refused=1,
            first_token_p50=0.25,
            first_token_p95=0.5,
        ),
    )
    (member,) = history.samples("chat", "member-a")
    assert member == Sample(
        at=clock.now,
        active=2,
        ceiling=3,
        pressure_ppm=400_000,
        freshness=PressureFreshness.FRESH,
        requests=2,
        errors=0,
        refused=0,
        first_token_p50=0.25,
        first_token_p95=0.5,
    )
    assert member.selected == 2
    (peer,) = history.samples("chat", "member-b")
    assert (peer.requests, peer.errors, peer.selected, peer.first_token_p50) == (1, 1, 1, None)


def test_the_next_second_starts_empty(history: History) -> None:
    history.observe(OBSERVATION)
    history.run_once([TIER])
    history.run_once([TIER])
    assert [(sample.requests, sample.active) for sample in history.samples("chat")] == [(1, 3), (0, 3)]


def test_fifteen_minutes_are_kept_and_no_more(history: History, clock: Clock) -> None:
    for _ in range(1_000):
        clock.now += 1.0
        history.run_once([TIER])
    samples = history.samples("chat")
    assert len(samples) == 900
    assert (samples[0].at, samples[-1].at) == (clock.now - 899, clock.now)


def test_the_minute_covers_sixty_seconds(history: History, clock: Clock) -> None:
    """Two requests a second for two minutes, every tenth an error; only the newest sixty seconds count."""
    for second in range(120):
        for number in range(2):
            slow = second >= 60 and number
            failed = (2 * second + number) % 10 == 0
            history.observe(
                replace(
                    OBSERVATION,
                    outcome="error" if failed else "served",
                    first_token_seconds=None if failed else (4.0 if slow else 0.25),
                )
            )
        history.run_once([TIER, MEMBER])
        clock.now += 1.0
    clock.now -= 1.0
    minute = history.minute("chat", "member-a")
    assert minute == Minute(
        requests_per_second=2.0,
        refused_per_second=0.0,
        error_share=0.1,
        first_token_p50=4.0,
        first_token_p95=4.0,
        selected=120,
    )
    assert history.minute("chat") == minute
    assert history.selected_total("chat", "member-a") == 240


def test_a_gap_does_not_raise_the_rate(history: History, clock: Clock) -> None:
    """Nobody sampled for half a minute: what was counted then is spread over it."""
    history.run_once([TIER])
    clock.now += 30.0
    for _ in range(62):
        history.observe(OBSERVATION)
    history.run_once([TIER])
    assert [sample.at for sample in history.samples("chat")] == [clock.now - 30.0, clock.now]
    assert history.minute("chat").requests_per_second == 2.0


def test_refusals_are_no_requests_and_no_selection(history: History) -> None:
    for _ in range(3):
        history.observe(replace(OBSERVATION, member=None, outcome="skipped", first_token_seconds=None))
    history.run_once([TIER])
    assert history.minute("chat") == replace(NOTHING, refused_per_second=3.0)


def test_a_scope_that_is_no_longer_configured_is_forgotten(history: History) -> None:
    history.observe(OBSERVATION)
    history.run_once([TIER, MEMBER])
    history.run_once([TIER])
    assert history.samples("chat", "member-a") == ()
    assert history.selected_total("chat", "member-a") == 0
    assert history.minute("chat", "member-a") == NOTHING


@pytest.mark.requirement("C-R014")
def test_what_is_observed_of_unknown_scopes_does_not_pile_up(history: History) -> None:
    for number in range(1_000):
        history.observe(replace(OBSERVATION, tier=f"gone-{number}", member=None))
        history.run_once([TIER])
    assert list(history._tracks) == [("chat", None)]


def test_unknown_scopes_have_nothing(history: History) -> None:
    assert history.samples("made-up") == ()
    assert history.minute("made-up", "member-a") == NOTHING


def test_a_flood_keeps_the_newest_times(history: History) -> None:
    for number in range(10_000):
        history.observe(replace(OBSERVATION, first_token_seconds=0.0 if number < 5_000 else 1.0))
    history.run_once([TIER, MEMBER])
    assert history.minute("chat").first_token_p50 == 1.0
    assert history.samples("chat")[0].requests == 10_000


class _Owners:
    """The parts of a router that are looked at."""

    def __init__(self, ledger: TierAdmission, active: object) -> None:
        self.ledger = ledger
        self.active = active
        self.pressure = self

    def peek(self, tier_id: str) -> dict[str, ReplicaPressure]:
        if tier_id != "chat":
            raise ValueError("unknown replica pressure tier")
        return {"member-a": FRESH}


@pytest.fixture
def owners() -> Iterator[_Owners]:
    members = (MemberScope("member-a", 3), MemberScope("member-b", 3))
    ledger = TierAdmission(
        [
            TierScope("chat", strategy="capacity", members=members),
            TierScope("rotating", strategy="round_robin", members=members),
            TierScope("solo", 4),
        ]
    )
    lease = ledger.acquire("solo")
    assert lease is not None
    yield _Owners(ledger, object())
    lease.release()


def test_readings_are_of_every_scope_and_only_look(owners: Router) -> None:
    assert list(scope_readings(owners)) == [
        ScopeReading(tier_id="chat", member_id=None, active=0, ceiling=6),
        ScopeReading(tier_id="chat", member_id="member-a", active=0, ceiling=3, pressure=FRESH),
        ScopeReading(tier_id="chat", member_id="member-b", active=0, ceiling=3),
        ScopeReading(tier_id="rotating", member_id=None, active=0, ceiling=None),
        ScopeReading(tier_id="rotating", member_id="member-a", active=0, ceiling=3),
        ScopeReading(tier_id="rotating", member_id="member-b", active=0, ceiling=3),
        ScopeReading(tier_id="solo", member_id=None, active=1, ceiling=4),
    ]


def test_without_a_configuration_there_is_nothing_to_read(owners: Router) -> None:
    owners.active = None
    assert list(scope_readings(owners)) == []
