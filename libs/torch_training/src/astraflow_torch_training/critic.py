"""The value model: a head on the policy's backbone, or on a separate backbone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from astraflow_torch_training.model import VALUE_HEAD, CausalLM

CRITIC = "critic"
"""Name of a separate critic among the modules of the policy's model; it is never published."""
NOT_PUBLISHED = (f"{VALUE_HEAD}.", f"{CRITIC}.")


def with_value_head(model: CausalLM) -> CausalLM:
    """The policy itself with a linear head on its last hidden states."""
    model.whole.add_module(VALUE_HEAD, _head(model.head.weight.shape[1], model.device))
    return model


def with_critic(model: CausalLM, loaded: CausalLM) -> CausalLM:
    """The policy with the backbone of ``loaded`` and a linear head as a separate model. Its weights are
    parameters of the policy's ``whole``, and with that part of optimizer and checkpoints; the output layer is
    left out."""
    size = loaded.head.weight.shape[1]
    parts: Any = torch.nn.ModuleDict(
        {"backbone": loaded.backbone, VALUE_HEAD: _head(size, model.device)}
    )
    model.whole.add_module(CRITIC, parts)
    return replace(model, critic=replace(loaded, whole=parts, head=None, replay=None))


def _head(size: int, device: torch.device) -> torch.nn.Linear:
    """Float32, 0 everywhere at first."""
    head = torch.nn.Linear(size, 1, device=device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head
