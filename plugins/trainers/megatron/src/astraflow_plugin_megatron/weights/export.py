"""The weights on their way out, gathered on rank 0: whole, as adapters, or with these merged."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from astraflow_plugin_megatron.architecture import Architecture
from astraflow_plugin_megatron.config import MegatronConfig
from astraflow_plugin_megatron.ranks import Mesh
from astraflow_plugin_megatron.weights.folder import full_tensors
from astraflow_plugin_megatron.weights.mapping import HALVES, adapter_entries, entries
from astraflow_torch_training.export import PEFT_PREFIX

Named = Iterator[tuple[str, torch.Tensor]]


def published(
    model: torch.nn.Module,
    arch: Architecture,
    config: MegatronConfig,
    mesh: Mesh,
    dtype: torch.dtype,
) -> Named:
    """The tensors of a version, in ``dtype``: the weights, or of a model with adapters these under PEFT's names, the
    scale folded into B. See :func:`~astraflow_plugin_megatron.weights.folder.full_tensors`."""
    if not config.lora_rank:
        yield from _all_tensors(model, arch, mesh, dtype)
        return
    for name, tensor in _adapters(model, arch, config, mesh):
        scaled = tensor * config.lora_scale if name.endswith(f"{HALVES[1]}.weight") else tensor
        yield name, scaled.to(dtype)


def merged(
    model: torch.nn.Module,
    arch: Architecture,
    config: MegatronConfig,
    mesh: Mesh,
    dtype: torch.dtype,
) -> Named:
    """The weights in ``dtype``, each ``W + s B A`` where there is an adapter."""
    if not config.lora_rank:
        yield from _all_tensors(model, arch, mesh, dtype)
        return
    held = dict(_adapters(model, arch, config, mesh))
    for name, tensor in _all_tensors(model, arch, mesh, torch.float32):
        stem = f"{PEFT_PREFIX}{name.removesuffix('.weight')}"
        low, high = (held.get(f"{stem}.{half}.weight") for half in HALVES)
        if low is not None and high is not None:
            tensor = torch.addmm(tensor, high, low, alpha=config.lora_scale)
        yield name, tensor.to(dtype)


def _all_tensors(
    model: torch.nn.Module, arch: Architecture, mesh: Mesh, dtype: torch.dtype
) -> Named:
    plan = entries(arch, mesh.layout.pipeline, mesh.layout.expert)
    return full_tensors(model, plan, arch, mesh, dtype)


def _adapters(
    model: torch.nn.Module, arch: Architecture, config: MegatronConfig, mesh: Mesh
) -> Named:
    plan = adapter_entries(arch, mesh.layout.pipeline, config.lora_rank, config.lora_targets)
    return full_tensors(model, plan, arch, mesh, torch.float32)
