"""Versions that are adapters and are kept next to their base: a request keeps the one with which it began."""

from __future__ import annotations

from astraflow_plugin_torch_engine.batch import DecodingBatch
from astraflow_plugin_torch_engine.stacked_adapters import NONE, PreparedAdapter, StackedAdapters


class LiveVersions:
    """The versions of requests that name no adapter: the newest, which new ones get, and those before with which some run.

    ``most``: of them at once; with 0 there is one, the weights, and tokens carry the version that is loaded when they are sampled.
    """

    def __init__(self, most: int, stack: StackedAdapters, batch: DecodingBatch) -> None:
        self._most, self._stack, self._batch = most, stack, batch
        self._live = {NONE: 0}
        """Number of the adapter → version, in the order in which they were loaded."""
        if most:
            stack.newest = NONE, 0

    @property
    def gauges(self) -> dict[str, float]:
        """How many there are."""
        return {"live_versions": len(self._live)} if self._most else {}

    def advance(self, version: int, adapter: PreparedAdapter | None) -> None:
        """``version`` is the newest: an adapter, or else the weights, on which all requests continue. Requests of the oldest
        versions, if there are more than ``most``, continue on it too."""
        if not self._most:
            return
        if adapter is None:
            number, self._live = NONE, {NONE: version}
        else:
            number = self._stack.add(adapter)
            self._live = {**self._live, number: version}
        self._stack.newest = number, version
        self.forget()
        self._live = dict(list(self._live.items())[-self._most :])
        for row, job in enumerate(self._batch.jobs):
            if self._live.get(job.adapter) != job.version:
                self._batch.assign(row, number, version)
        self._stack.forget()

    def forget(self) -> None:
        """Drop the versions, and the adapters without a name, whose last request has ended."""
        if len(self._live) > 1:
            running = {self._stack.newest[0], *self._batch.rows["adapter"].tolist()}
            self._live = {
                number: version for number, version in self._live.items() if number in running
            }
        self._stack.forget()
