"""The table of an environment, among the keys of the workflow that plays it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.component import Kind
from astraflow_core.config.load import read_config
from astraflow_core.config.tables import component_tables
from astraflow_core.errors import ConfigError
from astraflow_runtime.hooks import Hooks

PLAYS = """
@hookimpl
def astraflow_workflows():
    return [Component("plays", "plays_parts:Plays", "workflow", "plays_parts:Keys")]
"""
PARTS = """
from typing import Any
from astraflow_core.config.models import ConfigModel


class Keys(ConfigModel):
    environment: dict[str, Any]


class Plays:
    async def run_episode(self, engines, prompt):
        return None
"""
ROOM = ("workflow.use=plays", "workflow.environment.use=toy_room")


@pytest.fixture(autouse=True)
def plays(site: Any, manifest: str) -> None:
    """A workflow that takes an environment, installed."""
    site.add("plays", manifest + PLAYS, modules={"plays_parts": PARTS})


def test_it_is_a_component_of_the_run(site: Any, run_file: Path) -> None:
    text = run_file.read_text().replace(
        'use = "toy_turn"',
        'use = "plays"\nenvironment = { use = "toy_room", path = "levels.txt" }',
    )
    run_file.write_text(text)
    loaded = read_config(run_file, (), site.catalog())
    selected, keys = loaded.components["workflow.environment"]
    expected = run_file.parent.absolute() / "levels.txt"
    assert (selected.kind, getattr(keys, "path", None)) == (Kind.ENVIRONMENT, expected)
    kept = loaded.components["workflow"][1]
    assert getattr(kept, "environment", None) == {"use": "toy_room", "path": str(expected)}
    places = {place.path: place.table for place in component_tables(loaded.config)}
    assert places["workflow.environment"].use == "toy_room"


def test_its_plugin_has_its_hooks_called(site: Any, run_file: Path, manifest: str) -> None:
    rooms = """
@hookimpl
def astraflow_environments():
    return [Component("rooms", "toy_parts:Part", "environment")]
"""
    site.add("rooms", manifest + rooms)
    overrides = ("workflow.use=plays", "workflow.environment.use=rooms")
    loaded = read_config(run_file, overrides, site.catalog())
    active = [plugin.name for plugin in Hooks.for_run(loaded.catalog, loaded.config).active]
    assert "rooms" in active


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((*ROOM, "workflow.environment.pth=x"), "workflow.environment.pth"),
        (ROOM, "workflow.environment.path"),
        ((ROOM[0], "workflow.environment.use=toy_rom"), "did you mean 'toy_room'?"),
    ],
)
def test_its_keys_are_validated_with_the_run(
    site: Any, run_file: Path, overrides: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem.replace("?", r"\?")):
        read_config(run_file, overrides, site.catalog())


def test_another_key_of_that_name_is_no_environment(site: Any, run_file: Path) -> None:
    overrides = ("workflow.use=plays", "workflow.environment.PATH=/bin")
    loaded = read_config(run_file, overrides, site.catalog())
    assert "workflow.environment" not in loaded.components
