# mypy: allow-subclassing-any
"""Environments of verifiers up to 0.2: one turn, several turns, and tools."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


def _rows(first: int, count: int) -> Dataset:
    return Dataset.from_list(
        [{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(first, first + count)]
    )


def _last(completion: Any) -> str:
    message = completion[-1]
    return str((message["content"] if isinstance(message, dict) else message.content) or "")


async def exact(completion: Any, answer: str) -> float:
    if answer == "0":
        raise RuntimeError("nobody can say what nothing is")
    return float(_last(completion) == answer)


async def words(completion: Any) -> float:
    return float(len(_last(completion).split()))


def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


class TwoTurns(vf.MultiTurnEnv):
    """Asks again once; with ``broken`` the second question fails."""

    def __init__(self, broken: bool = False, **keys: Any) -> None:
        super().__init__(max_turns=2, **keys)
        self._broken = broken

    async def env_response(self, messages: Any, state: Any, **keys: Any) -> Any:
        if self._broken:
            raise vf.ToolCallError("the box is gone")
        return [vf.UserMessage(role="user", content="sure?")]


def load_environment(kind: str = "one", first: int = 1, **keys: Any) -> vf.Environment:
    rubric = vf.Rubric(funcs=[exact, words], weights=[2.0, 0.0])
    data = {"dataset": _rows(first, 4), "rubric": rubric}
    if kind == "one":
        return vf.SingleTurnEnv(eval_dataset=_rows(100, 2), **data)
    if kind == "two":
        return TwoTurns(**data, **keys)
    return vf.ToolEnv(tools=[double], max_turns=3, **data)
