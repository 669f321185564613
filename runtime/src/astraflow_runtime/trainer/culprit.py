"""Finds the component that raised an unexpected error in a trainer's process, with file and line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.catalog import Catalog, Selected
from astraflow_core.component import Kind
from astraflow_core.config.models import PolicyTable
from astraflow_runtime.config.references import source_of


@dataclass(frozen=True, slots=True)
class Owner:
    """``what`` is implemented in ``path``, a file or a folder."""

    what: str
    path: Path


def owners(catalog: Catalog, table: PolicyTable) -> list[Owner]:
    """The components of a policy's trainer process, then every plugin with lifecycle hooks."""
    named = (
        (Kind.ALGORITHM, table.algorithm),
        (Kind.TRAINER, table.trainer),
        (Kind.TRANSPORT, table.transport),
    )
    found = [owner for kind, part in named for owner in _owners(catalog.select(kind, part.use))]
    for plugin in catalog.plugins:
        if plugin.healthy and plugin.hooks:
            file = Path(plugin.file)
            alone = "." not in plugin.manifest
            what = f"plugin {plugin.name!r} ({plugin.distribution} {plugin.version})"
            found.append(Owner(what, file if alone else file.parent))
    return found


def _owners(selected: Selected) -> Iterator[Owner]:
    module = selected.component.target.partition(":")[0]
    file = source_of(module)
    if file is not None:
        by = f" of {selected.distribution} {selected.version}" if selected.packaged else ""
        what = f"{selected.kind} {selected.component.name!r}{by}"
        yield Owner(what, file.parent if selected.packaged and "." in module else file)


def describe(error: BaseException, known: Sequence[Owner]) -> str:
    """``"algorithm 'x' of DISTRIBUTION raised TYPE: TEXT (FILE:LINE in FUNCTION)"``: the innermost frame that
    belongs to one of ``known``, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    said = f"{type(error).__name__}: {error}"
    for frame in reversed(frames):
        for owner in known:
            if Path(frame.filename).is_relative_to(owner.path):
                return f"{owner.what} raised {said} ({_location(frame)})"
    return f"{said} ({_location(frames[-1])})" if frames else said


def _location(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno} in {frame.name}"
