from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance

HERE = str(Path(__file__).parent)


@pytest.mark.slow
class TestAgent(WorkflowConformance):
    @pytest.fixture
    def component(self) -> Subject:
        keys = {"target": "played_agents:ask_all_twice", "folder": HERE}
        return installed("workflow", "agent", keys, {**keys, "max_calls": 2})
