"""The whole state of a trainer in a folder that all ranks write to: safetensors and JSON, nothing that runs
code when read, and each rank its own part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from astraflow_core.errors import UserError
from astraflow_plugin_megatron.optimizer import Optimizer
from astraflow_plugin_megatron.ranks import Mesh

STATE = "trainer.json"
FORMAT = 1


def save(directory: Path, optimizer: Optimizer, mesh: Mesh, steps: int) -> None:
    """Write weights, optimizer state and generators of every rank, and ``steps``, the optimizer steps made.
    Returns when every rank has written."""
    if mesh.data_rank == 0:
        weights = {name: tensor.detach() for name, tensor in _weights(optimizer).items()}
        save_file(weights, directory / _weights_file(mesh))
    save_file(_optimizer_state(optimizer), directory / _optimizer_file(mesh))
    if mesh.rank == 0:
        state = {"format": FORMAT, "steps": steps, "layout": str(mesh.layout)}
        (directory / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")
    mesh.wait_for_all()


@torch.no_grad()
def load(directory: Path, optimizer: Optimizer, mesh: Mesh) -> int:
    """Restore what :func:`save` wrote and return the optimizer steps made. Raises :class:`UserError` if the
    folder is incomplete, of another layout of ranks or of another model."""
    try:
        facts = json.loads((directory / STATE).read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise ValueError(f"{STATE} has format {facts['format']}, expected {FORMAT}")
        steps, layout = int(facts["steps"]), str(facts["layout"])
        if layout != str(mesh.layout):
            raise UserError(
                f"checkpoint {directory} is of {layout} ranks, this trainer has {mesh.layout}: resume with "
                "the same tensor_parallel, pipeline_parallel and number of ranks, or start from the model "
                "that the run left"
            )
        weights = load_file(directory / _weights_file(mesh))
        state = load_file(directory / _optimizer_file(mesh))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(
            f"{directory} is not a checkpoint of trainer 'megatron': {error}"
        ) from error
    held = _weights(optimizer)
    for name in held.keys() | weights.keys():
        here, there = held.get(name), weights.get(name)
        if here is None or there is None or here.shape != there.shape:
            raise UserError(
                f"checkpoint {directory} is of another model: {name} is {_shape(there)} there and "
                f"{_shape(here)} here"
            )
    for name, tensor in held.items():
        tensor.copy_(weights[name])
    torch.set_rng_state(state.pop("rng/cpu"))
    cuda = state.pop("rng/cuda", None)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    _restore(optimizer, state)
    return steps


def _weights(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    return dict(optimizer.model.module.named_parameters())


def _optimizer_state(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Numbered as the parameters of the groups, whose order a layout and a model determine."""
    tensors = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["rng/cuda"] = torch.cuda.get_rng_state()
    for number, (group, parameter) in enumerate(_numbered(optimizer)):
        tensors[f"{number}/weights"] = parameter.detach()
        if "step" in group:  # of fused optimizers, one for all
            tensors[f"{number}/group_step"] = torch.tensor(int(group["step"]))
        for key, value in optimizer.inner.state.get(parameter, {}).items():
            tensors[f"{number}/{key}"] = value
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _restore(optimizer: Optimizer, state: dict[str, torch.Tensor]) -> None:
    numbered: dict[int, dict[str, torch.Tensor]] = {}
    for entry, value in state.items():
        place, key = entry.split("/", 1)
        numbered.setdefault(int(place), {})[key] = value
    for number, (group, parameter) in enumerate(_numbered(optimizer)):
        parameter.copy_(numbered[number].pop("weights"))
        step = numbered[number].pop("group_step", None)
        if step is not None:
            group["step"] = int(step)
    settings = optimizer.inner.state_dict()["param_groups"]
    filled = {number: values for number, values in numbered.items() if values}
    optimizer.inner.load_state_dict({"state": filled, "param_groups": settings})


def _numbered(optimizer: Optimizer) -> list[tuple[dict[str, Any], torch.Tensor]]:
    return [(group, parameter) for group in optimizer.groups for parameter in group["params"]]


def _weights_file(mesh: Mesh) -> str:
    return f"weights-stage{mesh.stage:03d}-tensor{mesh.tensor_rank:03d}.safetensors"


def _optimizer_file(mesh: Mesh) -> str:
    return f"optimizer-rank{mesh.rank:05d}.safetensors"


def _shape(tensor: torch.Tensor | None) -> str:
    return "absent" if tensor is None else str(list(tensor.shape))
