"""A launcher whose processes run on hosts with an agent; how the agents are reached is up to its subclasses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_core.errors import PreflightError, RunFailed
from astraflow_core.protocols.launcher import ProcessSpec, ProcessState
from astraflow_core.types import ComponentContext
from astraflow_launching.environment import environment_of
from astraflow_launching.keys import HostKeys, RemoteKeys
from astraflow_launching.link import AgentLink, Open
from astraflow_launching.logs import tail
from astraflow_launching.loop import LoopThread
from astraflow_launching.placement import HostResources, Placement, check_names
from astraflow_wire.host.disk import is_full
from astraflow_wire.http.tls import HOST

LAST_LINES = 12
CLOSE_S = 10.0
FLUSH_S = 2.0
AGAIN_S = 10.0
"""The longest that the launcher waits for a lost host when a process needs one."""

KILLED = -9
PLACEMENT = "placement.json"
"""File of the run directory: process → host, GPUs, threads."""

_TLS = ("authority", "certificate", "private_key")


@dataclass
class _Process:
    spec: ProcessSpec
    host: str = ""
    key: str = ""
    starts: int = 0
    pid: int = 0
    exit_code: int | None = None
    cpu_s: float = 0.0
    cpu_before_s: float = 0.0
    stopped: bool = False
    arrived: int = 0

    def killed(self) -> None:
        if self.exit_code is None:
            self.exit_code = KILLED

    def state(self) -> ProcessState:
        ended = self.exit_code is not None
        return ProcessState(
            name=self.spec.name,
            pid=self.pid,
            exit_code=self.exit_code,
            restarts=self.starts - 1,
            last_lines=self._last_lines() if ended else (),
            cpu_s=self.cpu_before_s + self.cpu_s,
            stopped=self.stopped and not ended,
        )

    def _last_lines(self) -> tuple[str, ...]:
        """Of the output. If the agent could not start the interpreter, with the key that names it."""
        *before, last = tail(self.spec.log, LAST_LINES) or [""]
        if last.startswith("astraflow: cannot start ") and self.spec.argv[0] == sys.executable:
            last += f" on host {self.host!r}; set python of this host in [launcher] hosts to its interpreter with AstraFlow"
        return (*before, last) if before or last else ()


class AgentLauncher(ABC):
    """Places processes on the hosts of :meth:`hosts`, and monitors them through their agents."""

    def __init__(self, config: RemoteKeys, context: ComponentContext) -> None:
        self._keys, self._context = config, context
        self._loop = LoopThread("launcher")
        self._links: dict[str, AgentLink] = {}
        self._hosts: dict[str, HostKeys] = {}
        self._processes: dict[str, _Process] = {}
        self._by_key: dict[str, _Process] = {}
        self._changed = threading.Condition(threading.RLock())
        self._placement = Placement(config, (), len(context.run.policies))
        self._tasks: list[asyncio.Task[None]] = []  # an event loop keeps weak references only
        self._closed = False
        self.chosen: dict[str, str] = {}

    # --- what a launcher of this kind says -----------------------------------------------------

    @abstractmethod
    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        """The hosts for the processes of a run, and how the agent of each is reached. Raises
        :class:`PreflightError` if they are not available."""

    def more_hosts(self, spec: ProcessSpec) -> Mapping[HostKeys, Open]:
        """Replacements for lost hosts, for a process that is to be restarted."""
        return {}

    def release(self) -> None:  # noqa: B027 (a launcher without anything to give back has none)
        """Release what :meth:`hosts` acquired, after the last process has ended."""

    async def last(self) -> None:  # noqa: B027
        """The remaining work in the event loop."""

    def resources(self, host: HostKeys, facts: Mapping[str, Any]) -> HostResources:
        """The resources of a host, according to its agent and the config."""
        reported = HostResources(host.name, facts["cpus"], facts["memory_gb"], tuple(facts["gpus"]))
        return reported.limited(host)

    # --- the protocol --------------------------------------------------------------------------

    @property
    def restarts(self) -> int:
        """How often a RaaS that died is restarted."""
        return self._keys.restarts

    def prepare(self, specs: Sequence[ProcessSpec]) -> None:
        """Connect to all hosts and place the processes on them."""
        check_names(self._keys, specs)
        if not self._links:
            self._reach(self.hosts(specs), self._keys.connect_s)
        self._placement.place(specs, self.chosen)
        self._write_placement()

    def start(self, spec: ProcessSpec) -> None:
        """Start a process, or restart it after it ended, on another host if its own is gone."""
        with self._changed:
            process = self._processes.get(spec.name)
            if process is not None and process.exit_code is None:
                raise ValueError(f"process {spec.name!r} is still running")
        try:
            host = self._host_for(spec, process)
        except PreflightError as error:
            if process is None or spec.role != "raas":
                raise RunFailed(str(error)) from error
            self._end_without_host(process, error)  # the run continues with the remaining ones
            return
        process = process or _Process(spec)
        with self._changed:
            process.spec, process.host, process.starts = spec, host, process.starts + 1
            process.cpu_before_s, process.cpu_s = process.cpu_before_s + process.cpu_s, 0.0
            process.pid, process.exit_code, process.arrived = 0, None, 0
            process.key = f"{spec.name}#{process.starts}"
            self._processes[spec.name] = self._by_key[process.key] = process
            spec.log.parent.mkdir(parents=True, exist_ok=True)
            spec.log.touch()
        try:
            self._ask(host, "its start", "start", self._keys.connect_s, **self._message(process))
        except RunFailed as error:
            with self._changed:
                process.killed()
            raise RunFailed(f"{spec.name} cannot be started: {error}") from error

    def poll(self) -> list[ProcessState]:
        """The state of every process started, in order of their first start."""
        with self._changed:
            return [process.state() for process in self._processes.values()]

    def stop(self, name: str, deadline_s: float) -> None:
        """SIGTERM to the process, SIGKILL to its group at the deadline."""
        process = self._processes[name]
        with self._changed:
            if process.exit_code is not None:
                return
        longest = self._keys.silence_s + deadline_s + CLOSE_S
        with contextlib.suppress(RunFailed):  # the host is lost, and the process with it
            self._ask(
                process.host,
                f"the end of {name}",
                "stop",
                longest,
                key=process.key,
                deadline_s=deadline_s,
            )
        with self._changed:
            self._changed.wait_for(lambda: process.exit_code is not None, longest)

    def logs(self, name: str, lines: int) -> list[str]:
        """The last lines of a process's output."""
        process = self._processes[name]
        link = self._links.get(process.host)
        if link is not None and not link.lost and not self._closed and process.exit_code is None:
            with contextlib.suppress(RunFailed):  # what has arrived has to do
                self._ask(process.host, "output", "flush", FLUSH_S, key=process.key)
        return tail(process.spec.log, lines)

    def close(self) -> None:
        """Kill everything at once, wait for its end, and release the hosts."""
        if self._closed:
            return
        self._closed = True

        async def hang_up() -> None:
            await asyncio.gather(*(link.close(CLOSE_S) for link in self._links.values()))
            await self.last()

        self._loop.call(hang_up(), "the hosts", "the end of all processes", 3 * CLOSE_S)
        self._loop.close()
        with self._changed:
            for process in self._processes.values():
                process.killed()
        self.release()

    # --- what agents say -----------------------------------------------------------------------

    def on_states(self, host: str, states: list[dict[str, Any]]) -> None:
        """See :class:`astraflow_launching.link.LinkListener`."""
        with self._changed:
            for state in states:
                process = self._by_key.get(state["key"])
                if process is None or process.key != state["key"] or process.exit_code is not None:
                    continue
                process.pid, process.stopped = state["pid"], state["stopped"]
                process.cpu_s, process.exit_code = state["cpu_s"], state["exit_code"]
            self._changed.notify_all()

    def on_output(self, key: str, offset: int, data: bytes) -> int | None:
        """See :class:`astraflow_launching.link.LinkListener`."""
        process = self._by_key.get(key)
        if process is None or process.key != key:
            return offset + len(data)
        fresh = data[max(0, process.arrived - offset) :]
        try:
            if fresh:
                with process.spec.log.open("ab", buffering=0) as log:
                    log.write(fresh)
        except OSError as error:
            if is_full(error, process.spec.log.parent):
                return None
            raise
        process.arrived = max(process.arrived, offset + len(data))
        return process.arrived

    def on_lost(self, host: str, why: str) -> None:
        """See :class:`astraflow_launching.link.LinkListener`."""
        with self._changed:
            self._placement.remove_host(host)
            for process in self._processes.values():
                if process.host == host and process.exit_code is None:
                    process.exit_code = KILLED
                    with process.spec.log.open("a") as log:
                        log.write(f"astraflow: host {host!r} was lost: {why}\n")
            self._changed.notify_all()

    # --- within --------------------------------------------------------------------------------

    def _reach(self, hosts: Mapping[HostKeys, Open], longest_s: float) -> None:
        """Connect to all hosts at once, and use those that answer; raise :class:`PreflightError` for the others."""
        new = []
        for host, way in hosts.items():
            link = AgentLink(host.name, way, self, self._keys.silence_s)
            self._hosts[host.name], self._links[host.name] = host, link
            new.append(link)

        async def connected() -> None:
            for link in new:
                self._tasks.append(asyncio.create_task(link.run(longest_s)))
            await asyncio.gather(*(link.up() for link in new))

        self._loop.call(connected(), "the hosts", "an answer", longest_s + CLOSE_S)
        problems = []
        for link in new:
            wrong = [f"host {link.host!r}: {link.lost}"] if link.lost else [*self._unusable(link)]
            wrong = wrong or [*self._without_tls(link)]
            problems += wrong
            if not wrong:
                with self._changed:
                    self._placement.add_host(self.resources(self._hosts[link.host], link.facts))
        if problems:
            raise PreflightError("; ".join(problems))

    def _unusable(self, link: AgentLink) -> Iterator[str]:
        directory, folder = self._context.run.directory, self._folder(link.host)
        wanted = {folder: "create it, or set directory for this host in [launcher] hosts"}
        if directory.exists():
            wanted[str(directory)] = (
                "it is the run directory: set [run] directory to a shared folder"
            )
        for path, remedy in wanted.items():
            if not self._ask(link.host, "a look", "look", self._keys.connect_s, path=path):
                yield f"host {link.host!r} has no folder {path}; {remedy}"

    def _without_tls(self, link: AgentLink) -> Iterator[str]:
        """Give the host the files of ``[tls]`` that it lacks, which it may only have if they are its own."""
        address = self._address(link.host)
        for key, path in _tls_files(self._context.run.directory, address).items():
            if self._ask(link.host, "a look", "look", self._keys.connect_s, path=str(path)):
                continue
            try:
                text = path.read_bytes().decode("ascii", "ignore")  # what is not is comments
                words = {"path": str(path), "text": text}
                self._ask(link.host, "a file", "write", self._keys.connect_s, **words)
            except OSError as error:
                yield (
                    f"host {link.host!r} has no {path}, its {key} of [tls], and here it cannot be read: {error.strerror}; make it "
                    f"with `astraflow certs {path.parent} --host {address}`"
                )

    def _folder(self, host: str) -> str:
        return self._hosts[host].directory or os.getcwd()

    def _host_for(self, spec: ProcessSpec, before: _Process | None) -> str:
        with self._changed:
            place = self._placement.places.get(spec.name)
            if place is not None and not self._links[place.host].lost:
                return place.host
        if before is not None:
            with contextlib.suppress(PreflightError):  # those that are left may have room
                self._reach(self.more_hosts(spec), AGAIN_S)
        with self._changed:
            place = self._placement.add(spec)
        self._write_placement()
        if before is not None and spec.role == "dataflow":
            was, there = self._address(before.host), self._address(place.host)
            if was != there:
                raise RunFailed(
                    f"host {before.host!r}, on which the dataflow ran, was lost, and the others connect to its "
                    f"address; continue the run with `astraflow run --resume {self._context.run.directory}`"
                )
        return place.host

    def _address(self, host: str) -> str:
        facts = self._links[host].facts
        return str(self._hosts[host].address or facts.get("address") or host)

    def _end_without_host(self, process: _Process, error: PreflightError) -> None:
        with self._changed, process.spec.log.open("a") as log:
            process.starts, process.exit_code = process.starts + 1, KILLED
            log.write(f"astraflow: {error}\n")

    def _program(self, process: _Process) -> str:
        program, python = process.spec.argv[0], self._hosts[process.host].python
        return python if python is not None and program == sys.executable else program

    def _message(self, process: _Process) -> dict[str, Any]:
        host, spec = self._hosts[process.host], process.spec
        argv = [self._program(process), *spec.argv[1:]]
        address = self._address(host.name)
        place = self._placement.places[spec.name]
        return {
            "key": process.key,
            "argv": argv,
            "environment": environment_of(spec, place, address, self._keys.shares_gpus),
            "cwd": self._folder(host.name),
        }

    def _ask(self, host: str, what: str, do: str, give_up_s: float, **words: Any) -> Any:
        work = self._links[host].ask(do, **words)
        return self._loop.call(work, f"host {host!r}", what, give_up_s)

    def _write_placement(self) -> None:
        rows = {
            name: {"host": place.host, "gpus": list(place.gpus), "threads": place.threads}
            for name, place in self._placement.places.items()
        }
        file = self._context.run.directory / PLACEMENT
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _tls_files(directory: Path, address: str) -> dict[str, Path]:
    """Key of ``[tls]`` → its file on the host that others reach at ``address``; none before the config is in ``directory``."""
    try:
        text = (directory / "config.toml").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    table = tomllib.loads(text).get("tls", {})
    return {key: Path(str(table[key]).replace(HOST, address)) for key in _TLS if key in table}
