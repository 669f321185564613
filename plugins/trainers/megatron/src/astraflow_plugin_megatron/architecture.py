"""The configuration of Megatron-Core for a Hugging Face model, and the supported models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from astraflow_core.errors import UserError

MODELS = ("llama", "qwen2", "qwen3", "qwen3_moe")
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""The constants that Megatron-Core hard-codes in addition to the factor."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Of every layer: how many, how many a token is ``routed`` to, the feed-forward size of one, and whether
    the weights of those chosen are ``normalised`` to add up to 1."""

    number: int
    routed: int
    ffn: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with RMS norms, rotary positions, grouped-query attention and gated SiLU, dense or with
    ``experts``.

    Sizes as in the Hugging Face configuration; ``rope_factor`` is that of Llama 3's scaling, ``None``
    without one; ``qkv_bias`` of Qwen2, ``qk_norm`` of Qwen3; ``tied`` if the output layer is the embedding.
    """

    vocabulary: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    groups: int
    head_size: int
    norm_eps: float
    rope_base: float
    rope_factor: float | None
    context: int
    qk_norm: bool
    qkv_bias: bool
    tied: bool
    experts: Experts | None = None

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Rows of the embedding, the same number on each rank."""
        return -(-self.vocabulary // tensor_parallel) * tensor_parallel


def read_architecture(folder: Path) -> Architecture:
    """Of a Hugging Face folder. Raises :class:`UserError` if it cannot be read, or if the model computes
    something that this trainer does not."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"trainer 'megatron' cannot read {folder}/config.json: {error}") from error
    kind = config.model_type
    if kind not in MODELS:
        raise UserError(
            f"trainer 'megatron' trains {', '.join(MODELS)}, not {kind!r} of {folder}; the trainers "
            "'torch' and 'fsdp' take any causal LM of transformers"
        )
    rope = dict(config.rope_parameters)
    scaling = rope.get("rope_type", "default")
    head_size = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    refused = {
        f"hidden_act {config.hidden_act!r}": config.hidden_act != "silu",
        "sliding-window attention": sliding,
        "biases of the MLP": bool(getattr(config, "mlp_bias", False)),
        "a bias of the attention's output": kind != "qwen2" and bool(config.attention_bias),
        f"rope_type {scaling!r}": scaling not in ("default", "llama3")
        or (scaling == "llama3" and not _built_in(rope)),
        "rotary positions on part of a head": rope.get("partial_rotary_factor", 1.0) != 1.0,
        "dense layers among those with experts": kind == "qwen3_moe"
        and (config.decoder_sparse_step != 1 or bool(config.mlp_only_layers)),
    }
    if wrong := [what for what, found in refused.items() if found]:
        raise UserError(f"trainer 'megatron' does not compute {', '.join(wrong)} of {folder}")
    return Architecture(
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        head_size=head_size,
        norm_eps=config.rms_norm_eps,
        rope_base=rope["rope_theta"],
        rope_factor=rope["factor"] if scaling == "llama3" else None,
        context=config.max_position_embeddings,
        qk_norm=kind.startswith("qwen3"),
        qkv_bias=kind == "qwen2",
        tied=bool(config.tie_word_embeddings),
        experts=_experts(config) if kind == "qwen3_moe" else None,
    )


def check_split(
    arch: Architecture, tensor_parallel: int, pipeline_parallel: int, expert_parallel: int
) -> None:
    """Raises :class:`UserError` if heads, feed-forward, layers or experts cannot be shared out evenly."""
    if arch.experts is None and expert_parallel > 1:
        raise UserError(f"expert_parallel = {expert_parallel}, but the model has no experts")
    if arch.experts is not None and tensor_parallel > 1:
        raise UserError(
            f"tensor_parallel = {tensor_parallel} of a model with experts is not supported; shard experts and "
            "layers instead: expert_parallel, pipeline_parallel"
        )
    for key, ranks, sizes in (
        (
            "tensor_parallel",
            tensor_parallel,
            {"key-value heads": arch.groups, "heads": arch.heads, "feed-forward size": arch.ffn},
        ),
        ("pipeline_parallel", pipeline_parallel, {"layers": arch.layers}),
        (
            "expert_parallel",
            expert_parallel,
            {"experts": arch.experts.number if arch.experts else 1},
        ),
    ):
        for what, size in sizes.items():
            if size % ranks:
                raise UserError(f"{key} = {ranks} does not divide the model's {size} {what}")


def _experts(config: Any) -> Experts:
    return Experts(
        number=config.num_experts,
        routed=config.num_experts_per_tok,
        ffn=config.moe_intermediate_size,
        normalised=bool(config.norm_topk_prob),
    )


def _built_in(rope: dict[str, Any]) -> bool:
    return all(rope.get(key) == value for key, value in LLAMA3_ROPE.items())
