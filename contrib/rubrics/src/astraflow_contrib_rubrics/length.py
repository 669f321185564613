"""Reward ``length_penalty``: what the length of the answer costs."""

from __future__ import annotations

import math

from astraflow_contrib_rubrics.config import LengthConfig
from astraflow_core.types import ComponentContext, TrajectoryView


class LengthPenalty:
    """A number by the sampled tokens ``n``, with ``L`` = ``max_tokens`` and ``C`` = ``cache_tokens``.

    ``soft_overlong``: the soft overlong punishment of DAPO (Yu et al. 2025, arXiv:2503.14476, equation 13), 0 up to
    ``L - C``, then ``(L - C - n) / C``, -1 from ``L`` on, here times ``-long``. ``cosine``: the length scaling of Yeo et al.
    2025 (arXiv:2502.03373, "CosFn"), ``long + (short - long) (1 + cos(π n / L)) / 2``. ``linear``: the straight line
    between the same ends.
    """

    def __init__(self, config: LengthConfig, context: ComponentContext) -> None:
        self._config = config

    async def score(self, view: TrajectoryView) -> float | dict[str, float]:
        """Between ``short`` and ``long``."""
        lengths: dict[str, int] = {}
        for completion in view.completions:
            lengths[completion.policy] = lengths.get(completion.policy, 0) + len(completion.tokens)
        if self._config.each_policy and lengths:
            return {policy: penalty(self._config, length) for policy, length in lengths.items()}
        return penalty(self._config, sum(lengths.values()))


def penalty(config: LengthConfig, length: int) -> float:
    """What ``length`` tokens earn."""
    share = min(1.0, length / config.max_tokens)
    if config.form == "linear":
        return config.short + (config.long - config.short) * share
    if config.form == "cosine":
        return config.long + (config.short - config.long) * (1 + math.cos(math.pi * share)) / 2
    over = length - (config.max_tokens - config.cache)
    return config.long * min(1.0, max(0, over) / config.cache)
