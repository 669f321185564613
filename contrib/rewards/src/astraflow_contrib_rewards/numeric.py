"""Reward ``numeric``: the last number of the completion equals the answer."""

from __future__ import annotations

from functools import lru_cache

from astraflow_contrib_rewards.answers import expected_answer
from astraflow_contrib_rewards.config import NumericConfig
from astraflow_contrib_rewards.judging import judge
from astraflow_contrib_rewards.numbers import last_number
from astraflow_core.errors import WorkflowError
from astraflow_core.types import ComponentContext, TrajectoryView

_cached_number = lru_cache(4096)(last_number)


class Numeric:
    """1 if the last number of a completion equals the last number of ``data["answer"]`` exactly
    (``0.5`` is ``1/2``), else 0. A completion without a number scores 0; an answer without one is an
    error of the data."""

    def __init__(self, config: NumericConfig, context: ComponentContext) -> None:
        self._each_policy = config.each_policy

    async def score(self, view: TrajectoryView) -> float | dict[str, float]:
        """0 or 1."""
        answer = expected_answer(view, "numeric")
        expected = _cached_number(str(answer))
        if expected is None:
            raise WorkflowError(
                f"prompt {view.prompt.id!r}: reward 'numeric' finds no number in the answer {answer!r:.80}"
            )
        return judge(
            view,
            self._each_policy,
            lambda completion: float(last_number(completion.text) == expected),
        )
