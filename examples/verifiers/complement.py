# mypy: allow-subclassing-any
"""A taskset of verifiers 0.4 that knows nothing of AstraFlow: the nine's complement of some digits."""

from __future__ import annotations

import random
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["ComplementTaskset"]


class ComplementData(vf.TaskData):
    answer: str


class ComplementTask(vf.Task[ComplementData]):
    @vf.reward
    async def right_digits(self, trace: vf.Trace) -> float:
        """The share of positions that are right."""
        said, answer = trace.last_reply, self.data.answer
        right = sum(one == other for one, other in zip(said, answer, strict=False))
        return right / max(len(said), len(answer))

    @vf.metric
    async def solved(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class ComplementConfig(vf.TasksetConfig):
    digits: int = 2
    seed: int = 0


class ComplementTaskset(vf.Taskset[ComplementTask, ComplementConfig]):
    """Every number of that many digits once, in an order that the seed decides."""

    def load(self) -> Iterator[ComplementTask]:
        numbers = list(range(10**self.config.digits))
        random.Random(self.config.seed).shuffle(numbers)
        for number in numbers:
            given = f"{number:0{self.config.digits}}"
            answer = "".join(str(9 - int(digit)) for digit in given)
            yield ComplementTask(
                ComplementData(prompt=f"x{given}=", answer=answer), self.config.task
            )
