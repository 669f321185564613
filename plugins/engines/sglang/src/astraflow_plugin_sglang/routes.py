"""The routes of SGLang that this engine uses, and what it says about itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from astraflow_core.errors import WireError
from astraflow_plugin_sglang.generation import PATH
from astraflow_serving.http import ServerClient, ServerRefused
from astraflow_wire.decoding import from_json

ROUTES = frozenset(
    {
        PATH, "/abort_request", "/pause_generation", "/continue_generation", "/flush_cache",
        "/begin_weight_update", "/end_weight_update", "/update_weights_from_disk",
        "/update_weights_from_tensor", "/init_weights_update_group", "/destroy_weights_update_group",
        "/update_weights_from_distributed",
    }
)  # fmt: skip
_INFO = ("/server_info", "/get_server_info")
"""The second is the name of older versions."""


async def server_info(client: ServerClient) -> dict[str, Any]:
    """How the server was started; empty if it does not say. Its scheduler takes part in the answer, so that all earlier
    requests to it are done then."""
    for path in _INFO:
        with suppress(ServerRefused, WireError):
            return from_json(await client.get(path), dict[str, Any], "no description")
    return {}
