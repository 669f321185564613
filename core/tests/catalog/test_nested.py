"""Components that are made of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import ConfigError, PluginError
from astraflow_core.nested import build_component
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_runtime.launch.planning.plugins_file import write_plugins

SOURCE = """
@hookimpl
def astraflow_prompt_sources():
    return [Component("toy_list", "{module}:Source", "a list", "{module}:Keys")]
"""
PARTS = """
from astraflow_core.config.models import ConfigModel


class Keys(ConfigModel):
    size: int


class Source:
    def __init__(self, config, context):
        self.size, self.context = config.size, context
"""


@pytest.fixture
def context(site: Any, manifest: str, tmp_path: Path) -> ComponentContext:
    for name in ("one", "two"):
        parts = {f"{name}_parts": PARTS}
        site.add(name, manifest + SOURCE.format(module=f"{name}_parts"), modules=parts)
    run = RunInfo("r", 0, 1, 0, ("p",), tmp_path)
    return ComponentContext(run, "dataflow", "", 3, tmp_path)


def test_it_is_built_with_its_keys_and_the_context_of_the_whole(context: ComponentContext) -> None:
    built = build_component("prompt_source", {"use": "two/toy_list", "size": 4}, context)
    assert (type(built).__module__, built.size, built.context) == ("two_parts", 4, context)
    with pytest.raises(ConfigError, match="sise"):
        build_component("prompt_source", {"use": "two/toy_list", "sise": 4}, context)


def test_a_name_means_what_it_meant_when_the_run_began(context: ComponentContext) -> None:
    table = {"use": "toy_list", "size": 4}
    with pytest.raises(PluginError, match="name one of: 'one/toy_list' or 'two/toy_list'"):
        build_component("prompt_source", table, context)
    entry = {"plugin": "two", "distribution": "fake-two", "version": "1.0", "packaged": True}
    write_plugins(context.run.directory, [{**entry, "provides": ["prompt_source/toy_list"]}])
    assert type(build_component("prompt_source", table, context)).__module__ == "two_parts"
