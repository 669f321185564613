"""Whether a run of the previous release continues with this one, or is rejected with the reason."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from installers import Failure
from packaging.version import Version

from astraflow_testing.runs import TABLE_RUN
from releasing.stamping import Member

TESTING = "astraflow-testing"
STEPS = 30
STOPPED_AFTER = 4
OVERRIDES = (f"run.steps={STEPS}", "checkpoint.every=2", "policies.solver.trainer.step_s=0.1")
DEADLINE_S = 240.0
FOLDER = "upgrade"
"""In the folder of a release: where the run is."""


def release_before(version: str, released: list[str]) -> str:
    """The newest release that CHANGELOG.md has, else a number that is lower."""
    lower = [Version(each) for each in released if Version(each) < Version(version)]
    if lower:
        return str(max(lower))
    major, minor, micro = Version(version).release[:3] + (0,) * (3 - len(Version(version).release))
    if micro:
        return f"{major}.{minor}.{micro - 1}"
    return f"{major}.{minor - 1}.9" if minor else f"{major - 1}.9.9"


def needed(members: Mapping[str, Member]) -> list[str]:
    """What a run of tables consists of, beside what these distributions need: the quickstart without its backend."""
    return [name for name, each in members.items() if each.quickstart or name == TESTING]


def table(work: Path) -> Path:
    """The config of a short run that needs no backend."""
    config = work / "table.toml"
    config.write_text(TABLE_RUN, encoding="utf-8")
    return config


def start_and_stop(python: Path, work: Path) -> Path:
    """Start a run, stop it as Ctrl-C does after some updates; returns its directory."""
    work = work / FOLDER  # other steps of a release have runs in ``work``
    work.mkdir()
    config = table(work)
    arguments = [part for override in OVERRIDES for part in ("--set", override)]
    process = _start(python, work, "run", str(config), *arguments)
    end = time.monotonic() + DEADLINE_S
    while not (found := _with_steps(work, STOPPED_AFTER)):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise Failure(f"the run of the release before made no update:\n{_said(process)}")
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = _said(process)
    if process.returncode != 130:
        raise Failure(f"the run of the release before ended with {process.returncode}:\n{said}")
    return found


def resume(python: Path, work: Path, directory: Path) -> str:
    """Go on with the run; what came of it, in words."""
    work = work / FOLDER
    process = _start(python, work, "run", "--resume", str(directory))
    said = _said(process)
    if process.returncode == 0 and _with_steps(work, STEPS):
        return "continued to its end"
    last = said.strip().splitlines()[-1:]
    if process.returncode == 2 and last and "Traceback" not in said:
        return f"was refused: {last[0]}"
    raise Failure(
        f"a run of the release before neither continued nor was refused with a reason; exit code {process.returncode}:\n{said[-3000:]}"
    )


def _start(python: Path, work: Path, *arguments: str) -> subprocess.Popen[str]:
    hidden = ("PYTHON", "ASTRAFLOW")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    return subprocess.Popen(
        [str(python.with_name("astraflow")), *arguments],
        cwd=work,
        env=environment | {"XDG_CACHE_HOME": str(work / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _said(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=DEADLINE_S)[0]
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise Failure(f"`{process.args!r}` did not end within {DEADLINE_S:.0f} s") from error


def _with_steps(work: Path, count: int) -> Path | None:
    """The run that has made so many updates."""
    for file in work.glob("runs/*/metrics.jsonl"):
        if file.read_text(encoding="utf-8").count('"step"') >= count:
            return file.parent
    return None
