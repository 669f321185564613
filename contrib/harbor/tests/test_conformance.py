from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from astraflow_contrib_harbor.config import HarborTasksConfig
from astraflow_contrib_harbor.source import HarborTasks
from astraflow_core.types import Action, FunctionCall, Observation, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance
from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, context, installed

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "harbor" / "tasks"


@pytest.mark.slow
class TestHarbor(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("environment", "harbor", {"turns": 3}, {"turns": 2, "actions": "text"})

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        source = HarborTasks(HarborTasksConfig(path=EXAMPLES), context("raas", EXAMPLES))
        return [source[0], source[1]]

    @pytest.fixture
    def acts(self) -> Acts:
        def acted(observation: Observation, generator: random.Random) -> Action:
            command = f"echo {generator.randint(1, 9)} > answer.txt; cat answer.txt"
            if observation.tools:
                return Action("", (FunctionCall("1", "bash", {"command": command}),))
            return Action(f"<bash>{command}</bash>")

        return acted


class TestTasks(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("prompt_source", "harbor_tasks", {"path": str(EXAMPLES)})

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        made = []
        for name in ("instruction.md", "tests/test.sh", "environment/Dockerfile"):
            root = tmp_path / name.partition("/")[0]
            folder = shutil.copytree(EXAMPLES / "count-errors", root / "task")
            (folder / name).unlink()
            keys = {"path": str(root)}
            made.append(Damaged(installed("prompt_source", "harbor_tasks", keys), (str(folder),)))
        keys = {"path": str(tmp_path / "none")}
        return [*made, Damaged(installed("prompt_source", "harbor_tasks", keys), ("none",))]
