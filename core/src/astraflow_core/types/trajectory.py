"""Sequences, trajectories and groups: the results of rolling out a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types.generation import Images, RoutedExperts
from astraflow_core.types.prompt import Prompt

NOT_SAMPLED = -1
"""The version of tokens that no policy sampled (prompts, tool output)."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """Token ids of one policy, as it saw and sampled them.

    ``tokens`` int32 ``[T]``; ``loss_mask`` bool ``[T]``, true where the policy sampled the token and it
    shall be trained; ``logprobs`` float32 ``[T]``, behaviour log-prob of token t given those before it, 0
    where not sampled; ``versions`` int32 ``[T]``, -1 where not sampled. ``reward`` overrides the
    trajectory's reward for this sequence: what this step of it earned.

    Both of turns: index of the last token of a turn, which the policy sampled → ``turn_rewards``: what that turn
    earned; it changes no ``reward``, and the algorithm knows whether that includes it. ``turn_states``: a name or
    number of the state in which the turn was taken, the same whenever that state is met in the group.

    ``teacher_logprobs`` float32 ``[T]``: log-probs that a teacher gives the tokens that the policy sampled, 0 elsewhere.

    ``routed_experts`` ``[T, layers, top_k]``, see :data:`~astraflow_core.types.generation.RoutedExperts`; the RaaS adds it if the policy has
    ``router_replay``. ``images``: those that the policy saw, at their placeholders, which it did not sample.
    """

    policy: str
    tokens: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    reward: float | None = None
    turn_rewards: Mapping[int, float] | None = None
    turn_states: Mapping[int, int | str] | None = None
    teacher_logprobs: npt.NDArray[np.float32] | None = None
    routed_experts: RoutedExperts | None = None
    images: Images = ()

    @property
    def min_version(self) -> int:
        """Smallest version among the trained tokens (version 0 counts); -1 if none is trained."""
        trained = self.versions[self.loss_mask]
        return int(trained.min()) if trained.size else NOT_SAMPLED


@dataclass(frozen=True, slots=True)
class Completion:
    """A sequence as a reward sees it: the decoded sampled part and why it ended."""

    policy: str
    text: str
    tokens: npt.NDArray[np.int32]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The sequences of one episode. ``rewards`` maps policy → reward; the reward component fills it
    when the workflow leaves it empty. ``metrics``: name → finite number, averaged over the episodes of each batch that
    have one of the name, and shown with their number; at most 64 names in a run."""

    sequences: tuple[Sequence, ...]
    completions: tuple[Completion, ...] = ()
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """What a reward scores: the prompt and the completions in the order in which they were made.

    ``policies`` names the policies of the trajectory; ``data`` is ``prompt.data``.
    """

    prompt: Prompt
    completions: tuple[Completion, ...]

    @property
    def data(self) -> dict[str, Any]:
        """The prompt's data, for rewards that compare with ``data["answer"]``."""
        return self.prompt.data

    @property
    def text(self) -> str:
        """Text of the last completion."""
        return self.completions[-1].text if self.completions else ""


@dataclass(frozen=True, slots=True)
class RewardReport:
    """What a reward may return instead of a single number: the ``reward``, one number for all policies of the trajectory
    or policy → reward, and ``metrics`` of the episode, as :class:`Trajectory` has them. Where the workflow gave a metric
    of the same name, that of the workflow stays."""

    reward: float | dict[str, float]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one prompt at one admission."""

    task: str
    prompt_id: str
    trajectories: tuple[Trajectory, ...]
