"""The routes of vLLM that this engine uses."""

from __future__ import annotations

from astraflow_plugin_vllm.requests import PATH

ROUTES = frozenset(
    {
        PATH, "/abort_requests", "/pause", "/resume", "/update_weight_version", "/collective_rpc",
        "/init_weight_transfer_engine", "/start_weight_update", "/update_weights",
        "/finish_weight_update",
    }
)  # fmt: skip
