"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import load_attribute
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_resolve_model(reference: str, seed: int, cache: object, fetch: bool) -> object:
    """Make the model of a reference such as ``tiny:qwen3?hidden=128&layers=2``; nothing is ever fetched."""
    if not reference.startswith("tiny:"):
        return None
    resolve = load_attribute("astraflow_contrib_tiny_models.resolve:resolve")
    return resolve(reference, seed, cache)
