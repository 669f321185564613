"""The algorithm ``grpo``, and the base of those that differ from it by their defaults."""

from __future__ import annotations

from typing import TypeVar

from astraflow_core.types import Batch
from astraflow_plugin_losses.config import ClipConfig, ClippedGroupConfig, GroupConfig
from astraflow_plugin_losses.normalization import (
    Epsilon,
    Floats,
    group_relative,
    tokens_per_row,
    whiten,
)
from astraflow_plugin_losses.policy import PolicyLoss, Tensor, Tokens

C = TypeVar("C", bound=ClipConfig)
G = TypeVar("G", bound=GroupConfig)


class GrpoConfig(ClippedGroupConfig):
    """``algorithm = { use = "grpo", … }``"""


class ClippedLoss(PolicyLoss[C]):
    """The clipped surrogate of PPO on the ratio of each token."""

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        from astraflow_plugin_losses.tensors import clipped, clipped_surrogate

        ratio, config = tokens.log_ratio.exp(), self._config
        bounds = (config.clip_low, config.clip_high, config.dual_clip)
        fraction = clipped(ratio.detach(), tokens.advantages, *bounds)
        return clipped_surrogate(ratio, tokens.advantages, *bounds), {"clip_fraction": fraction}


class GroupLoss(PolicyLoss[G]):
    """Advantages relative to the group."""

    def _advantages(self, batch: Batch) -> Floats:
        return self._per_row(batch, self._of_rows(batch))

    def _of_rows(self, batch: Batch, shaping: Floats | None = None) -> Floats:
        config = self._config
        advantages = group_relative(
            batch,
            normalize_std=config.normalize_std,
            std_eps=config.std_eps,
            std_eps_inside=config.std_eps_inside,
            bessel=config.bessel,
            leave_one_out=config.leave_one_out,
            singleton_advantage=config.singleton_advantage,
            unit=config.group_unit,
            std_of=config.std_of,
            shaping=shaping,
        )
        if config.whiten == "none":
            return advantages
        counts = tokens_per_row(batch)
        each = counts if config.whiten == "token" else None
        epsilon = Epsilon(config.whiten_eps, config.whiten_eps_inside)
        return whiten(advantages, counts > 0, each, epsilon)


class Grpo(ClippedLoss[GrpoConfig], GroupLoss[GrpoConfig]):
    """Group Relative Policy Optimization (DeepSeekMath, Shao et al. 2024, arXiv 2402.03300, §4.1).

    The variant is that of TRL 1.16.0 with ``loss_type="dapo"`` in each choice but the first:

    - The ratio is of the current to the *behaviour* policy, whose log-probs the engine reported when it
      sampled. (TRL recomputes them with the trainer's model at the start of the update: ``proximal``.)
    - Advantage ``(R - mean) / (std + std_eps)`` over the group, std with n - 1, eps outside the root and
      1e-4. A group of one gets 0 (as in AReaL; TRL refuses such groups, verl keeps R: ``singleton_advantage``).
    - Every trained token of the whole mini-batch weighs the same (DAPO, eq. 8): the mean is over all of
      them, not per sequence and not per micro-batch (``aggregation``).
    - PPO clip with separate bounds; no dual clip, log-ratios are not clamped.
    - KL to the reference model in the loss, not in the reward: k3 of ``reference - current``, not clamped.
    - Entropy bonus: the mean entropy of the full distribution at the trained positions.

    Metrics, each a mean over trained tokens: ``clip_fraction``, ``approx_kl`` (k3 of current against
    behaviour), ``ratio_mean``, and ``kl`` and ``entropy`` where these are computed.
    """
