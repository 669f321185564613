"""A run as plain lines, for logs and notebooks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from astraflow_core.config.models import RunConfig
from astraflow_core.launch.figures import Rates, duration, number, probe_gap
from astraflow_core.launch.status import Status
from astraflow_core.protocols.launcher import ProcessState

_EVERY_S = 2.0


class PlainView:
    """At most one line every two seconds, one for each evaluation and one for each event."""

    def __init__(self, config: RunConfig, stream: TextIO, every_s: float = _EVERY_S) -> None:
        self._steps, self._stream, self._every_s = config.run.steps, stream, every_s
        self._bound = config.run.max_staleness
        self._rates = Rates()
        self._shown = 0.0
        self._step = -1
        self._evals: int | None = None
        self._state = ""

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """Write what is new."""
        now = time.monotonic()
        self._rates.update(now, status.tokens_generated, status.tokens_trained)
        if self._evals is None:  # of a run that goes on people have seen all but the last
            self._evals = max(len(status.evals) - 1, 0)
        for evaluation in status.evals[self._evals :]:
            versions = ", ".join(
                f"{name} {version}" for name, version in evaluation.versions.items()
            )
            accuracy = ", ".join(
                f"{name} {number(entry.avg)}" for name, entry in evaluation.sets.items()
            )
            self._write(f"held-out accuracy of version {versions}: {accuracy}")
        self._evals = len(status.evals)
        if status.state != self._state:
            self._state = status.state
            told_later = status.state == "failed" or not status.reason
            self._write(f"run is {status.state}" + ("" if told_later else f": {status.reason}"))
        due = now - self._shown >= self._every_s or status.steps == self._steps
        if status.steps != self._step and due:
            self._shown, self._step = now, status.steps
            self._write(self._line(status))

    def _line(self, status: Status) -> str:
        parts = [f"step {status.steps}/{self._steps}"]
        for name, policy in status.policies.items():
            loss = policy.metrics.get("loss")
            parts.append(
                f"{name}: reward {number(policy.reward)} loss {number(loss)} version {max(policy.version, 0)} "
                f"staleness ≤ {policy.max_staleness_seen}/{self._bound} buffer {policy.buffered}"
                f"{probe_gap(policy.metrics)}"
            )
        parts.append(
            f"tokens/s {self._rates.generated:.0f} sampled {self._rates.trained:.0f} trained"
        )
        if status.eta_s is not None and not status.ended:
            parts.append(f"{duration(status.eta_s)} left")
        return " | ".join(parts)

    def say(self, message: str) -> None:
        """Write an event."""
        self._write(message)

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing to put away."""
