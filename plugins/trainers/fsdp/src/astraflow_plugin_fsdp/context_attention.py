"""Attention of ranks that share the tokens of rows: each with its own queries, and the keys and values of all.

As for Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783, 3.3.2) these are gathered, not sent around in a ring: with grouped
queries they are small compared with the queries, and which of them a query sees may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from astraflow_core.errors import UserError
from astraflow_plugin_fsdp.context_layout import TokenSpan

ATTENTION = "astraflow_context"
"""Name of :func:`attend` among the implementations of attention that transformers knows."""


# Named again in torch 2.13, which warns of the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class Context:
    """``group``: the process group of the ranks that share rows; ``pieces``: what this rank's tokens see of a
    micro-batch."""

    group: Any
    pieces: tuple[TokenSpan, ...]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    context: Context | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention as transformers calls it: ``query`` ``[B, H, t, D]``, ``key`` and ``value`` ``[B, K, t, ·]`` of
    this rank's ``t`` tokens, ``[B, t, H, ·]`` as the result. There is no mask: transformers makes one only for
    implementations that have registered how, and ``context`` says all."""
    if context is None:
        raise UserError(
            f"context_parallel: {type(module).__name__} does not receive its tokens, since its model does not pass "
            "arguments on to attention: set context_parallel = 1"
        )
    gathered: torch.Tensor = _Gathered.apply(  # type: ignore[no-untyped-call]
        torch.cat([key, value], dim=-1), context.group
    )
    keys, values = torch.split(gathered, [key.shape[-1], value.shape[-1]], dim=-1)
    seen = [
        attend_piece(query, keys, values, piece, scaling, sliding_window)
        for piece in context.pieces
    ]
    return torch.cat(seen, dim=2).transpose(1, 2).contiguous(), None


def attend_piece(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    piece: TokenSpan,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """What the ``piece`` of ``query`` ``[B, H, t, D]`` finds among ``keys`` and ``values`` ``[B, K, T, ·]`` of all
    ranks: ``[B, H, ·, ·]``. A query sees the ``sliding_window`` keys up to its own, or all up to its own."""
    mine = query[:, :, piece.queries]
    tokens = mine.shape[2]
    start, stop = piece.keys.start, piece.keys.stop
    if sliding_window is not None:
        if tokens > sliding_window:
            # Parts, so that the masks grow with the tokens and not with their square.
            parts = [
                TokenSpan(slice(first, last), slice(start, stop - piece.queries.stop + last))
                for first, last in _cut(piece.queries, sliding_window)
            ]
            found = [
                attend_piece(query, keys, values, part, scaling, sliding_window) for part in parts
            ]
            return torch.cat(found, dim=2)
        start = max(start, stop - tokens - sliding_window + 1)
    keys, values = keys[:, :, start:stop], values[:, :, start:stop]
    grouped = query.shape[1] > keys.shape[1]
    unmasked = query.device.type == "cpu" and sliding_window is None
    unmasked &= query.shape[-1] == keys.shape[-1] == values.shape[-1]
    if grouped and (unmasked or query.dtype == torch.float32):
        # Kernels that share heads of keys have no float32; without a kernel all scores are made at once.
        groups, grouped = query.shape[1] // keys.shape[1], False
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
    if unmasked and stop - start > tokens:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        later: torch.Tensor = _Later.apply(mine, keys, values, scale)  # type: ignore[no-untyped-call]
        return later
    mask: torch.Tensor = causal_lower_right(tokens, stop - start)
    if sliding_window is not None and stop - start > sliding_window:
        before = stop - start - tokens
        band = torch.ones(tokens, stop - start, dtype=torch.bool, device=query.device)
        mask = band.tril(before).triu(before - sliding_window + 1)
    return scaled_dot_product_attention(
        mine, keys, values, attn_mask=mask, scale=scaling, enable_gqa=grouped
    )


def _cut(span: slice, size: int) -> Iterator[tuple[int, int]]:
    """First and last of at most ``size`` each."""
    for first in range(span.start, span.stop, size):
        yield first, min(first + size, span.stop)


class _Later(torch.autograd.Function):
    """Attention of queries ``[B, H, t, D]``, the last of which sees all ``[B, H, T, D]`` keys, on a CPU.

    Its kernel is causal from the first key on only, and a mask is of ``t`` x ``T``, kept for the backward pass. So the
    keys before the queries and those at them are attended apart and put together by their sums of exponentials, as the
    blocks of FlashAttention (Dao et al. 2022, arXiv:2205.14135, 3.1) are: the kernel's backward pass takes the sums of both.
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> torch.Tensor:
        found = [
            _attend(query, k, v, 0.0, causal, scale=scale)
            for k, v, causal in _before_and_at(query, keys, values)
        ]
        total = torch.logaddexp(*(sums for _, sums in found))
        out = sum((part * (sums - total).exp()[..., None]).to(query.dtype) for part, sums in found)
        assert isinstance(out, torch.Tensor)
        ctx.save_for_backward(query, keys, values, out, total)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, keys, values, out, total = ctx.saved_tensors
        given = gradients[0].contiguous()
        parts = [
            _attend_backward(given, query, k, v, out, total, 0.0, causal, scale=ctx.scale)
            for k, v, causal in _before_and_at(query, keys, values)
        ]
        of_query, of_keys, of_values = zip(*parts, strict=True)
        return sum(of_query), torch.cat(of_keys, dim=2), torch.cat(of_values, dim=2), None


def _before_and_at(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    before = keys.shape[2] - query.shape[2]
    return [
        (keys[:, :, :before], values[:, :, :before], False),
        (keys[:, :, before:], values[:, :, before:], True),
    ]


class _Gathered(torch.autograd.Function):
    """``[B, K, t, D]`` of each rank's tokens, as :func:`context_layout.columns` shares them out, to ``[B, K, T, D]`` of
    all; its gradient is summed over ranks in float32, each rank its own."""

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        ranks = dist.get_world_size(group)
        parts = mine.new_empty(ranks * len(mine), *mine.shape[1:])
        _all_gather(parts, mine.contiguous(), group=group)
        front, back = parts.view(ranks, *mine.shape).chunk(2, dim=3)
        return torch.cat([front, back.flip(0)]).permute(1, 2, 0, 3, 4).flatten(2, 3)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        ranks = dist.get_world_size(ctx.group)
        chunks = torch.stack(gradient.float().chunk(2 * ranks, dim=2))
        front, back = chunks.chunk(2)
        parts = torch.cat([front, back.flip(0)], dim=3).contiguous()
        mine = torch.empty_like(parts[0])
        _reduce_scatter(mine, parts.flatten(0, 1), group=ctx.group)
        return mine.to(gradient.dtype), None


AttentionInterface.register(ATTENTION, attend)
