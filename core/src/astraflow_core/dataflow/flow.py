"""The dataflow without its network: one state, and the parts that act on it."""

from __future__ import annotations

from typing import Any

from astraflow_core.dataflow.leasing import Leasing
from astraflow_core.dataflow.pool import Pool
from astraflow_core.dataflow.reception import Reception
from astraflow_core.dataflow.state import PROMPTS, FlowState
from astraflow_core.dataflow.status import balance, status
from astraflow_core.dataflow.swapping import PolicyBuilder, Swapping
from astraflow_core.dataflow.training import Training
from astraflow_core.dataflow.waits import waits
from astraflow_core.dataflow.watch import Watch


class Dataflow:
    """``leasing`` and ``reception`` face RaaS, ``training`` faces trainers, ``watch`` the clock, ``swapping``
    and ``pool`` people. ``build_policy`` makes the data policies that are swapped in."""

    def __init__(self, state: FlowState, build_policy: PolicyBuilder) -> None:
        self.state = state
        self.leasing = Leasing(state)
        self.reception = Reception(state)
        self.training = Training(state)
        self.watch = Watch(state)
        self.pool = Pool(state)
        config = state.config
        tables = {policy: table.data for policy, table in config.policies.items()}
        self.swapping = Swapping(state, {PROMPTS: config.prompts.data, **tables}, build_policy)

    def status(self) -> dict[str, Any]:
        """JSON-like picture of the run; the one source of the live view and the summary."""
        return {**status(self.state), "pool": self.pool.status(), "waits": self.waits()}

    def balance(self) -> dict[str, Any]:
        """The newest report of the balance, the pool, and the accounting with what does not add up."""
        pool = self.pool.status() | self.pool.clock()
        return {"report": self.pool.report(), "pool": pool, **balance(self.state)}

    def waits(self) -> list[dict[str, Any]]:
        """Who waits for whom."""
        return waits(self.state, self.training)
