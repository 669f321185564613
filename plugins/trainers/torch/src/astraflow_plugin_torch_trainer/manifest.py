"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_trainers() -> list[Component]:
    """The trainer ``torch``."""
    return [
        Component(
            name="torch",
            target="astraflow_plugin_torch_trainer.trainer:TorchTrainer",
            config="astraflow_plugin_torch_trainer.config:TorchTrainerConfig",
            summary="trains a Hugging Face causal LM, or adapters of it, in one process, CPU or CUDA",
            capabilities=frozenset(
                {
                    "entropy",
                    "reference",
                    "proximal",
                    "values",
                    "logit_gradients",
                    "checkpoint",
                    "adopt",
                    "lora",
                    "sleep",
                    "gradients",
                    "router_replay",
                    "images",
                }
            ),
        )
    ]
