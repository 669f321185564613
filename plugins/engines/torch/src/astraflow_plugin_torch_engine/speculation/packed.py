"""One forward pass over several tokens of each row, of which rows may have different numbers: for drafts to be verified.

All tokens are one sequence for the model, so that its matrix products have no padding. Only attention gets them apart, row
by row and padded, since each row has its own keys and values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from astraflow_plugin_torch_engine.cache import TILE, KVPool
from astraflow_plugin_torch_engine.model import CausalModel
from astraflow_torch_weights.qwen3 import Qwen3ForCausalLM
from astraflow_torch_weights.qwen3 import attend as qwen3_attention

Int64 = npt.NDArray[np.int64]
PREFIX = "astraflow_packed_"
"""Of the names under which transformers knows the attention here; behind it is that which computes."""


class _Layout(NamedTuple):
    """Where each of the packed tokens is: int64 ``[N]`` each, and the padded shape."""

    rows: torch.Tensor
    places: torch.Tensor
    shape: tuple[int, int]


class _Current(threading.local):
    layout: _Layout | None = None


_current = _Current()


def can_pack(model: Any) -> bool:
    """Whether the attention of a loaded model can be called so; it is from now on."""
    if isinstance(model, Qwen3ForCausalLM):
        model.attend_by(partial(_attention, model.attention, model.attention is qwen3_attention))
        return True
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = model.config.get_text_config()._attn_implementation
    if name.startswith(PREFIX):
        return True
    if (
        name not in ALL_ATTENTION_FUNCTIONS
    ):  # such as "eager", which each architecture defines itself
        return False
    compute = ALL_ATTENTION_FUNCTIONS[name]
    AttentionInterface.register(PREFIX + name, partial(_attention, compute, name == "sdpa"))
    if name in ALL_MASK_ATTENTION_FUNCTIONS:
        AttentionMaskInterface.register(PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])
    model.set_attn_implementation(PREFIX + name)
    return True


def verify(
    model: CausalModel, tokens: Int64, rows: Int64, positions: Int64, pool: KVPool
) -> torch.Tensor:
    """Logits ``[N, V]`` after each of the tokens, at ``positions`` of ``rows`` of ``pool`` (int64 ``[N]`` each): rows ascend
    from 0 without a gap, and so do the positions within a row."""
    counts = np.bincount(rows)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = len(counts), int(counts.max())
    padded = np.zeros(shape, np.int64)
    padded[rows, places] = positions
    columns = -(-(int(positions.max()) + 1) // TILE) * TILE
    at = model.tensor(positions)
    layout = _Layout(model.tensor(rows), model.tensor(places), shape)
    pool.begin_packed_step(layout.rows, at, columns, shape[0])
    hidden = torch.arange(columns, device=model.device) > model.tensor(padded)[..., None]
    mask = torch.zeros(hidden.shape, dtype=model.module.dtype, device=model.device)
    mask = mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)[:, None]
    _current.layout = layout
    try:
        logits: torch.Tensor = model.module(
            input_ids=model.tensor(tokens)[None],
            attention_mask=mask,
            position_ids=at[None],
            past_key_values=pool,
            use_cache=True,
        ).logits
    finally:
        _current.layout = None
    return logits[0]


def _attention(
    compute: Callable[..., tuple[torch.Tensor, Any]],
    sdpa: bool,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, Any]:
    """As transformers calls attention. In :func:`verify`: ``query`` ``[1, H, N, D]`` against the ``key`` and ``value`` of all
    rows, ``[n, G, columns, D]``; otherwise ``compute`` itself."""
    layout = _current.layout
    if layout is None:
        return compute(module, query, key, value, mask, scaling=scaling, **others)
    (rows, most), (_, heads, tokens, size) = layout.shape, query.shape
    groups = key.shape[1] if sdpa else heads
    shared = heads // groups
    apart = query.new_zeros(rows, groups, shared, most, size)
    apart[layout.rows, :, :, layout.places] = query.view(groups, shared, tokens, size).permute(
        2, 0, 1, 3
    )
    if (
        sdpa
    ):  # heads that share keys are queries of one head: transformers would copy the keys for each
        assert mask is not None
        wide = mask.expand(rows, shared, most, -1).reshape(rows, 1, shared * most, -1)
        found = functional.scaled_dot_product_attention(
            apart.flatten(2, 3), key, value, attn_mask=wide, scale=scaling
        )
        found = found.view(rows, groups, shared, most, size)
        return found[layout.rows, :, :, layout.places].reshape(1, tokens, heads, size), None
    found, _ = compute(module, apart[:, :, 0], key, value, mask, scaling=scaling, **others)
    return found[layout.rows, layout.places][None], None
