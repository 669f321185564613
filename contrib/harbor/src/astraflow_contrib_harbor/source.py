"""The prompt source ``harbor_tasks``."""

from __future__ import annotations

import logging
from pathlib import Path

from astraflow_contrib_harbor.config import HarborTasksConfig
from astraflow_contrib_harbor.task_folder import MARKS, HarborTask, read_task
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt
from astraflow_environments.tasks import PromptList, is_held_out

log = logging.getLogger("astraflow.harbor")
_SHOWN = 10


class HarborTasks(PromptList):
    """The task folders of a folder, by name. ``data`` has ``prompt`` (the instruction), ``folder``, ``digest`` of what decides
    an episode, and how its Dockerfile is read; tests and solution are read where the episode runs."""

    def __init__(self, config: HarborTasksConfig, context: ComponentContext) -> None:
        root = config.path.expanduser().absolute()
        folders = task_folders(root)
        prompts: list[Prompt] = []
        refused: list[str] = []
        for folder in folders:
            try:
                task = read_task(folder, config.images, config.run_lines == "skip")
            except ValueError as error:
                refused.append(f"{folder}: {error}")
                continue
            if config.split == "all" or is_held_out(task.instruction) == (
                config.split == "held_out"
            ):
                prompts.append(_prompt(folder, task, config))
        if refused and config.unplayable == "refuse":
            more = f"\n… and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
            raise PromptError(
                "\n".join(refused[:_SHOWN])
                + f"{more}\nunplayable = 'skip' leaves out tasks that cannot be played"
            )
        for reason in refused:
            log.warning("a task is left out: %s", reason)
        if not prompts:
            raise PromptError(
                f"prompt source 'harbor_tasks': of {len(folders)} tasks in {root} none is left in split {config.split!r}, "
                f"{len(refused)} cannot be played"
            )
        super().__init__(prompts[: config.limit])


def task_folders(root: Path) -> list[Path]:
    """The folders in ``root`` that have a file of a task, whole or not, by name. :class:`PromptError` if there is none."""
    if not root.is_dir():
        raise PromptError(f"Harbor tasks: {root} is not a folder")
    folders = {
        root / file.relative_to(root).parts[0] for mark in MARKS for file in root.glob(f"*/{mark}")
    }
    if not folders:
        hint = (
            "; it is a task itself: name the folder that it is in"
            if (root / MARKS[0]).is_file()
            else ""
        )
        raise PromptError(
            f"Harbor tasks: {root} has no task{hint or '; expected folders with instruction.md, task.toml, environment/ and tests/'}"
        )
    return sorted(folders)


def _prompt(folder: Path, task: HarborTask, config: HarborTasksConfig) -> Prompt:
    return Prompt(
        folder.name,
        {
            "prompt": task.instruction,
            "folder": str(folder),
            "digest": task.digest,
            "images": list(config.images),
            "skip_runs": config.run_lines == "skip",
        },
    )
