"""The environment ``household``."""

from __future__ import annotations

import json
import re

from astraflow_contrib_household.config import HouseholdConfig, TaskKind
from astraflow_contrib_household.demonstrations import demonstrated_turns, demonstration
from astraflow_contrib_household.room import Room
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import Messages, argument, said, tool

_RULES = {
    "text": "You act in a household to solve a task. You are told what you see, and in each turn you think, and then do one "
    "thing. Reply in this form: THOUGHT: your thoughts. ACTION: your next action\n"
    "If the reply is 'Nothing happens', the action was not possible: try another one. You have {turns} turns.",
    "tools": "You act in a household to solve a task. You are told what you see, and in each turn you call the tool act with one "
    "command.\nIf the reply is 'Nothing happens', it was not possible: try another one. You have {turns} turns.",
}
_ACT = tool(
    "act", "Do one thing.", command={"type": "string", "description": "Such as 'go to shelf 1'."}
)
_ACTION = re.compile(r"\bACTION:[ \t]*([^\n]*)", re.IGNORECASE)


class Household:
    """A room in which commands change things, until its task is solved or the turns are used up."""

    def __init__(self, config: HouseholdConfig, context: ComponentContext) -> None:
        self._config = config
        self._left = 0
        self._room: Room

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin the level of a prompt: instructions, a demonstration, and 'Here is your task.' as AlfWorld's agents are
        prompted (AstraFlow's paper, appendix 6.10). :class:`PromptError` for a prompt without a level."""
        try:
            self._room = Room(dict(task.data["level"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PromptError(
                f"prompt {task.id!r} is not a task of the environment 'household': {error} is missing or wrong; the prompt source "
                "'household_tasks' makes them"
            ) from error
        self._left = self._config.turns
        kind = self._room.level["kind"]
        rules = _RULES[self._config.actions].format(turns=self._left)
        asked = f"Here is your task. {self._room.beginning}"
        if not self._config.demonstration:
            return self._observation(None, f"{rules}\n\n{asked}")
        if self._config.demonstrated == "turns":
            return self._observation(None, asked, _conversation(rules, kind))
        shown = f"Here is an example.\n{demonstration(kind)}"
        return self._observation(None, f"{rules}\n\n{shown}\n\n{asked}")

    async def step(self, action: Action) -> Observation:
        """Do what a reply says; what means nothing costs a turn as well."""
        self._left -= 1
        try:
            told = self._room.do(self._command(action))
        except ValueError as error:
            told = str(error)
        won = self._room.solved
        if won or self._left == 0:
            outcome = Outcome.FINISHED if won else Outcome.TRUNCATED
            metrics = {"won": float(won), "moves": float(self._config.turns - self._left)}
            return Observation((), float(won), outcome, state=self._state, metrics=metrics)
        return self._observation(action, told)

    async def close(self) -> None:
        """There is nothing to free."""
        self._left = 0

    def _command(self, action: Action) -> str:
        if self._config.actions == "tools":
            return argument(action, {"act": "command"})[1]
        found = _ACTION.findall(action.text)
        lines = action.text.strip().splitlines()
        return str(found[-1] if found else lines[-1] if lines else "")

    @property
    def _state(self) -> str:
        return json.dumps([self._room.state, self._left])

    def _observation(self, action: Action | None, text: str, before: Messages = ()) -> Observation:
        if self._config.show_actions:
            text += f"\nAVAILABLE ACTIONS: {', '.join(self._room.possible())}"
        tools = (_ACT,) if self._config.actions == "tools" else ()
        return Observation((*before, *said(action, text)), tools=tools, state=self._state)


def _conversation(rules: str, kind: TaskKind) -> Messages:
    """The instructions, and a solved task as the turns of a player who follows them."""
    beginning, turns = demonstrated_turns(kind)
    messages = [
        {"role": "user", "content": rules},
        {"role": "assistant", "content": "OK."},
        {"role": "user", "content": beginning},
    ]
    for number, (reply, told) in enumerate(turns):
        messages.append({"role": "assistant", "content": reply})
        if number + 1 < len(turns):
            messages.append({"role": "user", "content": told})
    return tuple(messages)
