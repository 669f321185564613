"""Turns of whole groups: what they earned, how they compare, and their tokens in a batch. Float64 NumPy."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError
from astraflow_core.types import Batch
from astraflow_plugin_losses.config import Outcome
from astraflow_plugin_losses.normalization import Floats
from astraflow_plugin_losses.returns import discounted

Indices = npt.NDArray[np.int64]


class TurnTable:
    """The ``K`` turns of the groups of a batch: per turn, ``rewards`` (what it earned, and at the end the outcome of
    its sequence or trajectory), and as numbers from 0 its ``group``, its ``chain`` (the trajectory) and its ``place``
    in it. Raises :class:`UserError` if the batch has no turns."""

    def __init__(self, batch: Batch, outcome: Outcome, algorithm: str) -> None:
        if batch.turns is None or batch.units is None:
            raise UserError(
                f"{algorithm} compares turns of whole groups, and batch {batch.id!r} ({len(batch)} rows) has none; "
                "batches of a dataflow have them, for one built by hand use astraflow_testing.stamping"
            )
        self._batch, self._units, self.turns = batch, batch.units, batch.turns
        self.earned: Floats = batch.turns.reward.astype(np.float64)
        at_the_end = batch.turns.rest if outcome == "rest" else batch.turns.outcome
        self.outcome: Floats = at_the_end.astype(np.float64)
        self.rewards: Floats = self.earned + self.outcome
        self.group: Indices = np.unique(batch.turns.group, return_inverse=True)[1]
        begins = np.ones(len(self.group), np.bool_)
        begins[1:] = np.diff(batch.turns.trajectory) != 0
        self.chain: Indices = np.cumsum(begins) - 1
        self.first: Indices = np.flatnonzero(begins)
        self.place: Indices = np.arange(len(self.group)) - self.first[self.chain]

    def returns(self, gamma: float) -> Floats:
        """Discounted rewards of each turn and those after it in its trajectory."""
        return discounted(self.chain, self.rewards, gamma)

    def total(self, values: Floats) -> Floats:
        """At each turn the sum over its trajectory."""
        sums = np.bincount(self.chain, values, len(self.first)).astype(np.float64)
        return sums[self.chain]

    def relative(
        self,
        values: Floats,
        *keys: Indices,
        std_eps: float | None,
        counts: npt.NDArray[np.bool_] | None = None,
    ) -> Floats:
        """``values`` less their mean over the turns of the group that agree in ``keys``, and divided by their standard
        deviation (n - 1; 0 for one) plus ``std_eps`` unless that is ``None``. ``counts``: which turns are counted."""
        weight = np.ones(len(values)) if counts is None else counts.astype(np.float64)
        of = np.unique(np.stack([self.group, *keys]), axis=1, return_inverse=True)[1].reshape(-1)
        size = np.maximum(np.bincount(of, weight), 1.0)
        result = values - (np.bincount(of, weight * values) / size)[of]
        if std_eps is None:
            return result
        std = np.sqrt(np.bincount(of, weight * result**2) / np.maximum(size - 1, 1))
        return np.asarray(result / (std[of] + std_eps))

    @cached_property
    def of_token(self) -> Indices:
        """The turn of each trained token of the batch, int64 ``[N]``; 0 where none is trained."""
        batch, turns = self._batch, self.turns
        pairs = [
            np.concatenate([turns.trajectory, batch.trajectory]),
            np.concatenate([turns.sequence, self._units.turn]).astype(np.int64),
        ]
        number = np.unique(np.stack(pairs), axis=1, return_inverse=True)[1].reshape(-1)
        span = 1 + int(max(batch.lengths.max(initial=0), turns.last.max(initial=0)))
        ends = number[: len(turns.last)] * span + turns.last
        places = np.arange(len(batch.tokens)) - np.repeat(batch.offsets[:-1], batch.lengths)
        tokens = np.repeat(number[len(turns.last) :], batch.lengths) * span + places
        order = np.argsort(ends)
        found = np.zeros(len(tokens), np.int64)
        mask = batch.loss_mask
        found[mask] = order[np.searchsorted(ends[order], tokens[mask])]
        return found

    def share(self, of: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        """Weights of tokens that add up to the share of ``of``, bool ``[K]``, among the turns of which the batch has
        tokens: float32 ``[N]``."""
        mask = self._batch.loss_mask
        turn = self.of_token[mask]
        counts = np.bincount(turn, minlength=len(of))
        result = np.zeros(len(mask), np.float32)
        present = int(np.count_nonzero(counts))
        result[mask] = of[turn] / (counts[turn] * present)
        return result

    def at_tokens(self, values: Floats) -> Floats:
        """Each trained token has the value of its turn, 0 elsewhere: float64 ``[N]``."""
        mask = self._batch.loss_mask
        result = np.zeros(len(mask))
        result[mask] = values[self.of_token[mask]]
        return result
