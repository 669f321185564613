"""The algorithm ``gspo``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow_plugin_losses.algorithms.grpo import GroupLoss
from astraflow_plugin_losses.config import Aggregation, ClippedGroupConfig, NotNegative
from astraflow_plugin_losses.policy import Tensor, Tokens

LARGEST = 10.0
"""Log-ratios of the token form are clamped to this from above, as in verl and SkyRL."""


class GspoConfig(ClippedGroupConfig):
    """``algorithm = { use = "gspo", … }``"""

    form: Literal["sequence", "token"] = Field(
        "sequence",
        description="'sequence': gradient through the row's mean log-ratio (TRL); 'token': the same value "
        "with the gradient of each token's own log-prob (GSPO-token; verl).",
    )
    aggregation: Aggregation = Field(
        "seq_mean_token_mean_all_rows", description="As in `grpo`; verl: seq_mean_token_mean."
    )
    clip_low: Annotated[float, Field(ge=0, le=1)] = Field(
        3e-4, description="The ratio of the row is clipped below at 1 - clip_low."
    )
    clip_high: NotNegative = Field(
        4e-4, description="The ratio of the row is clipped above at 1 + clip_high."
    )


class Gspo(GroupLoss[GspoConfig]):
    """Group Sequence Policy Optimization (Zheng et al. 2025, arXiv 2507.18071, eq. 5) in the variant of TRL
    1.16.0 with ``importance_sampling_level="sequence"`` and ``loss_type="grpo"``.

    The ratio of a row is ``exp`` of the mean log-ratio of its trained tokens, clipped as a whole; each row
    counts the same, rows without a trained token included. ``form = "token"`` is GSPO-token (eq. 13) as in
    verl 0.9.1, log-ratios at most 10. The forms have equal gradients as long as the advantage is the same
    for all tokens of a row. Metrics as of ``grpo``; ``clip_fraction`` counts the tokens of clipped rows.
    """

    def _surrogate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        from astraflow_plugin_losses import tensors

        given, config = tokens.inputs, self._config
        mean = tensors.row_mean(tokens.log_ratio, given.mask, given.row, given.rows)
        if config.form == "token":
            own = tokens.current - tokens.current.detach()
            mean = (own + mean.detach()).clamp(max=LARGEST)
        ratio = mean.exp()
        bounds = (config.clip_low, config.clip_high, config.dual_clip)
        fraction = tensors.clipped(ratio.detach(), tokens.advantages, *bounds)
        loss = tensors.clipped_surrogate(ratio, tokens.advantages, *bounds)
        return loss, {"clip_fraction": fraction}
