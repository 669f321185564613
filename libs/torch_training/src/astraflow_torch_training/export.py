"""The weights on their way out: one tensor at a time, under Hugging Face names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from astraflow_core.types import ExportedTensor
from astraflow_torch_training.critic import NOT_PUBLISHED
from astraflow_torch_training.lora import Full, adapted
from astraflow_torch_weights.qwen3 import Qwen3ForCausalLM
from astraflow_wire.model_files.tensor_file import lay_out

PublishDtype = Literal["float32", "bfloat16"]
SAFETENSORS_NAMES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
ADAPTERS = (".lora_A", ".lora_B")
"""Endings of the names of what :mod:`astraflow_torch_training.lora` adds to a model."""
PEFT_PREFIX = "base_model.model."
COPIED = frozenset({".json", ".txt", ".model", ".jinja", ".tiktoken"})


def _as_held(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def named_tensors(
    whole: Any, dtype: PublishDtype, full: Full = _as_held
) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers as a checkpoint of the model names and cuts them, floats cast to ``dtype``;
    of tied ones only the first, no critic, and adapters merged. Transformers may hold them otherwise (experts
    of a layer stacked into one). ``full`` makes a whole tensor of one that is held in another way, as by several
    ranks."""
    layers = {f"{name}.weight": layer for name, layer in adapted(whole)}
    held = whole.state_dict(keep_vars=True)
    seen: set[int] = set()
    for name, tensor in held.items():
        apart = name.startswith(NOT_PUBLISHED) or name.endswith(ADAPTERS)
        if id(tensor) not in seen and not apart:
            seen.add(id(tensor))
            if name in layers:
                found = _cast(layers[name].merged(full), dtype)
            else:
                found = full(_cast(tensor.detach(), dtype))
            yield from _as_in_checkpoint(whole, name, found)


def _as_in_checkpoint(
    whole: Any, name: str, tensor: torch.Tensor
) -> Iterable[tuple[str, torch.Tensor]]:
    if isinstance(whole, Qwen3ForCausalLM):
        return [(name, tensor)]
    from transformers.core_model_loading import revert_weight_conversion

    found: dict[str, torch.Tensor] = revert_weight_conversion(whole, {name: tensor})
    return found.items()


def export(whole: Any, dtype: PublishDtype, full: Full = _as_held) -> Iterator[ExportedTensor]:
    """Each tensor of :func:`named_tensors`."""
    for name, tensor in named_tensors(whole, dtype, full):
        yield exported_tensor(name, tensor)


def export_adapters(
    whole: Any, dtype: PublishDtype, full: Full = _as_held
) -> Iterator[ExportedTensor]:
    """The adapters under PEFT's names, one matrix at a time, the scale folded into B."""
    for name, layer in adapted(whole):
        for part, tensor in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B * layer.scale)):
            given = full(_cast(tensor.detach(), dtype))
            yield exported_tensor(f"{PEFT_PREFIX}{name}.{part}.weight", given)


def exported_tensor(name: str, tensor: torch.Tensor) -> ExportedTensor:
    """A full tensor, as it leaves the trainer."""
    held = tensor.to("cpu").contiguous()
    data = held.reshape(-1).view(torch.uint8).numpy()
    return ExportedTensor(name, SAFETENSORS_NAMES[held.dtype], tuple(held.shape), data)


def write_model(
    whole: Any,
    dtype: PublishDtype,
    source: Path,
    directory: Path,
    full: Full = _as_held,
) -> None:
    """Write ``directory`` as a Hugging Face folder: the weights, and the configuration and tokenizer of
    ``source`` with ``dtype`` entered. ``full`` is called as by :func:`export`."""
    shapes = (
        (name, SAFETENSORS_NAMES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in named_tensors(whole, dtype, _empty)
    )
    write_folder(source, directory, dtype, shapes, export(whole, dtype, full))


def write_folder(
    source: Path,
    directory: Path,
    dtype: PublishDtype,
    shapes: Iterable[tuple[str, str, tuple[int, ...]]],
    tensors: Iterable[ExportedTensor],
) -> None:
    """Write ``directory`` as a Hugging Face folder: the configuration and tokenizer of ``source`` with
    ``dtype`` entered, and the ``tensors``, whose ``shapes`` are (name, safetensors dtype, shape)."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix in COPIED and not file.name.endswith(".index.json"):
            shutil.copyfile(file, directory / file.name)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    header, specs = lay_out(shapes)
    starts = {spec.name: spec.start for spec in specs}
    with (directory / "model.safetensors").open("wb") as out:
        out.write(header)
        for exported in tensors:
            out.seek(starts[exported.name])
            out.write(exported.data)


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and dtype without data."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _cast(tensor: torch.Tensor, dtype: PublishDtype) -> torch.Tensor:
    floats = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return tensor.to(floats[dtype]) if tensor.is_floating_point() else tensor
