"""Plugins are found in order, isolated from each other, and blocked before import."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import PluginError
from astraflow_core.installed.discovery import DISABLE_VARIABLE, Plugin, State
from astraflow_core.installed.entry_points import RUNTIME, installed, scan

HEALTHY = """
@hookimpl
def astraflow_rewards():
    return [Component("fine_one", "fine_one:Reward", "fine")]
"""


def found(catalog: Catalog, name: str) -> Plugin:
    return catalog.plugin(name)


BROKEN = {
    "import": ("import nothing_of_this_name", ["cannot be imported", "nothing_of_this_name"]),
    "exit": ("raise SystemExit(3)", ["cannot be imported", "SystemExit"]),
    "no api": ("from astraflow_core import hookimpl", ["ASTRAFLOW_API", "found None"]),
    "major": (
        "ASTRAFLOW_API = (2, 0)",
        ["written for plugin API 2.0", "speaks 1.0", "update astraflow-core"],
    ),
    "older": ("ASTRAFLOW_API = (0, 9)", ["plugin API 0.9", "update the plugin"]),
    "minor": ("ASTRAFLOW_API = (1, 1)", ["plugin API 1.1"]),
    "hook": (
        "@hookimpl\ndef astraflow_engine(): return []",
        ["unknown hook 'astraflow_engine'", "did you mean 'astraflow_engines'"],
    ),
    "unmarked": ("def astraflow_engines(): return []", ["astraflow_engines()", "@hookimpl"]),
    "arguments": ("@hookimpl\ndef astraflow_run_started(runn): pass", ["runn"]),
    "none": ("@hookimpl\ndef astraflow_engines(): pass", ["returned None", "list of Component"]),
    "number": (
        "@hookimpl\ndef astraflow_engines(): return 3",
        ["astraflow_engines() failed", "int"],
    ),
    "string": ("@hookimpl\ndef astraflow_engines(): return ['x']", ["'x'", "expected a Component"]),
    "raises": (
        "@hookimpl\ndef astraflow_engines(): raise OSError('no device')",
        ["OSError: no device"],
    ),
    "flag": (
        "@hookimpl\ndef astraflow_engines(): return [Component('e', 'm:E', 's', None, frozenset({'pause.kep'}))]",
        ["engine 'e'", "unknown capability 'pause.kep'", "did you mean 'pause.keep'"],
    ),
    "flags": (
        "@hookimpl\ndef astraflow_engines(): return [Component('e', 'm:E', 's', None, ['score'])]",
        ["must be a frozenset"],
    ),
    "twice": (
        "@hookimpl\ndef astraflow_engines():\n    return [Component('e', 'm:E', 's')] * 2",
        ["engine 'e' is provided twice"],
    ),
    "name": (
        "@hookimpl\ndef astraflow_engines(): return [Component('E-1', 'm:E', 's')]",
        ["'E-1'", "lower-case"],
    ),
    "target": (
        "@hookimpl\ndef astraflow_engines(): return [Component('e', 'm.E', 's')]",
        ["target 'm.E'", "module:attribute"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_listed_with_its_problem(site: Any, manifest: str, case: str) -> None:
    source, fragments = BROKEN[case]
    api = "" if "API" in source or case == "no api" else manifest
    site.add("bad", f"{api}\n{source}\n")
    site.add("fine", manifest + HEALTHY)
    catalog = site.catalog()
    problem = found(catalog, "bad").problem
    assert [part for part in fragments if part not in problem] == []
    assert found(catalog, "bad").components == ()
    assert catalog.select("reward", "fine_one").plugin == "fine"
    with pytest.raises(PluginError, match=r"'bad' .* cannot be used"):
        catalog.select("engine", "bad/e")


def test_an_entry_point_names_a_module(site: Any, manifest: str) -> None:
    site.add("bad", manifest)
    points = site.folder / "fake_bad-1.0.dist-info" / "entry_points.txt"
    points.write_text("[astraflow]\nbad = fake_bad_manifest:astraflow_engines\n")
    problem = found(site.catalog(), "bad").problem
    assert "'fake_bad_manifest:astraflow_engines' must name a module" in problem


def test_the_original_exception_is_chained(site: Any) -> None:
    site.add("bad", "raise ZeroDivisionError('inside')")
    with pytest.raises(PluginError) as caught:
        site.catalog().select("reward", "bad")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("way", ["disable", "only", "environment"])
def test_blocked_plugins_are_not_imported(
    site: Any, manifest: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    module = site.add("shy", manifest + HEALTHY)
    if way == "disable":
        catalog = Catalog.discover(disable=["shy"])
    elif way == "only":
        catalog = Catalog.discover(only=["other"])
    else:
        monkeypatch.setenv(DISABLE_VARIABLE, "other, shy")
        catalog = Catalog.discover()
    plugin = found(catalog, "shy")
    assert plugin.state is State.DISABLED
    assert plugin.problem
    assert module not in sys.modules
    assert catalog.plugin(RUNTIME).healthy


def test_two_distributions_of_one_plugin_name(site: Any, manifest: str) -> None:
    site.add("same", manifest, distribution="one")
    site.add("same", manifest, distribution="two")
    problems = [p.problem for p in site.catalog().plugins if p.name == "same"]
    assert len(problems) == 2
    assert all("one, two" in problem for problem in problems)


def test_the_first_on_the_path_of_one_distribution_counts(
    site: Any, manifest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("again", manifest, distribution="again", version="1.0")
    later = site.folder.parent / "later"
    later.mkdir()
    site.folder, first = later, site.folder
    site.add("again", manifest, distribution="Again", version="2.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(later)])
    site.folder = first
    plugins = [p for p in site.catalog().plugins if p.name == "again"]
    assert [(p.version, p.problem) for p in plugins] == [("1.0", "")]


def test_the_name_of_the_runtime_is_taken(site: Any, manifest: str) -> None:
    site.add(RUNTIME, manifest, distribution="aaa")
    theirs, ours = (p for p in site.catalog().plugins if p.name == RUNTIME)
    assert ours.healthy and ours.distribution == "astraflow-runtime"
    assert "aaa, astraflow-runtime" in theirs.problem


def test_plugins_are_in_name_order_and_scanned_once(site: Any, manifest: str) -> None:
    for name in ("zeta", "alpha", "mid"):
        site.add(name, manifest)
    names = [plugin.name for plugin in Catalog.discover().plugins]
    assert names == sorted(names)
    assert Catalog.discover() is Catalog.discover()


def test_leftovers_of_an_uninstalled_distribution_do_no_harm(site: Any, manifest: str) -> None:
    site.add("left", manifest, distribution="left")
    (site.folder / "left-1.0.dist-info" / "METADATA").unlink()
    assert found(site.catalog(), "left").distribution == "unnamed"


def test_a_folder_is_read_once_for_all_paths_that_have_it(site: Any, manifest: str) -> None:
    site.add("fine", manifest + HEALTHY)
    first = scan((str(site.folder),))
    read = installed.cache_info().misses
    again = scan((str(site.folder / "nothing"), str(site.folder)))
    assert [(entry.name, entry.value) for entry, _ in first] == [("fine", "fake_fine_manifest")]
    assert again == first
    assert installed.cache_info().misses == read + 1, "the empty folder alone"
