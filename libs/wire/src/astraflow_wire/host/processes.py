"""The state of a process on this host, from the kernel."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_STOPPED = ("T", "t")
"""By a signal, or by a debugger."""


@dataclass(frozen=True, slots=True)
class Look:
    """``stopped``: it was stopped (SIGSTOP, Ctrl-Z, a debugger) and did not continue yet. ``cpu_s``: CPU
    seconds that it used so far, children that it waited for included. ``parent``: who started it, or has taken it
    over."""

    stopped: bool
    cpu_s: float
    parent: int


def look_at(pid: int) -> Look | None:
    """The state of a process; ``None`` if it is gone, or where there is no ``/proc`` (only Linux
    has it).
    """
    if sys.platform != "linux":
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; what follows it are fields 3 and up of proc(5).
    fields = text.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    return Look(fields[0] in _STOPPED, ticks / os.sysconf("SC_CLK_TCK"), int(fields[1]))
