"""Links that break, stall or flip a bit on command.

A :class:`Link` passes TCP connections on to an address. With a TLS context it is the proxy that the documents recommend
for a network that you do not control: it terminates TLS before the service.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from astraflow_launching.certificates import self_signed

PIECE = 1 << 16
HERE = "127.0.0.1"
T = TypeVar("T")


class Link:
    """From a free port on loopback to port ``upstream``. ``answered``: when the last successful response of a service
    began; known only without encryption in between."""

    def __init__(self, upstream: int, context: ssl.SSLContext | None = None) -> None:
        self._upstream, self._context = upstream, context
        self._writers: set[asyncio.StreamWriter] = set()
        self._flip: random.Random | None = None
        self._closed_until = 0.0
        self.port, self.answered, self.flipped = 0, 0.0, 0

    async def open(self) -> None:
        """Listen."""
        server = await asyncio.start_server(self._passed, HERE, 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]

    def cut(self) -> bool:
        """Break every connection; whether there was any."""
        broken = list(self._writers)
        for writer in broken:
            writer.transport.abort()
        return bool(broken)

    def flip(self, chance: random.Random) -> None:
        """Flip one bit of what passes next."""
        self._flip = chance

    def close_for(self, seconds: float) -> None:
        """Forward nothing and accept no connections; open connections stay open."""
        self._closed_until = time.monotonic() + seconds

    async def _passed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = {writer}
        self._writers.add(writer)
        try:
            await self._gate()
            further = await asyncio.open_connection(HERE, self._upstream)
            opened.add(further[1])
            self._writers.add(further[1])
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, further[1], answers=False))
                pumps.create_task(self._pump(further[0], writer, answers=True))
        except* OSError:
            pass  # links break on purpose
        finally:
            for each in opened:
                self._writers.discard(each)
                each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool
    ) -> None:
        while piece := await reader.read(PIECE):
            await self._gate()
            if (chance := self._flip) is not None:
                self._flip = None
                changed = bytearray(piece)
                changed[chance.randrange(len(piece))] ^= 1 << chance.randrange(8)
                piece = bytes(changed)
                self.flipped += 1
            elif answers and piece.startswith(b"HTTP/1.1 2"):
                self.answered = time.time()
            writer.write(piece)
            await writer.drain()
        raise ConnectionResetError  # the other direction ends with this one

    async def _gate(self) -> None:
        while (left := self._closed_until - time.monotonic()) > 0:
            await asyncio.sleep(left)


class Links:
    """The links of a run, served by a thread of their own until :meth:`close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add(self, upstream: int, context: ssl.SSLContext | None = None) -> Link:
        """A link that is open."""
        link = Link(upstream, context)
        self.do(link.open())
        return link

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a function in the thread of the links."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def cut(self, link: Link) -> bool:
        """:meth:`Link.cut`, called in the thread of the link."""

        async def cut() -> bool:
            return link.cut()

        return self.do(cut())

    def close(self) -> None:
        """End all links."""

        async def end() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of ``127.0.0.1`` that signs itself, and a context that serves with it."""
    made = self_signed((HERE,), timedelta(days=2))
    public = folder / "certificate.pem"
    public.write_bytes(made.public)
    return public, made.server_context()
