"""How long a call waits for others, not counting the time in which a busy machine does not run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_SCHEDULED = Path("/proc/thread-self/schedstat")
"""Nanoseconds that the thread has run, and that it was ready to run and had to wait for a processor."""


def waited(call: Callable[[], object]) -> float:
    """Seconds of ``call`` during which its thread slept. Where the system does not say how long a thread was ready to
    run, that counts too."""
    began, scheduled = time.monotonic(), _scheduled()
    call()
    return max(time.monotonic() - began - (_scheduled() - scheduled), 0.0)


def _scheduled() -> float:
    try:
        running, ready, _ = _SCHEDULED.read_text(encoding="ascii").split()
    except FileNotFoundError:
        return time.thread_time()
    return (int(running) + int(ready)) / 1e9
