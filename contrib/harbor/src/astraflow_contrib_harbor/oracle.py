"""Checks task folders: the solution of a task has to earn 1, and an episode in which nothing is done less.

``python -m astraflow_contrib_harbor.oracle FOLDER``, where FOLDER has task folders; it exits with 1 if one of them fails, and
with 2 if there is none.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow_contrib_harbor.config import HarborTasksConfig, ShellLimits
from astraflow_contrib_harbor.source import task_folders
from astraflow_contrib_harbor.task_folder import HarborTask, read_task
from astraflow_contrib_harbor.task_sandbox import TESTS_STOPPED, Judgement, task_sandbox
from astraflow_core.errors import AstraFlowError, PromptError

SOLVED = 1.0


async def judged(task: HarborTask, limits: ShellLimits, *, solved: bool) -> Judgement:
    """What the tests give after the task's own solution, or after nothing. :class:`EnvironmentFailed` if that is nothing."""
    async with task_sandbox(task, limits) as sandbox:
        if solved:
            await sandbox.solve()
        return await sandbox.judge()


async def problem_of(folder: Path, limits: ShellLimits, keys: HarborTasksConfig) -> str:
    """What is wrong with a task; '' if it is fit to learn from."""
    try:
        task = read_task(folder, keys.images, keys.run_lines == "skip")
        if "/solution/solve.sh" not in task.solution:
            return "has no solution/solve.sh"
        solution = await judged(task, limits, solved=True)
        nothing = await judged(task, limits, solved=False)
    except (ValueError, AstraFlowError) as error:
        return str(error)
    if solution.reward < SOLVED:
        why = (
            ": the tests reached a limit of [sandbox]" if TESTS_STOPPED in solution.metrics else ""
        )
        return f"its solution earns {solution.reward:g}{why}"
    return f"doing nothing earns {nothing.reward:g}" if nothing.reward >= SOLVED else ""


def main(arguments: Sequence[str]) -> int:
    """The exit code; one line on standard output for each task."""
    parser = argparse.ArgumentParser(prog="python -m astraflow_contrib_harbor.oracle")
    parser.add_argument("folder", type=Path, help="folder with task folders")
    root = parser.parse_args(arguments).folder
    keys, failed = HarborTasksConfig(path=root), False
    try:
        folders = task_folders(root)
    except PromptError as error:
        parser.error(str(error))
    for folder in folders:
        problem = asyncio.run(problem_of(folder, ShellLimits(), keys))
        failed = failed or bool(problem)
        sys.stdout.write(f"{folder.name}: {problem or 'good'}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
