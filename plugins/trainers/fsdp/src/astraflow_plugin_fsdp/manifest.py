"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_trainers() -> list[Component]:
    """The trainer ``fsdp``."""
    return [
        Component(
            name="fsdp",
            target="astraflow_plugin_fsdp.trainer:FsdpTrainer",
            config="astraflow_plugin_fsdp.config:FsdpConfig",
            summary="trains a Hugging Face causal LM sharded over ranks by FSDP2, CPU or CUDA",
            capabilities=frozenset(
                {
                    *("entropy", "reference", "proximal", "values", "logit_gradients"),
                    *("checkpoint", "adopt", "async_save", "reshard", "multi_rank", "lora"),
                    *("sharded_export", "router_replay", "gradients"),
                }
            ),
        )
    ]
