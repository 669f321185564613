"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import load_attribute
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_resolve_model(reference: str, seed: int, cache: object, fetch: bool) -> object:
    """Fetch the model of a reference such as ``hf:Qwen/Qwen3-0.6B@main`` into the Hugging Face cache."""
    if not reference.startswith("hf:"):
        return None
    return load_attribute("astraflow_contrib_hf_models.resolve:resolve")(reference, fetch)
