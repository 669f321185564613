"""Every manifest of the workspace keeps what manifests promise."""

from __future__ import annotations

import dev
import pytest
from workspace import metadata_of

from astraflow_core.testing.conformance.manifest import ManifestConformance


def manifests() -> list[str]:
    """Manifest modules of all packages under plugins/ and contrib/, and of the core."""
    found = ["astraflow_core.builtin"]
    for package in dev.packages():
        points = metadata_of(package.path)["project"].get("entry-points", {})
        found += points.get("astraflow", {}).values()
    return found


class TestManifests(ManifestConformance):
    @pytest.fixture(params=manifests())
    def manifest(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)
