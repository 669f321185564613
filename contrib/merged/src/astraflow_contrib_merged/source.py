"""Prompt source ``merged``: several prompt sources as one."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from astraflow_contrib_merged.config import MergedConfig
from astraflow_core.component import Kind
from astraflow_core.errors import PromptError
from astraflow_core.nested import build_component
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import ComponentContext, Prompt


class Merged:
    """The prompts of all sources, one source after the other; shuffling mixes them, and a data policy may by
    weights. ``data["source"]`` says which a prompt is from, and its id begins with that."""

    def __init__(self, config: MergedConfig, context: ComponentContext) -> None:
        self._names = list(config.sources)
        self._sources: list[PromptSource] = []
        for name, keys in config.sources.items():
            source: PromptSource = build_component(Kind.PROMPT_SOURCE, keys, context)
            if len(source) < 1:
                raise PromptError(f"prompt source 'merged': source {name!r} has no prompts")
            self._sources.append(source)
        self._ends = list(accumulate(len(source) for source in self._sources))

    def __len__(self) -> int:
        """Prompts of all sources."""
        return self._ends[-1]

    def __getitem__(self, index: int) -> Prompt:
        """The prompt at ``0 <= index < len``."""
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        which = bisect_right(self._ends, index)
        begin = self._ends[which - 1] if which else 0
        prompt, name = self._sources[which][index - begin], self._names[which]
        return Prompt(f"{name}/{prompt.id}", {**prompt.data, "source": name})
