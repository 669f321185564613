"""The component: gives each side its half."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from astraflow_core.types import ComponentContext
from astraflow_plugin_http.config import HttpConfig
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_weights.shards.publisher import HttpShardPublisher, no_shards, own_name
from astraflow_wire.http.listening import own_address


class HttpTransport:
    """Transport of whole versions over HTTP; see :mod:`astraflow_core.protocols.transport`."""

    def __init__(self, config: HttpConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context

    def publisher(self) -> HttpPublisher:
        """A publisher for the context's policy that listens at once."""
        config = self._config
        return HttpPublisher(
            self._context.policy,
            self._context.token,
            host=own_address(config.host),
            port=config.port,
            advertise=own_name(config.advertise),
            mirrors=config.mirrors,
        )

    def no_shards(self, one_host: bool) -> str:
        """See :class:`astraflow_core.protocols.transport.ShardedTransport`."""
        if self._config.mirrors:
            return "its mirrors cannot determine which rank has which blocks"
        return no_shards(own_address(self._config.host), self._config.advertise, one_host)

    def shard_publisher(self, share: Callable[[bytes], list[bytes]]) -> HttpShardPublisher:
        """A publisher of what this rank holds, which listens at once."""
        config, context = self._config, self._context
        return HttpShardPublisher(
            context.policy,
            context.token,
            context.ranks,
            share,
            host=own_address(config.host),
            port=config.port,
            advertise=config.advertise,
        )

    def receiver(self) -> HttpReceiver:
        """A receiver for any policy of the run; its files lie in the component's folder."""
        config = self._config
        folder = Path(config.directory) if config.directory else self._context.directory
        return HttpReceiver(folder, self._context.token, streams=config.streams, relay=config.relay)
