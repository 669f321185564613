"""Detects that an engine host does not respond, and whether it hangs or was stopped."""

from __future__ import annotations

from astraflow_wire.host.active_clock import active_time
from astraflow_wire.host.processes import look_at
from astraflow_wire.messages import Wait

_BUSY = 0.05
"""The share of a core above which a process counts as busy."""


class StoppedTime:
    """Seconds for which process ``pid`` was stopped so far; updated only when called."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seconds = 0.0
        self._looked = active_time()
        self.now = False

    def __call__(self) -> float:
        """Update the count and return it."""
        look, now = look_at(self._pid), active_time()
        self.now = look is not None and look.stopped
        if self.now:
            self._seconds += now - self._looked
        self._looked = now
        return self._seconds


class HostWatchdog:
    """The time between a ping and its reply. ``str()`` gives its length and what the host does."""

    def __init__(self, pid: int, stopped_s: StoppedTime) -> None:
        self._pid, self._stopped_s = pid, stopped_s
        self._began = active_time()
        self._cpu_s = self._cpu(0.0)

    def _cpu(self, unknown: float) -> float:
        look = look_at(self._pid)
        return look.cpu_s if look is not None else unknown

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return active_time() - self._began

    def is_notable(self, deadline_s: float) -> bool:
        """Whether to report it: the host is stopped, or has been silent for half of its deadline."""
        self._stopped_s()
        return self._stopped_s.now or self.seconds >= deadline_s / 2

    def activity(self) -> str:
        """What the host does instead of responding, as text."""
        self._stopped_s()
        if self._stopped_s.now:
            return f"it was stopped (SIGSTOP); `kill -CONT {self._pid}` resumes it"
        used = self._cpu(self._cpu_s) - self._cpu_s
        does = "busy" if used >= _BUSY * self.seconds else "idle"
        return f"it is {does}: {used:.1f} s of CPU in that time"

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s: {self.activity()}"

    def wait(self, engine: str, host: str, give_up_after_s: float) -> Wait:
        """The wait that its RaaS reports."""
        return Wait(
            who=f"engine of {engine}",
            for_whom=host,
            what=f"a heartbeat; {self.activity()}",
            since_s=self.seconds,
            until_s=max(0.0, give_up_after_s - self.seconds),
        )
