"""The local launcher: processes of a run as subprocesses on this host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from astraflow_core.protocols.launcher import ProcessSpec, ProcessState
from astraflow_core.types import ComponentContext
from astraflow_runtime.forking.becoming import ModuleProcess
from astraflow_runtime.forking.client import OURS, ModuleForks, is_possible
from astraflow_runtime.launch.local import shim
from astraflow_runtime.launch.local.config import LocalLauncherConfig
from astraflow_runtime.launch.local.threads import VARIABLES, threads_each, usable_cores
from astraflow_wire.host.disk import when_room
from astraflow_wire.host.parent import LAUNCHER
from astraflow_wire.host.processes import look_at
from astraflow_wire.host.sockets import remove_orphaned_sockets

_POLL_S = 0.02
_TAIL_BYTES = 65536
_LAST_LINES = 12
_OF_DATAFLOW = ("astraflow_runtime.dataflow.main", "encodings.idna", "uvicorn.protocols.http.auto")
_OF_OTHERS = (
    "aiohttp",
    "astraflow_engine_host.main",
    "astraflow_runtime.raas.main",
    "astraflow_runtime.trainer.main",
)
"""What the dataflow, and trainers, RaaS and engine hosts, import at their start or a little later."""
_HEAVY = ("raas", "trainer")
"""Roles with many imports."""


@dataclass
class _Child:
    spec: ProcessSpec
    pid: int
    started: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    restarts: int = 0
    cpu_s: float = 0.0

    def reap(self) -> bool:
        """Note the end and its CPU time, if it ended; whatever it left in its group is killed."""
        if self.exit_code is not None:
            return True
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return False
        self.exit_code = os.waitstatus_to_exitcode(status)
        if self.started is not None:
            self.started.returncode = self.exit_code
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.kill_group()
        return True

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class LocalLauncher:
    """Starts each process in its own session, so that a terminal's Ctrl-C reaches the launcher only; on Linux they are forked from a
    server that has imported what they need, where that is possible.

    Output is appended to the log of the spec. On Linux the kernel kills the processes if the thread that
    started them dies; elsewhere the services watch for it.
    """

    def __init__(self, config: LocalLauncherConfig | None, context: ComponentContext) -> None:
        self._config = config or LocalLauncherConfig()
        self._policies = len(context.run.policies)
        self._directory = context.run.directory
        self._threads = 1
        self._forks: ModuleForks | None = None
        self._imports_cpu_s = 0.0
        self._children: dict[str, _Child] = {}
        self._lock = threading.RLock()

    @property
    def restarts(self) -> int:
        """How often a RaaS that died is restarted."""
        return self._config.restarts

    def prepare(self, specs: Sequence[ProcessSpec]) -> None:
        """Share the cores between the processes to come, and begin to import for them."""
        if self._config.threads == "auto":
            self._threads = threads_each(specs, self._policies, usable_cores())
        else:
            self._threads = self._config.threads
        heavy = [spec for spec in specs if spec.role in _HEAVY]
        config = self._directory / "config.toml"
        if self._forks is None and heavy and is_possible() and config.exists():
            self._forks = self._fork_server(config, heavy[0])

    def _fork_server(self, config: Path, spec: ProcessSpec) -> ModuleForks:
        """A server for processes like that of ``spec``, without what is that one's own."""
        own = {name for name in spec.environment if name.startswith(OURS)}
        environment = {k: v for k, v in self._environment(spec).items() if k not in own}
        path = spec.log.with_name("imports.log")
        with when_room(lambda: _open_log(path), path) as log:
            return ModuleForks.started(config, _OF_DATAFLOW, _OF_OTHERS, environment, log)

    def start(self, spec: ProcessSpec) -> None:
        """Start a process, or restart it after it ended."""
        with self._lock:
            before = self._children.get(spec.name)
            if before is not None and not before.reap():
                raise ValueError(f"process {spec.name!r} is still running")
            with when_room(lambda: _open_log(spec.log), spec.log) as log:
                forked = None
                # One that is restarted would have what others import in its memory, for nothing.
                if spec.role in _HEAVY or before is None:
                    forked = self._forked(spec, log)
                child = forked or self._started(spec, log)
            if before is not None:
                child.restarts, child.cpu_s = before.restarts + 1, before.cpu_s
            self._children[spec.name] = child

    def _forked(self, spec: ProcessSpec, log: BinaryIO) -> _Child | None:
        """Fork the process from one that has imported what it needs; None if that is not possible."""
        environment = self._environment(spec)
        if self._forks is None or not self._forks.can_fork(spec.argv, environment):
            return None
        asked = ModuleProcess(
            list(spec.argv), os.getcwd(), environment, new_session=True, dies_with_parent=True
        )
        with open(os.devnull, "rb") as nothing:
            pid = self._forks.start(asked, (nothing.fileno(), log.fileno(), log.fileno()))
        return None if pid is None else _Child(spec, pid)

    def _started(self, spec: ProcessSpec, log: BinaryIO) -> _Child:
        process = subprocess.Popen(
            self._command(spec),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment(spec),
            start_new_session=True,
        )
        return _Child(spec, process.pid, process)

    def _command(self, spec: ProcessSpec) -> list[str]:
        if sys.platform != "linux":
            return list(spec.argv)
        return [sys.executable, "-I", "-S", str(shim.__file__), str(os.getpid()), *spec.argv]

    def _environment(self, spec: ProcessSpec) -> dict[str, str]:
        threads = dict.fromkeys(VARIABLES, str(self._threads))
        ours = {LAUNCHER: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        return threads | dict(os.environ) | ours | dict(spec.environment)

    def poll(self) -> list[ProcessState]:
        """The state of every process started, in order of their first start."""
        with self._lock:
            states = [self._state(child) for child in self._children.values()]
            if states and self._forks is not None:
                # What all share is counted once.
                self._imports_cpu_s = self._forks.cpu_s() or self._imports_cpu_s
                states[0] = replace(states[0], cpu_s=states[0].cpu_s + self._imports_cpu_s)
            return states

    def _state(self, child: _Child) -> ProcessState:
        ended = child.reap()
        look = None if ended else look_at(child.pid)
        return ProcessState(
            name=child.spec.name,
            pid=child.pid,
            exit_code=child.exit_code,
            restarts=child.restarts,
            last_lines=tuple(_tail(child.spec.log, _LAST_LINES)) if ended else (),
            cpu_s=child.cpu_s + (look.cpu_s if look else 0.0),
            stopped=look is not None and look.stopped,
        )

    def stop(self, name: str, deadline_s: float) -> None:
        """SIGTERM to the process, which continues if it was stopped; at the deadline SIGKILL to it and all in its
        group."""
        child = self._children[name]
        if not self._ended(child):
            with contextlib.suppress(ProcessLookupError):
                # In this order the main thread gets SIGTERM; to one that is stopped any thread may.
                os.kill(child.pid, signal.SIGCONT)
                os.kill(child.pid, signal.SIGTERM)
        self._wait(child, time.monotonic() + deadline_s)

    def _ended(self, child: _Child) -> bool:
        with self._lock:
            return child.reap()

    def _wait(self, child: _Child, until: float) -> None:
        while not self._ended(child):
            if time.monotonic() >= until:
                child.kill_group()
            time.sleep(_POLL_S)

    def logs(self, name: str, lines: int) -> list[str]:
        """The last lines of a process's output."""
        return _tail(self._children[name].spec.log, lines)

    def close(self) -> None:
        """Kill everything at once and wait for its end."""
        now = time.monotonic()
        if self._forks is not None:
            self._imports_cpu_s = self._forks.cpu_s() or self._imports_cpu_s
            self._forks.close()
        for child in self._children.values():
            if not self._ended(child):
                child.kill_group()
        for child in self._children.values():
            self._wait(child, now)
        remove_orphaned_sockets()


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _tail(path: Path, lines: int) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return text.splitlines()[-lines:] if lines > 0 else []
