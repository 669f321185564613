"""The launcher of the core keeps what the suite demands of every one."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.launcher import LauncherConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestLocal(LauncherConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("launcher", "local", {"threads": 1})
