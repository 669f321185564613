"""Choosing the next token of every row of a batch, with the log-probs that the engine declares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from astraflow_core.types import LogprobSemantics

SEMANTICS = LogprobSemantics(temperature=True, truncation=False)
"""Log-probs are of ``softmax(logits / temperature)`` over the whole vocabulary, whatever top-k, top-p
and min-p keep; greedy rows report the raw distribution."""


_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_MASK = (1 << 64) - 1


def stream_keys(seed: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A key for the random numbers of each of an engine's requests ``numbers``: uint64 ``[n]``."""
    start = _mixed(np.array([seed & _MASK], np.uint64) + _GAMMA)
    return _mixed(start + (numbers.astype(np.uint64) + np.uint64(1)) * _GAMMA)


def points(keys: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Number ``counts[i]`` of the stream with key ``keys[i]``, in [0, 1): float64 ``[n]``.

    SplitMix64 (Steele, Lea and Flood 2014), which is counter-based: what a token is drawn with depends on its request and its
    place alone, not on which rows a forward pass has or how many tokens of each.
    """
    mixed = _mixed(keys + (counts.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _FACTORS[0]
    state = (state ^ (state >> np.uint64(27))) * _FACTORS[1]
    return state ^ (state >> np.uint64(31))


def sample(logits: torch.Tensor, rows: npt.NDArray[np.void]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row: int64 ``[n]`` and its float32 log-prob ``[n]``, on the logits' device.

    ``logits``: ``[n, V]``, any float type. ``rows``: ``[n]`` records with ``temperature`` (0 is greedy),
    ``top_k``, ``top_p``, ``min_p``, and the ``stream`` of random numbers with the ``count`` of those before.
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
        drawn = torch.from_numpy(points(rows["stream"], rows["count"]))
        tokens = draw(probs, drawn.to(probs.device))
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


def draw(probs: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """One index per row of ``probs`` ``[n, V]`` (need not sum to 1) by inversion at ``at``, float64 ``[n]`` in [0, 1): int64
    ``[n]``.

    In float64, and strictly above the drawn point, so that a token of probability 0 is never drawn.
    """
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    point = at[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, point, right=True)[:, 0].clamp_(max=probs.shape[-1] - 1)
