"""Starts and ends shared engines, which serve the adapters of RaaS of several runs on one host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from astraflow_core.errors import DeadlineExceeded, RunFailed
from astraflow_engine_host.sharing.adapter_file import MOST_RANK as MOST_RANK
from astraflow_engine_host.sharing.main import SharedEngineSpec, Started
from astraflow_engine_host.sharing.messages import SHARED_ENGINES
from astraflow_engine_host.sharing.messages import Attachment as Attachment
from astraflow_engine_host.sharing.seats import line_of
from astraflow_wire.host.disk import replace_file

_MODULE = "astraflow_engine_host.sharing.main"
_STOP_S = 15.0
_SOCKET, _SPEC = "socket", "spec.json"


class SharedEngineProcess:
    """The engine ``use`` with ``options`` and the folder ``model``, in a process of its own. ``folder`` is private to it; ``places``:
    concurrent requests in the engine. Ends with this process."""

    def __init__(
        self, use: str, options: Mapping[str, Any], model: Path, folder: Path, places: int
    ) -> None:
        self._tokens: dict[str, str] = {}
        self.most_adapters = 0
        self._folder = folder
        self._address = f"ipc://{folder / _SOCKET}"
        self._spec = SharedEngineSpec(
            use=use,
            options=dict(options),
            model=str(model),
            address=self._address,
            folder=str(folder),
            places=places,
            parent=os.getpid(),
        )
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The pid of the process, 0 before it was started."""
        return 0 if self._process is None else self._process.pid

    async def start(self, environment: Mapping[str, str], deadline_s: float) -> None:
        """Start it, also again after its end; returns when it serves. Raises :class:`RunFailed` with the reason if it cannot."""
        path = self._folder / _SPEC
        replace_file(path, msgspec.json.encode(self._spec), 0o600)
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", _MODULE, str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._tell()
        assert process.stdout is not None
        try:
            async with asyncio.timeout(deadline_s):
                line = await process.stdout.readline()
        except TimeoutError:
            await self.stop()
            raise DeadlineExceeded("a shared engine", "its start", deadline_s) from None
        except asyncio.CancelledError:
            await asyncio.shield(self.stop())
            raise
        started = msgspec.json.decode(line, type=Started) if line else Started(failure="it ended")
        if started.failure:
            await self.stop()
            raise RunFailed(started.failure)
        self.most_adapters = started.most_adapters

    async def ended(self) -> int:
        """Wait for its end; the exit code."""
        assert self._process is not None
        return await self._process.wait()

    def attachment(self, run: str) -> Attachment:
        """For an engine of a RaaS of ``run``, until :meth:`revoke`."""
        token = secrets.token_hex(32)
        self._tokens[token] = run
        self._tell()
        return Attachment(self._address, token)

    def revoke(self, attachment: Attachment) -> None:
        """Its RaaS has ended: its adapter and its requests are dropped, and its token is no longer valid."""
        self._tokens.pop(attachment.token, None)
        self._tell()

    def _tell(self) -> None:
        """Set the valid tokens; a process that is not running receives them when it starts."""
        pipe = None if self._process is None else self._process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(line_of(self._tokens))

    async def stop(self) -> None:
        """End it, with all that it has started."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()


def environment_of(attachments: Mapping[str, Attachment]) -> dict[str, str]:
    """What a RaaS receives: policy → where its engine is shared."""
    if not attachments:
        return {}
    return {SHARED_ENGINES: msgspec.json.encode(dict(attachments)).decode()}
