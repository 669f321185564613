"""Manifest and keys; ``tests/test_tracker_backends.py`` has the suite of trackers, with the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_contrib_wandb.config import WandbTrackerConfig
from astraflow_core.catalog import Catalog
from astraflow_core.errors import ConfigError
from astraflow_testing.conformance.manifest import ManifestConformance


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_contrib_wandb.manifest"


def test_a_mistyped_key_is_named_without_the_library() -> None:
    with pytest.raises(ConfigError, match=r"trackers\.mine\.nam: "):
        Catalog.discover().validate_options("tracker", "wandb", {"nam": "x"}, "trackers.mine")


def test_doctor_reports_a_missing_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = WandbTrackerConfig()
    assert "no API key for api.wandb.ai" in keys.trouble()
    assert WandbTrackerConfig(mode="offline").trouble() == ""
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password k\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert keys.trouble() == ""
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert "no API key for wandb.example.org" in keys.trouble()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert keys.trouble() == ""
