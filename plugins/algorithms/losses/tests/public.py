"""What public implementations compute, restated in NumPy from their source, on padded ``[B, T]`` arrays.

Each function follows the one that its docstring names; nothing of the plugin is used. Log-probs of the current
policy may be complex: a step of ``1e-30 i`` in one of them leaves its derivative in the imaginary part of the
loss, and ``.real`` stands where the source detaches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def clamp(x: Array, low: float = -np.inf, high: float = np.inf) -> Array:
    return np.where(x.real < low, low, np.where(x.real > high, high, x))


def maximum(a: Array, b: Array) -> Array:
    return np.where(a.real >= b.real, a, b)


def minimum(a: Array, b: Array) -> Array:
    return np.where(a.real <= b.real, a, b)


# --- verl: verl/trainer/ppo/core_algos.py and verl/utils/torch_functional.py --------------------------------


def verl_whiten(values: Array, mask: Array) -> Array:
    """``masked_whiten``: sample variance, 1e-8 inside the root; not masked afterwards."""
    count = mask.sum()
    mean = (values * mask).sum() / count
    variance = (((values - mean) ** 2) * mask).sum() / count * count / (count - 1)
    return (values - mean) / np.sqrt(variance + 1e-8)


def verl_outcome(kind: str, scores: Array, mask: Array, index: Array) -> Array:
    """``compute_grpo_…``, ``_rloo_…``, ``_opo_…`` and ``_reinforce_plus_plus_baseline_outcome_advantage``."""
    result, length = np.array(scores, float), mask.sum(1)
    for i in range(len(scores)):
        same = index == index[i]
        group, n = scores[same], int(same.sum())
        if kind == "grpo":
            mean, std = (group.mean(), group.std(ddof=1)) if n > 1 else (0.0, 1.0)
            result[i] = (scores[i] - mean) / (std + 1e-6)
        elif kind == "rloo" and n > 1:
            result[i] = scores[i] * n / (n - 1) - group.mean() * n / (n - 1)
        elif kind == "opo" and n > 1:
            result[i] = scores[i] - (length[same] * group).sum() / length[same].sum()
        elif kind == "reinforce_pp_baseline" and n > 1:
            result[i] = scores[i] - group.mean()
    spread = result[:, None] * mask
    return verl_whiten(spread, mask) * mask if kind == "reinforce_pp_baseline" else spread


def verl_otb(rewards: Array, mask: Array, index: Array, energy: Array, tail: bool = True) -> Array:
    """``compute_multi_turn_optimal_token_baseline_advantage`` of rewards of tokens; ``energy``: 1 - 2π + Σπ²; ``tail``:
    ``handle_zero_tail``."""
    back = np.zeros(rewards.shape)
    rows = [np.flatnonzero(m) for m in mask]
    for i, own in enumerate(rows):
        group = [j for j in np.flatnonzero(index == index[i]) if len(rows[j])]
        for t, token in enumerate(own):
            back[i, token] = rewards[i, own[t:]].sum()
            there = [j for j in group if len(rows[j]) > t]
            if len(group) == 1 or (tail and len(there) == 1):
                continue
            weights = [energy[j, rows[j][: t + 1]].sum() for j in there]
            returns = [rewards[j, rows[j][t:]].sum() for j in there]
            back[i, token] -= np.dot(weights, returns) / (sum(weights) + 1e-8)
    return back


def verl_gpg(scores: Array, mask: Array, index: Array, f_norm: float = 1.0) -> Array:
    """``compute_gpg_outcome_advantage``."""
    alpha, result = len(scores) / max(1, np.count_nonzero(scores)), np.array(scores, float)
    for i in range(len(scores)):
        group = scores[index == index[i]]
        mean = group.mean() if len(group) > 1 else 0.0
        result[i] = alpha * (scores[i] - mean) / f_norm
    return result[:, None] * mask


def verl_dppo(
    kind: str, lp: Array, old: Array, a: Array, mask: Array, low: float, high: float, cap: float
) -> Array:
    """``compute_policy_loss_dppo_tv`` and ``_kl``."""
    ratio = np.minimum(np.exp(np.clip((lp - old).real, -20, 20)), cap)
    p, q = np.exp(lp.real), np.exp(old)
    if kind == "tv":
        up, down = p - q <= high, p - q >= -low
    else:
        with np.errstate(invalid="ignore"):  # beyond a probability of 1, which no model gives
            kl = q * (old - lp.real) + (1 - q) * np.log((1 - q + 1e-8) / (1 - p + 1e-8))
        up, down = (kl <= high) | (p <= q), (kl <= low) | (p >= q)
    return verl_agg(-a * ratio * lp * np.where(a > 0, up, down), mask, "token-mean")


def verl_rejection(lp: Array, old: Array, mask: Array, option: str, upper: float) -> Array:
    """``compute_rollout_rejection_mask``: 1 for tokens that are kept; ``lp`` the policy trained, ``old`` the sampler."""
    log = np.clip(lp - old, -20, 20)
    value = 0.5 * log**2 if option.endswith("k2") else np.exp(log) - 1.0 - log
    if not option.startswith("token"):
        total = (value * mask).sum(1)
        value = {
            "seq_sum": total,
            "seq_mean": total / (mask.sum(1) + 1e-8),
            "seq_max": np.where(mask > 0, value, 0.0).max(1),
        }[option[:-3]][:, None]
    return (value <= upper) * np.ones_like(mask)


def verl_reinforce_pp(rewards: Array, mask: Array, gamma: float, reset: bool) -> Array:
    """``compute_reinforce_plus_plus_outcome_advantage``; ``reset``: the revision that multiplies the running
    return by the mask, else the one that carries it over."""
    returns, running = np.zeros_like(rewards), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        new = rewards[:, t] + gamma * running
        returns[:, t] = new
        running = new * mask[:, t] if reset else np.where(mask[:, t] > 0, new, running)
    return verl_whiten(returns, mask) * mask


def verl_gae(rewards: Array, values: Array, mask: Array, gamma: float, lam: float) -> Array:
    """``compute_gae_advantage_return``: (whitened advantages, returns)."""
    after = trace = np.zeros(len(rewards))
    advantages = np.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * after - values[:, t]
        new = delta + gamma * lam * trace
        after = values[:, t] * mask[:, t] + (1 - mask[:, t]) * after
        trace = new * mask[:, t] + (1 - mask[:, t]) * trace
        advantages[:, t] = trace
    return verl_whiten(advantages, mask), advantages + values


def verl_agg(losses: Array, mask: Array, mode: str) -> Array:
    """``agg_loss``; empty rows are left out of row means."""
    if mode == "token-mean":
        return (losses * mask).sum() / mask.sum()
    length = mask.sum(1)
    rows = (losses * mask).sum(1) / ((length + 1e-8) if mode == "seq-mean-token-mean" else 1)
    return (rows * (length > 0)).sum() / (length > 0).sum()


def verl_vanilla(lp: Array, old: Array, a: Array, mask: Array, low: float, high: float) -> Array:
    """``compute_policy_loss_vanilla`` with ``clip_ratio_c`` 3."""
    ratio = np.exp(clamp(lp - old, -20, 20))
    first = maximum(-a * ratio, -a * clamp(ratio, 1 - low, 1 + high))
    return verl_agg(np.where(a < 0, minimum(-a * 3.0, first), first), mask, "token-mean")


def verl_gspo(lp: Array, old: Array, a: Array, mask: Array, low: float, high: float) -> Array:
    """``compute_policy_loss_gspo``."""
    mean = ((lp - old) * mask).sum(1) / np.maximum(mask.sum(1), 1)
    ratio = np.exp(clamp(lp - lp.real + mean.real[:, None], high=10.0))
    return verl_agg(
        maximum(-a * ratio, -a * clamp(ratio, 1 - low, 1 + high)), mask, "seq-mean-token-mean"
    )


def verl_sapo(lp: Array, old: Array, a: Array, mask: Array, mode: str) -> Array:
    """``compute_policy_loss_sapo`` with tau 1 and 1.05 (AstraFlow and AReaL ``sapo_loss_fn``: token mean)."""
    ratio = np.exp(clamp(lp - old, -20, 20))
    tau = np.where(a > 0, 1.0, 1.05)
    gate = 1 / (1 + np.exp(-tau * (ratio - 1))) * (4 / tau)
    return verl_agg(-gate * a, mask, mode)


def verl_cispo(lp: Array, old: Array, a: Array, mask: Array, low: float, high: float) -> Array:
    """``compute_policy_loss_cispo``."""
    ratio = np.exp(np.clip((lp - old).real, -20, 20))
    return verl_agg(-np.clip(ratio, 1 - low, 1 + high) * a * lp, mask, "token-mean")


def verl_kl(lp: Array, ref: Array, kind: str) -> Array:
    """``kl_penalty``; a ``+`` binds the gradient of k2 to the value."""
    if kind.endswith("+"):
        backward = 0.5 * (lp - ref) ** 2
        return backward - backward.real + verl_kl(lp, ref, kind[:-1]).real
    if kind == "k1":
        return lp - ref
    if kind == "k2":
        return 0.5 * (lp - ref) ** 2
    gap = clamp(ref - lp, -20, 20)
    return clamp(np.exp(gap) - gap - 1, -10, 10)


def verl_value_loss(
    predicted: Array, old: Array, returns: Array, mask: Array, clip: float
) -> Array:
    """``compute_value_loss``."""
    bounded = minimum(maximum(predicted, old - clip), old + clip)
    return 0.5 * verl_agg(
        maximum((predicted - returns) ** 2, (bounded - returns) ** 2), mask, "token-mean"
    )


# --- AReaL: areal/utils/functional/functional.py, areal/trainer/ppo/actor.py --------------------------------


def areal_loss(
    lp: Array, prox: Array, old: Array, a: Array, mask: Array, eps: float, filtering: Any = None
) -> Array:
    """``ppo_actor_loss_fn`` with ``apply_rejection_sampling`` (metric ``ratio``): (action, level, upper)."""
    count, kept, weight = max(mask.sum(), 1), mask > 0, np.ones_like(old)
    if filtering is not None:
        action, level, upper = filtering
        log = prox - old
        if level == "sequence":
            mean = (log * mask).sum(1, keepdims=True) / np.maximum(mask.sum(1, keepdims=True), 1)
            log = np.broadcast_to(mean, log.shape)
        weight = np.exp(log)
        if action == "mask":
            kept = kept & (weight <= upper)
        else:
            weight = np.minimum(weight, upper)
    ratio = np.exp(lp - prox)
    losses = maximum(-a * ratio, -a * clamp(ratio, 1 - eps, 1 + eps)) * weight
    return np.where(kept, losses, 0).sum() / count


def areal_m2_mask(prox: Array, old: Array, mask: Array, threshold: float) -> Array:
    """``_get_m2po_loss_mask`` on all valid tokens: drop the largest until the mean of the rest is below."""
    moments = (old - prox)[mask > 0] ** 2
    order = np.argsort(-moments, kind="stable")
    descending = moments[order]
    means = descending[::-1].cumsum()[::-1] / np.arange(len(descending), 0, -1)
    below = np.flatnonzero(means < threshold)
    dropped = below[0] if len(below) else len(descending) - 1
    flags = np.ones(len(moments), bool)
    flags[order[:dropped]] = False
    result = np.zeros(mask.shape)
    result[mask > 0] = flags
    return result


def areal_loglinear(lp: Array, old: Array, versions: Array, current: int) -> Array:
    """``compute_prox_logp_approximations``, method ``loglinear``."""
    behind = current - versions
    part = np.where(behind > 0, (current - 1 - versions) / np.where(behind > 0, behind, 1), 0)
    return old + np.clip(part, 0, 1) * (lp.real - old)


def areal_normalize(values: Array, mask: Array, eps: float = 1e-5) -> Array:
    """``Normalization`` with ``mean_level`` and ``std_level`` "batch" (areal/utils/data.py): sample deviation, plus
    ``eps``."""
    count = mask.sum()
    centered = (values - (values * mask).sum() / count) * mask
    return centered / (np.sqrt((centered**2).sum() / (count - 1)) + eps)


# --- AstraFlow: astraflow/train_worker/engine/ppo/actor.py --------------------------------------------------


def astraflow_clip_range(lp: Array, old: Array, a: Array, mask: Array, threshold: float) -> Any:
    """``_calculate_m2po_clip_range``."""
    ratio = np.exp(lp.real - old)
    chosen = (mask > 0) & (((a > 0) & (ratio > 1)) | ((a < 0) & (ratio < 1)))
    moments = np.sort((old - lp.real)[chosen] ** 2)[::-1]
    if not len(moments) or moments.mean() <= threshold:
        return 0.95, 20.0
    means = moments[::-1].cumsum()[::-1] / np.arange(len(moments), 0, -1)
    below = np.flatnonzero(means < threshold)
    tau = np.sqrt(moments[below[0] if len(below) else len(moments) - 1])
    return min(1 - np.exp(-tau), 0.95), min(np.exp(tau) - 1, 20.0)


def astraflow_gspo(lp: Array, old: Array, a: Array, mask: Array, low: float, high: float) -> Array:
    """``ppo_actor_loss_fn`` at level ``sequence``: advantages averaged per row, mean over tokens."""
    length = np.maximum(mask.sum(1, keepdims=True), 1)
    ratio = np.exp(((lp - old) * mask).sum(1, keepdims=True) / length)
    mean = (a * mask).sum(1, keepdims=True) / length
    losses = maximum(-mean * ratio, -mean * clamp(ratio, 1 - low, 1 + high))
    return verl_agg(losses * np.ones_like(mask), mask, "token-mean")


# --- M2PO: Infini-AI-Lab/M2PO, verl/trainer/ppo/core_algos.py -----------------------------------------------


def m2po_clip_range(lp: Array, old: Array, a: Array, mask: Array, budget: float) -> Any:
    """``kpo_clip_harmful_tokens`` with ``_solve_tau_from_sorted_delta2``, and the floors of
    ``compute_m2po_policy_loss``. (The sign of A is read per token; the source reads column 0 of the row.)"""
    ratio = np.exp(lp.real - old)
    chosen = (mask > 0) & (((a > 0) & (ratio > 1)) | ((a < 0) & (ratio < 1)))
    moments = np.sort((old - lp.real)[chosen] ** 2)
    n, low, high = len(moments), 0.0, 100000.0
    if n and moments.mean() > budget:
        total, target, tau = np.cumsum(moments), budget * n, 0.0
        for k in range(n):
            if moments[k] * (n - k - 1) + total[k] >= target:
                tau = np.sqrt(moments[k - 1]) if k else 0.0
                break
        low, high = np.exp(-tau), np.exp(tau)
    return max(1 - low, 0.3), max(high - 1, 0.5)


# --- TRL: trl/trainer/grpo_trainer.py -----------------------------------------------------------------------


def trl_advantages(rewards: Array, index: Array, scale: bool) -> Array:
    """``rewards - mean`` and, with ``scale_rewards="group"``, ``/ (std + 1e-4)``, per row."""
    result = np.zeros(len(rewards))
    for i in range(len(rewards)):
        group = rewards[index == index[i]]
        std = group.std(ddof=1) if len(group) > 1 else 0.0
        result[i] = (rewards[i] - group.mean()) / (std + 1e-4 if scale else 1)
    return result


def trl_batch_scaled(rewards: Array, index: Array) -> Array:
    """``scale_rewards="batch"``: the standard deviation of all rewards plus 1e-4."""
    return trl_advantages(rewards, index, False) / (rewards.std(ddof=1) + 1e-4)


def trl_rloo(lp: Array, old: Array, a: Array, mask: Array, low: float, high: float) -> Array:
    """``_compute_loss`` of trl/trainer/rloo_trainer.py: the ratio of the whole row."""
    advantage = np.where(mask.any(1), (a * mask).sum(1) / np.maximum(mask.sum(1), 1), 0.0)
    ratio = np.exp(((lp - old) * mask).sum(1))
    losses = -minimum(ratio * advantage, clamp(ratio, 1 - low, 1 + high) * advantage)
    return losses.mean()


def trl_normalize(advantages: Array) -> Array:
    """``normalize_advantages`` of trl/trainer/rloo_trainer.py: of rows, sample deviation plus 1e-4."""
    return (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-4)


def trl_loss(
    lp: Array, old: Array, a: Array, mask: Array, loss_type: str, low: float = 0.2,
    high: float = 0.2, level: str = "token", ref: Array = None, beta: float = 0.0,
    factor: Array = 1.0, longest: int = 1,
) -> Array:  # fmt: skip
    """``_compute_loss``; ``factor`` is the importance sampling correction or the off-policy mask."""
    log = lp - old
    length = np.maximum(mask.sum(1, keepdims=True), 1)
    if level == "sequence":
        log = (log * mask).sum(1, keepdims=True) / length * np.ones_like(mask)
    coef = np.exp(log)
    if loss_type == "cispo":
        losses = -np.minimum(coef.real, high) * a * lp
    elif loss_type == "sapo":
        tau = np.where(a > 0, 1.0, 1.05)
        losses = -a * 4 / tau / (1 + np.exp(-tau * (coef - 1)))
    else:
        losses = maximum(-coef * a, -clamp(coef, 1 - low, 1 + high) * a)
    losses = losses * factor
    if beta:
        losses = losses + beta * (np.exp(ref - lp) - (ref - lp) - 1)
    if loss_type in ("grpo", "sapo"):
        return ((losses * mask).sum(1) / length[:, 0]).mean()
    if loss_type == "dr_grpo":
        return (losses * mask).sum() / (len(mask) * longest)
    return (losses * mask).sum() / mask.sum()


def trl_correction(old: Array, sampled: Array, mask: Array, mode: str, cap: float) -> Array:
    """``vllm_importance_sampling_mode``: token or sequence (product of ratios), truncate or mask."""
    log = (old - sampled) * mask
    ratio = np.exp(log.sum(1, keepdims=True) if mode.startswith("sequence") else log)
    return np.minimum(ratio, cap) if mode.endswith("truncate") else np.where(ratio > cap, 0, ratio)


def trl_off_policy_mask(lp: Array, sampled: Array, a: Array, mask: Array, delta: float) -> Array:
    """``get_off_policy_mask``: rows with A ≥ 0, or with a mean log-ratio of at most ``delta``."""
    drift = ((sampled - lp.real) * mask).sum(1, keepdims=True)
    drift = drift / np.maximum(mask.sum(1, keepdims=True), 1)
    return ((a >= 0) | (drift <= delta)) * 1.0


# --- prime-rl: src/prime_rl/trainer/rl/loss.py ---------------------------------------------------------------


def prime_rl_loss(
    lp: Array, old: Array, a: Array, mask: Array, low: float, high: float, adv_tau: float, kl_tau: float
) -> Array:  # fmt: skip
    """``default_loss_fn``, divided by the trained tokens of the batch."""
    moved, log = np.exp(lp.real) - np.exp(old), lp - old
    keep = ~np.where(a > 0, moved > high, moved < -low)
    losses = kl_tau * log**2 - keep * adv_tau * a * np.exp(log)
    return (losses * mask).sum() / mask.sum()


# --- FlashREINFORCE: yifanzhang-pro/FlashREINFORCE, flashreinforce/loss.py -----------------------------------


def flash_reinforce_advantages(rewards: Array, mask: Array) -> Array:
    """Centred over the batch; the source refuses rows without a trained token, here they are none of it."""
    return (rewards - rewards[mask.any(1)].mean())[:, None] * mask


def flash_reinforce_loss(lp: Array, old: Array, a: Array, mask: Array, delta: float) -> Array:
    """``flashreinforce_loss`` with ``negative_token_fraction=1``."""
    p, q = (np.clip(np.exp(log), 1e-6, 1 - 1e-6) for log in (old, lp.real))
    apart = p * (np.log(p) - np.log(q)) + (1 - p) * (np.log1p(-p) - np.log1p(-q))
    length = mask.sum(1)
    rows = np.flatnonzero(length)
    mean = np.maximum((apart * mask).sum(1)[rows] / length[rows], 0)
    losses = (np.exp((lp.real - old) * mask) * a * lp * mask).sum(1)[rows] / length[rows]
    return -(losses * (mean <= delta)).mean()


# --- MaxRL: arXiv 2602.02710 ---------------------------------------------------------------------------------


def maxrl_advantages(rewards: Array, mask: Array, index: Array) -> Array:
    """The paper's estimator: the reward less the group's mean, over that mean; 0 if all rewards are 0."""
    result = np.zeros(len(rewards))
    for i in range(len(rewards)):
        mean = rewards[index == index[i]].mean()
        result[i] = rewards[i] / mean - 1 if mean > 0 else 0.0
    return result[:, None] * mask


# --- Claw-R1: claw_r1/core_algos.py -------------------------------------------------------------------------


def claw_grpo(rewards: Array, trajectory: Array, index: Array, eps: float) -> Array:
    """``compute_grpo_outcome_advantage``: per row (a step), a trajectory counting once, with the sum of its steps."""
    ids = np.unique(trajectory)
    score = {t: rewards[trajectory == t].sum() for t in ids}
    of = {t: index[trajectory == t][0] for t in ids}
    result = {}
    for t in ids:
        group = np.array([score[u] for u in ids if of[u] == of[t]])
        std = group.std(ddof=1) if len(group) > 1 else 0.0
        result[t] = (score[t] - group.mean()) / (std + eps) if len(group) > 1 else 0.0
    return np.array([result[t] for t in trajectory])


def claw_step_gae(
    rewards: Array, values: Array, trajectory: Array, gamma: float, lam: float
) -> Array:
    """``compute_gae_advantage_return``: one reward and one value per row, rows of a trajectory in order;
    before whitening."""
    result = np.zeros(len(rewards))
    for t in np.unique(trajectory):
        trace = after = 0.0
        for row in reversed(np.flatnonzero(trajectory == t)):
            delta = rewards[row] + gamma * after - values[row]
            trace, after = delta + gamma * lam * trace, values[row]
            result[row] = trace
    return result
