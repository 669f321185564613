"""What a trainer says to the dataflow; every call has a deadline."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence

from astraflow_core.errors import AstraFlowError, UserError
from astraflow_core.types import Announcement, Batch
from astraflow_core.wire.batches import NoBatch, decode_batch
from astraflow_core.wire.client import SyncClient
from astraflow_core.wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    BatchAcknowledged,
    Done,
    NextBatch,
    Probe,
    RegisterTrainer,
    ReleaseBatches,
    TrainerFailed,
    TrainerRegistered,
    VersionAnnounced,
)

log = logging.getLogger(__name__)

FAREWELL_S = 10.0
"""Longest to say why the trainer ends."""

POLL_S = 5.0
"""Longest a request for a batch is held; also how soon a signal is noticed while waiting."""


class Dataflow:
    """The dataflow, as the trainer of ``policy`` sees it. ``deadline_s`` bounds each call: an unreachable
    dataflow becomes :class:`astraflow_core.errors.DeadlineExceeded`."""

    def __init__(self, client: SyncClient, policy: str, deadline_s: float) -> None:
        self._client, self.policy, self._deadline_s = client, policy, deadline_s

    def register(self, updates: Sequence[int], start_deadline_s: float) -> TrainerRegistered:
        """Say hello, with the updates after which there is a state to go on from; waits for a dataflow that
        is still starting."""
        hello = RegisterTrainer(
            policy=self.policy, pid=os.getpid(), host=socket.gethostname(), updates=tuple(updates)
        )
        return self._client.post(
            "/v1/trainers/register", hello, TrainerRegistered, deadline_s=start_deadline_s
        )

    def announce(self, announcement: Announcement, probe: Probe | None = None) -> list[int]:
        """Tell of a published version; returns the versions to retain."""
        message = AnnouncementMessage(
            policy=announcement.policy,
            version=announcement.version,
            transport=announcement.transport,
            endpoints=list(announcement.endpoints),
            digest=announcement.digest,
            size=announcement.size,
            probe=probe,
        )
        return self._client.post(
            "/v1/versions", message, VersionAnnounced, deadline_s=self._deadline_s
        ).retain

    def next_batch(self, version: int) -> Batch | NoBatch:
        """The batch that updates ``version``, or why there is none (yet)."""
        request = NextBatch(policy=self.policy, version=version, wait_s=POLL_S)
        body = self._client.post_for_bytes(
            "/v1/batches/next", request, deadline_s=POLL_S + self._deadline_s
        )
        return decode_batch(body)

    def acknowledge(self, batch: str, version: int, metrics: dict[str, float]) -> BatchAcknowledged:
        """The update made from ``batch`` is done; ``version`` is the newest published one."""
        message = AcknowledgeBatch(
            policy=self.policy, batch=batch, version=version, metrics=metrics
        )
        return self._client.post(
            "/v1/batches/ack", message, BatchAcknowledged, deadline_s=self._deadline_s
        )

    def release(self, updates: int) -> None:
        """A checkpoint holds all updates up to ``updates``."""
        message = ReleaseBatches(policy=self.policy, updates=updates)
        self._client.post("/v1/batches/release", message, Done, deadline_s=self._deadline_s)

    def failed(self, error: AstraFlowError, batch: str = "", who: str = "") -> None:
        """The trainer ends because of ``error``, at ``batch`` and in the rank ``who`` if any is to blame; whose fault
        it is would be lost with the exit codes of several ranks. A dataflow that does not hear of it is no further
        error: it sees that the trainer is gone."""
        said = f"{who}: {error}" if who else str(error)
        user = isinstance(error, UserError)
        message = TrainerFailed(policy=self.policy, error=said, batch=batch, user=user)
        try:
            self._client.post("/v1/trainers/failed", message, Done, deadline_s=FAREWELL_S)
        except AstraFlowError as unheard:
            log.warning("the dataflow did not hear of the failure: %s", unheard)
