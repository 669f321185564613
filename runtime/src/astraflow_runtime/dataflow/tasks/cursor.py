"""The prompt cursor: the position in a prompt source, as one integer."""

from __future__ import annotations

import numpy as np

from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.seeds import derive_seed
from astraflow_core.types import Prompt


class PromptCursor:
    """Endless iteration over a finite source, shuffled again in every epoch with the run's seed.
    ``position`` counts prompts since the start of the run; the order depends only on it and the
    seed, so a restored position continues the same order.
    """

    def __init__(self, source: PromptSource, seed: int, shuffle: bool, position: int = 0) -> None:
        self._source, self._seed, self._shuffle = source, seed, shuffle
        self._size = len(source)
        self._order: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self._order_epoch = -1
        self.position = position

    @property
    def epoch(self) -> int:
        """Completed epochs."""
        return self.position // self._size

    @property
    def size(self) -> int:
        """Prompts in the source."""
        return self._size

    def take(self) -> Prompt:
        """The next prompt."""
        prompt = self.at(self.position)
        self.position += 1
        return prompt

    def at(self, position: int) -> Prompt:
        """The prompt at a position."""
        epoch, offset = divmod(position, self._size)
        index = offset
        if self._shuffle:
            if self._order is None or epoch != self._order_epoch:
                generator = np.random.default_rng(derive_seed(self._seed, "prompts", epoch))
                self._order, self._order_epoch = generator.permutation(self._size), epoch
            index = int(self._order[offset])
        return self._source[index]
