"""Replay: a share of each batch is rows of earlier batches.

The buffer replay of AstraFlow 0.1.2: of ``N`` rows, ``floor(N · ratio)`` are taken from the pool first (fewer if
it has fewer) and the rest are fresh; rows enter the pool when their update is done, once, and keep their place in it
when they are served again; a batch has its fresh rows first. ``selector = "latest"`` is its only selector, the rows
that entered last. ``uniform`` and
``prioritised`` draw without replacement; the priority is the distance of the reward from the group's mean in
standard deviations, as stamped at acceptance, after the proportional variant of prioritised experience replay
(Schaul et al. 2016, arXiv 1511.05952) with its exponent and without its importance weights.

Ours: a row older than ``max_staleness`` is never served again (there replayed rows are not looked at), a row is
served again at most ``reuse_limit`` times, and ``N · ratio`` is exact: 100 · 0.29 are 29 rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from astraflow_core.errors import UserError
from astraflow_core.types import BufferedRow, ComponentContext
from astraflow_plugin_replay.config import ReplayConfig
from astraflow_policy_tools.chance import Chance
from astraflow_policy_tools.states import require_keys
from astraflow_policy_tools.statistics import surprise

log = logging.getLogger(__name__)

BATCHES_BEFORE_WARNING = 8
"""Batches in a row without a row served again after which its cause is looked for."""

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
        self._key = "[run] max_staleness" if self._bound == bound else "its max_staleness"
        self._drawn = self._replayed = self._missing = self._at_bound = 0
        self._in_vain = [0, 0, 0]
        self._highest: float | None = None

    def draw(
        self, count: int, fresh: Sequence[BufferedRow], kept: Sequence[BufferedRow], version: int
    ) -> list[BufferedRow] | None:
        """Fresh rows, then those served again; ``None`` while there are too few fresh ones."""
        pool = self._candidates(kept, version)
        wanted = math.floor(count * self._config.ratio + ROUNDING)
        again = min(wanted, len(pool))
        if len(fresh) < count - again:
            return None
        self._drawn += count
        self._replayed += again
        self._missing += wanted - again
        last_time = sum(row.min_version <= version - self._bound for row in fresh[: count - again])
        self._at_bound += last_time
        self._find_cause(wanted > 0 and again == 0, count, last_time)
        replayed = self._selected(pool, again, kept)
        self._note_surprise(fresh[: count - again])
        return [*fresh[: count - again], *replayed]

    def metrics(self) -> dict[str, float]:
        """Share of all rows so far that were ``replayed``; how many rows more were wanted (``missing``); and the
        share of the rows served first that were ``at_bound`` then, too old for another batch already."""
        first = self._drawn - self._replayed
        return {
            "replayed": self._replayed / self._drawn if self._drawn else 0.0,
            "missing": float(self._missing),
            "at_bound": self._at_bound / first if first else 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """Counters and generator; the rows are the buffer's."""
        return {
            "served": [self._drawn, self._replayed, self._missing, self._at_bound],
            "in_vain": list(self._in_vain),
            "highest": self._highest,
            "chance": self._chance.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the policy that gave ``state`` would."""
        require_keys(state, "served", "in_vain", "highest", "chance")
        self._drawn, self._replayed, self._missing, self._at_bound = state["served"]
        self._in_vain, self._highest = list(state["in_vain"]), state["highest"]
        self._chance.load_state_dict(state["chance"])

    def _find_cause(self, in_vain: bool, rows: int, last_time: int) -> None:
        """Say once, after a stretch of batches without any row served again, if rows come in so old that they
        are too old afterwards."""
        if not in_vain:
            self._in_vain = [0, 0, 0]
            return
        batches, seen, at_bound = self._in_vain
        self._in_vain = [batches + 1, seen + rows, at_bound + last_time]
        if batches + 1 == BATCHES_BEFORE_WARNING and 2 * self._in_vain[2] > self._in_vain[1]:
            log.warning(
                "data policy 'replay' has no effect: in %d batches no row was served again, since %d of their %d rows "
                "were %d versions old when they were served first, and %s = %d allows no more; raise it",
                BATCHES_BEFORE_WARNING, self._in_vain[2], self._in_vain[1], self._bound, self._key, self._bound,
            )  # fmt: skip

    def _candidates(self, kept: Sequence[BufferedRow], version: int) -> list[BufferedRow]:
        oldest, limit = version - self._bound, self._config.reuse_limit
        pool = [row for row in kept[-self._config.pool_size :] if row.min_version >= oldest]
        return pool if limit is None else [row for row in pool if row.times_served <= limit]

    def _selected(
        self, pool: list[BufferedRow], count: int, kept: Sequence[BufferedRow]
    ) -> list[BufferedRow]:
        if self._config.selector == "latest":
            return pool[len(pool) - count :]
        size, exponent = len(pool), self._config.exponent
        if self._config.selector == "uniform":
            indexes = self._chance.pick(size, count, lambda _: 1.0, 1.0)
        else:
            if self._highest is None:
                self._note_surprise(kept)
            highest = (self._highest or 0.0) ** exponent
            indexes = self._chance.pick(
                size, count, lambda index: surprise(pool[index]) ** exponent, highest
            )
        return [pool[index] for index in indexes]

    def _note_surprise(self, rows: Sequence[BufferedRow]) -> None:
        """Whatever may be drawn again was drawn first, or was there before this policy: the highest is known."""
        if self._config.selector == "prioritised":
            self._highest = max([self._highest or 0.0, *map(surprise, rows)])
