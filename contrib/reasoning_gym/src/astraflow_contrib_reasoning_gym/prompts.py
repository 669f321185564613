"""Prompt source ``reasoning_gym``."""

from __future__ import annotations

import xxhash

from astraflow_contrib_reasoning_gym.config import PromptsConfig
from astraflow_contrib_reasoning_gym.datasets import dataset, entry
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt

_HELD_OUT_TENTHS = 1
_LOOKED_AT = 40
"""Items looked at per prompt wanted, before a split counts as too small."""


class ReasoningGym:
    """``size`` items of the datasets, in turn.

    ``data`` has ``prompt``, ``answer`` and ``source``, by which the reward makes the item again. A
    question's text decides its split, so the splits are disjoint whatever the seeds.
    """

    def __init__(self, config: PromptsConfig, context: ComponentContext) -> None:
        self._config = config
        self._names = sorted(config.datasets)
        for name in self._names:
            dataset(name, config.datasets[name], config.seed)
            self._item(name, 0)
        self._chosen = None if config.split == "all" else self._choose()

    def __len__(self) -> int:
        return self._config.size

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        turn, which = divmod(index, len(self._names))
        name, item = (self._names[which], turn) if self._chosen is None else self._chosen[index]
        made = self._item(name, item)
        settings, seed = self._config.datasets[name], self._config.seed
        return Prompt(
            id=f"{name}:{seed}:{item}",
            data={
                "prompt": made["question"] + self._config.suffix,
                "answer": made["answer"],
                "source": {"dataset": name, "settings": settings, "seed": seed, "index": item},
            },
        )

    def _item(self, name: str, index: int) -> dict[str, str]:
        try:
            return entry(name, self._config.datasets[name], self._config.seed, index)
        except Exception as error:
            raise PromptError(
                f"reasoning_gym dataset {name!r} cannot make item {index} with "
                f"{self._config.datasets[name]}: {error!r}"
            ) from error

    def _choose(self) -> list[tuple[str, int]]:
        wanted, chosen = self._config.split == "held_out", []
        for index in range(_LOOKED_AT * len(self)):
            turn, which = divmod(index, len(self._names))
            name = self._names[which]
            if held_out(self._item(name, turn)["question"]) == wanted:
                chosen.append((name, turn))
                if len(chosen) == len(self):
                    return chosen
        raise PromptError(
            f"prompt source 'reasoning_gym': split {self._config.split!r} has {len(chosen)} among "
            f"{_LOOKED_AT * len(self)} items of {', '.join(self._names)}, fewer than size = {len(self)}"
        )


def held_out(question: str) -> bool:
    """Whether a question belongs to the held-out tenth."""
    return xxhash.xxh3_64_intdigest(b"held out? " + question.encode()) % 10 < _HELD_OUT_TENTHS
