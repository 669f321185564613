"""The launcher ``slurm``: job steps run agents, and the agents our processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow_contrib_slurm import queue
from astraflow_contrib_slurm.config import SlurmConfig
from astraflow_contrib_slurm.script import STEP, agents_script, run_script
from astraflow_core.errors import PreflightError, RunFailed
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext
from astraflow_launching import agent
from astraflow_launching.dial_in import DialIn, own_address
from astraflow_launching.groups import host_groups
from astraflow_launching.keys import HostKeys
from astraflow_launching.launcher import AGAIN_S, AgentLauncher
from astraflow_launching.link import Open
from astraflow_launching.placement import HostResources, check_counts

LOOK_S = 2.0
"""Between looks at the queue."""
END_S = 10.0
EXPORTED = ("PATH", "HOME", "USER", "LD_LIBRARY_PATH", "SLURM_CONF")
"""Variables of this host that a job gets: Slurm keeps the environment of jobs, and ours may have secrets."""


@dataclass
class _Node:
    """A node that is used: of the ``job`` that asked for ``has``, or, if that is empty, of an allocation that others made,
    where it belongs to the component ``group`` and ``step`` is our srun."""

    where: str
    agent_id: str = ""
    job: str = ""
    has: HostResources | None = None
    group: int | None = None
    cpus: float = 1.0
    labels: frozenset[str] = frozenset()
    step: subprocess.Popen[bytes] | None = None


class SlurmLauncher(AgentLauncher):
    """See :class:`astraflow_core.protocols.launcher.Launcher`.

    Inside an allocation (``SLURM_JOB_ID``) it uses the nodes of that; elsewhere it submits a job for its agents.
    """

    def __init__(self, config: SlurmConfig | None, context: ComponentContext) -> None:
        self._config = config or SlurmConfig()
        self._dial_in: DialIn | None = None
        self._nodes: dict[str, _Node] = {}
        self._jobs: list[str] = []
        super().__init__(self._config, context)

    @staticmethod
    def generated_files(
        config: SlurmConfig | None,
        run: str,
        specs: Sequence[ProcessSpec],
        program: Sequence[str],
        arguments: Sequence[str],
        runs: str,
    ) -> Mapping[str, str]:
        """File name → text: a batch script for the whole run, for sbatch."""
        keys = config or SlurmConfig()
        text = run_script(
            keys, f"astraflow-{run}", host_groups(keys, specs), program, arguments, runs
        )
        return {f"{run}.sbatch": text}

    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        """The nodes of the allocation, or those of a new job once it runs."""
        self._listen()
        if os.environ.get("SLURM_JOB_ID"):
            return self._allocated()
        ways = self._submitted(specs, self._config.queue_s)
        self._loop.start(self._watch())
        return ways

    def more_hosts(self, spec: ProcessSpec) -> Mapping[HostKeys, Open]:
        """A new agent on a node of the allocation whose agent ended; else a job for one process, if it starts at once."""
        if not self._jobs:
            over = [n for name, n in self._nodes.items() if self._links[name].lost and n.step]
            return self._stepped(self._set_aside(over))
        try:
            return self._submitted([spec], AGAIN_S)
        except RunFailed as error:
            raise PreflightError(str(error)) from error

    def resources(self, host: HostKeys, facts: Mapping[str, Any]) -> HostResources:
        """What the job asked for; in an allocation what the agent sees of it."""
        node = self._nodes[host.name]
        visible = tuple(facts["visible_gpus"])
        if node.has is not None:
            return replace(node.has, name=host.name, gpus=visible or node.has.gpus)
        return HostResources(host.name, node.cpus, facts["memory_gb"], visible, node.labels)

    def release(self) -> None:
        """End jobs and steps, and wait for their end."""
        for job in self._jobs:
            queue.cancel(job)
        until = time.monotonic() + END_S
        for node in self._nodes.values():
            if node.step is not None:
                _end(node.step, until)
        for job in self._jobs:
            while time.monotonic() < until and not _over(job):
                time.sleep(0.2)
        if self._dial_in is not None:
            self._dial_in.remove_files()

    async def last(self) -> None:
        """Listen no longer."""
        if self._dial_in is not None:
            await self._dial_in.close()

    # --- within --------------------------------------------------------------------------------

    def _listen(self) -> None:
        address = self._config.address or own_address(socket.gethostbyname(queue.controller()))
        self._dial_in = DialIn(self._context.run.directory, self._config.silence_s)
        self._loop.call(self._dial_in.open(address), "this host", "a port to listen on", 10.0)

    def _command(self, agent_id: str) -> list[str]:
        assert self._dial_in is not None
        description = self._dial_in.describe(agent_id)
        return [self._config.agent_python, "-I", "-S", agent.__file__, "dial", str(description)]

    def _host(self, node: _Node) -> tuple[HostKeys, Open]:
        """A host is named after its node, and numbered if it is not the first there."""
        assert self._dial_in is not None
        before = [name for name, other in self._nodes.items() if other.where == node.where]
        name = f"{node.where}@{len(before) + 1}" if before else node.where
        self._nodes[name] = node
        return HostKeys(name=name), self._dial_in.way_to(node.agent_id)

    # --- a job of our own ----------------------------------------------------------------------

    def _submitted(self, specs: Sequence[ProcessSpec], longest_s: float) -> Mapping[HostKeys, Open]:
        """A job with room for the processes, once it runs."""
        found = host_groups(self._config, specs)
        ids = [[secrets.token_hex(8) for _ in component.hosts] for component in found]
        commands = [[self._command(each) for each in nodes] for nodes in ids]
        logs = self._context.run.directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        name = f"astraflow-{self._context.run.name}"
        text = agents_script(self._config, name, found, commands, logs / "slurm-%j.log")
        exported = [key for key in EXPORTED if key in os.environ]
        try:
            job = queue.submit(text, exported)
        except RunFailed as error:
            refused = ", ".join(spec.name for spec in specs)
            raise PreflightError(
                f"Slurm has no room for {refused}: {error}; lower the needs of the roles in [launcher], raise their "
                "count, or name another partition"
            ) from error
        self._jobs.append(job)
        ways: dict[HostKeys, Open] = {}
        for component, agents, nodes in zip(
            found, ids, self._running(job, specs, longest_s), strict=True
        ):
            for names, agent_id, where in zip(component.hosts, agents, nodes, strict=True):
                host, way = self._host(_Node(where, agent_id, job, component.resources(where)))
                ways[host] = way
                self.chosen |= dict.fromkeys(names, host.name)
        return ways

    def _running(self, job: str, specs: Sequence[ProcessSpec], longest_s: float) -> list[list[str]]:
        """The nodes of each component, once all of them run."""
        until = time.monotonic() + longest_s
        while True:
            found = queue.parts(job)
            if found and all(part.state in queue.ALIVE for part in found):
                return [queue.node_names(part.nodes) for part in found]
            waits = [part for part in found if part.state in queue.WAITING]
            if not waits:
                raise PreflightError(
                    f"{queue.end_of(job)} before its processes could start; its output is in "
                    f"{self._context.run.directory / 'logs' / f'slurm-{job}.log'}"
                )
            if time.monotonic() >= until:
                queue.cancel(job)
                raise PreflightError(
                    f"job {job} for {', '.join(spec.name for spec in specs)} is still waiting ({waits[0].reason}) after "
                    f"{longest_s:g} s and was cancelled; raise [launcher] queue_s, or lower the needs of the roles"
                )
            time.sleep(min(LOOK_S, max(0.1, until - time.monotonic())) / 4)

    async def _watch(self) -> None:
        """Notice jobs that end: preempted, cancelled, out of time, or with their first node."""
        ended: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_S)
            for job in [job for job in self._jobs if job not in ended]:
                with contextlib.suppress(RunFailed):  # a controller that is away ends nothing
                    if await asyncio.to_thread(_over, job):
                        ended.add(job)
                        self._lose(job, await asyncio.to_thread(queue.end_of, job))

    def _lose(self, job: str, why: str) -> None:
        assert self._dial_in is not None
        for name, node in self._nodes.items():
            if node.job == job and name in self._links:
                self._dial_in.no_longer(node.agent_id, why)
                self._links[name].give_up(why)

    # --- an existing allocation ---------------------------------------------------------------

    def _allocated(self) -> Mapping[HostKeys, Open]:
        components_there = int(os.environ.get("SLURM_HET_SIZE", "0"))
        found: list[_Node] = []
        for group in range(components_there) if components_there else [None]:
            suffix = "" if group is None else f"_HET_GROUP_{group}"
            nodes = queue.node_names(os.environ[f"SLURM_JOB_NODELIST{suffix}"])
            counts = queue.parsed_counts(os.environ[f"SLURM_JOB_CPUS_PER_NODE{suffix}"])
            labels = queue.node_labels(nodes)
            for name, cpus in zip(nodes, counts, strict=True):
                found.append(
                    _Node(name, group=group, cpus=cpus, labels=labels.get(name, frozenset()))
                )
        check_counts(self._config, len(found))
        return self._stepped(found)

    def _set_aside(self, nodes: Sequence[_Node]) -> list[_Node]:
        """The same nodes for new agents; what ran there has ended."""
        anew = []
        for node in nodes:
            assert node.step is not None
            _end(node.step, time.monotonic() + END_S)
            anew.append(replace(node, step=None))
            node.step = None
        return anew

    def _stepped(self, nodes: Sequence[_Node]) -> Mapping[HostKeys, Open]:
        """A step with an agent on each node. srun has no terminal and its own session: Ctrl-C is for the launcher."""
        ways: dict[HostKeys, Open] = {}
        logs = self._context.run.directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        job = os.environ.get("SLURM_HET_JOB_ID") or os.environ["SLURM_JOB_ID"]
        for node in nodes:
            node.agent_id = secrets.token_hex(8)
            group = [] if node.group is None else [f"--het-group={node.group}"]
            step = [*STEP, f"--jobid={job}", *group, f"--nodelist={node.where}"]
            with (logs / "slurm-steps.log").open("ab") as output:
                node.step = subprocess.Popen(
                    [*step, *self._command(node.agent_id)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            host, way = self._host(node)
            ways[host] = way
        return ways


def _over(job: str) -> bool:
    """Whether no component of a job waits or runs."""
    return not any(part.state in queue.WAITING | queue.ALIVE for part in queue.parts(job))


def _end(step: subprocess.Popen[bytes], until: float) -> None:
    """Wait for srun, which ends after its agent; the second SIGTERM of srun kills the step."""
    try:
        step.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        step.terminate()
        try:
            step.wait(END_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()
