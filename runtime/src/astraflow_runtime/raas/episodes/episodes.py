"""Rolls out one task: its episodes run concurrently, each is scored, and together they form a
group.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import numpy as np

from astraflow_core.errors import EnvironmentFailed, UserError, WorkflowError, WrongVersion
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import (
    Group,
    Prompt,
    RewardReport,
    Sampling,
    Sequence,
    Trajectory,
    TrajectoryView,
)
from astraflow_core.types.trajectory import NOT_SAMPLED
from astraflow_engine_host.failures import describe
from astraflow_engine_host.protocol import EngineError, HostGone
from astraflow_runtime.raas.engines.deadlines import ended
from astraflow_runtime.raas.episodes.episode_metrics import EpisodeMetrics
from astraflow_runtime.raas.episodes.loop_watchdog import LoopBlocked, playing
from astraflow_runtime.raas.episodes.policy_engine import (
    FatalTaskError,
    PolicyHandle,
    TaskPolicyEngine,
)
from astraflow_runtime.raas.episodes.routing_log import RoutingLog, problem_of, with_routing
from astraflow_runtime.raas.episodes.shown_turns import Decode, shown_turns
from astraflow_runtime.raas.episodes.spans import EPISODE, SpanLog, record, recording
from astraflow_runtime.raas.episodes.stored_text import episode_text
from astraflow_runtime.raas.episodes.turns import Turns
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer, Scorer, validated
from astraflow_runtime.raas.user_objects import FunctionWorkflow
from astraflow_wire import sparse
from astraflow_wire.column_table import TOKEN_COLUMNS
from astraflow_wire.groups import encode_group
from astraflow_wire.limits import FAILURE_KIND
from astraflow_wire.messages import Task

_FATAL = (FatalTaskError, UserError)
_SAYS_ENOUGH = (WorkflowError, HostGone, WrongVersion, EngineError)


class TaskFailed(Exception):
    """A task that could not be rolled out. ``fatal``: no attempt can succeed; ``environment``: the
    kind of failure, if an environment failed; ``mistake``: the configuration or the installation is
    the cause, not this task.
    """

    def __init__(
        self, text: str, fatal: bool = False, environment: str = "", mistake: bool = False
    ) -> None:
        self.fatal, self.environment, self.mistake = fatal, environment, mistake
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class PlayedEpisodes:
    """The result of the episodes of a task: a trajectory each, ``None`` where the workflow rejected it, how many
    were ``late``, and the ``spans`` of a traced one."""

    outcomes: list[Trajectory | None]
    late: int
    spans: SpanLog | None = None


@dataclass
class EpisodeCounters:
    """Totals over the episodes of a RaaS."""

    episodes: int = 0
    rejected: int = 0
    failed_tasks: int = 0
    workflow_s: float = 0.0
    reward_s: float = 0.0


@dataclass
class TaskRunner:
    """Rolls out tasks with the run's workflow and reward over ``policies``. ``stores(task)``: whether the rollout store
    keeps its group; if so, its text is pushed too; ``traces(task)``: whether its spans are recorded; ``begins(task)`` is called
    before its first episode."""

    raas: str
    workflow: NamedWorkflow
    scorer: Scorer | None
    policies: Mapping[str, PolicyHandle]
    stores: Callable[[Task], bool] = lambda _: False
    traces: Callable[[Task], bool] = lambda _: False
    begins: Callable[[Task], None] = lambda _: None
    counters: EpisodeCounters = field(default_factory=EpisodeCounters)
    turns: Turns = field(default_factory=Turns)
    metrics: EpisodeMetrics = field(init=False)
    reward_metrics: EpisodeMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = EpisodeMetrics(f"workflow {self.workflow.name!r}")
        if self.scorer is not None:
            self.reward_metrics = EpisodeMetrics(f"reward {self.scorer.name!r}")

    async def run(
        self,
        task: Task,
        episode_ended: Callable[[], None] = lambda: None,
        incarnation: int = 0,
    ) -> bytes:
        """The push body of the task's group; :class:`TaskFailed` if there is none. ``episode_ended`` is
        called for each episode, however it ended. ``incarnation`` is that of this RaaS when it took the task."""
        return self.body_of(task, await self.play(task, episode_ended), incarnation)

    async def play(
        self, task: Task, episode_ended: Callable[[], None] = lambda: None
    ) -> PlayedEpisodes:
        """Roll out the task; returns trajectories."""
        self.begins(task)
        prompt = Prompt(task.prompt_id, task.data)
        engines = {name: self._engine(handle, task) for name, handle in self.policies.items()}
        scoring: set[asyncio.Task[Any] | None] = set()
        episodes: list[asyncio.Task[Trajectory | None]] = []
        spans = SpanLog() if self.traces(task) else None
        for number in range(task.group_size):
            with recording(spans, number):
                episode = self._episode(engines, prompt, scoring, episodes)
                episodes.append(asyncio.create_task(episode))
        for each in episodes:
            each.add_done_callback(lambda _: episode_ended())
        try:
            group_deadline_s = task.group_deadline_s or task.deadline_s
            await ended(episodes, min(group_deadline_s, task.deadline_s), self._stopped_s)
            _raise_first(episodes)
            late = {each for each in episodes if not each.done()}
            played = [each.result() for each in episodes if each not in late]
            if late and (task.group_deadline_s is None or not any(played)):
                raise self._missed_deadline(task, len(late), len(late & scoring))
        except TaskFailed:
            self.counters.failed_tasks += 1
            raise
        finally:
            for each in episodes:
                each.cancel()
            # The exceptions of the others are otherwise never retrieved.
            await asyncio.gather(*episodes, return_exceptions=True)
        return PlayedEpisodes(played, len(late), spans)

    @property
    def callers(self) -> dict[CodeType, str]:
        """Our code objects that call the user's code, and what each calls."""
        workflow = (TaskRunner._play, FunctionWorkflow.run_episode)
        found = {function.__code__: f"workflow {self.workflow.name!r}" for function in workflow}
        if self.scorer is not None:
            found[LoopScorer.score.__code__] = f"reward {self.scorer.name!r}"
        return found

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
            text += f"; {scoring} of them were waiting for reward {self.scorer.name!r}"
        return TaskFailed(text)

    def _engine(self, handle: PolicyHandle, task: Task) -> TaskPolicyEngine:
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
        pinned = task.pinned.get(handle.replicas.policy)
        log = None
        if handle.experts is not None and not task.eval_set:
            log = RoutingLog(handle.replicas.policy, handle.experts)
        return TaskPolicyEngine(handle, sampling, pinned, turns=self.turns, routing=log)

    def body_of(self, task: Task, played: PlayedEpisodes, incarnation: int = 0) -> bytes:
        """The push body of a task's episodes; updates the counters."""
        kept = tuple(trajectory for trajectory in played.outcomes if trajectory is not None)
        rejected = len(played.outcomes) - len(kept)
        self.counters.episodes += len(played.outcomes)
        self.counters.rejected += rejected
        shown = [sequence for trajectory in kept[:1] for sequence in trajectory.sequences]
        told = kept if self.stores(task) else ()
        return encode_group(
            Group(task.id, task.prompt_id, kept),
            self.raas,
            incarnation=incarnation,
            rejected=rejected,
            late=played.late,
            eval_set=task.eval_set,
            turns=shown_turns(shown, self._decode),
            episodes=[episode_text(trajectory, self._decode) for trajectory in told],
            spans=played.spans.encoded() if played.spans is not None else (),
        )

    def _decode(self, policy: str) -> Decode:
        return self.policies[policy].tokenizer.decode

    async def _episode(
        self,
        engines: Mapping[str, TaskPolicyEngine],
        prompt: Prompt,
        scoring: set[asyncio.Task[Any] | None],
        siblings: list[asyncio.Task[Trajectory | None]],
    ) -> Trajectory | None:
        try:
            return await self._play(engines, prompt, scoring)
        except (LoopBlocked, SystemExit, BaseExceptionGroup) as error:
            # Immediately: the steps of its siblings run before the one that waits for all, and
            # would block as well.
            self.turns.was_blocked()
            for each in siblings:
                if each is not asyncio.current_task():
                    each.cancel()
            raise TaskFailed(f"{playing.get()} {_ending(error)} (prompt {prompt.id!r})") from error

    async def _play(
        self,
        engines: Mapping[str, TaskPolicyEngine],
        prompt: Prompt,
        scoring: set[asyncio.Task[Any] | None],
    ) -> Trajectory | None:
        began = time.monotonic()
        playing.set(f"workflow {self.workflow.name!r}")
        try:
            trajectory = await self.workflow.workflow.run_episode(engines, prompt)
        except Exception as error:
            raise self._failed(_cause(error), prompt) from error
        played = time.monotonic()
        self.counters.workflow_s += played - began
        if trajectory is None:
            record(EPISODE, "", began)
            return None
        scoring.add(asyncio.current_task())
        logs = {name: e.routing for name, e in engines.items() if e.routing is not None}
        checked = with_routing(self._checked(trajectory, prompt), logs)
        rewarded = await self._rewarded(checked, prompt, engines)
        self.counters.reward_s += time.monotonic() - played
        record("reward", "", played)
        record(EPISODE, "", began)
        return rewarded

    def _failed(self, error: Exception, prompt: Prompt) -> TaskFailed:
        if isinstance(error, _FATAL):
            mistake = isinstance(error, UserError)
            return TaskFailed(f"prompt {prompt.id!r}: {error}", fatal=True, mistake=mistake)
        who = f"workflow {self.workflow.name!r}"
        if isinstance(error, _SAYS_ENOUGH):
            kind = _kind(error) if isinstance(error, EnvironmentFailed) else ""
            named = "" if repr(prompt.id) in str(error) else f" on prompt {prompt.id!r}"
            return TaskFailed(f"{who}{named}: {error}", environment=kind)
        text = f"{who} raised on prompt {prompt.id!r}: {describe(error, prompt.data)}"
        return TaskFailed(text, mistake=isinstance(error, ImportError))

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
                f"{who} returned only sequences of frozen engines, which are not trained; return None to reject"
            )
        try:
            metrics = self.metrics.checked(trajectory.metrics, prompt.id)
        except TypeError as error:
            raise TaskFailed(f"{who} returned {error}") from error
        return replace(trajectory, sequences=trained, metrics=metrics)

    def _is_frozen(self, sequence: Sequence) -> bool:
        handle = self.policies.get(sequence.policy)
        return handle is not None and handle.frozen

    def _problem(self, sequence: Sequence) -> str:
        if sequence.policy not in self.policies:
            known = ", ".join(map(repr, self.policies))
            return f"of policy {sequence.policy!r}; the run has {known}"
        sizes = {column.name: len(getattr(sequence, column.name)) for column in TOKEN_COLUMNS}
        if len(sequence.tokens) < 1 or len(set(sizes.values())) > 1:
            names, numbers = ", ".join(sizes), ", ".join(map(str, sizes.values()))
            return f"with {names} of {numbers} elements; expected equal lengths"
        if sequence.loss_mask[0]:
            return "whose first token is trained; it has no preceding token to predict it from"
        if not np.isfinite(sequence.logprobs).all():
            return "with log-probs that are not finite"
        if sequence.versions[0] != NOT_SAMPLED:
            return f"whose first token has a version; expected {NOT_SAMPLED}, because no policy samples it"
        if ((sequence.logprobs != 0) & (sequence.versions == NOT_SAMPLED)).any():
            return "with a log-prob but no version; expected 0 where no policy sampled"
        problem = next(sparse.problems(sequence), "")
        if sequence.images and self.policies[sequence.policy].images is None:
            problem = problem or "with images, and the policy reads none; set images = true"
        return problem or problem_of(sequence, self.policies[sequence.policy].experts)

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
                    f"workflow {name!r} returned no reward for prompt {prompt.id!r}, and the run has no [reward] table; "
                    "add one, or return the reward: an agent in its result, a workflow in Trajectory.rewards"
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
        metrics = trajectory.metrics
        if isinstance(value, RewardReport):
            metrics = self._reported(name, value, prompt) | metrics
        return replace(trajectory, rewards=rewards, metrics=metrics)

    def _reported(self, name: str, report: RewardReport, prompt: Prompt) -> dict[str, float]:
        try:
            return self.reward_metrics.checked(report.metrics, prompt.id)
        except TypeError as error:
            raise TaskFailed(f"reward {name!r} on prompt {prompt.id!r} returned {error}") from error

    async def _score(
        self,
        scorer: Scorer,
        trajectory: Trajectory,
        prompt: Prompt,
        engines: Mapping[str, PolicyEngine],
    ) -> Any:
        playing.set(f"reward {scorer.name!r}")
        await self.turns()
        try:
            return await scorer.score(TrajectoryView(prompt, trajectory.completions), engines)
        except WorkflowError as error:
            raise TaskFailed(f"reward {scorer.name!r} on prompt {prompt.id!r}: {error}") from error
        except Exception as error:
            text = f"reward {scorer.name!r} raised on prompt {prompt.id!r}: {describe(error, prompt.data)}"
            raise TaskFailed(text, mistake=isinstance(error, ImportError)) from error


def _raise_first(episodes: Iterable[asyncio.Task[Any]]) -> None:
    """Raise the exception of one of them; the cancelled siblings raise nothing."""
    for episode in episodes:
        if episode.done() and not episode.cancelled():
            episode.result()


def _cause(error: Exception) -> Exception:
    """Of the errors of an :class:`asyncio.TaskGroup` the first, or one that no attempt can avoid."""
    while isinstance(error, ExceptionGroup):
        fatal, _ = error.split(_FATAL)
        error = (fatal or error).exceptions[0]
    return error


def _kind(error: EnvironmentFailed) -> str:
    return error.kind if error.kind and re.match(FAILURE_KIND, error.kind) else "other"


def _ending(error: BaseException) -> str:
    """An exception that ends more than its own episode; the first of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LoopBlocked):
        return error.block.what
    if isinstance(error, SystemExit):
        return f"tried to exit its process: {describe(error)}; raise an error instead"
    return f"raised {describe(error)}"
