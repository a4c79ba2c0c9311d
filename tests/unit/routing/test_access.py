"""The key ring: verification, scopes, places, revocation; and which addresses need no authentication."""

import threading

import pytest

from routing.access import (
    ALL_SCOPES,
    ANONYMOUS,
    CrossSite,
    Key,
    KeyRing,
    Principal,
    Scope,
    digest,
    is_cross_site,
    is_loopback_bind,
    presented_secret,
)

pytestmark = pytest.mark.requirement("contract 2 authentication")

SECRET = "anvil_0123456789-abcdefghij-0123456789-abcdefghij"


def key(
    key_id: int | None = 1,
    secret: str = SECRET,
    *,
    name: str = "chat",
    scopes: frozenset[Scope] = frozenset({Scope.INFER}),
    max_concurrency: int | None = None,
    expires_at: float | None = None,
) -> Key:
    return Key(
        key_id=key_id,
        name=name,
        digest=digest(secret),
        scopes=scopes,
        max_concurrency=max_concurrency,
        expires_at=expires_at,
    )


class TestVerification:
    def test_the_right_key_is_its_principal(self) -> None:
        ring = KeyRing()
        ring.replace([key(max_concurrency=3)])
        assert ring.verify(SECRET) == Principal("chat", frozenset({Scope.INFER}), 1, 3)

    @pytest.mark.parametrize(
        "secret", [None, "", "wrong", SECRET[:-1], SECRET + " ", SECRET.upper(), "\udcff"]
    )
    def test_anything_else_is_nobody(self, secret: str | None) -> None:
        ring = KeyRing()
        ring.replace([key()])
        assert ring.verify(secret) is None

    def test_an_empty_ring_knows_nobody(self) -> None:
        ring = KeyRing()
        assert ring.is_empty
        assert ring.verify(SECRET) is None

    def test_with_authentication_off_everybody_is_anonymous(self) -> None:
        ring = KeyRing(enabled=False)
        assert ring.verify(None) is ANONYMOUS
        assert ring.verify("anything") is ANONYMOUS
        assert all(ANONYMOUS.may(scope) for scope in Scope)

    def test_it_ends_at_the_very_second_of_its_expiry(self) -> None:
        now = [100.0]
        ring = KeyRing(wall_clock=lambda: now[0])
        ring.replace([key(expires_at=200.0)])
        now[0] = 199.999
        assert ring.verify(SECRET) is not None
        now[0] = 200.0
        assert ring.verify(SECRET) is None

    def test_one_of_the_scopes_is_enough(self) -> None:
        principal = Principal("chat", frozenset({Scope.INFER, Scope.OBSERVE}))
        assert principal.may(Scope.INFER)
        assert principal.may(Scope.CONFIGURE, Scope.OBSERVE)
        assert not principal.may(Scope.OPERATE, Scope.CONFIGURE)
        assert not principal.may()


class TestChange:
    def test_what_is_not_in_the_new_ring_fails_at_once(self) -> None:
        ring = KeyRing()
        ring.replace([key(), key(2, "other", name="other")])
        ring.replace([key(2, "other", name="other")])
        assert ring.verify(SECRET) is None
        assert ring.verify("other") is not None

    def test_a_revoked_key_does_not_come_back_with_an_older_reading(self) -> None:
        """A reading of the database that began before the revoke must not bring the key back."""
        ring = KeyRing()
        reading = [key()]
        ring.replace(reading)
        ring.revoke(1)
        assert ring.verify(SECRET) is None
        ring.replace(reading)
        assert ring.verify(SECRET) is None

    def test_revoking_a_key_that_is_not_there_changes_nothing(self) -> None:
        ring = KeyRing()
        ring.revoke(1)
        ring.replace([key()])
        assert ring.verify(SECRET) is not None

    def test_one_more_key(self) -> None:
        ring = KeyRing()
        ring.replace([key()])
        ring.add(key(2, "other", name="other"))
        assert ring.verify(SECRET) is not None
        assert ring.verify("other") is not None

    def test_the_bootstrap_token_has_every_scope_and_comes_with_the_configuration(self) -> None:
        ring = KeyRing()
        ring.set_bootstrap("first-token")
        ring.replace([key()])
        assert ring.verify("first-token") == Principal("bootstrap", ALL_SCOPES)
        ring.set_bootstrap("second-token")
        assert ring.verify("first-token") is None
        assert ring.verify("second-token") is not None
        assert ring.verify(SECRET) is not None
        ring.set_bootstrap(None)
        assert ring.verify("second-token") is None
        assert ring.verify(SECRET) is not None

    @pytest.mark.parametrize("unset", [None, ""])
    def test_an_unset_token_is_no_key(self, unset: str | None) -> None:
        ring = KeyRing()
        ring.set_bootstrap(unset)
        assert ring.is_empty
        assert ring.verify("") is None


