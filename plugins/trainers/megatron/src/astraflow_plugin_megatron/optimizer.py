"""Megatron-Core's data parallel wrapper and distributed AdamW around this rank's part of the model."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.optimizer_config import ParamKey, ParamWithNamePredicate
from megatron.core.optimizer_param_scheduler import ParamGroupOverride

from astraflow_core.errors import NonFiniteLoss
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.model import DTYPES, Policy
from astraflow_plugin_megatron.passes import sum_gradients


class Optimizer:
    """The wrapped model :attr:`model`, and steps on the gradient that passes leave in it.

    The optimizer is Megatron-Core's, never one of plain parameters: only it adds up what each tensor
    parallel rank finds for weights that all of them hold.
    """

    def __init__(self, policy: Policy, config: MegatronConfig) -> None:
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
            settings, [self.model], _bare(policy), use_gloo_process_groups=False
        )
        (self._own,) = self._whole.chained_optimizers
        for group in self.groups:
            group["weight_decay"] = config.weight_decay * group["wd_mult"]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Of this rank's shares of the parameters: its part of the float32 weights, and their settings."""
        groups: list[dict[str, Any]] = self._whole.param_groups
        return groups

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The AdamW over :attr:`groups`."""
        optimizer: torch.optim.Optimizer = self._own.optimizer
        return optimizer

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
            group["lr"] = lr
        if self._largest:
            clip_grad_by_total_norm_fp32(self._own.get_parameters(), self._largest, norm)
        self._whole.step_with_ready_grads()
        self.zero()


def _bare(policy: Policy) -> dict[ParamKey, ParamGroupOverride]:
    """No weight decay on norms, biases and the input embedding, nor on an output layer tied to it."""
    embeddings: tuple[str, ...] = ("word_embeddings.weight",)
    if policy.share_embeddings_and_output_weights:
        embeddings += ("output_layer.weight",)

    def bare(parameter: torch.Tensor, name: str) -> bool:
        return parameter.ndim < 2 or name.endswith(embeddings)

    predicate = ParamWithNamePredicate(name="bare", fn=bare)
    return {ParamKey(with_name_predicate=predicate): ParamGroupOverride(wd_mult=0.0)}
