"""Whether the targets of a run's components exist and have what is called, judged from their sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from astraflow_core.component import Component
from astraflow_runtime.config.references import methods_of, unresolved

if TYPE_CHECKING:
    from astraflow_core.config.load import LoadedConfig

_PROTOCOL = "astraflow_core.protocols.tracker"
_ALWAYS = ("started", "metrics", "ended")
_BY_CAPABILITY = ("rollouts", "spans")


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


def tracker_problems(loaded: LoadedConfig) -> Iterator[tuple[str, str]]:
    """Path and problem of each tracker of the run whose class lacks a method that the run would call."""
    for name in loaded.config.trackers:
        path = f"trackers.{name}"
        selected, _ = loaded.components[path]
        if lacking := lacking_methods(selected.component):
            of = f" of {selected.distribution} {selected.version}" if selected.packaged else ""
            yield path, f"tracker {selected.component.name!r}{of} {lacking}"


def lacking_methods(tracker: Component) -> str:
    """What of the protocol a tracker's class lacks, as a text; empty if nothing, or if its sources are not conclusive. Nothing
    is imported. Methods inherited from the protocol itself do nothing, and do not count."""
    found = methods_of(tracker.target, without=_PROTOCOL)
    if found is None:
        return ""
    flags = [flag for flag in _BY_CAPABILITY if flag in tracker.capabilities]
    missing = [f"{name}()" for name in (*_ALWAYS, *flags) if name not in found]
    if not missing:
        return ""
    has = ", ".join(f"{name}()" for name in _ALWAYS)
    declared = f", and {', '.join(f'{flag}()' for flag in flags)} for its capabilities" if flags else ""  # fmt: skip
    return f"lacks {', '.join(missing)} in {tracker.target}; a tracker has {has}{declared} (docs/trackers.md)"
