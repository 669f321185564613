"""Engines that take drafts from sequences of earlier runs of their process, and of other RaaS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

KEY = "stored_drafts_kb"
"""The key of an engine that takes drafts: how many KB of stored sequences it gets with each task, 0 for none."""


class TakesDrafts(Protocol):
    """Additional members of a :class:`astraflow_core.protocols.engine.Engine` with the key :data:`KEY`."""

    async def learn_drafts(
        self,
        tokens: npt.NDArray[np.int32],
        sampled: npt.NDArray[np.bool_],
        lengths: Sequence[int],
    ) -> bool:
        """Take guesses from sequences of ``lengths``, which are concatenated in ``tokens`` int32 ``[N]``; ``sampled`` bool ``[N]``
        is true where a policy sampled the token. They never change what is sampled. Returns whether drafts pay at present, so
        that more sequences are of use; :class:`ValueError` if they cannot be of its model."""
