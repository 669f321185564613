"""The command keeps what every command keeps; tests/test_manifests.py looks at its manifest."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.command import CommandConformance


class TestTinkerCommand(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "tinker serve"
