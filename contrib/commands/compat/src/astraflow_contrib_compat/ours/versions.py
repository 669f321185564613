"""Versions from a trainer of the public protocol for our RaaS: fetched over the public path, published by our transport."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow_contrib_compat.ours.tasks import OwnTasks
from astraflow_contrib_compat.weights.receiver import PublicWeights
from astraflow_contrib_compat.weights.tensors import buffer_tensors, folder_tensors
from astraflow_core.errors import WeightsError
from astraflow_core.protocols.transport import Publisher
from astraflow_core.types import Manifest
from astraflow_wire.messages import AnnouncementMessage

log = logging.getLogger("astraflow.compat")


@dataclass
class OwnVersion:
    """One policy: its model's folder, its half of our transport, and what receives its versions."""

    policy: str
    model: Path
    transport: str
    publisher: Publisher
    weights: PublicWeights
    version: int = -1
    updating: asyncio.Lock = field(default_factory=asyncio.Lock)


class OwnVersions:
    """The versions of all policies; ``policies``: id of a model → its policy. A version counts when every RaaS serves it,
    for which they have ``serve_s``."""

    def __init__(self, policies: dict[str, OwnVersion], tasks: OwnTasks, serve_s: float) -> None:
        self.policies, self._tasks, self._serve_s = policies, tasks, serve_s

    async def begin(self) -> None:
        """Offer the weights of the models' folders as version 0, as every RaaS of the public protocol has them."""
        for own in self.policies.values():
            manifest = await asyncio.to_thread(own.publisher.publish, 0, folder_tensors(own.model))
            own.version = 0
            await self._tasks.announce(self._announcement(own, manifest), 0)

    async def update(self, model_id: str, version: int, endpoint: str) -> dict[str, Any]:
        """The answer to ``/notify_version``: ``ok`` is false unless our RaaS serve the version."""
        own = self.policies.get(model_id)
        if own is None:
            raise ValueError(f"model_id {model_id!r}: there are {', '.join(self.policies)}")
        async with own.updating:
            told: dict[str, Any] = {"model_id": model_id}
            if version <= own.version:
                reason = f"version={version} <= local={own.version}"
                return {"ok": True, **told, "pulled": False, "reason": reason}
            try:
                layout, buffer, mode = await own.weights.pull(endpoint, version)
                manifest = await asyncio.to_thread(
                    own.publisher.publish, version, buffer_tensors(layout, buffer)
                )
            except WeightsError as error:
                log.warning("version %d of %s was not taken: %s", version, own.policy, error)
                return {"ok": False, **told, "reason": str(error)}
            own.version = version
            if not await self._tasks.announce(self._announcement(own, manifest), self._serve_s):
                return {
                    "ok": False,
                    **told,
                    "reason": f"not every RaaS serves it after {self._serve_s:g} s",
                }
            log.info("version %d of %s is served (%s)", version, own.policy, mode)
            return {
                "ok": True,
                **told,
                "version": version,
                "pulled": True,
                "pull_result": {"mode": mode},
            }

    def _announcement(self, own: OwnVersion, manifest: Manifest) -> AnnouncementMessage:
        return AnnouncementMessage(
            policy=own.policy,
            version=own.version,
            transport=own.transport,
            endpoints=list(own.publisher.endpoints),
            digest=manifest.digest,
            size=manifest.size,
        )

    async def close(self) -> None:
        """Stop publishing and receiving."""
        for own in self.policies.values():
            await own.weights.close()
            await asyncio.to_thread(own.publisher.close)
