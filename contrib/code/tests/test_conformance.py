from __future__ import annotations

from collections.abc import Callable

import pytest

from astraflow_core.types import Prompt
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.reward import RewardConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestCodeTasks(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "prompt_source",
            "code_tasks",
            {"size": 40},
            {"kind": "program", "split": "held_out", "size": 30, "steps": 3, "seed": 2},
        )


@pytest.mark.slow
class TestCodeTests(RewardConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("reward", "code_tests", {}, {"score": "all"})

    @pytest.fixture
    def prompts(self) -> list[Prompt]:
        test = {"function": "f", "arguments": [1], "result": 2}
        return [
            Prompt("calls", {"prompt": "Add one.", "tests": [test]}),
            Prompt("reads", {"prompt": "Add one.", "tests": [{"input": "1", "output": "2"}]}),
        ]

    @pytest.fixture
    def right(self) -> Callable[[Prompt], str]:
        codes = {"calls": "def f(n): return n + 1", "reads": "print(int(input()) + 1)"}
        return lambda prompt: f"```python\n{codes[prompt.id]}\n```"
