"""The launcher ``kubernetes``: jobs run agents, one in each pod, and the agents our processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from astraflow_contrib_kubernetes import pods
from astraflow_contrib_kubernetes.api import ApiServer
from astraflow_contrib_kubernetes.config import KubernetesConfig
from astraflow_contrib_kubernetes.manifests import run_manifest
from astraflow_contrib_kubernetes.objects import (
    LAUNCH,
    Object,
    agent_job,
    agent_secret,
    budget,
    dns_name,
    labels,
    owned_by,
)
from astraflow_core.errors import PreflightError, RunFailed
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext
from astraflow_launching.dial_in import DialIn, own_address
from astraflow_launching.groups import HostGroup, host_groups
from astraflow_launching.keys import HostKeys
from astraflow_launching.launcher import AGAIN_S, AgentLauncher
from astraflow_launching.link import Open
from astraflow_launching.placement import HostResources

log = logging.getLogger("astraflow.launcher.kubernetes")
LOOK_S = 2.0
"""Between looks at the pods."""
END_S = 60.0
"""How long the end of pods is waited for."""
POD_NAME, POD_UID = "ASTRAFLOW_POD_NAME", "ASTRAFLOW_POD_UID"
"""Variables of a pod in which the launcher runs: jobs go with it."""


@dataclass
class _PodHost:
    """The pod of a job, by the job's name."""

    job: str
    group: HostGroup
    processes: list[str]
    steady: bool
    agent_id: str = field(default_factory=lambda: secrets.token_hex(8))


