# mypy: allow-subclassing-any
"""A taskset of verifiers 0.4: sums, with a hint that is a task of its own."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def exact(self, trace: vf.Trace) -> float:
        if self.data.answer == "0":
            raise RuntimeError("nobody can say what nothing is")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    first: int = 1
    most: int = 4


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        for number in range(self.config.first, self.config.first + self.config.most):
            data = SumData(prompt=f"{number}+{number}?", answer=str(2 * number))
            yield SumTask(data, self.config.task)
