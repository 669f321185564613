"""The algorithm ``m2po``: bounds the second moment of the log-ratio to the policy that sampled."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from astraflow_core.types import Batch, ComponentContext
from astraflow_plugin_losses.config import ClippedGroupConfig, Positive
from astraflow_plugin_losses.grpo import ClippedLoss, GroupLoss
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.policy import Tensor, Tokens
from astraflow_plugin_losses.shares import shares

WIDEST = (0.95, 20.0)
"""The clip of ``clip_range_astraflow`` is never wider than this, and is this without excess."""
NARROWEST = (0.3, 0.5)
"""The clip of ``clip_range_m2po_repo`` is never narrower than this."""
NO_CLIP = (1.0, 1e5)


class M2poConfig(ClippedGroupConfig):
    """``algorithm = { use = "m2po", threshold = 0.01, … }``"""

    std_eps: Positive = Field(1e-5, description="Added to the standard deviation.")
    threshold: Positive = Field(
        0.01, description="Largest mean of the squared log-ratio (M2) that is tolerated."
    )
    variant: Literal["clip_range_astraflow", "clip_range_m2po_repo", "mask_areal"] = Field(
        "clip_range_astraflow",
        description="Which published form; clip_low and clip_high are read by 'mask_areal' only, which also "
        "needs proximal = 'recompute'.",
    )

    @model_validator(mode="after")
    def _policies(self) -> Self:
        wanted = "recompute" if self.variant == "mask_areal" else "behaviour"
        if self.proximal != wanted:
            raise ValueError(f"variant = {self.variant!r} needs proximal = {wanted!r}")
        return self


class M2po(ClippedLoss[M2poConfig], GroupLoss[M2poConfig]):
    """M2PO (Zheng et al. 2025, arXiv 2510.01161) in the variant of AstraFlow 0.1.2, over the mini-batch.

    *Harmful* tokens have A > 0 and r > 1, or A < 0 and r < 1, with r = current / behaviour. If the mean of
    ``(log r)²`` over them is above ``threshold``, the largest are dropped until the mean of the rest is below
    it; t, the largest ``|log r|`` left (the smallest of all if none may stay), gives the bounds
    ``1 - min(0.95, 1 - e^-t)`` and ``1 + min(20, e^t - 1)``, else (0.95, 20) does. Then the clip of PPO over
    all trained tokens, mean over them.

    ``clip_range_m2po_repo``: t is the largest ``|log r|`` such that capping the others there keeps the mean
    below ``threshold`` (0 if there is none); clipped at (0.3, 0.5) at least, and not at all without excess.
    ``mask_areal`` (AReaL 1.0.4): of all trained tokens those with the largest ``(proximal - behaviour)²`` are
    dropped until the mean of the rest is below ``threshold``, from the denominator too; then the clip of
    PPO with ``clip_low`` and ``clip_high``, on current / proximal.

    The published code takes t from each micro-batch; here it is that of the mini-batch, so that the loss
    does not depend on the cut. Metrics as of ``grpo``, with ``m2_low`` and ``m2_high``, the bounds in use, or
    ``dropped_fraction``.
    """

    def __init__(self, config: M2poConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        if config.variant != "mask_areal":
            self._needs |= {"current"}

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """As of the base; with a clip range ``clip_low`` and ``clip_high`` at trained tokens too."""
        given = super().weights(batch)
        if self._config.variant == "mask_areal":
            given["metrics"] = shares(batch, "token_mean")
            return given
        assert batch.current is not None, "the trainer was told that current log-probs are needed"
        assert batch.advantages is not None, "advantages come before weights"
        log_ratio = (batch.current.astype(np.float64) - batch.logprobs)[batch.loss_mask]
        harmful = log_ratio * np.sign(batch.advantages[batch.loss_mask]) > 0
        moments = np.sort(log_ratio[harmful] ** 2)
        low, high = (
            _astraflow_bounds(moments, self._config.threshold)
            if self._config.variant == "clip_range_astraflow"
            else _m2po_repo_bounds(moments, self._config.threshold)
        )
        for name, bound in (("clip_low", low), ("clip_high", high)):
            given[name] = np.where(batch.loss_mask, bound, 0.0).astype(np.float32)
        return given

    def _kept(self, batch: Batch) -> npt.NDArray[np.bool_]:
        if self._config.variant != "mask_areal":
            return batch.loss_mask
        assert batch.proximal is not None, "the trainer was told that proximal ones are needed"
        moment = (batch.proximal.astype(np.float64) - batch.logprobs) ** 2
        ordered = np.sort(moment[batch.loss_mask])
        if not len(ordered):
            return batch.loss_mask
        largest = ordered[max(_tolerated(ordered, self._config.threshold), 1) - 1]
        return np.asarray(batch.loss_mask & (moment <= largest))

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        given = tokens.inputs.weights
        if self._config.variant == "mask_areal":
            loss, metrics = super()._surrogate(tokens)
            dropped = (given["policy"] == 0) & tokens.inputs.mask
            return loss, metrics | {"dropped_fraction": dropped.to(loss.dtype)}
        from astraflow_plugin_losses import tensors

        ratio, dual_clip = tokens.log_ratio.exp(), self._config.dual_clip
        low, high = (
            tensors.masked(tokens.inputs.mask, given[f"clip_{s}"]) for s in ("low", "high")
        )
        loss = tensors.clipped_surrogate(ratio, tokens.advantages, low, high, dual_clip)
        fraction = tensors.clipped(ratio.detach(), tokens.advantages, low, high, dual_clip)
        return loss, {"clip_fraction": fraction, "m2_low": low, "m2_high": high}


def _tolerated(ordered: Floats, threshold: float) -> int:
    """How many of the smallest values (ascending) have a mean below the threshold."""
    means = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    return int(np.count_nonzero(means < threshold))


def _astraflow_bounds(ordered: Floats, threshold: float) -> tuple[float, float]:
    """(eps_low, eps_high) out of the squared log-ratios of harmful tokens, ascending."""
    if not len(ordered) or ordered.mean() <= threshold:
        return WIDEST
    t = float(np.sqrt(ordered[max(_tolerated(ordered, threshold), 1) - 1]))
    return min(WIDEST[0], -float(np.expm1(-t))), min(WIDEST[1], float(np.expm1(t)))


def _m2po_repo_bounds(ordered: Floats, threshold: float) -> tuple[float, float]:
    """The same in the form of the M2PO repository."""
    if not len(ordered) or ordered.mean() <= threshold:
        return NO_CLIP
    count = len(ordered)
    capped = np.cumsum(ordered) + ordered * np.arange(count - 1, -1, -1)
    below = np.flatnonzero(capped < threshold * count)
    t = float(np.sqrt(ordered[below[-1]])) if len(below) else 0.0
    return max(NARROWEST[0], -float(np.expm1(-t))), max(NARROWEST[1], float(np.expm1(t)))
