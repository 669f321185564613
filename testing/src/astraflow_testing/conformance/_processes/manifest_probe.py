"""Imports a manifest in a fresh interpreter and says which modules came with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

_PROGRAM = """
import importlib, json, sys
from astraflow_core.component import load_attribute
from astraflow_core.installed.discovery import BadManifest, read_manifest

name = sys.argv[1]
before = set(sys.modules)
module = importlib.import_module(name)
try:
    components = read_manifest("probed", module).components
except BadManifest:
    components = ()
manifest = sorted(set(sys.modules) - before)
configs = []
for _, component in components:
    if component.config is not None:
        try:
            load_attribute(component.config)
        except Exception:
            continue
configs = sorted(set(sys.modules) - before)
print(json.dumps([manifest, configs]))
"""
DEADLINE_S = 50.0


@dataclass(frozen=True, slots=True)
class Imported:
    """Names of the modules that were imported: with the ``manifest``, registration hooks called, and
    after that with the ``configs`` that it names; ``error`` is what the interpreter said if it failed."""

    manifest: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    error: str = ""


@cache
def probe(manifest: str) -> Imported:
    """Import ``manifest`` in a new process with this one's ``sys.path``."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(  # the program is ours, its argument the name of a module
        [sys.executable, "-c", _PROGRAM, manifest],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        return Imported(error=done.stderr.strip())
    first, then = json.loads(done.stdout.strip().splitlines()[-1])
    return Imported(tuple(first), tuple(then))
