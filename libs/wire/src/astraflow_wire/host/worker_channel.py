"""Calls to a worker process over a socket: length-prefixed bytes, one call at a time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

_LENGTH = struct.Struct("<I")
MAX_ANSWER = 16 << 20
"""Bytes of an answer of a worker."""


class WorkerGone(Exception):
    """A worker will answer no more; the text says what it did."""


class WorkerEnded(WorkerGone):
    """Its end of the channel is closed: its process has ended, or is about to."""


class WorkerChannel:
    """The end of the process that calls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connection: socket.socket) -> WorkerChannel:
        """A channel over our end of a pair of sockets."""
        return cls(*await asyncio.open_connection(sock=connection))

    async def call(self, body: bytes) -> bytes:
        """What the worker answers."""
        self._writer.write(_LENGTH.pack(len(body)) + body)
        return await self.receive()

    async def receive(self) -> bytes:
        """The next thing that the worker says. :class:`WorkerGone` if there is none."""
        try:
            size = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))[0]
            if size > MAX_ANSWER:
                raise WorkerGone(f"sent an answer of {size} bytes")
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerEnded("ended") from None

    async def close(self) -> None:
        """Close our end; a worker between two calls then ends."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def answer_calls(connection: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Answer the calls of the other end, until that is closed."""
    stream = connection.makefile("rb")
    while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
        say(connection, answer(stream.read(_LENGTH.unpack(head)[0])))


def say(connection: socket.socket, body: bytes) -> None:
    """Send bytes that :meth:`WorkerChannel.receive` returns."""
    connection.sendall(_LENGTH.pack(len(body)) + body)


def read_message(connection: socket.socket) -> bytes:
    """What :func:`say` sent, and not a byte more; empty if the other end is closed."""
    head = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return b""
    return connection.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)
