"""Which distribution provides a component, a hook or a command, installed or not: for the advice in errors.

The core knows no plugin: the manifest of the plugin ``runtime`` names the index, ``ASTRAFLOW_INDEX = "module:attribute"``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from astraflow_core.component import load_attribute
from astraflow_core.installed.entry_points import RUNTIME, name_and_version, scan

_RUNTIME_DISTRIBUTION = "astraflow-runtime"


@dataclass(frozen=True, slots=True)
class Index:
    """The distributions that are published with the runtime: ``components`` are kind → component → distribution,
    ``hooks`` lifecycle hook → plugin → distribution, ``commands`` command → distribution. ``how_to_install`` returns
    the command that installs a distribution."""

    components: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hooks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    how_to_install: Callable[[str], str] = "pip install {}".format

    def lists(self, distribution: str) -> bool:
        """Whether ``distribution`` is the runtime's or has a plugin that is published with it."""
        tables = [*self.components.values(), *self.hooks.values(), self.commands]
        listed = (name for table in tables for name in table.values())
        return distribution == _RUNTIME_DISTRIBUTION or distribution in listed


def index() -> Index:
    """The index of the installed runtime; an empty one where the runtime is not installed."""
    return _index(tuple(sys.path))


@lru_cache(maxsize=4)
def _index(path: tuple[str, ...]) -> Index:
    for entry, distribution in scan(path):
        if entry.name == RUNTIME and name_and_version(distribution)[0] == _RUNTIME_DISTRIBUTION:
            found: Index = load_attribute(importlib.import_module(entry.value).ASTRAFLOW_INDEX)
            return found
    return Index()
