"""Transitions, intent and keys through a real server: live streams, restarts, power cuts, command line."""

import json
import select
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import (
    MODEL,
    Answer,
    Documents,
    Engine,
    Ran,
    Router,
    admission_counts,
    anvil,
    await_rest,
    chat_body,
    direct_tier,
    documents,
    eventually,
    replica_tier,
)
from tests.live.raw import RawConnection, build_request

pytestmark = pytest.mark.requirement(
    "contract 3 transitions", "contract 3 intent", "C-R011", "C-T008", "C-T010"
)

Connect = Callable[..., RawConnection]
MakeEngine = Callable[..., Engine]
MakeRouter = Callable[..., Router]

TRANSITION = "/v1/admin/transition"


@pytest.fixture
def engines(make_engine: MakeEngine) -> list[Engine]:
    return [make_engine("engine-a"), make_engine("engine-b")]


@pytest.fixture
def installed(engines: list[Engine]) -> Documents:
    """A replica tier of both engines, and a direct tier on the first."""
    return documents(replica_tier(engines), direct_tier(engines[0]))


@pytest.fixture
def router(make_router: MakeRouter, installed: Documents) -> Router:
    return make_router(installed).start()


def do(
    router: Router,
    action: str,
    tier: str,
    member: str | None = None,
    *,
    patience: float = 30.0,
    **more: object,
) -> Answer:
    scope = {"tier_id": tier} if member is None else {"tier_id": tier, "member_id": member}
    body = {"action": action, **scope, "confirm": True, "dry_run": False, **more}
    return router.request("POST", TRANSITION, body=body, timeout=patience)


def states(router: Router) -> dict[str, str | None]:
    """Why each scope is quiesced, None where it is not."""
    found: dict[str, str | None] = {}
    for tier in router.request("GET", TRANSITION).json()["tiers"]:
        found[tier["tier_id"]] = tier["reason"]
        for member in tier.get("members", ()):
            found[f"{tier['tier_id']}/{member['member_id']}"] = member["reason"]
    return found


def stream(connect: Connect, router: Router, alias: str) -> tuple[RawConnection, Any]:
    """A streamed answer that has begun, and stays open until its engine's faults are cleared."""
    connection = connect(router.port)
    connection.post(chat_body(alias, stream=True))
    response = connection.start_response()
    assert response.status == 200
    return connection, response


def hold(*engines: Engine) -> None:
    for engine in engines:
        engine.fault("stall_mid_stream", after=2)


def finish(connection: RawConnection, response: Any) -> None:
    """Read a stream to its end, which is a good one."""
    for _ in connection.events(response):
        pass
    assert response.data[-1] == "[DONE]"


def begin_drain(connect: Connect, router: Router, tier: str) -> RawConnection:
    """The connection of a request that waits for the drain that it has begun, for as long as it takes."""
    asker = connect(router.port, timeout=30.0)
    order = build_request("POST", TRANSITION, body={"action": "drain", "tier_id": tier})
    asker.send(order)

    def begun() -> bool:
        # That a drain is under way shows only when another one is refused; which may also have come first.
        refused = do(router, "drain", tier, timeout=0.05).status == 409
        if select.select([asker._socket], [], [], 0)[0]:
            assert asker.read_response().status == 409
            asker.send(order)
            return False
        return refused

    eventually(begun)
    return asker


def command(router: Router, *words: str) -> Ran:
    return anvil(*words, environ={"ANVIL_URL": router.url, "ANVIL_TOKEN": router.token})


# Restarts -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 3 intent", "C-T010", "F-R008")
def test_a_member_is_still_quiesced_after_a_restart_and_readmitted_by_its_own_evidence(
    router: Router, engines: list[Engine]
) -> None:
    assert do(router, "quiesce", "chat", "member-a", reason="kernel-upgrade").status == 200
    assert do(router, "quiesce", "chat", reason="swap").status == 200
    assert router.terminate() == 0
    router.start()
    assert states(router) == {
        "chat": "swap",
        "chat/member-a": "kernel-upgrade",
        "chat/member-b": None,
        "direct": None,
    }
    assert router.chat("live.chat").status == 503

    # The tier's readmit leaves the member alone; its peer serves.
    answer = do(router, "readmit", "chat")
    assert (answer.status, answer.json()["result"]["reason"]) == (200, "readiness_passed")
    assert states(router)["chat/member-a"] == "kernel-upgrade"
    for _ in range(4):
        served = router.chat("live.chat")
        assert (served.status, served.headers["x-anvil-member"]) == (200, "member-b")

    # The wrong model behind it, then the right one.
    engines[0].change(model="another-model")
    answer = do(router, "readmit", "chat", "member-a")
    assert (answer.status, answer.json()["error"]["code"]) == (409, "readmit_refused")
    assert answer.json()["result"]["reason"] == "identity_mismatch"
    assert states(router)["chat/member-a"] == "kernel-upgrade"
    engines[0].change(model=MODEL)
    answer = do(router, "readmit", "chat", "member-a")
    assert (answer.status, answer.json()["result"]["reason"]) == (200, "readiness_passed")
    assert {router.chat("live.chat").headers["x-anvil-member"] for _ in range(4)} == {"member-a", "member-b"}
    assert router.terminate() == 0
    router.start()
    assert set(states(router).values()) == {None}


