"""Which folder a model reference means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import PluginError, PreflightError
from astraflow_runtime.models.resolver import ModelResolver

RESOLVER = """
from pathlib import Path

@hookimpl
def astraflow_resolve_model(reference, seed, cache):
    if reference.startswith("made:"):
        return Path(cache) / reference[5:]
    if reference.startswith("text:"):
        return "a string"
"""


WITHOUT_NETWORK = """
@hookimpl
def astraflow_resolve_model(reference, seed, cache, fetch):
    return cache / "m" if fetch or reference == "kept:m" else None
"""


def test_only_what_needs_no_network_is_at_hand(site: Any, manifest: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    site.add("maker", manifest + RESOLVER)
    assert ModelResolver(site.catalog()).at_hand("made:m", 0, tmp_path) is None
    site.add("keeper", manifest + WITHOUT_NETWORK)
    hooks = ModelResolver(site.catalog())
    assert hooks.at_hand("kept:m", 0, tmp_path) == tmp_path / "m"
    assert hooks.at_hand("far:m", 0, tmp_path) is None
    assert hooks.resolve_model("far:m", 0, tmp_path) == tmp_path / "m"
    assert hooks.at_hand(str(tmp_path / "m"), 0, tmp_path) == tmp_path / "m"


def test_local_models_are_checked(site: Any, tmp_path: Path) -> None:
    hooks = ModelResolver(site.catalog())
    folder = tmp_path / "model"
    with pytest.raises(PreflightError, match=f"there is no folder '{folder}'"):
        hooks.resolve_model(str(folder), 0, tmp_path)
    folder.mkdir()
    with pytest.raises(PreflightError, match=r"has no config\.json"):
        hooks.resolve_model(str(folder), 0, tmp_path)
    (folder / "config.json").write_text("{}")
    assert hooks.resolve_model(str(folder), 0, tmp_path) == folder
    with pytest.raises(PreflightError, match="is a file"):
        hooks.resolve_model(str(folder / "config.json"), 0, tmp_path)


def test_schemes_go_to_the_plugins(site: Any, manifest: str, tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"'made:'.*none is installed"):
        ModelResolver(site.catalog()).resolve_model("made:m", 0, tmp_path)
    site.add("maker", manifest + RESOLVER)
    hooks = ModelResolver(site.catalog())
    (tmp_path / "m").mkdir()
    with pytest.raises(PreflightError, match=r"'made:m', resolved to .* has no config\.json"):
        hooks.resolve_model("made:m", 0, tmp_path)
    (tmp_path / "m" / "config.json").write_text("{}")
    assert hooks.resolve_model("made:m", 0, tmp_path) == tmp_path / "m"
    with pytest.raises(PreflightError, match=r"'other:'.*maker"):
        hooks.resolve_model("other:m", 0, tmp_path)
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(PreflightError, match="set ASTRAFLOW_CACHE"):
        hooks.resolve_model("made:m", 0, blocked / "cache")
    with pytest.raises(PluginError, match="'a string'"):
        hooks.resolve_model("text:m", 0, tmp_path)
