"""What each rank publishes of the weights: its pipeline stage's, and of those its tensor parallel share, as rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist

from astraflow_core.types import TensorSlice
from astraflow_plugin_megatron.architecture import Architecture
from astraflow_plugin_megatron.ranks import Mesh
from astraflow_plugin_megatron.weights.folder import name_of
from astraflow_plugin_megatron.weights.mapping import Named, ParameterMapping, entries, unpack
from astraflow_torch_training.export import exported_tensor

Rows = tuple[Named, int, torch.Tensor]
"""Name and shape of a Hugging Face tensor, the number of its first element here, and the elements."""


@torch.no_grad()
def export_shards(
    model: torch.nn.Module, arch: Architecture, mesh: Mesh, dtype: torch.dtype
) -> Iterator[TensorSlice]:
    """The slices of this rank: together, those of all ranks are what
    :func:`~astraflow_plugin_megatron.weights.folder.full_tensors` gives rank 0. Ranks that hold the same publish a part of it
    each."""
    parameters = dict(model.named_parameters())
    for entry in entries(arch, mesh.layout.pipeline, mesh.layout.expert):
        if entry.copy or not mesh.holds(entry.stage, entry.part):
            continue
        held = parameters[name_of(entry, parameters)].detach().to(dtype)
        experts = 1 if entry.part is None else mesh.layout.expert
        copy, copies = mesh.data_rank // experts, mesh.layout.data // experts
        if entry.packing == "whole":
            copy = copy * mesh.layout.tensor + mesh.tensor_rank
            copies *= mesh.layout.tensor
        for (name, shape), first, rows in _rows(entry, held, arch, mesh):
            flat = rows.reshape(-1)
            start, stop = (len(flat) * which // copies for which in (copy, copy + 1))
            given = exported_tensor(name, flat[start:stop])
            yield TensorSlice(name, given.dtype, shape, first + start, given.data)


def _rows(
    entry: ParameterMapping, held: torch.Tensor, arch: Architecture, mesh: Mesh
) -> Iterator[Rows]:
    """What a tensor parallel rank holds of each Hugging Face tensor of a parameter, as consecutive rows."""
    rank, ranks = mesh.tensor_rank, mesh.layout.tensor
    if entry.packing == "whole":
        yield entry.sources[0], 0, held
    elif entry.packing == "vocabulary":
        first = min(rank * held.shape[0], arch.vocabulary)
        rows = held[: arch.vocabulary - first]
        yield entry.sources[0], first * arch.hidden, rows
    elif entry.packing == "columns":
        first, rows = _turned(held, mesh)
        yield entry.sources[0], first * rows.shape[1], rows
    else:  # whole groups of heads, or rows of the gates and of the ups
        own = replace(arch, heads=arch.heads // ranks, groups=arch.groups // ranks)
        for source, rows in zip(entry.sources, unpack(entry.packing, [held], own), strict=True):
            yield source, rank * rows.numel(), rows


def _turned(held: torch.Tensor, mesh: Mesh) -> tuple[int, torch.Tensor]:
    """Of a matrix of which each rank holds columns ``[R, C / ranks]``: the number of this rank's first row, and its
    rows ``[about R / ranks, C]``. Each rank gives and gets its share of one matrix, no more."""
    ranks = mesh.layout.tensor
    ends = [held.shape[0] * rank // ranks for rank in range(ranks + 1)]
    sizes = [stop - start for start, stop in itertools.pairwise(ends)]
    mine = sizes[mesh.tensor_rank]
    given = held.contiguous().view(torch.uint8)  # gloo and NCCL know bytes, whatever the dtype
    got = torch.empty((ranks * mine, given.shape[1]), dtype=torch.uint8, device=given.device)
    dist.all_to_all_single(got, given, [mine] * ranks, sizes, group=mesh.tensor_group)
    rows = got.view(held.dtype).view(ranks, mine, held.shape[1]).transpose(0, 1)
    return ends[mesh.tensor_rank], rows.reshape(mine, ranks * held.shape[1])
