"""The algorithm ``m2po``: bounds the second moment of the log-ratio to the policy that sampled."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from astraflow_core.types import Batch, ComponentContext
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss, GroupLoss
from astraflow_plugin_losses.config import ClippedGroupConfig, Positive
from astraflow_plugin_losses.policy import Tensor, Tokens
from astraflow_plugin_losses.shares import shares


class M2poConfig(ClippedGroupConfig):
    """``algorithm = { use = "m2po", threshold = 0.01, … }``"""

    std_eps: Positive = Field(1e-5, description="Added to the standard deviation.")
    threshold: Positive = Field(
        0.01, description="Largest mean of the squared log-ratio (M2) that is tolerated."
    )
    variant: Literal["clip_range_astraflow", "clip_range_m2po_repo", "mask_areal"] = Field(
        "clip_range_astraflow",
        description="Published variant; clip_low and clip_high are read by 'mask_areal' only, which also "
        "needs proximal = 'recompute'.",
    )
    scope: Literal["mini_batch", "micro_batch"] = Field(
        "mini_batch",
        description="The tokens over which the threshold holds: with 'micro_batch', as published, no pass "
        "before the update, and a loss that depends on how the mini-batch is cut.",
    )

    @model_validator(mode="after")
    def _policies(self) -> Self:
        wanted = "recompute" if self.variant == "mask_areal" else "behaviour"
        if self.proximal != wanted:
            raise ValueError(f"variant = {self.variant!r} needs proximal = {wanted!r}")
        if (
            wanted == "recompute"
            and self.scope == "micro_batch"
            and self.aggregation != "token_mean"
        ):
            raise ValueError(
                "variant = 'mask_areal' with scope = 'micro_batch' has its published denominator, the "
                "tokens left: it needs aggregation = 'token_mean'"
            )
        return self


class M2po(ClippedLoss[M2poConfig], GroupLoss[M2poConfig]):
    """M2PO (Zheng et al. 2025, arXiv 2510.01161) in the variant of AstraFlow 0.1.2, over the mini-batch.

    *Harmful* tokens have A > 0 and r > 1, or A < 0 and r < 1, with r = current / behaviour. If the mean of
    ``(log r)²`` over them is above ``threshold``, the largest are dropped until the mean of the rest is below
    it; t, the largest ``|log r|`` left (the smallest of all if none may stay), gives the bounds
    ``1 - min(0.95, 1 - e^-t)`` and ``1 + min(20, e^t - 1)``, else (0.95, 20) does. Then the clip of PPO over
    all trained tokens, mean over them.

    ``clip_range_m2po_repo``: t is the largest ``|log r|`` such that capping the others there keeps the mean
    below ``threshold`` (0 if there is none); clipped at (0.3, 0.5) at least, and only beyond a ratio of 1e5 without
    excess. ``mask_areal`` (AReaL 1.0.4): of all trained tokens those with the largest ``(proximal - behaviour)²`` are
    dropped until the mean of the rest is below ``threshold``, the first of equal ones first, from the denominator
    too; then the clip of PPO with ``clip_low`` and ``clip_high``, on current / proximal.

    The published code takes t from each micro-batch (``scope = "micro_batch"``); here it is that of the
    mini-batch, so that the loss does not depend on the cut. Metrics as of ``grpo``, with ``m2_low`` and ``m2_high``, the bounds in use, or
    ``dropped_fraction``.
    """

    def __init__(self, config: M2poConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        if config.variant != "mask_areal" and config.scope == "mini_batch":
            self._needs |= {"current"}

    @property
    def proximal_in_loss(self) -> bool:
        """No: masks over the mini-batch are computed from them."""
        return False

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """As of the base; with a clip range over the mini-batch ``clip_low`` and ``clip_high`` at trained
        tokens too."""
        given = super().weights(batch)
        if self._config.variant == "mask_areal":
            given["metrics"] = shares(batch, "token_mean")
        elif self._config.scope == "mini_batch":
            assert batch.current is not None, "the trainer must compute current log-probs"
            assert batch.advantages is not None, "advantages come before weights"
            from astraflow_plugin_losses.second_moment import on_host

            log_ratio = np.where(batch.loss_mask, batch.current.astype(float) - batch.logprobs, 0)
            bounds = on_host(self._bounds, log_ratio, batch.advantages, batch.loss_mask)
            for name, bound in zip(("clip_low", "clip_high"), bounds, strict=True):
                given[name] = np.where(batch.loss_mask, float(bound), 0.0).astype(np.float32)
        return given

    def _kept(self, batch: Batch) -> npt.NDArray[np.bool_]:
        if self._config.variant != "mask_areal" or self._config.scope == "micro_batch":
            return batch.loss_mask
        assert batch.proximal is not None, "the algorithm declares that proximal ones are needed"
        from astraflow_plugin_losses.second_moment import on_host

        gap = batch.proximal.astype(np.float64) - batch.logprobs
        drift = np.where(batch.loss_mask, gap, 0.0)
        return np.asarray(on_host(self._left, drift, batch.loss_mask))

    def _bounds(self, log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        from astraflow_plugin_losses import second_moment

        astraflow = self._config.variant == "clip_range_astraflow"
        bounds = second_moment.astraflow_bounds if astraflow else second_moment.m2po_repo_bounds
        counted = second_moment.harmful(log_ratio, advantages, mask)
        return bounds(log_ratio.square(), counted, self._config.threshold)

    def _left(self, drift: Tensor, mask: Tensor) -> Tensor:
        from astraflow_plugin_losses.second_moment import left

        return left(drift.square(), mask, self._config.threshold)

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        from astraflow_plugin_losses import tensors

        given, mask, micro = tokens.inputs, tokens.inputs.mask, self._config.scope == "micro_batch"
        if self._config.variant == "mask_areal":
            loss, metrics = super()._surrogate(tokens)
            if not micro:
                dropped = (given.weights["policy"] == 0) & mask
                return loss, metrics | {"dropped_fraction": dropped.to(loss.dtype)}
            assert given.proximal is not None, (
                "the algorithm declares that proximal ones are needed"
            )
            left = self._left(
                tensors.masked(mask, given.proximal) - tensors.masked(mask, given.behaviour), mask
            )
            share = mask.sum() / left.sum().clamp(min=1)
            dropped = mask & ~left
            return loss * left * share, metrics | {"dropped_fraction": dropped.to(loss.dtype)}
        ratio, dual_clip = tokens.log_ratio.exp(), self._config.dual_clip
        if micro:
            bounds = self._bounds(tokens.log_ratio.detach(), tokens.advantages, mask)
            low, high = (bound.to(ratio.dtype).expand_as(ratio) for bound in bounds)
        else:
            low, high = (
                tensors.masked(mask, given.weights[f"clip_{side}"]) for side in ("low", "high")
            )
        loss = tensors.clipped_surrogate(ratio, tokens.advantages, low, high, dual_clip)
        fraction = tensors.clipped(ratio.detach(), tokens.advantages, low, high, dual_clip)
        return loss, {"clip_fraction": fraction, "m2_low": low, "m2_high": high}
