"""Prompt source ``verifiers``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any

import msgspec

from astraflow_contrib_verifiers.config import VerifiersPromptsConfig
from astraflow_contrib_verifiers.interpreter import command, variables
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

TASK = "verifiers"
"""Field of a prompt's data that says which task it is."""
_WHO = "prompt source 'verifiers'"


class EnvironmentTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The task ``index`` of an environment, whose content has ``digest``; ``roles`` are those who play it."""

    environment: str
    arguments: dict[str, Any]
    split: str
    index: int
    digest: str
    roles: list[str]


class _Task(msgspec.Struct):
    index: int
    prompt: Any
    answer: Any
    digest: str


class WorkerFailure(msgspec.Struct, frozen=True):
    """Why there is nothing else in a reply."""

    kind: str
    reason: str


class _Tasks(msgspec.Struct):
    roles: list[str] = []
    tasks: list[_Task] = []
    failed: WorkerFailure | None = None


class VerifiersPrompts:
    """The tasks of an environment in its own order. ``data`` has ``prompt`` and ``answer`` where the environment has such, and
    ``verifiers``, by which the workflow finds the task again. They are read once, in a process that then exits."""

    def __init__(self, config: VerifiersPromptsConfig, context: ComponentContext) -> None:
        self._config = config
        told = self._list_tasks()
        if told.failed is not None:
            raise PromptError(
                f"{_WHO}: environment {config.environment!r} cannot list its tasks: {told.failed.reason}"
            )
        if not told.tasks:
            raise PromptError(
                f"{_WHO}: environment {config.environment!r} has no tasks in split {config.split!r} after the first "
                f"{config.skip} (skip)"
            )
        self._roles, self._tasks = told.roles, told.tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        task, config = self._tasks[index], self._config
        which = EnvironmentTask(
            config.environment, config.arguments, config.split, task.index, task.digest, self._roles
        )
        given = {"prompt": task.prompt, "answer": task.answer}
        data = {name: value for name, value in given.items() if value is not None}
        return Prompt(
            f"{config.environment}:{config.split}:{task.index}",
            {**data, TASK: msgspec.to_builtins(which)},
        )

    def _list_tasks(self) -> _Tasks:
        config = self._config
        asked = {
            "environment": config.environment,
            "arguments": config.arguments,
            "split": config.split,
            "skip": config.skip,
            "size": config.size,
        }
        try:
            body = msgspec.json.encode(asked)
        except TypeError as error:
            raise PromptError(
                f"{_WHO}: arguments contain a value that JSON cannot represent: {error}"
            ) from error
        process = subprocess.Popen(
            command(config, _WHO, "tasks"),
            env=variables(config, {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(body + b"\n", timeout=config.load_deadline_s)
        except subprocess.TimeoutExpired:
            raise PromptError(
                f"{_WHO}: environment {config.environment!r} has not listed its tasks after {config.load_deadline_s:g} s "
                "(load_deadline_s)"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        try:
            return msgspec.json.decode(said, type=_Tasks)
        except msgspec.DecodeError as error:
            raise PromptError(
                f"{_WHO}: the process of environment {config.environment!r} ended with exit code {process.returncode} and no "
                f"tasks ({error}); its output is above"
            ) from error
