"""Orders of the buffer: earliest deadline first, first come first served, or most surprising first.

``edf`` is AstraFlow 0.1.2's default queue order: a row must be trained within ``max_staleness`` versions of
its oldest trained token, so the smallest minimum version has the earliest deadline; ties by arrival.
``surprise`` is the priority of the data policy ``replay``: |reward - group mean| / (group std + 1e-5) from the
statistics stamped at acceptance, largest first. What is expected waits, and may become too stale.
"""

from __future__ import annotations

from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_ordering.config import OrderingConfig
from astraflow_policy_tools.statistics import surprise


class Ordering:
    """A key for each buffered row; rows with smaller keys are served first."""

    def __init__(self, config: OrderingConfig, context: ComponentContext) -> None:
        self._by = config.by

    def key(self, row: BufferedRow) -> float:
        """The row's smallest version, its arrival number, or its surprise with a minus."""
        if self._by == "surprise":
            return -surprise(row)
        return float(row.min_version if self._by == "edf" else row.arrival)
