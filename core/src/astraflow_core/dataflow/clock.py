"""The clock of a run."""

from __future__ import annotations

from astraflow_core.telemetry.presence import present_s


class RunClock:
    """Seconds in which this process ran; they only grow. While a journal is read it stands at the time of what is read; then it goes
    on from there, so that the time in which nobody served does not count."""

    def __init__(self) -> None:
        self._began = present_s()
        self._standing: float | None = None

    def __call__(self) -> float:
        return present_s() - self._began if self._standing is None else self._standing

    def stand_at(self, seconds: float) -> None:
        """Show ``seconds`` until :meth:`go_on`."""
        self._standing = seconds

    def go_on(self) -> None:
        """Run on from where it stands."""
        if self._standing is not None:
            self._began, self._standing = present_s() - self._standing, None
