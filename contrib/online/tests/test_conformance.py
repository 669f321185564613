from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import test_online
from visited_slots import VisitedWorkflow

from astraflow_contrib_online.config import OnlineConfig
from astraflow_contrib_online.manifest import astraflow_workflows
from astraflow_testing.conformance.prompt_source import PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance


class TestOnline(WorkflowConformance):
    own_tests: ClassVar[dict[str, str]] = {"live": "test_it_waits_for_others"}

    @pytest.fixture
    def component(self) -> Subject:
        (declared,) = astraflow_workflows()
        config = OnlineConfig(idle_s=5, wait_s=60)
        return Subject(
            {"online": lambda context: VisitedWorkflow(config, context)}, declared.capabilities
        )

    def test_it_waits_for_others(self, tmp_path: Path) -> None:
        test_online.test_a_slot_that_no_one_opens_is_rejected(tmp_path)


class TestArrivals(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("prompt_source", "arrivals", {"size": 5}, {})
