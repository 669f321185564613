"""The component: gives each side its half."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from astraflow_core.types import ComponentContext
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.kernels import load_kernel
from astraflow_plugin_delta.companion import DeltaCompanion
from astraflow_plugin_delta.config import DeltaConfig
from astraflow_plugin_delta.receiver import DeltaReceiver
from astraflow_weights.publish.publisher import HttpPublisher
from astraflow_weights.shards.publisher import HttpShardPublisher, no_shards, own_name
from astraflow_wire.http.listening import own_address


def companion(config: DeltaConfig) -> DeltaCompanion:
    """What finds the deltas of a publisher, compiled."""
    codec = Codec(load_kernel(config.kernel))
    codec.rehearse()
    return DeltaCompanion(codec, config.history)


class DeltaPublisher(HttpPublisher):
    """Offers whole versions, and deltas as their side objects."""

    def __init__(self, policy: str, token: str, config: DeltaConfig) -> None:
        self._deltas = companion(config)
        super().__init__(
            policy,
            token,
            host=own_address(config.host),
            port=config.port,
            advertise=own_name(config.advertise),
            companion=self._deltas,
        )

    def close(self) -> None:
        """Stop serving and free everything; closing twice is allowed."""
        self._deltas.close()
        super().close()


class DeltaShardPublisher(HttpShardPublisher):
    """Offers what one rank holds, and deltas of it."""

    def __init__(
        self, context: ComponentContext, share: Callable[[bytes], list[bytes]], config: DeltaConfig
    ) -> None:
        self._deltas = companion(config)
        super().__init__(
            context.policy,
            context.token,
            context.ranks,
            share,
            host=own_address(config.host),
            port=config.port,
            advertise=config.advertise,
            companion=self._deltas,
        )

    def close(self) -> None:
        """Stop serving and free everything; closing twice is allowed."""
        self._deltas.close()
        super().close()


class DeltaTransport:
    """Transport of deltas over HTTP; see :mod:`astraflow_core.protocols.transport`."""

    def __init__(self, config: DeltaConfig, context: ComponentContext) -> None:
        self._config, self._context = config, context

    def publisher(self) -> DeltaPublisher:
        """A publisher for the context's policy that listens at once."""
        return DeltaPublisher(self._context.policy, self._context.token, self._config)

    def no_shards(self, one_host: bool) -> str:
        """See :class:`astraflow_core.protocols.transport.ShardedTransport`."""
        return no_shards(own_address(self._config.host), self._config.advertise, one_host)

    def shard_publisher(self, share: Callable[[bytes], list[bytes]]) -> DeltaShardPublisher:
        """A publisher of what this rank holds, which listens at once."""
        return DeltaShardPublisher(self._context, share, self._config)

    def receiver(self) -> DeltaReceiver:
        """A receiver for any policy of the run; its files lie in the component's folder."""
        config = self._config
        folder = Path(config.directory) if config.directory else self._context.directory
        codec = Codec(load_kernel(config.kernel))
        return DeltaReceiver(folder, self._context.token, streams=config.streams, codec=codec)
