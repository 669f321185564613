"""The launcher's end of the connection to an agent, which may break and be re-established."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from astraflow_core.errors import AstraFlowError, RunFailed

LOOK_S = 0.5
_SHOWN = 80
"""Characters of a line that is not the agent's, in an error."""
MARGIN_S = 3.0
"""How much longer than a host its launcher waits, so that no process of a host that counts as lost is running."""


class Stream(Protocol):
    """A connection to an agent."""

    reader: asyncio.StreamReader

    def write(self, data: bytes) -> None:
        """Send, without waiting."""

    async def close(self) -> str:
        """Close the connection. Returns what the other side reported about a failure, if anything."""


Open = Callable[[], Awaitable[Stream]]


class LinkListener(Protocol):
    """The receiver of an agent's messages. Called in the event loop."""

    def on_states(self, host: str, states: list[dict[str, Any]]) -> None:
        """The states of processes."""

    def on_output(self, key: str, offset: int, data: bytes) -> int | None:
        """Output of a process. Returns how many bytes of it are stored; ``None`` if there is no space now."""

    def on_lost(self, host: str, why: str) -> None:
        """The host was lost, with its processes."""


@dataclass(eq=False)
class AgentLink:
    """``open`` makes a connection to the agent of ``host``. ``silence_s`` is how long the agent waits for a message."""

    host: str
    open: Open
    listener: LinkListener
    silence_s: float
    facts: dict[str, Any] = field(default_factory=dict)
    lost: str = ""
    _asked: dict[int, tuple[bytes, asyncio.Future[Any]]] = field(default_factory=dict)
    _stream: Stream | None = None
    _count: int = 0
    _closing: bool = False
    _last_received: float = 0.0
    _up: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, first_s: float) -> None:
        """Maintain the connection until :meth:`close` or until the host is lost; it must first be established within ``first_s``."""
        self._last_received = time.monotonic()
        allowed, why = first_s, "it did not answer"
        while not self._closing:
            left = self._last_received + allowed - time.monotonic()
            if left <= 0:
                break
            try:
                stream = await asyncio.wait_for(self.open(), left)
            except (OSError, TimeoutError) as error:
                why = str(error) or why
            except AstraFlowError as error:
                why = str(error)
                break
            else:
                said = await self._talk(stream)
                if not self.facts and said and not self._closing:
                    why = said  # it never came up, and says why
                    break
                why = said or "the connection broke and could not be re-established"
            if self.facts:
                allowed = self.silence_s + MARGIN_S
            await asyncio.sleep(LOOK_S / 2)
        if not self._closing:
            self.give_up(why)

    def give_up(self, why: str) -> None:
        """The host is lost: stop waiting for it."""
        if self.lost:
            return
        self.lost = why
        self._up.set()
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(RunFailed(f"host {self.host!r} was lost: {why}"))
        self._asked.clear()
        self.listener.on_lost(self.host, why)

    async def up(self) -> None:
        """Wait until the agent has answered, or is given up."""
        await self._up.wait()

    async def ask(self, do: str, **words: Any) -> Any:
        """Send a command to the agent and return its reply, over the next connection if this one breaks."""
        if self.lost:
            raise RunFailed(f"host {self.host!r} was lost: {self.lost}")
        self._count += 1
        number = self._count
        message = json.dumps({"do": do, "id": number, **words}).encode() + b"\n"
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = message, answer
        self._write(message)
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def close(self, deadline_s: float) -> None:
        """Have the agent kill everything, and close the connection."""
        if not self.lost and self.facts:
            with contextlib.suppress(TimeoutError, RunFailed):  # then it ends after the silence
                await asyncio.wait_for(self.ask("close"), deadline_s)
        self._closing = True
        if self._stream is not None:
            await self._stream.close()

    def _write(self, message: bytes) -> None:
        if self._stream is not None:
            self._stream.write(message)

    async def _talk(self, stream: Stream) -> str:
        """Exchange messages until the connection breaks. Returns the reason."""
        pinging = asyncio.create_task(self._ping())
        try:
            self._stream = stream
            for message, _ in list(self._asked.values()):
                stream.write(message)
            while line := await stream.reader.readline():
                self._last_received = time.monotonic()
                await self._receive(self._words(line))
        except (OSError, ValueError) as error:
            return str(error)
        finally:
            pinging.cancel()
            self._stream = None
            said = await stream.close()
        return said

    async def _ping(self) -> None:
        """Send a heartbeat; disconnect if the agent has been silent for half of its timeout."""
        while True:
            self._write(b'{"do": "ping"}\n')
            await asyncio.sleep(min(LOOK_S, self.silence_s / 8))
            if self._stream and time.monotonic() - self._last_received > max(
                self.silence_s / 2, 3 * LOOK_S
            ):
                await self._stream.close()

    def _words(self, line: bytes) -> dict[str, Any]:
        try:
            words = json.loads(line)
            if not isinstance(words, dict):
                raise ValueError(f"expected an object, got {line[:_SHOWN]!r}")
        except ValueError as error:
            if self.facts:
                raise
            text = line.decode(errors="replace").strip()
            shown = "".join(each if each.isprintable() else "?" for each in text[:_SHOWN])
            raise ValueError(
                f"the shell of {self.host} printed {shown!r} before the agent answered; make `ssh {self.host} true` "
                "print nothing"
            ) from error
        return words

    async def _receive(self, words: dict[str, Any]) -> None:
        if "hello" in words:
            self.facts = words["hello"]
            self._up.set()
        elif "states" in words:
            self.listener.on_states(self.host, words["states"])
        elif "output" in words:
            await self._store(words["output"], words["offset"], base64.b64decode(words["data"]))
        elif (entry := self._asked.get(words.get("answer") or 0)) and not entry[1].done():
            if "error" in words:
                entry[1].set_exception(RunFailed(f"host {self.host!r}: {words['error']}"))
            else:
                entry[1].set_result(words.get("result"))

    async def _store(self, key: str, offset: int, data: bytes) -> None:
        while (stored := self.listener.on_output(key, offset, data)) is None:
            await asyncio.sleep(LOOK_S)
        arrived = {"do": "arrived", "key": key, "offset": stored}
        self._write(json.dumps(arrived).encode() + b"\n")
