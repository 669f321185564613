"""A lean HTTP/1.1 client connection, so that the load costs little beside what is measured."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from astraflow_wire.messages import Message, decode, encode
from bench.support.processes import TOKEN, Service

T = TypeVar("T")
DEADLINE_S = 120.0


class Connection:
    """One keep-alive connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, service: Service) -> Connection:
        """Connect to a service."""
        return cls(*await asyncio.open_connection(*service.address))

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the reply; an error that quotes it if the status is not 200."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {TOKEN}\r\n"
            f"content-type: application/msgpack\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        async with asyncio.timeout(DEADLINE_S):
            self._writer.write(head.encode())
            self._writer.write(body)
            await self._writer.drain()
            answer = await self._reader.readuntil(b"\r\n\r\n")
            length = answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            content = await self._reader.readexactly(int(length))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {answer.splitlines()[0]!r} {content[:500]!r}")
        return content

    async def send(self, path: str, message: Message, expected: type[T]) -> T:
        """Send a message and decode the reply."""
        return decode(await self.post(path, encode(message)), expected)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()
