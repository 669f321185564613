from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from astraflow_core.types import Prompt
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance
from astraflow_testing.scripted_policies import Says

CALL = '<tool_call>{"name":"take","arguments":{}}'
DEBATE = {"use": "played_environments:Debate"}


class TestEnvironment(WorkflowConformance):
    own_tests: ClassVar = {"tools": "test_a_tool_of_the_environment_is_called"}

    @pytest.fixture
    def policies(self) -> tuple[str, ...]:
        return ("p",)

    @pytest.fixture
    def says(self) -> Says:
        return lambda policy, text: CALL if "<tools>" in text else "right"

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        levels = [{"squares": 5, "player": 0, "key": 1, "door": n, "turns": 3} for n in (2, 3, 4)]
        return [Prompt(f"level-{at}", {"level": level}) for at, level in enumerate(levels)]

    @pytest.fixture
    def component(self) -> Subject:
        text, tools = ({"use": "key_door", "actions": each} for each in ("text", "tools"))
        return installed("workflow", "environment", {"environment": text}, {"environment": tools})

    def test_a_tool_of_the_environment_is_called(
        self, build: Any, scripted: Any, prompts: list[Prompt]
    ) -> None:
        *_, (_, workflow) = build()
        on = scripted()
        asyncio.run(workflow.run_episode(on.engines(), prompts[0]))
        assert "There is no key here" in on.asked[1].text


class TestTeam(WorkflowConformance):
    own_tests: ClassVar = {"tools": "test_roles_without_tools_see_no_tools"}

    @pytest.fixture
    def component(self) -> Subject:
        roles = {"pro": "solver", "con": "verifier"}
        keys = {"environment": DEBATE, "roles": roles}
        return installed("workflow", "team", {**keys, "policy": "solver"})

    def test_roles_without_tools_see_no_tools(
        self, build: Any, scripted: Any, prompts: list[Prompt]
    ) -> None:
        ((_, workflow),) = build()
        on = scripted()
        asyncio.run(workflow.run_episode(on.engines(), prompts[0]))
        assert not any("<tools>" in each.text for each in on.asked)
