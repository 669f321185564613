"""Workflow ``selected_code``: several programs, of which a selector submits one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from astraflow_contrib_teams.config import SelectedCodeConfig
from astraflow_contrib_teams.replies import choice, last_block
from astraflow_contrib_teams.roles import Casting, RoleTurn, task_of, team_trajectory
from astraflow_contrib_teams.wordings import CODE_SELECTOR, CODE_SOLVER
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory


class SelectedCode:
    """The code workflow with a selector of the paper of AstraFlow (figure 5b): the solver answers the same prompt
    ``candidates`` times, the selector reads the programs and names one. A choice that cannot be read takes the
    first."""

    def __init__(self, config: SelectedCodeConfig, context: ComponentContext) -> None:
        casting = Casting("selected_code", config.chat, context)
        self._solver = casting.role("solver", config.solver, CODE_SOLVER)
        self._selector = casting.role("selector", config.selector, CODE_SELECTOR)
        casting.check_trained("solver", "selector")
        self._candidates = config.candidates

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        task = task_of(prompt, "selected_code")
        async with asyncio.TaskGroup() as group:
            writing = [
                group.create_task(self._solver.ask(engines, task_description=task, feedback=""))
                for _ in range(self._candidates)
            ]
        programs = [each.result() for each in writing]
        shown = "\n\n".join(
            f"Candidate {number}:\n{_shown(program)}" for number, program in enumerate(programs, 1)
        )
        selection = await self._selector.ask(engines, task_description=task, candidates=shown)
        chosen = choice(selection.text, self._candidates)
        metrics = {"chosen": float((chosen or 0) + 1), "choices_unread": float(chosen is None)}
        return team_trajectory([*programs, selection], programs[chosen or 0], metrics)


def _shown(program: RoleTurn) -> str:
    """The program alone; the whole reply where none is in it."""
    code = last_block(program.text)
    return program.text if code is None else f"```python\n{code.rstrip()}\n```"
