"""Runs each program in a process of its own, confined by the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from weakref import WeakKeyDictionary

from astraflow_core.errors import PreflightError
from astraflow_sandbox import confinement
from astraflow_sandbox.code_runner import Ending, ProgramLimits, ProgramResult, SandboxFailed

CPU_EXCEEDED = 128 + signal.SIGXCPU
PROBE_DEADLINE_S = 60.0
MOST_STATUS_BYTES = 1 << 12


class SubprocessRunner:
    """A :class:`~astraflow_sandbox.code_runner.CodeRunner` over processes of this interpreter, with the standard library
    and no other package. ``isolated``: no network, no file but the program's own folder and the libraries, no view of other
    processes (Linux namespaces and Landlock). Without it only the limits hold, and the program has the rights of its
    user. At most ``at_once`` programs run at a time, by default one for each processor."""

    def __init__(
        self,
        limits: ProgramLimits | None = None,
        *,
        isolated: bool = True,
        at_once: int | None = None,
    ) -> None:
        self._limits, self._isolated = limits or ProgramLimits(), isolated
        self._at_once = at_once or os.cpu_count() or 1
        # One for each event loop: a semaphore belongs to the first in which somebody waits.
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def check(self) -> None:
        """Run an empty program. :class:`~astraflow_core.errors.PreflightError` says what this host lacks."""
        status, theirs = os.pipe()
        with open(status, "rb") as stream:
            with open(theirs, "wb"), tempfile.TemporaryDirectory() as folder:
                Path(folder, confinement.PROGRAM).touch()
                try:
                    subprocess.run(
                        self._command(theirs),
                        cwd=folder,
                        env={},
                        pass_fds=(theirs,),
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        timeout=PROBE_DEADLINE_S,
                        check=False,
                    )
                except subprocess.TimeoutExpired as error:
                    raise PreflightError(
                        f"the sandbox did not run an empty program within {PROBE_DEADLINE_S:g} s"
                    ) from error
            said = stream.read(MOST_STATUS_BYTES).decode("utf-8", "replace")
        if said != confinement.READY:
            raise PreflightError(
                f"programs that a policy wrote cannot be isolated on this host ({said or 'no answer'}): Linux 5.13 with "
                "Landlock and unprivileged user namespaces is needed. Where everything around is a sandbox already, "
                "isolated = false runs them with limits alone"
            )

    async def run(self, program: str, stdin: str = "") -> ProgramResult:
        """See :class:`~astraflow_sandbox.code_runner.CodeRunner`."""
        loop = asyncio.get_running_loop()
        async with self._places.setdefault(loop, asyncio.Semaphore(self._at_once)):
            folder = tempfile.TemporaryDirectory(
                prefix="astraflow-program-", ignore_cleanup_errors=True
            )
            try:
                file = Path(folder.name, confinement.PROGRAM)
                file.write_text(program, encoding="utf-8", errors="replace")
                return await self._run(folder.name, stdin)
            finally:
                folder.cleanup()

    def _command(self, status: int) -> list[str]:
        settings = json.dumps({**asdict(self._limits), "isolated": self._isolated})
        flags = ["-I", "-S", "-B", "-X", "utf8"]
        return [sys.executable, *flags, confinement.__file__, settings, str(status)]

    async def _run(self, folder: str, stdin: str) -> ProgramResult:
        ours, theirs = os.pipe()
        with open(ours, "rb") as status:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command(theirs),
                    cwd=folder,
                    env={},
                    pass_fds=(theirs,),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxFailed(f"no process for a program: {error}") from error
            finally:
                os.close(theirs)
            result = await self._result(process, stdin)
            said = status.read(MOST_STATUS_BYTES).decode("utf-8", "replace")
        # One that was killed for its deadline may not have got that far, on a machine that is that busy.
        if said != confinement.READY:
            raise SandboxFailed(
                f"the sandbox did not start a program: {said or result.stderr[-500:] or result.ending}"
            )
        return result

    async def _result(self, process: asyncio.subprocess.Process, stdin: str) -> ProgramResult:
        assert process.stdin and process.stdout and process.stderr
        most = self._limits.output_bytes
        out, err = bytearray(), bytearray()
        over = asyncio.Event()
        reading = [
            asyncio.create_task(_read(stream, kept, most, over))
            for stream, kept in ((process.stdout, out), (process.stderr, err))
        ]
        feeding = asyncio.create_task(_feed(process.stdin, stdin))
        killing = asyncio.create_task(self._kill_when(over, process))
        ending: Ending = "exited"
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                await asyncio.gather(*reading, process.wait())
        except TimeoutError:
            ending = "deadline"
        finally:
            self._kill(process)
            for task in (feeding, killing, *reading):
                task.cancel()
            await asyncio.gather(*reading, feeding, killing, return_exceptions=True)
            await process.wait()
        code = process.returncode or 0
        code = code if code >= 0 else 128 - code
        if over.is_set():
            ending = "output"
        elif ending == "exited" and code == CPU_EXCEEDED:
            ending = "cpu"
        return ProgramResult(
            code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), ending
        )

    async def _kill_when(self, over: asyncio.Event, process: asyncio.subprocess.Process) -> None:
        await over.wait()
        self._kill(process)

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """The process and its group. An isolated one that has ended took all others with it."""
        if process.returncode is None or not self._isolated:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


async def _read(
    stream: asyncio.StreamReader, kept: bytearray, most: int, over: asyncio.Event
) -> None:
    """Append to ``kept`` what comes; what is more than ``most`` bytes is thrown away, and sets ``over``."""
    while piece := await stream.read(1 << 16):
        if len(kept) + len(piece) > most:
            over.set()
        kept += piece[: most - len(kept)]


async def _feed(stream: asyncio.StreamWriter, text: str) -> None:
    """Programs need not read what they are given."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text.encode("utf-8", "replace"))
        await stream.drain()
        stream.close()
        await stream.wait_closed()
