"""The whole state of the ranks in a folder, by torch.distributed.checkpoint: any number of ranks reads it."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read
from torch.distributed.checkpoint.state_dict_saver import async_save

from astraflow_core.errors import AstraFlowError, DeadlineExceeded, UserError
from astraflow_plugin_fsdp.group import RankGroup

STATE = "trainer.json"
FORMAT = 1
WEIGHTS, OPTIMIZER, GENERATORS = "weights", "optimizer", "generators"


def begin_save(
    directory: Path, whole: Any, optimizer: torch.optim.Optimizer, steps: int, group: RankGroup
) -> Future[Any]:
    """Copy weights, optimizer state and the ranks' generators, and begin to write them; each rank its part.

    The future is done when every rank's part is written. ``steps`` are the optimizer steps made.
    """
    state = {**_weights(whole), **_moments(whole, optimizer), **_generators(group)}
    if group.rank == 0:
        facts = {"format": FORMAT, "steps": steps, "ranks": group.size}
        (directory / STATE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    begun = async_save(state, checkpoint_id=directory, process_group=group.files)
    if isinstance(begun, Future):
        return begun
    upload: Future[Any] = begun.upload_completion
    return upload


def load(directory: Path, whole: Any, optimizer: torch.optim.Optimizer, group: RankGroup) -> int:
    """Restore what :func:`begin_save` wrote, with as many ranks or others, and return the optimizer steps
    made. Raises :class:`UserError` if the folder is incomplete, or of another model."""
    try:
        facts = json.loads((directory / STATE).read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise ValueError(f"{STATE} has format {facts['format']}, expected {FORMAT}")
        steps, ranks = int(facts["steps"]), int(facts["ranks"])
        held = FileSystemReader(directory).read_metadata().state_dict_metadata
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UserError(f"{directory} is not a checkpoint of trainer 'fsdp': {error}") from error
    weights = _weights(whole)
    _check_model(directory, weights, held)
    moments = _room_for_moments(whole, held)
    generators = _room_for_generators(held, group.rank % ranks)
    try:
        # Plain collectives of the calling thread: nothing else runs in the group meanwhile.
        read(
            {**weights, **moments, **generators},
            checkpoint_id=directory,
            process_group=group.files,
        )
    except (CheckpointException, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"checkpoint {directory} cannot be read whole: {_causes(error)}") from error
    _set_moments(whole, optimizer, moments)
    _set_generators(generators)
    return steps


def _weights(whole: Any) -> dict[str, torch.Tensor]:
    """Names as transformers holds them, tied tensors once, without those that are frozen."""
    unique = {
        id(tensor): name
        for name, tensor in reversed(whole.state_dict(keep_vars=True).items())
        if tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)
    }
    held = whole.state_dict()
    return {f"{WEIGHTS}/{name}": held[name] for name in unique.values()}


def _moments(whole: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        f"{OPTIMIZER}/{name}/{key}": value
        for name, parameter in whole.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _room_for_moments(whole: Any, held: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of the optimizer state that a checkpoint has, cut as the parameters are."""
    parameters = dict(whole.named_parameters())
    room = {}
    for entry, meta in held.items():
        kind, _, rest = entry.partition("/")
        if kind != OPTIMIZER:
            continue
        parameter = parameters[rest.rpartition("/")[0]]
        dtype = meta.properties.dtype
        if meta.size == parameter.shape:
            room[entry] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        else:
            room[entry] = torch.zeros(meta.size, dtype=dtype, device=parameter.device)
    return room


def _set_moments(
    whole: Any, optimizer: torch.optim.Optimizer, moments: dict[str, torch.Tensor]
) -> None:
    optimizer.state.clear()
    parameters = dict(whole.named_parameters())
    for entry, value in moments.items():
        name, key = entry.partition("/")[2].rsplit("/", 1)
        optimizer.state[parameters[name]][key] = value


def _generators(group: RankGroup) -> dict[str, torch.Tensor]:
    """This rank's, under its number: the tensors of different ranks are different entries."""
    found = {f"{GENERATORS}/{group.rank}/cpu": torch.get_rng_state()}
    if group.device.type == "cuda":
        found[f"{GENERATORS}/{group.rank}/cuda"] = torch.cuda.get_rng_state(group.device)
    return found


def _room_for_generators(held: dict[str, Any], rank: int) -> dict[str, torch.Tensor]:
    return {
        entry: torch.zeros(meta.size, dtype=torch.uint8)
        for entry, meta in held.items()
        if entry.startswith(f"{GENERATORS}/{rank}/")
    }


def _set_generators(generators: dict[str, torch.Tensor]) -> None:
    for entry, state in generators.items():
        if entry.endswith("/cpu"):
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state)


def _check_model(directory: Path, weights: dict[str, torch.Tensor], held: dict[str, Any]) -> None:
    there = {name: meta for name, meta in held.items() if name.startswith(f"{WEIGHTS}/")}
    for entry in sorted(weights.keys() | there.keys()):
        shapes = [
            list(shape) if shape is not None else "absent"
            for shape in (_size(there.get(entry)), getattr(weights.get(entry), "shape", None))
        ]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"checkpoint {directory} belongs to another model: {entry.partition('/')[2]} is {shapes[0]} "
                f"there and {shapes[1]} here"
            )


def _size(meta: Any) -> Any:
    return meta.size if isinstance(meta, TensorStorageMetadata) else None


def wait(saving: Future[Any], directory: Path, deadline_s: float) -> None:
    """Until the checkpoint in ``directory`` is written. Raises :class:`AstraFlowError` with what kept it from
    being so, :class:`DeadlineExceeded` after ``deadline_s``."""
    try:
        error = saving.exception(timeout=deadline_s)
    except TimeoutError as late:
        raise DeadlineExceeded("all ranks", f"writing checkpoint {directory}", deadline_s) from late
    if error is not None:
        raise AstraFlowError(
            f"checkpoint {directory} could not be written: {_causes(error)}"
        ) from error


def _causes(error: BaseException) -> str:
    """Without the tracebacks of all ranks."""
    if not isinstance(error, CheckpointException):
        return str(error)
    return "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in error.failures.items())
