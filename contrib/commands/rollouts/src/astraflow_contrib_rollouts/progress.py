"""The progress of scoring, reported while it takes long."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator

from astraflow_runtime.cli.output import print_line

EVERY_S = 5.0


class ScoringProgress:
    """The progress over ``total`` rollouts: a line on stderr every few seconds."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._under_way: dict[str, float] = {}

    @contextlib.contextmanager
    def scoring(self, rollout: str) -> Iterator[None]:
        """While ``rollout`` is scored."""
        self._under_way[rollout] = time.monotonic()
        try:
            yield
        finally:
            del self._under_way[rollout]
            self._done += 1

    async def tell(self) -> None:
        """Report until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            print_line(self.line(time.monotonic()), sys.stderr)

    def line(self, now: float) -> str:
        """How many are scored, and which one is under way for the longest time at ``now``."""
        told = f"{self._done} of {self._total} rollouts scored"
        if not self._under_way:
            return told
        longest = min(self._under_way, key=lambda each: self._under_way[each])
        since = now - self._under_way[longest]
        return f"{told}; {len(self._under_way)} under way, {longest} for {since:.0f} s"
