"""Datasets of reasoning-gym by name, settings and seed."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from astraflow_core.errors import PromptError

_ITEMS = 1_000_000_000
"""The size given to every dataset: items depend on seed and index only, so none is made in advance."""


def dataset(name: str, settings: dict[str, Any], seed: int) -> Any:
    """The dataset; :class:`PromptError` names one that is unknown or refuses its settings."""
    return _dataset(name, json.dumps(settings, sort_keys=True), seed)


@lru_cache(64)
def _dataset(name: str, settings: str, seed: int) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise PromptError(
            f"prompt source 'reasoning_gym' cannot import reasoning_gym ({error}): "
            "pip install 'astraflow-contrib-reasoning-gym[runtime]'"
        ) from error
    if name not in DATASETS:
        import difflib

        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(DATASETS)} others"
        raise PromptError(f"reasoning_gym has no dataset {name!r}; {hint}")
    try:
        return reasoning_gym.create_dataset(name, size=_ITEMS, seed=seed, **json.loads(settings))
    except (TypeError, ValueError, AssertionError) as error:
        raise PromptError(
            f"reasoning_gym dataset {name!r} refuses its settings {settings}: {error}"
        ) from error


@lru_cache(1024)
def _entry(name: str, settings: str, seed: int, index: int) -> dict[str, Any]:
    made: dict[str, Any] = _dataset(name, settings, seed)[index]
    return made


def entry(name: str, settings: dict[str, Any], seed: int, index: int) -> dict[str, Any]:
    """Item ``index``: ``question``, ``answer`` and ``metadata``; the same on every machine."""
    return _entry(name, json.dumps(settings, sort_keys=True), seed, index)