@pytest.mark.requirement("house 7: a quiesce survives a power cut")
def test_a_quiesce_that_was_answered_survives_a_kill(router: Router) -> None:
    assert do(router, "quiesce", "direct", reason="emergency").status == 200
    router.kill()
    router.start()
    assert states(router)["direct"] == "emergency"
    assert router.chat("live.direct").status == 503


@pytest.mark.requirement("contract 3 intent")
def test_a_malformed_intent_refuses_the_start(router: Router) -> None:
    assert do(router, "quiesce", "direct").status == 200
    router.terminate()
    database = router.directory / "data" / "anvil.sqlite3"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE admission_admissionintent SET reason = 'two words'")
    router.start(wait=False)
    assert router.await_exit(timeout=60.0) != 0
    assert "a stored quiesce intent is not of its grammar" in router.log


# Drains -------------------------------------------------------------------------------------------------


def test_drains_wait_for_their_own_scope_and_cut_no_stream(
    router: Router, engines: list[Engine], connect: Connect
) -> None:
    hold(*engines)
    streams = [stream(connect, router, "live.chat") for _ in range(2)]
    assert admission_counts(router) == {"chat": 2, "chat/member-a": 1, "chat/member-b": 1, "direct": 0}
    assert do(router, "quiesce", "chat", "member-a").status == 200
    late = do(router, "drain", "chat", "member-a", timeout=0.3)
    assert (late.status, late.json()["result"]["timed_out"]) == (200, True)
    assert late.json()["result"]["snapshot"]["active_requests"] == 1

    # Only member-a's stream goes on to its end; its drain is over although the tier is busy.
    engines[0].clear()
    done = do(router, "drain", "chat", "member-a")
    assert done.json()["result"] == {
        "drained": True,
        "timed_out": False,
        "snapshot": {
            "member_id": "member-a",
            "state": "quiesced",
            "reason": "operator",
            "active_requests": 0,
            "draining": False,
            "max_concurrency": 2,
        },
    }
    assert admission_counts(router)["chat"] == 1

    assert do(router, "quiesce", "chat").status == 200
    late = do(router, "drain", "chat", timeout=0.3)
    assert late.json()["result"]["timed_out"] is True
    assert late.json()["result"]["snapshot"]["member_active_requests"] == {"member-a": 0, "member-b": 1}
    engines[1].clear()
    assert do(router, "drain", "chat").json()["result"]["drained"] is True
    for connection, response in streams:
        finish(connection, response)
    await_rest(router)


def test_a_drain_goes_on_without_the_request_that_began_it(
    router: Router, engines: list[Engine], connect: Connect
) -> None:
    hold(engines[0])
    connection, response = stream(connect, router, "live.direct")
    assert do(router, "quiesce", "direct").status == 200
    begin_drain(connect, router, "direct").reset()
    assert do(router, "drain", "direct", timeout=0.05).json()["error"]["code"] == "drain_in_progress"
    engines[0].clear()
    finish(connection, response)
    eventually(lambda: do(router, "drain", "direct").json().get("result", {}).get("drained") is True)


def test_four_long_drains_do_not_stop_an_emergency_quiesce(
    make_engine: MakeEngine, make_router: MakeRouter, connect: Connect
) -> None:
    engine = make_engine()
    names = [f"tier{number}" for number in range(5)]
    tiers = [direct_tier(engine, tier_id=name, alias=f"live.{name}") for name in names]
    router = make_router(documents(*tiers)).start()
    hold(engine)
    engine.change(slots=8)
    streams = [stream(connect, router, f"live.{name}") for name in names[:4]]
    for name in names[:4]:
        assert do(router, "quiesce", name).status == 200
    askers = [begin_drain(connect, router, name) for name in names[:4]]
    emergency = do(router, "quiesce", names[4], reason="emergency", patience=2.0)
    assert (emergency.status, emergency.json()["result"]["state"]) == (200, "quiesced")
    assert router.chat(f"live.{names[4]}").status == 503
    engine.clear()
    for connection, response in streams:
        finish(connection, response)
    for asker in askers:
        answer = asker.read_response()
        assert (answer.status, answer.json()["result"]["drained"]) == (200, True)


def test_a_stopping_process_lets_go_of_who_waits_for_a_drain(
    make_router: MakeRouter, installed: Documents, engines: list[Engine], connect: Connect
) -> None:
    router = make_router(installed, environ={"ANVIL_GRACEFUL_TIMEOUT": "5"}).start()
    hold(engines[0])
    stream(connect, router, "live.direct")
    assert do(router, "quiesce", "direct").status == 200
    asker = begin_drain(connect, router, "direct")
    assert router.terminate(timeout=45.0) == 0
    assert asker.read_response().status == 202


