"""Replay: a share of each batch is rows of earlier batches.

The buffer replay of AstraFlow 0.1.2: of ``N`` rows, ``floor(N · ratio)`` are taken from the pool first (fewer if
it has fewer) and the rest are fresh; rows enter the pool when their update is done; a batch has its fresh rows
first. ``selector = "latest"`` is its only selector, the newest rows of the pool. ``uniform`` and
``prioritised`` draw without replacement; the priority is the distance of the reward from the group's mean in
standard deviations, as stamped at acceptance, after the proportional variant of prioritised experience replay
(Schaul et al. 2016, arXiv 1511.05952) with its exponent and without its importance weights.

Ours: a row older than ``max_staleness`` is never served again (there replayed rows are not looked at), a row is
served again at most ``reuse_limit`` times, and ``N · ratio`` is exact: 100 · 0.29 are 29 rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from astraflow_core.errors import UserError
from astraflow_core.policy_tools.chance import Chance
from astraflow_core.policy_tools.states import require_keys
from astraflow_core.policy_tools.statistics import surprise
from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_replay.config import ReplayConfig

ROUNDING = 1e-9
"""Products of a count and a ratio that miss an integer by less are that integer."""


class Replay:
    """Draws fresh rows in their order, and rows served before."""

    def __init__(self, config: ReplayConfig, context: ComponentContext) -> None:
        bound = context.run.max_staleness
        if config.max_staleness is not None and config.max_staleness > bound:
            raise UserError(
                f"data policy 'replay': max_staleness = {config.max_staleness} is looser than the run's, "
                f"{bound}, which holds for every row; lower it, or raise [run] max_staleness"
            )
        self._config = config
        self._bound = bound if config.max_staleness is None else config.max_staleness
        self._chance = Chance(context.seed)
        self._drawn = self._replayed = 0

    def draw(
        self, count: int, fresh: Sequence[BufferedRow], kept: Sequence[BufferedRow], version: int
    ) -> list[BufferedRow] | None:
        """Fresh rows, then those served again; ``None`` while there are too few fresh ones."""
        pool = self._candidates(kept, version)
        again = min(math.floor(count * self._config.ratio + ROUNDING), len(pool))
        if len(fresh) < count - again:
            return None
        self._drawn += count
        self._replayed += again
        return [*fresh[: count - again], *self._selected(pool, again)]

    def metrics(self) -> dict[str, float]:
        """Share of all rows so far that were ``replayed``."""
        return {"replayed": self._replayed / self._drawn if self._drawn else 0.0}

    def state_dict(self) -> dict[str, Any]:
        """Counters and generator; the rows are the buffer's."""
        return {"counts": [self._drawn, self._replayed], "chance": self._chance.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "counts", "chance")
        self._drawn, self._replayed = state["counts"]
        self._chance.load_state_dict(state["chance"])

    def _candidates(self, kept: Sequence[BufferedRow], version: int) -> list[BufferedRow]:
        oldest, limit = version - self._bound, self._config.reuse_limit
        pool = [row for row in kept[-self._config.pool_size :] if row.min_version >= oldest]
        return pool if limit is None else [row for row in pool if row.times_served <= limit]

    def _selected(self, pool: list[BufferedRow], count: int) -> list[BufferedRow]:
        if self._config.selector == "latest":
            return pool[len(pool) - count :]
        weights = [1.0] * len(pool)
        if self._config.selector == "prioritised":
            weights = [surprise(row) ** self._config.exponent for row in pool]
        return [pool[index] for index in self._chance.sample(weights, count)]
