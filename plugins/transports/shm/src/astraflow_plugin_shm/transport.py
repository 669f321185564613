"""The component: gives each side its half."""

from __future__ import annotations

from astraflow_core.types import ComponentContext
from astraflow_plugin_shm.config import ShmConfig
from astraflow_plugin_shm.publisher import ShmPublisher
from astraflow_plugin_shm.receiver import ShmReceiver


class ShmTransport:
    """Transport through shared memory; see :mod:`astraflow_core.protocols.transport`."""

    def __init__(self, config: ShmConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context

    def publisher(self) -> ShmPublisher:
        """A publisher for the context's policy."""
        return ShmPublisher(self._context.policy, self._config.directory)

    def receiver(self) -> ShmReceiver:
        """A receiver for any policy of the run."""
        return ShmReceiver(self._config.directory, ahead=self._config.ahead)
