"""The clock of a run."""

from __future__ import annotations

from astraflow_wire.host.active_clock import active_time


class RunClock:
    """Seconds in which the dataflow of a run was there; they only grow. While a journal is read the clock
    stands at the time of what is read, and then continues from there."""

    def __init__(self) -> None:
        self._began = active_time()
        self._standing: float | None = None

    def __call__(self) -> float:
        return active_time() - self._began if self._standing is None else self._standing

    def stand_at(self, seconds: float) -> None:
        """Show ``seconds`` until :meth:`go_on`."""
        self._standing = seconds

    def go_on(self) -> None:
        """Run on from where it stands."""
        if self._standing is not None:
            self._began, self._standing = active_time() - self._standing, None
