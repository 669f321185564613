"""Prompt source ``arrivals``: the episodes bring their own prompts, so that these only have numbers."""

from __future__ import annotations

from astraflow_contrib_online.config import ArrivalsConfig
from astraflow_core.types import ComponentContext, Prompt


class ArrivalPrompts:
    """``size`` prompts without data."""

    def __init__(self, config: ArrivalsConfig, context: ComponentContext) -> None:
        self._size = config.size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < self._size:
            raise IndexError(f"prompt {index} of {self._size}")
        return Prompt(f"arrival-{index}", {})
