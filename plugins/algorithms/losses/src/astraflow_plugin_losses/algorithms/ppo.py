"""The algorithm ``ppo``, with a critic."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss
from astraflow_plugin_losses.config import (
    ClipConfig,
    DualClip,
    KlEstimator,
    NotNegative,
    Positive,
    TurnRewardConfig,
    WhitenConfig,
)
from astraflow_plugin_losses.normalization import Epsilon, Floats, moments
from astraflow_plugin_losses.policy import Tensor
from astraflow_plugin_losses.returns import StepScope, StepUnit, gae, steps_of, token_rewards
from astraflow_plugin_losses.shares import shares


class PpoConfig(ClipConfig, WhitenConfig, TurnRewardConfig):
    """``algorithm = { use = "ppo", … }``"""

    log_ratio_clamp: OrNone[Positive] = Field(
        20.0, description="Log-ratios are clamped to ± this. 'none': not at all."
    )
    dual_clip: DualClip = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0. 'none': no bound."
    )
    kl_estimator: KlEstimator = Field("k1", description="As in `grpo`.")
    kl_in: Literal["loss", "reward"] = Field("reward", description="As in `grpo`.")
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Discount per step.")
    gae_unit: StepUnit = Field(
        "token",
        description="A step is a token, or a turn: a run of trained tokens without a hole, with the value "
        "before its first token and one advantage (Claw-R1).",
    )
    gae_scope: StepScope = Field(
        "sequence",
        description="The recursion ends with the sequence, or continues over the sequences (turns) of a "
        "trajectory, as far as the batch holds them (Claw-R1).",
    )
    sequence_rewards: Literal["last", "each"] = Field(
        "last",
        description="With gae_scope = 'trajectory': all that the trajectory earned at the last of its sequences, or "
        "each sequence's own reward at its end.",
    )
    lam: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Lambda of GAE.")
    whiten: bool = Field(True, description="Normalise advantages over the tokens of the batch.")
    value_coef: NotNegative = Field(1.0, description="Weight of the value loss.")
    value_clip: OrNone[Positive] = Field(
        0.5, description="Values may move this far before the loss has a kink; 'none': no clip."
    )
    value_loss: Literal["squared", "huber"] = Field(
        "squared", description="Half the square, or Huber's with delta 10 (AReaL, AstraFlow)."
    )


class Ppo(ClippedLoss[PpoConfig]):
    """Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347) in the variant of verl 0.9.1:
    advantage estimator ``gae`` with the policy loss ``vanilla`` and the clipped value loss.

    The reward stands at the last trained token, what a turn earned at the last of the turn (``outcome`` says how
    they add), ``-kl_coef · KL`` at each; GAE skips tokens that are not
    trained (value and trace carried over); advantages are whitened over the trained tokens of the whole
    batch (n - 1, eps 1e-8 inside the root). Dual clip 3, log-ratios within ±20, token mean. Value loss
    ``0.5 · max((V - G)², (clip(V, V_old ± value_clip) - G)²)``, G = GAE before whitening + ``V_old``; here it
    is a term of the one loss, with ``value_coef``.

    ``gae_scope = "trajectory"`` is the token estimator of Claw-R1, with ``gae_unit = "turn"`` that of its
    steps: whitened with each step counting once, values trained at the first token of a step only.
    Metrics as of ``grpo``, with ``value_loss``, ``value_clip_fraction``, ``value_mean`` and ``return_mean``.
    """

    def __init__(self, config: PpoConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._needs |= {"values"}
        self._moments = ("", 0.0, 1.0)

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """As of the base, also for the term ``value``; and ``returns``, what values are trained on."""
        given = super().weights(batch)
        assert batch.values is not None, "the algorithm declares that values are needed"
        if self._config.gae_unit == "token":
            given["value"] = given["policy"]
        else:
            valued = np.zeros(len(batch.tokens), dtype=np.bool_)
            valued[steps_of(batch, "turn", self._config.gae_scope).first] = True
            given["value"] = shares(batch, "token_mean", mask=valued)
        returns = np.where(batch.loss_mask, self._estimates(batch) + batch.values, 0.0)
        return given | {"returns": returns.astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        """The terms of the base and ``value``."""
        from astraflow_plugin_losses import tensors

        loss, config = super().loss(inputs), self._config

        def trained(values: Tensor) -> Tensor:
            assert values is not None, "the algorithm declares that values are needed"
            return tensors.masked(inputs.mask, values)

        share, returns = trained(inputs.weights["value"]), trained(inputs.weights["returns"])
        values, fraction = tensors.value_loss(
            trained(inputs.predicted_values),
            trained(inputs.values),
            returns,
            config.value_clip,
            config.value_loss,
        )
        value = (share * values).sum()
        predicted = trained(inputs.predicted_values).detach()
        metrics = {
            "value_loss": value.detach(),
            "value_mean": (share * predicted).sum(),
            "value_clip_fraction": (share * fraction).sum(),
            "return_mean": (share * returns).sum(),
        }
        terms = loss.terms | {"value": (config.value_coef, value)}
        return Loss(terms=terms, metrics=loss.metrics | metrics)

    def _advantages(self, batch: Batch) -> Floats:
        advantages, config = self._gae(batch), self._config
        steps = steps_of(batch, config.gae_unit, config.gae_scope)
        per_step = advantages[steps.first]
        epsilon = Epsilon(config.whiten_eps, config.whiten_eps_inside)
        mean, scale = moments(per_step, np.ones(len(per_step), dtype=np.bool_), epsilon=epsilon)
        if not config.whiten:
            mean, scale = 0.0, 1.0
        self._moments = (batch.id, mean, scale)
        return np.where(batch.loss_mask, (advantages - mean) / scale, 0.0)

    def _estimates(self, batch: Batch) -> Floats:
        """GAE before whitening, of a mini-batch: it may hold parts of trajectories only."""
        if self._config.gae_scope == "sequence":
            return self._gae(batch)
        name, mean, scale = self._moments
        assert batch.advantages is not None and name == batch.id, "advantages come before weights"
        return batch.advantages.astype(np.float64) * scale + mean

    def _gae(self, batch: Batch) -> Floats:
        assert batch.values is not None, "the algorithm declares that values are needed"
        config = self._config
        outcome, scope = batch.rewards, config.gae_scope
        if scope == "trajectory" and config.sequence_rewards == "each":
            scope = "sequence"
        elif scope == "trajectory" and batch.units is not None:
            outcome = batch.units.trajectory_reward
        rewards = token_rewards(batch, outcome, scope, config.outcome) + self._kl_rewards(batch)
        values = batch.values.astype(np.float64)
        how = (config.gae_unit, config.gae_scope)
        return gae(batch, rewards, values, config.gamma, config.lam, *how)
