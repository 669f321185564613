"""The episode: an environment of verifiers plays it, the gateway records what was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from astraflow_contrib_verifiers.config import VerifiersWorkflowConfig
from astraflow_contrib_verifiers.interpreter import command
from astraflow_contrib_verifiers.outcome import trajectory
from astraflow_contrib_verifiers.prompts import TASK, EnvironmentTask
from astraflow_contrib_verifiers.worker import WHO, RoleOutcome, Worker
from astraflow_core.errors import EnvironmentFailed, PreflightError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_gateway.listening import Listening
from astraflow_gateway.server import Gateway


class VerifiersWorkflow:
    """The environment that made the prompt plays it. Each of its roles samples from a policy, or from a frozen engine."""

    def __init__(self, config: VerifiersWorkflowConfig, context: ComponentContext) -> None:
        self._config = config
        known = (*context.run.policies, *context.run.engines)
        named = {**config.roles, "policy": config.policy or known[0]}
        for what, policy in [*named.items(), *((name, name) for name in config.tokenizers)]:
            if policy not in known:
                raise PreflightError(
                    f"{WHO}: {what!r} is given {policy!r}, which is not in the run; it has {', '.join(known)}"
                )
        self._default = named["policy"]
        self._rules = Rules(
            Budget(config.max_calls, config.max_tokens),
            trained=frozenset(context.run.policies),
            any_model=True,
            train_auxiliary=True,
        )
        if context.role != "launcher":  # the host that plays may have what the launcher's lacks
            command(config, WHO)
        config.listening.tls()  # refused now, and not by each episode
        self._workers = [Worker(config) for _ in range(config.workers)]
        self._formats: dict[str, ChatFormat] = {}
        self._gateway: asyncio.Task[Gateway] | None = None

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        task = self._task(prompt)
        gateway = await self._started()
        for name, engine in engines.items():
            if name not in self._formats:
                self._formats[name] = ChatFormat(engine)
        players = {role: self._config.roles.get(role, self._default) for role in task.roles}
        played = {
            role: Episode(engines, self._formats, self._rules, policy)
            for role, policy in players.items()
        }
        keys = {role: gateway.begin(episode) for role, episode in played.items()}
        asked = {
            **msgspec.to_builtins(task),
            "roles": {
                role: self._player(role, policy, f"{gateway.url}/e/{keys[role]}/v1")
                for role, policy in players.items()
            },
        }
        try:
            outcomes = await self._played(played, asked)
            return trajectory(played, outcomes, self._config.check_tokens)
        except EnvironmentFailed as error:
            raise EnvironmentFailed(error.kind, f"prompt {prompt.id!r}: {error.reason}") from error
        finally:
            for key in keys.values():
                await gateway.end(key)

    def _task(self, prompt: Prompt) -> EnvironmentTask:
        """The task of a prompt, if the roles that the run names are its roles."""
        try:
            task = msgspec.convert(prompt.data.get(TASK), EnvironmentTask)
        except msgspec.ValidationError as error:
            raise WorkflowError(
                f"prompt {prompt.id!r} is not of the prompt source 'verifiers' (data[{TASK!r}]: {error}), which {WHO} needs"
            ) from error
        if unknown := sorted(set(self._config.roles) - set(task.roles)):
            raise WorkflowError(
                f"{WHO}: roles names {', '.join(unknown)}; the roles of {task.environment} are {', '.join(task.roles)}"
            )
        return task

    def _player(self, role: str, policy: str, base_url: str) -> dict[str, Any]:
        return {
            "base_url": base_url,
            "model": policy,
            "named": role in self._config.roles,
            "tokenizer": self._config.tokenizers.get(policy),
            "renderer": self._config.renderer,
        }

    async def _started(self) -> Gateway:
        """The gateway of the running event loop."""
        if self._gateway is None or self._gateway.get_loop() is not asyncio.get_running_loop():
            self._gateway = asyncio.create_task(_start(self._config.listening))
        return await asyncio.shield(self._gateway)

    async def _played(
        self, played: Mapping[str, Episode], asked: Mapping[str, Any]
    ) -> dict[str, RoleOutcome]:
        """The result of the environment. It is ended when an engine fails, since nothing it does afterwards can be trained on."""
        worker = min(self._workers, key=lambda each: each.playing)
        playing = asyncio.ensure_future(worker.play(asked))
        failing = [asyncio.ensure_future(each.failed.wait()) for each in played.values()]
        try:
            await asyncio.wait(
                {playing, *failing},
                timeout=self._config.deadline_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for episode in played.values():
                if episode.failure is not None:
                    raise episode.failure
            if not playing.done():
                raise EnvironmentFailed(
                    "timeout",
                    f"the environment was ended after {self._config.deadline_s:g} s ([workflow] deadline_s)",
                )
            return playing.result()
        finally:
            for each in failing:
                each.cancel()
            if not playing.done():
                playing.cancel()
                await asyncio.wait({playing})
            if not playing.cancelled():
                playing.exception()  # it has no other reader when an engine has failed


async def _start(listening: Listening) -> Gateway:
    gateway = Gateway(listening)
    await gateway.start()
    return gateway