# Keys ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 2 authentication")
def test_a_revoked_key_fails_on_its_next_request_and_after_a_restart(router: Router) -> None:
    made = router.request("POST", "/v1/admin/keys", body={"name": "chat", "scopes": ["infer"]}).json()
    bearer = {"Authorization": f"Bearer {made['key']}"}
    assert (
        router.request("POST", "/v1/chat/completions", body=chat_body("live.direct"), headers=bearer).status
        == 200
    )
    for path in (TRANSITION, "/v1/models/capacity", "/v1/admin/keys", "/metrics"):
        assert router.request("GET", path, headers=bearer).status == 403, path
    router.terminate()
    router.start()
    assert router.request("GET", "/v1/models", headers=bearer).status == 200
    assert router.request("DELETE", f"/v1/admin/keys/{made['id']}").status == 200
    assert router.request("GET", "/v1/models", headers=bearer).status == 401
    router.terminate()
    router.start()
    assert router.request("GET", "/v1/models", headers=bearer).status == 401
    (listed,) = router.request("GET", "/v1/admin/keys").json()["keys"]
    assert listed["revoked"] is True
    assert listed["last_used_at"] is not None
    assert made["key"] not in router.log


@pytest.mark.requirement("contract 2 authentication")
@pytest.mark.parametrize("arguments", ["", "--bind 127.0.0.1:0 --bind 0.0.0.0:0"])
def test_without_authentication_only_a_loopback_bind_starts(
    make_router: MakeRouter, installed: Documents, arguments: str
) -> None:
    """The final settings count: what the environment adds to the server's own is seen, too."""
    open_router = make_router(installed, environ={"ANVIL_AUTH": "off"}).start()
    assert open_router.request("GET", "/v1/models", headers={"Authorization": "none"}).status == 200
    open_router.stop()
    bind = {"GUNICORN_CMD_ARGS": arguments} if arguments else {"ANVIL_BIND": "0.0.0.0:0"}
    exposed = make_router(installed, environ={"ANVIL_AUTH": "off", **bind}).start(wait=False)
    assert exposed.await_exit() == 2
    assert "ANVIL_AUTH=off needs a loopback address to listen on" in exposed.log


# The command line ---------------------------------------------------------------------------------------


@pytest.mark.requirement("contract 5", "C-T009", "C-T010")
def test_the_command_line_does_all_of_it(router: Router, engines: list[Engine], tmp_path: Path) -> None:
    scope = ("--tier", "chat", "--member", "member-a")
    preview = command(router, "router", "quiesce", *scope, "--json")
    assert (preview.code, preview.envelope["data"]["applied"]) == (0, False)
    assert states(router)["chat/member-a"] is None
    assert command(router, "router", "quiesce", *scope, "--reason", "upgrade", "--confirm").code == 0
    assert states(router)["chat/member-a"] == "upgrade"
    drained = command(router, "router", "drain", *scope, "--timeout", "5", "--confirm", "--json")
    assert (drained.code, drained.envelope["data"]["result"]["drained"]) == (0, True)

    exported = command(router, "admission", "export")
    document = {"version": 1, "tiers": {}, "members": {"chat": {"member-a": "upgrade"}}}
    assert json.loads(exported.out) == document
    file = tmp_path / "intent.json"
    file.write_text(exported.out)

    engines[0].change(model="another-model")
    refused = command(router, "router", "readmit", *scope, "--confirm", "--json")
    assert refused.code == 1
    assert refused.envelope["data"]["result"]["reason"] == "identity_mismatch"
    engines[0].change(model=MODEL)
    assert command(router, "router", "readmit", *scope, "--confirm").code == 0
    assert states(router)["chat/member-a"] is None
    assert command(router, "admission", "import", "--file", str(file), "--confirm").code == 0
    assert states(router)["chat/member-a"] == "upgrade"

    created = command(router, "keys", "create", "--name", "ops", "--scopes", "operate", "--confirm", "--json")
    key = created.envelope["data"]["key"]
    listed = command(router, "keys", "list")
    assert "ops: operate; expires never" in listed.out
    assert key not in listed.out
    as_ops = {"ANVIL_URL": router.url, "ANVIL_TOKEN": key}
    assert anvil("router", "transition-status", environ=as_ops).code == 0
    assert anvil("keys", "list", environ=as_ops).err == (
        "keys list: the key in ANVIL_TOKEN lacks the scope; "
        "this needs configure; who may configure can make one: anvil keys create (forbidden)\n"
    )
    number = str(created.envelope["data"]["id"])
    assert command(router, "keys", "revoke", "--id", number, "--confirm").code == 0
    assert anvil("router", "transition-status", environ=as_ops).code == 1
