"""Entry point of a RaaS process: builds its parts, runs them together, ends them cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context, run_info
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError
from astraflow_core.protocols.engine import PauseMode
from astraflow_core.protocols.transport import Transport
from astraflow_runtime.device_turn import FOLDER, SharedDeviceLock
from astraflow_runtime.forking.child import serve_forks
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.package_skew import packages_of_run
from astraflow_runtime.raas.engines.building import as_replicas, build_engines, initial_version
from astraflow_runtime.raas.engines.colocation import OWN_DEVICES, Devices, SharedDevices
from astraflow_runtime.raas.engines.following import FollowingRefresh
from astraflow_runtime.raas.engines.offering import VersionOffers
from astraflow_runtime.raas.engines.refresh import WeightRefresh
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine
from astraflow_runtime.raas.episodes.episodes import TaskRunner
from astraflow_runtime.raas.episodes.loop_watchdog import WARN_S, LoopWatchdog
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.raas.episodes.workflows import build_scorer, build_workflow
from astraflow_runtime.raas.granted_places import GrantedPlaces
from astraflow_runtime.raas.monitor import monitor_app, write_address
from astraflow_runtime.raas.rewards.pool import RewardPool
from astraflow_runtime.raas.service import RaasService
from astraflow_runtime.raas.stored_drafts import StoredDrafts
from astraflow_runtime.raas.user_objects import load_user_objects
from astraflow_runtime.rollouts.sampling import GroupSampling
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_runtime.telemetry.traced_prompts import is_traced, largest_share
from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.host import active_clock
from astraflow_wire.host.disk import room_for, when_room
from astraflow_wire.host.parent import end_with_parent
from astraflow_wire.host.process import retain_freed_memory
from astraflow_wire.host.sockets import socket_folder
from astraflow_wire.http.client import AsyncClient, SyncClient
from astraflow_wire.http.connection_limits import raise_descriptor_limit
from astraflow_wire.http.server import Server
from astraflow_wire.images.model import ImageModel

log = logging.getLogger("astraflow.raas")
CLOSE_S = 3.0
R = TypeVar("R", bound=WeightRefresh)


def serve(config: RunConfig, directory: Path, token: str, dataflow_url: str, name: str) -> int:
    """Run RaaS ``name`` until the dataflow or SIGTERM stops it; returns the exit code.

    Any other end is logged as one line, and passed to the hook ``astraflow_run_ended``.
    """
    serve_forks()
    configure_logging(name)
    end_with_parent()
    retain_freed_memory()
    raise_descriptor_limit()
    try:
        catalog = catalog_of_run(config, directory)
        hooks = Hooks.for_run(catalog, config)
        run = run_info(config, directory)
        hooks.run_started(run)
        error: BaseException | None = None
        try:
            active_clock.run(
                _Raas(config, directory, token, dataflow_url, name, catalog, hooks).run()
            )
        except BaseException as caught:
            error = caught
            raise
        finally:
            hooks.run_ended(run, error)
    except AstraFlowError as failed:
        log.error("%s ends: %s", name, failed)
        return failed.exit_code
    return 0


class _Raas:
    """The parts of a RaaS, and their lifetime."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        token: str,
        dataflow_url: str,
        name: str,
        catalog: Catalog,
        hooks: Hooks,
    ) -> None:
        self.config, self.directory, self.token, self.name = config, directory, token, name
        self.catalog = catalog
        self.state = directory / "state" / name
        when_room(lambda: self.state.mkdir(parents=True, exist_ok=True), self.state)
        self.sockets = socket_folder()
        self.client = AsyncClient(dataflow_url, token, waits_for_room=True)
        self.shared = self._shared_devices()
        self.granted = GrantedPlaces.of_process()
        self.devices: Devices = self.shared or self.granted or OWN_DEVICES
        self.engines = {name: self._engines(name) for name in config.served}
        self.transports: dict[str, tuple[str, Transport]] = {}
        self.refreshes = {
            policy: self._refresh(policy, policy, WeightRefresh) for policy in config.policies
        }
        self.followers = {
            name: self._refresh(
                name,
                table.follows,
                partial(FollowingRefresh, follows=table.follows, behind=table.behind),
            )
            for name, table in config.engines.items()
            if table.follows is not None
        }
        self.handles = {name: self._handle(name) for name in config.served}
        given = load_user_objects(directory)
        self.scorer = build_scorer(config, catalog, directory, name, token, given)
        workflow = build_workflow(config, catalog, directory, name, token, given)
        share = largest_share(config, catalog)
        self.runner = TaskRunner(
            name,
            workflow,
            self.scorer,
            self.handles,
            GroupSampling.of_run(config).wants_text,
            lambda task: is_traced(task.id, share),
        )
        self.service = RaasService(
            name,
            config,
            self.client,
            self.runner,
            self.handles,
            self.refreshes,
            self.devices,
            list(self.followers.values()),
            packages_of_run(config, catalog),
        )
        self.offers = VersionOffers(
            name,
            self.client,
            self.refreshes,
            self.transports,
            lambda: self.service.incarnation,
            config.run.give_up_after_s,
        )
        self.service.offer = self.offers.want
        self.drafts = StoredDrafts.of_run(config, self.service.dataflow.drafts, self.handles)
        self.runner.begins = self.drafts.fetch
        if self.shared is not None:
            self.shared.replicas = self._sleepers()
            self.shared.changed = self._turn_changed
        if self.granted is not None:
            self.granted.changed = self._granted
        self.routers = hooks.routes("raas")

    def _shared_devices(self) -> SharedDevices | None:
        if not self.config.run.colocated:
            return None
        turn = SharedDeviceLock(self.directory / "state" / FOLDER, self.name)
        return SharedDevices(self.name, turn, self.config.run.give_up_after_s)

    def _sleepers(self) -> list[Replica]:
        """Engines that may use devices: a frozen one that cannot sleep is a server elsewhere."""
        return [
            replica
            for name, handle in self.handles.items()
            if "sleep" in self.catalog.flags(Kind.ENGINE, self.config.served[name].engine.use)
            for replica in handle.replicas.members
        ]

    def _granted(self, places: int) -> None:
        self.service.admission.granted = places
        self.service.served_changed()

    def _turn_changed(self) -> None:
        for policy in self.handles:
            self._served_changed(policy)

    def _engines(self, policy: str) -> list[SupervisedEngine]:
        engines = build_engines(
            self.config,
            self.directory,
            self.name,
            policy,
            self.token,
            self.sockets.path,
            self.devices,
        )
        for engine in engines:
            engine.changed = partial(self._served_changed, policy)
        return engines

    def _refresh(self, name: str, policy: str, build: Callable[..., R]) -> R:
        """The refresh that loads versions of ``policy`` into the engines ``name``."""
        config = self.config
        context = component_context(
            config, self.directory, role="raas", policy=policy, name=self.name, token=self.token
        )
        context = replace(context, directory=self.state / f"transport-{name}")
        table = config.policies[policy].transport
        transport: Transport = self.catalog.build(Kind.TRANSPORT, table, context)
        self.transports[name] = table.use, transport
        refresh = build(
            self.engines[name],
            transport.receiver(),
            cast(PauseMode, config.raas.pause),
            deadline_s=config.run.deadline_s,
            drain_s=config.run.deadline_s + config.run.episode_deadline_s,
            devices=self.devices,
        )
        for engine in self.engines[name]:
            engine.changed = partial(self._changed, refresh)
        refresh.served_changed = partial(self._served_changed, name)
        for number, replica in enumerate(refresh.replicas):
            replica.before_swap = partial(self._before_swap, name, number)
        return refresh

    def _changed(self, refresh: WeightRefresh) -> None:
        refresh.wake()
        self._served_changed(refresh.policy)

    def _served_changed(self, policy: str) -> None:
        self.handles[policy].replicas.changed()
        self.service.served_changed()

    async def _before_swap(self, policy: str, replica: int) -> None:
        await self.service.probes.before_swap(policy, replica)

    def _handle(self, policy: str) -> PolicyHandle:
        served, engines = self.config.served[policy], self.engines[policy]
        replicas = as_replicas(engines, self._version_of(policy), self.config.run.deadline_s)
        table, folder = self.config.policies.get(policy), Path(served.model)
        experts = ExpertLayers.of(folder) if table is not None and table.router_replay else None
        images = ImageModel.of(folder) if table is not None and table.images else None
        return PolicyHandle(replicas, FolderTokenizer(folder), served.frozen, experts, images)

    def _version_of(self, policy: str) -> Callable[[int], int | None]:
        """The version that each replica serves."""
        refresh = self.refreshes.get(policy) or self.followers.get(policy)
        if refresh is None:
            return partial(initial_version, self.engines[policy])
        replicas = refresh.replicas
        return lambda number: replicas[number].serving

    def _all_refreshes(self) -> list[WeightRefresh]:
        return [*self.refreshes.values(), *self.followers.values()]

    def _all_engines(self) -> list[SupervisedEngine]:
        return [engine for engines in self.engines.values() for engine in engines]

    async def run(self) -> None:
        """Run all parts until one of them ends, which is ``stopping`` if all goes well."""
        loop = asyncio.get_running_loop()
        watchdog = self._watchdog()
        watchdog.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.service.stopping.set)
            # The loop is also woken by a file descriptor, but handles it only when it runs.
            signal.signal(number, lambda *_: watchdog.hurry())
        app = monitor_app(
            self.token,
            lambda: self.service.ready,
            self.service.status,
            self.service.replicas,
            self.service.measurements.prometheus,
            self.routers,
        )
        server = Server(app, "127.0.0.1", 0)
        await server.start()
        if self.granted is not None:
            self.granted.follow()
        parts: list[Coroutine[Any, Any, None]] = [
            self._introduce(server.url),
            *(engine.run() for engine in self._all_engines()),
            *(refresh.run() for refresh in self._all_refreshes()),
            *([] if self.shared is None else [self.shared.run()]),
            self._stopped(),
            self._serve_when_scorer_runs(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            running: set[asyncio.Task[None]] = set(tasks)
            while running >= set(tasks[1:]):  # only the first one ends
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            await self._close(tasks, server)
            watchdog.stop()

    def _watchdog(self) -> LoopWatchdog:
        run = self.config.run
        # Leases are renewed meanwhile; a short block, such as an import at the first call, is
        # allowed.
        interrupt_s = min(run.episode_deadline_s, max(WARN_S, run.lease_s / 2))
        client = SyncClient(self.client.base_url, self.token)
        return LoopWatchdog(self.runner.callers, interrupt_s, self.service.renews_in_thread(client))

    async def _introduce(self, url: str) -> None:
        """Write the address for other processes of this host, without waiting for disk space."""
        path = self.state / "raas.json"
        await room_for(lambda: write_address(path, url, os.getpid()), path)

    async def _stopped(self) -> None:
        await self.service.stopping.wait()
        if self.service.failure is not None:
            raise self.service.failure

    async def _serve_when_scorer_runs(self) -> None:
        if isinstance(self.scorer, RewardPool):
            await self.scorer.start()
        await self.service.run()

    async def _close(self, tasks: list[asyncio.Task[None]], server: Server) -> None:
        service = tasks[-1]
        service.cancel()
        await asyncio.gather(service, return_exceptions=True)
        await self.offers.close()
        await self.drafts.close()
        await asyncio.gather(*(engine.close() for engine in self._all_engines()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(self.scorer, RewardPool):
            await self.scorer.close()
        await asyncio.gather(*(refresh.close(CLOSE_S) for refresh in self._all_refreshes()))
        await self.client.aclose()
        await server.stop()
        self.sockets.close()
