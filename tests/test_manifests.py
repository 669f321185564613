"""Every manifest of the workspace keeps what manifests promise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import dev
import pytest
from workspace import metadata_of

from astraflow_core.installed.discovery import read_manifest
from astraflow_testing.conformance.manifest import ManifestConformance

IMPORT_MUCH = {"astraflow_plugin_hf.manifest", "astraflow_plugin_megatron.manifest"}
"""Their targets import whole backends, which takes seconds."""


def manifests() -> list[str]:
    """Manifest modules of all packages under plugins/ and contrib/, and of the core."""
    found = ["astraflow_runtime.manifest"]
    for package in dev.packages():
        points = metadata_of(package.path)["project"].get("entry-points", {})
        found += points.get("astraflow", {}).values()
    return found


class TestManifests(ManifestConformance):
    @pytest.fixture(
        params=[
            pytest.param(name, marks=pytest.mark.slow) if name in IMPORT_MUCH else name
            for name in manifests()
        ]
    )
    def manifest(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_a_manifest_is_the_same_on_every_machine(
        self, module: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A config is often checked, and documents are made, on another machine than the one with the GPUs."""
        said = []
        for there in (True, False):
            monkeypatch.setattr(Path, "exists", lambda path, there=there, **how: there)
            assert module.__spec__ is not None and module.__spec__.loader is not None
            fresh = importlib.util.module_from_spec(module.__spec__)
            module.__spec__.loader.exec_module(fresh)
            said.append(read_manifest("examined", fresh)[0])
        assert said[0] == said[1]
