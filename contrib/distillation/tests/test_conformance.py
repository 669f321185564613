from __future__ import annotations

import pytest

from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance


class TestTaught(WorkflowConformance):
    @pytest.fixture
    def component(self) -> Subject:
        inner = {"workflow": {"use": "single_turn", "policy": "solver"}, "policy": "solver"}
        return installed(
            "workflow",
            "taught",
            inner | {"teacher": "verifier"},
            inner | {"teacher": "solver", "given": "Think.\n{prompt}", "reward": "agreement"},
        )
