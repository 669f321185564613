"""A child process that never outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.3
_GRACE_S = 1.0


def end_with_parent(parent_pid: int) -> None:
    """End this process and its process group soon after ``parent_pid`` is no longer our parent.

    On Linux the kernel sends SIGTERM at once, which leaves a chance to close cleanly; a thread that
    watches the parent kills what is left after a second, on every system.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(target=_watch, args=(parent_pid,), name="parent-watch", daemon=True).start()


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    time.sleep(_GRACE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
