"""Where packages lie that programs may import."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from astraflow_core.errors import PreflightError


def imports_of(packages: Sequence[str]) -> dict[str, list[str]]:
    """What a sandboxed interpreter needs to import ``packages``: ``readable`` folders and files, ``listed`` folders whose
    names alone are read, ``import_paths`` and the modules to ``preload``. Libraries that a wheel keeps next to its package
    (``numpy.libs``) are readable too."""
    readable: list[str] = []
    homes: list[str] = []
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.origin:
            raise PreflightError(
                f"programs cannot be given the package {package!r}: it is not installed here (pip install {package})"
            )
        place = Path(spec.origin)
        place = place.parent if spec.submodule_search_locations else place
        readable += [str(place), *map(str, place.parent.glob(f"{package}.libs"))]
        homes.append(str(place.parent))
    homes = list(dict.fromkeys(homes))
    return {
        "readable": readable,
        "listed": homes,
        "import_paths": homes,
        "preload": list(packages),
    }
