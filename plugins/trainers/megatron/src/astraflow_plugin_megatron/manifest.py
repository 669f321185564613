"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_trainers() -> list[Component]:
    """The trainer ``megatron``."""
    return [
        Component(
            name="megatron",
            target="astraflow_plugin_megatron.trainer:MegatronTrainer",
            config="astraflow_plugin_megatron.config:MegatronConfig",
            summary="trains Llama and Qwen with Megatron-Core: tensor, pipeline, expert parallel",
            capabilities=frozenset(
                {
                    "entropy",
                    "logit_gradients",
                    "reference",
                    "proximal",
                    "values",
                    "checkpoint",
                    "adopt",
                    "async_save",
                    "multi_rank",
                    "reshard",
                    "sharded_export",
                    "lora",
                    "router_replay",
                }
            ),
        )
    ]
