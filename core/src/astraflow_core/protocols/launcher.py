"""Launcher: places the processes of a run and watches them; never carries data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Role = Literal["dataflow", "raas", "trainer"]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of a run. ``name`` is unique (``"raas-1"``); ``argv`` its command line, which never
    holds a secret; ``environment``, which does and has no repr, is added to the launcher's own; output is appended to
    ``log``, whose folder may not exist yet. ``ranks``: processes that a trainer starts itself, on the same host."""

    name: str
    role: Role
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class ProcessState:
    """``exit_code`` is ``None`` while the process runs; a signal is negative. ``last_lines`` of its output
    once it ended. ``cpu_s``: CPU seconds, restarts and waited-for children included; of what still runs
    where the launcher knows. ``stopped``: it exists, but is stopped (SIGSTOP)."""

    name: str
    pid: int
    exit_code: int | None
    restarts: int = 0
    last_lines: tuple[str, ...] = field(default=())
    cpu_s: float = 0.0
    stopped: bool = False


class Launcher(Protocol):
    """Built as ``factory(config, context)``."""

    @property
    def restarts(self) -> int:
        """How often a RaaS that died is restarted."""

    def prepare(self, specs: Sequence[ProcessSpec]) -> None:
        """All processes of the run, once, before the first start: allocate the resources, and
        refuse with a :class:`astraflow_core.errors.PreflightError` what cannot be placed."""

    def start(self, spec: ProcessSpec) -> None:
        """Start a process, or restart it after it ended; while it runs, an error with its name in quotes."""

    def poll(self) -> list[ProcessState]:
        """The state of every process started, in order of their first start, also after :meth:`close`; never blocks."""

    def stop(self, name: str, deadline_s: float) -> None:
        """Ask a process and its children to exit, and kill them at the deadline."""

    def logs(self, name: str, lines: int) -> list[str]:
        """The last lines of a process's output."""

    def close(self) -> None:
        """End everything at once; nothing that was started is left running, including children of processes
        that ended. A second call does nothing."""
