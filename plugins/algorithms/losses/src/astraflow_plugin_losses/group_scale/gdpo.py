"""The algorithm ``gdpo``."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.errors import UserError
from astraflow_core.types import Batch, NamedRewards
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss
from astraflow_plugin_losses.config import ClipConfig, Compares, DualClip, Positive, WhitenConfig
from astraflow_plugin_losses.normalization import Epsilon, Floats, tokens_per_row, whiten

RewardName = Annotated[str, Field(min_length=1, max_length=128)]
Weight = Annotated[float, Field(allow_inf_nan=False)]


class GdpoConfig(ClipConfig, WhitenConfig):
    """``algorithm = { use = "gdpo", rewards = { NAME = WEIGHT, … } }``"""

    rewards: Annotated[dict[RewardName, Weight], Field(min_length=1, max_length=64)] = Field(
        description="Name of a reward → its weight in the sum. The names are those of the parts of a `rubric`, or of "
        "other metrics of episodes.",
    )
    std_eps: Positive = Field(
        1e-6, description="Added to the standard deviation of a reward in its group; 1e-4 as TRL."
    )
    whiten: Literal["none", "row", "token"] = Field(
        "token",
        description="Then normalise the sum over the whole batch, each row or each trained token counting once.",
    )
    singleton_advantage: Literal["zero", "reward"] = Field(
        "zero", description="In a group of one: 0 (TRL), or the rewards themselves (verl)."
    )
    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )

    @property
    def named_rewards(self) -> tuple[str, ...]:
        """See :class:`astraflow_core.protocols.algorithm.Algorithm`."""
        return tuple(self.rewards)

    @property
    def compares(self) -> Compares:
        """Trajectories; nothing if a group of one keeps its rewards."""
        return "" if self.singleton_advantage == "reward" else "trajectories"


class Gdpo(ClippedLoss[GdpoConfig]):
    """Group reward-Decoupled Normalization Policy Optimization (Liu et al. 2026, arXiv 2601.05242) in the variant of verl
    0.9.1: advantage estimator ``gdpo`` with the policy loss ``vanilla``.

    Each reward is normalised separately, ``(R_k - mean_k) / (std_k + std_eps)`` over the trajectories of the group with n - 1;
    their sum with the weights is normalised over the trained tokens of the batch (1e-8 inside the root). A reward in
    which a group has no spread adds 0. The reward of the sequences, on which data policies decide, plays no part.
    ``std_eps = 1e-4``, ``whiten = "row"``, ``whiten_eps = 1e-4`` and ``whiten_eps_inside = false`` are TRL 1.16.0 with
    ``multi_objective_aggregation="normalize_then_sum"``. A group of one gets 0, as in TRL. Metrics as of ``grpo``.
    """

    def _advantages(self, batch: Batch) -> Floats:
        config = self._config
        advantages = self._sum(batch, _given(batch, config.named_rewards))
        if config.whiten != "none":
            counts = tokens_per_row(batch)
            each = counts if config.whiten == "token" else None
            epsilon = Epsilon(config.whiten_eps, config.whiten_eps_inside)
            advantages = whiten(advantages, counts > 0, each, epsilon)
        return self._per_row(batch, advantages)

    def _sum(self, batch: Batch, named: NamedRewards) -> Floats:
        """The weighted sum of the normalised rewards of each row, float64 ``[R]``."""
        config = self._config
        order = [named.names.index(name) for name in config.rewards]
        earned, mean, std = (
            np.asarray(values, np.float64)[order]
            for values in (named.earned, named.mean, named.std)
        )
        normalised = (earned - mean) / (std + config.std_eps)
        if config.singleton_advantage == "reward":
            size = batch.group_size if batch.units is None else batch.units.trajectories
            normalised[:, size == 1] = earned[:, size == 1]
        return np.asarray(np.array(list(config.rewards.values())) @ normalised)


def _given(batch: Batch, names: tuple[str, ...]) -> NamedRewards:
    named = batch.named_rewards
    there = () if named is None else named.names
    if named is None or not set(names) <= set(there):
        raise UserError(
            f"gdpo reads the named rewards {', '.join(map(repr, names))}, and batch {batch.id!r} has "
            f"{', '.join(map(repr, there)) or 'none'}; a dataflow serves them to a trainer that asks for them (NextBatch), "
            "and evaluate_loss takes them as named_rewards"
        )
    return named
