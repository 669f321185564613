"""The part of the weights that each rank publishes: the rows that it holds; of tensors not sharded by rows, an even share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.core_model_loading import revert_weight_conversion

from astraflow_core.types import TensorSlice
from astraflow_plugin_fsdp.sharding import full
from astraflow_torch_training.critic import NOT_PUBLISHED
from astraflow_torch_training.export import ADAPTERS, exported_tensor

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def export_shards(
    whole: Any, dtype: Literal["float32", "bfloat16"], rank: int, size: int
) -> Iterator[TensorSlice]:
    """The slices of ``rank`` of ``size``: together, those of all ranks are what
    :func:`astraflow_torch_training.export.export` gives.

    A tensor is gathered only if it is cut otherwise than in rows (by tensor parallelism), or if transformers holds
    it otherwise than a checkpoint does (stacked experts); then one at a time, by all ranks.
    """
    seen: set[int] = set()
    for name, tensor in whole.state_dict(keep_vars=True).items():
        if id(tensor) in seen or name.startswith(NOT_PUBLISHED) or name.endswith(ADAPTERS):
            continue
        seen.add(id(tensor))
        held = tensor.detach()
        held = held.to(FLOATS[dtype]) if held.is_floating_point() else held
        outline = torch.empty(held.shape, dtype=held.dtype, device="meta")
        names = [key for key, value in _as_saved(whole, name, outline) if value is outline]
        rows = _rows(held, rank, size) if names else None
        if rows is not None:
            yield _slice(names[0], tuple(held.shape), *rows)
            continue
        for saved, found in _as_saved(whole, name, full(held)):
            start, stop = _cut(found.numel(), rank, size)
            yield _slice(saved, tuple(found.shape), start, found.reshape(-1)[start:stop])


def _as_saved(whole: Any, name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    return list(revert_weight_conversion(whole, {name: tensor}).items())


def _rows(tensor: torch.Tensor, rank: int, size: int) -> tuple[int, torch.Tensor] | None:
    """The first element that this rank holds, and those that it publishes; ``None`` if they are not rows. Ranks are
    numbered ``[replica, shard, tensor]``; those that hold the same rows publish a part of them each."""
    if not isinstance(tensor, DTensor):
        return None
    mesh = tensor.device_mesh
    *others, last = tensor.placements
    in_rows = last == Shard(0) and all(place == Replicate() for place in others)
    if not in_rows or (mesh.mesh_dim_names or ("",))[-1] != "shard":
        return None
    shards = mesh.size(mesh.ndim - 1)
    alike = size // mesh.size()
    copy = rank // (shards * alike) * alike + rank % alike
    most = -(-tensor.shape[0] // shards)
    first = min(mesh.get_local_rank("shard") * most, tensor.shape[0])
    local = tensor.to_local()
    expected = min(most, tensor.shape[0] - first)
    assert local.shape[0] == expected, f"{local.shape[0]} rows where FSDP puts {expected}"
    flat = local.reshape(-1)
    start, stop = _cut(flat.numel(), copy, size // shards)
    return first * (tensor.numel() // max(1, tensor.shape[0])) + start, flat[start:stop]


def _cut(count: int, which: int, parts: int) -> tuple[int, int]:
    return count * which // parts, count * (which + 1) // parts


def _slice(name: str, shape: tuple[int, ...], start: int, flat: torch.Tensor) -> TensorSlice:
    given = exported_tensor(name, flat)
    return TensorSlice(name, given.dtype, shape, start, given.data)
