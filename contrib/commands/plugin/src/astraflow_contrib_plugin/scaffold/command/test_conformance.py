"""``sample-thing`` keeps what every command keeps, and averages the last steps."""

from __future__ import annotations

import pytest
from astraflow_plugin_sample_thing.component import means

from astraflow_testing.conformance.command import CommandConformance
from astraflow_testing.conformance.manifest import ManifestConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(CommandConformance):
    @pytest.fixture
    def command(self) -> str:
        return "sample-thing"


def test_the_last_steps_are_averaged() -> None:
    lines = [f'{{"policy": "solver", "reward": {n}}}\n' for n in (9, 1, 3)]
    assert means([*lines, '{"policy": "so'], "reward", 2) == {"solver": 2.0}
