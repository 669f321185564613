"""A prompt: one item of a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One item of a prompt source.

    ``id`` is unique in its source and stable between runs. ``data`` holds JSON-like values; by
    convention ``"prompt"`` (a string, or chat messages) and ``"answer"`` (what a reward compares with).
    """

    id: str
    data: dict[str, Any] = field(default_factory=dict)
