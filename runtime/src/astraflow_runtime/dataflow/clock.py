"""The clock of a run."""

from __future__ import annotations

from astraflow_wire.host.active_clock import active_time


class RunClock:
    """Seconds for which the dataflow of a run was running, monotonic across restarts. During a
    replay of the journal the clock shows the time of the entry that is replayed; afterwards it
    continues from there.
    """

    def __init__(self) -> None:
        self._began = active_time()
        self._standing: float | None = None

    def __call__(self) -> float:
        return active_time() - self._began if self._standing is None else self._standing

    def set_time(self, seconds: float) -> None:
        """Stop the clock at ``seconds`` until :meth:`resume`."""
        self._standing = seconds

    def resume(self) -> None:
        """Continue from the time at which it was stopped."""
        if self._standing is not None:
            self._began, self._standing = active_time() - self._standing, None
