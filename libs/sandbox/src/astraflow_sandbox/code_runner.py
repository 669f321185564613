"""The interface between code that needs a program run and the sandbox that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from astraflow_core.errors import WorkflowError

Ending = Literal["exited", "cpu", "deadline", "output"]


class SandboxFailed(WorkflowError):
    """The sandbox could not run a program, for a reason that is not the program's fault: the episode failed,
    and its task is retried."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one program may use: ``cpu_s`` seconds of processor time in each of its processes, in whole seconds;
    ``deadline_s`` seconds of wall time, more than ``cpu_s`` since the machine may be busy; ``memory_mb`` of address space
    for each of its processes, and of memory for all together where the host has a cgroup to give; ``file_mb`` for each
    file; ``output_bytes`` on standard output and on standard error each; ``disk_mb`` for all files together, which are
    kept in memory."""

    cpu_s: int = 4
    deadline_s: float = 30.0
    memory_mb: int = 512
    file_mb: int = 16
    output_bytes: int = 1 << 16
    disk_mb: int = 64


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended. ``code`` is its exit code, 128 + n if signal n killed it. ``ending``: on its
    own (``exited``), or because it used up its processor time, its wall time or its output. Text that is not UTF-8 has
    U+FFFD in its place. ``cpu_s`` is the processor time of all its processes; ``waited_s`` the time for which they
    could have run and had no processor, of a program that ended by its deadline; ``starved`` if that was a third of the
    deadline: the machine was too busy for a meaningful result."""

    code: int
    stdout: str
    stderr: str
    ending: Ending
    cpu_s: float = 0.0
    waited_s: float = 0.0
    starved: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether it exited on its own with code 0."""
        return self.ending == "exited" and self.code == 0


class CodeRunner(Protocol):
    """Runs untrusted Python programs, many at once."""

    async def run(self, program: str, stdin: str = "") -> ProgramResult:
        """Run ``program`` as a main module with ``stdin`` on its standard input. Whatever the program does is returned as a result;
        :class:`SandboxFailed` says that the sandbox itself failed. No process of the program remains when this
        returns or is cancelled."""
