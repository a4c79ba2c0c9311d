"""Promotion through a real server: killed at every step of its journal, and beside streams of other tiers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import (
    Answer,
    Documents,
    Ran,
    Router,
    TierDocument,
    admission_counts,
    anvil,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.live.test_activation import Callers, Connect, MakeEngine, MakeRouter, Streams, chats

pytestmark = pytest.mark.requirement("contract 5 promote")

PROMOTIONS = "/v1/admin/promotions"

THERE = [
    "promote begun",
    "validate passed",
    "quiesce quiesced",
    "drain drained",
    "activate activated",
    "verify identity_passed",
    "readmit readmitted",
]
"""The whole journal of a promotion that goes well."""

POINTS = [
    "before:begun",
    "after:begun",
    "before:validate",
    "after:validate",
    "before:quiesce",
    "after:quiesce",
    "before:drain",
    "after:drain",
    "before:pointer",
    "after:pointer",
    "before:activate",
    "after:activate",
    "before:verify",
    "after:verify",
    "before:readmit",
    "after:readmit",
    "before:outcome",
    "after:outcome",
]
"""Where it is killed, in the order in which it comes there."""


class Fleet:
    """A direct tier with two places to be at, and a replica tier that is none of its business."""

    def __init__(self, make_engine: MakeEngine, make_router: MakeRouter) -> None:
        self.places = {"llm-a": make_engine("llm-a"), "llm-b": make_engine("llm-b")}
        self.peers = [make_engine(f"peer-{name}", token=0.1, tokens=100, slots=64) for name in "ab"]
        self.router = make_router(self._documents(), config="python:tests.live.killing").start()

    def _documents(self) -> Documents:
        tiers: list[TierDocument] = [
            direct_tier(self.places["llm-a"], tier_id="solo", alias="live.solo"),
            replica_tier(self.peers, tier_id="chat", alias="live.chat", ceilings=48),
        ]
        made = documents(*tiers)
        resources = "".join(
            f'\n[[resources]]\nid = "{name}"\nhost = "live-host"\nrole = "llm"\nendpoint = "{engine.url}"\n'
            for name, engine in self.places.items()
        )
        return Documents(config=made.config, topology=made.topology + resources.encode())

    @property
    def place(self) -> str:
        """Where the tier is served, by who answers a request."""
        before = {name: chats(engine) for name, engine in self.places.items()}
        answer = self.router.chat("live.solo")
        assert answer.status == 200, answer.body
        (found,) = [name for name, engine in self.places.items() if chats(engine) > before[name]]
        return found

    def order(self, **order: object) -> Answer:
        return self.router.request(
            "POST", PROMOTIONS, body={"confirm": True, "dry_run": False, **order}, timeout=60.0
        )

    def promote(self, resource: str, **more: object) -> Answer:
        return self.order(tier_id="solo", resource_id=resource, drain_timeout=20, **more)

    def promotions(self) -> list[dict[str, Any]]:
        answer = self.router.request("GET", f"{PROMOTIONS}?limit=100")
        assert answer.status == 200, answer.body
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows

    def killed_at(self, point: str, order: Callable[[], Answer]) -> None:
        """Have the router killed at this point of what ``order`` asks for, and start it again."""
        kill = self.router.directory / "kill"
        kill.write_text(point)
        with pytest.raises(OSError):
            order()
        assert not kill.exists()
        assert self.router.await_exit() == -9
        self.router.start()

    def is_open(self) -> bool:
        tiers = self.router.request("GET", "/v1/admin/transition").json()["tiers"]
        return {tier["state"] for tier in tiers} == {"admitting"}


@pytest.fixture
def fleet(make_engine: MakeEngine, make_router: MakeRouter) -> Fleet:
    return Fleet(make_engine, make_router)


def words(promotion: dict[str, Any]) -> list[str]:
    return [f"{step['step']} {step['outcome']}" for step in promotion["steps"]]


def written_at(point: str) -> list[str]:
    """What the journal must hold of a promotion that was killed there."""
    when, _, step = point.partition(":")
    if step == "begun":
        return THERE[:1]
    if step == "pointer":
        return THERE[:4]
    if step == "outcome":
        return THERE
    names = [entry.partition(" ")[0] for entry in THERE]
    return THERE[: names.index(step) + (when == "after")]


@pytest.mark.parametrize("action", ["resume", "rollback"])
def test_killed_at_every_step_it_ends_in_one_of_the_two_configurations_serving(
    fleet: Fleet, action: str
) -> None:
    """A power cut at each point; then the record is true, both tiers serve, and it is given an outcome."""
    for point in POINTS:
        old = fleet.place
        new = "llm-b" if old == "llm-a" else "llm-a"
        known = len(fleet.promotions())
        fleet.killed_at(point, lambda new=new: fleet.promote(new))  # type: ignore[misc]
        assert fleet.is_open(), point
        assert fleet.router.chat("live.chat", max_tokens=1).status == 200
        rows = fleet.promotions()
        if point == "before:begun":
            assert (len(rows), fleet.place) == (known, old)
            continue
        assert len(rows) == known + 1, point
        has_moved = POINTS.index(point) >= POINTS.index("before:pointer")
        assert fleet.place == (new if has_moved else old), point
        assert (rows[0]["tier_id"], rows[0]["resource_id"]) == ("solo", new)
        assert words(rows[0]) == written_at(point), point
        if point == "after:outcome":
            assert rows[0]["state"] == "promoted"
            assert fleet.order(action=action).json()["error"]["code"] == "no_stopped_promotion"
            continue
        assert rows[0]["state"] == "stopped", point
        assert rows[0]["serving"] == ("promoted" if has_moved else "rollback"), point
        done = fleet.order(action=action)
        assert done.status == 200, (point, done.body)
        ended = {"resume": ("promoted", new), "rollback": ("rolled_back", old)}[action]
        assert (done.json()["promotion"]["state"], fleet.place) == ended, point
        assert fleet.promotions()[0] == done.json()["promotion"]
        assert fleet.is_open(), point


@pytest.mark.parametrize("point", ["after:restore", "before:reopen", "before:outcome"])
def test_killed_on_its_own_way_back_it_is_at_its_old_place(fleet: Fleet, point: str) -> None:
    fleet.places["llm-b"].fault("wrong_model")
    fleet.killed_at(point, lambda: fleet.promote("llm-b"))
    assert (fleet.place, fleet.is_open()) == ("llm-a", True)
    stopped = fleet.promotions()[0]
    assert (stopped["state"], stopped["serving"]) == ("stopped", "rollback")
    assert "verify identity_mismatch" in words(stopped)
    refused = fleet.order(action="resume")
    assert (refused.status, refused.json()["error"]["code"]) == (409, "verification_failed")
    assert (fleet.promotions()[0]["state"], fleet.place) == ("rolled_back", "llm-a")


def test_killed_between_the_failed_verification_and_the_way_back_it_serves_nothing_wrong(
    fleet: Fleet,
) -> None:
    """The pointer names the place with another identity: readiness keeps requests away, until it is left."""
    fleet.places["llm-b"].fault("wrong_model")
    fleet.killed_at("after:verify", lambda: fleet.promote("llm-b"))
    assert fleet.router.chat("live.solo").status == 503
    assert chats(fleet.places["llm-b"]) == 0
    stopped = fleet.promotions()[0]
    assert (stopped["state"], stopped["serving"]) == ("stopped", "promoted")
    refused = fleet.order(action="resume")
    assert (refused.status, refused.json()["error"]["code"]) == (409, "verification_failed")
    assert (fleet.promotions()[0]["state"], fleet.place) == ("rolled_back", "llm-a")


@pytest.mark.parametrize(
    ("action", "point"),
    [
        ("resume", "after:resume"),
        ("resume", "before:pointer"),
        ("resume", "before:outcome"),
        ("rollback", "after:roll_back"),
        ("rollback", "before:pointer"),
        ("rollback", "before:outcome"),
    ],
)
def test_killed_while_it_is_resumed_or_rolled_back_it_can_be_again(
    fleet: Fleet, action: str, point: str
) -> None:
    first = "after:drain" if action == "resume" else "after:verify"
    fleet.killed_at(first, lambda: fleet.promote("llm-b"))
    fleet.killed_at(point, lambda: fleet.order(action=action))
    assert fleet.is_open()
    assert fleet.promotions()[0]["state"] == "stopped"
    done = fleet.order(action=action)
    assert done.status == 200, done.body
    ended = {"resume": ("promoted", "llm-b"), "rollback": ("rolled_back", "llm-a")}[action]
    assert (done.json()["promotion"]["state"], fleet.place) == ended


def command(router: Router, *more: str) -> Ran:
    environ = {"ANVIL_URL": router.url, "ANVIL_TOKEN": router.token}
    return anvil("promote", *more, environ=environ)


def test_streams_of_other_tiers_do_not_notice(fleet: Fleet, connect: Connect) -> None:
    """There, back by itself since the identity fails, and there again from the command line."""
    router = fleet.router
    move = ("--tier", "solo", "--resource")
    streams = Streams(router, "live.chat", 16, connect)
    streams.await_first_words()
    preview = command(router, *move, "llm-b")
    assert (preview.code, preview.out.splitlines()[0]) == (
        0,
        "preview: promote; nothing was changed, --confirm does it",
    )
    assert (fleet.promotions(), fleet.place) == ([], "llm-a")
    done = command(router, *move, "llm-b", "--drain-timeout", "20", "--confirm", "--json")
    assert done.code == 0, done.out
    assert words(done.envelope["data"]["promotion"]) == THERE
    assert fleet.place == "llm-b"
    fleet.places["llm-a"].fault("wrong_model")
    failed = command(router, *move, "llm-a", "--drain-timeout", "20", "--confirm")
    assert (failed.code, failed.out) == (1, "")
    assert "  Verify: it serves another model than the expected one" in failed.err.splitlines()
    assert failed.err.splitlines()[-1] == "solo to llm-a: rolled back"
    assert fleet.place == "llm-b"
    refused = command(router, "--tier", "chat", "--resource", "llm-a", "--confirm", "--json")
    assert refused.code == 1
    assert [error["code"] for error in refused.envelope["errors"]] == ["replica_lifecycle_unsupported"]
    assert streams.running == 16
    streams.join()
    assert {stream.status for stream in streams.all} == {200}
    assert {(stream.ending, stream.data[-1], stream.words) for stream in streams.all} == {
        ("chunked", "[DONE]", 100)
    }
    assert max(stream.longest_silence for stream in streams.all) < 2.0
    eventually(lambda: not any(admission_counts(router).values()), timeout=10.0)


def test_running_requests_of_the_tier_end_where_they_began(fleet: Fleet, connect: Connect) -> None:
    fleet.places["llm-a"].change(token=0.1, tokens=20)
    streams = Streams(fleet.router, "live.solo", 1, connect)
    streams.await_first_words()
    with Callers(fleet.router, "live.chat") as callers:
        done = fleet.promote("llm-b")
    assert done.status == 200, done.body
    streams.join()
    assert (streams.all[0].data[-1], streams.all[0].words) == ("[DONE]", 20)
    assert chats(fleet.places["llm-b"]) == 0
    assert fleet.place == "llm-b"
    assert {status for status, _ in callers.answers} == {200}


def test_the_file_of_the_first_start_does_not_undo_a_promotion(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.promote("llm-b").status == 200
    fleet.router.terminate()
    fleet.router.start()
    assert fleet.place == "llm-b"
