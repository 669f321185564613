"""A run remembers which files its model references meant."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from launch_support import Table

from astraflow_core.errors import PreflightError
from astraflow_core.types import ResolvedModel
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_runtime.models.folders import FILE, bring_back
from astraflow_runtime.models.resolver import ModelResolver


class Hub:
    """In place of a plugin: a model whose branch moves; ``folder`` is where a commit is put."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[str]()

    def pinned_model(self, reference: str, seed: int, cache: Path) -> ResolvedModel:
        self.asked.append(reference)
        return ResolvedModel(self.folder, "made:m@c0ffee")

    def resolve_model(self, reference: str, seed: int, cache: Path) -> Path:
        return self.pinned_model(reference, seed, cache).folder


@pytest.fixture
def hub(table: Table, monkeypatch: pytest.MonkeyPatch) -> Hub:
    policy: dict[str, Any] = table["policies"]["solver"]
    hub = Hub(Path(policy["model"]))
    policy["model"] = "made:m"
    monkeypatch.setattr(ModelResolver, "pinned_model", lambda _, *asked: hub.pinned_model(*asked))
    return hub


def test_a_run_continues_with_the_commit_that_it_began_with(
    table: Table, hub: Hub, tmp_path: Path
) -> None:
    directory = prepare(table).directory
    written = tomllib.loads((directory / "config.toml").read_text())
    assert written["policies"]["solver"]["model"] == str(hub.folder)
    assert json.loads((directory / FILE).read_text()) == {str(hub.folder): "made:m@c0ffee"}
    config = load_config(directory / "config.toml").config
    hub.asked.clear()
    bring_back(config, directory, hub)  # type: ignore[arg-type]
    assert hub.asked == [], "the folder is there"
    hub.folder.rename(tmp_path / "elsewhere")
    bring_back(config, directory, hub)  # type: ignore[arg-type]
    assert hub.asked == ["made:m@c0ffee"]
    hub.folder = tmp_path / "another-cache"
    with pytest.raises(
        PreflightError, match=r"the run started with 'made:m@c0ffee' in .*another-cache"
    ):
        bring_back(config, directory, hub)  # type: ignore[arg-type]


def test_a_run_of_plain_folders_has_no_such_record(table: Table) -> None:
    assert not (prepare(table).directory / FILE).exists()


@pytest.mark.parametrize("left", [b"", bytes(300), b'{"\xff": ""}'])
def test_a_record_that_power_loss_left_is_the_users_to_remove(
    table: Table, hub: Hub, left: bytes
) -> None:
    directory = prepare(table).directory
    config = load_config(directory / "config.toml").config
    (directory / FILE).write_bytes(left)
    with pytest.raises(PreflightError, match=r"models\.json is damaged .*remove it"):
        bring_back(config, directory, hub)  # type: ignore[arg-type]
