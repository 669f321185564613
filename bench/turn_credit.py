"""Credit for turns beside credit for episodes: a game of six turns, learned from random weights.

Real are the game (`key_door`), its levels, the algorithms and what a dataflow stamps on their batches; the policy is a
network of two layers that sees the state, and each update is made at once, in this process. ``gigpo``, ``turn_grpo`` and
``reinforce`` credit turns, ``grpo`` and ``reinforce_pp`` give all turns of an episode what the whole earned.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.support.text_game.learner import Learner

UPDATES = 120
KEYS: dict[str, dict[str, Any]] = {
    "gigpo": {},
    "turn_grpo": {"estimator": "cumulative"},
    "reinforce": {"baseline": "turn"},
    "grpo": {"group_unit": "trajectory"},
    "reinforce_pp": {"baseline": "group", "group_unit": "trajectory"},
}


def measure(quick: bool) -> dict[str, float]:
    """Of each algorithm over seeds 0, 1 and 2 (only 0 and five updates if ``quick``): the share of held-out levels won
    before the first update (the most) and after the last (the least), its mean over the updates for each seed, and the
    CPU seconds of a seed (the most)."""
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for use, keys in KEYS.items():
            curves, cpu = [], []
            for seed in [0] if quick else [0, 1, 2]:
                began = time.process_time()
                learner = Learner(use, keys, seed, Path(folder))
                curves.append(asyncio.run(learner.learn(5 if quick else UPDATES)))
                cpu.append(time.process_time() - began)
            result[f"{use}_first_most"] = round(max(curve[0] for curve in curves), 3)
            result[f"{use}_last_least"] = round(min(curve[-1] for curve in curves), 3)
            for seed, curve in enumerate(curves):
                result[f"{use}_mean_{seed}"] = round(sum(curve) / len(curve), 3)
            result[f"{use}_cpu_s_most"] = round(max(cpu), 1)
    return result
