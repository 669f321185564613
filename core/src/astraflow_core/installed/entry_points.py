"""The entry points by which plugins are found."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import metadata

GROUP = "astraflow"
RUNTIME = "runtime"
"""The plugin of the distribution that runs configurations: a run requires it."""

_FIELD = re.compile(r"^(Name|Version): *(.*?)\s*$", re.MULTILINE)


@lru_cache(maxsize=64)
def installed(folder: str) -> list[tuple[metadata.Distribution, metadata.EntryPoints]]:
    """The distributions in a folder of ``sys.path``, with all their entry points; read once per process."""
    return [(found, found.entry_points) for found in metadata.distributions(path=[folder])]


@lru_cache(maxsize=4)
def scan(path: tuple[str, ...]) -> list[tuple[metadata.EntryPoint, metadata.Distribution]]:
    """Entry points of the group in name order, once per process and ``sys.path``.

    A distribution found twice counts where Python would import it from: first on the path.
    """
    found: dict[str, tuple[metadata.Distribution, list[metadata.EntryPoint]]] = {}
    for distribution, points in (pair for folder in path for pair in installed(folder)):
        if entries := list(points.select(group=GROUP)):
            normal = re.sub(r"[-_.]+", "-", name_and_version(distribution)[0]).lower()
            found.setdefault(normal, (distribution, entries))
    pairs = [(entry, distribution) for distribution, entries in found.values() for entry in entries]
    return sorted(pairs, key=lambda pair: (pair[0].name, name_and_version(pair[1])))


@lru_cache(maxsize=1024)
def name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Name and version of a distribution, also of one whose metadata a broken removal left behind."""
    # `distribution.metadata` would parse the whole description with the email package, each time.
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    fields = dict(_FIELD.findall(text.partition("\n\n")[0]))
    return fields.get("Name", "unnamed"), fields.get("Version", "unknown")
