"""The desired number of RaaS: requests to add some, and to drain one."""

from __future__ import annotations

import logging
from typing import Any

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.journal.entries import RaasAsked, RaasDrained
from astraflow_runtime.dataflow.state import FlowState
from astraflow_wire.limits import MAX_RAAS
from astraflow_wire.messages import AddRaas, DrainRaas, PoolChanged
from astraflow_wire.status import PoolStatus

log = logging.getLogger(__name__)


class Pool:
    """Keeps the requests; a launcher starts processes as ``added`` grows. A RaaS that is drained
    gets no new tasks, finishes those that it has, and is then requested to leave, as at the end of a
    run.
    """

    def __init__(self, state: FlowState) -> None:
        self._state = state
        self.added = self.drained = 0
        self._done: set[str] = set()

    def add(self, message: AddRaas) -> PoolChanged:
        """Request more RaaS."""
        state = self._state
        if message.count < 1:
            raise Refused(400, f"{message.count} more RaaS were requested; at least one is needed")
        if message.id in self._done:
            return self._changed()
        if state.progress.ending and not state.replaying:
            raise Refused(409, f"the run is {state.progress.state.value}")
        wanted = self.added - self.drained + message.count
        if wanted > MAX_RAAS:
            raise Refused(
                409,
                f"{wanted} more RaaS than in the config were requested; at most {MAX_RAAS} are allowed",
            )
        state.records.append(RaasAsked(message=message))
        self._done.add(message.id)
        self.added += message.count
        state.fleet.changed_at = state.clock()
        log.info("%s requests %d more RaaS", message.author, message.count)
        return self._changed()

    def drain(self, message: DrainRaas) -> PoolChanged:
        """Ask a RaaS to leave."""
        state = self._state
        record = state.fleet.get(message.raas)
        present = [known.name for known in state.fleet.present()]
        if record is None or record.name not in present:
            raise Refused(
                404,
                f"there is no RaaS {message.raas!r}; the registered ones are {', '.join(present) or 'none'}",
            )
        if record.draining:
            return self._changed()
        if record.stays and len(state.fleet.pool()) < 2:
            raise Refused(409, f"{message.raas!r} is the last RaaS; add another one first")
        state.records.append(RaasDrained(message=message))
        state.fleet.drain(message.raas, state.clock())
        self.drained += 1
        log.info("%s drains RaaS %r", message.author, message.raas)
        state.signals.raas(message.raas)
        state.signals.work()
        return self._changed()

    def status(self) -> PoolStatus:
        """The status of the pool."""
        return PoolStatus(
            size=len(self._state.fleet.pool()),
            added=self.added,
            drained=self.drained,
            reports=self._state.balance.count,
        )

    def report(self) -> dict[str, Any] | None:
        """The newest report, with the current state of each RaaS."""
        reports = self._state.balance.reports
        return self._with_health(reports[-1]) if reports else None

    def clock(self) -> dict[str, float]:
        """``now_s``, and ``changed_s``: when a RaaS last registered, caught up, was drained or
        left; seconds of the run.
        """
        return {"now_s": self._state.clock(), "changed_s": self._state.fleet.changed_at}

    def reports_after(self, number: int) -> list[dict[str, Any]]:
        """The retained reports with a higher number, oldest first."""
        kept = self._state.balance.reports
        return [self._with_health(report) for report in kept if report["number"] > number]

    def _with_health(self, report: dict[str, Any]) -> dict[str, Any]:
        known = {record.name: record for record in self._state.fleet.all()}
        listed = {row["name"]: row for row in report["raas"]}
        names = [*listed, *(name for name in known if name not in listed)]
        rows = []
        for name in names:
            if (record := known.get(name)) is None or (
                name not in listed and record.health in ("gone", "left")
            ):
                continue
            state = {
                "state": record.health,
                "ready": record.caught_up,
                "draining": record.draining,
                "set_aside": record.set_aside,
            }
            rows.append({"name": name, **state, **listed.get(name, {})})
        return {**report, "raas": rows}

    def _changed(self) -> PoolChanged:
        return PoolChanged(
            added=self.added, drained=self.drained, size=len(self._state.fleet.pool())
        )
