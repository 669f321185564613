"""Mixed streams: a share of each batch is rows that another policy sampled.

After the shared and mixed data streams of the AstraFlow paper (section 3.2), in which the dataflow may serve one
trainer from several policies' rollouts. Of ``N`` rows, ``floor(N · ratio)`` are the newest that the source's stream has
accepted and this policy has not had (fewer if fewer are there); the others are its own, as the rest of the list decides.
With a ratio of 1 there are no others: the batch waits until ``N`` rows of the source are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from astraflow_core.errors import UserError
from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_mixed_streams.config import MixedStreamsConfig

ROUNDING = 1e-9
"""Products of a count and a ratio that miss an integer by less are that integer."""


class MixedStreams:
    """Borrows the newest rows of another policy."""

    def __init__(self, config: MixedStreamsConfig, context: ComponentContext) -> None:
        bound, others = context.run.max_staleness, set(context.run.policies) - {context.policy}
        if config.source not in others:
            raise UserError(
                f"data policy 'mixed_streams' of {context.policy!r}: source = {config.source!r} is not another policy "
                f"of this run; there are {', '.join(sorted(others)) or 'none'}"
            )
        if config.max_age is not None and config.max_age > bound:
            raise UserError(
                f"data policy 'mixed_streams': max_age = {config.max_age} is looser than the run's max_staleness, "
                f"{bound}, which holds for every row; lower it, or raise [run] max_staleness"
            )
        self._ratio = config.ratio
        self.source = config.source
        self.max_age = bound if config.max_age is None else config.max_age

    def most(self, count: int) -> int:
        """Rows of a batch of ``count`` that are borrowed if as many are there."""
        return math.floor(count * self._ratio + ROUNDING)

    def borrow(self, count: int, lent: Sequence[BufferedRow], version: int) -> list[BufferedRow]:
        """The newest rows of ``lent``."""
        return list(lent[max(0, len(lent) - self.most(count)) :])
