"""Draws the curves of a run while it continues."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError
from astraflow_runtime.launch.results import curves
from astraflow_runtime.launch.results.metrics import read_metrics
from astraflow_wire.host.disk import is_full
from astraflow_wire.status import Status

VARIABLE = "ASTRAFLOW_CURVES"
EVERY_S = 30.0
"""Least time between two drawings."""
SHARE = 0.02
"""Most of one core that drawing may take."""
LAST_S = 30.0
"""Longest that the end of a run waits for a drawing."""


def wants_curves() -> bool:
    """Whether a run draws its curves, from the environment. Raises :class:`UserError`."""
    said = os.environ.get(VARIABLE, "")
    if said not in ("", "none"):
        raise UserError(f"{VARIABLE} is {said!r}; expected none, or unset it to have {curves.FILE}")
    return not said


class LiveCurves:
    """``curves.png`` from the first step on, drawn by a thread of the launcher, never by two at once; not at all without
    :func:`wants_curves`. ``clock`` gives seconds."""

    def __init__(
        self, config: RunConfig, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._directory, self._clock = config, directory, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="curves")
        self._drawing: Future[float] | None = None
        self._updates: list[int] = []
        self._due = 0.0 if wants_curves() else math.inf

    def look(self, status: Status) -> str:
        """Draw if a step was made since and it is time; never waits. What a person should know, mostly nothing: a
        drawing that fails is the last one, and the run continues."""
        if self._drawing is not None:
            if not self._drawing.done():
                return ""
            drawn, self._drawing = self._drawing, None
            error = drawn.exception()
            if error is not None and not is_full(error, self._directory):
                self._due = math.inf
                return f"{curves.FILE} is no longer updated during the run: {error!r}"
            cpu_s = 0.0 if error is not None else drawn.result()
            self._due = self._clock() + max(EVERY_S, cpu_s / SHARE)
        updates = [policy.updates for policy in status.policies.values()]
        if any(updates) and updates != self._updates and self._clock() >= self._due:
            self._updates = updates
            self._drawing = self._thread.submit(self._draw)
        return ""

    def close(self) -> None:
        """Wait for a drawing that continues."""
        if self._drawing is not None:
            wait([self._drawing], LAST_S)
        self._thread.shutdown(wait=False)

    def _draw(self) -> float:
        """CPU seconds that it took."""
        began = time.thread_time()
        run, metrics = self._config.run, read_metrics(self._directory, curves.DRAWN)
        if metrics.steps:
            done = max(step.step for step in metrics.steps)
            title = f"{run.name}, seed {run.seed}: {done} of {run.steps} steps"
            curves.draw_curves(metrics, title, run.max_staleness, self._directory / curves.FILE)
        return time.thread_time() - began
