"""``sample_thing`` keeps what every launcher promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_testing.conformance.launcher import LauncherConformance
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, context, installed


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_plugin_sample_thing.manifest"


class TestSampleThing(LauncherConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed("launcher", "sample_thing", {"silence_s": 4.0})

    @pytest.fixture
    def silence_s(self) -> float:
        return 14.0


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    subject = installed("launcher", "sample_thing", {"reach": ["no-such-command", "{host}"]})
    (factory,) = subject.variants.values()
    launcher = factory(context("launcher", tmp_path))
    try:
        with pytest.raises(Exception, match="no 'no-such-command' here; change"):
            launcher.prepare([ProcessSpec("raas-0", "raas", ("true",), {}, tmp_path / "log")])
    finally:
        launcher.close()
