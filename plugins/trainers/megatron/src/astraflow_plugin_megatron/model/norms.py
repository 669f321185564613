"""RMS norms for Megatron-Core's own layers."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig


class RMSNorm(torch.nn.RMSNorm):
    """Torch's, which Megatron-Core's own wrapper refuses with sequence parallelism. There each tensor parallel rank
    sees some positions only, and the mark makes Megatron-Core add up their gradients of the weight."""

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def with_norms(layer: ModuleSpec, layers: int, qk_norm: bool) -> TransformerBlockSubmodules:
    """So many layers of Megatron-Core's local specification with :class:`RMSNorm`, one at the end too."""
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    if qk_norm:
        attention = parts.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=RMSNorm)
