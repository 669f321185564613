"""One rollout service of the public protocol as a RaaS of our run: it leases, submits, pushes, renews and follows versions
in its place, and gives its leases back when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from astraflow_contrib_compat.config import CompatConfig
from astraflow_contrib_compat.pickles.decoder import PickleDecoder, PickleRefused
from astraflow_contrib_compat.raas.client import ForeignClient, ForeignFailed
from astraflow_contrib_compat.raas.results import ForeignResults, WrongResult
from astraflow_contrib_compat.raas.submissions import Lane, Submissions, UnsupportedSampling
from astraflow_contrib_compat.raas.windows import EvaluationWindows
from astraflow_contrib_compat.weights.sender import WeightSender
from astraflow_contrib_compat.weights.updates import WeightUpdates
from astraflow_core.errors import AstraFlowError, Refused, WeightsError
from astraflow_core.protocols.transport import Receiver
from astraflow_core.types import Announcement, Group, Trajectory
from astraflow_wire import messages
from astraflow_wire.groups import encode_group
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.http.raas_client import RaasClient
from astraflow_wire.http.server import Server
from astraflow_wire.limits import MAX_PLACES

log = logging.getLogger("astraflow.compat")
CLOSE_S = 5.0
RETRY_S = 5.0
"""Time after which an update of the weights that failed is tried again."""
LEASE_WAIT_S = 0.5
STATUS_RETRY_S = 1.0
READY, STOPPED = "ready", "the run has ended"


@dataclass(frozen=True)
class ForeignRun:
    """What the sessions of a run share. ``receiver(policy, name)`` fetches the versions of a policy for a RaaS; ``bind`` is
    the host to listen on for weights, ``shown`` that by which RaaS reach it; ``most_bytes`` of an answer."""

    config: CompatConfig
    model_ids: dict[str, str]
    group_size: int
    deadline_s: float
    dataflow: str
    token: str = field(repr=False)
    most_bytes: int
    receiver: Callable[[str, str], Receiver]
    bind: str
    shown: str


class ForeignRaas:
    """The RaaS ``uid`` at ``url``, from its registration to its end; ``state`` and ``problem`` are for people."""

    def __init__(self, uid: str, url: str, gpu_count: int, run: ForeignRun) -> None:
        self.uid, self.url, self.gpu_count, self._run = uid, url, gpu_count, run
        self.state, self.problem, self.available = "starting", "", 0
        self._http = AsyncClient(run.dataflow, run.token)
        # Its own, so that what it sends delays no other RaaS.
        self._decoder = PickleDecoder(run.most_bytes)
        self._client = ForeignClient(url, self._decoder, run.config.call_s)
        self._doubted, self._wake = asyncio.Event(), asyncio.Event()
        self._ending = asyncio.Event()
        self._reason = ""
        self._submissions = Submissions(
            self._client, run.config.workflow, run.config.poll_s, self._doubted.set
        )
        self._windows = EvaluationWindows(
            self._submissions.evaluation_began, self._submissions.evaluation_ended
        )
        self._updates: dict[str, WeightUpdates] = {}
        self._servers: list[Server] = []
        for policy in run.model_ids:
            self._add_updates(policy)
        policies = dict(enumerate_models(run.model_ids))
        self._reader = ForeignResults(policies, lambda p, n: self._updates[p].version_of(n))
        self._tasks: dict[str, tuple[messages.Task, asyncio.Task[None]]] = {}
        self._served = asyncio.Condition()
        self._capacity = 0
        self._dataflow: RaasClient | None = None

    @property
    def stopped(self) -> bool:
        """Whether the run itself has ended."""
        return self._reason == STOPPED

    @property
    def serving(self) -> dict[str, int]:
        """Policy → version, of those that it has."""
        return {p: each.serving for p, each in self._updates.items() if each.serving >= 0}

    def end(self, reason: str) -> None:
        """Let :meth:`run` return."""
        self._reason = self._reason or reason
        self._ending.set()

    async def run(self) -> None:
        """Run until the end of the run, of the RaaS, or :meth:`end`. Its leases are returned."""
        try:
            dataflow = await self._or_end(self._join())
            if dataflow is not None:
                self.state = "ready"
                await _first_of(
                    [
                        self._lease(dataflow),
                        self._renew(dataflow),
                        self._follow(),
                        self._watch(),
                        self._submissions.run(),
                        self._until_ended(),
                    ]
                )
        except (AstraFlowError, OSError) as error:
            self.problem = str(error)
            log.warning("the RaaS %s at %s is given up: %s", self.uid, self.url, error)
        finally:
            self.state = "ended"
            await self._close(self.problem or self._reason or "it was stopped")

    # --- parts ----------------------------------------------------------------------------------

    def _add_updates(self, policy: str) -> None:
        run = self._run
        sender = WeightSender(self._client.host, run.shown, run.config.weights_s)
        server = Server(sender.app, run.bind, 0, own_keys=True, own_tls=True)
        shown = f"[{run.shown}]" if ":" in run.shown else run.shown
        asked = {"model_id": run.model_ids[policy], "sender_endpoint": f"{shown}:{server.port}"}

        async def notify(number: int) -> Any:
            return await self._client.post(
                "/notify_version", {**asked, "version": number}, run.config.weights_s
            )

        self._servers.append(server)
        receiver = run.receiver(policy, self.uid)
        self._updates[policy] = WeightUpdates(policy, receiver, sender, notify, run.deadline_s)

    async def _join(self) -> RaasClient:
        """Wait until it is ready, and register in its place."""
        config = self._run.config
        try:
            async with asyncio.timeout(config.ready_s):
                while (await self._client.get("/status")).get("status") != READY:
                    await asyncio.sleep(STATUS_RETRY_S)
        except TimeoutError as error:
            raise ForeignFailed(
                f"GET {self.url}/status: it was not {READY!r} within {config.ready_s:g} s"
            ) from error
        told = await self._client.get("/availability")
        free, most = _count(told.get("available")), _count(told.get("max_concurrency"))
        self._capacity = min(MAX_PLACES, max(free, most) * self._episodes_each)
        if not self._capacity:
            raise ForeignFailed(
                f"GET {self.url}/availability: neither available nor max_concurrency"
            )
        for server in self._servers:
            await server.start()
        dataflow = RaasClient(self._http, self.uid, list(self._updates), self._capacity, self._hear)
        await dataflow.register()
        self._dataflow = dataflow
        return dataflow

    @property
    def _episodes_each(self) -> int:
        """Episodes of one submission."""
        return self._run.group_size if self._run.config.submission == "group" else 1

    async def _lease(self, dataflow: RaasClient) -> None:
        while True:
            free = 0
            if len(self.serving) == len(self._updates):
                told = await self._reported()
                self.available = told
                held = sum(task.group_size for task, _ in self._tasks.values())
                free = max(0, min(told * self._episodes_each, self._capacity - held))
            tasks = await dataflow.lease(
                free, LEASE_WAIT_S, self.serving, self._seen, self._digests
            )
            for task in tasks:
                running = asyncio.create_task(self._roll_out(dataflow, task))
                self._tasks[task.id] = task, running
                running.add_done_callback(partial(self._forget, task.id))

    async def _reported(self) -> int:
        try:
            return _count((await self._client.get("/availability")).get("available"))
        except ForeignFailed:
            self._doubted.set()
            return 0

    async def _renew(self, dataflow: RaasClient) -> None:
        while True:
            await asyncio.sleep(dataflow.renew_s)
            await dataflow.renew(list(self._tasks), self.serving, self._seen, digests=self._digests)

    async def _watch(self) -> None:
        """The heartbeat: two that fail in a row end the session."""
        failed = 0
        while True:
            if failed:
                await asyncio.sleep(STATUS_RETRY_S)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._run.config.heartbeat_s):
                        await self._doubted.wait()
            self._doubted.clear()
            try:
                await self._client.get("/status", self._run.config.heartbeat_s)
                failed = 0
            except ForeignFailed as error:
                failed += 1
                if failed == 2:
                    raise ForeignFailed(f"two heartbeats in a row failed: {error}") from error

    async def _follow(self) -> None:
        """Deliver versions. What fails is tried again; meanwhile it serves what it has."""
        while True:
            self._wake.clear()
            failed = False
            for update in self._updates.values():
                if not update.pending:
                    continue
                try:
                    await update.update()
                    self.problem = ""
                    log.info("%s serves version %d of %s", self.uid, update.serving, update.policy)
                except (WeightsError, ForeignFailed, PickleRefused, OSError) as error:
                    failed = True
                    self.problem = str(error)
                    log.warning("%s stays at version %d: %s", self.uid, update.serving, error)
                async with self._served:
                    self._served.notify_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if failed else None):
                    await self._wake.wait()

    async def _until_ended(self) -> None:
        await self._ending.wait()

    async def _or_end(self, call: Coroutine[Any, Any, RaasClient]) -> RaasClient | None:
        """What a call returns, or ``None`` if the session is to end before."""
        calling, ending = asyncio.create_task(call), asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait((calling, ending), return_when=asyncio.FIRST_COMPLETED)
            return calling.result() if calling.done() else None
        finally:
            for each in (calling, ending):
                each.cancel()
            await asyncio.gather(calling, ending, return_exceptions=True)

    def _hear(self, notices: messages.Notices) -> None:
        for policy in notices.discard:
            self._updates[policy].discard()
            for _, running in self._tasks.values():
                running.cancel()
        news = [
            self._updates[told.policy].on_announced(_announcement(told))
            for told in notices.announcements
        ]
        news += [update.pin(notices.pins.get(policy)) for policy, update in self._updates.items()]
        for lost in notices.revoked:
            if lost.task in self._tasks:
                self._tasks[lost.task][1].cancel()
        if notices.stop:
            self.end(STOPPED)
        if any(news):
            self._wake.set()

    @property
    def _seen(self) -> dict[str, int]:
        return {policy: update.seen for policy, update in self._updates.items()}

    @property
    def _digests(self) -> dict[str, str]:
        return {p: update.digest for p, update in self._updates.items() if update.digest}

    # --- tasks ----------------------------------------------------------------------------------

    async def _roll_out(self, dataflow: RaasClient, task: messages.Task) -> None:
        """A task ends by a push, by a reported failure, or because its lease is lost."""
        fatal = False
        try:
            async with asyncio.timeout(task.deadline_s):
                trajectories, rejected = await self._play(task)
            body = encode_group(
                Group(task.id, task.prompt_id, tuple(trajectories)),
                self.uid,
                incarnation=dataflow.incarnation,
                rejected=rejected,
                eval_set=task.eval_set,
            )
            await dataflow.push(body)
            return
        except TimeoutError:
            reason = f"missed its deadline of {task.deadline_s:g} s"
        except UnsupportedSampling as error:
            reason, fatal = str(error), True
        except Refused as error:
            reason = f"its group was rejected: {error}"
        except (ForeignFailed, PickleRefused, WrongResult, ValueError) as error:
            reason = str(error)
        log.info("task %s failed on %s: %s", task.id, self.uid, reason)
        await dataflow.fail(task.id, reason, fatal)

    async def _play(self, task: messages.Task) -> tuple[list[Trajectory], int]:
        """Its episodes, and how many of them the RaaS rejected."""
        windows = self._run.config.evaluation == "windows"
        lane = self._windows.evaluation if task.eval_set else self._windows.training
        whole = self._run.config.submission == "group"
        sizes = [task.group_size] if whole else [1] * task.group_size
        data = {**task.data}
        data.setdefault("prompt_id", task.prompt_id)
        prefix: Lane = "eval_" if windows and task.eval_set else ""
        async with (
            self._pinned(task),
            lane() if windows else contextlib.nullcontext(),
            _plain_errors(),
            asyncio.TaskGroup() as group,
        ):
            calls = [
                group.create_task(self._submissions.play(prefix, data, task.sampling, size))
                for size in sizes
            ]
        found: list[Trajectory] = []
        for size, call in zip(sizes, calls, strict=True):
            if (result := call.result()) is not None:
                found += self._reader.trajectories(result, size)
        return found, task.group_size - len(found)

    @contextlib.asynccontextmanager
    async def _pinned(self, task: messages.Task) -> Any:
        """Hold the versions that a task needs, and wait for them."""
        pins = {
            policy: version for policy, version in task.pinned.items() if policy in self._updates
        }
        for policy, version in pins.items():
            self._updates[policy].held[version] += 1
        try:
            if any(self._updates[policy].serving != version for policy, version in pins.items()):
                self._wake.set()
                async with self._served:
                    await self._served.wait_for(
                        lambda: all(self._updates[p].serving == v for p, v in pins.items())
                    )
            yield
        finally:
            for policy, version in pins.items():
                self._updates[policy].held[version] -= 1
                self._updates[policy].held += Counter()
            if pins:
                self._wake.set()

    def _forget(self, task: str, running: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not running.cancelled() and (error := running.exception()) is not None:
            self.problem = f"task {task}: {error}"
            log.error("the RaaS %s is given up: task %s: %r", self.uid, task, error)
            self.end(self.problem)

    # --- the end --------------------------------------------------------------------------------

    async def _close(self, reason: str) -> None:
        running = [task for _, task in self._tasks.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._dataflow is not None:
            try:
                await self._dataflow.leave(reason, CLOSE_S)
            except AstraFlowError as error:
                log.warning("%s did not leave: %s", self.uid, error)
        if self.stopped and self._run.config.shutdown:
            await self.shut_down()
        for server in self._servers:
            await server.stop()
        for update in self._updates.values():
            await update.close()
        await self._client.close()
        await asyncio.to_thread(self._decoder.close)
        await self._http.aclose()

    async def shut_down(self) -> None:
        """Ask the RaaS to end."""
        try:
            await self._client.post("/shutdown", {}, CLOSE_S)
        except (ForeignFailed, PickleRefused) as error:
            log.warning("%s was not shut down: %s", self.uid, error)


def enumerate_models(model_ids: dict[str, str]) -> list[tuple[int, str]]:
    """Number in ``model_ids`` of a sequence → policy: that of ``modelN``, else its place."""
    found = []
    for place, (policy, model) in enumerate(model_ids.items()):
        digits = model.removeprefix("model")
        found.append((int(digits) if digits.isdecimal() else place, policy))
    return found


@contextlib.asynccontextmanager
async def _plain_errors() -> Any:
    """The first error of a group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _first_of(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all until one ends; its error is raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _announcement(told: messages.AnnouncementMessage) -> Announcement:
    return Announcement(
        told.policy, told.version, told.transport, tuple(told.endpoints), told.digest, told.size
    )


def _count(value: Any) -> int:
    """The number of places that a RaaS reports; 0 if it is not a number."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        return 0
    return min(int(value), MAX_PLACES)
