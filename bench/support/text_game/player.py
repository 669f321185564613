"""Plays a text game: each turn is a separate sequence, the description of the state and one token for the move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import Action, ComponentContext, Prompt, Sequence, Trajectory
from astraflow_environments.building import ChosenEnvironment


class Player:
    """The model sees the state alone and not what came before. Rewards and states of the environment become those of
    turns; their sum is the reward that the turns of a game share."""

    capabilities = frozenset({"multi_turn"})

    def __init__(self, config: None, context: ComponentContext) -> None:
        self._game = ChosenEnvironment.of({"use": "key_door", "wording": "terse"}, context)
        self._policy, self._seats = context.run.policies[0], count()

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """One game."""
        engine = engines[self._policy].session()
        one = replace(engine.sampling, max_tokens=1)
        game, _ = self._game.build(next(self._seats))
        seen = await game.reset(prompt, 0)
        turns: list[Sequence] = []
        earned = 0.0
        while seen.outcome is None:
            told = engine.tokenizer.encode("".join(each["content"] for each in seen.messages))
            result = await engine.generate(told, one)
            turn = engine.sequence(told, result)
            last, state = len(turn.tokens) - 1, seen.state
            seen = await game.step(Action(engine.completion(result).text))
            turns.append(replace(turn, turn_rewards={last: seen.reward}, turn_states={last: state}))
            earned += seen.reward
        await game.close()
        return Trajectory(tuple(turns), rewards={self._policy: earned}, metrics=dict(seen.metrics))
