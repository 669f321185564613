"""The prompt source ``sample_thing``."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.types import ComponentContext, Prompt


class SampleThingConfig(ConfigModel):
    """``[prompts] use = "sample_thing"``"""

    below: PositiveInt = Field(20, description="Both numbers are below it.")


class SampleThing:
    """All sums of two numbers: the index alone determines the prompt."""

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._below = config.below

    def __len__(self) -> int:
        return self._below**2

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} prompts")
        first, second = divmod(index, self._below)
        text = f"{first}+{second}="
        return Prompt(text, {"prompt": text, "answer": str(first + second)})
