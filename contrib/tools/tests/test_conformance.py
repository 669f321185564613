from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.types import Prompt
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance
from astraflow_testing.scripted_policies import Says, answer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.turns(
        "contrib/tools/src/**/*.py",
        "contrib/tools/tests/offered_functions.py",
        "libs/gateway/src/**/*.py",
        "libs/wire/src/astraflow_wire/host/*.py",
        "testing/src/astraflow_testing/conformance/workflow.py",
        "testing/src/astraflow_testing/conformance/_workflows/*.py",
        "testing/src/astraflow_testing/scripted_policies.py",
    ),
]

HERE = str(Path(__file__).parent)
CALL = '<tool_call>{"name":"add","arguments":{"a":1}}'


class TestTools(WorkflowConformance):
    own_tests: ClassVar = {"tools": "test_the_result_of_a_tool_is_shown"}

    @pytest.fixture
    def policies(self) -> tuple[str, ...]:
        return ("p",)

    @pytest.fixture
    def says(self) -> Says:
        """Calls a tool, and answers when it has the result."""
        return lambda policy, text: answer(policy, text) if "<tool_response>" in text else CALL

    @pytest.fixture
    def component(self) -> Subject:
        keys = {"functions": ["offered_functions:add"], "folder": HERE}
        return installed("workflow", "tools", keys)

    def test_the_result_of_a_tool_is_shown(
        self, build: Any, scripted: Any, prompts: list[Prompt]
    ) -> None:
        for _, workflow in build():
            on = scripted()
            asyncio.run(workflow.run_episode(on.engines(), prompts[0]))
            assert "<tool_response>\n2\n</tool_response>" in on.asked[1].text
