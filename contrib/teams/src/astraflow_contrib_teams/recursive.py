"""Workflow ``recursive``: a task is divided among sub-agents, which may divide theirs in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow_contrib_teams.config import RecursiveConfig
from astraflow_contrib_teams.replies import subtasks
from astraflow_contrib_teams.roles import Casting, RoleTurn, task_of, team_trajectory
from astraflow_contrib_teams.wordings import AGENT, MERGER, PART_SOLVER
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory


@dataclass(frozen=True, slots=True)
class Solved:
    """A task and all turns below it, in the order of the parts; ``final`` has its answer."""

    turns: tuple[RoleTurn, ...]
    final: RoleTurn
    depth: int


class Recursive:
    """An agent answers its task or divides it; the parts are given to sub-agents that work at once and may divide
    theirs, ``depth`` times in all and into ``width`` parts at most; a merger makes one answer of theirs. All of them
    share the reward of that answer."""

    def __init__(self, config: RecursiveConfig, context: ComponentContext) -> None:
        casting = Casting("recursive", config.chat, context)
        self._agent = casting.role("agent", config.agent, AGENT)
        self._solver = casting.role("solver", config.solver, PART_SOLVER)
        self._merger = casting.role("merger", config.merger, MERGER)
        casting.check_trained("agent", "solver", "merger")
        self._depth, self._width = config.depth, config.width

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        solved = await self._solve(engines, task_of(prompt, "recursive"), self._depth)
        metrics = {"turns": float(len(solved.turns)), "depth": float(solved.depth)}
        return team_trajectory(solved.turns, solved.final, metrics)

    async def _solve(self, engines: Mapping[str, PolicyEngine], task: str, depth: int) -> Solved:
        if not depth:
            answer = await self._solver.ask(engines, task_description=task)
            return Solved((answer,), answer, 0)
        opening = await self._agent.ask(engines, task_description=task, width=str(self._width))
        parts = subtasks(opening.text, self._width)
        if not parts:
            return Solved((opening,), opening, 0)
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(self._solve(engines, part, depth - 1)) for part in parts]
        below = [each.result() for each in working]
        results = "\n\n".join(
            f"Part: {part}\nAnswer: {solved.final.text}"
            for part, solved in zip(parts, below, strict=True)
        )
        answer = await self._merger.ask(engines, task_description=task, results=results)
        turns = [opening, *(turn for solved in below for turn in solved.turns), answer]
        return Solved(tuple(turns), answer, 1 + max(solved.depth for solved in below))
