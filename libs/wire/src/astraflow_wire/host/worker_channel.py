"""Calls to a worker process over a socket: length-prefixed bytes, one call at a time."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

_LENGTH = struct.Struct("<I")
MAX_ANSWER = 16 << 20
"""Bytes of an answer of a worker."""


class WorkerGone(Exception):
    """A worker will answer no more; the text says what it did."""


class WorkerEnded(WorkerGone):
    """Its end of the channel is closed: its process has ended, or is about to."""


class WorkerChannel(asyncio.Protocol):
    """The end of the process that calls. A protocol of its own, since asyncio's streams would take half of the time of
    a call."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._said = bytearray()
        self._heard: asyncio.Future[None] | None = None
        self._ended = False
        self._closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def over(cls, connection: socket.socket) -> WorkerChannel:
        """A channel over our end of a pair of sockets."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(cls, sock=connection)
        return channel

    async def call(self, body: bytes) -> bytes:
        """What the worker answers."""
        if not self._ended:
            self._transport.write(_LENGTH.pack(len(body)) + body)
        return await self.receive()

    async def receive(self) -> bytes:
        """The next thing that the worker says. :class:`WorkerGone` if there is none. One task at a time may wait for it."""
        while (body := self._taken()) is None:
            if self._ended:
                raise WorkerEnded("ended")
            self._heard = asyncio.get_running_loop().create_future()
            await self._heard
        return body

    async def close(self) -> None:
        """Close our end; a worker between two calls then ends."""
        self._transport.close()
        await asyncio.shield(self._closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: begin."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's: a piece of what the worker says."""
        self._said += data
        if len(self._said) > _LENGTH.size + MAX_ANSWER:
            self._transport.abort()  # nobody reads so much: receive() refuses it by its size
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's: the worker's end is closed, or ours."""
        self._ended = True
        if not self._closed.done():
            self._closed.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    def _taken(self) -> bytes | None:
        """The first message, if it is there as a whole."""
        said = self._said
        if len(said) < _LENGTH.size:
            return None
        size = _LENGTH.unpack_from(said)[0]
        if size > MAX_ANSWER:
            raise WorkerGone(f"sent an answer of {size} bytes")
        end = _LENGTH.size + size
        if len(said) < end:
            return None
        body = bytes(memoryview(said)[_LENGTH.size : end])
        del said[:end]
        return body


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
