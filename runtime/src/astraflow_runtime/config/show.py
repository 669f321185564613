"""Every value of a loaded run with its origin, the defaults of components included; a run keeps them in ``origins.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.rendering import join
from astraflow_core.installed.discovery import DISABLE_VARIABLE

DEFAULT = "default"
ORIGINS = "origins.json"
"""In the directory of a run: key → origin, of each value of its ``config.toml``."""


@dataclass(frozen=True, slots=True)
class Value:
    """A leaf: dotted key, JSON-like value, and where it is from: a file, ``"--set"``, ``"default"`` or ``"default of KIND NAME"``."""

    key: str
    value: Any
    origin: str


def values(loaded: LoadedConfig) -> list[Value]:
    """All leaves in the order of the models; what is ``None`` is left out."""
    table, of_component = loaded.config.model_dump(mode="json"), dict[str, str]()
    for path, (selected, keys) in loaded.components.items():
        if keys is not None:
            here: Any = table
            for part in path.split("."):
                here = here[int(part)] if isinstance(here, list) else here[part]
            for name, value in keys.model_dump(mode="json", by_alias=True).items():
                here.setdefault(name, value)
                of_component[join(path, name)] = (
                    f"{DEFAULT} of {selected.kind} {selected.qualified}"
                )
    return [
        Value(path, value, _origin(path, loaded.origins, of_component))
        for path, value in _leaves(table, "")
        if value is not None
    ]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, join(path, key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, join(path, index))
    else:
        yield path, value


def origins_json(loaded: LoadedConfig) -> str:
    """Where each value is from, by key, with the environment variables that count."""
    found = {value.key: value.origin for value in values(loaded)}
    if os.environ.get(DISABLE_VARIABLE):
        found["plugins.disable"] = (
            f"{found.get('plugins.disable', DEFAULT)} and environment variable {DISABLE_VARIABLE}"
        )
    return json.dumps(found, indent=1) + "\n"


def _origin(path: str, origins: dict[str, str], of_component: dict[str, str]) -> str:
    if path in origins:
        return origins[path]
    below = {label for key, label in origins.items() if key.startswith(f"{path}.")}
    if below:
        return " and ".join(sorted(below))
    while path and path not in of_component:
        path = path.rpartition(".")[0]
    return of_component.get(path, DEFAULT)
