from __future__ import annotations

from typing import Any, ClassVar

import pytest
from prints_only import PrintsOnly

from astraflow_contrib_teams.config import HiddenTestsConfig, RoleTable, TestedCodeConfig
from astraflow_contrib_teams.hidden_tests import HiddenTests
from astraflow_contrib_teams.tested_code import TestedCode
from astraflow_core.types import ComponentContext, Prompt
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance
from astraflow_testing.scripted_policies import Answer, Says, answer

SHARED = {"policy": "solver"}
OTHER = {"policy": "verifier"}


class TeamConformance(WorkflowConformance):
    """Each team with a policy that plays two roles, or with one for each."""

    name = ""
    keys: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def component(self) -> Subject:
        return installed("workflow", self.name, self.keys)


@pytest.mark.slow
class TestVerifiedSolver(TeamConformance):
    name = "verified_solver"
    keys: ClassVar[dict[str, Any]] = {"attempts": 3}

    @pytest.fixture
    def says(self) -> Says:
        def said(policy: str, text: str) -> Answer:
            verdict = "REJECT" if "3 + 3" in text else "ACCEPT"
            return f"{answer(policy, text)!s:.12} VERDICT: {verdict}"

        return said


@pytest.mark.slow
class TestSelectedCode(TeamConformance):
    name = "selected_code"
    keys: ClassVar[dict[str, Any]] = {"candidates": 3, "selector": OTHER, "chat": False}


@pytest.mark.slow
class TestTestedCode(WorkflowConformance):
    @pytest.fixture
    def component(self) -> Subject:
        def factory(context: ComponentContext) -> TestedCode:
            config = TestedCodeConfig(attempts=3, tester=RoleTable(policy="verifier"))
            return TestedCode(config, context, PrintsOnly())

        return Subject({"tested_code": factory}, frozenset({"multi_policy"}))

    @pytest.fixture
    def says(self) -> Says:
        def said(policy: str, text: str) -> Answer:
            if "small tests" in text:
                return '[{"input": "", "output": "1"}]'
            return "```\nprint(1)```" if "fails a test" in text else "```\nprint(2)```"

        return said


class TestPlanAndSolve(TeamConformance):
    name = "plan_and_solve"
    keys: ClassVar[dict[str, Any]] = {"planner": OTHER}


@pytest.mark.slow
class TestRecursive(TeamConformance):
    name = "recursive"
    keys: ClassVar[dict[str, Any]] = {"depth": 2, "width": 2, "agent": SHARED, "merger": OTHER}

    @pytest.fixture
    def says(self) -> Says:
        def said(policy: str, text: str) -> Answer:
            divides = "divide it into" in text and "What is" in text
            return "<subtask>7</subtask><subtask>12</subtask>" if divides else answer(policy, text)

        return said


class TestSelfPlay(WorkflowConformance):
    @pytest.fixture
    def frozen(self) -> tuple[str, ...]:
        return ("opponent",)

    @pytest.fixture
    def component(self) -> Subject:
        return installed("workflow", "self_play", {"player": SHARED, "judge": OTHER})


class TestHiddenTests(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        def factory(context: ComponentContext) -> HiddenTests:
            return HiddenTests(HiddenTestsConfig(tests_key="cases"), context, PrintsOnly())

        return Subject({"hidden_tests": factory}, frozenset())

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        return [
            Prompt(
                f"prompt-{n}", {"prompt": f"Print {n}.", "cases": [{"input": "", "output": str(n)}]}
            )
            for n in (3, 40)
        ]

    @pytest.fixture
    def right(self) -> object:
        return lambda prompt: f"```python\nprint({prompt.data['cases'][0]['output']})\n```"
