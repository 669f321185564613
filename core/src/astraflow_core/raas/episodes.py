"""Rolls out one task: its episodes at once, each scored, together a group."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from astraflow_core.errors import UserError, WorkflowError, WrongVersion
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.raas.failures import describe
from astraflow_core.raas.host_protocol import EngineError, HostGone
from astraflow_core.raas.patience import ended
from astraflow_core.raas.policy_engine import FatalTaskError, PolicyHandle, TaskPolicyEngine
from astraflow_core.raas.rewards import Scorer, as_number, validated
from astraflow_core.raas.workflows import NamedWorkflow
from astraflow_core.types import Group, Prompt, Sampling, Sequence, Trajectory, TrajectoryView
from astraflow_core.wire.groups import encode_group
from astraflow_core.wire.messages import Task

SHOWN_CHARACTERS = 400
"""Most characters of the completion that a group shows in the live view."""

_SAYS_ENOUGH = (WorkflowError, HostGone, WrongVersion, EngineError)


class TaskFailed(Exception):
    """A task that could not be rolled out: the text is for people; ``fatal`` if no attempt can succeed."""

    def __init__(self, text: str, fatal: bool = False) -> None:
        self.fatal = fatal
        super().__init__(text)


@dataclass
class EpisodeCounters:
    """What the episodes of a RaaS add up to."""

    episodes: int = 0
    rejected: int = 0
    failed_tasks: int = 0
    workflow_s: float = 0.0
    reward_s: float = 0.0


@dataclass
class TaskRunner:
    """Rolls out tasks with the run's workflow and reward over ``policies``."""

    raas: str
    workflow: NamedWorkflow
    scorer: Scorer | None
    policies: Mapping[str, PolicyHandle]
    counters: EpisodeCounters = field(default_factory=EpisodeCounters)

    async def run(self, task: Task, episode_ended: Callable[[], None] = lambda: None) -> bytes:
        """The push body of the task's group; :class:`TaskFailed` if there is none. ``episode_ended`` is
        called for each episode, however it ended."""
        prompt = Prompt(task.prompt_id, task.data)
        engines = {name: self._engine(handle, task) for name, handle in self.policies.items()}
        began = time.monotonic()
        scoring: set[asyncio.Task[Any] | None] = set()
        episodes = [
            asyncio.create_task(self._episode(engines, prompt, scoring))
            for _ in range(task.group_size)
        ]
        for episode in episodes:
            episode.add_done_callback(lambda _: episode_ended())
        try:
            group_deadline_s = task.group_deadline_s or task.deadline_s
            await ended(episodes, min(group_deadline_s, task.deadline_s), self._stopped_s)
            late = {episode for episode in episodes if not episode.done()}
            played = [episode.result() for episode in episodes if episode not in late]
            if late and (task.group_deadline_s is None or not any(played)):
                raise self._missed_deadline(task, len(late), len(late & scoring))
        except TaskFailed:
            self.counters.failed_tasks += 1
            raise
        finally:
            for episode in episodes:
                episode.cancel()
            # Nobody else reads what the others raised.
            await asyncio.gather(*episodes, return_exceptions=True)
        return self._push_body(task, played, len(late), time.monotonic() - began)

    def _stopped_s(self) -> float:
        return sum(handle.replicas.stopped_s for handle in self.policies.values())

    def _missed_deadline(self, task: Task, late: int, scoring: int) -> TaskFailed:
        deadline_s, key = task.deadline_s, "episode_deadline_s"
        if task.group_deadline_s is not None:
            deadline_s, key = task.group_deadline_s, "group_deadline_s"
        text = (
            f"workflow {self.workflow.name!r}: {late} of {task.group_size} episodes of prompt "
            f"{task.prompt_id!r} missed the deadline of {deadline_s:g} s ([run] {key})"
        )
        if scoring and self.scorer is not None:
            text += f"; {scoring} of them waited for reward {self.scorer.name!r}"
        return TaskFailed(text)

    def _engine(self, handle: PolicyHandle, task: Task) -> PolicyEngine:
        wanted = task.sampling
        sampling = Sampling(
            max_tokens=wanted.max_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            min_p=wanted.min_p,
            stop_sequences=tuple(
                tuple(handle.tokenizer.encode(text).tolist()) for text in wanted.stop
            ),
        )
        return TaskPolicyEngine(handle, sampling, task.pinned.get(handle.replicas.policy))

    def _push_body(
        self, task: Task, played: list[Trajectory | None], late: int, seconds: float
    ) -> bytes:
        kept = tuple(trajectory for trajectory in played if trajectory is not None)
        rejected = len(played) - len(kept)
        self.counters.episodes += len(played)
        self.counters.rejected += rejected
        texts = [c.text[:SHOWN_CHARACTERS] for t in kept[:1] for c in t.completions[:1]]
        return encode_group(
            Group(task.id, task.prompt_id, kept),
            self.raas,
            rejected=rejected,
            late=late,
            eval_set=task.eval_set,
            metrics={"group_s": seconds, **_mean_metrics(kept)},
            texts=texts,
        )

    async def _episode(
        self,
        engines: Mapping[str, PolicyEngine],
        prompt: Prompt,
        scoring: set[asyncio.Task[Any] | None],
    ) -> Trajectory | None:
        began = time.monotonic()
        try:
            trajectory = await self.workflow.workflow.run_episode(engines, prompt)
        except (FatalTaskError, UserError) as error:
            raise TaskFailed(f"prompt {prompt.id!r}: {error}", fatal=True) from error
        except _SAYS_ENOUGH as error:
            raise TaskFailed(
                f"workflow {self.workflow.name!r} on prompt {prompt.id!r}: {error}"
            ) from error
        except Exception as error:
            raise TaskFailed(
                f"workflow {self.workflow.name!r} raised on prompt {prompt.id!r}: {describe(error)}"
            ) from error
        played = time.monotonic()
        self.counters.workflow_s += played - began
        if trajectory is None:
            return None
        scoring.add(asyncio.current_task())
        trajectory = await self._rewarded(self._checked(trajectory, prompt), prompt, engines)
        self.counters.reward_s += time.monotonic() - played
        return trajectory

    def _checked(self, trajectory: Any, prompt: Prompt) -> Trajectory:
        who = f"workflow {self.workflow.name!r} on prompt {prompt.id!r}"
        if not isinstance(trajectory, Trajectory):
            raise TaskFailed(
                f"{who} returned {type(trajectory).__name__}; expected a Trajectory, or None to reject"
            )
        if not trajectory.sequences:
            raise TaskFailed(
                f"{who} returned a trajectory without sequences; return None to reject"
            )
        for index, sequence in enumerate(trajectory.sequences):
            if not self._is_frozen(sequence) and (problem := self._problem(sequence)):
                raise TaskFailed(f"{who} returned sequence {index} {problem}")
        trained = tuple(s for s in trajectory.sequences if not self._is_frozen(s))
        if not trained:
            raise TaskFailed(
                f"{who} returned sequences of frozen engines only, of which nothing is trained; return None to "
                "reject"
            )
        for name, value in trajectory.metrics.items():
            if not isinstance(as_number(value), float):
                raise TaskFailed(f"{who} returned metric {name!r} = {value!r}; expected a number")
        return replace(trajectory, sequences=trained)

    def _is_frozen(self, sequence: Sequence) -> bool:
        handle = self.policies.get(sequence.policy)
        return handle is not None and handle.frozen

    def _problem(self, sequence: Sequence) -> str:
        if sequence.policy not in self.policies:
            known = ", ".join(map(repr, self.policies))
            return f"of policy {sequence.policy!r}; the run has {known}"
        columns = (sequence.loss_mask, sequence.logprobs, sequence.versions)
        if len(sequence.tokens) < 1 or any(len(c) != len(sequence.tokens) for c in columns):
            sizes = ", ".join(str(len(c)) for c in (sequence.tokens, *columns))
            return f"with tokens, loss mask, log-probs and versions of {sizes} elements; expected one length"
        if sequence.loss_mask[0]:
            return "whose first token is trained; there is nothing before it to predict it from"
        if not np.isfinite(sequence.logprobs).all():
            return "with log-probs that are not finite"
        return ""

    async def _rewarded(
        self, trajectory: Trajectory, prompt: Prompt, engines: Mapping[str, PolicyEngine]
    ) -> Trajectory:
        """The trajectory with a finite reward for each of its policies."""
        policies = list(dict.fromkeys(s.policy for s in trajectory.sequences))
        name = self.workflow.name
        value: Any = trajectory.rewards
        if not value and all(s.reward is not None for s in trajectory.sequences):
            value = dict.fromkeys(policies, 0.0)
        elif not value:
            if self.scorer is None:
                raise TaskFailed(
                    f"workflow {name!r} left the rewards of prompt {prompt.id!r} empty and the run names "
                    "no reward; add a [reward] table or let the workflow fill Trajectory.rewards"
                )
            name = self.scorer.name
            value = await self._score(self.scorer, trajectory, prompt, engines)
        try:
            rewards = validated(name, value, policies, prompt.id)
            for sequence in trajectory.sequences:
                if sequence.reward is not None:
                    validated(self.workflow.name, sequence.reward, [sequence.policy], prompt.id)
        except WorkflowError as error:
            raise TaskFailed(str(error)) from error
        return replace(trajectory, rewards=rewards)

    async def _score(
        self,
        scorer: Scorer,
        trajectory: Trajectory,
        prompt: Prompt,
        engines: Mapping[str, PolicyEngine],
    ) -> Any:
        try:
            return await scorer.score(TrajectoryView(prompt, trajectory.completions), engines)
        except WorkflowError as error:
            raise TaskFailed(f"reward {scorer.name!r} on prompt {prompt.id!r}: {error}") from error
        except Exception as error:
            raise TaskFailed(
                f"reward {scorer.name!r} raised on prompt {prompt.id!r}: {describe(error)}"
            ) from error


def _mean_metrics(trajectories: tuple[Trajectory, ...]) -> dict[str, float]:
    """Each metric's mean over the trajectories that have it, finite."""
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            if math.isfinite(number := float(value)):
                found.setdefault(name, []).append(number)
    return {name: sum(values) / len(values) for name, values in found.items()}
