"""Writes ``plugins.json`` of a run; :mod:`astraflow_core.installed.provenance` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astraflow_core.installed.provenance import FILE
from astraflow_wire.host.disk import replace_file


def write_plugins(directory: Path, plugins: Sequence[Mapping[str, Any]]) -> None:
    """Write the file. Each entry names ``plugin``, ``distribution``, ``version``, whether it is ``packaged``,
    its ``components`` (place in the config → name) and what it thus ``provides`` (``"KIND/NAME"``); that of a ``module:attr`` may name the ``folder`` in
    which the module lies."""
    path, content = directory / FILE, json.dumps(plugins, indent=2) + "\n"
    replace_file(path, content)
