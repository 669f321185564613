"""A lock on a file that one process at a time may write; the kernel releases it when that process
dies.
"""

from __future__ import annotations

import fcntl
import time

_POLL_S = 0.05


def lock(file: int, deadline_s: float = 0.0) -> bool:
    """Lock an open file for this process, until it is closed; false if another still holds it at the
    deadline."""
    until = time.monotonic() + deadline_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        else:
            return True
