"""Weights between a Hugging Face folder and the ranks, one tensor at a time in both directions."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from astraflow_core.errors import UserError
from astraflow_plugin_megatron.architecture import Architecture
from astraflow_plugin_megatron.ranks import Mesh
from astraflow_plugin_megatron.weights.mapping import (
    HALVES,
    ParameterMapping,
    entries,
    pack,
    unpack,
    value_head,
)
from astraflow_torch_training.adoption import unscaled

IGNORED = ("rotary_emb.inv_freq",)
"""Buffers that old checkpoints carry and that are computed."""


@torch.no_grad()
def load_folder(model: torch.nn.Module, folder: Path, arch: Architecture, mesh: Mesh) -> None:
    """Fill this rank's part of the model. Raises :class:`UserError` if tensors are missing, superfluous or of
    another shape."""
    files = _files(folder)
    plan = list(entries(arch, mesh.layout.pipeline, mesh.layout.expert))
    expected = {name for entry in plan for name, _ in entry.sources}
    superfluous = {
        name
        for name in files.keys() - expected
        if not name.endswith(IGNORED) and not (arch.tied and name == "lm_head.weight")
    }
    for what, names in (("lacks", expected - files.keys()), ("has besides", superfluous)):
        if names:
            raise UserError(f"{folder} {what} {len(names)} tensors: {', '.join(sorted(names)[:3])}")

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return _read(files[name], name, shape)

    left = _fill(model, plan, read, arch, mesh)
    left -= {name for entry in value_head(arch, 1) for name in entry.names}
    assert not left, f"parameters that no tensor fills: {sorted(left)}"


@torch.no_grad()
def load_adapters(
    model: torch.nn.Module,
    file: Path,
    plan: Iterable[ParameterMapping],
    arch: Architecture,
    scale: float,
    mesh: Mesh,
) -> None:
    """Fill this rank's part of the adapters of ``plan`` from ``file``, which has them as they are published, the
    ``scale`` folded into B. Raises :class:`UserError` if one is missing or of another shape."""

    def read(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = _read(file, name, shape).float()
        return unscaled(tensor, scale) if name.endswith(f"{HALVES[1]}.weight") else tensor

    _fill(model, plan, read, arch, mesh)


def _fill(
    model: torch.nn.Module,
    plan: Iterable[ParameterMapping],
    read: Callable[[str, tuple[int, ...]], torch.Tensor],
    arch: Architecture,
    mesh: Mesh,
) -> set[str]:
    """Set the parameters of ``plan`` that this rank holds; returns the names of the others."""
    parameters = dict(model.named_parameters())
    for entry in plan:
        if not mesh.holds(entry.stage, entry.part):
            continue
        tensors = [read(name, shape) for name, shape in entry.sources]
        share = pack(entry.packing, tensors, arch, mesh.tensor_rank, mesh.layout.tensor)
        parameters.pop(name_of(entry, parameters)).copy_(share)
    return set(parameters)


@torch.no_grad()
def full_tensors(
    model: torch.nn.Module,
    plan: Iterable[ParameterMapping],
    arch: Architecture,
    mesh: Mesh,
    dtype: torch.dtype,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of ``plan`` on rank 0, on the host in ``dtype`` under Hugging Face names, one at a time; nothing on the
    other ranks, which take part while they iterate."""
    parameters = dict(model.named_parameters())
    for entry in plan:
        if entry.copy:
            continue
        found: list[torch.Tensor] = []
        replica = entry.part or 0  # of those that hold it, the one that gives it
        giver = mesh.layout.rank(0, replica, entry.stage)
        if (mesh.data_rank, mesh.stage) == (replica, entry.stage):
            shares = _shares(parameters[name_of(entry, parameters)].detach(), entry, mesh)
            if mesh.tensor_rank == 0:
                full = unpack(entry.packing, shares, arch)
                found = [tensor.to("cpu", dtype).contiguous() for tensor in full]
        if mesh.rank == giver != 0:
            for tensor in found:
                dist.send(tensor, 0, group=mesh.host)
        elif mesh.rank == 0 != giver:
            found = [torch.empty(shape, dtype=dtype) for _, shape in entry.sources]
            for tensor in found:
                dist.recv(tensor, giver, group=mesh.host)
        if mesh.rank == 0:
            for (name, _), tensor in zip(entry.sources, found, strict=True):
                yield name, tensor


def shapes(arch: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of what :func:`full_tensors` gives."""
    for entry in entries(arch, 1):
        yield from entry.sources


def _shares(tensor: torch.Tensor, entry: ParameterMapping, mesh: Mesh) -> list[torch.Tensor]:
    if entry.packing == "whole" or mesh.layout.tensor == 1:
        return [tensor]
    shares = [torch.empty_like(tensor) for _ in range(mesh.layout.tensor)]
    dist.all_gather(shares, tensor.contiguous(), group=mesh.tensor_group)
    return shares


def name_of(entry: ParameterMapping, parameters: Container[str]) -> str:
    """Its name in the model of which these are the ``parameters``."""
    return next(name for name in entry.names if name in parameters)


def _files(folder: Path) -> dict[str, Path]:
    """Tensor name → the file that holds it."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.exists():
            table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {name: folder / file for name, file in table.items()}
        file = folder / "model.safetensors"
        with safe_open(file, "pt") as opened:
            return dict.fromkeys(opened.keys(), file)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"trainer 'megatron' finds no safetensors weights in {folder}: {error}"
        ) from error


def _read(file: Path, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        with safe_open(file, "pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: {name} cannot be read: {error}") from error
    if tuple(tensor.shape) != shape:
        raise UserError(
            f"{file}: {name} has shape {list(tensor.shape)}, config.json says {list(shape)}"
        )
    return tensor
