"""The clock of a run."""

from __future__ import annotations

from astraflow_core.telemetry.presence import present_s


class RunClock:
    """Seconds in which the dataflow of a run was there; they only grow. While a journal is read the clock
    stands at the time of what is read, and then goes on from there."""

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
