"""The algorithm ``ppo``, with a critic."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_losses.config import ClipConfig, NotNegative, Positive
from astraflow_plugin_losses.grpo import ClippedLoss
from astraflow_plugin_losses.normalization import Floats, whiten
from astraflow_plugin_losses.policy import Tensor
from astraflow_plugin_losses.returns import gae, outcome_rewards


class PpoConfig(ClipConfig):
    """``algorithm = { use = "ppo", … }``"""

    log_ratio_clamp: Positive | None = Field(20.0, description="Log-ratios are clamped to ± this.")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        3.0, description="Bounds the loss at -A · dual_clip where A < 0."
    )
    kl_estimator: Literal["k1", "k2", "k3", "k1_plus", "k3_plus"] = Field(
        "k1", description="As of `grpo`."
    )
    kl_in: Literal["loss", "reward"] = Field("reward", description="As of `grpo`.")
    gamma: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Discount per token.")
    lam: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Lambda of GAE.")
    whiten: bool = Field(True, description="Normalise advantages over the tokens of the batch.")
    value_coef: NotNegative = Field(1.0, description="Weight of the value loss.")
    value_clip: Positive | None = Field(
        0.5, description="Values may move this far before the loss has a kink; unset: no clip."
    )
    value_loss: Literal["squared", "huber"] = Field(
        "squared", description="Half the square, or Huber's with delta 10 (AReaL, AstraFlow)."
    )


class Ppo(ClippedLoss[PpoConfig]):
    """Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347) in the variant of verl 0.9.1:
    advantage estimator ``gae`` with the policy loss ``vanilla`` and the clipped value loss.

    The reward stands at the last trained token, ``-kl_coef · KL`` at each; GAE skips tokens that are not
    trained (value and trace carried over); advantages are whitened over the trained tokens of the whole
    batch (n - 1, eps 1e-8 inside the root). Dual clip 3, log-ratios within ±20, token mean. Value loss
    ``0.5 · max((V - G)², (clip(V, V_old ± value_clip) - G)²)``, G = GAE before whitening + ``V_old``; here it
    is a term of the one loss, with ``value_coef``. Metrics as of ``grpo``, with ``value_loss``,
    ``value_clip_fraction`` and ``return_mean``.
    """

    def __init__(self, config: PpoConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._needs |= {"values"}

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """As of the base, also for the term ``value``; and ``returns``, what values are trained on."""
        given = super().weights(batch)
        assert batch.values is not None, "the trainer was told that values are needed"
        returns = np.where(batch.loss_mask, self._gae(batch) + batch.values, 0.0)
        return given | {"value": given["policy"], "returns": returns.astype(np.float32)}

    def loss(self, inputs: LossInputs) -> Loss:
        """The terms of the base and ``value``."""
        from astraflow_plugin_losses import tensors

        loss, config = super().loss(inputs), self._config

        def trained(values: Tensor) -> Tensor:
            assert values is not None, "the trainer was told that values are needed"
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
        metrics = {
            "value_loss": value.detach(),
            "value_clip_fraction": (share * fraction).sum(),
            "return_mean": (share * returns).sum(),
        }
        terms = loss.terms | {"value": (config.value_coef, value)}
        return Loss(terms=terms, metrics=loss.metrics | metrics)

    def _advantages(self, batch: Batch) -> Floats:
        advantages = self._gae(batch)
        return whiten(advantages, batch.loss_mask) if self._config.whiten else advantages

    def _gae(self, batch: Batch) -> Floats:
        assert batch.values is not None, "the trainer was told that values are needed"
        rewards = outcome_rewards(batch, batch.rewards) + self._kl_rewards(batch)
        values = batch.values.astype(np.float64)
        return gae(batch, rewards, values, self._config.gamma, self._config.lam)
