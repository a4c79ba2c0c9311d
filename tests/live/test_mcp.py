"""A real MCP client, the SDK's, before a real router: over stdio and over streamable HTTP."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from anvil_site.mcp.catalog import TOOLS
from tests.live.harness import (
    ROOT,
    Engine,
    ReservedPorts,
    Router,
    chat_body,
    direct_tier,
    documents,
    eventually,
    replica_tier,
    request,
)
from tests.live.raw import HOST, RawConnection

pytestmark = pytest.mark.requirement("C-T009", "C-T009.1")

PATIENCE = 60.0
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    },
}


@pytest.fixture
def engines(make_engine: Callable[..., Engine]) -> list[Engine]:
    return [make_engine("engine-a"), make_engine("engine-b")]


@pytest.fixture
def router(make_router: Callable[..., Router], engines: list[Engine]) -> Router:
    made: Router = make_router(documents(replica_tier(engines), direct_tier(engines[0]))).start()
    return made


def environ(router: Router, *, token: str | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANVIL_")}
    return {**kept, "ANVIL_URL": router.url, "ANVIL_TOKEN": token or router.token}


def over_stdio(router: Router, *, token: str | None = None) -> Client:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "anvil_site.cli", "mcp"],
        env=environ(router, token=token),
        cwd=ROOT,
    )
    return Client(command, read_timeout_seconds=PATIENCE)


@pytest.fixture
def http_port(router: Router, tmp_path: Path) -> Iterator[int]:
    """``anvil mcp --port`` in a process of its own."""
    with ReservedPorts() as ports, (tmp_path / "mcp.log").open("wb") as log:
        port = ports.first
        process = subprocess.Popen(
            [sys.executable, "-m", "anvil_site.cli", "mcp", "--port", str(port)],
            cwd=ROOT,
            env=environ(router),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            eventually(lambda: process.poll() is None and _listens(port), timeout=30.0)
            yield port
            process.send_signal(signal.SIGTERM)
            process.wait(15.0)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(10.0)
    written = (tmp_path / "mcp.log").read_text()
    assert router.token not in written
    assert "Traceback" not in written


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
        return True
    return False


@contextlib.asynccontextmanager
async def over_http(port: int, token: str) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE) as http:
        transport = streamable_http_client(f"http://{HOST}:{port}/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=PATIENCE) as client:
            yield client


def data_of(result: CallToolResult) -> Any:
    """What a call that went well came to, the same in its text and in its structure."""
    envelope: Any = result.structured_content
    assert not result.is_error, envelope
    assert json.loads(result.content[0].text) == envelope  # type: ignore[union-attr]
    assert (envelope["ok"], envelope["errors"]) == (True, [])
    return envelope["data"]


def codes_of(result: CallToolResult) -> list[str]:
    envelope: Any = result.structured_content
    assert result.is_error, envelope
    return [error["code"] for error in envelope["errors"]]


def member_row(router: Router, member: str) -> dict[str, Any]:
    answer = router.request("GET", f"/v1/admin/transition?tier_id=chat&member_id={member}")
    (row,) = answer.json()["tiers"][0]["members"]
    found: dict[str, Any] = row
    return found


async def operate(
    client: Client, router: Router, engine: Engine, connect: Callable[..., RawConnection]
) -> None:
    """What an operator does to take one member out and bring it back."""
    listed = await client.list_tools()
    shown = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]
    assert shown == list(TOOLS)

    async def transition(action: str, **more: object) -> CallToolResult:
        scope = {"tier": "chat", "member": "member-a"}
        return await client.call_tool("router_transition", {"action": action, **scope, **more})

    # A request runs on the member until its engine is let go.
    engine.fault("stall_mid_stream", count=1)
    busy = connect(router.port)
    busy.post(chat_body("live.chat", stream=True))
    response = busy.start_response()
    assert dict(response.head.headers)["x-anvil-member"] == "member-a"

    preview = data_of(await transition("quiesce", reason="upgrade"))
    assert preview == {
        "applied": False,
        "dry_run": True,
        "action": "quiesce",
        "tier_id": "chat",
        "member_id": "member-a",
    }
    assert member_row(router, "member-a")["state"] == "admitting"

    quiesced = data_of(await transition("quiesce", reason="upgrade", confirm=True))
    assert (quiesced["result"]["state"], quiesced["result"]["reason"]) == ("quiesced", "upgrade")
    assert member_row(router, "member-b")["state"] == "admitting"

    # It does not drain while the request runs, and says so.
    assert codes_of(await transition("drain", timeout=0.2, confirm=True)) == ["drain_timed_out"]
    draining = asyncio.ensure_future(transition("drain", timeout=30, confirm=True))
    await asyncio.to_thread(eventually, lambda: member_row(router, "member-a")["draining"])
    engine.clear()
    assert await asyncio.to_thread(lambda: [event.data for event in busy.events(response)][-1]) == "[DONE]"
    drained = data_of(await draining)
    assert (drained["result"]["drained"], drained["result"]["timed_out"]) == (True, False)

    status = data_of(await transition("status"))
    (row,) = status["tiers"][0]["members"]
    assert (row["state"], row["reason"], row["active_requests"]) == ("quiesced", "upgrade", 0)

    previewed = data_of(await transition("readmit", confirm=True, dry_run=True))
    assert (previewed["applied"], member_row(router, "member-a")["state"]) == (False, "quiesced")
    readmitted = data_of(await transition("readmit", confirm=True))
    assert readmitted["result"]["readmitted"] is True
    assert member_row(router, "member-a")["state"] == "admitting"

    # Bad input, in fixed words; the first of them never left the client's side of the router.
    for given, code in (
        ({"action": "quiesce", "tier": "chat", "member": None, "confirm": True}, "argument_invalid"),
        ({"action": "quiesce", "tier": "chat", "member": "../member", "confirm": True}, "argument_invalid"),
        ({"action": "quiesce", "member": "member-a", "confirm": True}, "argument_missing"),
        ({"action": "quiesce", "tier": "chat", "member": "member-z", "confirm": True}, "unknown_member"),
        ({"action": "quiesce", "tier": "absent", "confirm": True}, "unknown_tier"),
        ({"action": "quiesce", "tier": "direct", "member": "member-a", "confirm": True}, "direct_tier"),
        ({"action": "drain", "tier": "chat", "confirm": True}, "scope_not_quiesced"),
        ({"action": "restart", "tier": "chat"}, "argument_invalid"),
        ({"action": "status", "url": "http://127.0.0.1"}, "argument_unknown"),
    ):
        assert codes_of(await client.call_tool("router_transition", given)) == [code], given
    with pytest.raises(MCPError, match="Unknown tool"):
        await client.call_tool("router_restart", {})

    # And what there is to read.
    assert data_of(await client.call_tool("router_status", {}))["owns_ledger"] is True
    capacity = data_of(await client.call_tool("router_capacity", {"model": "live.chat"}))
    assert [row["id"] for row in capacity["data"]] == ["chat"]
    decided = data_of(await client.call_tool("router_decisions", {"limit": 1}))
    assert decided["records"][0]["replica_member_id"] == "member-a"
    explained = data_of(await client.call_tool("router_explain", {"model": "live.chat"}))
    assert "127.0.0.1" not in json.dumps(explained)
    assert codes_of(await client.call_tool("router_explain", {"model": "live.absent"})) == ["model_not_found"]


def test_a_member_is_taken_out_and_brought_back_over_stdio(
    router: Router, engines: list[Engine], connect: Callable[..., RawConnection]
) -> None:
    async def run() -> None:
        async with over_stdio(router) as client:
            await operate(client, router, engines[0], connect)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_member_is_taken_out_and_brought_back_over_http(
    router: Router, http_port: int, engines: list[Engine], connect: Callable[..., RawConnection]
) -> None:
    async def run() -> None:
        async with over_http(http_port, router.token) as client:
            await operate(client, router, engines[0], connect)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_key_without_the_scope_is_told_so(router: Router) -> None:
    made = router.request("POST", "/v1/admin/keys", body={"name": "reader", "scopes": ["observe"]})
    secret = made.json()["key"]

    async def run() -> None:
        async with over_stdio(router, token=secret) as client:
            assert data_of(await client.call_tool("router_status", {}))["owns_ledger"] is True
            refused = await client.call_tool(
                "router_transition", {"action": "quiesce", "tier": "chat", "confirm": True}
            )
            assert codes_of(refused) == ["forbidden"]
            assert secret not in json.dumps(refused.structured_content)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_http_wants_the_key_that_it_would_act_with_and_our_own_name(router: Router, http_port: int) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    bearer = {"Authorization": f"Bearer {router.token}"}

    def status(**headers: str) -> int:
        answer = request(http_port, "POST", "/mcp", body=INITIALIZE, headers={**accept, **headers})
        assert router.token.encode() not in answer.body
        return answer.status

    assert status() == 401
    assert status(Authorization="Bearer wrong") == 401
    assert status(Authorization=router.token) == 401
    assert status(**bearer) == 200
    # A page of some other site whose name was made to resolve to this machine.
    assert status(**bearer, Host="attacker.example") == 421
    assert status(**bearer, Origin="http://attacker.example") == 403


def test_http_listens_on_loopback_alone(http_port: int) -> None:
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{http_port:04X}")] == [
        f"0100007F:{http_port:04X}"
    ]


def test_a_port_that_is_taken_is_told(router: Router) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        ran = subprocess.run(
            [sys.executable, "-m", "anvil_site.cli", "mcp", "--port", str(port)],
            cwd=ROOT,
            env=environ(router),
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[-1] == "mcp: the port is not free; take another --port (mcp_port_taken)"


def test_a_client_that_leaves_ends_the_process_though_a_drain_waits(
    router: Router, engines: list[Engine], connect: Callable[..., RawConnection]
) -> None:
    engines[0].fault("stall_mid_stream", count=1)
    busy = connect(router.port)
    busy.post(chat_body("live.direct", stream=True))
    busy.start_response()
    with subprocess.Popen(
        [sys.executable, "-m", "anvil_site.cli", "mcp"],
        cwd=ROOT,
        env=environ(router),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None

        def send(method: str, number: int | None, **params: object) -> None:
            message = {"jsonrpc": "2.0", "method": method, "params": params}
            if number is not None:
                message["id"] = number
            assert process.stdin is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

        send("initialize", 1, **INITIALIZE["params"])
        send("notifications/initialized", None)
        scope = {"tier": "direct", "confirm": True}
        send("tools/call", 2, name="router_transition", arguments={"action": "quiesce", **scope})
        assert process.stdout is not None
        answers = [json.loads(process.stdout.readline())["id"] for _ in range(2)]
        assert answers == [1, 2]
        send("tools/call", 3, name="router_transition", arguments={"action": "drain", **scope})
        eventually(lambda: _direct(router)["draining"])
        process.stdin.close()
        assert process.wait(10.0) == 0
    # The router's own drain goes on.
    assert _direct(router)["draining"] is True


def _direct(router: Router) -> dict[str, Any]:
    found: dict[str, Any] = router.request("GET", "/v1/admin/transition?tier_id=direct").json()["tiers"][0]
    return found
