"""``/v1/admin/promotions``: who may ask, what an order looks like, what is answered."""

from typing import Any

import pytest

from routing import keys
from routing.audit import Through
from routing.models import Promotion
from tests.unit.routing.availability_support import models
from tests.web.control_support import PATIENCE, Control, Reply, in_thread
from tests.web.publishing_support import eventually
from tests.web.test_promotion import AT_GAMMA, Site

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.requirement("contract 2", "contract 5 promote"),
]

PATH = "/v1/admin/promotions"
ORDER = {"tier_id": "solo", "resource_id": "gamma"}


@pytest.fixture
def site(control: Control) -> Site:
    return Site(control)


def post(site: Site, **body: object) -> Reply:
    return site.control.request("POST", PATH, body)


def test_an_order_is_a_preview_unless_it_is_confirmed(site: Site) -> None:
    before = site.facts()
    expected = {
        "applied": False,
        "dry_run": True,
        "action": "promote",
        "tier_id": "solo",
        "resource_id": "gamma",
        "changes": [
            {
                "tier_id": "solo",
                "member_id": None,
                "change": "changed",
                "keys": ["base_url"],
                "needs_drain": True,
                "starts_cold": True,
            }
        ],
        "settings": [],
        "scopes": [{"tier_id": "solo", "member_id": None}],
    }
    for more in ({}, {"dry_run": False}, {"confirm": False}, {"confirm": True, "dry_run": True}):
        reply = post(site, **ORDER, **more)
        assert (reply.status, reply.json) == (200, expected)
        assert reply.headers["cache-control"] == "no-store"
    assert site.facts() == before


def test_a_confirmed_order_is_carried_out_and_listed(site: Site) -> None:
    reply = post(site, **ORDER, drain_timeout=2, confirm=True, dry_run=False)
    assert reply.status == 200
    assert (reply.json["applied"], reply.json["action"]) == (True, "promote")
    shown = reply.json["promotion"]
    row = Promotion.objects.get()
    assert {key: shown[key] for key in shown if key not in ("started_at", "ended_at", "steps")} == {
        "object": "promotion",
        "id": row.pk,
        "tier_id": "solo",
        "resource_id": "gamma",
        "state": "promoted",
        "code": None,
        "promoted_snapshot_id": row.promoted_id,
        "rollback_snapshot_id": site.first.pk,
        "serving": None,
        "next_step": None,
        "actor": "bootstrap",
        "through": "rest",
        "drain_timeout": 2.0,
    }
    assert [set(step) for step in shown["steps"]] == [{"at", "step", "outcome"}] * 7
    assert site.control.request("GET", PATH).json == {"object": "list", "data": [shown]}
    assert "gamma/v1" not in reply.body.decode()


def test_a_refusal_shows_the_promotion_beside_the_error(site: Site) -> None:
    site.control.probes.answers["gamma"] = models("another-model")
    reply = post(site, **ORDER, confirm=True)
    assert (reply.status, reply.json["error"]["code"]) == (409, "verification_failed")
    assert reply.json["promotion"]["state"] == "rolled_back"
    assert "another-model" not in reply.body.decode()


@pytest.mark.parametrize(
    ("action", "state", "place"),
    [("resume", "promoted", "http://gamma/v1"), ("rollback", "rolled_back", "http://solo/v1")],
)
def test_a_stopped_promotion_is_shown_previewed_and_given_an_outcome(
    site: Site, action: str, state: str, place: str
) -> None:
    row = site.stopped_at("promoted", promoted=AT_GAMMA)
    listed = site.control.request("GET", PATH).json["data"][0]
    assert (listed["id"], listed["state"], listed["serving"]) == (row.pk, "stopped", "promoted")
    assert "anvil promote --resume" in listed["next_step"]
    before = site.facts()
    preview = post(site, action=action)
    assert preview.json == {"applied": False, "dry_run": True, "action": action, "promotion": listed}
    assert site.facts() == before
    done = post(site, action=action, confirm=True, dry_run=False, drain_timeout=PATIENCE)
    assert (done.status, done.json["promotion"]["state"]) == (200, state)
    assert site.place == place


def test_there_may_be_nothing_to_resume(site: Site) -> None:
    for more in ({}, {"confirm": True, "dry_run": False}):
        reply = post(site, action="resume", **more)
        assert (reply.status, reply.json["error"]["code"]) == (409, "no_stopped_promotion")


