"""A stand-in for TextWorld, which has an interpreter of its own: what a game may do that none of the real ones does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BANNER = "  ____\n | $$ \\\n\n"
STATUS = "\n\n>" + " " * 90 + "-= Attic =-0/1"
OURS = ("environment", "game")


class StandInGame:
    """Two points, for ``take coin`` and ``open box``; what it does else is in its name."""

    def __init__(self, path: str) -> None:
        self.does = path.rpartition("/")[2].removesuffix(".z8")
        self.said: list[str] = []
        self.seeds: list[int] = []
        self.closed = False

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> Any:
        self.score = 0
        self.said.clear()
        return self._state(f"{BANNER}Find the coin.\n\n\n-= Attic =-\nIt is dark.{STATUS}")

    def step(self, command: str) -> tuple[Any, int, bool]:
        self.said.append(command)
        self.score += command in ("take coin", "open box")
        lost = command == "eat coin"
        return self._state(f"\nYou {command}.\n\n\n{STATUS}", lost), self.score, False

    def close(self) -> None:
        self.closed = True

    def _state(self, feedback: str, lost: bool = False) -> Any:
        return SimpleNamespace(
            feedback=None if self.does == "silent" else feedback,
            score="many" if self.does == "uncounted" and self.said else self.score,
            max_score=None if self.does == "endless" else 2,
            won=self.score == 2,
            lost=lost,
            verbs=["take", "open", "eat"],
            admissible_commands=["open box", "take coin"],
        )


@pytest.fixture
def games(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandInGame]]:
    """The games that were begun, in order."""
    begun: list[StandInGame] = []

    def start(path: str, infos: Any) -> StandInGame:
        if path.endswith("broken.z8"):
            raise ValueError("no story file")
        begun.append(StandInGame(path))
        return begun[-1]

    module = ModuleType("textworld")
    module.EnvInfos = SimpleNamespace  # type: ignore[attr-defined]
    module.start = start  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "textworld", module)
    names = [f"astraflow_contrib_textworld.{name}" for name in OURS]
    kept = {name: sys.modules.pop(name, None) for name in names}
    yield begun
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update({name: module for name, module in kept.items() if module is not None})
