"""The component: gives each side its half."""

from __future__ import annotations

from astraflow_core.types import Announcement, ComponentContext
from astraflow_plugin_disk.config import DiskConfig
from astraflow_plugin_disk.publisher import DiskPublisher
from astraflow_plugin_disk.source import StoreSource
from astraflow_weights.fetch.landing import BlockReceiver


class DiskTransport:
    """Transport through a store; see :mod:`astraflow_core.protocols.transport`."""

    def __init__(self, config: DiskConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context

    def publisher(self) -> DiskPublisher:
        """A publisher for the context's policy."""
        context = self._context
        return DiskPublisher(context.run.name, context.policy, context.token, self._config)

    def receiver(self) -> BlockReceiver:
        """A receiver for any policy of the run; its files lie in the component's folder."""
        return BlockReceiver(self._context.directory, self._source)

    def _source(self, announcement: Announcement, endpoint: str) -> StoreSource:
        return StoreSource(announcement, endpoint, self._context.token, self._config)
