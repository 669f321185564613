"""Workflow ``verified_solver``: solve, verify, and solve again if rejected."""

from __future__ import annotations

from collections.abc import Mapping

from astraflow_contrib_teams.config import VerifiedSolverConfig
from astraflow_contrib_teams.replies import accepted
from astraflow_contrib_teams.roles import Casting, RoleTurn, task_of, team_trajectory
from astraflow_contrib_teams.wordings import MATH_SOLVER, MATH_VERIFIER
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory

NOTHING_YET = "Nothing yet."


class VerifiedSolver:
    """The math workflow of the paper of AstraFlow (figure 5a): the verifier accepts or rejects a solution, and after a
    rejection the solver tries again with all that was said. What the team submits is the last solution; the
    last attempt is not verified, since nothing would follow. A verdict that cannot be read rejects."""

    def __init__(self, config: VerifiedSolverConfig, context: ComponentContext) -> None:
        casting = Casting("verified_solver", config.chat, context)
        self._solver = casting.role("solver", config.solver, MATH_SOLVER)
        self._verifier = casting.role("verifier", config.verifier, MATH_VERIFIER)
        casting.check_trained("solver", "verifier")
        self._attempts = config.attempts

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        task = task_of(prompt, "verified_solver")
        turns: list[RoleTurn] = []
        said: list[str] = []
        metrics = {"attempts": 0.0, "accepted": 0.0, "verdicts_unread": 0.0}
        while True:
            so_far = "\n\n".join(said) or NOTHING_YET
            solution = await self._solver.ask(engines, task_description=task, team_context=so_far)
            turns.append(solution)
            said.append(f"Solver:\n{solution.text}")
            metrics["attempts"] += 1
            if metrics["attempts"] == self._attempts:
                break
            so_far = "\n\n".join(said)
            check = await self._verifier.ask(engines, task_description=task, team_context=so_far)
            turns.append(check)
            said.append(f"Verifier:\n{check.text}")
            verdict = accepted(check.text)
            metrics["verdicts_unread"] += verdict is None
            if verdict:
                metrics["accepted"] = 1.0
                break
        return team_trajectory(turns, solution, metrics)
