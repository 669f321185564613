"""Whether the targets of a run's components exist, judged from their sources."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow_core.config.load import LoadedConfig
from astraflow_runtime.config.references import unresolved


def target_problems(loaded: LoadedConfig) -> Iterator[tuple[str, str]]:
    """Path and problem of each component whose manifest names a missing target. Nothing is
    imported, so that a run fails before its processes start and not in one of them.
    """
    for path, (selected, _) in loaded.components.items():
        if selected.packaged and (problem := unresolved(selected.component.target)):
            of = f"{selected.distribution} {selected.version}"
            names = f"its manifest names {selected.component.target!r}, and {problem}"
            yield (
                path,
                f"{selected.kind} {selected.component.name!r} of {of} cannot be imported: {names}",
            )
