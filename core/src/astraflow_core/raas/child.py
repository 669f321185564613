"""A child process in a group of its own: started from a spec, ended together with its children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from astraflow_core.raas.spec import child_environment


class Child:
    """One child of the RaaS. Its output goes where ours goes: to the log of the RaaS."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(
        cls,
        module: str,
        spec: Path,
        token: str,
        python: str | None = None,
        fds: tuple[int, ...] = (),
    ) -> Child:
        """Start ``python -m module spec``; raises :class:`OSError` if the interpreter is not there."""
        return cls(
            await asyncio.create_subprocess_exec(
                python or sys.executable,
                "-m",
                module,
                str(spec),
                *map(str, fds),
                stdin=asyncio.subprocess.DEVNULL,
                env=child_environment(token),
                pass_fds=fds,
                start_new_session=True,
            )
        )

    async def ended(self) -> str:
        """Wait for the end of the process; how it ended, in words."""
        code = await self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by {signal.Signals(-code).name}"

    def kill(self) -> None:
        """Kill the process and everything that it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    async def stop(self, deadline_s: float) -> None:
        """Wait for an end that was asked for; SIGTERM at half of the deadline, SIGKILL at the end."""
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
