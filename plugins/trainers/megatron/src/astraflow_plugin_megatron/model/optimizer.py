"""Megatron-Core's data parallel wrapper and distributed AdamW around this rank's part of the model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.optimizer_config import ParamKey, ParamWithNamePredicate
from megatron.core.optimizer_param_scheduler import ParamGroupOverride

from astraflow_core.errors import NonFiniteLoss
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.model.passes import sum_gradients
from astraflow_plugin_megatron.model.policy import DTYPES, VALUE_HEAD, PolicyModel


@dataclass(frozen=True, slots=True)
class ParameterShard:
    """What this rank holds of a ``parameter`` for the optimizer: its elements from ``start`` on, float32 and flat
    in ``main``, whose state is ``optimizer.state[main]``."""

    parameter: torch.nn.Parameter
    start: int
    main: torch.Tensor
    optimizer: torch.optim.Optimizer


class Optimizer:
    """The wrapped model :attr:`model`, and steps on the gradient that passes leave in it.

    The optimizer is Megatron-Core's, never one of plain parameters: only it adds up what each tensor
    parallel rank finds for weights that all of them hold.
    """

    def __init__(self, policy: PolicyModel, config: MegatronConfig) -> None:
        self._largest = config.max_grad_norm
        policy.config.finalize_model_grads_func = sum_gradients
        self.model = DistributedDataParallel(
            policy.config,
            DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            policy,
        )
        settings = OptimizerConfig(
            optimizer="adam",
            lr=config.lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            bf16=config.compute_dtype == "bfloat16",
            params_dtype=DTYPES[config.compute_dtype],
            use_distributed_optimizer=True,
            clip_grad=config.max_grad_norm,
        )
        self._whole = get_megatron_optimizer(
            settings, [self.model], _overrides(policy, config), use_gloo_process_groups=False
        )
        self._parts: list[Any] = self._whole.chained_optimizers
        for group in self.groups:
            group["weight_decay"] = config.weight_decay * group["wd_mult"]
            group["lr_scale"] = 1.0 if group["max_lr"] == config.lr else config.value_lr_scale

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Of this rank's shares of the parameters: its part of the float32 weights, and their settings."""
        groups: list[dict[str, Any]] = self._whole.param_groups
        return groups

    def pieces(self) -> Iterator[ParameterShard]:
        """Of all parameters of which this rank holds one."""
        for part in self._parts:
            inner: torch.optim.Optimizer = part.optimizer
            for parameter, (group, place) in part.model_param_group_index_map.items():
                main = inner.param_groups[group]["params"][place]
                held = part._get_model_param_range_map(parameter)["param"]
                yield ParameterShard(parameter, held.start, main, inner)

    @torch.no_grad()
    def take_parameters(self) -> None:
        """Continue from the model's parameters, which have changed; the moments stay."""
        for piece in self.pieces():
            end = piece.start + piece.main.numel()
            piece.main.copy_(piece.parameter.flatten()[piece.start : end])

    def zero(self) -> None:
        """Forget the gradient."""
        self.model.zero_grad_buffer()
        self._whole.zero_grad()

    def norm(self) -> float:
        """Of the whole gradient, the same on all ranks. Raises :class:`NonFiniteLoss`."""
        self._whole.prepare_grads()
        norm = float(self._whole.get_grad_norm())
        if not math.isfinite(norm):
            raise NonFiniteLoss(f"grad_norm is {norm}")
        return norm

    def step(self, lr: float, norm: float) -> None:
        """One step after :meth:`norm`, the gradient clipped to ``max_grad_norm``."""
        for group in self.groups:
            group["lr"] = lr * group["lr_scale"]
        if self._largest:
            for part in self._parts:
                clip_grad_by_total_norm_fp32(part.get_parameters(), self._largest, norm)
        self._whole.step_with_ready_grads()
        self.zero()


def _overrides(policy: PolicyModel, config: MegatronConfig) -> dict[ParamKey, ParamGroupOverride]:
    """No weight decay on norms, biases, the value head and the input embedding, nor on an output layer tied to it;
    the value head with its own learning rate."""
    embeddings: tuple[str, ...] = ("word_embeddings.weight",)
    if policy.share_embeddings_and_output_weights:
        embeddings += ("output_layer.weight",)

    def bare(parameter: torch.Tensor, name: str) -> bool:
        return parameter.ndim < 2 or name.endswith(embeddings) or valued(parameter, name)

    def valued(parameter: torch.Tensor, name: str) -> bool:
        return f"{VALUE_HEAD}." in name

    found = {}
    for apart, override in (
        (bare, ParamGroupOverride(wd_mult=0.0)),
        (valued, ParamGroupOverride(max_lr=config.lr * config.value_lr_scale)),
    ):
        predicate = ParamWithNamePredicate(name=apart.__name__, fn=apart)
        found[ParamKey(with_name_predicate=predicate)] = override
    return found
