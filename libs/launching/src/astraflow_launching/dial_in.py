"""Where agents that a scheduler starts connect to their launcher: TLS, with a separate certificate for each run."""

from __future__ import annotations

import asyncio
import datetime
import hmac
import json
import os
import secrets
import shutil
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import PreflightError
from astraflow_launching import agent
from astraflow_launching.certificates import self_signed

if TYPE_CHECKING:
    from astraflow_launching.link import Stream

NAME = "launcher"
VALID = datetime.timedelta(days=366)
GREETING_S = 10.0
_FOLDER = "launcher"


class DialStream:
    """A connection that an agent has made."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    def write(self, data: bytes) -> None:
        """Send, without waiting."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def close(self) -> str:
        """Close the connection."""
        self._writer.close()
        return ""


class DialIn:
    """Accepts the agents of a run. Each proves that it has read its description, a file with mode 0600 in the run
    directory, which names address, certificate and a secret; nothing secret travels any other way."""

    def __init__(self, directory: Path, silence_s: float) -> None:
        self._silence_s = silence_s
        self._folder = directory / _FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        certificate = self_signed((NAME,), VALID)
        self._certificate, self._tls = certificate.public.decode(), certificate.server_context()
        self._secrets: dict[str, str] = {}
        self._arrived: dict[str, asyncio.Queue[DialStream]] = {}
        self._server: asyncio.Server | None = None
        self._address = ("", 0)
        self._gone: dict[str, str] = {}
        self._open: set[asyncio.StreamWriter] = set()

    async def open(self, address: str) -> None:
        """Listen on ``address``, on any free port."""
        self._server = await asyncio.start_server(
            self._greet, address, 0, ssl=self._tls, limit=agent.LONGEST_LINE
        )
        self._address = address, self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and close open connections: a closed TLS connection waits for its peer."""
        if self._server is not None:
            self._server.close()
        left = list(self._open)
        for writer in left:
            writer.transport.abort()
        async with asyncio.timeout(GREETING_S):
            await asyncio.gather(*(_closed(writer) for writer in left))

    def remove_files(self) -> None:
        """Remove the descriptions, once no agent needs one."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def describe(self, agent_id: str) -> Path:
        """The description for a new agent, as a file for ``agent.py dial FILE``."""
        file = self._folder / f"{agent_id}.json"
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as output:
            output.write(self.description(agent_id))
        return file

    def description(self, agent_id: str) -> str:
        """The content of that file, for a scheduler that keeps secrets itself."""
        self._secrets[agent_id] = secrets.token_urlsafe(32)
        self._arrived[agent_id] = asyncio.Queue()
        return json.dumps(
            {
                "agent": agent_id,
                "secret": self._secrets[agent_id],
                "address": self._address,
                "certificate": self._certificate,
                "silence_s": self._silence_s,
            }
        )

    def way_to(self, agent_id: str) -> Callable[[], Awaitable[Stream]]:
        """Waits for the next connection of an agent."""
        return partial(self._next, agent_id)

    def no_longer(self, agent_id: str, why: str) -> None:
        """An agent will not connect: those that wait for it get the reason."""
        self._gone[agent_id] = why

    async def _next(self, agent_id: str) -> Stream:
        while True:
            try:
                return await asyncio.wait_for(self._arrived[agent_id].get(), 0.5)
            except TimeoutError:
                if why := self._gone.get(agent_id):
                    raise PreflightError(why) from None

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            known = await self._introduced(reader)
            if known is None:
                writer.close()
            else:
                self._arrived[known].put_nowait(DialStream(reader, writer))
            await _closed(writer)
        finally:
            self._open.discard(writer)

    async def _introduced(self, reader: asyncio.StreamReader) -> str | None:
        """The agent that connected, if it knows its secret."""
        try:
            said: Any = json.loads(await asyncio.wait_for(reader.readline(), GREETING_S))
            known, secret = str(said["agent"]), str(said["secret"])
        except (OSError, ValueError, KeyError, TypeError, TimeoutError):
            return None
        expected = self._secrets.get(known, "")
        return known if expected and hmac.compare_digest(expected, secret) else None


async def _closed(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # how it ended is known to whoever reads
        await writer.wait_closed()


def own_address(towards: str) -> str:
    """The address of this host by which ``towards`` reaches it."""
    with socket.socket(
        socket.AF_INET6 if ":" in towards else socket.AF_INET, socket.SOCK_DGRAM
    ) as probe:
        probe.connect((towards, 9))  # sends nothing
        return str(probe.getsockname()[0])
