"""The routes of vLLM that this engine uses, and which of them a server lacks."""

from __future__ import annotations

import json

from astraflow_core.errors import AstraFlowError
from astraflow_core.serving.http import Client
from astraflow_plugin_vllm.requests import PATH

ROUTES = frozenset(
    {
        PATH, "/abort_requests", "/pause", "/resume", "/update_weight_version", "/collective_rpc",
        "/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
        "/finish_weight_update",
    }
)  # fmt: skip


async def what_differs(client: Client) -> str:
    """In words, for a version that was not proved, by the server's own description of its routes."""
    try:
        known = set(json.loads(await client.get("/openapi.json"))["paths"])
    except (AstraFlowError, ValueError, KeyError) as error:
        return f"it does not describe its routes ({error}), so nobody can say what differs"
    missing = ", ".join(sorted(ROUTES - known))
    if missing:
        return f"it has no {missing}"
    return "its routes have the same names, and may take or return something else"
