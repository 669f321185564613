"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_engines() -> list[Component]:
    """The engine ``torch``."""
    return [
        Component(
            name="torch",
            target="astraflow_plugin_torch_engine.engine:TorchEngine",
            config="astraflow_plugin_torch_engine.config:TorchEngineConfig",
            summary="continuous batching of a Hugging Face causal LM in this process, CPU or CUDA",
            capabilities=frozenset(
                {
                    "score",
                    "pause.keep",
                    "pause.wait",
                    "pause.abort",
                    "weights.path",
                    "weights.inflight",
                    "weights.collective",
                    "weights.ipc",
                    "lora",
                    "adapters",
                    "router_replay",
                    "images",
                }
            ),
        )
    ]
