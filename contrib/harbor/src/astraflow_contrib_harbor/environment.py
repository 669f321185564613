"""The environment ``harbor``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from astraflow_contrib_harbor.config import HarborConfig
from astraflow_contrib_harbor.task_folder import HarborTask, read_task
from astraflow_contrib_harbor.task_sandbox import TaskSandbox, ending_of, runner_of, task_sandbox
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import first_tagged, said, shortened, tool

_COMMAND = {"type": "string", "description": "A command of bash."}
TOOLS = (
    tool("bash", "Run a command in the task's folder and see its output.", command=_COMMAND),
    tool("finish", "Say that the task is done; this ends it."),
)
_HOW = {
    "tools": "Call bash to run commands in {workdir}; files stay from one to the next, variables and processes do not. "
    "There is no network. Call finish when the task is done; you have {turns} turns.",
    "text": "Reply with <bash>COMMAND</bash> to run a command in {workdir}; files stay from one to the next, variables and "
    "processes do not. There is no network. Reply with <finish></finish> when the task is done; you have {turns} turns.",
}
MOST_COMMAND_BYTES = 100_000
_FENCED = re.compile(r"```(?:bash|sh|shell)\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)


class HarborEnvironment:
    """Shows the instruction of a task, runs commands in a sandbox with the task's files, and rewards by the task's tests, which
    come into the sandbox when the episode is over."""

    def __init__(self, config: HarborConfig, context: ComponentContext) -> None:
        self._config = config
        self._limits = config.sandbox
        runner_of(self._limits.model_dump_json())  # refuses a host without a sandbox
        self._stack = AsyncExitStack()
        self._sandbox: TaskSandbox | None = None
        self._left = 0
        self._counts: dict[str, float] = {}

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Make a sandbox with the files of a task. :class:`PromptError` if the prompt has no task, or another."""
        await self.close()
        found = await asyncio.to_thread(_task_of, task)
        self._sandbox = await self._stack.enter_async_context(task_sandbox(found, self._limits))
        self._left, self._counts = self._config.turns, {"commands": 0.0, "failed_commands": 0.0}
        text = found.instruction
        if self._config.wording == "plain" and self._config.completes is None:
            how = _HOW[self._config.actions].format(workdir=found.workdir, turns=self._config.turns)
            text = f"{text}\n\n{how}"
        return Observation(({"role": "user", "content": text},), tools=self._tools)

    async def step(self, action: Action) -> Observation:
        """Run a command, or the tests if the episode is over."""
        sandbox = self._sandbox
        assert sandbox is not None, "an episode has begun"
        self._left -= 1
        try:
            command = self._command(action)
        except ValueError as error:
            messages, done = said(action, str(error)), False
        else:
            done = command is None
            messages = said(
                action, "Done." if command is None else await self._ran(sandbox, command)
            )
        if not done and self._left > 0:
            return Observation(messages, tools=self._tools, metrics=dict(self._counts))
        judged = await sandbox.judge()
        finished = done or self._config.completes is not None
        return Observation(
            messages,
            judged.reward,
            Outcome.FINISHED if finished else Outcome.TRUNCATED,
            self._tools,
            metrics={**self._counts, **judged.metrics},
        )

    async def close(self) -> None:
        """Remove the sandbox's files."""
        self._sandbox = None
        await self._stack.aclose()

    @property
    def _tools(self) -> tuple[Mapping[str, Any], ...]:
        offered = self._config.actions == "tools" and self._config.completes is None
        return TOOLS if offered else ()

    async def _ran(self, sandbox: TaskSandbox, command: str) -> str:
        result = await sandbox.run(command)
        self._counts["commands"] += 1
        self._counts["failed_commands"] += not result.succeeded
        output = shortened(result.stdout, self._config.max_output).rstrip("\n")
        return "\n".join(filter(None, (output, ending_of(result)))) or "[no output]"

    def _command(self, action: Action) -> str | None:
        """The command of a reply, ``None`` if the reply ends the episode; :class:`ValueError` with the reason for the model."""
        if self._config.completes is not None:
            return self._config.completes.replace("{}", _plain(action.text.strip()))
        if self._config.actions == "tools":
            return _called(action)
        tagged = first_tagged(action.text, "bash", "finish")
        if tagged is not None:
            return _plain(tagged[1]) if tagged[0] == "bash" else None
        if (fenced := _FENCED.search(action.text)) is not None:
            return _plain(fenced[1])
        raise ValueError(
            "Reply with <bash>COMMAND</bash>, or <finish></finish> when the task is done."
        )


def _called(action: Action) -> str | None:
    if not action.calls or action.calls[0].name == "finish":
        return None
    call = action.calls[0]
    if call.name != "bash":
        raise ValueError(f"There is no tool {call.name!r:.80}; call bash or finish.")
    command = call.arguments.get("command") if isinstance(call.arguments, dict) else None
    if not isinstance(command, str):
        raise ValueError("bash needs an argument 'command', a text.")
    return _plain(command)


def _plain(command: str) -> str:
    """Without what no command line may hold."""
    if "\0" in command:
        raise ValueError("A command has no NUL.")
    if len(command.encode("utf-8", "replace")) > MOST_COMMAND_BYTES:
        raise ValueError(f"The command has more than {MOST_COMMAND_BYTES} bytes.")
    return command


def _task_of(prompt: Prompt) -> HarborTask:
    data = prompt.data
    if not isinstance(data.get("folder"), str) or not isinstance(data.get("images"), list):
        raise PromptError(
            f"prompt {prompt.id!r} is not a task of the environment 'harbor'; the prompt source 'harbor_tasks' makes them"
        )
    try:
        found = read_task(Path(data["folder"]), data["images"], bool(data.get("skip_runs")))
    except ValueError as error:
        raise PromptError(f"prompt {prompt.id!r}: {data['folder']}: {error}") from error
    if found.digest != data.get("digest"):
        raise PromptError(
            f"prompt {prompt.id!r}: {data['folder']} has changed since the prompts were read; episodes have to run where "
            "the same files are"
        )
    return found
