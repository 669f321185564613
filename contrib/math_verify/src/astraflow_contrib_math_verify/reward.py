"""Reward ``math_verify``."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from astraflow_contrib_math_verify.answers import given_answer, quick_verdict
from astraflow_contrib_math_verify.checking import CheckOutcome, checkers
from astraflow_contrib_math_verify.config import MathVerifyConfig
from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.types import Completion, ComponentContext, TrajectoryView

log = logging.getLogger("astraflow.math_verify")


class MathVerify:
    """1 if a completion's answer equals ``data["answer"]`` as mathematics, else 0; of a list any will do.

    The answer is the content of the last ``\\boxed{}``; without one math-verify looks for it at the end of the text.
    Equal texts and numbers are decided here, the rest by math-verify 0.9
    (https://github.com/huggingface/Math-Verify) in worker processes. An answer that costs more than it may is wrong.
    """

    def __init__(self, config: MathVerifyConfig, context: ComponentContext) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError(
                "reward 'math_verify' needs the package math-verify: pip install 'astraflow-contrib-math-verify[runtime]'"
            )
        self._config = config
        self._checkers = checkers(config.workers, config.memory_mb)
        self._spent = 0

    async def score(self, view: TrajectoryView) -> float | dict[str, float]:
        """0 or 1."""
        expected = _expected(view)
        if not view.completions:
            return 0.0
        if not self._config.each_policy:
            return await self._scored(view, view.completions[-1], expected)
        last = {completion.policy: completion for completion in view.completions}
        return {
            policy: await self._scored(view, completion, expected)
            for policy, completion in last.items()
        }

    async def _scored(
        self, view: TrajectoryView, completion: Completion, expected: list[str]
    ) -> float:
        given = given_answer(completion.text)
        quick = [quick_verdict(each, given) for each in expected]
        if True in quick:
            return 1.0
        text = f"\\boxed{{{given.text}}}" if given.box else given.text
        for each, verdict in zip(expected, quick, strict=True):
            if verdict is None and await self._equal(view, each, text):
                return 1.0
        return 0.0

    async def _equal(self, view: TrajectoryView, expected: str, text: str) -> bool:
        config = self._config
        outcome = await self._checkers.check(expected, text, config.cpu_s, config.deadline_s)
        if outcome is CheckOutcome.UNREADABLE:
            raise WorkflowError(
                f"prompt {view.prompt.id!r}: reward 'math_verify' cannot read the answer {expected!r:.80}; expected "
                "is LaTeX, a number or an expression"
            )
        if outcome is CheckOutcome.SPENT:
            self._spent += 1
            if self._spent & (self._spent - 1) == 0:
                log.info(
                    "%d answers took more than %g CPU s or %d MiB and count as wrong, the last one on prompt %.80r",
                    self._spent,
                    config.cpu_s,
                    config.memory_mb,
                    view.prompt.id,
                )
        return outcome is CheckOutcome.RIGHT


def _expected(view: TrajectoryView) -> list[str]:
    answer: Any = view.data.get("answer")
    answers = answer if isinstance(answer, list) else [answer]
    wrong = [
        each
        for each in answers
        if not isinstance(each, str | int | float)
        or isinstance(each, bool)
        or not str(each).strip()
    ]
    if wrong or not answers:
        raise WorkflowError(
            f"prompt {view.prompt.id!r}: reward 'math_verify' needs data['answer'], a string, a number or a list of these, "
            f"found {answer!r:.60}"
        )
    return [str(each) for each in answers]
