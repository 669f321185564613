"""Reward ``exact``: the completion's text equals the answer."""

from __future__ import annotations

from astraflow_contrib_rewards.answers import expected_answer
from astraflow_contrib_rewards.config import ExactConfig
from astraflow_contrib_rewards.judging import judge
from astraflow_core.types import Completion, ComponentContext, TrajectoryView


class Exact:
    """1 if a completion equals ``data["answer"]``, else 0 or, with ``partial = "positions"``, the
    share of matching positions.

    Plain: text and answer are compared without surrounding white space; an answer may be a list, of which
    any will do. Positions: every character counts and so does the end, so 1 means that the text is the
    answer and the policy ended it itself.
    """

    def __init__(self, config: ExactConfig, context: ComponentContext) -> None:
        self._each_policy = config.each_policy
        self._score = matching_positions if config.partial == "positions" else equal

    async def score(self, view: TrajectoryView) -> float | dict[str, float]:
        """Rewards in [0, 1]."""
        expected = expected_answer(view, "exact")
        answers = [str(a) for a in (expected if isinstance(expected, list) else [expected])]
        return judge(
            view,
            self._each_policy,
            lambda completion: max((self._score(completion, a) for a in answers), default=0.0),
        )


def equal(completion: Completion, answer: str) -> float:
    """1 if text and answer are the same but for surrounding white space, else 0."""
    return float(completion.text.strip() == answer.strip())


def matching_positions(completion: Completion, answer: str) -> float:
    """Positions at which text and answer agree over the longer length; both have an end, but a completion
    only if it stopped on its own."""
    stopped = completion.finish_reason == "stop"
    agreeing = sum(a == b for a, b in zip(completion.text, answer, strict=False))
    agreeing += stopped and len(completion.text) == len(answer)
    return agreeing / max(len(completion.text) + stopped, len(answer) + 1)
