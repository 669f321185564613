"""The cost of launchers, trackers and commands."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import RunInfo
from astraflow_testing.benchmarks.pairs import Work

_LOOK_EVERY_S = 0.002
_DEADLINE_S = 60.0
_FIGURES = 16
_STARTED_S = 1_700_000_000.0


def launcher(component: Any, folder: Path, ends: ExitStack) -> Work:
    """One unit is a process that is started, ends at once, and is seen to have ended."""
    ends.callback(component.close)
    argv = (sys.executable, "-S", "-c", "pass")
    spec = ProcessSpec("raas-1", "raas", argv, {}, folder / "raas-1.log")
    component.prepare([spec])

    def work(count: int) -> None:
        for _ in range(count):
            component.start(spec)
            deadline = time.monotonic() + _DEADLINE_S
            while component.poll()[0].exit_code is None:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"a process that ends at once still ran after {_DEADLINE_S:g} s"
                    )
                time.sleep(_LOOK_EVERY_S)
            if code := component.poll()[0].exit_code:
                raise UserError(f"a process that does nothing ended with exit code {code}")

    return work


def tracker(component: Any, run: RunInfo, ends: ExitStack) -> Work:
    """One unit is a step of a policy with 16 figures."""
    component.started(run, {"run": {"name": run.name, "steps": run.steps}})
    ends.callback(component.ended, "finished", {"steps": run.steps}, None)
    steps = itertools.count()
    values = {f"trainer/figure_{number}": number / 7 for number in range(_FIGURES)}

    def work(count: int) -> None:
        for step in itertools.islice(steps, count):
            component.metrics("solver", step, _STARTED_S + step, values)

    return work


def command(name: str) -> Work:
    """One unit is `astraflow NAME --help`, from the start of its interpreter to the end."""
    argv = [sys.executable, "-m", "astraflow_runtime", *name.split(), "--help"]

    def work(count: int) -> None:
        for _ in range(count):
            done = subprocess.run(  # the program is ours, its argument the name of a command
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_DEADLINE_S,
                check=False,
            )
            if done.returncode:
                said = done.stderr.decode(errors="replace").strip()
                raise UserError(f"`astraflow {name} --help` ended with {done.returncode}: {said}")

    return work
