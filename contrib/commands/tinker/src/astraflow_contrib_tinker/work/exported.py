"""Weights of a model in the form in which other programs read them: a Hugging Face folder, or an adapter of PEFT."""

from __future__ import annotations

import json
from pathlib import Path

from astraflow_core.protocols.trainer import Trainer
from astraflow_wire.model_files.tensor_file import lay_out

ADAPTER = "adapter_model.safetensors"


def write_adapter(trainer: Trainer, base_model: str, folder: Path) -> None:
    """``adapter_model.safetensors`` and ``adapter_config.json`` as PEFT has them; the trainer exports adapters with their scale
    folded in, so that the one in the file is 1."""
    listed = [(tensor.name, tensor.dtype, tensor.shape) for tensor in trainer.export()]
    header, specs = lay_out(listed)
    starts = {spec.name: spec.start for spec in specs}
    with (folder / ADAPTER).open("wb") as out:
        out.write(header)
        for tensor in trainer.export():
            out.seek(starts[tensor.name])
            out.write(tensor.data)
    first = ".lora_A.weight"
    (rank,) = {shape[0] for name, _, shape in listed if name.endswith(first)}
    layers = {name.removesuffix(first) for name, _, _ in listed if name.endswith(first)}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}),
        "bias": "none",
        "inference_mode": True,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
