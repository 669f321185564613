"""The end of every process that a program has started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass


@dataclass
class Used:
    """What processes that have ended used."""

    cpu_s: float = 0.0


def end_all(first_of_namespace: bool, used: Used | None = None) -> None:
    """Kill and reap all others of this process's namespace, of which it is the first; without such a namespace
    its children, including those whose parent has ended (``PR_SET_CHILD_SUBREAPER``)."""
    used = used or Used()
    while True:
        if first_of_namespace:
            assert os.getpid() == 1, "a signal to all processes stays within the own namespace"
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for child in _children():
                os.kill(child, signal.SIGKILL)
        try:
            _, _, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return
        used.cpu_s += usage.ru_utime + usage.ru_stime


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(each) for each in file.read().split()]
