"""A trainer of the public protocol as the trainer of one policy of our run."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

from astraflow_contrib_compat.trainer.rows import public_batch
from astraflow_contrib_compat.weights.receiver import PublicWeights
from astraflow_contrib_compat.weights.tensors import buffer_tensors, folder_tensors
from astraflow_core.errors import AstraFlowError, Refused
from astraflow_core.protocols.transport import Publisher
from astraflow_core.types import Batch, Manifest
from astraflow_wire import messages
from astraflow_wire.batches import decode_batch
from astraflow_wire.http.client import AsyncClient

log = logging.getLogger("astraflow.compat")
POLL_S = 5.0


class ForeignTrainer:
    """The policy ``policy``, whose model is in ``model`` and whose batches have ``rows`` sequences. ``ended`` is set when the
    dataflow needs no further update. Calls raise :class:`Refused` with what the trainer did wrong."""

    def __init__(
        self,
        policy: str,
        model: Path,
        rows: int,
        transport: str,
        publisher: Publisher,
        weights: PublicWeights,
        dataflow: AsyncClient,
        deadline_s: float,
    ) -> None:
        self.policy, self._model, self._rows, self._transport = policy, model, rows, transport
        self._publisher, self._weights, self._dataflow = publisher, weights, dataflow
        self._deadline_s = deadline_s
        self.version, self.updates = -1, 0
        self.ended = asyncio.Event()
        self._endpoint, self._incarnation = "", 0
        self._batch: Batch | None = None
        self._manifest: Manifest
        self._published = (-1, "full")
        self._calling = asyncio.Lock()

    async def ready(self, asked: dict[str, Any]) -> None:
        """``POST /ready``: register, and publish the model's folder as version 0."""
        rows, recovered = asked.get("train_batch_size"), asked.get("recovered_version")
        if rows is not None and rows != self._rows:
            raise Refused(
                400,
                f"train_batch_size is {rows}, batch_sequences of policy {self.policy!r} is {self._rows}: set them equal",
            )
        if recovered:
            raise Refused(
                400,
                "recovered_version: a public trainer cannot continue a run here; start a new one",
            )
        async with self._calling:
            self._endpoint = str(asked.get("sender_endpoint") or self._endpoint)
            if self.version >= 0:
                return
            hello = messages.RegisterTrainer(
                policy=self.policy, pid=os.getpid(), host=socket.gethostname()
            )
            known = await self._post("/v1/trainers/register", hello, messages.TrainerRegistered)
            if known.highest_version >= 0:
                raise Refused(400, f"policy {self.policy!r} already has versions; start a new run")
            self._incarnation = known.incarnation
            if self._published[0] < 0:
                self._manifest = await asyncio.to_thread(
                    self._publisher.publish, 0, folder_tensors(self._model)
                )
                self._published = 0, "full"
            await self._announce(0, self._manifest)

    async def batch(self, version: int | None) -> dict[str, Any] | None:
        """``GET /batch``: the batch that updates the newest version; the same again until that is done. ``None``: there is
        none yet, ask again."""
        if self.version < 0:
            raise Refused(400, "POST /ready first")
        async with self._calling:
            if version not in (None, self.version):
                raise Refused(400, f"version is {version}, the newest is {self.version}")
            await self._next(POLL_S)
            if self.ended.is_set():
                raise Refused(410, "the run needs no further update")
            return None if self._batch is None else public_batch(self._batch)

    async def notify(self, version: int) -> dict[str, Any]:
        """``POST /notify_version``: fetch, publish and announce the update of the last batch."""
        async with self._calling:
            if version <= self.version and (self._batch is None or self._batch.version >= version):
                return _notified(self._published[1])  # the reply of a call before was lost
            if self._batch is None or version != self._batch.version + 1:
                raise Refused(
                    400,
                    f"version is {version}: it has to be one more than that of a batch from GET /batch",
                )
            if not self._endpoint:
                raise Refused(400, "/ready named no sender_endpoint")
            # A call that failed in the middle is repeated: each part is done once.
            if self._published[0] != version:
                layout, buffer, mode = await self._weights.pull(self._endpoint, version)
                tensors = buffer_tensors(layout, buffer)
                self._manifest = await asyncio.to_thread(
                    self._publisher.publish, version, tensors, self.version
                )
                self._published = version, mode
            if self.version < version:
                await self._announce(version, self._manifest)
            done = messages.AcknowledgeBatch(
                policy=self.policy, batch=self._batch.id, version=version, metrics={},
                incarnation=self._incarnation,
            )  # fmt: skip
            answer = await self._post("/v1/batches/ack", done, messages.BatchAcknowledged)
            self._publisher.retain(frozenset(answer.retain))
            self._batch, self.updates = None, self.updates + 1
            await self._next(0.0)  # the public trainer does not ask whether the run has ended
            return _notified(self._published[1])

    async def stop_run(self) -> None:
        """``POST /shutdown``: end the run."""
        await self._post(
            "/v1/stop", messages.StopRun(reason="the public trainer asked for it"), messages.Done
        )

    async def close(self) -> None:
        """Stop publishing; a run that continues is notified that its trainer has left."""
        if self._incarnation and not self.ended.is_set():
            failed = messages.TrainerFailed(
                policy=self.policy, error="`astraflow compat trainer` was stopped", user=True,
                incarnation=self._incarnation,
            )  # fmt: skip
            try:
                await self._post("/v1/trainers/failed", failed, messages.Done)
            except AstraFlowError as error:
                log.warning(
                    "the end of the trainer of %r could not be reported: %s", self.policy, error
                )
        await self._weights.close()
        await asyncio.to_thread(self._publisher.close)

    async def _next(self, wait_s: float) -> None:
        """The next batch, if there is one within ``wait_s``, or the end of the run."""
        if self._batch is not None or self.ended.is_set():
            return
        asked = messages.NextBatch(
            policy=self.policy, version=self.version, wait_s=wait_s, incarnation=self._incarnation
        )
        body = await self._dataflow.post_for_bytes(
            "/v1/batches/next", asked, deadline_s=self._deadline_s
        )
        found = decode_batch(body)
        if isinstance(found, Batch):
            self._batch = found
        elif found.ended:
            await self._end()

    async def _announce(self, version: int, manifest: Manifest) -> None:
        told = messages.AnnouncementMessage(
            policy=self.policy, version=version, transport=self._transport,
            endpoints=list(self._publisher.endpoints), digest=manifest.digest, size=manifest.size,
            incarnation=self._incarnation,
        )  # fmt: skip
        answer = await self._post("/v1/versions", told, messages.VersionAnnounced)
        self._publisher.retain(frozenset(answer.retain))
        self.version = version

    async def _end(self) -> None:
        """No further update is needed: the weights stay until the process ends."""
        released = messages.ReleaseBatches(
            policy=self.policy, updates=self.updates, incarnation=self._incarnation, last=True
        )
        await self._post("/v1/batches/release", released, messages.Done)
        self.ended.set()

    async def _post(self, path: str, message: messages.Message, expected: Any) -> Any:
        return await self._dataflow.post(path, message, expected, deadline_s=self._deadline_s)


def _notified(mode: str) -> dict[str, Any]:
    info = {"use_full": int(mode == "full")}
    return {"ok": True, "eval_results": None, "weight_transfer_info": info}
