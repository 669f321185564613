"""PromptSource: an indexed, finite, immutable set of prompts."""

from __future__ import annotations

from typing import Protocol

from astraflow_core.types import Prompt


class PromptSource(Protocol):
    """Built as ``factory(config, context)``; the same config gives the same prompts on every machine.

    The core reads it by a cursor (shuffled per epoch with the run's seed if configured), so
    a position in the data is one integer.
    """

    def __len__(self) -> int:
        """Number of prompts, at least 1."""

    def __getitem__(self, index: int) -> Prompt:
        """The prompt at ``0 <= index < len``; always the same. :class:`IndexError` from ``len`` on."""