class TestPlaces:
    def test_a_key_has_as_many_places_as_it_may(self) -> None:
        ring = KeyRing()
        principal = Principal("chat", frozenset(), 1, 2)
        assert [ring.enter(principal) for _ in range(3)] == [True, True, False]
        assert ring.in_flight() == {"chat": 2}
        ring.leave(principal)
        assert ring.enter(principal)
        ring.leave(principal)
        ring.leave(principal)
        assert ring.in_flight() == {}

    def test_others_do_not_matter_and_without_a_limit_there_is_none(self) -> None:
        ring = KeyRing()
        limited, free = Principal("a", frozenset(), 1, 1), Principal("b", frozenset())
        assert ring.enter(limited)
        assert all(ring.enter(free) for _ in range(50))
        assert ring.in_flight() == {"a": 1, "b": 50}

    def test_no_two_threads_get_the_last_place(self) -> None:
        ring = KeyRing()
        principal = Principal("chat", frozenset(), 1, 5)
        barrier = threading.Barrier(8)
        won: list[bool] = []

        def enter() -> None:
            barrier.wait(10)
            won.extend(ring.enter(principal) for _ in range(5))

        threads = [threading.Thread(target=enter) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert (won.count(True), len(won)) == (5, 40)


def test_last_use_is_handed_over_once() -> None:
    now = [100.0]
    ring = KeyRing(wall_clock=lambda: now[0])
    ring.replace([key(), key(2, "other", name="other")])
    ring.set_bootstrap("token")
    ring.verify(SECRET)
    now[0] = 101.0
    ring.verify(SECRET)
    ring.verify("token")
    ring.verify("wrong")
    assert ring.drain_last_used() == {1: 101.0}
    assert ring.drain_last_used() == {}


@pytest.mark.parametrize(
    ("authorization", "api_key", "secret"),
    [
        (None, None, None),
        ("Bearer abc", None, "abc"),
        ("bearer  abc ", None, "abc"),
        ("Bearer ", "abc", None),
        ("Basic abc", "abc", None),
        ("abc", None, None),
        (None, "abc", "abc"),
        (None, " abc ", "abc"),
        (None, "", None),
        ("Bearer abc", "xyz", "abc"),
    ],
)
def test_what_a_request_presents(authorization: str | None, api_key: str | None, secret: str | None) -> None:
    assert presented_secret(authorization, api_key) == secret


def test_no_representation_holds_a_secret_or_its_digest() -> None:
    ring = KeyRing()
    ring.replace([key()])
    text = f"{key()!r} {ring.verify(SECRET)!r} {ring!r}"
    assert SECRET not in text
    assert digest(SECRET).hex() not in text
    assert repr(digest(SECRET)) not in text


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:8000", True),
        ("127.9.9.9:1", True),
        ("localhost:8000", True),
        ("[::1]:8000", True),
        ("::1:8000", True),
        ("0.0.0.0:8000", False),
        ("[::]:8000", False),
        (":8000", False),
        ("", False),
        ("8000", False),
        ("10.0.0.1:8000", False),
        ("localhost.example:8000", False),
        ("127.0.0.1.example:8000", False),
        ("unix:/run/anvil.sock", False),
        ("fd://3", False),
        ("127.0.0.1:port", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, loopback: bool) -> None:
    assert is_loopback_bind(address) is loopback


class TestPagesOfOtherSites:
    @pytest.mark.parametrize(
        ("origin", "fetch_site"),
        [
            (None, None),
            (None, "none"),
            (None, "same-origin"),
            ("http://127.0.0.1:8000", "same-origin"),
            ("http://localhost:3000", "same-site"),
            ("HTTP://LocalHost", None),
            ("http://[::1]:8000", None),
            ("https://anvil.example", None),
            ("https://a.below.example:8443", None),
        ],
    )
    def test_programs_and_our_own_pages_may_ask(self, origin: str | None, fetch_site: str | None) -> None:
        assert not is_cross_site(
            origin, fetch_site, ["127.0.0.1", "localhost", "[::1]", "anvil.example", ".below.example"]
        )

    @pytest.mark.parametrize(
        ("origin", "fetch_site"),
        [
            (None, "cross-site"),
            ("http://127.0.0.1:8000", "Cross-Site"),
            ("https://evil.example", None),
            ("https://evil.example", "same-origin"),
            ("http://127.0.0.1.evil.example", None),
            ("http://localhost@evil.example", None),
            ("http://evil.example#localhost", None),
            ("null", None),
            ("", None),
            ("file://", None),
            ("moz-extension://localhost", None),
        ],
    )
    def test_others_may_not(self, origin: str | None, fetch_site: str | None) -> None:
        """A name that somebody points at this machine is not ours, whatever the browser calls the same."""
        assert is_cross_site(origin, fetch_site, ["127.0.0.1", "localhost", "[::1]"])

    def test_they_are_refused_where_there_is_no_key_to_ask_for(self) -> None:
        foreign = {"HTTP_ORIGIN": "https://evil.example"}
        with pytest.raises(CrossSite):
            KeyRing(enabled=False).identify(foreign)
        ring = KeyRing()
        ring.replace([key()])
        assert ring.identify(foreign) is None
        assert ring.identify({**foreign, "HTTP_X_API_KEY": SECRET}) == Principal(
            "chat", frozenset({Scope.INFER}), 1
        )
        assert KeyRing(enabled=False).identify({"HTTP_ORIGIN": "http://localhost:8000"}) == ANONYMOUS
