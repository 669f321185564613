"""Prompt source ``split``: the part of another source that is trained on, or the part that is held out."""

from __future__ import annotations

from array import array

from astraflow_contrib_prompts.config import SplitConfig
from astraflow_contrib_prompts.texts import normalised, text_hash
from astraflow_core.component import Kind
from astraflow_core.errors import PromptError
from astraflow_core.nested import build_component
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import ComponentContext, Prompt


class Split:
    """The text of a prompt alone decides where it belongs, so that prompts keep their part when others are added, left out
    or put in another order, and equal ones are always in one part."""

    def __init__(self, config: SplitConfig, context: ComponentContext) -> None:
        self._source: PromptSource = build_component(Kind.PROMPT_SOURCE, config.source, context)
        below = int(config.share * 2**64)
        wanted = config.split == "held_out"
        self._chosen = array(
            "Q",
            (
                index
                for index in range(len(self._source))
                if (text_hash(normalised(self._source[index]), config.salt) < below) == wanted
            ),
        )
        if not self._chosen:
            raise PromptError(
                f"prompt source 'split': none of {len(self._source)} prompts is in the part {config.split!r} with share = "
                f"{config.share:g}; give it more prompts or another share"
            )

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._source[self._chosen[index]]
