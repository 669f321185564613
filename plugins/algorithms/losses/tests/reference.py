"""The formulas of the policy losses, token by token in complex arithmetic; nothing of the plugin is used.

The derivative to a log-prob is the imaginary part that a step of ``1e-30 i`` leaves in the loss (complex-step
differentiation), so it is exact however large the ratios are; ``frozen`` are the same log-probs where a formula
stops the gradient.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

from astraflow_core.types import Batch

CLIP = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
COMMON: dict[str, Any] = {
    "aggregation": "token_mean", "max_tokens": None, "log_ratio_clamp": None, "kl_coef": 0.0,
    "kl_estimator": "k3", "kl_clamp": "none", "kl_in": "loss", "entropy_coef": 0.0,
    "proximal": "behaviour", "corrections": [], "off_policy_delta": None,
}  # fmt: skip
WHITEN = {"whiten_eps": 1e-8, "whiten_eps_inside": True}
GROUP: dict[str, Any] = {
    "normalize_std": True, "std_eps": 1e-4, "std_eps_inside": False, "bessel": True,
    "leave_one_out": False, "singleton_advantage": "zero", "whiten": "none",
} | WHITEN  # fmt: skip
VERL = {"log_ratio_clamp": 20.0, "dual_clip": 3.0}
DEFAULTS: dict[str, dict[str, Any]] = {
    "grpo": COMMON | CLIP | GROUP,
    "dr_grpo": COMMON | CLIP | GROUP
    | {"aggregation": "const_norm_all_rows", "normalize_std": False},
    "dapo": COMMON | CLIP | GROUP | {"clip_high": 0.28, "overlong": "none", "overlong_factor": 1.0},
    "rloo": COMMON | CLIP | GROUP | VERL
    | {"normalize_std": False, "leave_one_out": True, "singleton_advantage": "reward"},
    "reinforce_pp": COMMON | CLIP | VERL | WHITEN
    | {"kl_estimator": "k1", "kl_in": "reward", "baseline": "none", "gamma": 1.0},
    "ppo": COMMON | CLIP | VERL | WHITEN
    | {"kl_estimator": "k1", "kl_in": "reward", "gamma": 1.0, "lam": 1.0, "whiten": True,
       "value_coef": 1.0, "value_clip": 0.5, "value_loss": "squared"},
    "opd": COMMON | {"coef": 1.0, "discount": 0.0},
    "cispo": COMMON | GROUP | {"clip_low": 1.0, "clip_high": 4.0},
    "gspo": COMMON | CLIP | GROUP
    | {"form": "sequence", "aggregation": "seq_mean_token_mean_all_rows",
       "clip_low": 3e-4, "clip_high": 4e-4},
    "sapo": COMMON | GROUP
    | {"aggregation": "seq_mean_token_mean", "log_ratio_clamp": 20.0, "tau_positive": 1.0,
       "tau_negative": 1.05},
    "decoupled_ppo": COMMON | CLIP | GROUP
    | {"std_eps": 1e-5, "proximal": "recompute", "corrections": [{"mode": "mask", "high": 5.0}]},
    "m2po": COMMON | CLIP | GROUP
    | {"std_eps": 1e-5, "threshold": 0.01, "variant": "clip_range_astraflow"},
}  # fmt: skip


def clamp(x: complex, low: float, high: float) -> complex:
    return complex(low) if x.real < low else complex(high) if x.real > high else x


def estimate(gap: complex, kind: str, clamped: str) -> complex:
    """``gap`` = current - reference."""
    if kind.endswith("_plus"):
        straight = gap * gap / 2
        return estimate(complex(gap.real), kind[:2], clamped) + straight - straight.real
    if kind == "k3":
        inner = clamp(-gap, -20, 20) if clamped == "verl" else -gap
        value = cmath.exp(inner) - 1 - inner
        return value if clamped == "none" else clamp(value, -10, 10)
    value = gap if kind == "k1" else gap * gap / 2
    return clamp(value, -10, 10) if clamped == "areal" else value


class Reference:
    def __init__(self, name: str, keys: dict[str, Any], batch: Batch) -> None:
        self.name, self.k, self.b = name, DEFAULTS[name] | keys, batch
        self.rows = [
            [t for t in range(batch.offsets[r], batch.offsets[r + 1]) if batch.loss_mask[t]]
            for r in range(len(batch))
        ]
        self.trained = [t for row in self.rows for t in row]
        self.advantages = self._advantages()

    def _old(self, t: int) -> float:
        return float((self.b.proximal if self.k["proximal"] == "recompute" else self.b.logprobs)[t])

    def _advantages(self) -> dict[int, float]:
        k, b = self.k, self.b
        kl = dict.fromkeys(self.trained, 0.0)
        if k["kl_in"] == "reward" and k["kl_coef"]:
            for t in self.trained:
                gap = complex(self._old(t) - float(b.reference[t]))
                kl[t] = -k["kl_coef"] * estimate(gap, k["kl_estimator"], k["kl_clamp"]).real
        found: dict[int, float] = {}
        per_row = []
        for r, row in enumerate(self.rows):
            members = [float(x) for x, g in zip(b.rewards, b.group, strict=True) if g == b.group[r]]
            reward = float(b.rewards[r])
            if self.name == "opd":
                for t in row:
                    later = [s for s in row if s >= t]
                    found[t] = sum(
                        k["coef"]
                        * k["discount"] ** place
                        * (float(b.reference[s]) - float(b.logprobs[s]))
                        + kl[s]
                        for place, s in enumerate(later)
                    )
            elif self.name == "ppo":
                after = trace = 0.0
                for t in reversed(row):
                    value, here = float(b.values[t]), kl[t] + (reward if t == row[-1] else 0.0)
                    trace = here + k["gamma"] * after - value + k["gamma"] * k["lam"] * trace
                    after = value
                    found[t] = trace
            elif self.name == "reinforce_pp":
                if k["baseline"] == "group" and len(members) > 1:
                    reward -= float(np.mean(members))
                running = 0.0
                for t in reversed(row):
                    running = kl[t] + (reward if t == row[-1] else 0.0) + k["gamma"] * running
                    found[t] = running
            else:
                per_row.append(self._relative(reward, members, len(row)))
        self.returns = {t: x + float(b.values[t]) for t, x in found.items()}
        if self.name == "opd":
            return found
        if self.name in ("reinforce_pp", "ppo"):
            return self._whitened(found) if k.get("whiten", True) else found
        if k["whiten"] != "none":
            counted = [r for r, row in enumerate(self.rows) if row]
            times = {r: len(self.rows[r]) if k["whiten"] == "token" else 1 for r in counted}
            sample = [per_row[r] for r in counted for _ in range(times[r])]
            mean, scale = self._moments(sample)
            per_row = [(x - mean) / scale for x in per_row]
        for r, row in enumerate(self.rows):
            for t in row:
                found[t] = per_row[r] + sum(kl[later] for later in row if later >= t)
        return found

    def _relative(self, reward: float, members: list[float], length: int) -> float:
        k, n = self.k, len(members)
        if n == 1:
            value = reward if k["singleton_advantage"] == "reward" else 0.0
            spread = 1.0 if k["singleton_advantage"] == "reward" else 0.0
        else:
            others = list(members)
            others.remove(reward)
            value = reward - float(np.mean(others if k["leave_one_out"] else members))
            around = [
                x - (float(np.sum(members)) - x) / (n - 1) if k["leave_one_out"] else x
                for x in members
            ]
            spread = float(np.std(around, ddof=1 if k["bessel"] else 0))
        if k.get("overlong", "none") != "none":
            over = max(0, length - (k["max_tokens"] - k["overlong_tokens"])) / k["overlong_tokens"]
            value -= k["overlong_factor"] * (
                min(over, 1.0) if k["overlong"] == "piecewise" else over
            )
            spread = spread if len(set(members)) > 1 else 1.0
        if not k["normalize_std"]:
            return value
        eps = k["std_eps"]
        return value / (math.sqrt(spread**2 + eps) if k["std_eps_inside"] else spread + eps)

    def _whitened(self, values: dict[int, float]) -> dict[int, float]:
        mean, scale = self._moments(list(values.values()))
        return {t: float((x - mean) / scale) for t, x in values.items()}

    def _moments(self, sample: list[float]) -> tuple[float, float]:
        variance, eps = float(np.var(sample, ddof=1)), self.k["whiten_eps"]
        inside = self.k["whiten_eps_inside"]
        return float(np.mean(sample)), (
            math.sqrt(variance + eps) if inside else math.sqrt(variance) + eps
        )

    def shares(self, kept: list[list[int]]) -> dict[int, float]:
        mode, b, length = self.k["aggregation"], self.b, self.k["max_tokens"]
        filled = sum(bool(row) for row in kept)
        result: dict[int, float] = {}
        for r, row in enumerate(kept):
            prompt = [len(x) for x, g in zip(kept, b.group, strict=True) if g == b.group[r]]
            prompts = len({int(g) for x, g in zip(kept, b.group, strict=True) if x})
            divisor = {
                "token_mean": sum(len(x) for x in kept),
                "prompt_mean": max(1, sum(prompt)) * prompts,
                "seq_mean_token_mean": max(1, len(row)) * filled,
                "seq_mean_token_mean_all_rows": max(1, len(row)) * len(kept),
                "seq_mean_token_sum": filled,
                "seq_mean_token_sum_norm": filled * (length or 1),
                "const_norm_all_rows": len(kept) * (length or 1),
            }[mode]
            result |= dict.fromkeys(row, 1 / divisor)
        return result

    def m2_bounds(self, current: Any) -> tuple[float, float]:
        harmful = []
        for t in self.trained:
            x, a = current[t] - float(self.b.logprobs[t]), np.float32(self.advantages[t])
            if (a > 0 and x > 0) or (a < 0 and x < 0):
                harmful.append(x * x)
        harmful.sort()
        limit, astraflow = self.k["threshold"], self.k["variant"] == "clip_range_astraflow"
        if not harmful or np.mean(harmful) <= limit:
            return (0.95, 20.0) if astraflow else (1.0, 1e5 - 1)
        if astraflow:
            while len(harmful) > 1 and np.mean(harmful) >= limit:
                harmful.pop()
            t = math.sqrt(harmful[-1])
            return min(0.95, 1 - math.exp(-t)), min(20.0, math.exp(t) - 1)
        fit = [c for c in harmful if np.mean([min(x, c) for x in harmful]) < limit]
        t = math.sqrt(fit[-1]) if fit else 0.0
        return max(0.3, 1 - math.exp(-t)), max(0.5, math.exp(t) - 1)

    def kept(self) -> list[list[int]]:
        if self.k.get("variant") != "mask_areal":
            return self.rows
        moments = {
            t: (float(self.b.proximal[t]) - float(self.b.logprobs[t])) ** 2 for t in self.trained
        }
        stay = sorted(self.trained, key=lambda t: (moments[t], -t))
        while len(stay) > 1 and np.mean([moments[t] for t in stay]) >= self.k["threshold"]:
            stay.pop()
        return [[t for t in row if t in set(stay)] for row in self.rows]

    def loss(self, current: list[complex], frozen: Any, entropy: Any) -> complex:
        k, b, total = self.k, self.b, 0j
        kept = self.kept()
        share = self.shares(kept)
        m2 = k.get("variant", "").startswith("clip_range")
        bounds = self.m2_bounds(frozen) if m2 else (k.get("clip_low"), k.get("clip_high"))
        for row, left in zip(self.rows, kept, strict=True):
            old = {t: self._proximal(t, frozen) for t in row}
            logs = {t: current[t] - old[t] for t in row}
            if (limit := k["log_ratio_clamp"]) is not None:
                logs = {t: clamp(x, -limit, limit) for t, x in logs.items()}
            for t in left:
                a = self.advantages[t]
                total += (
                    share[t]
                    * self._weight(t, row, old, frozen)
                    * self._surrogate(t, a, current, logs, bounds, frozen)
                )
                if k["kl_in"] == "loss":
                    gap = current[t] - float(b.reference[t])
                    total += (
                        k["kl_coef"] * share[t] * estimate(gap, k["kl_estimator"], k["kl_clamp"])
                    )
                total -= k["entropy_coef"] * share[t] * entropy[t]
        return total

    def value_loss(self, predicted: list[complex]) -> complex:
        def distance(t: int, value: complex) -> complex:
            error = value - self.returns[t]
            if self.k["value_loss"] == "squared" or abs(error.real) < 10:
                return error * error / 2
            return 10 * ((error if error.real > 0 else -error) - 5)

        total, share = 0j, self.shares(self.rows)
        for t in self.trained:
            losses = [distance(t, predicted[t])]
            if (room := self.k["value_clip"]) is not None:
                old = float(self.b.values[t])
                losses.append(distance(t, clamp(predicted[t], old - room, old + room)))
            total += share[t] * max(losses, key=lambda x: x.real)
        return self.k["value_coef"] * total

    def _proximal(self, t: int, frozen: Any) -> float:
        if self.k["proximal"] != "loglinear":
            return self._old(t)
        v, sampled = self.b.version, int(self.b.versions[t])
        part = 0.0 if v == sampled else min(1.0, max(0.0, (v - 1 - sampled) / (v - sampled)))
        return float(self.b.logprobs[t]) + part * (frozen[t] - float(self.b.logprobs[t]))

    def _weight(self, t: int, row: list[int], old: dict[int, float], frozen: Any) -> float:
        weight = 1.0
        for c in self.k["corrections"]:
            each = {s: old[s] - float(self.b.logprobs[s]) for s in row}
            level = c.get("level", "token")
            log = each[t] if level == "token" else sum(each.values())
            w = math.exp(log / len(row) if level == "geometric" else log)
            inside = c.get("low", 0.0) <= w <= c["high"]
            weight *= {
                "truncate": min(max(w, c.get("low", 0.0)), c["high"]),
                "mask": w * inside,
                "reject": inside,
            }[c["mode"]]
        if (delta := self.k["off_policy_delta"]) is not None:
            drift = np.mean([float(self.b.logprobs[s]) - frozen[s] for s in row])
            weight *= self.advantages[t] >= 0 or drift <= delta
        return weight

    def _surrogate(
        self, t: int, a: float, current: Any, logs: dict[int, complex], bounds: Any, frozen: Any
    ) -> complex:
        k = self.k
        if self.name == "cispo":
            w = clamp(complex(math.exp(logs[t].real)), 1 - bounds[0], 1 + bounds[1]).real
            return -w * a * current[t]
        if self.name == "sapo":
            tau = k["tau_positive"] if a > 0 else k["tau_negative"]
            return -a * 4 / tau / (1 + cmath.exp(-tau * (cmath.exp(logs[t]) - 1)))
        if self.name == "opd":
            return -cmath.exp(logs[t]) * a
        log = logs[t]
        if self.name == "gspo":
            log = sum(logs.values()) / len(logs)
            if k["form"] == "token":
                log = log.real + current[t] - frozen[t]
                log = log if log.real <= 10 else complex(10)
        r = cmath.exp(log)
        plain, bounded = -a * r, -a * clamp(r, 1 - bounds[0], 1 + bounds[1])
        loss = plain if plain.real > bounded.real else bounded
        if k["dual_clip"] is not None and a < 0 and loss.real > -a * k["dual_clip"]:
            return complex(-a * k["dual_clip"])
        return loss
