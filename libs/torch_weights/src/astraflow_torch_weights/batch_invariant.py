"""Forward passes of a transformers model whose numbers for a token depend on that token and those before it only: not on the
batch, padding, chunks, the cache or the number of threads.

Engine and trainer that both compute so, with the same float32 weights and device, have bitwise equal log-probs. The kernels of
a matrix product are chosen by the shape, and each adds up in a different order ("Defeating Nondeterminism in LLM Inference",
He et al. 2025, Thinking Machines Lab). So each product here has one shape, :data:`ROWS` rows, and attention adds up
over :data:`KEYS` keys at a time, from the first key on, so that keys that are masked add zeros. Gradients are those of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from astraflow_core.errors import UserError
from astraflow_torch_weights.qwen3 import Qwen3ForCausalLM, empty_cache

ATTENTION = "astraflow_batch_invariant"
"""The name of the implementation of attention, for transformers."""
ROWS = 16
"""Rows of one matrix product, padded with zeros."""
COLUMNS = 16
"""Fewest columns of one matrix product: with fewer, a row's result depends on its place (MKL)."""
KEYS = 64
"""Keys of one block of attention."""
SCORES = 1 << 23
"""Most scores of queries and keys at once (32 MiB)."""
PRODUCTS = 64
"""Matrix products of one call on a GPU, whose libraries choose a kernel by their number too."""
NORM_ROWS = 256
"""Rows of one norm on a GPU, where the number of rows decides how a row is added up."""

_CONTAINERS = ("Model", "ForCausalLM", "DecoderLayer", "Attention", "MLP", "ModuleList")
_KEPT = ("Embedding", "RotaryEmbedding", "RMSNorm")
_CHECKED_TOKENS = 3 * ROWS + 5


def make_batch_invariant(model: Any, who: str) -> None:
    """Have ``model``, a loaded model, compute so from now on, and check that it does.

    Raises :class:`UserError`, which begins with ``who``, if the model has other layers than linear ones, RMS norms, full
    attention and SiLU, if it is not float32, or if this machine computes two results for one token.
    """
    _refuse_others(model, who)
    if isinstance(model, Qwen3ForCausalLM):
        model.attend_by(attention)
    else:
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, attention)
        model.set_attn_implementation(ATTENTION)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                child.__class__ = _Linear
            elif _kind(child) == "RMSNorm":
                child.__class__ = _norm_class(type(child))
            elif _kind(child) == "SiLU":
                setattr(parent, name, _SiLU())
    check(model, who)


@torch.no_grad()
def check(model: Any, who: str) -> None:
    """:class:`UserError` unless the logits of a few tokens are bitwise the same alone, in a batch with padding, by a cache
    token by token, and with one thread."""
    device = next(model.parameters()).device
    vocabulary = model.get_output_embeddings().weight.shape[0]
    ids = (torch.arange(_CHECKED_TOKENS, device=device) * 7 + 1)[None] % vocabulary
    expected = _logits(model, input_ids=ids, use_cache=False)[0]
    batch = functional.pad(torch.cat([ids.flip(1), ids, ids]), (0, ROWS + 3))
    cache = empty_cache(model)
    at = 2 * ROWS + 1
    first = _logits(model, input_ids=ids[:, :at], past_key_values=cache, use_cache=True)[0]
    steps = [
        _logits(model, input_ids=ids[:, i : i + 1], past_key_values=cache, use_cache=True)[0]
        for i in range(at, at + 3)
    ]
    others = {
        "in a batch": _logits(model, input_ids=batch, use_cache=False)[1, :_CHECKED_TOKENS],
        "by a cache": torch.cat([first, *steps]),
        "with one thread": _with_one_thread(lambda: _logits(model, input_ids=ids, use_cache=False)),
    }
    for how, found in others.items():
        apart = (found - expected[: len(found)]).abs().max().item()
        if apart != 0:
            raise UserError(
                f"{who}: batch_invariant does not hold on this machine: the logits of a token {how} and alone are {apart:.2g} "
                "apart; leave batch_invariant out of engine and trainer"
            )


def _logits(model: Any, **arguments: Any) -> torch.Tensor:
    logits: torch.Tensor = model(**arguments).logits
    return logits


def _with_one_thread(run: Callable[[], torch.Tensor]) -> torch.Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run()[0]
    finally:
        torch.set_num_threads(before)


