"""One episode: the environment says who acts next, that conversation is continued, and rewards go to the turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from astraflow_core.errors import PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_environments.pool import EpisodeEnvironment
from astraflow_gateway.chat.messages import ToolCall
from astraflow_gateway.conversation import Conversation, ModelTurn, NoMoreTurns


@dataclass
class Play:
    """What an episode came to: role → conversation, role → reward, and the figures of the environment."""

    begin: Callable[[str], Conversation]
    discount: float
    chats: dict[str, Conversation] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    async def play(self, environment: EpisodeEnvironment, prompt: Prompt, seed: int) -> None:
        """Until the environment is over, or no more can be asked. Its failure is that of the episode."""
        observation = await environment.reset(prompt, seed)
        self.metrics.update(observation.metrics)
        while observation.outcome is None:
            role = observation.role
            try:
                turn = await self._turn(observation)
            except NoMoreTurns as cut:
                if not self.turns:
                    raise PromptError(
                        f"prompt {prompt.id!r} leaves no room for a reply: {cut}"
                    ) from cut
                self.metrics[f"cut_by_{cut.reason}"] = 1.0
                break
            observation = await environment.step(_action(turn, role))
            self.metrics.update(observation.metrics)
            self._credit(role, observation.reward)
        self.metrics["finished"] = float(observation.outcome is Outcome.FINISHED)
        self.metrics["turns"] = float(self.turns)

    @property
    def turns(self) -> int:
        """Those of all roles."""
        return sum(len(chat.turns) for chat in self.chats.values())

    async def _turn(self, observation: Observation) -> ModelTurn:
        chat = self.chats.get(observation.role)
        if chat is None:
            chat = self.chats[observation.role] = self.begin(observation.role)
        chat.append(*map(dict, observation.messages))
        chat.tools = observation.tools
        turn = await chat.reply()
        chat.reward(turn, 0.0)
        if observation.state is not None:
            chat.met(turn, observation.state)
        return turn

    def _credit(self, actor: str, earned: float | Mapping[str, float]) -> None:
        """A role that did not act last is rewarded for the last turn that it took."""
        rewards = earned if isinstance(earned, Mapping) else {actor: earned}
        for role, reward in rewards.items():
            chat = self.chats.get(role)
            before = max(0, len(chat.turns) - 1) if chat else 0
            if chat is not None and chat.turns:
                chat.reward(chat.turns[-1], reward)
            sum_before = self.rewards.get(role, 0.0)
            self.rewards[role] = sum_before + float(reward) * self.discount**before


def _action(turn: ModelTurn, role: str) -> Action:
    calls = tuple(_call(call) for call in turn.reply.tool_calls)
    return Action(turn.reply.content, calls, role, turn.finish == "length")


def _call(call: ToolCall) -> FunctionCall:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = call.arguments
    return FunctionCall(
        call.id, call.name, arguments if isinstance(arguments, dict) else call.arguments
    )
