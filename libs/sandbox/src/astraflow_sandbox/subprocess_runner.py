"""Runs each program in a separate interpreter, confined by the kernel."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from typing import TypeVar
from weakref import WeakKeyDictionary

from astraflow_core.errors import PreflightError
from astraflow_sandbox.code_runner import ProgramLimits, ProgramResult, SandboxFailed
from astraflow_sandbox.guest_process import Gone, GuestProcess, IsolationRefused, SandboxReport
from astraflow_sandbox.packages import imports_of
from astraflow_sandbox.shell import HOST_PROGRAMS, python_of_host, shell_program

T = TypeVar("T")
LAYERS = frozenset({"namespaces", "files", "landlock", "seccomp", "user", "cgroup"})


class SubprocessRunner:
    """A :class:`~astraflow_sandbox.code_runner.CodeRunner` over processes of this interpreter, each started for one
    program, with the standard library and ``packages`` (names to import, such as ``numpy``; read-only, and imported
    before the program begins). ``isolated``: no network, no file but the program's own folder and the libraries, no view
    of other processes, by the layers that this host has. Without it only the limits apply, and the program has the rights
    of its user. ``without`` leaves layers out of ``LAYERS``, as a host without them would. At most ``at_once`` programs
    run at a time, by default one for each processor. ``host_programs``: programs may start those of the host, and what they
    write; ``folders`` are absolute names, such as ``/app``, that lead into the program's own folder."""

    def __init__(
        self,
        limits: ProgramLimits | None = None,
        *,
        isolated: bool = True,
        at_once: int | None = None,
        packages: Sequence[str] = (),
        without: Sequence[str] = (),
        host_programs: bool = False,
        folders: Sequence[str] = (),
    ) -> None:
        if unknown := set(without) - LAYERS:
            raise ValueError(
                f"no layer {sorted(unknown)[0]!r}; there are {', '.join(sorted(LAYERS))}"
            )
        self._settings = {
            **asdict(limits or ProgramLimits()),
            **imports_of(packages),
            "isolated": isolated,
            "without": list(without),
            "executable": host_programs,
            "folders": list(folders),
        }
        if host_programs:
            self._settings["readable"] += [*HOST_PROGRAMS, *python_of_host()]
        self._at_once = at_once or os.cpu_count() or 1
        # One for each event loop: a semaphore is bound to the first loop that waits on it.
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def check(self) -> SandboxReport:
        """The layers that hold on this host; raises :class:`~astraflow_core.errors.PreflightError` with what it lacks."""
        try:
            guest = GuestProcess(self._settings)
        except (IsolationRefused, SandboxFailed) as error:
            raise PreflightError(
                f"programs that a policy wrote cannot be isolated on this host ({error}): Linux 5.13 with Landlock and "
                "unprivileged user namespaces is needed, or root. If the whole environment is already a sandbox, "
                "isolated = false runs them with resource limits only"
            ) from error
        guest.end()
        return guest.report

    async def run(self, program: str, stdin: str = "") -> ProgramResult:
        """See :class:`~astraflow_sandbox.code_runner.CodeRunner`."""
        async with self._slots():
            guest = await self._started()
            try:
                return await guest.run(program, stdin)
            finally:
                await _finished(guest.end)

    def _slots(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        return self._places.setdefault(loop, asyncio.Semaphore(self._at_once))

    async def _started(self) -> GuestProcess:
        def start() -> GuestProcess:
            return GuestProcess(self._settings)

        try:
            return await _finished(start, GuestProcess.end)
        except IsolationRefused as error:
            raise SandboxFailed(f"the sandbox did not start a program: {error}") from error


async def _finished(act: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """``act()`` in a thread, waited for even by one who is cancelled; then ``undo`` takes back what it gave."""
    acting = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(acting)
    except asyncio.CancelledError:
        await asyncio.wait({acting})
        if undo is not None and acting.exception() is None:
            await asyncio.to_thread(undo, acting.result())
        raise


def end_guests(guests: list[GuestProcess]) -> None:
    """End them all."""
    while guests:
        guests.pop().end()


class WarmRunner(SubprocessRunner):
    """A :class:`~astraflow_sandbox.code_runner.CodeRunner` over interpreters that stay: each forks a process for a program
    and nothing of it is left when the next one comes. They are started when they are needed, replaced when they end,
    and end with their caller or with ``close``."""

    def __init__(
        self,
        limits: ProgramLimits | None = None,
        *,
        isolated: bool = True,
        at_once: int | None = None,
        packages: Sequence[str] = (),
        without: Sequence[str] = (),
        host_programs: bool = False,
        folders: Sequence[str] = (),
    ) -> None:
        super().__init__(
            limits,
            isolated=isolated,
            at_once=at_once,
            packages=packages,
            without=without,
            host_programs=host_programs,
            folders=folders,
        )
        self._idle: list[GuestProcess] = []
        self.close = weakref.finalize(self, end_guests, self._idle)

    async def run(self, program: str, stdin: str = "") -> ProgramResult:
        """See :class:`~astraflow_sandbox.code_runner.CodeRunner`."""
        async with self._slots():
            guest: GuestProcess | None = None
            try:
                async with self._guest() as guest:
                    return await guest.run(program, stdin)
            except Gone:
                if guest is None or guest.used == 1:
                    raise
            # It may have exited before the program arrived; retry with a new one.
            async with self._guest(new=True) as guest:
                return await guest.run(program, stdin)

    async def evaluate(self, code: str) -> ProgramResult:
        """The result of one piece of code in a session that then ends; it counts as one of ``at_once``."""
        async with self._slots(), self.session() as session:
            return await session.run(code)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """An interpreter that keeps its state from one piece of code to the next; it does not count
        towards ``at_once``."""
        async with self._guest() as guest:
            yield Session(guest)
            await guest.end_session()

    @asynccontextmanager
    async def workspace(self) -> AsyncIterator[Workspace]:
        """A folder whose files stay from one program to the next; each program counts for one of ``at_once``."""
        async with self._guest() as guest:
            yield Workspace(guest, self._slots)
            await guest.remove_files()

    @asynccontextmanager
    async def _guest(self, new: bool = False) -> AsyncIterator[GuestProcess]:
        """One that is idle, or a new one; it is kept if what is done with it ends well."""
        guest = self._idle.pop() if self._idle and not new else await self._started()
        try:
            yield guest
        except BaseException:
            await _finished(guest.end)
            raise
        if guest.usable and len(self._idle) < self._at_once:
            self._idle.append(guest)
        else:
            await _finished(guest.end)


class Session:
    """Code that is run piece by piece in one process, as in a notebook: the value of an expression at the end of a piece
    is written to its standard output."""

    def __init__(self, guest: GuestProcess) -> None:
        self._guest = guest

    @property
    def alive(self) -> bool:
        """Whether the next piece finds the state of the last one."""
        return self._guest.in_session

    async def run(self, code: str) -> ProgramResult:
        """What a piece has written; ``code`` of the result is 1 if it raised, and the state stays. One that used up a limit,
        or ended its process, has taken the state with it: the next piece begins anew."""
        return await self._guest.run(code, mode="cell")


class Workspace:
    """A folder and the programs that run in it, one after the other: their files stay, their processes do not."""

    def __init__(
        self, guest: GuestProcess, place: Callable[[], AbstractAsyncContextManager[object]]
    ) -> None:
        self._guest, self._slots = guest, place

    async def run(self, program: str, stdin: str = "") -> ProgramResult:
        """See :class:`~astraflow_sandbox.code_runner.CodeRunner`, but for the files."""
        async with self._slots():
            return await self._guest.run(program, stdin, keeps=True)

    async def shell(
        self, command: str, folder: str = ".", variables: Mapping[str, str] | None = None
    ) -> ProgramResult:
        """What a command of bash writes, standard error among standard output, from ``folder`` on. The runner has to be
        one with ``host_programs``."""
        return await self.run(shell_program(command, folder, variables or {}))
