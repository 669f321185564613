"""Whether evaluation sets are held out: where they come from, and what of them was rolled out for training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astraflow_core.config.models import ComponentTable, RunConfig
from astraflow_wire.status import SetOverlap


def shared_origins(config: RunConfig) -> dict[str, str]:
    """Evaluation set → what it has in common with ``[prompts]``: a file, by whatever path, or the whole table. A set that
    has neither is not here, nor one that is another ``split`` of the same source; it may hold the same prompts all the
    same, which the dataflow counts."""
    trained = {_identity(path): path for path in _files(config.prompts.options)}
    found = {}
    for name, table in config.eval.sets.items():
        files = [path for path in _files(table.options) if _identity(path) in trained]
        if _other_split(config.prompts, table):
            continue
        if files:
            found[name] = f"it reads {files[0]}, which is used for training"
        elif (table.use, table.options) == (config.prompts.use, config.prompts.options):
            found[name] = f"it is the prompt source {table.use!r} with the keys of [prompts]"
    return found


def _other_split(trained: ComponentTable, evaluated: ComponentTable) -> bool:
    """Whether a source that keeps its splits apart, as the key ``split`` says, gives one for training and another one
    for evaluation."""
    splits = [table.options.get("split") for table in (trained, evaluated)]
    return trained.use == evaluated.use and None not in splits and splits[0] != splits[1]


def notes(config: RunConfig) -> Iterator[str]:
    """The same, before a run begins."""
    for name, origin in shared_origins(config).items():
        yield f"evaluation set {name!r} is not held out: {origin}"


def described(config: RunConfig, overlap: Mapping[str, SetOverlap]) -> dict[str, dict[str, Any]]:
    """For the summary, of each set: ``prompts``, how many of them were rolled out for training (``trained_on``), and its
    ``shared_origin`` with the training data, empty if there is none known."""
    origins = shared_origins(config)
    return {
        name: {
            "prompts": entry.prompts,
            "trained_on": entry.trained_on,
            "shared_origin": origins.get(name, ""),
        }
        for name, entry in overlap.items()
    }


def verdict(overlap: Mapping[str, Mapping[str, Any]]) -> str:
    """Why the sets are not held out, of what :func:`described` gave; empty if they are."""
    parts = []
    for name, entry in overlap.items():
        if entry["trained_on"] or entry["shared_origin"]:
            origin = f" ({entry['shared_origin']})" if entry["shared_origin"] else ""
            parts.append(
                f"{entry['trained_on']} of {entry['prompts']} prompts of {name!r} were also rolled out for "
                f"training{origin}"
            )
    return "; ".join(parts)


def _files(value: Any) -> Iterator[Path]:
    """The files that a table names; a config has absolute paths once it is loaded."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _files(each)
    elif isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and os.path.isabs(text) and os.path.isfile(text):
            yield Path(text)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
