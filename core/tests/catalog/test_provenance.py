from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core import __version__
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import ComponentTable
from astraflow_core.errors import PluginError, UserError, VersionSkew
from astraflow_core.installed.provenance import FILE, read_plugins
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_runtime.launch.local.launcher import LocalLauncher
from astraflow_runtime.launch.planning.plugins_file import write_plugins


def began_with(directory: Path, version: str) -> None:
    entry = {"plugin": "runtime", "distribution": "astraflow-runtime", "version": version}
    write_plugins(directory, [{**entry, "packaged": True, "components": {"launcher": "local"}}])


def built(directory: Path) -> object:
    run = RunInfo("r", 0, 1, 0, ("p",), directory)
    context = ComponentContext(run, "launcher", "", 0, directory)
    return Catalog.discover().build(Kind.LAUNCHER, ComponentTable(use="local"), context)


def test_a_process_has_the_versions_that_the_run_began_with(tmp_path: Path) -> None:
    assert isinstance(built(tmp_path), LocalLauncher)  # versions are not mentioned
    same, other = tmp_path / "same", tmp_path / "other"
    same.mkdir()
    other.mkdir()
    began_with(same, __version__)
    assert read_plugins(same)[0]["version"] == __version__
    assert isinstance(built(same), LocalLauncher)
    began_with(other, "9.9.9")
    with pytest.raises(
        VersionSkew,
        match=rf"started with astraflow-runtime 9\.9\.9, and .* has {__version__}; pip install",
    ):
        built(other)
    assert issubclass(VersionSkew, PluginError)


@pytest.mark.parametrize("left", [b"", bytes(300), b'["\xff"]'])
def test_a_file_that_power_loss_left_is_the_users_to_remove(tmp_path: Path, left: bytes) -> None:
    (tmp_path / FILE).write_bytes(left)
    with pytest.raises(UserError, match=r"plugins\.json is damaged .*; remove it"):
        built(tmp_path)
    (tmp_path / FILE).unlink()
    assert isinstance(built(tmp_path), LocalLauncher)
