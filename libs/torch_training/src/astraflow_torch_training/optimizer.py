"""Optimizers over the parameters of a policy and its critic, and the clip of their gradients."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import torch

from astraflow_core.errors import NonFiniteLoss, UserError
from astraflow_core.protocols.trainer import AdamWStep
from astraflow_torch_training.config import TrainingConfig
from astraflow_torch_training.critic import CRITIC, NOT_PUBLISHED
from astraflow_torch_training.model import CausalLM


class AdamW(torch.optim.AdamW):
    """torch's own, without what imports its compiler: the methods that torch wraps to keep the compiler out of them import it when they
    are first called, which takes 0.8 CPU seconds."""

    add_param_group: Any = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad: Any = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step: Any = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def adamw(model: CausalLM, config: TrainingConfig) -> torch.optim.AdamW:
    """Over all parameters that are trained. Weight decay on matrices but embeddings and value heads; each group
    has an ``lr_scale``."""
    given = _groups(model, config)
    return AdamW(given, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def adamw8bit(model: CausalLM, config: TrainingConfig) -> torch.optim.Optimizer:
    """:func:`adamw` with moments in 8 bits, each block of 256 with a scale (Dettmers et al. 2021, arXiv:2110.02861), as
    torchao has it: 2 bytes per parameter instead of 8, tensors of less than 4096 numbers left in float32. Its step
    is compiled."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise UserError(
            f"optimizer = 'adamw8bit' needs torchao, which cannot be imported ({error}): "
            "pip install 'astraflow-plugin-torch-trainer[adamw8bit]'"
        ) from error
    found: torch.optim.Optimizer = AdamW8bit(
        _groups(model, config), lr=config.lr, betas=config.betas, eps=config.eps
    )
    return found


def muon(model: CausalLM, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) on the matrices of the policy's layers, its step scaled to the size of AdamW's so that
    ``lr`` means the same (Liu et al. 2025, arXiv:2502.16982), and AdamW on embeddings, output layer, vectors
    and critic."""
    if not hasattr(torch.optim, "Muon"):
        raise UserError(
            f"optimizer = 'muon' needs torch 2.9 or later; {torch.__version__} is installed"
        )
    apart = {model.whole.get_input_embeddings().weight, model.head.weight}
    apart |= {p for n, p in model.whole.named_parameters() if n.startswith(NOT_PUBLISHED)}
    groups = _groups(model, config)
    matrices, rest = [], []
    for group in groups:
        chosen = [p for p in group["params"] if p.ndim == 2 and p not in apart]
        taken = set(chosen)
        others = [p for p in group["params"] if p not in taken]
        matrices += [{**group, "params": chosen}] if chosen else []
        rest += [{**group, "params": others}] if others else []
    found: list[torch.optim.Optimizer] = []
    if matrices:
        found.append(torch.optim.Muon(matrices, lr=config.lr, adjust_lr_fn="match_rms_adamw"))
    if rest:
        options: Any = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
        found.append(AdamW(rest, fused=True, **options))
    return found


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give each group ``lr`` times its ``lr_scale``; where it is a tensor, which compiled steps have, in place."""
    for group in optimizer.param_groups:
        given = lr * group["lr_scale"]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(given)
        else:
            group["lr"] = given


def set_adamw(optimizer: torch.optim.AdamW, settings: AdamWStep) -> None:
    """Give each group these settings; weight decay those only that it is meant for."""
    set_lr(optimizer, settings.lr)
    for group in optimizer.param_groups:
        decay = settings.weight_decay if group["decayed"] else 0.0
        group.update(betas=settings.betas, eps=settings.eps, weight_decay=decay)


def _groups(model: CausalLM, config: TrainingConfig) -> list[dict[str, Any]]:
    bare = {model.whole.get_input_embeddings().weight}
    if model.critic is not None:
        bare.add(model.critic.backbone.get_input_embeddings().weight)
    groups: dict[tuple[bool, float, Any], list[torch.nn.Parameter]] = {
        (True, 1.0, None): [],
        (False, 1.0, None): [],
    }
    for name, parameter in model.whole.named_parameters():
        if not parameter.requires_grad:
            continue
        valued = name.startswith(NOT_PUBLISHED)
        backbone = not valued or name.startswith(f"{CRITIC}.backbone.")
        decayed = backbone and parameter.ndim >= 2 and parameter not in bare
        key = (
            decayed,
            config.value_lr_scale if valued else 1.0,
            _mesh(parameter),
        )
        groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if decayed else 0.0,
            "lr_scale": scale,
            "decayed": decayed,
        }
        for (decayed, scale, _), parameters in groups.items()
        if parameters
    ]


def clip_gradients(model: CausalLM, largest: float) -> dict[str, float]:
    """``grad_norm`` before it is clipped to ``largest`` (0: not), and ``critic_grad_norm``, clipped separately,
    of a separate critic. Raises :class:`NonFiniteLoss` before anything is changed."""
    critic = [] if model.critic is None else list(model.critic.whole.parameters())
    apart = set(critic)
    parts = {"grad_norm": [p for p in model.whole.parameters() if p not in apart]}
    if critic:
        parts["critic_grad_norm"] = critic
    found = {name: _norm(parameters) for name, parameters in parts.items()}
    for name, norm in found.items():
        if not math.isfinite(norm):
            raise NonFiniteLoss(f"{name} is {norm}")
    if largest:
        for name, parameters in parts.items():
            for alike in _by_mesh(parameters):
                torch.nn.utils.clip_grads_with_norm_(alike, largest, torch.tensor(found[name]))
    return found


def _norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    parts = [
        torch.nn.utils.get_total_norm([p.grad for p in alike if p.grad is not None])
        for alike in _by_mesh(parameters)
    ]
    return math.hypot(*(float(_full(part)) for part in parts))


def _by_mesh(parameters: Iterable[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters that are held by the same ranks, apart from others: no operation takes both."""
    found: dict[Any, list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        found.setdefault(_mesh(parameter), []).append(parameter)
    return list(found.values())


def _mesh(parameter: torch.nn.Parameter) -> Any:
    """The ranks that hold it; ``None``: one process."""
    return getattr(parameter, "device_mesh", None)


def _full(norm: torch.Tensor) -> torch.Tensor:
    """Of a gradient held by several ranks the norm is a DTensor whose parts are not yet added up."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
