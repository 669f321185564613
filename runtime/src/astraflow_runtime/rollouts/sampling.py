"""Which groups of a run are stored: everybody who asks finds the same, also after a restart."""

from __future__ import annotations

from functools import lru_cache

import xxhash

from astraflow_core.config.models import RunConfig


class GroupSampling:
    """Of each ``every`` groups in the order of their numbers one, which a hash chooses; with 0 none."""

    def __init__(self, every: int, seed: int) -> None:
        self.every, self._seed = every, seed
        self._choice = lru_cache(maxsize=256)(self._chosen_of)

    @classmethod
    def of_run(cls, config: RunConfig) -> GroupSampling:
        """As ``[rollouts] groups_per_step`` says: of the groups that make a batch of the policy with the smallest."""
        wanted = config.rollouts.groups_per_step
        if wanted == 0:
            return cls(0, config.run.seed)
        rows = min(table.batch_sequences for table in config.policies.values())
        groups = max(1, rows // config.run.group_size)
        return cls(max(1, groups // wanted), config.run.seed)

    def stores(self, number: int) -> bool:
        """Whether the group of this number is stored."""
        if not self.every or number < 0:
            return False
        block, place = divmod(number, self.every)
        return self._choice(block) == place

    def stores_task(self, task: str) -> bool:
        """The same by the name of its task; evaluation tasks are not stored."""
        number = number_of(task)
        return number is not None and self.stores(number)

    def _chosen_of(self, block: int) -> int:
        return xxhash.xxh3_64_intdigest(f"{self._seed}/{block}".encode()) % self.every


def number_of(task: str) -> int | None:
    """The number of a group, from the name of its task of training, such as ``train-12``; ``None`` if it is none."""
    prefix, _, digits = task.rpartition("-")
    return int(digits) if prefix == "train" and digits.isdecimal() and len(digits) < 19 else None
