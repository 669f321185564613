"""The component: gives each side its half."""

from __future__ import annotations

from astraflow_core.types import Announcement, ComponentContext
from astraflow_plugin_zmq.config import ZmqConfig
from astraflow_plugin_zmq.publisher import ZmqPublisher
from astraflow_plugin_zmq.source import ZmqSource
from astraflow_weights.fetch.landing import BlockReceiver


class ZmqTransport:
    """Transport over ZeroMQ; see :mod:`astraflow_core.protocols.transport`."""

    def __init__(self, config: ZmqConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context

    def publisher(self) -> ZmqPublisher:
        """A publisher for the context's policy that listens at once."""
        return ZmqPublisher(self._context.policy, self._context.token, self._config)

    def receiver(self) -> BlockReceiver:
        """A receiver for any policy of the run; its files lie in the component's folder."""
        return BlockReceiver(self._context.directory, self._source)

    def _source(self, announcement: Announcement, endpoint: str) -> ZmqSource:
        config = self._config
        return ZmqSource(announcement, endpoint, self._context.token, config.credit, config.streams)
