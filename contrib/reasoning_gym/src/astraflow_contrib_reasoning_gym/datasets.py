"""Datasets of reasoning-gym by name, settings and seed."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from astraflow_core.errors import PromptError


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset: its name in reasoning-gym, its settings as sorted JSON, its seed and its items."""

    name: str
    settings: str
    seed: int
    size: int


@lru_cache(64)
def dataset(source: Dataset) -> Any:
    """The dataset; :class:`PromptError` names one that is unknown or refuses its settings."""
    name = source.name
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise PromptError(
            f"prompt source 'reasoning_gym' cannot import reasoning_gym ({error}): "
            "pip install 'astraflow-contrib-reasoning-gym[runtime]'"
        ) from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(DATASETS)} others"
        raise PromptError(f"reasoning_gym has no dataset {name!r}; {hint}")
    try:
        return reasoning_gym.create_dataset(
            name, size=source.size, seed=source.seed, **json.loads(source.settings)
        )
    except (TypeError, ValueError, AssertionError) as error:
        raise PromptError(
            f"reasoning_gym dataset {name!r} refuses its settings {source.settings} with size "
            f"{source.size}: {error}"
        ) from error


@lru_cache(1024)
def entry(source: Dataset, index: int) -> dict[str, Any]:
    """Item ``index``: ``question``, ``answer`` and ``metadata``; the same on every machine."""
    made: dict[str, Any] = dataset(source)[index]
    return made
