"""What both games share: whole episodes of moves, as text or as calls of tools."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from astraflow_contrib_text_games.config import GameConfig
from astraflow_core.errors import UserError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import Messages, said


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What a move led to: a ``text``, the ``progress`` that it made (all of an episode that is won adds up to 1), and
    whether the game is over."""

    text: str
    progress: float = 0.0
    over: bool = False


class TextGame(ABC):
    """A game of one player. Nothing in it is drawn: the level is the data of the prompt, and decides all."""

    tools: ClassVar[tuple[dict[str, Any], ...]]

    def __init__(self, config: GameConfig, context: ComponentContext) -> None:
        self._config = config
        self.turns = self.left = 0

    @abstractmethod
    def begin(self, level: Mapping[str, int]) -> str:
        """Set the level up; how the game is explained. :class:`KeyError` for a number that it lacks."""

    @abstractmethod
    def move(self, word: str) -> MoveResult:
        """Make the move of a word, in lower case."""

    @abstractmethod
    def called(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The word of a tool call. :class:`KeyError` or :class:`ValueError` if it is none."""

    @property
    @abstractmethod
    def state(self) -> str:
        """All that decides what can follow, but for the turns that are left."""

    @property
    def terse(self) -> bool:
        """Whether observations show the state only."""
        return self._config.wording == "terse"

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin the level of a prompt."""
        level = task.data.get("level")
        try:
            if not isinstance(level, Mapping):
                raise KeyError("level")
            self.turns = self.left = int(level["turns"])
            text = self.begin(level)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"prompt {task.id!r} is not a level of this game: {error} is missing or wrong; the prompt source "
                "'game_levels' makes levels"
            ) from error
        return self._observation(said(None, text))

    async def step(self, action: Action) -> Observation:
        """Make a move; an invalid one costs a turn too."""
        self.left -= 1
        told = self._play(action)
        won = told.over
        outcome = Outcome.FINISHED if won else Outcome.TRUNCATED if self.left == 0 else None
        text = told.text if self.terse or outcome else f"{told.text} Turns left: {self.left}."
        reward = told.progress if self._config.step_rewards else float(won)
        return self._observation(said(action, text), reward, outcome)

    async def close(self) -> None:
        """The episode is over; there is nothing to free."""
        self.left = 0

    def _play(self, action: Action) -> MoveResult:
        if self._config.actions == "text":
            words = action.text.lower().replace(".", " ").split()
            return self.move(words[-1] if words else "")
        if not action.calls:
            return MoveResult("Call a tool.")
        call = action.calls[0]
        try:
            if not isinstance(call.arguments, dict):
                raise ValueError("arguments are not a JSON object")
            return self.move(self.called(call.name, call.arguments))
        except (KeyError, ValueError) as error:
            return MoveResult(f"No such call of {call.name!r}: {error}.")

    def _observation(
        self,
        messages: Messages,
        reward: float = 0.0,
        outcome: Outcome | None = None,
    ) -> Observation:
        won = outcome is Outcome.FINISHED
        return Observation(
            messages,
            reward,
            outcome,
            self.tools if self._config.actions == "tools" else (),
            state=json.dumps([self.state, self.left]),
            metrics={}
            if outcome is None
            else {"won": float(won), "moves": float(self.turns - self.left)},
        )


def halvings(count: int) -> int:
    """The guesses with which halving finds one of ``count`` numbers for certain."""
    return math.floor(math.log2(count)) + 1
