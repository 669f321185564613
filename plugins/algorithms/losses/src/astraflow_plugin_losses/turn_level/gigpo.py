"""The algorithm ``gigpo``."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch
from astraflow_plugin_losses.config import (
    Compares,
    DualClip,
    NotNegative,
    Positive,
)
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.turn_level.turn_loss import TurnClipConfig, TurnLoss
from astraflow_plugin_losses.turn_level.turns import TurnTable


class GigpoConfig(TurnClipConfig):
    """``algorithm = { use = "gigpo", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(
        0.95, description="Discount per turn of the returns that are compared within a state."
    )
    step_weight: NotNegative = Field(
        1.0, description="Weight of the advantage within a state relative to that of the episode."
    )
    mode: Literal["mean_norm", "mean_std_norm"] = Field(
        "mean_norm", description="Subtract the mean of a group, or also divide by its deviation."
    )
    std_eps: Positive = Field(1e-6, description="Added to the standard deviation.")
    episode_unit: Literal["turn", "trajectory"] = Field(
        "turn",
        description="Unit that counts once in the mean and deviation over episodes: each turn, so that long "
        "ones weigh more (verl-agent), or each trajectory (the paper).",
    )

    @property
    def compares(self) -> Compares:
        """Trajectories: of one alone the episode has no advantage."""
        return "trajectories"


class Gigpo(TurnLoss[GigpoConfig]):
    """Group-in-Group Policy Optimization (Feng et al. 2025, arXiv 2505.10978) in the variant of verl-agent
    (``gigpo/core_gigpo.py``) with the policy loss ``vanilla`` of verl 0.9.1.

    The advantage of a turn is that of its episode (eq. 3: what the trajectory earned in all, less the mean of the
    group) plus ``step_weight`` times that of its step (eq. 7: discounted rewards from this turn on, less their mean
    over the turns of the group that were taken in the same state, ``Sequence.turn_states``). States are equal where
    their names are; a state that was met once has no advantage, nor has a turn without a state. Deviations have n - 1.
    A group of one turn has no advantage (verl-agent: its reward). Dual clip 3, log-ratios within ±20, token mean.
    Metrics as of ``grpo``, and ``turns_with_state``.
    """

    NAME, SHARE = "gigpo", "turns_with_state"
    LACKS = (
        "has a state, so that this is dr_grpo over episodes: the workflow is to name the state of each turn "
        "(Sequence.turn_states), as the workflow `environment` does"
    )

    @staticmethod
    def _given(table: TurnTable) -> npt.NDArray[np.bool_]:
        return np.asarray(table.turns.state != 0)

    def _advantages(self, batch: Batch) -> Floats:
        config = self._config
        table = self._table(batch)
        std_eps = config.std_eps if config.mode == "mean_std_norm" else None
        once = table.place == 0 if config.episode_unit == "trajectory" else None
        episode = table.relative(table.total(table.rewards), std_eps=std_eps, counts=once)
        state = table.turns.state
        step = table.relative(table.returns(config.gamma), state, std_eps=std_eps)
        advantages = episode + config.step_weight * np.where(state != 0, step, 0.0)
        return table.at_tokens(advantages) + self._returns_of_kl(batch)
