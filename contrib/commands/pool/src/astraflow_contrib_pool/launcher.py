"""The launcher ``pool``: dataflow and trainers as subprocesses here, RaaS on the hosts of a pool that other runs use too."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import threading
import time
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from astraflow_contrib_pool.config import PoolLauncherConfig
from astraflow_contrib_pool.messages import (
    PASSED_ON,
    LeaveRun,
    RaasInPool,
    Remaining,
    RenewRun,
    RunRenewed,
    WantedRaas,
)
from astraflow_contrib_pool.run_folder import OWNER, digest_of
from astraflow_core.errors import DeadlineExceeded, PreflightError, Refused, UserError
from astraflow_core.protocols.launcher import ProcessSpec, ProcessState
from astraflow_core.types import ComponentContext
from astraflow_runtime.cli.running.secrets import read_token
from astraflow_runtime.launch.local.config import LocalLauncherConfig
from astraflow_runtime.launch.local.launcher import LocalLauncher
from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.tls import RunTls

log = logging.getLogger("astraflow.launcher")
_CALL_S = 5.0
_LOOK_S = 0.05
_EVERY_S = 1.0
_GONE_S = 20.0


class PoolLauncher:
    """See :class:`astraflow_core.protocols.launcher.Launcher`. A RaaS that the pool has moved or not placed yet counts as running:
    one that exited on its own is reported with its exit code."""

    def __init__(self, config: PoolLauncherConfig | None, context: ComponentContext) -> None:
        if config is None:
            raise PreflightError('[launcher] use = "pool" needs url and token_file')
        self._config, self._directory = config, context.run.directory
        # The folder of a run, which is resumed under its name, distinguishes runs of one config.
        self._name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "-", self._directory.name)[:100]
        own = LocalLauncherConfig(threads=config.threads, restarts=config.restarts)
        self._local = LocalLauncher(own, context)
        self._id = secrets.token_hex(16)
        self._token = read_token(config.token_file)
        tls = None if config.authority is None else RunTls(config.authority)
        self._client = SyncClient(config.url, self._token, tls=tls)
        self._specs: dict[str, ProcessSpec] = {}
        self._numbers: dict[str, int] = {}
        self._dropped, self._gone = set[str](), set[str]()
        self._states: dict[str, RaasInPool] = {}
        self._order: list[str] = []
        self._joined, self._waits = False, ""
        self._lock = threading.RLock()
        self._calling = threading.Lock()
        self._due, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def restarts(self) -> int:
        """How often a RaaS that died is restarted."""
        return self._local.restarts

    def prepare(self, specs: Sequence[ProcessSpec]) -> None:
        """Join the pool. Raises :class:`PreflightError` if it cannot be reached or refuses the run."""
        self._local.prepare([spec for spec in specs if spec.role != "raas"])
        if any(spec.role == "raas" for spec in specs):
            if _config_of(self._directory).get("run", {}).get("colocated"):
                raise PreflightError(
                    "run.colocated: engines in a pool share no devices with a trainer; set it to false, or use another launcher"
                )
            replace_file(self._directory / OWNER, digest_of(self._id) + "\n")
            try:
                self._renew(self._config.connect_s)
            except Refused as error:
                of = f"; [launcher] token_file is {self._config.token_file}"
                raise PreflightError(
                    f"the pool at {self._config.url} does not take this run: {error} ({error.status})"
                    f"{of if error.status == 401 else ''}"
                ) from error
            except DeadlineExceeded as error:
                raise PreflightError(
                    f"the pool at {self._config.url} does not answer: {error}; start it with `astraflow pool start`, or correct "
                    "[launcher] url"
                ) from error
            self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._keep_on, name="pool", daemon=True)
        self._thread.start()

    def start(self, spec: ProcessSpec) -> None:
        """Start a process here, or ask the pool for a RaaS."""
        with self._lock:
            if spec.name not in self._order:
                self._order.append(spec.name)
            if spec.role != "raas":
                self._local.start(spec)
                return
            before = self._states.get(spec.name)
            if spec.name in self._specs and (before is None or before.exit_code is None):
                raise ValueError(f"process {spec.name!r} is still running")
            self._specs[spec.name] = spec
            self._dropped.discard(spec.name)
            self._gone.discard(spec.name)
            self._numbers[spec.name] = self._numbers.get(spec.name, 0) + 1
            self._states.pop(spec.name, None)
        self._due.set()

    def _message(self) -> RenewRun:
        wanted = [
            WantedRaas(
                name=name,
                number=self._numbers[name],
                environment={k: v for k, v in spec.environment.items() if k in PASSED_ON},
            )
            for name, spec in self._specs.items()
            if name not in self._dropped
        ]
        table = _run_table(self._directory)
        return RenewRun(
            run=self._name,
            id=self._id,
            directory=str(self._directory),
            unit=table[0],
            most=table[1],
            raas=wanted,
        )

    def _renew(self, deadline_s: float) -> float:
        """Report the RaaS that the run wants and record those that it has; seconds until the next time."""
        with self._calling:
            with self._lock:
                message = self._message()
            reply = self._client.post("/v1/runs/renew", message, RunRenewed, deadline_s=deadline_s)
        self._joined = True
        with self._lock:
            for state in reply.raas:
                if self._numbers.get(state.name) == state.number:
                    self._states[state.name] = state
            self._say(reply.waits_for)
        return min(_EVERY_S, reply.lease_s / 4)

    def _say(self, waits_for: str) -> None:
        """Log what the run waits for, whenever it is another reason."""
        kind = re.sub(r"[0-9]+", "", waits_for)
        if kind and kind != self._waits:
            log.warning("this run waits in the pool for %s", waits_for)
        self._waits = kind

    def _keep_on(self) -> None:
        wait_s, said = 0.0, ""
        while not self._closed.is_set():
            self._due.wait(wait_s)
            self._due.clear()
            try:
                wait_s, said = self._renew(_CALL_S), ""
            except (DeadlineExceeded, Refused) as error:
                # RaaS continue without the pool; a run that gets none ends by its own deadlines.
                if not said:
                    said = f"the pool at {self._config.url}: {error}; running RaaS continue, and the pool is tried again"
                    log.warning(said)
                wait_s = _EVERY_S
            except UserError as error:
                log.error("the pool at %s: %s", self._config.url, error)
                return

    def poll(self) -> list[ProcessState]:
        """The state of every process started, in order of their first start."""
        here = {state.name: state for state in self._local.poll()}
        with self._lock:
            for name in self._specs:
                here[name] = self._state(name)
            return [here[name] for name in self._order if name in here]

    def _state(self, name: str) -> ProcessState:
        state = self._states.get(name)
        restarts = self._numbers[name] - 1
        gone = 0 if name in self._gone else None
        if state is None:
            return ProcessState(name, 0, gone, restarts)
        code = gone if state.exit_code is None else state.exit_code
        lines = tuple(state.last_lines) if code is not None else ()
        return ProcessState(name, state.pid, code, restarts, lines, state.cpu_s)

    def stop(self, name: str, deadline_s: float) -> None:
        """End a process; one in the pool is waited for until the deadline, and killed there by its host."""
        if name not in self._specs:
            self._local.stop(name, deadline_s)
            return
        until = time.monotonic() + deadline_s
        with self._lock:
            self._dropped.add(name)
        self._due.set()
        self._await_end({name}, until)
        with self._lock:
            self._gone.add(name)

    def _await_end(self, names: Collection[str], until: float) -> None:
        """Wait until the pool holds none of these RaaS."""
        with contextlib.suppress(DeadlineExceeded, Refused):
            while time.monotonic() < until and self._held() & set(names):
                time.sleep(_LOOK_S)

    def _held(self) -> set[str]:
        """RaaS of this run that the pool still has."""
        status: Any = self._client.get_json("/v1/status", deadline_s=_CALL_S)
        own = [run for run in status["runs"] if run["run"].partition("/")[2] == self._name]
        return {raas["raas"] for run in own for raas in run["raas"]}

    def logs(self, name: str, lines: int) -> list[str]:
        """The last lines of a process's output, in the folder of the run."""
        if name not in self._specs:
            return self._local.logs(name, lines)
        try:
            text = self._specs[name].log.read_text(errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-lines:] if lines > 0 else []

    def close(self) -> None:
        """End everything; returns when the pool has ended the RaaS, or after some seconds."""
        self._closed.set()
        self._due.set()
        self._local.close()
        if self._thread is not None:
            self._thread.join(2 * _CALL_S)
            self._thread = None
        if self._joined:
            self._joined = False
            with contextlib.suppress(DeadlineExceeded, Refused, UserError):
                leave = LeaveRun(run=self._name, id=self._id)
                self._client.post("/v1/runs/leave", leave, Remaining, deadline_s=_CALL_S)
                self._await_end(self._specs, time.monotonic() + _GONE_S)
            self._client.close()
        with self._lock:
            self._gone.update(self._specs)


def _run_table(directory: Path) -> tuple[int, int]:
    """Episodes of a task, and episodes at once of a RaaS, as the config of the run says."""
    config = _config_of(directory)
    group = config.get("run", {}).get("group_size", 8)
    return int(group), int(config.get("raas", {}).get("max_concurrent_episodes", 64))


def _config_of(directory: Path) -> dict[str, Any]:
    """The resolved config of the run; empty for processes that are not of a run."""
    try:
        return tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
