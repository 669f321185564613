"""Metrics of workflows (``Trajectory.metrics``), averaged over the episodes of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from astraflow_runtime.dataflow.rows.rows import Row
from astraflow_wire.limits import MAX_EPISODE_METRICS


class EpisodeMeans:
    """Means over the batches of ``policy``. Only the first :data:`MAX_EPISODE_METRICS` names of a
    run are averaged, so that a workflow that keeps inventing names does not fill the memory;
    ``complaint`` names it.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._names: dict[str, None] = {}
        self.complaint = ""
        self.episodes = 0
        self.last: dict[str, dict[str, float]] = {}

    def take(self, rows: Sequence[Row]) -> None:
        """A batch was trained. ``episodes``: the number of episodes of its rows; ``last``: name →
        ``mean`` over the episodes that report it, and their number ``episodes``.
        """
        episodes = {row.trajectory: row for row in rows}
        found: dict[str, list[float]] = {}
        for row in episodes.values():
            header = row.received.header
            if not header.metrics:
                continue
            place = header.sequences[row.index].trajectory
            for name, values in header.metrics.items():
                if (value := values[place]) is not None and self._is_tracked(name, header.raas):
                    found.setdefault(name, []).append(value)
        self.episodes = len(episodes)
        self.last = {
            name: {"mean": sum(values) / len(values), "episodes": len(values)}
            for name, values in found.items()
        }

    def _is_tracked(self, name: str, raas: str) -> bool:
        if name in self._names:
            return True
        if len(self._names) < MAX_EPISODE_METRICS:
            self._names[name] = None
            return True
        if not self.complaint:
            self.complaint = (
                f"episodes of policy {self._policy!r} report more than {MAX_EPISODE_METRICS} different metrics; "
                f"{name!r} of RaaS {raas!r}, and any further new name, is dropped. Use the same metric names in "
                "all episodes"
            )
        return False
