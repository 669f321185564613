"""What the configuration of a language model says of its experts, read without any framework."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.types.generation import routing_dtype

ARCHITECTURES = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
"""``model_type`` of those whose routers are known: a softmax over all experts, of which the largest ``top_k`` are
chosen."""
MOST_CHOICES = 1 << 14
"""The most experts of a token, over all layers: 256 layers of 64."""
MOST_EXPERTS = 65535


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    """``layers`` of a model have ``experts`` each, of which a token goes through ``top_k``."""

    layers: int
    top_k: int
    experts: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of recorded choices."""
        return routing_dtype(self.experts)

    @classmethod
    def of(cls, folder: Path) -> ExpertLayers:
        """From ``config.json`` of a Hugging Face folder. :class:`ValueError`, as the end of a sentence about the model,
        if it has no experts or is not known."""
        try:
            described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"cannot be read: {error}") from error
        kind = described.get("model_type") if isinstance(described, dict) else None
        if kind not in ARCHITECTURES:
            raise ValueError(
                f"is of type {kind!r}, which has no experts or is not known; known are {', '.join(ARCHITECTURES)}"
            )
        named = "num_local_experts" if kind == "mixtral" else "num_experts"
        experts, top_k = described.get(named), described.get("num_experts_per_tok")
        count = described.get("num_hidden_layers")
        if not all(type(n) is int and n > 0 for n in (experts, top_k, count)):
            raise ValueError(
                f"has {named} {experts!r:.80}, num_experts_per_tok {top_k!r:.80} and num_hidden_layers {count!r:.80}; "
                "expected three numbers from 1 on"
            )
        layers = sum(map(_experts_in(described), range(count)))
        if not (layers and top_k <= experts <= MOST_EXPERTS and layers * top_k <= MOST_CHOICES):
            raise ValueError(
                f"has {layers} layers with experts, {experts} each, of which it chooses {top_k}; expected at least one layer, "
                f"at most {MOST_EXPERTS} experts, and {MOST_CHOICES} choices of a token over all layers"
            )
        return cls(layers, top_k, experts)


def _experts_in(described: dict[str, Any]) -> Callable[[int], bool]:
    """Whether a layer has experts: the Qwen architectures leave some layers dense; the others have neither key."""
    step, dense = described.get("decoder_sparse_step", 1), described.get("mlp_only_layers") or []
    if type(step) is not int or step < 1:
        raise ValueError(f"has decoder_sparse_step {step!r:.80}; expected a number from 1 on")
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise ValueError(f"has mlp_only_layers {dense!r:.80}; expected a list of layers")
    return lambda layer: layer not in dense and (layer + 1) % step == 0
