"""The tools behind the official MCP SDK: over stdio for a client that starts us, over HTTP for others.

HTTP is streamable HTTP on 127.0.0.1 alone. Whoever gets there acts with the key in ``ANVIL_TOKEN``, so they
must show that key themselves; without one (a router without authentication) everybody on this machine may.
"""

import asyncio
import hmac
import json
import socket
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final, TypeVar

import anyio
import uvicorn
from mcp import MCPError
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from anvil_site.mcp.catalog import TOOLS
from anvil_site.mcp.tools import NAMES, call_tool

T = TypeVar("T")

HOST: Final = "127.0.0.1"
PATH: Final = "/mcp"
MAX_AT_WORK: Final = 8
"""Calls at work at once, drains that wait among them; one more waits its turn."""
MAX_REQUEST_BYTES: Final = 65_536
INSTRUCTIONS: Final = (
    "Reads and changes which requests an Anvil router admits. A change is only checked until it is confirmed."
)


def build() -> Server[Any]:
    """The server with its tools, connected to nothing yet."""
    places = anyio.CapacityLimiter(MAX_AT_WORK)
    tools = [Tool.model_validate(tool) for tool in TOOLS]

    async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call(context: Any, params: CallToolRequestParams) -> CallToolResult:
        name, given = params.name, params.arguments or {}
        if name not in NAMES:
            raise MCPError(code=INVALID_PARAMS, message="Unknown tool")
        async with places:
            result = await _in_thread(lambda: call_tool(name, given))
        text = json.dumps(result.envelope, allow_nan=False)
        return CallToolResult(
            content=[TextContent(type="text", text=text)],
            structured_content=dict(result.envelope),
            is_error=result.is_error,
        )

    return Server(
        "anvil",
        version=version("anvil-router"),
        title="Anvil router",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call,
    )


async def _in_thread(call: Callable[[], T]) -> T:
    """Run ``call``, which must not raise, in a thread that holds up no exit: a drain may take an hour."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T) -> None:
        if not future.done():
            future.set_result(result)

    def run() -> None:
        result = call()
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    threading.Thread(target=run, name="anvil-mcp-call", daemon=True).start()
    return await future


def serve_stdio() -> None:
    """Serve one client over this process's stdin and stdout, until it closes them."""

    async def serve() -> None:
        server = build()
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(serve())


def serve_http(port: int, *, token: str | None) -> None:
    """Serve on ``127.0.0.1:PORT/mcp`` until the process is told to stop. Raises OSError for a taken port."""
    application: ASGIApp = build().streamable_http_app(
        streamable_http_path=PATH, host=HOST, max_request_body_size=MAX_REQUEST_BYTES
    )
    if token is not None:
        application = RequireToken(application, token)
    settings = uvicorn.Config(application, log_level="warning", access_log=False)
    with socket.create_server((HOST, port)) as listener:
        asyncio.run(uvicorn.Server(settings).serve(sockets=[listener]))


class RequireToken:
    """ASGI middleware: requests must bear the token; others are answered 401, their bodies unread."""

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application = application
        self._expected = b"Bearer " + token.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_allowed(scope):
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            body = b'{"error":{"code":"invalid_api_key","message":"A valid API key is required."}}'
            await send({"type": "http.response.body", "body": body})
            return
        await self._application(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        offered = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(offered) == 1 and hmac.compare_digest(offered[0], self._expected)
