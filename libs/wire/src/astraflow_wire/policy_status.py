"""The status of one policy, field by field."""

from __future__ import annotations

import msgspec

from astraflow_core.types import Announcement


class RowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted rows of a policy by state; ``accepted`` is the sum of the others."""

    accepted: int = 0
    """rows of accepted groups that have something to train"""
    trained: int = 0
    """rows of batches that were acknowledged"""
    being_trained: int = 0
    """rows of the batch that a trainer has, and of those that it will repeat"""
    buffered: int = 0
    """rows that wait"""
    stale: int = 0
    """rows dropped as too stale"""
    evicted: int = 0
    """rows dropped because their trainer was silent or had made all its updates"""
    lost: int = 0
    """rows in no state: 0"""


class LentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Rows shared with a policy by state; ``lent`` is the sum of the others."""

    source: str = ""
    """the policy whose rows are borrowed; empty: none"""
    lent: int = 0
    """rows of the source that were offered"""
    trained: int = 0
    """borrowed rows of batches that were acknowledged"""
    being_trained: int = 0
    """borrowed rows of the batch that the trainer has, and of those that it will repeat"""
    waiting: int = 0
    """lent rows that wait"""
    stale: int = 0
    """lent rows dropped as too stale"""
    evicted: int = 0
    """lent rows dropped because too many waited"""
    lost: int = 0
    """lent rows in no state: 0"""


class EpisodeMean(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over episodes."""

    mean: float
    """the mean"""
    episodes: int = 0
    """over how many episodes"""


def _updates(count: int) -> str:
    return "1 later update is" if count == 1 else f"{count} later updates are"


class RecoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer that had lost its state and continued with the weights of a published version."""

    version: int
    """the version"""
    of_update: int
    """updates that its weights have"""
    again: int
    """later updates that are repeated, from the same batches"""
    lost: int
    """later updates that were made and are in no weights"""
    optimizer: int
    """updates of the checkpoint that the state of the optimizer is from; 0: it began anew"""

    @property
    def text(self) -> str:
        """The recovery and its gap in words."""
        later = []
        if self.again:
            later.append(f"{_updates(self.again)} repeated from the same batches")
        if self.lost:
            later.append(f"{_updates(self.lost)} lost")
        optimizer = (
            f"the optimizer has the state after update {self.optimizer}"
            if self.optimizer
            else "the optimizer began anew"
        )
        return (
            f"it continues with the weights of version {self.version}, after update {self.of_update}; "
            f"{' and '.join(later) or 'no update is lost'}; {optimizer}"
        )


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One policy: its trainer, buffer and groups."""

    version: int = -1
    """newest version announced; -1: none"""
    announced: Announcement | None = None
    """how the newest version was announced, which is what a RaaS fetches it by (`policy`, `version`, `transport`, \
`endpoints`, `digest`, `size` in bytes); null: none"""
    updates: int = 0
    """updates acknowledged"""
    released: int = 0
    """updates that a checkpoint of the trainer holds"""
    recoveries: list[RecoveryStatus] = []
    """when its trainer had lost its state: the newest 16"""
    batch_sequences: int = 0
    """rows of a batch"""
    buffered: int = 0
    """rows that wait"""
    in_flight: float = 0.0
    """sequences that running tasks are expected to give, rounded"""
    under_way: float = 0.0
    """sequences running, buffered or being trained"""
    limit: int = 0
    """the most sequences that may be in flight"""
    rows: RowStatus = RowStatus()
    """accepted rows by state"""
    accepted: int = 0
    """rows accepted"""
    trained: int = 0
    """rows trained"""
    stale: int = 0
    """rows dropped as too stale"""
    evicted: int = 0
    """rows dropped because their trainer was silent"""
    replayed: int = 0
    """rows served again by a data policy"""
    borrowed: LentStatus = LentStatus()
    """rows lent to it by state"""
    untrained: int = 0
    """sequences of accepted groups without a trained token"""
    groups_accepted: int = 0
    """groups accepted"""
    rejected: dict[str, int] = {}
    """groups rejected, by reason"""
    equal_groups: int = 0
    """the newest groups in a row with equal rewards, those of one sequence left out"""
    fruitless_groups: int = 0
    """the newest groups in a row of which no row was kept"""
    reward: float | None = None
    """mean reward between the last two updates, or, before the first, of the last groups"""
    recent_reward: float | None = None
    """mean reward of the last 64 groups"""
    step_reward: float | None = None
    """mean reward between the last two updates"""
    trained_reward: float | None = None
    """mean reward of the batch trained last"""
    groups: int = 0
    """groups that came in between the last two updates: those of the figures up to `pass_rates`, before any data policy \
judged them; these are null where unknown"""
    reward_std: float | None = None
    """standard deviation of the rewards of all their sequences"""
    completion_length_mean: float | None = None
    """mean number of trained tokens of a sequence that has any"""
    completion_length_max: int | None = None
    """the largest number of trained tokens"""
    truncated_fraction: float | None = None
    """share of the sequences truncated at the token limit, 0 to 1"""
    equal_groups_fraction: float | None = None
    """share of the groups with equal rewards, among those of more than one sequence, 0 to 1"""
    pass_rate: float | None = None
    """share of the episodes with a reward (mean over their sequences) of at least `eval.pass_threshold`, 0 to 1"""
    pass_rates: dict[str, EpisodeMean] = {}
    """the same for each `source` that prompts name; the first 64 of a run, `other` for the rest"""
    episodes: int = 0
    """episodes that the rows of the batch trained last are from"""
    episode_metrics: dict[str, EpisodeMean] = {}
    """by name in `Trajectory.metrics`, over the episodes of that batch that have one of the name; the first 64 names of \
a run"""
    tokens_trained: int = 0
    """tokens trained"""
    metrics: dict[str, float | None] = {}
    """metrics of the last step, as the trainer gave them: `loss`, `grad_norm`, `entropy_estimate`, and `kl`, `approx_kl`, \
`entropy` where the algorithm has them; null: not finite"""
    data_metrics: dict[str, float | None] = {}
    """metrics of its data policies; null: not finite"""
    trainer: str = ""
    """`absent`, `here` or `failed`"""
    trainer_wait_fraction: float | None = None
    """share of its time that the trainer waits for a batch, 0 to 1"""
    max_staleness_seen: int = 0
    """highest staleness of a row in a batch, in versions"""
    staleness: dict[str, int] = {}
    """rows trained, by staleness in versions"""
