"""Prompt source ``reasoning_gym``."""

from __future__ import annotations

import json
from dataclasses import asdict

import xxhash

from astraflow_contrib_reasoning_gym.config import PromptsConfig
from astraflow_contrib_reasoning_gym.datasets import Dataset, entry
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

_HELD_OUT_TENTHS = 1
_LOOKED_AT = 40
"""Items looked at per prompt wanted, before a split counts as too small."""


class ReasoningGym:
    """``size`` items of the datasets, in turn.

    ``data`` has ``prompt``, ``answer``, ``source`` and ``index``; by these two the reward makes the item
    again. A
    question's text decides its split, so the splits are disjoint whatever the seeds.
    """

    def __init__(self, config: PromptsConfig, context: ComponentContext) -> None:
        self._config = config
        items = config.size if config.split == "all" else config.size * _LOOKED_AT
        self._sources = [
            Dataset(name, json.dumps(settings, sort_keys=True), config.seed, items)
            for name, settings in sorted(config.datasets.items())
        ]
        for source in self._sources:
            self._item(source, 0)
        self._chosen = None if config.split == "all" else self._choose()

    def __len__(self) -> int:
        return self._config.size

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        source, item = self._in_turn(index) if self._chosen is None else self._chosen[index]
        made = self._item(source, item)
        return Prompt(
            id=f"{source.name}:{source.seed}:{item}",
            data={
                "prompt": made["question"] + self._config.suffix,
                "answer": made["answer"],
                "source": asdict(source),
                "index": item,
            },
        )

    def _in_turn(self, index: int) -> tuple[Dataset, int]:
        item, which = divmod(index, len(self._sources))
        return self._sources[which], item

    def _item(self, source: Dataset, index: int) -> dict[str, str]:
        try:
            return entry(source, index)
        except PromptError:
            raise
        except Exception as error:
            raise PromptError(
                f"reasoning_gym dataset {source.name!r} cannot make item {index} with "
                f"{source.settings}: {error!r}"
            ) from error

    def _choose(self) -> list[tuple[Dataset, int]]:
        wanted, chosen = self._config.split == "held_out", []
        looked_at = _LOOKED_AT * len(self)
        for index in range(looked_at):
            source, item = self._in_turn(index)
            if held_out(self._item(source, item)["question"]) == wanted:
                chosen.append((source, item))
                if len(chosen) == len(self):
                    return chosen
        raise PromptError(
            f"prompt source 'reasoning_gym': split {self._config.split!r} has {len(chosen)} among "
            f"{looked_at} items of {', '.join(s.name for s in self._sources)}, fewer than size = "
            f"{len(self)}"
        )


def held_out(question: str) -> bool:
    """Whether a question belongs to the held-out tenth."""
    return xxhash.xxh3_64_intdigest(b"held out? " + question.encode()) % 10 < _HELD_OUT_TENTHS
