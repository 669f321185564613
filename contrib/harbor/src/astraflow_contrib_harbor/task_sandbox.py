"""A sandbox with the files of a task, in which commands run, and at the end its tests."""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from astraflow_contrib_harbor.config import ShellLimits
from astraflow_contrib_harbor.task_folder import FOLDERS, Files, HarborTask
from astraflow_core.errors import EnvironmentFailed, PreflightError
from astraflow_sandbox.code_runner import ProgramLimits, ProgramResult, SandboxFailed
from astraflow_sandbox.subprocess_runner import WarmRunner, Workspace

TESTS_STOPPED = "tests_stopped"
"""Metric of an episode whose tests reached a limit of the sandbox."""
_LOGS = "/logs/verifier"
_WRITE = """\
import base64, json, os, shutil, sys
told = json.load(sys.stdin)
for path in told["clear"]:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
for path in told["folders"]:
    os.makedirs(path, exist_ok=True)
for path, (mode, content) in told["files"].items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(base64.b64decode(content))
    os.chmod(path, mode)
"""
_REWARD = f"""\
import os, sys
for name in ("reward.json", "reward.txt"):
    if os.path.isfile("{_LOGS}/" + name):
        with open("{_LOGS}/" + name, errors="replace") as file:
            sys.stdout.write(file.read(10_000))
        break
"""
_KINDS = {"cpu": "processor time", "deadline": "time", "output": "room for output"}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the tests gave: ``reward``, and other numbers of ``reward.json``."""

    reward: float
    metrics: dict[str, float] = field(default_factory=dict)


class TaskSandbox:
    """The sandbox of one episode."""

    def __init__(self, workspace: Workspace, task: HarborTask) -> None:
        self._workspace, self._task = workspace, task

    async def run(self, command: str) -> ProgramResult:
        """A command in the task's folder. :class:`EnvironmentFailed` if the sandbox could not run it."""
        variables = {"HOME": "/tmp", **self._task.variables}  # noqa: S108 - of the sandbox
        return await self._shell(command, variables)

    async def solve(self) -> ProgramResult:
        """Run the task's own solution."""
        await self._write(self._task.solution, [])
        variables = {"HOME": "/tmp", **self._task.variables, **self._task.solution_variables}  # noqa: S108
        return await self._shell("/solution/solve.sh", variables)

    async def judge(self) -> Judgement:
        """Bring the tests and run them: what they write as reward, or 1 and 0 by their exit code if that is nothing. What
        leaves no room for the tests earns 0."""
        task = self._task
        clear = [f"/tmp{folder}" for folder in ("/tests", "/logs")]  # noqa: S108 - where /tests and /logs lead to
        folders = [*clear, f"/tmp{_LOGS}", "/tmp/logs/agent", "/tmp/logs/artifacts"]  # noqa: S108
        if not (await self._write(task.tests, folders, clear)).succeeded:
            return Judgement(0.0, {"no_room_for_tests": 1.0})
        # A module that the policy left where Python looks for those of its user is not the tests'.
        own = {"HOME": "/logs", "PYTHONNOUSERSITE": "1"}
        variables = {**own, **task.variables, **task.test_variables}
        ended = await self._shell(f"/tests/test.sh > {_LOGS}/test-stdout.txt 2>&1", variables)
        written = await self._program(_REWARD)
        if written.stdout.strip():
            return _judgement(written.stdout.strip())
        stopped = {} if ended.ending == "exited" else {TESTS_STOPPED: 1.0}
        return Judgement(float(ended.succeeded), stopped)

    async def place_files(self) -> None:
        """Write what the task begins with."""
        folders = [self._task.workdir, _LOGS]
        if not (ended := await self._write(self._task.files, folders)).succeeded:
            raise EnvironmentFailed(
                "sandbox", f"cannot write the task's files: {ended.stderr[-300:]}"
            )

    async def _write(
        self, files: Files, folders: list[str], clear: list[str] | None = None
    ) -> ProgramResult:
        told = {
            path: (mode, base64.b64encode(content).decode())
            for path, (mode, content) in files.items()
        }
        asked = {"clear": clear or [], "folders": folders, "files": told}
        return await self._program(_WRITE, json.dumps(asked))

    async def _program(self, program: str, stdin: str = "") -> ProgramResult:
        try:
            return _checked_result(await self._workspace.run(program, stdin))
        except SandboxFailed as error:
            raise EnvironmentFailed("sandbox", str(error)) from error

    async def _shell(self, command: str, variables: Mapping[str, str]) -> ProgramResult:
        try:
            return _checked_result(
                await self._workspace.shell(command, self._task.workdir, variables)
            )
        except SandboxFailed as error:
            raise EnvironmentFailed("sandbox", str(error)) from error


@asynccontextmanager
async def task_sandbox(task: HarborTask, limits: ShellLimits) -> AsyncIterator[TaskSandbox]:
    """A sandbox with the files of a task; nothing of it is left afterwards."""
    try:
        async with runner_of(limits.model_dump_json()).workspace() as workspace:
            sandbox = TaskSandbox(workspace, task)
            await sandbox.place_files()
            yield sandbox
    except SandboxFailed as error:
        raise EnvironmentFailed("sandbox", str(error)) from error


@functools.cache
def runner_of(limits: str) -> WarmRunner:
    """The sandbox of this process with these :class:`ShellLimits`, as JSON. :class:`PreflightError` if this host has none
    with its own folders."""
    keys = ShellLimits.model_validate_json(limits)
    sizes = ProgramLimits(
        keys.cpu_s,
        keys.deadline_s,
        keys.memory_mb,
        file_mb=keys.disk_mb,
        output_bytes=keys.output_kb << 10,
        disk_mb=keys.disk_mb,
    )
    runner = WarmRunner(sizes, packages=keys.packages, host_programs=True, folders=FOLDERS)
    report = runner.check()
    if "files" not in report.active:
        raise PreflightError(
            f"environment 'harbor': a sandbox with folders such as /app needs its own file tree, which this host does "
            f"not provide ({report.missing.get('files')}): user namespaces or root, and Linux 5.12"
        )
    return runner


def ending_of(result: ProgramResult) -> str:
    """How a command ended, for the one who called it; '' if it ended well."""
    if result.ending != "exited":
        return f"[stopped: no more {_KINDS[result.ending]}]"
    return f"[exit code {result.code}]" if result.code else ""


def _checked_result(result: ProgramResult) -> ProgramResult:
    if result.starved:
        raise EnvironmentFailed(
            "sandbox", "this machine was too busy to run a command in its time (sandbox.deadline_s)"
        )
    return result


def _judgement(text: str) -> Judgement:
    """What ``reward.txt`` or ``reward.json`` says: a number, or an object of numbers with one as ``reward``."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    numbers = {"reward": value} if not isinstance(value, dict) else dict(value)
    if len(numbers) == 1:
        numbers = {"reward": next(iter(numbers.values()))}
    good = all(isinstance(each, int | float) and math.isfinite(each) for each in numbers.values())
    if not good or "reward" not in numbers:
        raise EnvironmentFailed(
            "tests",
            f"the task's tests wrote {text!r:.200} as reward; expected a finite number, or an object with 'reward'",
        )
    reward = float(numbers.pop("reward"))
    return Judgement(reward, {str(name): float(each) for name, each in numbers.items()})
