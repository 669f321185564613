from __future__ import annotations

import pytest

from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance


class TestSingleTurn(WorkflowConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "workflow",
            "single_turn",
            {"policy": "solver"},
            {"policy": "verifier", "chat": True, "system": "Be brief."},
        )
