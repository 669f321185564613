"""The trainers of a replay: processes as a launcher starts them, or one in this process for a debugger."""

from __future__ import annotations

import bdb
import contextlib
import os
import pdb  # noqa: T100 - the option --step is a debugger
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from astraflow_contrib_replay_run.recorded_run import RecordedRun
from astraflow_core.errors import UserError
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.planning.plan import DATAFLOW, TOKEN, trainer_command
from astraflow_runtime.launch.watch.exit_status import error_of
from astraflow_wire.host.parent import LAUNCHER

LOOK_S = 0.05
_GRACE_S = 10.0
_LAST_LINES = 100


@dataclass(frozen=True)
class _Process:
    policy: str
    log: Path
    process: subprocess.Popen[bytes]


def run_processes(recorded: RecordedRun, url: str, token: str) -> None:
    """One process for each policy until all have ended; the error has the output of the one that failed."""
    started: list[_Process] = []
    with _ended(started):
        started.extend(_start(recorded, policy, url, token) for policy in recorded.policies)
        running = list(started)
        while running:
            for each in list(running):
                code = each.process.poll()
                if code is not None:
                    running.remove(each)
                    _check(each, code)
            time.sleep(LOOK_S)


def _start(recorded: RecordedRun, policy: str, url: str, token: str) -> _Process:
    directory = recorded.directory
    log = directory / "logs" / f"trainer-{policy}.log"
    log.parent.mkdir(exist_ok=True)
    table = recorded.trainers.policies[policy]
    command = [
        *trainer_command(table, recorded.trainers, 0),
        *("-m", "astraflow_runtime", "trainer", str(directory / "config.toml")),
        *("--directory", str(directory), "--policy", policy),
    ]
    environment = {
        **os.environ,
        **recorded.environment,
        TOKEN: token,
        DATAFLOW: url,
        LAUNCHER: str(os.getpid()),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    return _Process(policy, log, process)


def _check(each: _Process, code: int) -> None:
    if code == 0:
        return
    lines = each.log.read_text("utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    raise error_of(
        ProcessState(f"trainer-{each.policy}", each.process.pid, code, last_lines=tuple(lines)),
        "while it replayed",
    )


@contextlib.contextmanager
def _ended(started: Sequence[_Process]) -> Iterator[None]:
    """End what is still running, however this ends."""
    try:
        yield
    finally:
        for each in started:
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _GRACE_S
        for each in started:
            try:
                each.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()


def run_here(recorded: RecordedRun, url: str, token: str, step: int | None) -> None:
    """The trainer of the one policy in this thread, which stops in the debugger at update ``step``, counted from 1, or at
    none."""
    from astraflow_runtime.trainer.main import serve
    from astraflow_runtime.trainer.updates import update

    (policy,) = recorded.policies
    table = recorded.trainers.policies[policy]
    if table.trainer.ranks > 1 or table.trainer.python is not None:
        raise UserError(
            f"--step runs the trainer in this process; that of {policy!r} has ranks or a separate interpreter: "
            "add --trainer ranks=1, or leave --step out"
        )
    arguments = (recorded.trainers, recorded.directory, token, url, policy)
    if step is None:
        serve(*arguments)
        return
    debugger = _Debugger()
    lines = {line for _, _, line in update.update.__code__.co_lines() if line is not None}
    body = min(lines - {update.update.__code__.co_firstlineno})
    debugger.set_break(update.__file__, body, cond=f"step == {step - 1}")
    with contextlib.suppress(bdb.BdbQuit):  # the user has seen enough
        debugger.runcall(serve, *arguments)


class _Debugger(pdb.Pdb):
    """Runs on until its first breakpoint."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = False

    def user_line(self, frame: FrameType) -> None:
        """Called where it stops; the first time that is where it begins."""
        if self._begun:
            super().user_line(frame)
        else:
            self._begun = True
            self.set_continue()
