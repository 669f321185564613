"""A process that ends when the one that started it is gone, even if that was killed with ``kill -9``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

LAUNCHER = "ASTRAFLOW_LAUNCHER"
"""Set by a launcher whose processes shall not outlive it."""

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.5


def signal_at_parent_death(number: int) -> None:
    """Have the kernel send this process ``number`` when the *thread* that started it ends; Linux only,
    elsewhere nothing happens. Survives ``exec``, is not inherited by ``fork``."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_with_parent(grace_s: float = 2.0) -> None:
    """End this process when the parent that the launcher gave it is gone: SIGTERM, so that it can clean
    up, and after ``grace_s`` an exit that nothing can hold up.

    Without a launcher nothing happens: a service started by hand outlives its shell.
    """
    if not os.environ.get(LAUNCHER):
        return
    parent = os.getppid()
    # The launcher asked the kernel for SIGKILL, which is right for programs that do not watch.
    signal_at_parent_death(signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
