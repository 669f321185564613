"""A plugin of pytest: suspends the time limits of tests while a failure is reported. On a busy machine that takes long,
and a timeout raised there would end the whole session, with all tests that have not run yet."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    """Outside of all other hooks."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        return (yield)
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)
