"""Lifecycle hooks reach the plugins that a run names, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.load import read_config, run_info
from astraflow_core.installed.discovery import Plugin
from astraflow_runtime.hooks import Hooks

RECORDER = """
heard = []

@hookimpl
def astraflow_run_started(run): heard.append(("started", run.name))

@hookimpl
def astraflow_run_ended(run, error): heard.append(("ended", error))

@hookimpl
def astraflow_step_ended(step, metrics): heard.append((step, dict(metrics)))

@hookimpl
def astraflow_weights_published(policy, version): heard.append((policy, version))

@hookimpl
def astraflow_routes(service): return [service + " of {name}"]

@hookimpl(wrapper=True)
def astraflow_train_step(step):
    heard.append("before")
    metrics = yield
    heard.append("after")
    return {{**metrics, "{name}": float(step)}}
"""


def heard_by(plugin: Plugin) -> list[Any]:
    return plugin.module.heard  # type: ignore[union-attr, no-any-return]


def hooks_of(site: Any, run_file: Path, *overrides: str) -> Hooks:
    loaded = read_config(run_file, overrides, site.catalog())
    return Hooks.for_run(loaded.catalog, loaded.config)


def test_only_hooks_of_named_plugins_are_called(site: Any, run_file: Path, manifest: str) -> None:
    for name in ("ear", "deaf"):
        site.add(name, manifest + RECORDER.format(name=name))
    hooks = hooks_of(site, run_file, 'plugins.enable=["ear"]')
    assert [plugin.name for plugin in hooks.active] == ["ear", "runtime", "three_zones", "toy"]
    loaded = read_config(run_file, (), site.catalog())
    run = run_info(loaded.config, Path("d"))
    boom = RuntimeError("boom")
    hooks.run_started(run)
    hooks.step_ended(run, 2, {"loss": 1.0})
    hooks.weights_published(run, "solver", 3)
    hooks.run_ended(run, boom)
    heard = {name: heard_by(loaded.catalog.plugin(name)) for name in ("ear", "deaf")}
    assert heard["ear"] == [("started", "run"), (2, {"loss": 1.0}), ("solver", 3), ("ended", boom)]
    assert heard["deaf"] == []


def test_a_step_runs_inside_the_wrappers(site: Any, run_file: Path, manifest: str) -> None:
    site.add("ear", manifest + RECORDER.format(name="ear"))
    hooks = hooks_of(site, run_file, 'plugins.enable=["ear"]')
    heard = next(heard_by(plugin) for plugin in hooks.active if plugin.name == "ear")

    def call() -> dict[str, float]:
        heard.append("step")
        return {"loss": 0.5}

    for step in (1, 2):
        metrics = hooks.train_step(None, step, None, call)  # type: ignore[arg-type]
        assert metrics == {"loss": 0.5, "ear": step}
    assert heard == ["before", "step", "after"] * 2


def test_routes_of_all_plugins_in_name_order(site: Any, run_file: Path, manifest: str) -> None:
    for name in ("b_ear", "a_ear"):
        site.add(name, manifest + RECORDER.format(name=name))
    hooks = hooks_of(site, run_file, 'plugins.enable=["b_ear", "a_ear"]')
    assert hooks.routes("raas") == ["raas of a_ear", "raas of b_ear"]


def test_exceptions_of_hooks_are_not_swallowed(site: Any, run_file: Path, manifest: str) -> None:
    site.add("bad", manifest + "@hookimpl\ndef astraflow_run_started(run): raise KeyError('x')\n")
    hooks = hooks_of(site, run_file, 'plugins.enable=["bad"]')
    with pytest.raises(KeyError):
        hooks.run_started(None)  # type: ignore[arg-type]


def test_a_failed_start_ends_those_that_had_started(
    site: Any, run_file: Path, manifest: str
) -> None:
    failing = RECORDER.replace('heard.append(("started", run.name))', "raise OSError('torn')")
    for name, source in (("a", RECORDER), ("b", failing), ("c", RECORDER)):
        site.add(name, manifest + source.format(name=name))
    enabled = 'plugins.enable=["a", "b", "c"]'
    hooks = hooks_of(site, run_file, enabled)
    loaded = read_config(run_file, [enabled], site.catalog())
    with pytest.raises(OSError, match="torn") as raised:
        hooks.run_started(run_info(loaded.config, Path("d")))
    heard = {name: heard_by(loaded.catalog.plugin(name)) for name in ("a", "b", "c")}
    # pluggy calls the last name first.
    assert heard == {"a": [], "b": [], "c": [("started", "run"), ("ended", raised.value)]}
