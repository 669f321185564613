"""Which checkpoints :mod:`astraflow_torch_weights.qwen3` computes: dense Qwen3 models without an option that changes what is computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL_TYPE = "qwen3"
WEIGHTS = "model.safetensors"
_FULL = "full_attention"
_ADAPTER = "adapter_config.json"
_MOST_LAYERS = 1024
_SIZES = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
        *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    }
)
_FIXED = {
    "architectures": (["Qwen3ForCausalLM"],),
    "model_type": (MODEL_TYPE,),
    "attention_bias": (False,),
    "attention_dropout": (0,),
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
}
"""Keys that decide what is computed, and the values that are implemented here."""
_OTHERS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "max_window_layers"),
        *("torch_dtype", "dtype", "use_cache", "transformers_version", "rms_norm_eps"),
        *("rope_theta", "rope_parameters", "layer_types", "tie_word_embeddings"),
    }
)


@dataclass(frozen=True)
class Qwen3Config:
    """What ``config.json`` says, by the names of transformers. ``generation_eos``: what ``generation_config.json`` says of
    the ids that end a sequence."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    pad_token_id: int | None
    eos_token_id: int | list[int] | None
    generation_eos: int | list[int] | None
    model_type: str = MODEL_TYPE
    _attn_implementation: str = "sdpa"

    @property
    def layer_types(self) -> list[str]:
        """Every layer has full attention."""
        return [_FULL] * self.num_hidden_layers

    def get_text_config(self, decoder: bool = False) -> Qwen3Config:
        """The configuration itself: there is no other part."""
        return self

    @classmethod
    def read(cls, folder: Path) -> Qwen3Config | None:
        """The configuration of a folder if :func:`~astraflow_torch_weights.qwen3.load_qwen3` can load it: ``None`` for any key, value, weight or file that is not
        known here, which transformers judges."""
        try:
            given = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            generation = folder / "generation_config.json"
            ends = json.loads(generation.read_text("utf-8")) if generation.exists() else {}
            found = _understood(given, ends)
            if found is None or set(_held(folder)) != set(tensor_names(found)):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return found


def _understood(given: dict[str, Any], generation: dict[str, Any]) -> Qwen3Config | None:
    if given.keys() - _SIZES - _FIXED.keys() - _OTHERS:
        return None
    if any(given.get(key, known[0]) not in known for key, known in _FIXED.items()):
        return None
    if given["model_type"] != MODEL_TYPE or set(given.get("layer_types", [_FULL])) != {_FULL}:
        return None
    rope = given.get("rope_parameters") or {"rope_theta": given["rope_theta"]}
    if rope.keys() - {"rope_theta", "rope_type"} or rope.get("rope_type", "default") != "default":
        return None
    tie, layers = given["tie_word_embeddings"], given["num_hidden_layers"]
    if not isinstance(tie, bool) or not all(type(given[name]) is int for name in _SIZES):
        return None
    if not 0 < layers <= _MOST_LAYERS or len(given.get("layer_types", layers * [_FULL])) != layers:
        return None
    if not all(type(each) in (int, float) for each in (given["rms_norm_eps"], rope["rope_theta"])):
        return None
    pad, end = given.get("pad_token_id"), given.get("eos_token_id")
    generation_end = generation.get("eos_token_id")
    if pad is not None and not (type(pad) is int and 0 <= pad < given["vocab_size"]):
        return None
    if not (_is_end(end) and _is_end(generation_end)):
        return None
    return Qwen3Config(
        **{name: given[name] for name in _SIZES},
        rms_norm_eps=float(given["rms_norm_eps"]),
        rope_theta=float(rope["rope_theta"]),
        tie_word_embeddings=tie,
        pad_token_id=pad,
        eos_token_id=end,
        generation_eos=generation_end,
    )


def _is_end(given: Any) -> bool:
    """Whether it is an id, a list of ids or nothing."""
    ids = given if isinstance(given, list) else [] if given is None else [given]
    return all(type(each) is int for each in ids)


def _held(folder: Path) -> list[str]:
    """Of the only file with weights, without reading them."""
    if any(folder.glob("*.index.json")) or (folder / _ADAPTER).exists():
        return []
    with (folder / WEIGHTS).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(size, 1 << 24)))
    return [name for name in header if name != "__metadata__"]


def tensor_names(config: Qwen3Config) -> Iterator[str]:
    """The weights of a model in its file; the head is not among them where it is the embeddings."""
    yield "model.embed_tokens.weight"
    parts = [f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj")]
    parts += ["self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"]
    parts += [f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")]
    for index in range(config.num_hidden_layers):
        for part in parts:
            yield f"model.layers.{index}.{part}.weight"
    yield "model.norm.weight"
    if not config.tie_word_embeddings:
        yield "lm_head.weight"
