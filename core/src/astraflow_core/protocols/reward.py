"""Reward: scores a finished trajectory."""

from __future__ import annotations

from typing import Protocol

from astraflow_core.types import RewardReport, TrajectoryView


class Reward(Protocol):
    """Built as ``factory(config, context)``.

    A reward whose component declares ``blocking`` implements :meth:`BlockingReward.score` instead and runs
    in worker processes with a deadline.

    A score with a second parameter named ``engines`` receives what workflows get: policies and frozen engines
    by name, for example to query a judge (``[engines.judge]``).
    """

    async def score(self, view: TrajectoryView) -> float | dict[str, float] | RewardReport:
        """One reward for all policies of the trajectory, or policy → reward; finite numbers. A report has either
        of them, and metrics of the episode."""


class BlockingReward(Protocol):
    """A reward that may block, hang or crash; runs in worker processes that are killed at a deadline."""

    def score(self, view: TrajectoryView) -> float | dict[str, float] | RewardReport:
        """As :meth:`Reward.score`, called in a worker's main thread."""