def _refuse_others(model: Any, who: str) -> None:
    remedy = "leave batch_invariant out of engine and trainer, or use a dense model of the Llama or Qwen3 kind"
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {torch.float32}:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise UserError(f"{who}: batch_invariant computes in float32, the model has {names}")
    layers = sorted({type(child).__name__ for child in model.modules() if not _kind(child)})
    if layers:
        raise UserError(
            f"{who}: batch_invariant does not support {', '.join(layers)} of {type(model).__name__}; {remedy}"
        )
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention"} or (not kinds and getattr(text, "sliding_window", None)):
        raise UserError(f"{who}: batch_invariant needs full attention in all layers; {remedy}")


def _kind(module: Any) -> str:
    """Which of the known kinds of module it is, or nothing."""
    name = type(module).__name__
    if name in ("SiLU", "SiLUActivation"):
        return "SiLU"
    if name in ("Linear", _Linear.__name__):
        return "Linear"
    return next((kind for kind in (*_KEPT, *_CONTAINERS) if name.endswith(kind)), "")


# Products


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.T + bias``, float32 ``[…, K]`` and ``[N, K]``: ``[…, N]``."""
    result: torch.Tensor = _LinearFunction.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    """``[…, R, K]`` as ``[…, n, ROWS, K]``, contiguous."""
    padded = functional.pad(x, (0, 0, 0, -x.shape[-2] % ROWS)).contiguous()
    return padded.view(*x.shape[:-2], -1, ROWS, x.shape[-1])


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Of float32 ``[n, ROWS, K]`` and ``[n, K, N]``: ``[n, ROWS, N]``, each product computed separately."""
    if left.device.type == "cpu":
        return torch.bmm(left, right)
    return _in_equal_calls(left, right)


