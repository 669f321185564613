"""The whole state of a trainer in a folder: safetensors and JSON, nothing that runs code when read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from astraflow_core.errors import UserError
from astraflow_plugin_torch_trainer.eight_bits import plain, whole

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "trainer.json"
FORMAT = 2

Optimizers = Sequence[torch.optim.Optimizer]


def save(directory: Path, whole: Any, optimizers: Optimizers, steps: int) -> None:
    """Write the weights that are trained (float32), optimizer state and generators, and ``steps``, the optimizer
    steps made."""
    save_file(_weights(whole), directory / WEIGHTS)
    parameters = dict(whole.named_parameters())
    tensors = {
        f"{name}/{key}": value
        for name, parameter in parameters.items()
        for optimizer in optimizers
        for key, value in optimizer.state.get(parameter, {}).items()
        for key, value in plain(key, value)
    }
    tensors["rng/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng/cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, directory / OPTIMIZER)
    state = {"format": FORMAT, "steps": steps, "optimizer": _kinds(optimizers)}
    (directory / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")


def load(directory: Path, whole: Any, optimizers: Optimizers) -> int:
    """Restore what :func:`save` wrote and return the optimizer steps made. Raises :class:`UserError` if
    the folder is incomplete, or of another model or optimizer."""
    try:
        steps = _steps(directory, optimizers)
        weights = load_file(directory / WEIGHTS)
        state = load_file(directory / OPTIMIZER)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{directory} is not a checkpoint of trainer 'torch': {error}") from error
    held = _weights(whole)
    for name in sorted(held.keys() | weights.keys()):
        here, there = held.get(name), weights.get(name)
        if here is None or there is None or here.shape != there.shape:
            raise UserError(
                f"checkpoint {directory} belongs to another model: {name} is {_shape(there)} there and "
                f"{_shape(here)} here"
            )
    with torch.no_grad():
        for name, tensor in held.items():
            tensor.copy_(weights[name])
    torch.set_rng_state(state.pop("rng/cpu"))
    cuda = state.pop("rng/cuda", None)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    for optimizer in optimizers:
        _load_optimizer(optimizer, dict(whole.named_parameters()), state)
    return steps


def adopt(whole: Any, given: Mapping[str, torch.Tensor]) -> None:
    """Copy the ``given`` tensors; those that only ``whole`` has stay as they are."""
    held = whole.state_dict()
    with torch.no_grad():
        for name, tensor in given.items():
            held[name].copy_(tensor)


def _load_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, torch.Tensor],
    state: dict[str, torch.Tensor],
) -> None:
    """Through ``load_state_dict``, which numbers the parameters in the order of the groups."""
    names = {parameter: name for name, parameter in parameters.items()}
    ordered = [names[p] for group in optimizer.param_groups for p in group["params"]]
    by_name: dict[str, dict[str, torch.Tensor]] = {}
    for entry, value in state.items():
        name, key = entry.rsplit("/", 1)
        by_name.setdefault(name, {})[key] = value
    numbered = {i: whole(by_name[name]) for i, name in enumerate(ordered) if name in by_name}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})


def _weights(whole: Any) -> dict[str, torch.Tensor]:
    """Names as transformers holds them, tied tensors once, without those that are frozen."""
    unique = {
        id(tensor): name
        for name, tensor in reversed(whole.state_dict(keep_vars=True).items())
        if tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)
    }
    held = whole.state_dict()
    return {name: held[name] for name in unique.values()}


def _steps(directory: Path, optimizers: Optimizers) -> int:
    state = json.loads((directory / STATE).read_text(encoding="utf-8"))
    if state["format"] != FORMAT:
        raise ValueError(f"{STATE} has format {state['format']}, expected {FORMAT}")
    if (there := state["optimizer"]) != (here := _kinds(optimizers)):
        raise UserError(
            f"checkpoint {directory} has the state of {there}, which is not one of {here}: leave the trainer's key "
            "optimizer as it was"
        )
    return int(state["steps"])


def _kinds(optimizers: Optimizers) -> str:
    return " and ".join(type(optimizer).__name__ for optimizer in optimizers)


def _shape(tensor: torch.Tensor | None) -> str:
    return "absent" if tensor is None else str(list(tensor.shape))
