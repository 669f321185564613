"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)
ASTRAFLOW_ENVIRONMENT = "astraflow_plugin_vllm.environment:environment"


@hookimpl
def astraflow_engines() -> list[Component]:
    """The engine ``vllm``."""
    return [
        Component(
            name="vllm",
            target="astraflow_plugin_vllm.engine:VllmEngine",
            config="astraflow_plugin_vllm.config:VllmConfig",
            summary="a vLLM server, its weights swapped with requests in flight",
            capabilities=frozenset(
                {
                    "score",
                    "images",
                    "pause.keep",
                    "pause.wait",
                    "pause.abort",
                    "weights.path",
                    "weights.inflight",
                    "weights.collective",
                    "weights.ipc",
                    "sleep",
                    "lora",
                    "adapters",
                }
            ),
        )
    ]
