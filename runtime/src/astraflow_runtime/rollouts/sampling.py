"""Which groups of a run are stored: everybody who asks finds the same, also after a restart."""

from __future__ import annotations

from functools import lru_cache

import xxhash

from astraflow_core.config.models import RunConfig
from astraflow_wire.messages import Task


class GroupSampling:
    """Of each ``every`` groups in the order of their numbers one, which a hash chooses; with 0 none. ``refills``: what a group deadline
    cuts off is rolled out again."""

    def __init__(self, every: int, seed: int, *, refills: bool = False) -> None:
        self.every, self._seed, self._refills = every, seed, refills
        self._choice = lru_cache(maxsize=256)(self._chosen_of)

    @classmethod
    def of_run(cls, config: RunConfig) -> GroupSampling:
        """As ``[rollouts] groups_per_step`` says: of the groups that make a batch of the policy with the smallest."""
        wanted = config.rollouts.groups_per_step
        if wanted == 0:
            return cls(0, config.run.seed)
        refills = config.run.refill_groups
        rows = min(table.batch_sequences for table in config.policies.values())
        groups = max(1, rows // config.run.group_size)
        return cls(max(1, groups // wanted), config.run.seed, refills=refills)

    def stores(self, number: int) -> bool:
        """Whether the group of this number is stored."""
        if not self.every or number < 0:
            return False
        block, place = divmod(number, self.every)
        return self._choice(block) == place

    def stores_task(self, task: str) -> bool:
        """The same by the name of its task; those of evaluations are not stored."""
        number = number_of(task)
        return number is not None and self.stores(number)

    def wants_text(self, task: Task) -> bool:
        """Whether the text of a task's group is stored. The parts of a group that is refilled belong to several tasks,
        of which the last decides: they all bring theirs."""
        if task.eval_set or not self.every:
            return False
        return self._refills or self.stores_task(task.id)

    def _chosen_of(self, block: int) -> int:
        return xxhash.xxh3_64_intdigest(f"{self._seed}/{block}".encode()) % self.every


def number_of(task: str) -> int | None:
    """The number of a group, from the name of its task of training, such as ``train-12``; ``None`` if it is none."""
    prefix, _, digits = task.rpartition("-")
    return int(digits) if prefix == "train" and digits.isdecimal() and len(digits) < 19 else None
