"""Logging in, slowed down: what counts, what it costs, and what it leaves behind."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from anvil_site import login
from anvil_site.login import PER_ADDRESS, PER_NAME, PER_NAME_AND_ADDRESS, WINDOW, Throttle
from routing import audit

PASSWORD = "a-password-of-tests"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Throttle:
    made = Throttle(monotonic=clock)
    monkeypatch.setattr(login, "throttle", made)
    return made


def attempt(password: str = "wrong", *, name: str = "ada", address: str = "192.0.2.1") -> int:
    fields = {"username": name, "password": password}
    return Client(REMOTE_ADDR=address).post("/admin/login/", fields).status_code


@pytest.mark.django_db
def test_a_guesser_is_stopped_and_nobody_else(
    throttle: Throttle, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    User.objects.create_superuser("ada", password=PASSWORD)
    for _ in range(PER_NAME_AND_ADDRESS):
        assert attempt() == 200
    hashed: list[object] = []
    monkeypatch.setattr("django.contrib.auth.forms.authenticate", lambda *a, **k: hashed.append(k))

    assert attempt(PASSWORD) == 429
    assert hashed == [], "a password was hashed for an attempt that is over its limit"
    monkeypatch.undo()
    monkeypatch.setattr(login, "throttle", throttle)
    assert attempt(PASSWORD, address="192.0.2.2") == 302

    clock.now += WINDOW
    assert attempt(PASSWORD) == 302


@pytest.mark.django_db
def test_a_success_forgives_slips(throttle: Throttle) -> None:
    User.objects.create_superuser("ada", password=PASSWORD)
    for _ in range(3):
        for _ in range(PER_NAME_AND_ADDRESS - 1):
            throttle.failed("Ada", "192.0.2.1")
        assert attempt(PASSWORD) == 302


@pytest.mark.django_db
def test_a_failure_leaves_a_line_and_a_count_but_no_name(
    throttle: Throttle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    before = audit.refusals().get(("login", "invalid_credentials"), 0)

    assert attempt(name="my-password-by-mistake") == 200

    assert audit.refusals()["login", "invalid_credentials"] == before + 1
    assert "refused action=login code=invalid_credentials actor=- through=console" in caplog.text
    assert "my-password-by-mistake" not in caplog.text


@pytest.mark.django_db
def test_an_attempt_that_finds_no_turn_at_hashing_is_told_to_wait(
    throttle: Throttle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "HASHING_PATIENCE", 0.0)
    taken = [login._hashing.acquire(blocking=False) for _ in range(login.HASHING_AT_ONCE)]
    assert all(taken)
    try:
        assert attempt(PASSWORD) == 429
    finally:
        for _ in taken:
            login._hashing.release()


def test_an_address_is_stopped_whatever_name_it_tries(throttle: Throttle) -> None:
    for number in range(PER_ADDRESS):
        assert not throttle.is_over("ada", "192.0.2.1")
        throttle.failed(f"name-{number}", "192.0.2.1")
    assert throttle.is_over("ada", "192.0.2.1")
    assert not throttle.is_over("ada", "192.0.2.2")


def test_a_proxy_on_this_machine_is_not_one_guesser(throttle: Throttle) -> None:
    for number in range(PER_ADDRESS + 1):
        throttle.failed(f"name-{number}", "127.0.0.1")
    assert not throttle.is_over("ada", "127.0.0.1")


def test_a_name_is_stopped_from_wherever_it_is_tried(throttle: Throttle) -> None:
    for number in range(PER_NAME):
        throttle.failed("ADA", f"192.0.2.{number}")
    assert throttle.is_over("ada", "198.51.100.1")
    assert not throttle.is_over("bob", "198.51.100.1")


def test_the_counts_are_bounded(throttle: Throttle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MAX_COUNTS", 6)
    for number in range(50):
        throttle.failed(f"name-{number}", "192.0.2.1")
    assert len(throttle._counts) == 6
