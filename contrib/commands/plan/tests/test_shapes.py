"""Parameters and caches of published models, by their config.json alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_models import LLAMA_8B, QWEN_06B

from astraflow_contrib_plan.shapes import read_shape
from astraflow_core.errors import UserError

Folder = Callable[[dict[str, Any]], Path]
QWEN25_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN3_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "published"),
    [
        (LLAMA_8B, 8_030_261_248),  # model cards: the sum of their safetensors
        (QWEN_06B, 596_049_920),
        (QWEN25_7B, 7_615_616_512),
        (MIXTRAL, 46_702_792_704),
        (QWEN3_30B, 30_532_122_624),
    ],
)
def test_parameters_are_those_of_the_published_files(
    table: dict[str, Any], published: int, folder: Folder
) -> None:
    assert read_shape(folder(table)).parameters == published


def test_cache_of_a_token() -> None:
    """Llama 3 8B: 128 KiB a token in bfloat16, as its authors and vLLM have it."""
    from astraflow_contrib_plan.shapes import ModelShape

    shape = ModelShape("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 131072)
    assert 2 * shape.cache_per_token == 128 * 1024


def test_what_is_missing_is_named(folder: Folder) -> None:
    for key in ("hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers"):
        table = {name: value for name, value in LLAMA_8B.items() if name != key}
        with pytest.raises(UserError, match=f"config.json.*{key}"):
            read_shape(folder(table))
    with pytest.raises(UserError, match="hidden_size"):
        read_shape(folder({**LLAMA_8B, "hidden_size": "large"}))
