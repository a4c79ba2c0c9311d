"""HTTP/1.1 from the caller's side, in an event loop: strict reading, and every way to behave badly."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tests.live.raw import HOST, TOKEN, build_request

PATIENCE = 45.0
"""Seconds that an answer may take in all: longer than every timeout of the run's configuration together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer's head; header names are lower-case."""

    status: int
    headers: Mapping[str, str]


class Ended(ConnectionError):
    """The connection ended where an answer had to go on."""


class Line:
    """One connection to the router. An async context manager."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, small: bool = False) -> Self:
        """Connect; ``small`` takes in next to nothing ahead of its reader."""
        sock = socket.socket()
        sock.setblocking(False)
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return cls(*await asyncio.open_connection(sock=sock, limit=2048 if small else 1 << 20))
        except BaseException:
            sock.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.writer.close()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """RST, at once."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def head(self) -> Reply:
        """The next final head. Raises Ended."""
        while True:
            try:
                block = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise Ended(f"before a head: {type(error).__name__}") from None
            first, *lines = block[:-4].decode("latin-1").split("\r\n")
            status = int(first.split(" ", 2)[1])
            if status >= 200:
                pairs = (line.partition(":") for line in lines)
                return Reply(status=status, headers={name.lower(): value.strip() for name, _, value in pairs})

    async def body(self, reply: Reply) -> AsyncIterator[bytes]:
        """The body's pieces, to its announced end. Raises Ended where that does not come."""
        try:
            if reply.headers.get("transfer-encoding") == "chunked":
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    data = await self.reader.readexactly(size + 2)
                    if data[-2:] != b"\r\n":
                        raise Ended("a chunk is not closed")
                    yield data[:-2]
                await self.reader.readexactly(2)
            else:
                left = int(reply.headers["content-length"])
                while left:
                    data = await self.reader.read(min(left, 65_536))
                    if not data:
                        raise Ended("before its length")
                    left -= len(data)
                    yield data
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Ended(f"within a body: {type(error).__name__}") from None

    async def whole(self) -> tuple[Reply, bytes]:
        reply = await self.head()
        return reply, b"".join([piece async for piece in self.body(reply)])


async def ask(
    port: int, method: str, path: str, body: object = None, *, token: str | None = TOKEN
) -> tuple[int, bytes]:
    """One request of the management on a connection of its own: status and body."""
    async with await Line.open(port) as line:
        headers = {"Connection": "close"}
        await line.send(build_request(method, path, body=body, headers=headers, token=token))
        reply, data = await asyncio.wait_for(line.whole(), PATIENCE)
        return reply.status, data


async def ask_json(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    status, data = await ask(port, method, path, body)
    return status, json.loads(data)