@pytest.mark.requirement("Q-T012.1")
@pytest.mark.parametrize(
    ("tier", "code"),
    [
        ("chat", "replica_lifecycle_unsupported"),
        ("absent", "replica_lifecycle_configuration_unavailable"),
    ],
)
def test_replica_tiers_and_absent_ones_are_refused_in_the_fixed_words(
    site: Site, tier: str, code: str
) -> None:
    before = site.facts()
    for more in ({}, {"confirm": True, "dry_run": False}):
        reply = post(site, tier_id=tier, resource_id="gamma", **more)
        assert (reply.status, reply.json["error"]["code"], reply.json["error"]["message"]) == (
            409,
            code,
            code,
        )
    assert site.facts() == before


MALFORMED: list[tuple[Any, str | None]] = [
    ({}, "tier_id"),
    ({"tier_id": "solo"}, "resource_id"),
    ({"resource_id": "gamma"}, "tier_id"),
    ({"tier_id": None, "resource_id": "gamma"}, "tier_id"),
    ({"tier_id": "so lo", "resource_id": "gamma"}, "tier_id"),
    ({"tier_id": "solo", "resource_id": "../gamma"}, "resource_id"),
    ({"tier_id": "solo", "resource_id": ["gamma"]}, "resource_id"),
    ({**ORDER, "action": "go"}, "action"),
    ({**ORDER, "action": None}, "action"),
    ({"action": "resume", "tier_id": "solo"}, "tier_id"),
    ({"action": "rollback", "resource_id": None}, "resource_id"),
    ({**ORDER, "confirm": 1}, "confirm"),
    ({**ORDER, "dry_run": "no"}, "dry_run"),
    ({**ORDER, "drain_timeout": 0}, "drain_timeout"),
    ({**ORDER, "drain_timeout": 3601}, "drain_timeout"),
    ({**ORDER, "drain_timeout": None}, "drain_timeout"),
    ({**ORDER, "drain_timeout": True}, "drain_timeout"),
    ({**ORDER, "member_id": "member-a"}, None),
    (b"[]", None),
    (b'{"tier_id":"solo","tier_id":"solo","resource_id":"gamma"}', None),
    (b'{"tier_id":"solo","resource_id":"gamma","drain_timeout":NaN}', None),
]


@pytest.mark.parametrize(("body", "field"), MALFORMED)
def test_malformed_orders_are_refused(site: Site, body: object, field: str | None) -> None:
    before = site.facts()
    reply = site.control.request("POST", PATH, body)
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")
    assert reply.json["error"]["param"] == field
    assert site.facts() == before


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=1&limit=2", "model=x"])
def test_malformed_queries_are_refused(site: Site, query: str) -> None:
    assert site.control.request("GET", f"{PATH}?{query}").status == 400
    assert site.control.request("POST", f"{PATH}?limit=1", ORDER).status == 400


def test_the_newest_are_listed_first_and_so_many_as_wanted(site: Site) -> None:
    for resource in ("gamma", "delta", "solo"):
        site.promote(resource=resource)
    listed = site.control.request("GET", f"{PATH}?limit=2").json["data"]
    assert [row["resource_id"] for row in listed] == ["solo", "delta"]


@pytest.mark.parametrize("scope", ["infer", "observe", "operate"])
def test_only_who_may_configure_gets_in(site: Site, scope: str) -> None:
    _, secret = keys.create(
        site.router,
        name=scope,
        scopes=[scope],
        max_concurrency=None,
        expires_at=None,
        actor="ada",
        through=Through.REST,
    )
    before = site.facts()
    for method, body in (("GET", None), ("POST", {**ORDER, "confirm": True})):
        assert site.control.request(method, PATH, body, token=secret).status == 403
    assert site.facts() == before


def test_a_promotion_that_waits_leaves_its_place_to_others(site: Site) -> None:
    site.control.run_request("solo")
    with in_thread(
        lambda: post(site, **ORDER, confirm=True, dry_run=False, drain_timeout=PATIENCE)
    ) as result:
        eventually(lambda: site.router.ledger.snapshot("solo").draining)
        places = [site.router.operations.at_work.acquire(blocking=False) for _ in range(4)]
        for _ in places:
            site.router.operations.at_work.release()
        assert places == [True] * 4
        site.control.end_requests()
        assert result().status == 200
