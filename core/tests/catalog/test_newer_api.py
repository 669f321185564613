"""Plugin API 1.1, tried: a hook that 1.0 does not have, and a new argument of an old one. Plugins of 1.0 notice neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astraflow_core import hookspecs
from astraflow_core.config.load import read_config
from astraflow_core.hookspecs import hookspec
from astraflow_core.installed import discovery
from astraflow_core.installed.discovery import State
from astraflow_runtime.hooks import Hooks

OLD = """
heard = []

@hookimpl
def astraflow_run_started(run): heard.append(run)
"""
NEW = """
from astraflow_core import hookimpl
ASTRAFLOW_API = (1, 1)
heard = []

@hookimpl
def astraflow_run_started(run, attempt): heard.append((run, attempt))

@hookimpl
def astraflow_run_paused(reason): heard.append(reason)
"""


class NewerLifecycle(hookspecs.Lifecycle):
    """The hooks of 1.1."""

    @hookspec
    def astraflow_run_started(self, run: Any, attempt: int = 1) -> None:
        """With an argument that 1.0 does not have."""

    @hookspec
    def astraflow_run_paused(self, reason: str) -> None:
        """A hook that 1.0 does not have."""


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The core implements plugin API 1.1."""
    # Not inherited: what a spec has is what its class has.
    both = {**vars(hookspecs.Lifecycle), **vars(NewerLifecycle)}
    spec = type("Lifecycle", (), {k: v for k, v in both.items() if k.startswith("astraflow_")})
    monkeypatch.setattr(discovery, "API_VERSION", (1, 1))
    monkeypatch.setattr(discovery, "Lifecycle", spec)
    discovery._reader.cache_clear()
    yield
    discovery._reader.cache_clear()


def test_plugins_of_both_versions_get_the_hooks_that_they_know(
    site: Any, run_file: Path, manifest: str, newer: None
) -> None:
    site.add("old", manifest + OLD)
    site.add("new", NEW)
    loaded = read_config(run_file, ['plugins.enable=["old", "new"]'], site.catalog())
    assert [loaded.catalog.plugin(name).problem for name in ("old", "new")] == ["", ""]
    assert loaded.catalog.plugin("toy").healthy  # whose components the run names
    hook = Hooks.for_run(loaded.catalog, loaded.config)._manager.hook
    hook.astraflow_run_started(run="r", attempt=2)
    hook.astraflow_run_paused(reason="no room")
    heard = {name: loaded.catalog.plugin(name).module.heard for name in ("old", "new")}  # type: ignore[union-attr]
    assert heard == {"old": ["r"], "new": [("r", 2), "no room"]}


def test_a_core_of_the_older_version_refuses_the_newer_plugin_only(
    site: Any, manifest: str
) -> None:
    site.add("old", manifest + OLD)
    site.add("new", NEW)
    catalog = site.catalog()
    assert catalog.plugin("old").healthy
    assert catalog.plugin("new").state is State.INCOMPATIBLE
    assert (
        "plugin API 1.1; this core speaks 1.0: update astraflow-core"
        in catalog.plugin("new").problem
    )
