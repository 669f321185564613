"""A process that exits when its parent exits, even if the parent was killed with ``kill -9``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from astraflow_wire.host.processes import look_at

LAUNCHER = "ASTRAFLOW_LAUNCHER"
"""Environment variable: set by a launcher whose processes must not outlive it."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_LOOK_EVERY_S = 0.5
_NOBODY = 0
"""Parent of the first process."""


def signal_at_parent_death(number: int) -> None:
    """Have the kernel send this process ``number`` when the *thread* that started it ends; Linux only,
    elsewhere nothing happens. Survives ``exec``, is not inherited by ``fork``."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, in whatever session they are; Linux only,
    elsewhere nothing happens. Not inherited by ``fork``."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """:func:`adopt_orphans` within the context, on Linux."""
    before = ctypes.c_int()
    library = ctypes.CDLL(None)
    library.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    adopt_orphans()
    try:
        yield
    finally:
        library.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def end_with_parent() -> None:
    """:func:`end_with` the process that started this one, if that was a launcher whose processes
    must not outlive it; a service started by hand outlives its shell. A process that lost its
    parent before this call, such as a rank whose torchrun was killed during its imports, exits at
    once.
    """
    launcher = os.environ.get(LAUNCHER)
    if launcher:
        parent = os.getppid()
        end_with(parent if _descends(parent, int(launcher)) else _NOBODY)


def _descends(pid: int, ancestor: int) -> bool:
    """Whether a process is ``ancestor`` or a descendant of it; true where this is unknown."""
    while pid not in (ancestor, _NOBODY):
        look = look_at(pid)
        if look is None:
            return True
        pid = look.parent
    return pid == ancestor


def end_with(parent: int, grace_s: float = 2.0, cleans_up: bool = True) -> None:
    """End this process when ``parent`` is no longer its parent, even if it is stopped (SIGSTOP) then: SIGTERM, so
    that it can clean up, and after ``grace_s`` an immediate exit, of its process group too. One
    that has nothing to clean up (``cleans_up=False``) is killed by the kernel, even if native code holds the GIL."""
    # Linux only; unlike SIGTERM, SIGCONT reaches a stopped process and lets the thread below run. A
    # launcher may have set SIGKILL, for programs that do not watch their parent.
    signal_at_parent_death(signal.SIGCONT if cleans_up else signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        leads = os.getpgrp() == os.getpid()
        if leads:
            os.killpg(os.getpid(), signal.SIGCONT)  # wakes stopped children, so that they exit
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        if leads:
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
