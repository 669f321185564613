"""A child process in its own group: started from a spec, ended together with its children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from astraflow_engine_host.spec import child_environment
from astraflow_runtime.forking.child import ForkedChild, forked

_KEPT_BYTES = 4096
_LAST_WORDS_S = 1.0
"""How long to wait for the last output of a child; its descendants may keep the pipe open."""


class Child:
    """One child of the RaaS. Its output goes where ours goes: to the log of the RaaS."""

    def __init__(self, process: asyncio.subprocess.Process | ForkedChild) -> None:
        self._process = process
        self.pid = process.pid
        self._said = b""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        module: str,
        spec: Path,
        token: str,
        python: str | None = None,
        fds: tuple[int, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        through: tuple[str, ...] = (),
    ) -> Child:
        """Start ``python -m module spec``, or ``python THROUGH -m module spec`` with a program that
        starts it; raises :class:`OSError` if the interpreter does not exist.
        """
        words = [python or sys.executable, *through, "-m", module, str(spec), *map(str, fds)]
        variables = child_environment(token, environment)
        if not fds and (child := await forked(words, variables)) is not None:
            return cls(child)
        return cls(
            await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=variables,
                pass_fds=fds,
                start_new_session=True,
            )
        )

    async def ended(self) -> str:
        """Wait for the process to exit; returns how it ended as text, with its last output if it
        failed.
        """
        code = await self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        await asyncio.wait({self._listening}, timeout=_LAST_WORDS_S)
        lines = self._said.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "") if code else ""
        return f"ended with exit code {code}" + (
            f" after printing {last.strip()!r}" if last else ""
        )

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while said := await self._process.stderr.read(1 << 16):
            sys.stderr.buffer.write(said)
            sys.stderr.buffer.flush()
            self._said = (self._said + said)[-_KEPT_BYTES:]

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    async def stop(self, deadline_s: float) -> None:
        """Wait for a requested exit, also of a stopped process; SIGTERM at half of the deadline,
        SIGKILL at its end.
        """
        self._signal(signal.SIGCONT)
        for step in (None, signal.SIGTERM, signal.SIGKILL):
            if step is not None:
                self._signal(step)
            try:
                async with asyncio.timeout(deadline_s / 2):
                    await self._process.wait()
                break
            except TimeoutError:
                continue
        self._signal(signal.SIGKILL)
