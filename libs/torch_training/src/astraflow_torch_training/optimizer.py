"""AdamW over the parameters of a policy and its critic, and the clip of their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from astraflow_core.errors import NonFiniteLoss
from astraflow_torch_training.config import TrainingConfig
from astraflow_torch_training.critic import CRITIC, NOT_PUBLISHED
from astraflow_torch_training.model import CausalLM


def adamw(model: CausalLM, config: TrainingConfig) -> torch.optim.AdamW:
    """Weight decay on matrices but embeddings and value heads; each group has an ``lr_scale``."""
    bare = {model.whole.get_input_embeddings().weight}
    if model.critic is not None:
        bare.add(model.critic.backbone.get_input_embeddings().weight)
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {
        (config.weight_decay, 1.0): [],
        (0.0, 1.0): [],
    }
    for name, parameter in model.whole.named_parameters():
        valued = name.startswith(NOT_PUBLISHED)
        backbone = not valued or name.startswith(f"{CRITIC}.backbone.")
        decayed = backbone and parameter.ndim >= 2 and parameter not in bare
        key = (config.weight_decay * decayed, config.value_lr_scale if valued else 1.0)
        groups.setdefault(key, []).append(parameter)
    given: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (decay, scale), parameters in groups.items()
        if parameters
    ]
    return torch.optim.AdamW(given, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def clip_gradients(model: CausalLM, largest: float) -> dict[str, float]:
    """``grad_norm`` before it is clipped to ``largest`` (0: not), and ``critic_grad_norm``, clipped by
    itself, of a critic of its own. Raises :class:`NonFiniteLoss` before anything is changed."""
    critic = [] if model.critic is None else list(model.critic.whole.parameters())
    apart = set(critic)
    parts = {"grad_norm": [p for p in model.whole.parameters() if p not in apart]}
    if critic:
        parts["critic_grad_norm"] = critic
    norms = {
        name: torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        for name, parameters in parts.items()
    }
    found = {name: float(_full(norm)) for name, norm in norms.items()}
    for name, norm in found.items():
        if not math.isfinite(norm):
            raise NonFiniteLoss(f"{name} is {norm}")
    if largest:
        for name, parameters in parts.items():
            torch.nn.utils.clip_grads_with_norm_(parameters, largest, norms[name])
    return found


def _full(norm: torch.Tensor) -> torch.Tensor:
    """Of a gradient held by several ranks the norm is a DTensor whose parts are not yet added up."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
