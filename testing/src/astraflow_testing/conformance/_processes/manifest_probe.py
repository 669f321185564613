"""Imports a manifest in a new interpreter and reports the modules that were imported with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from astraflow_testing.conformance._processes.interpreter import InterpreterFailed, ask

_PROGRAM = """
import importlib, sys
from astraflow_core.component import load_attribute
from astraflow_core.installed.discovery import BadManifest, read_manifest

def answer(name):
    before = set(sys.modules)
    module = importlib.import_module(name)
    try:
        components = read_manifest("probed", module).components
    except BadManifest:
        components = ()
    manifest = sorted(set(sys.modules) - before)
    for _, component in components:
        if component.config is not None:
            try:
                load_attribute(component.config)
            except Exception:
                continue
    return manifest, sorted(set(sys.modules) - before)
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
    try:
        first, then = ask(_PROGRAM, manifest, DEADLINE_S)
    except InterpreterFailed as error:
        return Imported(error=f"importing {manifest}: {error}")
    return Imported(tuple(first), tuple(then))
