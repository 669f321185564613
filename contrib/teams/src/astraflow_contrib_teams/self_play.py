"""Workflow ``self_play``: a policy against an older version of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from astraflow_contrib_teams.config import SelfPlayConfig
from astraflow_contrib_teams.replies import choice
from astraflow_contrib_teams.roles import Casting, task_of
from astraflow_contrib_teams.wordings import JUDGE, PLAYER
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory

UNDECIDED = 0.5


class SelfPlay:
    """Player and opponent answer the same prompt; the judge compares the answers twice, in both orders, so that the place
    of an answer earns nothing. The player's reward is the mean of both: 1 where the judge prefers its answer, 0 where it
    prefers the other, 0.5 where the judge cannot be read. Only the player's turn is trained, also where one
    policy plays several roles."""

    def __init__(self, config: SelfPlayConfig, context: ComponentContext) -> None:
        casting = Casting("self_play", config.chat, context)
        self._player = casting.role("player", config.player, PLAYER)
        self._opponent = casting.role("opponent", config.opponent, PLAYER)
        self._judge = casting.role("judge", config.judge, JUDGE)
        casting.check_trained("player")
        if self._opponent.policy == self._player.policy:
            raise PreflightError(
                f"workflow 'self_play': {self._player.policy!r} would play against its newest version; give the run an older "
                f'version of it, [engines.opponent] with follows = "{self._player.policy}", or name another in '
                "workflow.opponent.policy"
            )

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        task = task_of(prompt, "self_play")
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(self._player.ask(engines, task_description=task))
            opposing = group.create_task(self._opponent.ask(engines, task_description=task))
        mine, theirs = playing.result(), opposing.result()
        async with asyncio.TaskGroup() as group:
            judging = [
                group.create_task(self._preference(engines, task, (mine.text, theirs.text))),
                group.create_task(self._preference(engines, task, (theirs.text, mine.text))),
            ]
        first, second = (each.result() for each in judging)
        reward = (first + 1.0 - second) / 2
        return Trajectory(
            sequences=(replace(mine.sequence, reward=reward),),
            completions=(mine.completion,),
            metrics={"wins": float(reward > UNDECIDED), "losses": float(reward < UNDECIDED)},
        )

    async def _preference(
        self, engines: Mapping[str, PolicyEngine], task: str, answers: tuple[str, str]
    ) -> float:
        """How much the judge prefers the first answer."""
        shown = "\n\n".join(f"Answer {n}:\n{text}" for n, text in enumerate(answers, 1))
        judgement = await self._judge.ask(engines, task_description=task, answers=shown)
        chosen = choice(judgement.text, len(answers))
        return UNDECIDED if chosen is None else 1.0 - chosen
