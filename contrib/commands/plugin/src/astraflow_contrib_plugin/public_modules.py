"""The modules of AstraFlow that a plugin may import, as docs/modules.md lists them; every other one is private."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources


def is_public(module: str) -> bool:
    """Whether a plugin, a service of your own or their tests may import ``module``."""
    return module in _listed()["modules"]


def is_ours(package: str) -> bool:
    """Whether a top-level package is the core, a library, the runtime or the testing kit."""
    return package in _listed()["packages"]


@cache
def _listed() -> dict[str, frozenset[str]]:
    """Of the file that ``scripts/docs.py`` writes."""
    file = resources.files("astraflow_contrib_plugin").joinpath("public_modules.json")
    return {key: frozenset(names) for key, names in json.loads(file.read_text("utf-8")).items()}
