"""Components that the benchmarks name in configs."""

from __future__ import annotations

from typing import Any

from astraflow_core.types import ComponentContext, GroupSummary, Prompt, Verdict


class Prompts:
    """Short prompts, numbered; a source of 4096."""

    def __init__(self, config: Any, context: ComponentContext) -> None:
        del config, context

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(f"p{index}", {"prompt": str(index), "answer": str(index)})


class ManyPrompts(Prompts):
    """A source of 2,000,000."""

    def __len__(self) -> int:
        return 2_000_000


HOARDED_KB = 64


class Hoarder:
    """A data policy that leaks: it keeps ``HOARDED_KB`` for each group."""

    def __init__(self, config: None, context: ComponentContext) -> None:
        del config, context
        self._kept: list[bytearray] = []

    def accept(self, group: GroupSummary) -> Verdict:
        """Accept, and keep."""
        del group
        self._kept.append(bytearray(b"x") * (HOARDED_KB << 10))
        return Verdict(True)
