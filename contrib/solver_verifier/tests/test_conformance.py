from __future__ import annotations

import pytest

from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.workflow import WorkflowConformance


class TestSolverVerifier(WorkflowConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "workflow", "solver_verifier", {}, {"solver": "verifier", "verifier": "solver"}
        )
