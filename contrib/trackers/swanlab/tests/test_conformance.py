"""Manifest and keys; ``tests/test_tracker_backends.py`` has the suite of trackers, with the library."""

from __future__ import annotations

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import ConfigError
from astraflow_testing.conformance.manifest import ManifestConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_contrib_swanlab.manifest"


def test_a_mistyped_key_is_named_without_the_library() -> None:
    with pytest.raises(ConfigError, match=r"trackers\.mine\.nam: "):
        Catalog.discover().validate_options("tracker", "swanlab", {"nam": "x"}, "trackers.mine")
