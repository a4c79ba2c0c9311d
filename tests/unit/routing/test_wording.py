"""Codes, durations and places of the console, without a database."""

import datetime
from dataclasses import dataclass
from typing import get_args

import pytest

from routing import wording
from routing.activation import StepName
from routing.console.history import sparkline
from routing.probes import FAULT_NAMES, is_readiness_reason
from routing.records import REASONS

NOW = datetime.datetime(2026, 5, 1, 12, 0, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("identity_passed", "it is healthy and serves the expected model"),
        ("identity_mismatch", "it serves another model than the expected one"),
        ("health_http_503", "its health check was answered 503"),
        ("identity_http_404", "the question for its models was answered 404"),
        ("health_transport_refused", "its health check found the connection refused"),
        ("probe_pending", "no probe of it has been completed yet"),
    ],
)
def test_readiness_reasons_in_words(reason: str, told: str) -> None:
    assert is_readiness_reason(reason)
    assert wording.readiness(reason) == told


def test_every_reason_of_a_record_has_a_sentence() -> None:
    for reason in {*frozenset().union(*REASONS.values()), "not_admitted", "request_rejected"}:
        told = wording.attempt(reason)
        assert " " in told
        assert "_" not in told


@pytest.mark.parametrize("name", get_args(StepName))
def test_every_step_of_an_activation_has_words(name: str) -> None:
    assert "_" not in wording.step(name, "chat/member-a")
    assert wording.step(name)[0].isupper()


def test_steps_and_their_ends_in_words() -> None:
    assert wording.step("verify", "chat") == "Verify chat"
    assert wording.step("restore") == "Go back to the previous snapshot"
    assert wording.step("recover", "solo") == "Take back by itself"
    assert wording.outcome("timed_out") == "requests were still running at the end of the time"
    assert wording.outcome("identity_mismatch") == "it serves another model than the expected one"
    assert wording.outcome("quiesced") == "quiesced"
    assert wording.outcome("some_new_code") == "some new code"


@pytest.mark.parametrize("name", FAULT_NAMES)
def test_every_transport_fault_has_words(name: str) -> None:
    assert wording.readiness(f"health_transport_{name}").startswith("its health check ")
    assert "_" not in wording.readiness(f"identity_transport_{name}")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (86_399, "23 h ago"),
        (200_000, "2 d ago"),
        (-5, "0 s ago"),
    ],
)
def test_how_long_ago(seconds: float, told: str) -> None:
    assert wording.ago(NOW - datetime.timedelta(seconds=seconds), NOW) == told


def test_counts_and_lists() -> None:
    assert wording.count(1, "request is", "requests are") == "one request is"
    assert wording.count(0, "place") == "no places"
    assert wording.count(12_000, "place") == "12,000 places"
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b"]) == "a and b"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert wording.sentence("it works") == "It works."


@dataclass(frozen=True)
class Second:
    at: float
    active: int


def test_a_sparkline_keeps_the_most_of_each_ten_seconds_and_its_gaps() -> None:
    samples = [Second(at=1000.0 - age, active=active) for age, active in ((65, 1), (15, 3), (12, 4), (5, 2))]

    drawn = sparkline(samples, now=1000.0, ceiling=8)

    assert drawn is not None
    assert (drawn.latest, drawn.peak) == (2, 4)
    # 65 s ago on its own, then 15 s and 12 s as one point of 4, then 2: heights of 24 with a border of 1.
    assert drawn.lines == ("164.9,20.2 167.9,20.2", "175.0,12.0 178.0,12.0 180.0,17.5")


def test_a_sparkline_forgets_what_is_older_than_15_minutes() -> None:
    assert sparkline([Second(at=99.0, active=7)], now=1000.0, ceiling=None) is None
    assert sparkline([], now=1000.0, ceiling=8) is None


def test_without_a_ceiling_the_peak_is_the_full_height() -> None:
    drawn = sparkline([Second(at=995.0, active=5)], now=1000.0, ceiling=None)

    assert drawn is not None
    assert drawn.lines == ("177.0,1.0 180.0,1.0",)
