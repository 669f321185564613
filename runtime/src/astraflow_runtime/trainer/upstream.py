"""The calls of a trainer to the dataflow; each has a deadline."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

from astraflow_core.errors import (
    AstraFlowError,
    DeadlineExceeded,
    Refused,
    UserError,
    VersionSkew,
    WireError,
)
from astraflow_core.types import Announcement, Batch
from astraflow_wire.batches import NoBatch, decode_batch
from astraflow_wire.host.active_clock import active_time
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.recovery import RecoverableVersions, RecoverVersion
from astraflow_wire.limits import sendable
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    BatchAcknowledged,
    Done,
    Message,
    NextBatch,
    Probe,
    RegisterTrainer,
    ReleaseBatches,
    TrainerFailed,
    TrainerRegistered,
    VersionAnnounced,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

FAREWELL_S = 10.0
"""The deadline of reporting that the trainer ends, or why."""

POLL_S = 5.0
"""The longest that a request for a batch is held open, and so the delay until a signal is noticed.
"""

FIRST_TRY_S = 2.0
"""The first interval without a reply after which a trainer checks for a signal; later ones are
longer.
"""
BAD_ATTEMPTS = 4
"""The number of attempts to receive a batch undamaged."""


class DataflowSilent(DeadlineExceeded):
    """The dataflow did not reply in time, or before the trainer had to stop."""


class DataflowClient:
    """A client of the dataflow for the trainer of ``policy``. ``deadline_s`` bounds each call: an
    unreachable dataflow raises :class:`DataflowSilent`. ``given_up()``: whether to stop waiting for
    one that does not reply.
    """

    given_up: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, client: SyncClient, policy: str, deadline_s: float) -> None:
        self._client, self.policy, self._deadline_s = client, policy, deadline_s
        self.incarnation = 0
        """Number of this trainer's registration, which every call carries; 0 before."""
        self.named_rewards: tuple[str, ...] = ()
        """Rewards that batches are to have by name."""
        self.packages: dict[str, str] = {}
        """Those of the run that this process has, which the dataflow compares with its own."""

    def register(
        self, updates: Sequence[int], start_deadline_s: float, recovered: int = -1
    ) -> TrainerRegistered:
        """Register, with the updates after which there is a checkpoint, and the version whose weights
        it has ``recovered``, if any; waits for a dataflow that is still starting. Raises :class:`VersionSkew` if the
        dataflow has another version of a package.
        """
        hello = RegisterTrainer(
            policy=self.policy,
            pid=os.getpid(),
            host=socket.gethostname(),
            updates=tuple(updates),
            recovered=recovered,
            packages=self.packages,
        )
        try:
            registered = self._post(
                "/v1/trainers/register", hello, TrainerRegistered, start_deadline_s
            )
        except Refused as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise
            raise VersionSkew(str(error)) from error
        self.incarnation = registered.incarnation
        return registered

    def recover(self, wait_s: float) -> RecoverableVersions:
        """Who holds a version of the policy; RaaS have ``wait_s`` to answer."""
        return self._tried(
            lambda left: self._client.post(
                "/v1/versions/recover",
                RecoverVersion(policy=self.policy, wait_s=wait_s),
                RecoverableVersions,
                deadline_s=left,
            ),
            wait_s + self._deadline_s,
            wait_s + FIRST_TRY_S,
        )

    def announce(self, announcement: Announcement, probe: Probe | None = None) -> list[int]:
        """Announce a published version; returns the versions to retain."""
        message = AnnouncementMessage(
            policy=announcement.policy,
            version=announcement.version,
            transport=announcement.transport,
            endpoints=list(announcement.endpoints),
            digest=announcement.digest,
            size=announcement.size,
            probe=probe,
            incarnation=self.incarnation,
        )
        return self._post("/v1/versions", message, VersionAnnounced, self._deadline_s).retain

    def next_batch(self, version: int) -> Batch | NoBatch:
        """The batch that updates ``version``, or why there is none (yet). A damaged reply is
        requested again; after :data:`BAD_ATTEMPTS` attempts a :class:`WireError` is raised. A
        :class:`UserError` if the episodes lack one of the ``named_rewards``.
        """
        request = NextBatch(
            policy=self.policy,
            version=version,
            wait_s=POLL_S,
            incarnation=self.incarnation,
            named_rewards=list(self.named_rewards),
        )
        attempt = 1
        while True:
            try:
                body = self._tried(
                    lambda left: self._client.post_for_bytes(
                        "/v1/batches/next", request, deadline_s=left
                    ),
                    POLL_S + self._deadline_s,
                    POLL_S + FIRST_TRY_S,
                )
            except Refused as error:
                if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                    raise
                raise UserError(str(error)) from error
            try:
                return decode_batch(body)
            except WireError as error:
                if attempt == BAD_ATTEMPTS:
                    raise
                log.warning("a batch arrived damaged, attempt %d: %s", attempt, error)
                attempt += 1

    def acknowledge(self, batch: str, version: int, metrics: dict[str, float]) -> BatchAcknowledged:
        """Acknowledge the update of ``batch``; ``version`` is the newest published one. ``metrics``
        that are not finite are left out.
        """
        message = AcknowledgeBatch(
            policy=self.policy,
            batch=batch,
            version=version,
            metrics=sendable(metrics),
            incarnation=self.incarnation,
        )
        return self._post("/v1/batches/ack", message, BatchAcknowledged, self._deadline_s)

    def release(self, updates: int, last: bool = False) -> None:
        """Report a checkpoint that covers all updates up to ``updates``; ``last``: the trainer
        ends, and waits for an unreachable dataflow only as long as a restart takes.
        """
        message = ReleaseBatches(
            policy=self.policy, updates=updates, incarnation=self.incarnation, last=last
        )
        deadline_s = min(FAREWELL_S, self._deadline_s) if last else self._deadline_s
        self._post("/v1/batches/release", message, Done, deadline_s)

    def failed(self, error: AstraFlowError, batch: str = "", who: str = "") -> None:
        """Report that the trainer ends because of ``error``, with the ``batch`` and the rank
        ``who`` that caused it, if any; the exit codes of several ranks would not show the cause. A
        failure to report it is only logged: the dataflow notices that the trainer is gone.
        """
        said = f"{who}: {error}" if who else str(error)
        user = isinstance(error, UserError)
        message = TrainerFailed(
            policy=self.policy, error=said, batch=batch, user=user, incarnation=self.incarnation
        )
        try:
            self._client.post("/v1/trainers/failed", message, Done, deadline_s=FAREWELL_S)
        except AstraFlowError as unheard:
            log.warning("reporting the failure to the dataflow failed: %s", unheard)

    def _post(self, path: str, message: Message, expected: type[T], deadline_s: float) -> T:
        return self._tried(
            lambda left: self._client.post(path, message, expected, deadline_s=left),
            deadline_s,
            FIRST_TRY_S,
        )

    def _tried(self, call: Callable[[float], T], deadline_s: float, try_s: float) -> T:
        """The result of ``call(seconds)``. Each attempt has twice the timeout of the previous one,
        so that a large batch gets through a slow link.
        """
        until = active_time() + deadline_s
        while True:
            left = until - active_time()
            try:
                return call(min(try_s, left))
            except DeadlineExceeded as error:
                if self.given_up() or (left <= try_s and not error.had_no_room):
                    waited_s = deadline_s - max(until - active_time(), 0.0)
                    raise DataflowSilent(error.waited_for, error.what, waited_s) from error
                if error.had_no_room:  # it was reachable, so its timeout starts again
                    until = active_time() + deadline_s
                else:
                    try_s *= 2
