"""The configuration of a run, key by key: value, whether that is the default, and what the key means."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from astraflow_contrib_pages.runs_folder import RunFolder
from astraflow_runtime.config.explain import KeyDescription, core_keys
from astraflow_runtime.config.show import ORIGINS
from astraflow_runtime.launch.results.config_differences import flatten


@cache
def _known() -> dict[tuple[str, ...], KeyDescription]:
    return {tuple(key.path.split(".")): key for key in core_keys()}


def described(run: RunFolder) -> list[dict[str, Any]]:
    """Each value with its origin, as the run's ``origins.json`` says; of a run without one, whether it is the default of a key of the
    core."""
    rows, known = [], run.read(ORIGINS)
    origins = known if isinstance(known, dict) else {}
    for path, value in flatten(run.shown_config).items():
        key = _key(path)
        default = None if key is None or key.default is None else json.loads(key.default)
        rows.append(
            {
                "key": path,
                "value": value,
                "origin": str(
                    _nearest(origins, path)
                    or ("default" if key is not None and value == default else "set for this run")
                ),
                "default": default,
                "meaning": "a key of the component" if key is None else key.description,
                "type": "" if key is None else key.type,
            }
        )
    return rows


def _nearest(origins: dict[str, Any], path: str) -> Any:
    """The origin of a value, or of the table or list that holds it."""
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins.get(path)


def _key(path: str) -> KeyDescription | None:
    parts = path.split(".")
    return next(
        (
            key
            for known, key in _known().items()
            if len(known) == len(parts)
            and all(
                part in (have, "NAME") or (part == "N" and have.isdecimal())
                for part, have in zip(known, parts, strict=True)
            )
        ),
        None,
    )
