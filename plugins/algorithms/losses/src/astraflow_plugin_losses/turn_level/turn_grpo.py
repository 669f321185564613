"""The algorithm ``turn_grpo``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.types import Batch
from astraflow_plugin_losses.config import (
    Compares,
    NotNegative,
    Positive,
)
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.turn_level.turn_loss import TurnClipConfig, TurnLoss


class TurnGrpoConfig(TurnClipConfig):
    """``algorithm = { use = "turn_grpo", … }``"""

    estimator: Literal["additive", "cumulative"] = Field(
        "additive",
        description="additive: the advantage of the outcome plus turn_coef times that of the turn's own reward; "
        "cumulative: that of all rewards from the turn on.",
    )
    turn_coef: NotNegative = Field(
        1.0, description="Weight of the turn's own advantage, of the estimator 'additive'."
    )
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="Discount per turn, of the estimator 'cumulative'."
    )
    normalize_std: bool = Field(True, description="Divide by the standard deviation.")
    std_eps: Positive = Field(1e-4, description="Added to the standard deviation.")

    @property
    def compares(self) -> Compares:
        """Trajectories: turns are compared with those at the same place of others."""
        return "trajectories"


class TurnGrpo(TurnLoss[TurnGrpoConfig]):
    """Turn-level GRPO: MT-GRPO (Zeng et al. 2025, arXiv 2505.11821) in the variant of its authors' repository
    (SiliangZeng/Multi-Turn-RL-Agent, ``advantage_est`` ``aae`` and ``cae``), for any number of turns, with the policy
    loss of TRL 1.16.0.

    Rewards are normalised (mean, deviation with n - 1, eps 1e-4) over the turns of the group at the same place of their
    trajectories, that is over the trajectories that got so far; outcomes over all trajectories. ``additive`` (``aae``):
    the normalised outcome plus ``turn_coef`` times the turn's normalised reward. ``cumulative`` (``cae``): discounted
    rewards from the turn on, the outcome the last of them, normalised. The repository knows two turns; a trajectory that
    ends after the first gets the normalised sum of both rewards there under ``aae``, here the sum of the two
    normalised ones. Token mean. Metrics as of ``grpo``, and ``turns_rewarded``.
    """

    NAME = "turn_grpo"
    LACKS = (
        "earned its own reward, so that only outcomes are compared: the workflow is to say what each turn earned "
        "(Sequence.turn_rewards), as the workflow `environment` does"
    )

    def _advantages(self, batch: Batch) -> Floats:
        config = self._config
        table = self._table(batch)
        std_eps = config.std_eps if config.normalize_std else None
        if config.estimator == "cumulative":
            turn = table.relative(table.returns(config.gamma), table.place, std_eps=std_eps)
        else:
            outcome, first = table.total(table.outcome), table.place == 0
            turn = table.relative(outcome, std_eps=std_eps, counts=first)
            own = table.relative(table.earned, table.place, std_eps=std_eps)
            turn = turn + config.turn_coef * own
        return table.at_tokens(turn) + self._returns_of_kl(batch)
