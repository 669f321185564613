"""Algorithm: advantages on the host, weights of tokens, and a loss on packed tensors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Batch, Loss, LossInputs

NEEDS = frozenset({"reference", "proximal", "values", "current", "entropy", "logit_gradients"})
"""What an algorithm can ask of its trainer."""


class Algorithm(Protocol):
    """Built as ``factory(config, context)``. Its docstring names the public variant it implements.

    Its config model may have an attribute or property ``compares``: ``"sequences"`` or ``"trajectories"`` if a
    reward counts only relative to those of other sequences, or trajectories, of its group, and ``""`` if a group of one
    can be learned from, too. A run with ``group_size = 1`` in which every advantage would be 0 is then refused before it
    starts. Without it nothing is checked.

    It may also have ``named_rewards``, a tuple of names: the trainer then asks for these, and :class:`Batch` has them.
    An episode without one of them is refused. And ``episode_columns``, names of sparse columns of a batch that each
    sequence must have, such as ``teacher_logprobs``: a dry call without one is refused.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Subset of :data:`NEEDS`, depending on the configured keys. An algorithm that has an attribute
        ``proximal_in_loss`` which is true reads proximal log-probs in :meth:`loss` only, which can save a pass."""

    def advantages(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Advantage of each token, float32 ``[N]``, once per batch before it is cut; reads the stamped
        group statistics, since a batch may split groups."""

    def weights(self, batch: Batch) -> dict[str, npt.NDArray[np.float32]]:
        """Each token's share in each loss term, float32 ``[N]``, 0 where the loss mask is not set; called
        once per mini-batch with the whole mini-batch, so a loss does not depend on how it is cut. Entries
        that name no term hand the loss other constants per token that take the whole mini-batch, as a
        threshold over all its tokens."""

    def loss(self, inputs: LossInputs) -> Loss:
        """The terms of the loss on one micro-batch."""
