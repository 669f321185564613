"""The episode: an agent plays it, the gateway records what it sampled."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow_contrib_agent.agents import Agent, CommandAgent, FunctionAgent, ServiceAgent
from astraflow_contrib_agent.config import AgentConfig
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_gateway.listening import Listening
from astraflow_gateway.rewards import report_of, rewards_of
from astraflow_gateway.server import Gateway


class AgentWorkflow:
    """An agent of the user plays each episode: it is given the task, and samples through the gateway."""

    def __init__(self, config: AgentConfig, context: ComponentContext) -> None:
        self._config, self._trained = config, context.run.policies
        known = (*context.run.policies, *context.run.engines)
        if config.policy is not None and config.policy not in known:
            raise PreflightError(
                f"workflow 'agent': policy {config.policy!r} is not in the run, which has {', '.join(known)}"
            )
        self._default = config.policy or known[0]
        self._rules = Rules(
            Budget(config.max_calls, config.max_tokens, config.answering_s),
            frozenset(config.deviations),
            config.train_auxiliary,
            frozenset(self._trained),
            config.policy is not None,
        )
        if context.role != "launcher":  # the host that plays may have what the launcher's lacks
            _check_places(config)
        config.listening.tls()  # refused now, and not by each episode
        self._agent, self._name = _agent(config, context.directory)
        self._formats: dict[str, ChatFormat] = {}
        self._gateway: asyncio.Task[Gateway] | None = None

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        gateway = await self._started()
        for name, engine in engines.items():
            if name not in self._formats:
                self._formats[name] = ChatFormat(engine)
        episode = Episode(engines, self._formats, self._rules, self._default)
        key = gateway.begin(episode)
        task = {
            "id": prompt.id,
            "data": prompt.data,
            "base_url": f"{gateway.url}/v1",
            "api_key": key,
            "models": list(engines),
        }
        try:
            returned = await self._played(episode, task)
            return self._trajectory(episode, returned)
        except WorkflowError as error:
            told = f"\nthe gateway refused: {episode.refusal}" if episode.refusal else ""
            raise WorkflowError(f"prompt {prompt.id!r}: {error}{told}") from error
        finally:
            await gateway.end(key)

    async def _started(self) -> Gateway:
        """The gateway of the running event loop."""
        if self._gateway is None or self._gateway.get_loop() is not asyncio.get_running_loop():
            self._gateway = asyncio.create_task(_start(self._config.listening))
        return await asyncio.shield(self._gateway)

    async def _played(self, episode: Episode, task: Mapping[str, Any]) -> Any:
        """What the agent returns. It is stopped when an engine fails, because the episode can no longer be trained on."""
        playing = asyncio.ensure_future(self._agent.play(task))
        failing = asyncio.ensure_future(episode.failed.wait())
        deadline_s = self._config.deadline_s
        try:
            await asyncio.wait(
                {playing, failing}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if episode.failure is not None:
                raise episode.failure
            if not playing.done():
                raise WorkflowError(
                    f"agent {self._name} was ended after {deadline_s:g} s ([workflow] deadline_s)"
                )
            return playing.result()
        finally:
            failing.cancel()
            if not playing.done():
                playing.cancel()
                await asyncio.wait({playing})
            if not playing.cancelled():
                playing.exception()  # retrieved, because an engine failure takes precedence

    def _trajectory(self, episode: Episode, returned: Any) -> Trajectory:
        who = f"agent {self._name}"
        report = report_of(returned, who)
        episode.credit(report.turns, who)
        sequences = episode.sequences()
        if not sequences:
            raise WorkflowError(
                f"agent {self._name} sampled nothing that is trained: it has to call the gateway (OPENAI_BASE_URL) "
                f"for one of {', '.join(self._trained)}"
            )
        sampled = tuple(dict.fromkeys(sequence.policy for sequence in sequences))
        return Trajectory(
            tuple(sequences),
            tuple(episode.completions),
            rewards_of(report.reward, sampled, who),
            episode.metrics(),
        )


async def _start(listening: Listening) -> Gateway:
    gateway = Gateway(listening)
    await gateway.start()
    return gateway


def _check_places(config: AgentConfig) -> None:
    """Refuse a folder and an interpreter that are not here."""
    folder, python = config.folder, config.python
    if folder is not None and not folder.is_dir():
        raise PreflightError(
            f"workflow 'agent': workflow.folder is {str(folder)!r}, which is not a folder here; expected that of the "
            "agent's "
            "module or command"
        )
    if python is None:
        return
    # A relative path is looked up in the folder in which the agent is started.
    path = os.path.join(folder or "", python) if os.path.dirname(python) else python
    if shutil.which(path) is None:
        raise PreflightError(
            f"workflow 'agent': workflow.python is {python!r}, which is not a program here; expected an interpreter "
            "that has "
            "the packages of the agent, such as /path/to/venv/bin/python"
        )


def _agent(config: AgentConfig, directory: Path) -> tuple[Agent, str]:
    if config.target is not None:
        return FunctionAgent(config.target, config.folder, config.python), config.target
    if config.command is not None:
        outputs = directory / "outputs"
        command = CommandAgent(config.command, config.folder, outputs)
        return command, command.name
    assert config.url is not None, "one of the three is given"
    return ServiceAgent(config.url), config.url
