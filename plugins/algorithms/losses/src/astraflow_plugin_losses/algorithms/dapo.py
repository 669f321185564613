"""The algorithm ``dapo``, and the penalties on long rows."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from astraflow_core.config.models import PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_core.types import Batch
from astraflow_plugin_losses.algorithms.grpo import ClippedLoss, GroupLoss
from astraflow_plugin_losses.config import ClippedGroupConfig, NotNegative
from astraflow_plugin_losses.normalization import Floats, tokens_per_row


class DapoConfig(ClippedGroupConfig):
    """``algorithm = { use = "dapo", overlong = "piecewise", max_tokens = 2048, overlong_tokens = 512 }``"""

    clip_high: NotNegative = Field(0.28, description="The ratio is clipped above at 1 + clip_high.")
    overlong: Literal["none", "piecewise", "linear"] = Field(
        "none",
        description="Penalty on rows above max_tokens - overlong_tokens trained tokens: 'piecewise' falls to "
        "-1 at max_tokens and stays (DAPO, eq. 13; TRL), 'linear' keeps falling (verl, AstraFlow).",
    )
    overlong_tokens: OrNone[PositiveInt] = Field(
        None, description="Length over which the penalty falls to -overlong_factor."
    )
    overlong_factor: NotNegative = Field(1.0, description="Multiplies the penalty.")

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.overlong != "none" and (self.max_tokens is None or self.overlong_tokens is None):
            raise ValueError(f"overlong = {self.overlong!r} needs max_tokens and overlong_tokens")
        return self


def overlong_penalty(
    tokens: Floats, kind: Literal["piecewise", "linear"], max_tokens: int, overlong_tokens: int
) -> Floats:
    """0 up to ``max_tokens - overlong_tokens``, then falling by 1 per ``overlong_tokens``; ``piecewise`` not
    below -1: DAPO (Yu et al. 2025, arXiv 2503.14476, eq. 13). ``linear`` has no such bound."""
    penalty = np.minimum((max_tokens - overlong_tokens - tokens) / overlong_tokens, 0.0)
    return np.maximum(penalty, -1.0) if kind == "piecewise" else penalty


class Dapo(ClippedLoss[DapoConfig], GroupLoss[DapoConfig]):
    """DAPO (Yu et al. 2025, arXiv 2503.14476): ``grpo`` in the variant of TRL 1.16.0 ``loss_type="dapo"`` with
    clip-higher (0.2, 0.28), the mean over all trained tokens, no KL. The dynamic sampling of the paper is
    the data policy of that name.

    The overlong penalty is applied as in AstraFlow 0.1.2: added to the reward of the row after the statistics
    of its group were taken. (In the paper the statistics include it.) Where a group has no spread, so that
    AstraFlow would divide by eps alone, the penalty counts undivided. Metrics as of ``grpo``.
    """

    def _advantages(self, batch: Batch) -> Floats:
        config, shaping = self._config, None
        if config.overlong != "none":
            assert config.max_tokens is not None and config.overlong_tokens is not None
            shaping = config.overlong_factor * overlong_penalty(
                tokens_per_row(batch), config.overlong, config.max_tokens, config.overlong_tokens
            )
        return self._per_row(batch, self._of_rows(batch, shaping))
