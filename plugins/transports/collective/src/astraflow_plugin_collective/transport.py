"""The component: gives each side its half."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from astraflow_core.types import ComponentContext
from astraflow_plugin_collective.config import CollectiveConfig
from astraflow_weights.direct.receiver import DirectHttpReceiver
from astraflow_wire.http.listening import own_address

if TYPE_CHECKING:
    from astraflow_plugin_collective.publisher import CollectivePublisher


class CollectiveTransport:
    """Broadcast of whole versions; see :mod:`astraflow_core.protocols.transport`."""

    def __init__(self, config: CollectiveConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context

    def publisher(self) -> CollectivePublisher:
        """A publisher for the context's policy that listens at once."""
        # A RaaS does not need torch and works without it.
        from astraflow_plugin_collective.publisher import CollectivePublisher
        from astraflow_plugin_collective.round import Manner, backend_of

        config = self._config
        manner = Manner(
            host := own_address(config.host),
            config.advertise or host,
            backend_of(config.backend),
            config.window_s,
            config.deadline_s,
            config.bucket_mb << 20,
        )
        return CollectivePublisher(self._context.policy, self._context.token, config.port, manner)

    def receiver(self) -> DirectHttpReceiver:
        """A receiver for any policy of the run; the broadcast itself is received by engines."""
        config = self._config
        folder = Path(config.directory) if config.directory else self._context.directory
        return DirectHttpReceiver(folder, self._context.token, streams=config.streams)
