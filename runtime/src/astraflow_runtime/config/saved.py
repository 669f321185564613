"""``config.toml`` of a run: the resolved configuration."""

from __future__ import annotations

from typing import Any

import tomli_w

from astraflow_core.config.models import RunConfig


def dump_toml(config: RunConfig) -> str:
    """The config as TOML, defaults of the core included; loading it gives an equal config."""
    return tomli_w.dumps(_without_none(config.model_dump(mode="json")))


def as_comments(notes: tuple[str, ...]) -> str:
    """The notes as lines of TOML."""
    return "".join(f"# {note}\n" for note in notes)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
