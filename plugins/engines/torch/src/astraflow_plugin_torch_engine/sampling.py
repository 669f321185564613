"""Choosing the next token of every row of a batch, with the log-probs that the engine declares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.types import LogprobSemantics

SEMANTICS = LogprobSemantics(temperature=True, truncation=False)
"""Log-probs are of ``softmax(logits / temperature)`` over the whole vocabulary, whatever top-k, top-p
and min-p keep; greedy rows report the raw distribution."""


def sample(
    logits: torch.Tensor, rows: npt.NDArray[np.void], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row: int64 ``[n]`` and its float32 log-prob ``[n]``, on the logits' device.

    ``logits``: ``[n, V]``, any float type. ``rows``: ``[n]`` records with ``temperature`` (0 is greedy),
    ``top_k``, ``top_p`` and ``min_p``.
    """
    temperature = rows["temperature"]
    greedy = temperature == 0
    logits = logits.float()
    if (temperature != 1).any():
        divisor = torch.from_numpy(np.where(greedy, np.float32(1), temperature))
        logits = logits / divisor.to(logits.device)[:, None]
    logprobs = logits.log_softmax(-1)
    if greedy.all():
        tokens = logprobs.argmax(-1)
    else:
        probs = logprobs.exp()
        truncating = (rows["top_k"] > 0) | (rows["top_p"] < 1) | (rows["min_p"] > 0)
        chosen = np.flatnonzero(truncating & ~greedy)
        if chosen.size:
            index = torch.from_numpy(chosen).to(probs.device)
            probs[index] = truncate(probs[index], rows[chosen])
        tokens = draw(probs, generator)
        if greedy.any():
            tokens = torch.where(
                torch.from_numpy(greedy).to(probs.device), logprobs.argmax(-1), tokens
            )
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def truncate(probs: torch.Tensor, rows: npt.NDArray[np.void]) -> torch.Tensor:
    """``probs`` float32 ``[n, V]`` with zeros where a row's filters drop a token; not renormalised.

    In the usual order: the ``top_k`` likeliest; of those, renormalised, the smallest set that reaches
    ``top_p`` (nucleus sampling, Holtzman et al. 2019); and none below ``min_p`` times the likeliest
    (Nguyen et al. 2024). The likeliest token always stays.
    """

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(rows[name].copy()).to(probs.device)[:, None]

    kept = probs
    if (rows["top_k"] > 0).any() or (rows["top_p"] < 1).any():
        ranked, order = probs.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(probs.shape[-1], device=probs.device)
        top_k = column("top_k")
        ranked = ranked.masked_fill((top_k > 0) & (rank >= top_k), 0.0)
        before = ranked.cumsum(-1, dtype=torch.float64)
        total = before[:, -1:].clone()
        before -= ranked
        top_p = column("top_p")
        dropped = (top_p < 1) & (rank > 0) & (before >= top_p * total)
        kept = torch.zeros_like(probs).scatter_(-1, order, ranked.masked_fill(dropped, 0.0))
    if (rows["min_p"] > 0).any():
        floor = column("min_p") * probs.amax(-1, keepdim=True)
        kept = kept.masked_fill(probs < floor, 0.0)
    return kept


def draw(probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One index per row of ``probs`` ``[n, V]`` (need not sum to 1) by inversion: int64 ``[n]``.

    In float64, and strictly above the drawn point, so that a token of probability 0 is never drawn.
    """
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    point = torch.rand(
        (len(probs), 1), dtype=torch.float64, device=probs.device, generator=generator
    )
    point *= cumulative[:, -1:]
    return torch.searchsorted(cumulative, point, right=True)[:, 0].clamp_(max=probs.shape[-1] - 1)
