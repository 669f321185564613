"""Where the modules of ``use = "module:attr"`` and ``[rollouts] redact`` lie: in the folder of the file that names them,
unless Python has them elsewhere."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

from astraflow_core.config.sources import Layers
from astraflow_core.config.tables import component_tables
from astraflow_core.installed.provenance import module_folders, read_plugins

AT_START = frozenset(sys.path)
"""Where every process of this interpreter looks for modules."""


def make_importable(layers: Layers, run_directory: Path | None) -> None:
    """Put the folders of a run's own modules behind all others on ``sys.path``, where they hide nothing.
    ``run_directory``: of a run that has begun, which knows where it found them."""
    folders = module_folders(read_plugins(run_directory)) if run_directory is not None else []
    tables = [(place.path, place.table) for place in component_tables(layers.raw)]
    own = [p for p, t in tables if isinstance(t, Mapping) and ":" in str(t.get("use", ""))]
    keys = ["rollouts.redact", *(f"{path}.use" for path in own)]
    origins = [origin for key in keys if (origin := layers.origin(key)) is not None]
    folders += [str(origin.folder.resolve()) for origin in origins]
    new = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    sys.path += new
    if new:
        importlib.invalidate_caches()
