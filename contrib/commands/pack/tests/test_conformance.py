"""The commands keep what every command keeps; tests/test_manifests.py looks at their manifest."""

from __future__ import annotations

import pytest

from astraflow_testing.conformance.command import CommandConformance


class TestPack(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "pack"


class TestUnpack(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "unpack"
