"""What public implementations compute of turns, restated in float64 NumPy from their source: one entry for each turn,
those of a trajectory in their order; nothing of the plugin is used."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def discounted(rewards: Array, trajectory: Array, gamma: float) -> Array:
    """``compute_step_discounted_returns`` of verl-agent; ``compute_mc_return`` of rLLM."""
    found = np.zeros(len(rewards))
    for name in set(trajectory):
        running = 0.0
        for step in np.flatnonzero(trajectory == name)[::-1]:
            running = rewards[step] + gamma * running
            found[step] = running
    return found


def verl_agent_normed(
    scores: Array, index: Array, remove_std: bool, alone: str, counted: Array | None = None
) -> Array:
    """``episode_norm_reward`` (``alone`` "reward": a single score keeps its value) and ``step_norm_reward`` ("zero")
    of verl-agent, ``gigpo/core_gigpo.py``; ``counted``: which scores are in mean and deviation."""
    found = np.array(scores, float)
    for i, name in enumerate(index):
        same = np.array([other == name for other in index])
        group = np.asarray(scores)[same if counted is None else same & counted]
        mean = 0.0 if len(group) == 1 and alone == "reward" else group.mean()
        std = 1.0 if len(group) == 1 else group.std(ddof=1)
        found[i] = scores[i] - mean if remove_std else (scores[i] - mean) / (std + 1e-6)
    return found


def verl_agent_gigpo(
    rewards: Array, group: Array, trajectory: Array, anchor: Array, gamma: float, weight: float,
    mode: str, cross_steps: bool = True,
) -> Array:  # fmt: skip
    """``compute_gigpo_outcome_advantage``; an episode's score is the sum of its steps' rewards."""
    total = np.array([rewards[trajectory == name].sum() for name in trajectory])
    first = np.array([not (trajectory[:i] == name).any() for i, name in enumerate(trajectory)])
    plain = mode == "mean_norm"
    episode = verl_agent_normed(total, group, plain, "reward", None if cross_steps else first)
    states = list(zip(group, anchor, strict=True))
    step = verl_agent_normed(discounted(rewards, trajectory, gamma), states, plain, "zero")
    return episode + weight * step


def mt_grpo(
    turn: Array, outcome: Array, group: Array, estimator: str, coef: float, gamma: float
) -> Array:
    """``MTGRPOEnvTrainer`` of SiliangZeng/Multi-Turn-RL-Agent: ``turn`` and ``outcome`` rewards of trajectories of two
    turns, the advantages ``[n, 2]`` of both."""

    def normed(values: Array) -> Array:
        found = np.zeros(len(values))
        for name in set(group):
            same = group == name
            found[same] = (values[same] - values[same].mean()) / (values[same].std(ddof=1) + 1e-4)
        return found

    if estimator == "additive":
        first = normed(outcome) + coef * normed(turn)
    else:
        first = normed(turn + gamma * outcome)
    return np.stack([first, normed(outcome)], axis=1)


def rllm_per_step(returns: Array, group: Array, place: Array) -> Array:
    """Advantages ``per_step`` of rLLM: returns are compared with those of the same step of the same task; the variant
    that does not divide."""
    found = np.array(returns, float)
    for i in range(len(returns)):
        same = (group == group[i]) & (place == place[i])
        found[i] -= returns[same].mean()
    return found
