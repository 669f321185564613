"""A run as plain lines, for logs and notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.view.formatting import (
    Rates,
    duration,
    episode_metrics,
    number,
    probe_gap,
    rejections,
    sampled,
)
from astraflow_runtime.launch.view.starting import Starting
from astraflow_runtime.telemetry.printable import shown
from astraflow_wire.status import SetResult, Status

_EVERY_S = 2.0
_START_S = 10.0
"""Longest time without a line about the run while it starts."""
_METRICS = 4
_QUIET_S = 30.0
"""Longest time without a line about the run while it continues."""


class PlainView:
    """One line for steps, at most every two seconds; without a step one every 30 seconds; one for each evaluation and
    each event. ``clock`` gives seconds."""

    def __init__(
        self,
        config: RunConfig,
        stream: TextIO,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps, self._stream, self._every_s = config.run.steps, stream, every_s
        self._clock, self._told = clock, clock()
        self._bound = config.run.max_staleness
        self._rates = Rates()
        self._shown = 0.0
        self._step = -1
        self._evals: int | None = None
        self._state = ""
        self._starting, self._ready = Starting(config), -1

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """Write what is new."""
        now = self._clock()
        self._rates.update(now, status.tokens_generated, status.tokens_trained)
        if self._evals is None:  # of a run that continues people have seen all but the last
            self._evals = max(len(status.eval.history) - 1, 0)
        for evaluation in status.eval.history[self._evals :]:
            versions = ", ".join(
                f"{name} {version}" for name, version in evaluation.versions.items()
            )
            accuracy = ", ".join(
                f"{name} {number(entry.avg)}{_failed(entry)}"
                for name, entry in evaluation.sets.items()
            )
            self._write(f"held-out accuracy of version {versions}: {accuracy}")
        self._evals = len(status.eval.history)
        if status.state != self._state:
            self._state = status.state
            told_later = status.state == "failed" or not status.reason
            reason = " ".join(
                status.reason.splitlines()
            )  # the reason is any text of the user who stops the run
            self._write(f"run is {status.state}" + ("" if told_later else f": {reason}"))
        if (start := self._starting.of(status, processes)) is not None and processes:
            if start.ready != self._ready or now - self._told >= _START_S:
                self._told, self._ready = now, start.ready
                self._write(f"starting, {start.share:.0%}: {start}")
            return
        due = now - self._shown >= self._every_s or status.steps == self._steps
        if status.steps != self._step and due:
            self._shown = self._told = now
            self._step = status.steps
            self._write(self._line(status))
        elif now - self._told >= _QUIET_S and not status.ended:
            self._told = now
            self._write(self._line(status) + self._longest_wait(status))

    def _line(self, status: Status) -> str:
        parts = [f"step {status.steps}/{self._steps}"]
        for name, policy in status.policies.items():
            loss = policy.metrics.get("loss")
            parts.append(
                f"{name}: reward {number(policy.reward)} loss {number(loss)} version {max(policy.version, 0)} "
                f"staleness ≤ {policy.max_staleness_seen}/{self._bound} buffer {policy.buffered}"
                f"{probe_gap(policy.metrics)}"
            )
            if rejected := rejections(policy.groups_accepted, policy.rejected):
                parts[-1] += f" {rejected}"
            more = [sampled(policy), episode_metrics(policy, _METRICS)]
            if text := "; ".join(part for part in more if part):
                parts[-1] += f", sampled {text}"
        parts.append(
            f"tokens/s {self._rates.generated:.0f} sampled {self._rates.trained:.0f} trained"
        )
        if status.eta_s is not None and not status.ended:
            parts.append(f"{duration(status.eta_s)} left")
        return " | ".join(parts)

    @staticmethod
    def _longest_wait(status: Status) -> str:
        """Of a run that makes no step, what it waits for."""
        if not status.waits:
            return ""
        return f" | {max(status.waits, key=lambda wait: wait.since_s)}"

    def say(self, message: str) -> None:
        """Write an event."""
        self._write(message)

    def _write(self, line: str) -> None:
        self._stream.write(shown(line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing to put away."""


def _failed(entry: SetResult) -> str:
    """What is said of the prompts of an evaluation set that gave no result."""
    if not entry.failed:
        return ""
    return f" ({entry.failed} of {entry.n + entry.failed} prompts failed: {' '.join(entry.last_error.split())})"
