"""As public.py: what public implementations make of several rewards, and of a teacher's log-probs."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

P = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public.py"))))
Array = Any


def verl_gdpo(
    scores: Array, weights: Array, mask: Array, index: Array, singleton: bool = True
) -> Array:
    """``compute_gdpo_outcome_advantage`` with ``gdpo_reward_weights``; scores ``[K, B]``. Without ``singleton`` a group of
    one has the advantage 0 of every reward."""
    total = np.zeros_like(mask)
    for of_name, weight in zip(scores, weights, strict=True):
        each = P.verl_outcome("grpo", of_name, mask, index)
        if not singleton:
            each[np.bincount(index)[index] == 1] = 0.0
        total = total + weight * each
    return P.verl_whiten(total, mask) * mask


def trl_gdpo(scores: Array, weights: Array, index: Array) -> Array:
    """``multi_objective_aggregation="normalize_then_sum"``; scores ``[K, B]``, advantages ``[B]``."""
    total = np.zeros(len(index))
    for of_name, weight in zip(scores, weights, strict=True):
        total = total + weight * P.trl_advantages(of_name, index, True)
    return (total - total.mean()) / (total.std(ddof=1) + 1e-4)


def tinker_opd(teacher: Array, sampled: Array, mask: Array, coef: float, discount: float) -> Array:
    """The Tinker cookbook: ``incorporate_kl_penalty``, whose teacher is that of the datum's data set, with
    ``discounted_future_sum_vectorized``."""
    advantages = coef * mask * (teacher - sampled)
    if discount:
        for t in reversed(range(advantages.shape[1] - 1)):
            advantages[:, t] += discount * advantages[:, t + 1]
    return advantages * mask


def tinker_importance_sampling(lp: Array, old: Array, a: Array, mask: Array) -> Array:
    """The loss ``importance_sampling``, a sum over tokens, here over their number."""
    return -(np.exp(lp - old) * a * mask).sum() / mask.sum()
