"""A task that failed on a RaaS is tried elsewhere, if another RaaS can lease it soon.

Failures have causes that stay with a RaaS: its host, its sandboxes, its version of a tool. For a while the task waits for the
others. Nothing waits longer: then, or when no other RaaS is left that could have it, the RaaS on which it failed may have it again.
"""

from __future__ import annotations

from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.queue import TaskRecord

ELSEWHERE_S = 5.0
"""How long a task waits for other RaaS after it has failed on one."""


def prefer_others(state: FlowState, task: TaskRecord, raas: str) -> None:
    """A task that is queued again has failed on ``raas``."""
    task.failed_on[raas] = state.clock() + ELSEWHERE_S
    if not _others(state, task):
        task.failed_on.clear()


def stop_waiting(state: FlowState) -> None:
    """Release to every RaaS the tasks that have waited long enough, or that no RaaS is expected for."""
    now, changed = state.clock(), False
    for table in (state.train, state.eval):
        for task in table.kept_from_some:
            ended = [raas for raas, until in task.failed_on.items() if now >= until]
            if len(ended) < len(task.failed_on) and not _others(state, task):
                ended = list(task.failed_on)
            for raas in ended:
                del task.failed_on[raas]
                changed = True
    if changed:
        state.signals.work()


def _others(state: FlowState, task: TaskRecord) -> bool:
    """Whether there is a RaaS that could have the task and on which it has not failed lately."""
    return any(
        record.name not in task.failed_on
        for record in state.fleet.live()
        if record.stays and record.caught_up
        if not task.pinned or record.serves(task.pinned)
    )
