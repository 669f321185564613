"""The dataflow over HTTP: each route decodes, calls the state and encodes; some wait."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from astraflow_core.errors import AstraFlowError, Refused, WireError
from astraflow_runtime.dataflow.fleet.incarnations import check_incarnation
from astraflow_runtime.dataflow.fleet.names import name_holder
from astraflow_runtime.dataflow.fleet.notices import has_notices
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.http.access_records import AccessRecords
from astraflow_runtime.dataflow.http.balance_events import balance_events
from astraflow_runtime.dataflow.http.exporter import exporter
from astraflow_runtime.dataflow.http.rights import RIGHTS, check_sender, includes
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.image.keeper import ImageKeeper
from astraflow_runtime.package_skew import package_skew
from astraflow_runtime.threads import in_thread
from astraflow_wire.host.process import FULL_COLLECTION_S
from astraflow_wire.http.access import ROLES, Access, Grant, is_name
from astraflow_wire.http.client import NO_ROOM
from astraflow_wire.http.drafts import AskDrafts, encode_drafts
from astraflow_wire.http.recovery import OfferVersion, RecoverVersion
from astraflow_wire.http.server import create_app, frame, read_message, reply
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AddRaas,
    AnnouncementMessage,
    Done,
    DrainRaas,
    FailTask,
    LeaseTasks,
    LeaveRaas,
    Message,
    NextBatch,
    RegisterRaas,
    RegisterTrainer,
    ReleaseBatches,
    RenewLeases,
    RevokeToken,
    StopRun,
    SwapPolicy,
    TokenRevoked,
    TrainerFailed,
    TrainerRegistered,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R", RegisterRaas, RegisterTrainer)

LONGEST_POLL_S = 60.0
SWEEP_S = 1.0
NAME_S = 0.1
"""Seconds between two checks of a registration that waits for its name, or of a trainer that waits for offers."""
MAX_BODY_BYTES = 512 << 20
"""Largest request: a group of some 40 million tokens."""


class DataflowService:
    """The routes of the dataflow, and its periodic sweep. ``wakeups`` must be the signals of the
    flow's state. Without ``records`` nothing is kept of who changes the run, and which tokens were revoked; without
    ``images`` no image of the state is written. ``packages``: what this process has, and others are to have
    (:func:`astraflow_runtime.package_skew.packages_of_run`).
    """

    def __init__(
        self,
        flow: Dataflow,
        wakeups: Wakeups,
        token: str,
        routers: Iterable[Any] = (),
        records: AccessRecords | None = None,
        images: ImageKeeper | None = None,
        packages: Mapping[str, str] | None = None,
    ) -> None:
        self.flow, self.wakeups, self._images = flow, wakeups, images
        self._packages = packages or {}
        self.records = records or AccessRecords()
        self.access = Access(token, self.records.oldest())
        wakeups.work_available = flow.leasing.work_available
        self._metrics = exporter(flow.status)
        self.app = create_app(
            "dataflow", token, MAX_BODY_BYTES, access=self.access, rights=self._includes
        )
        self.app.state.dataflow = flow
        self._add_routes()
        for router in routers:
            self.app.include_router(router)

    @property
    def _period_s(self) -> float:
        return min(SWEEP_S, self.flow.state.config.run.lease_s / 8)

    async def sweep(self) -> None:
        """Check leases, heartbeats and deadlines periodically, until cancelled."""
        loop = asyncio.get_running_loop()
        collected = loop.time()
        while True:
            await asyncio.sleep(self._period_s)
            if loop.time() - collected >= FULL_COLLECTION_S:
                gc.collect()
                collected = loop.time()
            with self._guarded():
                self.flow.watch.sweep()
                if self._images is not None:
                    self._images.look()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Return rejections of the state to the caller; any other error fails the run, with its
        cause.
        """
        try:
            yield
        except (Refused, WireError):
            raise
        except AstraFlowError as error:
            self.flow.state.fail(str(error))
            raise Refused(409, f"the run has failed: {error}") from error
        except Exception as error:
            log.exception("the dataflow failed")
            self.flow.state.fail(f"the dataflow failed: {type(error).__name__}: {error}")
            raise

    @contextmanager
    def _audited(self, request: Request, path: str, message: Message) -> Iterator[None]:
        """Record who changes the run, and how it ended."""
        if RIGHTS[path] != "operator":
            yield
            return
        record = partial(self.records.record, request.scope["grant"], path, message)
        try:
            yield
        except Exception as error:
            record(f"refused: {error}")
            raise
        record("done")

    def _includes(self, grant: Grant, method: str, path: str) -> bool:
        """Whether a token includes a request; one that does not is recorded."""
        if included := includes(grant, method, path):
            return included
        self.records.record(grant, path, Done(), "refused: not among the rights of the role")
        return False

    def _revoke(self, message: RevokeToken) -> TokenRevoked:
        role = next((role for role in ROLES if role == message.role), None)
        if role is None:
            raise Refused(400, f"no role {message.role!r}; there are {', '.join(ROLES)}")
        if not is_name(message.name):
            raise Refused(400, f"no token can be made for {message.name!r}: it is not a valid name")
        generation = self.access.revoke(role, message.name)
        self.records.write_oldest(self.access.oldest)
        return TokenRevoked(generation)

    async def _written(self) -> None:
        """Return when the journal has recorded everything so far: a reply is a promise, and a
        restarted dataflow has only what is written. A caller that gets :data:`NO_ROOM` retries: its
        request was carried out, and is so once only. At the end of a run nothing waits for this.
        """
        state = self.flow.state
        for pause_s in (self._period_s, 0.0):
            if not state.records.unwritten or state.progress.ending:
                return
            await asyncio.sleep(pause_s)
        raise Refused(NO_ROOM, state.held_back)

    async def _register_raas(self, request: Request) -> Response:
        message = await _message(request, RegisterRaas)
        message = self._same_packages(message.raas, message)
        came = self.flow.state.clock()
        while name_holder(self.flow.state, message, came) is not None:
            await asyncio.sleep(NAME_S)
            if await request.is_disconnected():
                return Response()  # of a process that ended must not take the name
        with self._guarded():
            done = self.flow.leasing.register(message)
        await self._written()
        return reply(done)

    def _register_trainer(self, message: RegisterTrainer) -> TrainerRegistered:
        who = f"the trainer of {message.policy}"
        return self.flow.training.enter(self._same_packages(who, message))

    def _same_packages(self, who: str, message: R) -> R:
        """The registration as the journal keeps it, of a process that has no other packages than this one."""
        if reason := package_skew(who, message.packages, self._packages):
            raise Refused(412, reason)
        return msgspec.structs.replace(message, packages={})

    async def _lease(self, request: Request) -> Response:
        message = await _message(request, LeaseTasks)
        check_incarnation(self.flow.state, message)
        loop = asyncio.get_running_loop()
        end = loop.time() + min(message.wait_s, LONGEST_POLL_S)
        flow, state = self.flow, self.flow.state
        waiter = self.wakeups.raas_waits(message.raas)
        record = None
        try:
            with self._guarded():
                record = flow.leasing.ask(message)
            while True:
                untold = has_notices(state, record)
                with self._guarded():
                    answer = flow.leasing.lease(record, message.free)
                self.wakeups.looked(waiter)
                left = end - loop.time()
                if answer.tasks or untold or left <= 0:
                    await self._written()
                    return reply(answer)
                record.waiting_since = record.waiting_since or state.clock()
                if flow.leasing.more_to_admit:
                    await asyncio.sleep(0)
                else:
                    self.wakeups.pass_on()
                    await waiter.wait(left)
                if waiter.superseded or await request.is_disconnected():
                    return reply(answer)
        finally:
            self.wakeups.done(message.raas, waiter)
            if record is not None:
                record.waiting_since = None
                record.set_idle_slots(0, state.clock())
            self.wakeups.pass_on()

    async def _next_batch(self, request: Request) -> Response:
        message = await _message(request, NextBatch)
        check_incarnation(self.flow.state, message)
        loop, state = asyncio.get_running_loop(), self.flow.state
        wait_s = min(message.wait_s, LONGEST_POLL_S)
        end = loop.time() + wait_s
        trainer = state.trainers[message.policy]
        waiter = self.wakeups.trainer_waits(message.policy)
        trainer.ask(state.clock(), wait_s)
        try:
            while True:
                with self._guarded():
                    body = self.flow.training.next_batch(message)
                left = end - loop.time()
                if body is not None:
                    await self._written()
                    return frame(body)
                if left <= 0:
                    return frame(self.flow.training.no_batch_yet(message.policy))
                await waiter.wait(left)
                if waiter.superseded or await request.is_disconnected():
                    return frame(self.flow.training.no_batch_yet(message.policy))
        finally:
            self.wakeups.done(message.policy, waiter)
            if not waiter.superseded:
                trainer.answered(state.clock())

    async def _recover(self, request: Request) -> Response:
        message = await _message(request, RecoverVersion)
        loop, recovering = asyncio.get_running_loop(), self.flow.recovering
        end = loop.time() + min(message.wait_s, LONGEST_POLL_S)
        with self._guarded():
            recovery = recovering.begin(message)
        while recovering.silent(recovery) and loop.time() < end:
            await asyncio.sleep(NAME_S)
            if await request.is_disconnected():
                return Response()
        return reply(recovering.found(recovery))

    async def _drafts(self, request: Request) -> Response:
        message = await _message(request, AskDrafts)
        state = self.flow.state
        check_incarnation(state, message)
        table = state.table_of(message.task)
        task = table.get(message.task) if table.owns(message.task) else None
        rollouts = state.rollouts
        if not rollouts.stores:
            raise Refused(409, "this run stores no rollouts: [rollouts] groups_per_step is 0")
        if task is None or task.eval_set or task.lease_of(message.raas) is None:
            return frame(encode_drafts([]))
        find = partial(rollouts.earlier, task.prompt.id, message.most_bytes)
        found = await in_thread("drafts", find)  # one that waits for a disk delays nothing else
        return frame(encode_drafts(found))

    def _add_routes(self) -> None:
        flow, post = self.flow, self.app.add_call
        leasing, training, state = flow.leasing, flow.training, flow.state

        def call(path: str, expected: type[Any], act: Callable[[Any], Message | None]) -> None:
            async def answer(request: Request) -> Response:
                message = await _message(request, expected)
                check_incarnation(state, message)
                with self._guarded(), self._audited(request, path, message):
                    done = act(message) or Done()
                if expected is not LeaveRaas:  # a process that leaves does not wait
                    await self._written()
                return reply(done)

            post(path, answer)

        def show(path: str, look: Callable[[], Any]) -> None:
            async def answer() -> Response:
                return Response(msgspec.json.encode(look()), media_type="application/json")

            self.app.add_api_route(path, answer, methods=["GET"])

        async def push(request: Request) -> Response:
            body = await request.body()
            with self._guarded():
                done = flow.intake.accept(body, partial(check_sender, request.scope["grant"]))
            await self._written()
            return reply(done)

        async def release(request: Request) -> Response:
            message = await _message(request, ReleaseBatches)
            check_incarnation(state, message)
            with self._guarded():
                training.release(message)
            await self._written()
            with self._guarded():
                # From here on the journal also survives power loss up to this checkpoint.
                await asyncio.to_thread(state.records.sync)
            return reply(Done())

        async def metrics() -> Response:
            return Response(self._metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

        async def events(request: Request, after: int = 0) -> Response:
            header = request.headers.get("authorization")
            stream = balance_events(flow.pool, state.progress, self.wakeups, after)

            async def while_valid() -> AsyncIterator[bytes]:
                async for part in stream:
                    if self.access.grant(header) is None:
                        return  # the token has ended or was revoked meanwhile
                    yield part

            return StreamingResponse(while_valid(), media_type="text/event-stream")

        post("/v1/groups", push)
        post("/v1/tasks/lease", self._lease)
        call("/v1/tasks/renew", RenewLeases, leasing.renew)
        post("/v1/batches/next", self._next_batch)
        post("/v1/batches/release", release)
        post("/v1/raas/register", self._register_raas)
        call("/v1/raas/leave", LeaveRaas, leasing.leave)
        call("/v1/raas/add", AddRaas, flow.pool.add)
        call("/v1/raas/drain", DrainRaas, flow.pool.drain)
        call("/v1/tasks/fail", FailTask, leasing.fail)
        post("/v1/tasks/drafts", self._drafts)
        call("/v1/trainers/register", RegisterTrainer, self._register_trainer)
        call("/v1/trainers/failed", TrainerFailed, training.failed)
        call("/v1/versions", AnnouncementMessage, training.announce)
        post("/v1/versions/recover", self._recover)
        call("/v1/versions/offer", OfferVersion, flow.recovering.offered)
        call("/v1/batches/ack", AcknowledgeBatch, training.acknowledge)
        call("/v1/stop", StopRun, lambda message: state.stop(message.reason))
        call("/v1/data_policies/swap", SwapPolicy, flow.swapping.swap)
        call("/v1/access/revoke", RevokeToken, self._revoke)
        show("/v1/status", flow.status)
        show("/v1/balance", flow.balance)
        show("/v1/waits", flow.waits)
        show("/v1/access", lambda: {"oldest": self.access.oldest})
        show("/v1/health", lambda: {"service": "dataflow", "state": state.progress.state.value})
        self.app.add_api_route("/v1/balance/events", events, methods=["GET"])
        self.app.add_api_route("/metrics", metrics, methods=["GET"])


async def _message(request: Request, expected: type[T]) -> T:
    """The body as ``expected``, from the process that it names."""
    message = await read_message(request, expected)
    check_sender(request.scope["grant"], message)
    return message
