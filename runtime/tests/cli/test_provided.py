"""Commands that plugins declare: refused declarations, and the command that a name selects."""

from __future__ import annotations

from typing import Any

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import PluginError
from astraflow_core.installed.discovery import State
from astraflow_core.installed.distributions import Index
from astraflow_runtime.cli import provided
from astraflow_runtime.cli.provided import provided_by, select_command

COMMANDS = """
from astraflow_core import Command

@hookimpl
def astraflow_commands():
    return [{}]
"""
HELLO = "Command('hello', 'greets', 'others', 'hello_command:add_arguments')"

WRONG = {
    "name": (
        "Command('Hello', 'greets', 'g', 'm:f')",
        "command 'Hello': a name is one word or two",
    ),
    "three words": ("Command('a b c', 'greets', 'g', 'm:f')", "'a b c': a name is one word or two"),
    "not text": ("Command(3, 'greets', 'g', 'm:f')", "command 3: a name"),
    "target": ("Command('hello', 'greets', 'g', 'm.f')", "target 'm.f' is not of the form"),
    "summary": ("Command('hello', 'a\\nb', 'g', 'm:f')", r"summary 'a\nb' is not a line of text"),
    "group": ("Command('hello', 'greets', '', 'm:f')", "group '' is not a line of text"),
    "string": ("'hello'", "astraflow_commands() returned 'hello'; expected a Command"),
    "twice": (f"{HELLO}, {HELLO}", "command 'hello' is provided twice"),
    "taken": (
        "Command('run', 'mine', 'g', 'm:f')",
        "command 'run' is taken: it is one of astraflow-runtime 0.1.0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_makes_its_plugin_unusable(site: Any, manifest: str, case: str) -> None:
    declared, said = WRONG[case]
    site.add("bad", manifest + COMMANDS.format(declared))
    plugins = site.catalog().plugins
    plugin = next(p for p in plugins if p.name == "bad")
    assert plugin.state is State.BROKEN and said in plugin.problem
    assert not [entry for entry in provided_by(plugins).values() if entry.plugin == "bad"]
    with pytest.raises(PluginError, match=r"'bad' \(fake-bad 1.0\) cannot be used"):
        select_command(plugins, "bad/hello")


def test_a_manifest_that_returns_no_list_is_reported(site: Any, manifest: str) -> None:
    site.add("bad", manifest + "@hookimpl\ndef astraflow_commands(): pass\n")
    problem = site.catalog().plugin("bad").problem
    assert problem == "astraflow_commands() returned None; expected a list of Command"


def two(site: Any, manifest: str) -> Catalog:
    for plugin in ("left", "right"):
        site.add(plugin, manifest + COMMANDS.format(HELLO))
    catalog: Catalog = site.catalog()
    return catalog


def test_one_of_several_plugins_must_be_named(site: Any, manifest: str) -> None:
    plugins = two(site, manifest).plugins
    with pytest.raises(PluginError, match="`astraflow left/hello` or `astraflow right/hello`"):
        select_command(plugins, "hello")
    assert select_command(plugins, "right/hello").distribution == "fake-right"


def test_a_name_alone_means_the_command_of_this_project(
    site: Any, manifest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = Index(commands={"hello": "fake-right"})
    monkeypatch.setattr(provided, "index", lambda: published)
    plugins = two(site, manifest).plugins
    assert select_command(plugins, "hello").plugin == "right"
    assert select_command(plugins, "left/hello").plugin == "left"


def test_what_is_missing_is_reported_with_the_distribution_that_provides_it(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("torn", "raise ImportError('torn')")
    plugins = site.catalog().plugins
    with pytest.raises(PluginError) as raised:
        select_command(plugins, "doctor")
    said = str(raised.value)
    assert said.startswith("command 'doctor'") and "astraflow-contrib-doctor" in said
    gone = [plugin for plugin in plugins if plugin.name != "doctor"]
    with pytest.raises(PluginError, match="not installed; astraflow-contrib-doctor provides it: "):
        select_command(gone, "doctor")
    with pytest.raises(PluginError, match=r"no command 'doctr'; did you mean 'doctor'\?.*'torn'"):
        select_command(gone, "doctr")
