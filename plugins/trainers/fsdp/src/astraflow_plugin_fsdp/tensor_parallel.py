"""Tensor parallelism by DTensor (Shoeybi et al. 2019, "Megatron-LM"): the heads of attention and the columns of the MLP
are shared out, and two sums per layer put the hidden states together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from astraflow_core.errors import UserError
from astraflow_torch_training.lora import adapted

COLUMNS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)
ROWS = ("self_attn.o_proj", "mlp.down_proj")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
"""Each rank holds them whole and sees the gradient of its heads only."""


def check(whole: Any, layers: Iterable[Any], ranks: int) -> None:
    """Refuse (:class:`UserError`) a model whose layers are not those of Qwen3 or Llama, or are not divisible."""
    config = whole.config
    sizes = {
        name: getattr(config, name)
        for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
        if hasattr(config, name)
    }
    for name, size in sizes.items():
        if size % ranks:
            raise UserError(
                f"tensor_parallel = {ranks} does not divide {name} = {size} of {type(whole).__name__}"
            )
    for layer in layers:
        held = {n.rpartition(".")[0] for n, _ in layer.named_parameters() if _is_inner(n)}
        strange = sorted((held ^ {*COLUMNS, *ROWS}) - {*HEAD_NORMS})
        head_dim = layer.self_attn.head_dim if not strange else 0
        strange += [
            name
            for name in HEAD_NORMS
            if not strange and name in held and layer.get_submodule(name).weight.numel() != head_dim
        ]
        if strange:
            raise UserError(
                f"tensor_parallel supports layers like those of Qwen3 and Llama; those of {type(whole).__name__} differ "
                f"in {', '.join(strange)}: set tensor_parallel = 1"
            )


def _is_inner(name: str) -> bool:
    return name.startswith(("self_attn.", "mlp."))


def split(layers: Iterable[Any], mesh: DeviceMesh) -> None:
    """Share the matrices of each layer among the ranks of ``mesh`` ``[T]``; hidden states stay whole on each."""
    plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS}
    plan |= {name: RowwiseParallel() for name in ROWS}
    for layer in layers:
        adapters = [(name, to, to.lora_A, to.lora_B) for name, to in adapted(layer)]
        parallelize_module(layer, mesh, plan)
        for name, to, low, high in adapters:
            # A matrix that is cut by columns has whole inputs, one that is cut by rows whole outputs.
            places = (Replicate(), Shard(0)) if name in COLUMNS else (Shard(1), Replicate())
            to.lora_A, to.lora_B = (
                torch.nn.Parameter(distribute_tensor(part.detach(), mesh, [place]))
                for part, place in zip((low, high), places, strict=True)
            )


@torch.no_grad()
def add_up(whole: Any, mesh: DeviceMesh) -> None:
    """Sum the gradients of the norms of heads over the ranks of ``mesh``, in one collective. All others are the same
    on each rank of it already, or of the rank's own part."""
    parts = [
        parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        for name, parameter in whole.named_parameters()
        if parameter.grad is not None and name.rpartition(".")[0].endswith(HEAD_NORMS)
    ]
    if not parts:
        return
    together = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(together, group=mesh.get_group())
    totals = torch.split(together, [part.numel() for part in parts])
    for part, total in zip(parts, totals, strict=True):
        part.copy_(total.view_as(part))