def _in_equal_calls(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    count, parts = len(left), []
    for first in range(0, count, PRODUCTS):
        ours, theirs = left[first : first + PRODUCTS], right[first : first + PRODUCTS]
        missing = PRODUCTS - len(ours)
        if missing:
            ours = functional.pad(ours, (0, 0, 0, 0, 0, missing))
            theirs = torch.cat([theirs, theirs[:1].expand(missing, -1, -1)])
        parts.append(torch.bmm(ours, theirs.contiguous()))
    return torch.cat(parts)[:count]


class _LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        rows = x.reshape(-1, x.shape[-1])
        wide = functional.pad(weight, (0, 0, 0, max(0, COLUMNS - len(weight))))
        found = _shared_product(_in_rows(rows), wide).flatten(0, 1)[: len(rows), : len(weight)]
        if bias is not None:
            found = found + bias
        return found.reshape(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        wanted = ctx.needs_input_grad
        return (
            (flat @ weight).view(x.shape) if wanted[0] else None,
            flat.T @ x.reshape(-1, x.shape[-1]) if wanted[1] else None,
            flat.sum(0) if wanted[2] else None,
        )


def _shared_product(blocks: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each of ``[n, ROWS, K]`` times ``weight.T``, ``[N, K]``."""
    if blocks.device.type == "cpu":
        return torch.bmm(blocks, weight.T[None].expand(len(blocks), -1, -1))
    return _one_by_one(blocks, weight)


def _one_by_one(blocks: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.stack([block @ weight.T for block in blocks])


# Attention


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    position_ids: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls attention: ``query`` float32 ``[B, H, T, D]``, ``key`` and ``value`` ``[B, G, S, D]`` with H a
    multiple of G, a mask that is added or bool ``[B or 1, 1, T, S]``. Without one it is causal, and the last query is at the
    last key; in a single row ``position_ids`` that begin again at 0 begin another sequence. Gives ``[B, T, H, D]``."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    parts = [
        _AttentionFunction.apply(*each, attention_mask, scale)  # type: ignore[no-untyped-call]
        for each in zip(
            *(_sequences(t, attention_mask, position_ids) for t in (query, key, value)), strict=True
        )
    ]
    found = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return found.transpose(1, 2).contiguous(), None


def _sequences(
    states: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None
) -> Sequence[torch.Tensor]:
    """``[B, H, T, D]`` as it is, or the sequences that are packed into its only row."""
    packed = len(states) == 1 and positions is not None and positions.numel() == states.shape[2]
    if mask is not None or not packed:
        return (states,)
    assert positions is not None
    starts = (positions.flatten() == 0).nonzero().flatten().tolist()
    if len(starts) < 2:
        return (states,)
    return torch.tensor_split(states, starts[1:], 2)


def _visible(mask: torch.Tensor | None, at: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    """What is added to the scores of the queries ``at`` (int64 ``[R]``): float32 ``[B or 1, R, S]``."""
    if mask is None:
        places = torch.arange(keys, device=at.device)
        mask = (places <= (keys - queries + at)[:, None])[None]
    else:
        mask = mask[:, 0, :, :keys].index_select(1, at)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)
    return mask


class _AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale = scale
        batch, heads, queries, size = query.shape
        groups, keys = key.shape[1:3]
        shared = heads // groups
        # The rows of a product are the queries of the heads that share keys.
        rows = query.view(batch, groups, shared, queries, size).transpose(2, 3)
        asked = _in_rows(rows.reshape(batch * groups, queries * shared, size))
        parts, step = [], max(1, SCORES // (batch * groups * ROWS * keys))
        for first in range(0, asked.shape[1], step):
            some = asked[:, first : first + step]
            row = torch.arange(first * ROWS, (first + some.shape[1]) * ROWS, device=query.device)
            at = (row // shared).clamp_(max=queries - 1)
            added = _visible(mask, at, queries, keys)[:, None]
            added = added.expand(batch, groups, -1, -1).reshape(batch * groups, -1, ROWS, keys)
            parts.append(_attended(some, key.flatten(0, 1), value.flatten(0, 1), added, scale))
        found = torch.cat(parts, 1).flatten(1, 2)[:, : queries * shared]
        found = found.view(batch, groups, queries, shared, size)
        return found.transpose(2, 3).reshape(batch, heads, queries, size)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, mask = ctx.saved_tensors
        with torch.enable_grad():
            q, k, v = (each.detach().requires_grad_() for each in (query, key, value))
            found = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=ctx.scale, enable_gqa=True
            )
        return (*torch.autograd.grad(found, (q, k, v), grad), None, None)


def _attended(
    asked: torch.Tensor, key: torch.Tensor, value: torch.Tensor, added: torch.Tensor, scale: float
) -> torch.Tensor:
    """Of queries ``[n, m, ROWS, D]``, keys and values ``[n, S, D]`` and what is added to scores, ``[n, m, ROWS, S]``:
    ``[n, m, ROWS, D]``."""
    many, size, keys = asked.shape[1], asked.shape[-1], key.shape[1]
    queries = asked.flatten(0, 1)
    scores = [_products(queries, part.transpose(1, 2)) * scale for part in _key_blocks(key, many)]
    weighed = torch.cat(scores, -1)
    weighed += functional.pad(added.flatten(0, 1), (0, -keys % KEYS), value=-math.inf)
    weighed = (weighed - weighed.amax(-1, keepdim=True)).exp_()
    # A column of ones adds up the weights along with the values.
    wide = functional.pad(functional.pad(value, (0, 1), value=1.0), (0, -(size + 1) % COLUMNS))
    total = weighed.new_zeros(())
    for part, values in zip(torch.split(weighed, KEYS, -1), _key_blocks(wide, many), strict=True):
        total = total + _products(part.contiguous(), values)
    return (total[..., :size] / total[..., size : size + 1]).view(asked.shape)


def _key_blocks(entries: torch.Tensor, times: int) -> Iterator[torch.Tensor]:
    """``[n, S, D]`` as blocks of :data:`KEYS`, each ``[n * times, KEYS, D]``, the last padded with zeros."""
    padded = functional.pad(entries, (0, 0, 0, -entries.shape[1] % KEYS))
    for block in torch.split(padded, KEYS, 1):
        repeated = block[:, None].expand(-1, times, -1, -1)
        yield repeated.reshape(-1, KEYS, entries.shape[-1])


# Modules, whose class takes the place of the loaded one's


class _Linear(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class _SiLU(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _SiLUFunction.apply(x)  # type: ignore[no-untyped-call]
        return result


class _SiLUFunction(torch.autograd.Function):
    """torch's own has two formulas on CPU: one for whole vectors, one for what is left at the end of a tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x / (1 + (-x).exp())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(x)
        slope: torch.Tensor = grad * share * (1 + x * (1 - share))
        return slope


class _FixedRows:
    """A norm over the last dimension; on a GPU it gets the same number of rows in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own: Callable[[torch.Tensor], torch.Tensor] = super().forward  # type: ignore[misc]
        if x.device.type == "cpu":
            return own(x)
        return _in_fixed_rows(own, x)


def _in_fixed_rows(own: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    padded = functional.pad(rows, (0, 0, 0, -len(rows) % NORM_ROWS))
    found = torch.cat([own(part) for part in torch.split(padded, NORM_ROWS)])
    return found[: len(rows)].view(x.shape)


def _norm_class(loaded: type) -> type:
    if issubclass(loaded, _FixedRows):
        return loaded
    return type(loaded.__name__, (_FixedRows, loaded), {})
