"""The forward pass of the tiny model in float64 NumPy, the reference for engines and trainers.

Qwen3 (Yang et al. 2025, as in transformers): RMS norms, rotary positions, norms on queries and keys,
grouped-query attention, gated SiLU; or experts of that kind, of which the likeliest by the softmax of the router are
added up with their probabilities, normalised to 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types.generation import RoutedExperts, not_recorded
from astraflow_testing.conformance._models.weights import read_floats
from astraflow_tiny_model.folder import write_tiny_model

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]
KeysAndValues = dict[str, tuple[Floats, Floats]]
"""Layer → those of all tokens so far."""
_QUERIES = 32
"""Tokens whose scores are computed together: an array of four megabytes costs ten times as much to allocate."""


LAYERS, EXPERTS, TOP_K = 2, 6, 2
"""Of a model with experts."""


def write_expert_model(folder: Path, init_std: float) -> Path:
    """A model with experts, in the Qwen3-MoE architecture; returns ``folder``."""
    return write_tiny_model(
        folder,
        hidden=32,
        layers=LAYERS,
        ffn=16,
        init_std=init_std,
        experts=EXPERTS,
        top_k=TOP_K,
    )


@dataclass(frozen=True)
class ExpertChoice:
    """Of the tokens of one forward pass: ``imposed`` ``[N, layers, top_k]`` instead of the likeliest, if given and, for the
    token, recorded; ``chosen`` gets those that were taken, ``[N, top_k]`` for each layer."""

    imposed: RoutedExperts | None = None
    chosen: list[npt.NDArray[np.int64]] = field(default_factory=list)


def logits(
    folder: Path, parts: Iterable[tuple[Path, Ids]], experts: ExpertChoice | None = None
) -> Floats:
    """Logits float64 ``[N, V]`` after each of the ``N`` tokens of all ``parts`` together; with ``experts``, of one part.

    A part is tokens and the safetensors file whose weights compute them, over the keys and values of the
    parts before it. ``folder`` holds the ``config.json``.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    cache: KeysAndValues = {}
    found = []
    for file, ids in parts:
        weights = load_floats(file)
        inputs = weights["model.embed_tokens.weight"][ids]
        found.append(embedded_logits(config, weights, inputs, cache, experts or ExpertChoice()))
    return np.concatenate(found)


def log_softmax(values: Floats) -> Floats:
    """Over the last axis; minus infinity stays."""
    shifted = values - values.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), dtype=np.float64)


def load_floats(file: Path) -> Mapping[str, Floats]:
    """The tensors of a safetensors file, read once until it changes."""
    return _load(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _load(file: Path, changed_ns: int) -> dict[str, Floats]:
    return read_floats(file)


def embedded_logits(
    config: dict[str, Any],
    weights: Mapping[str, Floats],
    x: Floats,
    cache: KeysAndValues,
    experts: ExpertChoice,
) -> Floats:
    """Logits float64 ``[N, V]`` after each of the inputs ``x`` ``[N, hidden]``, which follow those of the ``cache``."""
    count = len(x)
    eps, size = config["rms_norm_eps"], config["head_dim"]

    def norm(x: Floats, name: str) -> Floats:
        scale = weights[f"{name}.weight"] / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return np.asarray(x * scale)

    def linear(x: Floats, name: str) -> Floats:
        return np.asarray(x @ weights[f"{name}.weight"].T)

    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        h = norm(x, f"{layer}.input_layernorm")

        def heads(name: str, h: Floats = h, layer: str = layer) -> Floats:
            projected = linear(h, f"{layer}.self_attn.{name}_proj")
            return projected.reshape(count, -1, size).swapaxes(0, 1)

        old_keys, old_values = cache.get(layer, (np.zeros((1, 0, size)), np.zeros((1, 0, size))))
        start = old_keys.shape[1]
        queries = _rotate(norm(heads("q"), f"{layer}.self_attn.q_norm"), start, config)
        fresh = _rotate(norm(heads("k"), f"{layer}.self_attn.k_norm"), start, config)
        keys = np.concatenate([np.broadcast_to(old_keys, (len(fresh), start, size)), fresh], axis=1)
        values = heads("v")
        values = np.concatenate(
            [np.broadcast_to(old_values, (len(values), start, size)), values], axis=1
        )
        cache[layer] = keys, values
        x = x + linear(_attend(queries, keys, values, start), f"{layer}.self_attn.o_proj")
        h = norm(x, f"{layer}.post_attention_layernorm")

        def block(name: str, h: Floats = h) -> Floats:
            gate = linear(h, f"{name}.gate_proj")
            gated = gate / (1 + np.exp(-gate)) * linear(h, f"{name}.up_proj")
            return linear(gated, f"{name}.down_proj")

        if "num_experts" not in config:
            x = x + block(f"{layer}.mlp")
            continue
        weight = _expert_weights(config, linear(h, f"{layer}.mlp.gate"), experts, number)
        for expert in range(config["num_experts"]):
            x = x + weight[:, expert, None] * block(f"{layer}.mlp.experts.{expert}")
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return linear(norm(x, "model.norm"), head)


def _expert_weights(
    config: dict[str, Any], routing: Floats, experts: ExpertChoice, layer: int
) -> Floats:
    """Of each token and expert ``[N, experts]``, 0 where it is not chosen; ``routing`` are the router's logits."""
    probs = np.exp(log_softmax(routing))
    chosen = np.argsort(-probs, axis=-1, kind="stable")[:, : config["num_experts_per_tok"]]
    if experts.imposed is not None:
        imposed = experts.imposed[:, layer]
        chosen = np.where(imposed == not_recorded(imposed.dtype), chosen, imposed)
    experts.chosen.append(chosen)
    kept = np.zeros_like(probs)
    np.put_along_axis(kept, chosen, np.take_along_axis(probs, chosen, -1), -1)
    return np.asarray(kept / kept.sum(-1, keepdims=True))


def _rotate(x: Floats, start: int, config: dict[str, Any]) -> Floats:
    """Rotary positions (Su et al. 2021) in the half-split layout."""
    half = config["head_dim"] // 2
    frequency = config["rope_theta"] ** (-np.arange(half) / half)
    angle = np.arange(start, start + x.shape[1])[:, None] * frequency
    one, two = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)


def _attend(queries: Floats, keys: Floats, values: Floats, start: int) -> Floats:
    """Causal attention of ``[heads, n, d]`` over ``[kv heads, start + n, d]``: ``[n, heads · d]``."""
    share = len(queries) // len(keys)
    keys, values = np.repeat(keys, share, axis=0), np.repeat(values, share, axis=0)
    count = queries.shape[1]
    attended = np.empty(queries.shape)
    # The scores of a whole context of 2,000 tokens would take longer to allocate than to compute.
    for first in range(0, count, _QUERIES):
        block = queries[:, first : first + _QUERIES]
        seen = start + first + block.shape[1]
        scores = block @ keys[:, :seen].swapaxes(1, 2) / np.sqrt(queries.shape[-1])
        later = np.arange(seen)[None, :] > np.arange(start + first, seen)[:, None]
        scores = np.where(later, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended[:, first : first + _QUERIES] = weights @ values[:, :seen]
    return np.asarray(attended.swapaxes(0, 1).reshape(count, -1))
