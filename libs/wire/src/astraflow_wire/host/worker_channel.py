"""Calls to a worker process over a socket: length-prefixed bytes, one call at a time."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Self, cast

_LENGTH = struct.Struct("<I")
_BUFFER = 64 << 10
"""Bytes that are read at once."""
MAX_ANSWER = 16 << 20
"""The most bytes of a reply of a worker."""


class WorkerGone(Exception):
    """A worker will not reply again; the text says why."""


class WorkerEnded(WorkerGone):
    """The worker has closed its end of the channel: its process has exited, or is about to."""


class MessageProtocol(asyncio.BufferedProtocol):
    """Our end of a connection to a worker. An asyncio protocol, since streams would take half of the time of a call, with a
    buffer of its own, since asyncio would allocate 256 KiB for each message. A subclass says what :meth:`changed` does."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._received = bytearray()
        self._buffer = bytearray(_BUFFER)
        self.ended = False
        self._closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def over(cls, connection: socket.socket) -> Self:
        """One over our end of a pair of sockets."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(cls, sock=connection)
        return made

    def changed(self) -> None:
        """Called when something has arrived, or :attr:`ended` is true."""
        raise NotImplementedError

    def send(self, body: bytes) -> None:
        """Send a message, unless the worker has ended."""
        if not self.ended:
            self._transport.write(_LENGTH.pack(len(body)) + body)

    async def close(self) -> None:
        """Close our end; a worker between two calls then exits."""
        self._transport.close()
        await asyncio.shield(self._closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: connected."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Called by asyncio: where to read to."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio: a part of the worker's message."""
        self._received += memoryview(self._buffer)[:nbytes]
        if len(self._received) > _LENGTH.size + MAX_ANSWER:
            self._transport.abort()  # next_message() rejects it by its size
        self.changed()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio: the worker's end or ours is closed."""
        self.ended = True
        if not self._closed.done():
            self._closed.set_result(None)
        self.changed()

    def next_message(self) -> bytes | None:
        """The first message that was not taken, if it is complete. :class:`WorkerGone` if it is too large."""
        said = self._received
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


class WorkerChannel(MessageProtocol):
    """The end of a caller that makes one call at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._answered: asyncio.Future[None] | None = None

    async def call(self, body: bytes) -> bytes:
        """Call the worker; returns its reply."""
        self.send(body)
        return await self.receive()

    async def receive(self) -> bytes:
        """The next message of the worker. :class:`WorkerGone` if there is none. One task at a time
        may wait for it.
        """
        while (body := self.next_message()) is None:
            if self.ended:
                raise WorkerEnded("ended")
            self._answered = asyncio.get_running_loop().create_future()
            await self._answered
        return body

    def changed(self) -> None:
        """Wake who waits."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)


def answer_calls(connection: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Answer the calls of the other end, until that is closed."""
    for body in messages(connection):
        say(connection, answer(body))


def messages(connection: socket.socket) -> Iterator[bytes]:
    """What the other end sends, until it is closed."""
    stream = connection.makefile("rb")
    while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
        yield stream.read(_LENGTH.unpack(head)[0])


def say(connection: socket.socket, body: bytes) -> None:
    """Send bytes that :meth:`WorkerChannel.receive` returns."""
    connection.sendall(_LENGTH.pack(len(body)) + body)


def read_message(connection: socket.socket) -> bytes:
    """Read exactly one message of :func:`say`; empty if the other end is closed."""
    head = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return b""
    return connection.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)
