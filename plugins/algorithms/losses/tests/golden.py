"""Golden values of ``grpo`` out of its formulas, token by token in float64; `python golden.py` writes them.

Nothing of the plugin is used: the formulas are those of DeepSeekMath (§4.1, eq. 3 and 4) and DAPO (eq. 8 and
10), in the variant that the plugin's docstring names.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("golden.json")
DEFAULTS: dict[str, Any] = {
    "clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.0, "entropy_coef": 0.0, "normalize_std": True,
    "std_eps": 1e-4, "corrections": [],
}  # fmt: skip
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"kl_coef": 0.05, "entropy_coef": 0.01, "clip_high": 0.28},
    {"normalize_std": False, "entropy_coef": [[0, 0.1], [40, 0.0]]},
    {"proximal": "recompute", "corrections": [{"mode": "truncate", "high": 1.2}]},
)
STEPS = (0, 13, 90)
GROUPS = ((0.0, 1.0, 1.0), (0.25,), (1.0, 1.0), (-2.0, 0.5))


def given(seed: int) -> dict[str, Any]:
    """Rows of four groups: mixed, alone, all alike, two; ratios on both sides of both bounds."""
    rng = np.random.default_rng(seed)
    rewards = [np.array(group) for group in GROUPS]
    size = np.concatenate([np.full(len(g), len(g)) for g in rewards])
    mean = np.concatenate([np.full(len(g), g.mean()) for g in rewards])
    std = np.concatenate([np.full(len(g), g.std(ddof=1) if len(g) > 1 else 0.0) for g in rewards])
    lengths = rng.integers(2, 6, len(size))
    total = int(lengths.sum())
    mask = rng.random(total) < 0.7
    mask[np.cumsum(lengths) - lengths] = False
    behaviour = np.where(mask, -rng.uniform(0.1, 3, total), 0)
    apart = rng.choice([-0.5, -0.21, -0.05, 0.02, 0.19, 0.26, 0.6], total)

    def short(values: Any) -> list[float]:
        return [float(value) for value in np.round(np.asarray(values, np.float64), 4)]

    held = {
        "logprobs": short(behaviour),
        "current_logprobs": short(behaviour + apart),
        "reference": short(behaviour + rng.uniform(-0.7, 0.7, total)),
        "entropy": short(rng.uniform(0, 3, total)),
        "proximal": short(behaviour + rng.uniform(-0.4, 0.4, total)),
    }
    return {
        "version": 5,
        "lengths": lengths.tolist(),
        "loss_mask": mask.tolist(),
        "versions": np.where(mask, 4, -1).tolist(),
        "rewards": np.concatenate(rewards).tolist(),
        "group_size": size.tolist(),
        "group_mean": mean.astype(np.float32).astype(float).tolist(),
        "group_std": std.astype(np.float32).astype(float).tolist(),
        **held,
    }


def between(knots: list[list[float]], step: int) -> float:
    """The line through the knots at ``step``, level outside of them."""
    (before, low), (after, high) = knots
    part = min(1.0, max(0.0, (step - before) / (after - before)))
    return low + part * (high - low)


def expected(data: dict[str, Any], keys: dict[str, Any], step: int) -> dict[str, Any]:
    """What the formulas give, one token after the other."""
    config = {**DEFAULTS, **keys}
    slope = config["entropy_coef"]
    entropy_coef = between(slope, step) if isinstance(slope, list) else slope
    bounds = 1 - config["clip_low"], 1 + config["clip_high"]
    count = sum(data["loss_mask"])
    advantages, gradient = [], []
    surrogate = kl = entropy = clipped = approx_kl = ratios = weights_used = zeros = 0.0
    moments = ratio_squares = weight_squares = 0.0
    token = 0
    for row, length in enumerate(data["lengths"]):
        value = data["rewards"][row] - data["group_mean"][row]
        if config["normalize_std"]:
            value /= data["group_std"][row] + config["std_eps"]
        if data["group_size"][row] == 1:
            value = 0.0
        for _ in range(length):
            if not data["loss_mask"][token]:
                advantages.append(0.0)
                gradient.append(0.0)
                token += 1
                continue
            advantages.append(value)
            current = data["current_logprobs"][token]
            behaviour = data["logprobs"][token]
            proximal = data["proximal"][token] if config["corrections"] else behaviour
            cap = config["corrections"][0]["high"] if config["corrections"] else math.inf
            weight = min(math.exp(proximal - behaviour), cap)
            ratio = math.exp(current - proximal)
            bounded = min(max(ratio, bounds[0]), bounds[1])
            gained = min(value * ratio, value * bounded)
            surrogate -= weight * gained / count
            pull = -weight * value * ratio / count if gained == value * ratio else 0.0
            weights_used += weight / count
            zeros += (weight == 0) / count
            stopped = (ratio < bounds[0] and value < 0) or (ratio > bounds[1] and value > 0)
            clipped += stopped / count
            approx_kl += (ratio - 1 - math.log(ratio)) / count
            ratios += ratio / count
            ratio_squares += ratio**2 / count
            weight_squares += weight**2 / count
            moments += (current - behaviour) ** 2 / count
            if config["kl_coef"]:
                gap = data["reference"][token] - current
                kl += (math.exp(gap) - 1 - gap) / count
                pull += config["kl_coef"] * (1 - math.exp(gap)) / count
            entropy += data["entropy"][token] / count
            gradient.append(pull)
            token += 1
    share = [float(trained) / count for trained in data["loss_mask"]]
    terms, weights = {"policy": surrogate}, {"policy": share}
    metrics = {
        "clip_fraction": clipped,
        "approx_kl": approx_kl,
        "ratio_mean": ratios,
        "ratio_square_mean": ratio_squares,
        "second_moment": moments,
    }
    if config["corrections"]:
        metrics |= {
            "correction_mean": weights_used,
            "correction_square_mean": weight_squares,
            "masked_fraction": zeros,
        }
    if config["kl_coef"]:
        terms["kl"], weights["kl"], metrics["kl"] = config["kl_coef"] * kl, share, kl
    if slope:
        weights["entropy"], metrics["entropy"] = share, entropy
        if entropy_coef:
            terms["entropy"] = -entropy_coef * entropy
    return {
        "advantages": advantages,
        "weights": weights,
        "terms": terms,
        "metrics": metrics,
        "gradient": gradient,
    }


def label(keys: dict[str, Any]) -> str:
    """How the suite calls a configuration."""
    return f"grpo ({', '.join(f'{key} = {value!r}' for key, value in keys.items()) or 'defaults'})"


def made() -> dict[str, Any]:
    """The whole file."""
    cases = []
    for number, keys in enumerate(VARIANTS):
        needed = {"reference"} if "kl_coef" in keys else set()
        needed |= {"entropy"} if "entropy_coef" in keys else set()
        needed |= {"proximal"} if "proximal" in keys else set()
        for step in STEPS:
            data = given(seed=10 * number + step)
            cases.append(
                {
                    "variant": label(keys),
                    "step": step,
                    "given": {
                        key: value
                        for key, value in data.items()
                        if key not in ("reference", "entropy", "proximal") or key in needed
                    },
                    "expected": expected(data, keys, step),
                }
            )
    return {"made_by": "golden.py, float64 NumPy", "cases": cases}


def text() -> str:
    """As it is kept: a line for each array."""
    return json.dumps(made(), separators=(",", ":")).replace('{"variant"', '\n{"variant"') + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
