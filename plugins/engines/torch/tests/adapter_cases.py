"""Adapters of a tiny model, and what Hugging Face makes of their merged weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from astraflow_core.types import WeightSource
from astraflow_wire.model_files.model_digest import digest_of_model

TOKENS = np.array([5, 9, 3, 7, 11, 2, 30, 4], np.int32)


def adapt(
    folder: Path, target: Path, version: int, pattern: str
) -> tuple[WeightSource, dict[str, torch.Tensor]]:
    """An adapter for the matrices whose names contain ``pattern``, and the state that it makes, in float64."""
    generator = torch.Generator().manual_seed(version)
    factors, merged = {}, load_file(folder / "model.safetensors")
    for name, weight in merged.items():
        if pattern in name and name.endswith("_proj.weight"):
            a = torch.randn(4, weight.shape[1], generator=generator)
            b = torch.randn(weight.shape[0], 4, generator=generator) * 0.2
            module = f"base_model.model.{name.removesuffix('.weight')}"
            factors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            merged[name] = weight.double() + b.double() @ a.double()
    path = target / f"adapter-{version}.safetensors"
    save_file(factors, path)
    base = digest_of_model([folder / "model.safetensors"])
    return WeightSource("p", version, path, f"d{version}", 0, 0.0, "adapter", base), merged


def reference(
    folder: Path, merged: dict[str, torch.Tensor], tokens: np.ndarray = TOKENS
) -> np.ndarray:
    """Log-probs of the tokens by Hugging Face, in float64; the first is 0."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.load_state_dict({name: value.double() for name, value in merged.items()}, strict=False)
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    found = logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()
    return np.concatenate([[0.0], found])
