"""The dataflow without HTTP: one state, and the parts that act on it."""

from __future__ import annotations

from typing import Any

import msgspec

from astraflow_runtime.dataflow.fleet.pool import Pool
from astraflow_runtime.dataflow.fleet.recovering import Recovering
from astraflow_runtime.dataflow.policies.swapping import PolicyBuilder, Swapping
from astraflow_runtime.dataflow.reports.status import balance, status
from astraflow_runtime.dataflow.reports.waits import waits
from astraflow_runtime.dataflow.rows.intake import GroupIntake
from astraflow_runtime.dataflow.rows.training import Training
from astraflow_runtime.dataflow.state import PROMPTS, FlowState
from astraflow_runtime.dataflow.tasks.leasing import Leasing
from astraflow_runtime.dataflow.timeouts import Watch
from astraflow_wire.status import Status, WaitStatus


class Dataflow:
    """``leasing`` and ``intake`` serve RaaS, ``training`` serves trainers, ``watch`` checks
    timeouts, ``swapping`` and ``pool`` serve operators. ``build_policy`` makes the data policies
    that are swapped in.
    """

    def __init__(self, state: FlowState, build_policy: PolicyBuilder) -> None:
        self.state = state
        self.leasing = Leasing(state)
        self.intake = GroupIntake(state)
        self.training = Training(state)
        self.recovering = Recovering(state)
        self.watch = Watch(state)
        self.pool = Pool(state)
        config = state.config
        tables = {policy: table.data for policy, table in config.policies.items()}
        self.swapping = Swapping(state, {PROMPTS: config.prompts.data, **tables}, build_policy)

    def status(self) -> Status:
        """The status of the run: the one source of the live view and the summary."""
        return status(self.state, self.pool.status(), self.waits())

    def balance(self) -> dict[str, Any]:
        """The newest balance report, the pool, and the accounting with its discrepancies."""
        pool = msgspec.to_builtins(self.pool.status()) | self.pool.clock()
        return {"report": self.pool.report(), "pool": pool, **balance(self.state)}

    def waits(self) -> list[WaitStatus]:
        """The current waits."""
        return waits(self.state, self.training)
