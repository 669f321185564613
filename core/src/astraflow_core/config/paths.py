"""Relative paths in a config start from the file that wrote them, wherever the command was called."""

from __future__ import annotations

import os
import typing
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from astraflow_core.config.rendering import alternatives, join, models_in

if TYPE_CHECKING:
    from pydantic import BaseModel

FolderOf = Callable[[str], Path]
"""Dotted path of a value → the folder of whoever set it."""


def resolved(value: Any, annotation: Any, path: str, folder_of: FolderOf) -> Any:
    """``value`` with every string that ``annotation`` makes a ``pathlib.Path`` turned absolute."""
    if isinstance(value, dict):
        for model in models_in(annotation):
            return resolved_options(value, model, path, folder_of)
        items = _arguments(annotation, dict)
        return (
            {
                key: resolved(item, items[1], join(path, key), folder_of)
                for key, item in value.items()
            }
            if len(items) == 2
            else value
        )
    if isinstance(value, list):
        items = _arguments(annotation, list, tuple, set, frozenset)
        return (
            [resolved(item, items[0], join(path, i), folder_of) for i, item in enumerate(value)]
            if items
            else value
        )
    if isinstance(value, str) and _is_path(annotation):
        return absolute(value, folder_of(path))
    return value


def resolved_options(
    options: dict[str, Any], model: type[BaseModel], path: str, folder_of: FolderOf
) -> dict[str, Any]:
    """A component's keys with its paths turned absolute; unknown keys stay as they are."""
    by_key = {field.alias or name: field for name, field in model.model_fields.items()}
    return {
        key: resolved(value, by_key[key].annotation, join(path, key), folder_of)
        if key in by_key
        else value
        for key, value in options.items()
    }


def absolute(text: str, folder: Path) -> str:
    """``text`` as an absolute path from ``folder``; ``~`` is the home folder, links stay links."""
    return os.path.normpath(Path.cwd() / folder / Path(text).expanduser())


def _is_path(annotation: Any) -> bool:
    accepted = alternatives(annotation)
    return str not in accepted and any(
        isinstance(each, type) and issubclass(each, PurePath) for each in accepted
    )


def _arguments(annotation: Any, *containers: type) -> tuple[Any, ...]:
    for each in alternatives(annotation):
        if typing.get_origin(each) in containers:
            return typing.get_args(each)
    return ()
