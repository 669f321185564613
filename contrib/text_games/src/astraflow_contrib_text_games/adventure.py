"""The environment ``adventure``."""

from __future__ import annotations

import json

from astraflow_contrib_text_games.adventure_state import AdventureState
from astraflow_contrib_text_games.config import AdventureConfig
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import argument, said, tool

_GOALS = {
    "coin": "Find the coin in this house and take it.",
    "cooking": "You are hungry. Find the kitchen, read the cookbook there, and cook and eat the meal: take what it needs, cut it with "
    "the knife and fry or roast it as the cookbook says, then prepare the meal. What is cut or heated in another way is spoiled.",
}
_HOW = {
    "text": "Reply with one command in each turn; you have {turns} turns.",
    "tools": "Call the tool act with one command in each turn; you have {turns} turns.",
}
_ACT = tool(
    "act", "Do one thing.", command={"type": "string", "description": "Such as 'go north'."}
)


class Adventure:
    """A house in text after TextWorld: each point of the goal earns its share of 1, and all of them end the game."""

    def __init__(self, config: AdventureConfig, context: ComponentContext) -> None:
        self._config = config
        self._left = 0
        self._house: AdventureState

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin the level of a prompt. :class:`PromptError` if it has none."""
        try:
            self._house = AdventureState(dict(task.data["level"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PromptError(
                f"prompt {task.id!r} is not a level of the environment 'adventure': {error} is missing or wrong; the prompt source "
                "'adventure_levels' makes them"
            ) from error
        self._left = self._config.turns
        how = _HOW[self._config.actions].format(turns=self._left)
        goal = _GOALS[self._house.level["kind"]]
        return self._observation(None, f"{goal} {how}\n\n{self._house.view()}")

    async def step(self, action: Action) -> Observation:
        """Carry out a reply; an impossible action costs a turn too."""
        self._left -= 1
        before = self._house.points
        try:
            told = self._house.do(self._command(action))
        except ValueError as error:
            told = str(error)
        reward = (self._house.points - before) / self._house.most_points
        over = self._house.won or self._house.lost
        if not over and self._left > 0:
            return self._observation(action, told, reward)
        metrics = {
            "won": float(self._house.won),
            "moves": float(self._config.turns - self._left),
            "score": self._house.points / self._house.most_points,
        }
        outcome = Outcome.FINISHED if over else Outcome.TRUNCATED
        return Observation(said(action, told), reward, outcome, state=self._state, metrics=metrics)

    async def close(self) -> None:
        """There is nothing to free."""
        self._left = 0

    def _command(self, action: Action) -> str:
        if self._config.actions == "tools":
            return argument(action, {"act": "command"})[1]
        lines = action.text.strip().splitlines()
        return lines[-1].removeprefix(">") if lines else ""

    @property
    def _state(self) -> str:
        return json.dumps([self._house.state, self._left])

    def _observation(self, action: Action | None, text: str, reward: float = 0.0) -> Observation:
        if self._config.show_actions:
            text += f"\nPossible: {', '.join(self._house.possible())}"
        tools = (_ACT,) if self._config.actions == "tools" else ()
        return Observation(said(action, text), reward, tools=tools, state=self._state)
