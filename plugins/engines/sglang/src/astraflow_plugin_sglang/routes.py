"""The routes of SGLang that this engine uses, and how it says its version."""

from __future__ import annotations

import json
from contextlib import suppress

from astraflow_core.serving.http import Client, ServerRefused
from astraflow_plugin_sglang.generation import PATH

ROUTES = frozenset(
    {
        PATH, "/abort_request", "/pause_generation", "/continue_generation",
        "/update_weights_from_disk", "/update_weights_from_tensor", "/init_weights_update_group",
        "/update_weights_from_distributed",
    }
)  # fmt: skip
_INFO = ("/server_info", "/get_server_info")
"""The second is the name of older versions."""


async def version_of(client: Client) -> str | None:
    """What the server says that it is; ``None`` if it does not say."""
    for path in _INFO:
        with suppress(ServerRefused, ValueError):
            info = json.loads(await client.get(path))
            if isinstance(info, dict) and isinstance(info.get("version"), str):
                return str(info["version"])
    return None
