"""Offers the versions that this RaaS has to a trainer that has lost its state.

The file of a version is published anew by the transport of its policy, as the trainer did it, under the same digest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, Refused, WeightsError
from astraflow_core.protocols.transport import Publisher, Transport
from astraflow_core.types import ExportedTensor, Manifest, WeightSource
from astraflow_runtime.raas.engines.refresh import WeightRefresh
from astraflow_runtime.threads import in_thread
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.http.recovery import OfferVersion
from astraflow_wire.messages import Done
from astraflow_wire.model_files.tensor_file import mapped, read_specs

log = logging.getLogger("astraflow.raas")


class VersionOffers:
    """What is offered now, by policy. ``transports``: policy → transport and its name in the config;
    ``incarnation()``: the number of the registration of this RaaS, which calls carry."""

    def __init__(
        self,
        raas: str,
        client: AsyncClient,
        refreshes: Mapping[str, WeightRefresh],
        transports: Mapping[str, tuple[str, Transport]],
        incarnation: Callable[[], int],
        deadline_s: float,
    ) -> None:
        self._raas, self._client, self._deadline_s = raas, client, deadline_s
        self._refreshes, self._transports = refreshes, transports
        self._incarnation = incarnation
        self._running: dict[str, asyncio.Task[None]] = {}

    def want(self, policies: Sequence[str]) -> None:
        """Offer the newest version of these policies, and no others any longer."""
        for policy in self._refreshes.keys() & set(policies) - self._running.keys():
            self._running[policy] = asyncio.create_task(self._offer(policy))
        for policy in self._running.keys() - set(policies):
            self._running.pop(policy).cancel()

    async def close(self) -> None:
        """Offer nothing any longer."""
        running = list(self._running.values())
        self.want([])
        await asyncio.gather(*running, return_exceptions=True)

    async def _offer(self, policy: str) -> None:
        """Answer, and keep the version available until cancelled."""
        name, transport = self._transports[policy]
        publishing: list[Publisher] = []
        try:
            offer = await self._published(policy, name, transport, publishing)
            if offer.error:
                log.warning("%s offers no version of %r: %s", self._raas, policy, offer.error)
            else:
                log.info("%s offers version %d of %r", self._raas, offer.version, policy)
            await self._client.post("/v1/versions/offer", offer, Done, deadline_s=self._deadline_s)
            await asyncio.Event().wait()
        except (DeadlineExceeded, Refused) as error:
            log.warning("the offer of a version of %r did not arrive: %s", policy, error)
        finally:
            for publisher in publishing:
                await in_thread(f"unpublish-{policy}", publisher.close)

    async def _published(
        self, policy: str, name: str, transport: Transport, publishing: list[Publisher]
    ) -> OfferVersion:
        refresh, number = self._refreshes[policy], self._incarnation()

        def none(error: str) -> OfferVersion:
            return OfferVersion(
                raas=self._raas, policy=policy, endpoints=[], error=error, incarnation=number
            )

        if (version := refresh.newest_file) is None:
            return none("it has no version as a file")
        try:
            async with refresh.borrowed(version) as source:
                publisher, manifest = await in_thread(
                    f"offer-{policy}", partial(_publish, transport, source)
                )
        except (AstraFlowError, OSError) as error:
            return none(f"transport {name!r} cannot offer version {version} from a RaaS: {error}")
        publishing.append(publisher)
        return OfferVersion(
            raas=self._raas,
            policy=policy,
            version=version,
            transport=name,
            endpoints=list(publisher.endpoints),
            digest=manifest.digest,
            size=manifest.size,
            incarnation=number,
        )


def _publish(transport: Transport, source: WeightSource) -> tuple[Publisher, Manifest]:
    """Publish a file as the version that it is; raises :class:`WeightsError` if it becomes another."""
    publisher = transport.publisher()
    try:
        base = {} if source.base is None else {"base": source.base}
        manifest = publisher.publish(source.version, _tensors(source), None, **base)
        if manifest.digest != source.digest:
            raise WeightsError(
                f"when published again, version {source.version} has digest {manifest.digest} instead of "
                f"{source.digest}"
            )
    except BaseException:
        publisher.close()
        raise
    return publisher, manifest


def _tensors(source: WeightSource) -> Iterator[ExportedTensor]:
    with mapped(source.path) as file:
        for spec in read_specs(file):
            with file[spec.start : spec.end] as data:
                yield ExportedTensor(spec.name, spec.dtype, spec.shape, data)
