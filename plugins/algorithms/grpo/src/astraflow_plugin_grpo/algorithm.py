"""The algorithm ``grpo``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch, ComponentContext, Loss, LossInputs
from astraflow_plugin_grpo.config import GrpoConfig
from astraflow_plugin_grpo.schedule import piecewise_linear

if TYPE_CHECKING:
    import torch


class Grpo:
    """Group Relative Policy Optimization (DeepSeekMath, Shao et al. 2024, §4.1).

    The variant is that of TRL 1.16.0 with ``loss_type="dapo"`` in each choice but the first:

    - The ratio is of the current to the *behaviour* policy, whose log-probs the engine reported when it
      sampled. (TRL recomputes them with the trainer's model at the start of the update.)
    - Advantage ``(R - mean) / (std + std_eps)`` over the group, std with n - 1, eps outside the root and
      1e-4. A group of one gets 0 (as in AReaL; TRL refuses such groups, verl keeps R).
    - Every trained token of the whole mini-batch weighs the same (DAPO, eq. 8): the mean is over all of
      them, not per sequence and not per micro-batch.
    - PPO clip with separate bounds; no dual clip, log-ratios are not clamped.
    - KL to the reference model in the loss, not in the reward: k3 of ``reference - current``, not clamped.
    - Entropy bonus: the mean entropy of the full distribution at the trained positions.

    Metrics, each a mean over trained tokens: ``clip_fraction``, ``approx_kl`` (k3 of current against
    behaviour), ``ratio_mean``, and ``kl`` and ``entropy`` where these are computed.
    """

    def __init__(self, config: GrpoConfig, context: ComponentContext) -> None:
        self._config = config
        self._needs = frozenset(
            name
            for name, wanted in (
                ("reference", config.kl_coef > 0),
                ("entropy", _ever_nonzero(config.entropy_coef)),
            )
            if wanted
        )

    @property
    def needs(self) -> frozenset[str]:
        """``reference`` with ``kl_coef``, ``entropy`` with an ``entropy_coef`` that is not always 0."""
        return self._needs

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """One advantage per row at its trained tokens, 0 elsewhere: float32 ``[N]``."""
        advantages = batch.rewards.astype(np.float64) - batch.group_mean
        if self._config.normalize_std:
            advantages /= batch.group_std + self._config.std_eps
        advantages[batch.group_size == 1] = 0.0
        spread = batch.spread(advantages.astype(np.float32))
        return np.where(batch.loss_mask, spread, np.float32(0))

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """For each term 1 / trained tokens of the mini-batch at these tokens: float32 ``[N]``."""
        share = batch.loss_mask / np.float32(max(1, batch.trained_tokens))
        terms = ["policy"]
        if "reference" in self._needs:
            terms.append("kl")
        if "entropy" in self._needs:
            terms.append("entropy")
        return dict.fromkeys(terms, share.astype(np.float32))

    def loss(self, inputs: LossInputs) -> Loss:
        """Terms ``policy``, and ``kl`` and ``entropy`` where needed; positions outside the mask have no
        influence, whatever they hold."""
        from astraflow_plugin_grpo import losses  # torch is not needed before

        low, high = self._config.clip_low, self._config.clip_high

        def trained(values: torch.Tensor | None) -> torch.Tensor:
            assert values is not None, f"grpo needs {sorted(self._needs)} of its trainer"
            return losses.masked(inputs.mask, values)

        def mean(term: str, values: torch.Tensor) -> torch.Tensor:
            return (trained(inputs.weights[term]) * values).sum()

        current, advantages = trained(inputs.logprobs), trained(inputs.advantages)
        log_ratio = current - trained(inputs.behaviour)
        surrogate = losses.clipped_surrogate(log_ratio, advantages, low, high)
        terms = {"policy": (1.0, mean("policy", surrogate))}
        fixed = log_ratio.detach()
        metrics = {
            "clip_fraction": mean("policy", losses.clipped(fixed, advantages, low, high)),
            "approx_kl": mean("policy", losses.k3(fixed)),
            "ratio_mean": mean("policy", fixed.exp()),
        }
        if "reference" in self._needs:
            kl = mean("kl", losses.k3(trained(inputs.reference) - current))
            terms["kl"] = (self._config.kl_coef, kl)
            metrics["kl"] = kl.detach()
        if "entropy" in self._needs:
            entropy = mean("entropy", trained(inputs.entropy))
            coefficient = piecewise_linear(self._config.entropy_coef, inputs.step)
            terms["entropy"] = (-coefficient, entropy)
            metrics["entropy"] = entropy.detach()
        return Loss(terms=terms, metrics=metrics)


def _ever_nonzero(entropy_coef: float | tuple[tuple[float, float], ...]) -> bool:
    if isinstance(entropy_coef, tuple):
        return any(value for _, value in entropy_coef)
    return bool(entropy_coef)
