"""Every value of a loaded run with its origin, the defaults of components included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.rendering import join

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Value:
    """A leaf: dotted key, JSON-like value, and the file, ``"--set"`` or ``"default"`` that set it."""

    key: str
    value: Any
    origin: str


def values(loaded: LoadedConfig) -> list[Value]:
    """All leaves in the order of the models; what is ``None`` is left out."""
    table = loaded.config.model_dump(mode="json")
    for path, (_, keys) in loaded.components.items():
        if keys is not None:
            here: Any = table
            for part in path.split("."):
                here = here[int(part)] if isinstance(here, list) else here[part]
            for name, value in keys.model_dump(mode="json", by_alias=True).items():
                here.setdefault(name, value)
    return [
        Value(path, value, _origin(path, loaded.origins))
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


def _origin(path: str, origins: dict[str, str]) -> str:
    if path in origins:
        return origins[path]
    below = {label for key, label in origins.items() if key.startswith(f"{path}.")}
    return " and ".join(sorted(below)) or DEFAULT
