"""A small, randomly initialised Qwen3 model with a character-level tokenizer, as a Hugging Face folder.

Written with numpy and JSON alone, so that the core needs no torch to make one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_wire.model_files.tensor_file import lay_out

ALPHABET = " $0123456789+-*=;rsckmdxa<>"
"""Default characters; the index of a character is its token id (`` `` pads, ``$`` ends)."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
"""Contents, one after the other; what an assistant said ends as the model ends it, so that a next turn continues it."""


def write_tiny_model(
    directory: Path | str,
    *,
    alphabet: str = ALPHABET,
    pad: str = " ",
    eos: str = "$",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int | None = None,
    context: int = 128,
    seed: int = 0,
    dtype: str = "F32",
    init_std: float = 0.02,
    tie: bool = True,
    experts: int = 0,
    top_k: int = 2,
) -> Path:
    """Write a Qwen3-architecture model into ``directory`` (created if absent) and return its path.

    Each character of ``alphabet`` is one token, its index the id; text with others cannot be encoded.
    ``pad`` and ``eos`` are two of them; decoding with ``skip_special`` leaves ``eos`` out, and keeps a
    ``pad`` that the model sampled, so that a reward sees it.
    Matrices are normal with ``init_std``, norms one, the row of ``pad`` zero, as transformers initialises
    Qwen3; the same arguments give the same bytes. ``head_dim`` defaults to ``hidden / heads``, ``ffn`` to
    ``3 × hidden``; ``tie`` shares the embedding with the output. ``dtype`` is ``"F32"`` or ``"BF16"``. With ``experts``
    it is a Qwen3-MoE model: each layer has that many experts of size ``ffn``, of which a token uses ``top_k``.
    Raises :class:`ValueError` for sizes or characters that do not fit.
    """
    if head_dim is None:
        if hidden % heads:
            raise ValueError(f"hidden={hidden} is not a multiple of heads={heads}: give head_dim")
        head_dim = hidden // heads
    _check(alphabet, pad, eos, heads, kv_heads, head_dim, dtype)
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": alphabet.index(eos),
        "pad_token_id": alphabet.index(pad),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": init_std,
        "intermediate_size": 3 * hidden if ffn is None else ffn,
        "max_position_embeddings": context,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": tie,
        "torch_dtype": "float32" if dtype == "F32" else "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": len(alphabet),
    }
    if experts:
        config |= _of_experts(experts, top_k, config["intermediate_size"])
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "model.safetensors", language_tensors(config, seed), dtype)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", _generation(config))
    write_json(folder / "tokenizer.json", _tokenizer(alphabet, eos))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(pad, eos, context))
    return folder


def _of_experts(experts: int, top_k: int, size: int) -> dict[str, Any]:
    if not 0 < top_k <= experts:
        raise ValueError(f"top_k={top_k} of experts={experts}: expected 1 to {experts}")
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": size,
        "norm_topk_prob": True,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "output_router_logits": False,
    }


def _generation(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "do_sample": True,
        "eos_token_id": config["eos_token_id"],
        "pad_token_id": config["pad_token_id"],
        "temperature": 1.0,
    }


def _tokenizer_config(pad: str, eos: str, context: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "eos_token": eos,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _check(
    alphabet: str, pad: str, eos: str, heads: int, kv_heads: int, head_dim: int, dtype: str
) -> None:
    if len(set(alphabet)) != len(alphabet):
        raise ValueError(f"alphabet {alphabet!r} has a character twice")
    for name, character in (("pad", pad), ("eos", eos)):
        if len(character) != 1 or character not in alphabet:
            raise ValueError(f"{name}={character!r} is not one character of alphabet {alphabet!r}")
    if pad == eos:
        raise ValueError(f"pad and eos are both {pad!r}")
    if heads % kv_heads:
        raise ValueError(f"heads={heads} is not a multiple of kv_heads={kv_heads}")
    if head_dim % 2:
        raise ValueError(f"head_dim={head_dim} is odd; rotary positions need pairs")
    if dtype not in ("F32", "BF16"):
        raise ValueError(f"dtype={dtype!r}: expected 'F32' or 'BF16'")


def language_tensors(
    config: dict[str, Any], seed: int
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The weights of a Qwen3 model with this ``config.json``, by their names in a file."""
    generator = np.random.default_rng(seed)
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def normal(rows: int, columns: int) -> npt.NDArray[np.float32]:
        values = generator.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(config["initializer_range"])

    def ones(size: int) -> npt.NDArray[np.float32]:
        return np.ones(size, dtype=np.float32)

    embedding = normal(config["vocab_size"], hidden)
    embedding[config["pad_token_id"]] = 0.0
    yield "model.embed_tokens.weight", embedding
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", ones(hidden)
        yield f"{layer}.self_attn.q_proj.weight", normal(queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", normal(keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", normal(keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", normal(hidden, queries)
        yield f"{layer}.self_attn.q_norm.weight", ones(head)
        yield f"{layer}.self_attn.k_norm.weight", ones(head)
        yield f"{layer}.post_attention_layernorm.weight", ones(hidden)
        experts = config.get("num_experts", 0)
        if experts:
            yield f"{layer}.mlp.gate.weight", normal(experts, hidden)
        blocks = [f"{layer}.mlp.experts.{number}" for number in range(experts)]
        for block in blocks or [f"{layer}.mlp"]:
            yield f"{block}.gate_proj.weight", normal(ffn, hidden)
            yield f"{block}.up_proj.weight", normal(ffn, hidden)
            yield f"{block}.down_proj.weight", normal(hidden, ffn)
    yield "model.norm.weight", ones(hidden)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", normal(config["vocab_size"], hidden)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round finite float32 to the nearest bfloat16, ties to even; its bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_weights(
    path: Path, tensors: Iterable[tuple[str, npt.NDArray[np.float32]]], dtype: str
) -> None:
    """Write a safetensors file of float32 ``tensors``, in ``dtype`` "F32" or "BF16"."""
    arrays: dict[str, npt.NDArray[Any]] = {
        name: values if dtype == "F32" else _bfloat16(values) for name, values in tensors
    }
    header, specs = lay_out((name, dtype, array.shape) for name, array in arrays.items())
    with path.open("wb") as file:
        file.write(header)
        for spec in specs:
            file.write(arrays[spec.name].data)


def _tokenizer(alphabet: str, eos: str) -> dict[str, Any]:
    """The contents of ``tokenizer.json``: every character is one word, and unknown ones are refused."""
    special = {
        "id": alphabet.index(eos),
        "content": eos,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[\\s\\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {character: index for index, character in enumerate(alphabet)},
            # Not in the vocabulary on purpose: encoding an unknown character is then an error.
            "unk_token": "<unknown>",
        },
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file of a model folder."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
