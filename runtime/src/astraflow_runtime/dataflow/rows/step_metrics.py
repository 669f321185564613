"""What the groups of a step say about the run, before any data policy judged them: rewards, lengths, pass rates."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Prompt
from astraflow_runtime.dataflow.rows.group_watch import without_spread
from astraflow_runtime.dataflow.rows.rows import PolicyShare
from astraflow_wire.limits import MAX_LABEL

RECENT_GROUPS = 64
FOLDED_GROUPS = 64
"""Groups that are processed together: NumPy takes as long for many as for one, and a push costs a
list entry only.
"""
MAX_SOURCES = 64
"""The most prompt sources with a pass rate of their own; a data set may name one for each prompt.
"""
OTHER = "other"
"""The name under which prompts of further sources, and those without a source, are counted."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of the groups received between two updates; ``None`` where there is no data.
    ``reward_std``: over all sequences, with n-1. ``completion_length_*``: trained tokens of a
    sequence that has any. ``truncated_fraction``: sequences that the token limit ended.
    ``equal_groups_fraction``: groups with equal rewards, of those with more than one sequence.
    ``pass_rate``: episodes whose reward, the mean over their sequences, is at least ``[eval]
    pass_threshold``; ``pass_rates``: the same for each source of prompts as its ``mean`` and the
    number of ``episodes``."""

    groups: int = 0
    reward_std: float | None = None
    completion_length_mean: float | None = None
    completion_length_max: int | None = None
    truncated_fraction: float | None = None
    equal_groups_fraction: float | None = None
    pass_rate: float | None = None
    pass_rates: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Sums:
    groups: int = 0
    compared: int = 0
    equal: int = 0
    sequences: int = 0
    mean: float = 0.0
    squares: float = 0.0
    completions: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    episodes: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_SOURCES + 1))
    passed: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_SOURCES + 1))

    def add_rewards(self, rewards: npt.NDArray[np.float64]) -> None:
        """Update mean and squared distances (Chan et al. 1983), which stay exact for large rewards."""
        count = len(rewards)
        mean = float(rewards.mean())
        apart, total = mean - self.mean, self.sequences + count
        self.squares += float(np.square(rewards - mean).sum())
        self.squares += apart * apart * self.sequences * count / total
        self.mean += apart * count / total
        self.sequences = total


class StepStatistics:
    """Collects the groups of one policy and returns the figures of each step. ``reward``: mean of
    the groups' mean rewards between the last two updates; ``recent_reward``: of the last groups.
    ``last``: the figures of the last step in which a group came in."""

    def __init__(self, pass_threshold: float) -> None:
        # Rewards are rounded to float32 as well.
        self._pass_threshold = float(np.float32(pass_threshold))
        self._pending: list[PolicyShare] = []
        self._sums = _Sums()
        self._sources: dict[str, int] = {}
        self._means = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_GROUPS)
        self.reward: float | None = None
        self.last = StepFigures()

    @property
    def recent_reward(self) -> float | None:
        """Mean reward of the last groups pushed."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def note(self, share: PolicyShare) -> None:
        """Add a pushed group, accepted or not."""
        self._recent.append(share.statistics.mean)
        self._pending.append(share)
        if len(self._pending) == FOLDED_GROUPS:
            self._fold()

    def end_step(self) -> None:
        """An update was made. Without a group since the last one the figures do not change."""
        if self._pending:
            self._fold()
        if self._sums.groups:
            self.reward = self._means / self._sums.groups
            self.last = self._figures(self._sums)
            self._sums, self._means = _Sums(), 0.0

    def _fold(self) -> None:
        shares, sums = self._pending, self._sums
        self._pending = []
        rewards = np.concatenate([share.summary.rewards for share in shares])
        trained = np.concatenate([share.summary.trained for share in shares])
        cut = np.concatenate([share.summary.truncated for share in shares])
        sums.groups += len(shares)
        comparable = [share.statistics for share in shares if share.statistics.size > 1]
        sums.compared += len(comparable)
        sums.equal += sum(map(without_spread, comparable))
        self._means += sum(share.statistics.mean for share in shares)
        sums.add_rewards(rewards)
        sums.completions += int(np.count_nonzero(trained))
        sums.tokens += int(trained.sum(dtype=np.int64))
        sums.longest = max(sums.longest, int(trained.max()))
        sums.truncated += int(np.count_nonzero(cut))
        self._count_passes(shares, rewards)

    def _count_passes(self, shares: list[PolicyShare], rewards: npt.NDArray[np.float64]) -> None:
        counts = [share.rewards.trajectories for share in shares]
        sizes = [len(share.indexes) for share in shares]
        episode = np.concatenate([share.rewards.trajectory for share in shares])
        episode = episode + np.repeat(np.cumsum(counts) - counts, sizes)
        having = np.bincount(episode, minlength=sum(counts))
        earned = np.bincount(episode, weights=rewards, minlength=sum(counts))
        there = having > 0
        solved = there & (earned / np.maximum(having, 1) >= self._pass_threshold)
        source = np.repeat([self._source(share.summary.prompt) for share in shares], counts)
        self._sums.episodes += np.bincount(source, weights=there, minlength=MAX_SOURCES + 1)
        self._sums.passed += np.bincount(source, weights=solved, minlength=MAX_SOURCES + 1)

    def _source(self, prompt: Prompt) -> int:
        name = prompt.data.get("source")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_LABEL or name == OTHER:
            return MAX_SOURCES
        if name not in self._sources and len(self._sources) == MAX_SOURCES:
            return MAX_SOURCES
        return self._sources.setdefault(name, len(self._sources))

    def _figures(self, sums: _Sums) -> StepFigures:
        names = {number: name for name, number in self._sources.items()}
        rates = {
            names.get(number, OTHER): {
                "mean": float(sums.passed[number] / sums.episodes[number]),
                "episodes": int(sums.episodes[number]),
            }
            for number in np.flatnonzero(sums.episodes).tolist()
        }
        alone = rates.keys() == {OTHER}
        return StepFigures(
            groups=sums.groups,
            reward_std=math.sqrt(sums.squares / max(1, sums.sequences - 1)),
            completion_length_mean=sums.tokens / sums.completions if sums.completions else None,
            completion_length_max=sums.longest if sums.completions else None,
            truncated_fraction=sums.truncated / sums.sequences,
            equal_groups_fraction=sums.equal / sums.compared if sums.compared else None,
            pass_rate=float(sums.passed.sum() / sums.episodes.sum()),
            pass_rates={} if alone else rates,
        )
