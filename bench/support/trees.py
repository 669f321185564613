"""What Linux says about a process and everything that it started."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A live process. ``cpu_s``: user and system seconds, those of its ended children included;
    ``began``: seconds since the epoch, to 10 ms."""

    pid: int
    parent: int
    cpu_s: float
    began: float
    words: tuple[str, ...]


def tree(root: int) -> dict[int, Process]:
    """``root`` and its descendants by pid, zombies left out."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    every = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _read(entry, booted)) is not None:
            every[process.pid] = process
    found = {root: every[root]} if root in every else {}
    grown = True
    while grown:
        more = {p.pid: p for p in every.values() if p.parent in found and p.pid not in found}
        found |= more
        grown = bool(more)
    return found


def _read(entry: Path, booted: float) -> Process | None:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] == "Z":
        return None
    # proc_pid_stat(5), from field 3: 4 ppid, 14 to 17 times, 22 start.
    cpu = sum(int(field) for field in fields[11:15])
    return Process(
        int(entry.name), int(fields[1]), cpu / TICKS, booted + int(fields[19]) / TICKS, tuple(words)
    )


def cpu_s(root: int) -> float:
    """CPU seconds of a whole tree so far."""
    return sum(process.cpu_s for process in tree(root).values())


def kill(root: int) -> None:
    """SIGKILL to a whole tree, the root first, so that nothing is restarted."""
    for pid in tree(root):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def machine_cpu_s() -> float:
    """CPU seconds that all processes of this machine have used since it started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / TICKS
