"""The control loop of a RaaS: registers, leases tasks, renews its leases, pushes groups, leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, DeadlineExceeded, RaasRefused, Refused, RunFailed
from astraflow_core.types import Announcement
from astraflow_runtime.config.exactness import exact_policies
from astraflow_runtime.raas.admission import AdmissionLimit
from astraflow_runtime.raas.engines.colocation import OWN_DEVICES, Devices
from astraflow_runtime.raas.engines.following import FollowingRefresh
from astraflow_runtime.raas.engines.probing import Probes
from astraflow_runtime.raas.engines.refresh import WeightRefresh
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.measurements import Measurements
from astraflow_runtime.raas.places import EpisodePlaces, TaskPlace
from astraflow_runtime.raas.thread_renewal import ThreadRenewal
from astraflow_wire import messages
from astraflow_wire.host.active_clock import active_time
from astraflow_wire.http.client import AsyncClient, SyncClient
from astraflow_wire.http.raas_client import RaasClient

log = logging.getLogger("astraflow.raas")
LONG_POLL_S = 10.0
FULL_S = 1.0
"""How long a RaaS without disk space waits for some before it opens a poll that it would have to
drop.
"""

LEAVE_S = 3.0


class RaasService:
    """One RaaS as the dataflow sees it. ``policies`` and ``refreshes`` are by policy; ``followers``
    get the same announcements. ``packages``: those of the run that this process has.
    """

    def __init__(
        self,
        name: str,
        config: RunConfig,
        client: AsyncClient,
        runner: TaskRunner,
        policies: Mapping[str, PolicyHandle],
        refreshes: Mapping[str, WeightRefresh],
        devices: Devices = OWN_DEVICES,
        followers: Sequence[FollowingRefresh] = (),
        packages: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.config = name, config
        self.stopping = asyncio.Event()
        self._runner = runner
        self._policies, self._refreshes, self._followers = policies, refreshes, followers
        self._devices = devices
        self._tasks: dict[str, tuple[messages.Task, asyncio.Task[None]]] = {}
        self._places = EpisodePlaces(self._most)
        self._room = asyncio.Event()
        self._all_served = asyncio.Event()
        self._serving_changed = asyncio.Event()
        self.dataflow = RaasClient(
            client,
            name,
            list(refreshes),
            config.raas.max_concurrent_episodes,
            self._on_notices,
            config.run.give_up_after_s,
            packages,
        )
        self._in_contact = True
        self.failure: AstraFlowError | None = None
        self.offer: Callable[[Sequence[str]], None] = lambda policies: None
        replicas = {name: policies[name].replicas for name in refreshes}
        self.probes = Probes(replicas, config.run.deadline_s, devices, exact_policies(config))
        self.probes.measured = self._serving_changed.set
        self.measurements = Measurements(
            policies,
            refreshes,
            runner.counters,
            lambda: self._places.running,
            lambda: self.admission.limit,
            self.probes.figures,
        )
        self.admission = AdmissionLimit(config.raas.max_concurrent_episodes, config.run.group_size)

    @property
    def incarnation(self) -> int:
        """The number of the last registration."""
        return self.dataflow.incarnation

    def renews_in_thread(self, client: SyncClient) -> ThreadRenewal:
        """The object that renews while the running event loop is blocked; it takes over ``client``."""
        return ThreadRenewal(
            client,
            self.dataflow,
            lambda: list(self._tasks),
            self._on_notices,
            asyncio.get_running_loop(),
            lambda: self._renew_s,
            self.config.run.deadline_s,
        )

    @property
    def ready(self) -> bool:
        """Whether every policy and every frozen engine is served."""
        return all(h.replicas.serving is not None for h in self._policies.values())

    async def run(self) -> None:
        """Register and work until cancelled; returns all leases at the end. Raises what ended it."""
        try:
            await self.dataflow.register(self.config.run.start_deadline_s)
            log.info(
                "%s registered for %d episodes at once",
                self.name,
                self.config.raas.max_concurrent_episodes,
            )
            await self._work_until_one_fails()
        except DeadlineExceeded as error:
            raise self._lost_contact(error) from error
        except RaasRefused:
            self._in_contact = False  # nothing to report: another process has this name
            raise
        finally:
            await self._leave()

    def _lost_contact(self, error: DeadlineExceeded) -> RunFailed:
        self._in_contact = False
        return RunFailed(f"{self.name} lost its connection to the dataflow: {error}")

    async def _work_until_one_fails(self) -> None:
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._lease_loop())
                loops.create_task(self._renew_loop())
                loops.create_task(self.probes.run())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _leave(self) -> None:
        """Abandon all episodes and return all leases."""
        running = [task for _, task in self._tasks.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if not self._in_contact:
            return
        reason = "failed" if self.failure is not None else "stopped"
        try:
            # Report the last figures: a short run ends between two renewals.
            await self._renew(LEAVE_S)
            await self.dataflow.leave(reason, LEAVE_S)
        except (DeadlineExceeded, Refused) as error:
            log.info("%s could not notify the dataflow that it left: %s", self.name, error)

    # -- leasing ---------------------------------------------------------------------------------

    def _answering(self) -> float:
        return min((h.replicas.answering for h in self._policies.values()), default=0.0)

    def _most(self) -> int:
        """The number of episodes at once: as many as the engines run, scaled by the share of replicas that respond."""
        return int(self.admission.limit * self._answering())

    def _free(self) -> int:
        """The number of episodes to ask for; none before every policy is served, or while a trainer wants the devices."""
        if not (self.ready and self._answering()) or self._devices.yielding:
            return 0
        return self._places.free(self.config.run.group_size)

    async def _lease_loop(self) -> None:
        while True:
            self._room.clear()
            if free := self._free():
                await self._lease(free)
            elif not (self.ready and await self._room_within(FULL_S)):
                await self._poll_notices()

    async def _room_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._room.wait()
        return self._room.is_set()

    async def _poll_notices(self) -> None:
        """A poll for notices only, cancelled as soon as there is disk space for tasks."""
        poll = asyncio.ensure_future(self._lease(0))
        room = asyncio.ensure_future(self._room.wait())
        try:
            await asyncio.wait({poll, room}, return_when=asyncio.FIRST_COMPLETED)
            if poll.done():
                poll.result()
        finally:
            for waiting in (poll, room):
                waiting.cancel()
            await asyncio.gather(poll, room, return_exceptions=True)

    async def _lease(self, free: int) -> None:
        serving, seen = self._serving(), self._seen()
        digests = self._digests()
        for task in await self.dataflow.lease(free, LONG_POLL_S, serving, seen, digests):
            self._start(task)

    def _serving(self) -> dict[str, int]:
        served = {policy: refresh.serving for policy, refresh in self._refreshes.items()}
        return {policy: version for policy, version in served.items() if version is not None}

    def _seen(self) -> dict[str, int]:
        return {policy: refresh.seen for policy, refresh in self._refreshes.items()}

    def _digests(self) -> dict[str, str]:
        served = {policy: refresh.digest for policy, refresh in self._refreshes.items()}
        return {policy: digest for policy, digest in served.items() if digest}

    # -- notices ------------------------------------------------------------------------------------

    def _discard(self, policy: str, digest: str) -> None:
        """The run does not have the weights with this digest."""
        refresh = self._refreshes.get(policy)
        if refresh is None or refresh.digest != digest:
            return
        log.warning(
            "%s discards its versions of policy %r up to %d: the run does not have them. It loads the next that is "
            "announced", self.name, policy, refresh.seen,
        )  # fmt: skip
        for _, running in self._tasks.values():
            running.cancel()
        self.probes.discard(policy)
        refresh.discard()
        for follower in self._followers:
            if follower.follows == policy:
                follower.discard()

    def _on_notices(self, notices: messages.Notices) -> None:
        for policy, digest in notices.discard.items():
            self._discard(policy, digest)
        for entry in notices.announcements:
            if (refresh := self._refreshes.get(entry.policy)) is not None:
                announcement = Announcement(
                    entry.policy,
                    entry.version,
                    entry.transport,
                    tuple(entry.endpoints),
                    entry.digest,
                    entry.size,
                )
                refresh.on_announced(announcement)
                for follower in self._followers:
                    if follower.follows == entry.policy:
                        follower.on_announced(announcement)
                self.probes.on_announced(entry)
        for policy, refresh in self._refreshes.items():
            refresh.pin(notices.pins.get(policy))
        for revoked in notices.revoked:
            if (found := self._tasks.get(revoked.task)) is not None:
                if not found[1].cancelling():  # the next reply names it again while it ends
                    log.info("task %s is revoked: %s", revoked.task, revoked.reason)
                found[1].cancel()
        self.offer(notices.offer)
        if notices.stop:
            self.stopping.set()

    def served_changed(self) -> None:
        """A host started or ended, or a version was loaded: there may be free slots now."""
        self._places.look()
        self._room.set()
        self._serving_changed.set()
        self.probes.changed()
        if self.ready:
            self._all_served.set()
        else:
            self._all_served.clear()

    # -- tasks -----------------------------------------------------------------------------------

    def _start(self, task: messages.Task) -> None:
        if task.id in self._tasks:
            return
        place = self._places.take(task.group_size)
        self._tasks[task.id] = (task, asyncio.create_task(self._handle(task, place)))

    async def _handle(self, task: messages.Task, place: TaskPlace) -> None:
        def episode_ended() -> None:
            place.ended()
            if self._free():
                self._room.set()

        try:
            with contextlib.ExitStack() as holds:
                for policy, version in task.pinned.items():
                    if (refresh := self._refreshes.get(policy)) is not None:
                        holds.enter_context(refresh.hold(version))
                await place.begin(task.lease_s / 2)
                await self._roll_out(task, episode_ended)
        except DeadlineExceeded as error:
            self._end(self._lost_contact(error))
        except AstraFlowError as error:
            self._end(error)
        finally:
            place.leave()
            del self._tasks[task.id]
            self._room.set()

    def _end(self, error: AstraFlowError) -> None:
        self.failure = self.failure or error
        self.stopping.set()

    async def _roll_out(self, task: messages.Task, episode_ended: Callable[[], None]) -> None:
        incarnation = self.dataflow.incarnation
        try:
            await self._until_all_served(task.deadline_s)
            async with self._devices.use():
                body = await self._runner.run(task, episode_ended, incarnation)
            await self.dataflow.push(body)
        except TaskFailed as error:
            await self._fail(task, str(error), error.fatal, error.environment)
        except Refused as error:
            await self._fail(
                task, f"the dataflow refused the group of prompt {task.prompt_id!r}: {error}"
            )

    async def _until_all_served(self, deadline_s: float) -> None:
        """Wait until every policy is served: a host may have died while its RaaS asked for work."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._all_served.wait()
        except TimeoutError:
            absent = ", ".join(
                repr(p) for p, h in self._policies.items() if h.replicas.serving is None
            )
            raise TaskFailed(
                f"{self.name} had no version of policy {absent} to serve for {deadline_s:g} s"
            ) from None

    async def _fail(
        self, task: messages.Task, error: str, fatal: bool = False, environment: str = ""
    ) -> None:
        log.warning("task %s failed: %s", task.id, error)
        await self.dataflow.fail(task.id, error, fatal, environment)

    # -- renewal ---------------------------------------------------------------------------------

    async def _renew_loop(self) -> None:
        """Renews periodically, and at once when another version is served or probed: the dataflow leases no
        task to a RaaS that it believes to be too far behind.
        """
        asked = active_time()
        while True:
            every_s = self._renew_s
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which until Python 3.12 may swallow a cancellation.
                async with asyncio.timeout(every_s):
                    await self._serving_changed.wait()
            self._serving_changed.clear()
            if active_time() - asked >= every_s:
                await self._check_engines()
                asked = active_time()
            await self._renew()

    @property
    def _renew_s(self) -> float:
        return min(self.config.run.lease_s / 3, self.dataflow.renew_s)

    async def _renew(self, deadline_s: float | None = None) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        await self.dataflow.renew(
            list(self._tasks),
            self._serving(),
            self._seen(),
            self.measurements.collect(),
            self.waits(),
            deadline_s,
            self._digests(),
        )
        self._places.answered(clock() - began)

    async def _check_engines(self) -> None:
        """Check at once, for at most half a renewal interval: hanging hosts must not delay the next
        renewal.
        """
        running = self._places.running
        half = self._renew_s / 2
        await asyncio.gather(*(h.replicas.look(half) for h in self._policies.values()))
        limit = self.admission.limit
        self.admission.observe(
            running, {policy: h.replicas.pressure() for policy, h in self._policies.items()}
        )
        if self.admission.limit != limit:
            log.info(
                "%s runs %d episodes at once; %s",
                self.name,
                self.admission.limit,
                self.admission.reason or "nothing waits",
            )
            self._places.look()
            self._room.set()

    # -- for people ------------------------------------------------------------------------------

    def waits(self) -> list[messages.Wait]:
        """The current waits of this RaaS."""
        refreshes = (*self._refreshes.values(), *self._followers)
        found = [wait for refresh in refreshes for wait in refresh.waits()]
        found += [wait for handle in self._policies.values() for wait in handle.replicas.waits()]
        found += [wait for wait in (self._devices.wait(),) if wait is not None]
        return [
            messages.Wait(
                who=f"{self.name}: {wait.who}",
                for_whom=wait.for_whom,
                what=wait.what,
                since_s=wait.since_s,
                until_s=wait.until_s,
            )
            for wait in found
        ]

    def replicas(self) -> dict[str, list[dict[str, Any]]]:
        """The state of each replica of each policy and frozen engine, JSON-like."""
        return {policy: handle.replicas.report() for policy, handle in self._policies.items()}

    def status(self) -> dict[str, Any]:
        """The state of this RaaS, JSON-like."""
        return {
            "raas": self.name,
            "pid": os.getpid(),
            "time": time.time(),
            "ready": self.ready,
            "serving": self._serving(),
            "seen": self._seen(),
            "episodes_running": self._places.running,
            "tasks": sorted(self._tasks),
            "admission": {
                "episodes": self.admission.limit,
                "most": self.config.raas.max_concurrent_episodes,
                "reason": self.admission.reason,
            },
            "replicas": self.replicas(),
            "metrics": self.measurements.collect(),
            "waits": [asdict(wait) for wait in self.waits()],
        }
