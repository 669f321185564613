"""Which groups of a run are stored: the same in every process, also after a restart."""

from __future__ import annotations

from functools import lru_cache

import xxhash

from astraflow_core.config.models import RunConfig
from astraflow_wire.messages import Task


class GroupSampling:
    """``count`` of each ``block`` groups in the order of their numbers, chosen by a hash. ``refills``: what a group deadline
    cuts off is rolled out again."""

    def __init__(self, count: int, block: int, seed: int, *, refills: bool = False) -> None:
        self._count, self._block, self._seed, self._refills = count, block, seed, refills
        self._chosen = lru_cache(maxsize=64)(self._chosen_of)

    @classmethod
    def of_run(cls, config: RunConfig) -> GroupSampling:
        """From ``[rollouts] groups_per_step``, relative to the groups of the smallest batch of a
        policy.
        """
        rows = min(table.batch_sequences for table in config.policies.values())
        groups = max(1, rows // config.run.group_size)
        count = min(config.rollouts.groups_per_step, groups)
        return cls(count, groups, config.run.seed, refills=config.run.refill_groups)

    @property
    def some(self) -> bool:
        """Whether any group is stored."""
        return self._count > 0

    def stores(self, number: int) -> bool:
        """Whether the group of this number is stored."""
        if not self._count or number < 0:
            return False
        block, place = divmod(number, self._block)
        return place in self._chosen(block)

    def wants_text(self, task: Task) -> bool:
        """Whether the text of a task's group is stored; that of evaluations is not. The parts of a
        refilled group belong to several tasks, of which the last decides, so all send their text.
        """
        number = number_of(task.id)
        if task.eval_set or number is None:
            return False
        return self.some if self._refills else self.stores(number)

    def _chosen_of(self, block: int) -> frozenset[int]:
        def key(place: int) -> int:
            return xxhash.xxh3_64_intdigest(f"{self._seed}/{block}/{place}".encode())

        return frozenset(sorted(range(self._block), key=key)[: self._count])


def number_of(task: str) -> int | None:
    """The number of a group from the name of its training task, such as ``train-12``; ``None`` for
    any other name.
    """
    prefix, _, digits = task.rpartition("-")
    return int(digits) if prefix == "train" and digits.isdecimal() and len(digits) < 19 else None
