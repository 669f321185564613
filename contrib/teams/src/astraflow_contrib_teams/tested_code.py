"""Workflow ``tested_code``: a program that fails the tests of a tester is written again."""

from __future__ import annotations

from collections.abc import Mapping

from astraflow_contrib_teams.config import TestedCodeConfig
from astraflow_contrib_teams.programs import first_failure
from astraflow_contrib_teams.replies import ProgramTest, cases_in, last_block
from astraflow_contrib_teams.roles import Casting, RoleTurn, task_of, team_trajectory
from astraflow_contrib_teams.wordings import CODE_SOLVER, CODE_TESTER
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory
from astraflow_sandbox.code_runner import CodeRunner


class TestedCode:
    """The code workflow with a test-case generator of the paper of AstraFlow (figure 5c): the tester reads the problem
    and the first program and writes tests, the program is run on them, and the solver gets the first that it fails
    and tries again. The tests stay the same for all attempts of an episode; the last one is not run, since nothing would
    follow. Tests that cannot be read are none, and the program is submitted as it is."""

    __test__ = False

    def __init__(
        self,
        config: TestedCodeConfig,
        context: ComponentContext,
        runner: CodeRunner | None = None,
    ) -> None:
        casting = Casting("tested_code", config.chat, context)
        self._solver = casting.role("solver", config.solver, CODE_SOLVER)
        self._tester = casting.role("tester", config.tester, CODE_TESTER)
        casting.check_trained("solver", "tester")
        self._attempts, self._most_tests = config.attempts, config.most_tests
        self._runner = runner or config.sandbox.runner()

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        task = task_of(prompt, "tested_code")
        program = await self._solver.ask(engines, task_description=task, feedback="")
        turns, attempts, passed = [program], 1, False
        cases: list[ProgramTest] = []
        if self._attempts > 1:
            tests = await self._tester.ask(engines, task_description=task, candidate=program.text)
            turns.append(tests)
            cases = cases_in(tests.text, self._most_tests)
        while attempts < self._attempts and cases:
            feedback = await self._feedback(program, cases)
            passed = not feedback
            if passed:
                break
            program = await self._solver.ask(engines, task_description=task, feedback=feedback)
            turns.append(program)
            attempts += 1
        metrics = {
            "attempts": float(attempts),
            "tests_read": float(len(cases)),
            "tests_passed": float(passed),
        }
        return team_trajectory(turns, program, metrics)

    async def _feedback(self, program: RoleTurn, cases: list[ProgramTest]) -> str:
        """What is wrong with the program; empty if it passes."""
        code = last_block(program.text)
        if code is None:
            return "Your last reply had no whole block of code.\n\n"
        failed = await first_failure(self._runner, code, cases)
        if failed is None:
            return ""
        return f"Your last program:\n```python\n{code.rstrip()}\n```\n\nIt fails a test.\n{failed.report}\n\n"
