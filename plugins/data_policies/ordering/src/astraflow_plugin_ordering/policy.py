"""Orders of the buffer: earliest deadline first, or first come, first served.

``edf`` is AstraFlow 0.1.2's default queue order: a row must be trained within ``max_staleness`` versions of
its oldest trained token, so the smallest minimum version has the earliest deadline; ties by arrival.
"""

from __future__ import annotations

from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_ordering.config import OrderingConfig


class Ordering:
    """A key for each buffered row; rows with smaller keys are served first."""

    def __init__(self, config: OrderingConfig, context: ComponentContext) -> None:
        self._oldest_version_first = config.by == "edf"

    def key(self, row: BufferedRow) -> float:
        """The row's smallest version, or its arrival number."""
        return float(row.min_version if self._oldest_version_first else row.arrival)
