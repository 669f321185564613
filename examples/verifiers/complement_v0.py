# mypy: allow-subclassing-any
"""An environment of verifiers up to 0.2 that knows nothing of AstraFlow: the nine's complement of some digits."""

from __future__ import annotations

import random
from typing import Any

import verifiers as vf
from datasets import Dataset


def _reply(completion: Any) -> str:
    message = completion[-1]
    return str((message["content"] if isinstance(message, dict) else message.content) or "")


async def right_digits(completion: Any, answer: str) -> float:
    """The share of positions that are right."""
    said = _reply(completion)
    right = sum(one == other for one, other in zip(said, answer, strict=False))
    return right / max(len(said), len(answer))


async def solved(completion: Any, answer: str) -> float:
    """Whether all are."""
    return float(_reply(completion) == answer)


def load_environment(digits: int = 2, held_out: int = 20, seed: int = 0) -> vf.Environment:
    """Every number of that many digits once, in an order that the seed decides; the last ones are evaluation data."""
    numbers = list(range(10**digits))
    random.Random(seed).shuffle(numbers)
    rows = []
    for number in numbers:
        given = f"{number:0{digits}}"
        answer = "".join(str(9 - int(digit)) for digit in given)
        rows.append({"question": f"x{given}=", "answer": answer})
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows[:-held_out]),
        eval_dataset=Dataset.from_list(rows[-held_out:]),
        rubric=vf.Rubric(funcs=[right_digits, solved], weights=[1.0, 0.0]),
    )
