"""What a dataflow is to trainers, served from a record: the same routes, messages and frames."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response

from astraflow_contrib_replay_run.batches import BatchesEnd, ReplayedBatch
from astraflow_core.errors import Refused
from astraflow_wire.batches import encode_no_batch
from astraflow_wire.http.server import Server, create_app, frame, read_message, reply
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    BatchAcknowledged,
    Done,
    NextBatch,
    RegisterTrainer,
    ReleaseBatches,
    TrainerFailed,
    TrainerRegistered,
    VersionAnnounced,
)

LONGEST_POLL_S = 60.0
MAX_BODY_BYTES = 16 << 20
_START_S = 20.0
_STOP_S = 10.0
_INCARNATION = 1


class BatchSource(Protocol):
    """Where the batches come from."""

    def next(self, policy: str) -> ReplayedBatch | BatchesEnd | None:
        """The batch that ``policy`` has to make an update from, the end, or ``None`` while there is neither."""

    def acknowledge(self, message: AcknowledgeBatch) -> None:
        """An update is made."""


@dataclass
class ReplayedStep:
    """An update of the replay; ``weights``: the digest of what it published, empty if it did not."""

    step: int
    batch: str
    digest: str
    metrics: dict[str, float]
    weights: str = ""


@dataclass
class ReplayedPolicy:
    """The results of the replay for a policy."""

    steps: list[ReplayedStep] = field(default_factory=list)
    start_weights: str = ""
    ended: str = ""
    broken: bool = False
    failed: str = ""


class ReplayService:
    """Routes for the trainers of ``policies``. ``told(policy, step)`` is called for each update."""

    def __init__(
        self,
        name: str,
        token: str,
        policies: tuple[str, ...],
        source: BatchSource,
        told: Callable[[str, ReplayedStep], None],
    ) -> None:
        self.policies = {policy: ReplayedPolicy() for policy in policies}
        self.app: FastAPI = create_app("replay", token, MAX_BODY_BYTES)
        self._name, self._source, self._on_update = name, source, told
        self._published: dict[str, str] = {}
        self._changed = asyncio.Condition()
        post: Any = self.app.router.add_route
        for path, act in (
            ("/v1/trainers/register", self._register),
            ("/v1/trainers/failed", self._failed),
            ("/v1/versions", self._announce),
            ("/v1/batches/next", self._next),
            ("/v1/batches/ack", self._acknowledge),
            ("/v1/batches/release", self._release),
        ):
            post(path, act, methods=["POST"])

    def _policy(self, name: str) -> ReplayedPolicy:
        if name not in self.policies:
            raise Refused(400, f"policy {name!r} is not replayed; {', '.join(self.policies)} are")
        return self.policies[name]

    async def _register(self, request: Request) -> Response:
        message = await read_message(request, RegisterTrainer)
        policy = self._policy(message.policy)
        if policy.steps:
            raise Refused(
                409,
                f"the trainer of {message.policy!r} has been replaced, and a replay begins once",
            )
        return reply(
            TrainerRegistered(
                run=self._name, highest_version=-1, updates=0, incarnation=_INCARNATION
            )
        )

    async def _announce(self, request: Request) -> Response:
        message = await read_message(request, AnnouncementMessage)
        policy = self._policy(message.policy)
        self._published[message.policy] = message.digest
        if not policy.start_weights:
            policy.start_weights = message.digest
        return reply(VersionAnnounced(retain=[]))

    async def _next(self, request: Request) -> Response:
        message = await read_message(request, NextBatch)
        policy = self._policy(message.policy)
        loop = asyncio.get_running_loop()
        end = loop.time() + min(message.wait_s, LONGEST_POLL_S)
        while True:
            found = self._source.next(message.policy)
            if isinstance(found, ReplayedBatch):
                self._published.pop(message.policy, None)
                return frame(found.parts)
            if found is not None:
                policy.ended, policy.broken = found.reason, found.broken
                return frame(encode_no_batch(True, found.reason))
            if (left := end - loop.time()) <= 0:
                return frame(encode_no_batch(False, "another trainer makes its update first"))
            async with self._changed:
                try:
                    async with asyncio.timeout(left):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _acknowledge(self, request: Request) -> Response:
        message = await read_message(request, AcknowledgeBatch)
        policy = self._policy(message.policy)
        open_batch = self._source.next(message.policy)
        if isinstance(open_batch, ReplayedBatch) and open_batch.id == message.batch:
            step = ReplayedStep(
                open_batch.step,
                open_batch.id,
                open_batch.digest,
                dict(message.metrics),
                self._published.pop(message.policy, ""),
            )
            self._source.acknowledge(message)
            policy.steps.append(step)
            self._on_update(message.policy, step)
        elif not (policy.steps and policy.steps[-1].batch == message.batch):
            raise Refused(409, f"batch {message.batch!r} is not being trained")
        async with self._changed:
            self._changed.notify_all()
        return reply(BatchAcknowledged(retain=[], stop=False))

    async def _release(self, request: Request) -> Response:
        self._policy((await read_message(request, ReleaseBatches)).policy)
        return reply(Done())

    async def _failed(self, request: Request) -> Response:
        message = await read_message(request, TrainerFailed)
        self._policy(message.policy).failed = message.error
        return reply(Done())


class ServedInThread:
    """``app`` on a free port of loopback, served by a thread, so that the main thread is a debugger's."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="replay", daemon=True)
        self._server: Server | None = None

    def __enter__(self) -> str:
        """Serve; the address."""
        self._thread.start()
        self._server = Server(self._app, "127.0.0.1", 0)
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(_START_S)
        return self._server.url

    def __exit__(self, *error: object) -> None:
        """Stop serving."""
        if self._server is not None:
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