class KubernetesLauncher(AgentLauncher):
    """See :class:`astraflow_core.protocols.launcher.Launcher`."""

    def __init__(self, config: KubernetesConfig | None, context: ComponentContext) -> None:
        if config is None:
            raise PreflightError("the launcher 'kubernetes' needs an image: set [launcher] image")
        self._config = config
        self._launch = secrets.token_hex(4)
        self._marks = labels(context.run.name, self._launch)
        self._pods: dict[str, _PodHost] = {}
        self._numbers = itertools.count()  # a job that is being deleted still has its name
        self._created: list[tuple[str, str]] = []
        self._api: ApiServer | None = None
        self._dial_in: DialIn | None = None
        super().__init__(config, context)

    @staticmethod
    def generated_files(
        config: KubernetesConfig | None,
        run: str,
        specs: Sequence[ProcessSpec],
        program: Sequence[str],
        arguments: Sequence[str],
        runs: str,
    ) -> Mapping[str, str]:
        """File name → text: a manifest of the whole run, for ``kubectl apply -f``."""
        if config is None:
            raise PreflightError("the launcher 'kubernetes' needs an image: set [launcher] image")
        return {f"{run}.yaml": run_manifest(config, run, program, arguments)}

    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        """A pod for each host that the processes need, once all run."""
        self._check_volume()
        self._api = ApiServer(self._config.context, self._config.namespace)
        self._listen()
        ways = self._started(specs, self._config.queue_s)
        self._loop.start(self._watch())
        return ways

    def more_hosts(self, spec: ProcessSpec) -> Mapping[HostKeys, Open]:
        """A pod for one process, if it starts at once."""
        try:
            return self._started([spec], AGAIN_S)
        except RunFailed as error:
            raise PreflightError(str(error)) from error

    def resources(self, host: HostKeys, facts: Mapping[str, Any]) -> HostResources:
        """What the pod asked for."""
        asked = self._pods[host.name].group.resources(host.name)
        visible = tuple(facts["visible_gpus"])
        return replace(asked, gpus=visible) if visible and asked.gpus else asked

    def release(self) -> None:
        """Delete what was created, and wait for the end of the pods."""
        for kind, name in reversed(self._created):
            try:
                self._cluster.delete(kind, name)
            except RunFailed as error:  # agents end by themselves, and ended jobs are removed
                log.warning("%s %s was not deleted: %s; use kubectl delete", kind, name, error)
        until = time.monotonic() + END_S
        with contextlib.suppress(RunFailed):
            while self._created and time.monotonic() < until and self._there():
                time.sleep(0.2)
        if self._api is not None:
            self._api.close()
        if self._dial_in is not None:
            self._dial_in.remove_files()

    async def last(self) -> None:
        """Listen no longer."""
        if self._dial_in is not None:
            await self._dial_in.close()

    # --- within --------------------------------------------------------------------------------

    @property
    def _cluster(self) -> ApiServer:
        assert self._api is not None
        return self._api

    def _check_volume(self) -> None:
        directory, config = self._context.run.directory, self._config
        mounted = config.claim is not None or config.volume is not None
        if mounted and PurePosixPath(config.mount) not in PurePosixPath(directory).parents:
            raise PreflightError(
                f"the run directory {directory} is not in {config.mount}, where pods mount the volume of the run: set "
                "[run] directory to a folder there, or [launcher] mount"
            )

    def _listen(self) -> None:
        try:
            server = socket.gethostbyname(self._cluster.host)
        except OSError as error:
            raise PreflightError(
                f"the API server {self._cluster.host} has no address: {error}"
            ) from error
        address = self._config.address or own_address(server)
        self._dial_in = DialIn(self._context.run.directory, self._config.silence_s)
        self._loop.call(self._dial_in.open(address), "this host", "a port to listen on", 10.0)

    def _started(self, specs: Sequence[ProcessSpec], longest_s: float) -> Mapping[HostKeys, Open]:
        """A job for each host of the processes, once all their pods run."""
        assert self._dial_in is not None
        found: list[_PodHost] = []
        first = dns_name(self._context.run.name)
        steady = {spec.name for spec in specs if spec.role != "raas"}
        for group in host_groups(self._config, specs):
            for processes in group.hosts:
                name = f"{first}-{self._launch}-{next(self._numbers)}"
                found.append(_PodHost(name, group, processes, not steady.isdisjoint(processes)))
        try:
            uids = [self._create(host) for host in found]
            self._protect(found, uids)
            self._wait(found, specs, longest_s)
        except BaseException:
            for host in found:
                with contextlib.suppress(RunFailed):  # release() tries again
                    self._cluster.delete("Job", host.job)
            raise
        ways: dict[HostKeys, Open] = {}
        for host in found:
            keys = HostKeys(
                name=host.job, python=self._config.python, directory=self._config.directory
            )
            self._pods[host.job] = host
            ways[keys] = self._dial_in.way_to(host.agent_id)
            self.chosen |= dict.fromkeys(host.processes, host.job)
        return ways

    def _create(self, host: _PodHost) -> str:
        """Its job, and the secret that the job's pod waits for; the uid of the job."""
        assert self._dial_in is not None
        job = agent_job(
            self._config, host.job, host.group, host.processes, host.steady, self._marks
        )
        if os.environ.get(POD_UID):
            owner = owned_by("Pod", "v1", os.environ[POD_NAME], os.environ[POD_UID])
            job["metadata"]["ownerReferences"] = owner
        description = self._dial_in.description(host.agent_id)
        try:
            uid = self._made(job)
            self._made(agent_secret(host.job, description, self._marks, uid))
        except RunFailed as error:
            raise PreflightError(f"no pod for {', '.join(host.processes)}: {error}") from error
        return uid

    def _protect(self, found: Sequence[_PodHost], uids: Sequence[str]) -> None:
        """Dataflow and trainers are not taken away to drain a node; those that are started again later are not counted."""
        steady = [(h.job, uid) for h, uid in zip(found, uids, strict=True) if h.steady]
        if steady and not self._pods:
            name = f"{dns_name(self._context.run.name)}-{self._launch}"
            self._made(budget(name, len(steady), self._marks, *steady[0]))

    def _made(self, made: Object) -> str:
        uid = self._cluster.create(made)
        self._created.append((made["kind"], made["metadata"]["name"]))
        return uid

    def _there(self) -> dict[str, Object]:
        """Job → its pod."""
        listed = self._cluster.pods(f"{LAUNCH}={self._launch}")
        return {pods.job_of(pod): pod for pod in listed}

    def _wait(
        self, found: Sequence[_PodHost], specs: Sequence[ProcessSpec], longest_s: float
    ) -> None:
        until = time.monotonic() + longest_s
        while True:
            there = self._there()
            waits = [host.job for host in found if not _runs(there.get(host.job))]
            if not waits:
                return
            for job in waits:
                if job in there and (why := pods.hopeless(there[job])):
                    raise PreflightError(f"a pod for {self._names(found, job)} cannot run: {why}")
            if time.monotonic() >= until:
                job = waits[0]
                why = (
                    pods.reason_to_wait(there[job])
                    if job in there
                    else self._cluster.last_event(job) or "it was not created"
                )
                raise PreflightError(
                    f"the pod for {self._names(found, job)} still waits after {longest_s:g} s and was deleted: {why}; "
                    "lower the needs of the roles in [launcher], raise their count, or raise queue_s"
                )
            time.sleep(min(LOOK_S, max(0.1, until - time.monotonic())) / 4)

    def _names(self, found: Sequence[_PodHost], job: str) -> str:
        return ", ".join(name for host in found if host.job == job for name in host.processes)

    async def _watch(self) -> None:
        """Notice pods that end: evicted, preempted, deleted, or with their node."""
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(RunFailed):  # a server that is away ends nothing
                there = await asyncio.to_thread(self._there)
                for job, why in self._ended(there):
                    self._lose(job, why)

    def _ended(self, there: Mapping[str, Object]) -> Iterator[tuple[str, str]]:
        for job in list(self._pods):
            link = self._links.get(job)
            if link is None or link.lost:
                continue
            if job not in there:
                yield job, f"the pod of job {job} was deleted"
            elif pods.has_ended(there[job]):
                yield job, pods.end_of(there[job])

    def _lose(self, job: str, why: str) -> None:
        assert self._dial_in is not None
        self._dial_in.no_longer(self._pods[job].agent_id, why)
        self._links[job].give_up(why)


def _runs(pod: Object | None) -> bool:
    return pod is not None and pods.is_running(pod)
