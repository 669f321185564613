"""Checks task folders: the solution of a task has to earn 1, and an episode in which nothing is done less.

``python -m astraflow_contrib_harbor.oracle FOLDER``, where FOLDER has task folders; its exit code is the number of tasks that fail.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow_contrib_harbor.config import HarborTasksConfig, ShellLimits
from astraflow_contrib_harbor.task_folder import HarborTask, read_task
from astraflow_contrib_harbor.task_sandbox import task_sandbox
from astraflow_core.errors import AstraFlowError

SOLVED = 1.0


async def earned(task: HarborTask, limits: ShellLimits, *, solved: bool) -> float:
    """The reward after the task's own solution, or after nothing. :class:`EnvironmentFailed` if there is none."""
    async with task_sandbox(task, limits) as sandbox:
        if solved:
            await sandbox.solve()
        return (await sandbox.judge()).reward


async def problem_of(folder: Path, limits: ShellLimits, keys: HarborTasksConfig) -> str:
    """What is wrong with a task; '' if it is fit to learn from."""
    try:
        task = read_task(folder, keys.images, keys.run_lines == "skip")
        if "/solution/solve.sh" not in task.solution:
            return "has no solution/solve.sh"
        solution = await earned(task, limits, solved=True)
        nothing = await earned(task, limits, solved=False)
    except (ValueError, AstraFlowError) as error:
        return str(error)
    if solution < SOLVED:
        return f"its solution earns {solution:g}"
    return f"doing nothing earns {nothing:g}" if nothing >= SOLVED else ""


def main(arguments: Sequence[str]) -> int:
    """The number of tasks that fail, one line on standard output for each task."""
    parser = argparse.ArgumentParser(prog="python -m astraflow_contrib_harbor.oracle")
    parser.add_argument("folder", type=Path, help="folder with task folders")
    root = parser.parse_args(arguments).folder
    keys, failed = HarborTasksConfig(path=root), 0
    for file in sorted(root.glob("*/task.toml")):
        problem = asyncio.run(problem_of(file.parent, ShellLimits(), keys))
        failed += bool(problem)
        sys.stdout.write(f"{file.parent.name}: {problem or 'good'}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
