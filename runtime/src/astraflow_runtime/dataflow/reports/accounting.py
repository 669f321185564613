"""Both accounting invariants of a run, as properties that are checked and exported."""

from __future__ import annotations

from astraflow_runtime.dataflow.rows.stream import PolicyStream
from astraflow_runtime.dataflow.tasks.queue import TaskTable


def task_counts(tasks: TaskTable) -> dict[str, int]:
    """Tasks by state; ``lost``, those in no state, must be 0."""
    counts = {
        "accepted": tasks.outcomes["accepted"],
        "rejected": tasks.outcomes["rejected"],
        "failed": tasks.outcomes["failed"],
        "set_aside": tasks.outcomes["set_aside"],
        "running": len(tasks.leased()),
        "queued": tasks.queued,
    }
    return {"admitted": tasks.admitted, **counts, "lost": tasks.admitted - sum(counts.values())}


def row_counts(stream: PolicyStream) -> dict[str, int]:
    """Accepted rows of a policy by state; ``lost`` must be 0."""
    counts = {
        "trained": stream.rows.trained,
        "being_trained": stream.being_trained,
        "buffered": len(stream.buffer),
        "stale": stream.rows.stale,
        "evicted": stream.rows.evicted,
    }
    return {
        "accepted": stream.rows.accepted,
        **counts,
        "lost": stream.rows.accepted - sum(counts.values()),
    }


def imbalances(tasks: TaskTable, streams: dict[str, PolicyStream]) -> list[str]:
    """The invariants that do not hold, as text; empty if all do."""
    found = []
    counts = task_counts(tasks)
    if counts["lost"]:
        found.append(
            f"{counts['lost']} of {counts['admitted']} admitted tasks are unaccounted for: {counts}"
        )
    for policy, stream in streams.items():
        rows = row_counts(stream)
        if rows["lost"]:
            found.append(
                f"{rows['lost']} of {rows['accepted']} rows of {policy!r} are unaccounted for: {rows}"
            )
        lent = stream.source_counts
        if lent["lost"]:
            found.append(
                f"{lent['lost']} of {lent['lent']} rows shared with {policy!r} are unaccounted for: {lent}"
            )
    return found
