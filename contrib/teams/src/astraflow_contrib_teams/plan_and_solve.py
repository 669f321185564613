"""Workflow ``plan_and_solve``: a plan, then its execution."""

from __future__ import annotations

from collections.abc import Mapping

from astraflow_contrib_teams.config import PlanAndSolveConfig
from astraflow_contrib_teams.roles import Casting, task_of, team_trajectory
from astraflow_contrib_teams.wordings import PLAN_SOLVER, PLANNER
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory


class PlanAndSolve:
    """Plan-and-solve prompting (Wang et al., ACL 2023, arXiv 2305.04091) as two turns: one role writes the plan, which
    another one carries out and may mend. The answer of the solver is the team's."""

    def __init__(self, config: PlanAndSolveConfig, context: ComponentContext) -> None:
        casting = Casting("plan_and_solve", config.chat, context)
        self._planner = casting.role("planner", config.planner, PLANNER)
        self._solver = casting.role("solver", config.solver, PLAN_SOLVER)
        casting.check_trained("planner", "solver")

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        task = task_of(prompt, "plan_and_solve")
        plan = await self._planner.ask(engines, task_description=task)
        solution = await self._solver.ask(engines, task_description=task, plan=plan.text)
        return team_trajectory([plan, solution], solution, {})
