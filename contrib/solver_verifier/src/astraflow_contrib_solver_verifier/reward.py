"""Rewards of both policies, each against the truth."""

from __future__ import annotations

from astraflow_contrib_solver_verifier.config import RewardConfig
from astraflow_core.types import Completion, ComponentContext, TrajectoryView


class MarkReward:
    """Share of right positions; the end of a sequence counts as a position."""

    def __init__(self, config: RewardConfig, context: ComponentContext) -> None:
        self._config = config

    async def score(self, view: TrajectoryView) -> dict[str, float]:
        """Policy → reward in [0, 1]."""
        by_policy = {completion.policy: completion for completion in view.completions}
        answer = by_policy[self._config.solver]
        truth = str(view.data["answer"])
        marks = "".join(
            self._config.right if given == right else self._config.wrong
            for given, right in zip(answer.text, truth.ljust(len(answer.text), "\0"), strict=False)
        )
        return {
            self._config.solver: matching(answer, truth),
            self._config.verifier: matching(by_policy[self._config.verifier], marks),
        }


def matching(completion: Completion, expected: str) -> float:
    """Positions that agree, the end of the sequence included, over the longer length."""
    given = [*completion.text, *(["end"] if completion.finish_reason == "stop" else [])]
    wanted = [*expected, "end"]
    agreeing: int = sum(a == b for a, b in zip(given, wanted, strict=False))
    return agreeing / max(len(given), len(wanted))
