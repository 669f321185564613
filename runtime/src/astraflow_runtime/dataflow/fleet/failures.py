"""Failed tasks in a row, counted for each RaaS: one that fails too many is set aside, and the others continue."""

from __future__ import annotations

import logging

from astraflow_runtime.dataflow.fleet.raas import Fleet, RaasRecord

log = logging.getLogger(__name__)


class FailureCounter:
    """Sets a RaaS aside after ``limit`` failed tasks with no success between. ``expected``: how many RaaS the
    launcher starts; while fewer have registered, the run waits for the others."""

    def __init__(self, fleet: Fleet, limit: int, expected: int) -> None:
        self._fleet, self._limit, self._expected = fleet, limit, expected

    def succeeded(self, name: str) -> None:
        """A RaaS brought a group: it counts from zero, and gets tasks again if it was set aside."""
        record = self._fleet.get(name)
        if record is None:
            return
        record.failures = 0
        if record.set_aside:
            record.set_aside = ""
            log.warning("RaaS %r has succeeded and gets tasks again", name)
        record.any_success = True

    def failed(self, name: str, error: str) -> str:
        """A RaaS failed a task; why the run must end, or nothing."""
        record = self._fleet.get(name)
        if record is None:
            return ""
        record.failures += 1
        if record.failures < self._limit or record.set_aside:
            return ""
        record.set_aside = _reason(record, error)
        log.warning(
            "RaaS %r gets no more tasks: %s. The others continue; restart it to let it take tasks again",
            name, record.set_aside,
        )  # fmt: skip
        return self._nobody_left()

    def _nobody_left(self) -> str:
        known = self._fleet.all()
        if len(known) < self._expected:
            return ""
        remaining = [record for record in known if record.health != "left"]
        if not all(record.set_aside for record in remaining):
            return ""
        if len(remaining) == 1:
            return remaining[0].set_aside
        each = "; ".join(f"{record.name!r}: {record.set_aside}" for record in remaining)
        return f"every RaaS fails its tasks: {each}"


def _reason(record: RaasRecord, error: str) -> str:
    since = "with no success between" if record.any_success else "none succeeded"
    return f"{record.failures} tasks failed in a row, {since}; the last: {error}"
