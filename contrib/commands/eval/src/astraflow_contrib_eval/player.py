"""Plays episodes with the weights that a model folder has: what a RaaS does, without a dataflow."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from astraflow_contrib_eval.subject import EvaluationSubject
from astraflow_core.errors import RunFailed
from astraflow_core.types import Completion, Prompt, Trajectory
from astraflow_runtime.dataflow.tasks.evaluation_tasks import evaluation_sampling
from astraflow_runtime.dataflow.tasks.scores import PromptScore, score_prompt
from astraflow_runtime.raas.engines.building import as_replicas, build_engines, initial_version
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.loop_watchdog import WARN_S, LoopWatchdog
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.raas.episodes.workflows import build_scorer, build_workflow
from astraflow_runtime.raas.rewards.pool import RewardPool
from astraflow_runtime.raas.user_objects import load_user_objects
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.host.sockets import socket_folder
from astraflow_wire.http.auth import new_token
from astraflow_wire.images.model import ImageModel
from astraflow_wire.messages import Task

NAME = "raas-0"
"""Components are seeded as those of a run's first RaaS."""


@dataclass(frozen=True, slots=True)
class EvaluatedEpisode:
    """The result of sample ``sample`` of a prompt: ``scores`` by policy, none of a rejected one, or the ``error`` of
    the last attempt."""

    eval_set: str
    prompt_id: str
    sample: int
    scores: dict[str, PromptScore] | None
    trajectory: Trajectory | None = None
    completions: tuple[Completion, ...] = ()
    error: str = ""
    seconds: float = 0.0

    @property
    def rewards(self) -> dict[str, float]:
        """Policy → reward."""
        return {policy: score.rewards[0] for policy, score in (self.scores or {}).items()}


class EpisodePlayer:
    """The engines, the workflow and the reward of a subject, running within :func:`playing`."""

    def __init__(self, subject: EvaluationSubject) -> None:
        self._subject, self._config = subject, subject.config
        config, directory, token = self._config, subject.directory, new_token()
        (directory / "state" / NAME).mkdir(parents=True, exist_ok=True)
        self._sockets = socket_folder()
        self._engines = {
            name: build_engines(config, directory, NAME, name, token, self._sockets.path)
            for name in config.served
        }
        self._handles = {name: self._handle(name) for name in config.served}
        given = load_user_objects(directory)
        self._scorer = build_scorer(config, subject.catalog, directory, NAME, token, given)
        workflow = build_workflow(config, subject.catalog, directory, NAME, token, given)
        self._runner = TaskRunner(NAME, workflow, self._scorer, self._handles)
        self._sampling = evaluation_sampling(config)
        self._numbers = itertools.count()
        self.watchdog = LoopWatchdog(
            self._runner.callers,
            min(config.run.episode_deadline_s, max(WARN_S, config.run.lease_s / 2)),
        )
        """Interrupts a workflow that blocks the event loop, as in a run."""

    def _handle(self, name: str) -> PolicyHandle:
        served, engines = self._config.served[name], self._engines[name]
        for engine in engines:
            engine.changed = partial(self._changed, name)
        serving = partial(initial_version, engines)
        replicas = as_replicas(engines, serving, self._config.run.deadline_s)
        table, folder = self._config.policies.get(name), Path(served.model)
        images = ImageModel.of(folder) if table is not None and table.images else None
        return PolicyHandle(replicas, FolderTokenizer(folder), served.frozen, images=images)

    def _changed(self, name: str) -> None:
        self._handles[name].replicas.changed()

    async def run(self) -> None:
        """Keep the engines running; raises what keeps one from it."""
        async with asyncio.TaskGroup() as group:
            for engines in self._engines.values():
                for engine in engines:
                    group.create_task(engine.run())

    async def start(self) -> None:
        """Return when everything has started."""
        self.watchdog.start()
        if isinstance(self._scorer, RewardPool):
            await self._scorer.start()
        await self._available()

    async def _available(self) -> None:
        await asyncio.gather(*(handle.replicas.available() for handle in self._handles.values()))

    async def play(self, eval_set: str, prompt: Prompt, sample: int) -> EvaluatedEpisode:
        """One episode, tried as often as a run tries a task."""
        loop = asyncio.get_running_loop()
        began, error = loop.time(), ""
        for _ in range(self._config.run.task_attempts):
            await self._available()
            task = self._task(eval_set, prompt)
            try:
                played = await self._runner.play(task)
            except TaskFailed as failed:
                error = str(failed)
                if failed.fatal:
                    break
                continue
            header = ReceivedGroup(self._runner.body_of(task, played)).header
            scores = score_prompt(header, 1, self._config.eval.pass_threshold)
            (trajectory,) = played.outcomes
            seconds = loop.time() - began
            texts = () if trajectory is None else self._completions(trajectory)
            return EvaluatedEpisode(
                eval_set, prompt.id, sample, scores, trajectory, texts, "", seconds
            )
        return EvaluatedEpisode(
            eval_set, prompt.id, sample, None, error=error, seconds=loop.time() - began
        )

    def _task(self, eval_set: str, prompt: Prompt) -> Task:
        return Task(
            id=f"eval-{next(self._numbers)}",
            prompt_id=prompt.id,
            data=prompt.data,
            group_size=1,
            sampling=self._sampling,
            lease_s=self._config.run.lease_s,
            deadline_s=self._config.run.episode_deadline_s,
            eval_set=eval_set,
        )

    def _completions(self, trajectory: Trajectory) -> tuple[Completion, ...]:
        """What was sampled, as text: as the workflow gives it, else what each sequence has."""
        if trajectory.completions:
            return trajectory.completions
        found = []
        for sequence in trajectory.sequences:
            tokens = sequence.tokens[sequence.loss_mask]
            text = self._handles[sequence.policy].tokenizer.decode(tokens)
            found.append(Completion(sequence.policy, text, tokens, ""))
        return tuple(found)

    async def close(self) -> None:
        """End what runs; nothing is left then."""
        self.watchdog.stop()
        engines = [engine for engines in self._engines.values() for engine in engines]
        await asyncio.gather(*(engine.close() for engine in engines))
        if isinstance(self._scorer, RewardPool):
            await self._scorer.close()
        self._sockets.close()


@contextlib.asynccontextmanager
async def playing(
    subject: EvaluationSubject,
) -> AsyncIterator[tuple[EpisodePlayer, asyncio.Task[None]]]:
    """The player of a subject, and the task that ends with an error when its engines cannot be kept running."""
    os.environ.update(subject.environment)
    player = EpisodePlayer(subject)
    running = asyncio.create_task(player.run())
    try:
        yield player, running
    finally:
        with contextlib.suppress(RunFailed):
            await player.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
