"""Batches, and what each component must be equal to on them; see test_public.py."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from astraflow_core.catalog import Catalog
from astraflow_core.types import Batch, ComponentContext, LossInputs, RunInfo
from astraflow_testing.stamping import stamped, with_named_rewards

P = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public.py"))))
SIGNALS = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("public_signals.py"))))
VERL = {"std_eps": 1e-6, "singleton_advantage": "reward", "log_ratio_clamp": 20.0, "dual_clip": 3.0}
RECOMPUTE = {"proximal": "recompute"}
SIZES = (4, 3, 1, 2)


@dataclass(frozen=True)
class Data:
    """A batch and the same padded to ``[B, T]``; ``lp`` are the log-probs of the current policy."""

    batch: Batch
    current: Any
    mask: Any
    old: Any
    lp: Any
    prox: Any
    ref: Any
    values: Any
    versions: Any
    columns: Any
    teacher: Any
    energy: Any

    @property
    def rewards(self) -> Any:
        return self.batch.rewards.astype(float)

    @property
    def named(self) -> Any:
        return self.batch.named_rewards.earned.astype(float)

    @property
    def index(self) -> Any:
        return self.batch.group

    def last(self, kl: Any = 0.0) -> Any:
        """Rewards of tokens: the outcome at the last trained one, less ``kl`` at each."""
        result = -kl * self.mask
        for row, trained in enumerate(self.mask):
            if trained.any():
                result[row, np.flatnonzero(trained)[-1]] += self.rewards[row]
        return result


def teacher(seed: int, behaviour: Any, spread: float) -> Any:
    """Apart from the other draws."""
    rng = np.random.default_rng(seed + 99)
    return (behaviour + spread * rng.uniform(-1, 1, len(behaviour))).astype(np.float32)


def energy(seed: int, behaviour: Any) -> Any:
    """``1 - 2π + Σπ²``, the rest of π being that of another token or of many; apart from the other draws."""
    rest = 1 - np.exp(behaviour)
    return (rest**2 * (1 + np.random.default_rng(seed + 98).random(len(rest)))).astype(np.float32)


def make(
    seed: int,
    spread: float,
    sizes: tuple[int, ...] = SIZES,
    longest: int = 10,
    bfloat16: bool = False,
) -> Data:
    """Groups (the second has equal rewards); holes in the masks; the second row trains nothing. With ``bfloat16``
    log-probs are rounded to that, so that many gaps between them are equal."""
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    group = np.repeat(np.arange(len(sizes)), sizes)
    lengths = rng.integers(3, longest, rows).astype(np.int32)
    starts, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    mask = rng.random(total) < 0.65
    mask[starts + 1], mask[starts] = True, False
    if rows > 2:
        mask[starts[1] : starts[1] + lengths[1]] = False
    rewards = rng.random(rows)
    rewards[group == 1] = 0.25
    rewards = rewards.astype(np.float32)

    def rounded(values: Any) -> Any:
        given = torch.from_numpy(values.astype(np.float32))
        return (given.bfloat16().float() if bfloat16 else given).numpy()

    behaviour = rounded(-4 * rng.random(total))

    def near(share: float = 1.0) -> Any:
        return rounded(behaviour + share * spread * rng.uniform(-1, 1, total))

    none = np.zeros(rows, np.float32)
    batch = Batch(
        id="b", policy="p", version=6, lengths=lengths, tokens=np.zeros(total, np.int32),
        loss_mask=mask, logprobs=behaviour, rewards=rewards, group=group.astype(np.int64),
        versions=np.where(mask, rng.integers(2, 7, total), -1).astype(np.int32),
        trajectory=np.arange(rows) + 70, group_size=none.astype(np.int32), group_mean=none, group_std=none,
        teacher_logprobs=teacher(seed, behaviour, spread), reference=near(), proximal=near(0.6), current=near(), values=rng.normal(size=total).astype(np.float32),
        logit_gradients=energy(seed, behaviour),
    )  # fmt: skip
    batch = stamped(with_named_rewards(batch, seed))
    row, place = batch.row_of_token, np.arange(total) - np.repeat(starts, lengths)

    def padded(values: Any) -> Any:
        result = np.zeros((rows, int(lengths.max())))
        result[row, place] = np.where(mask, values, 0.0)
        return result

    names = ("logprobs", "current", "proximal", "reference", "values", "versions")
    old, lp, prox, ref, values, versions = (padded(getattr(batch, name)) for name in names)
    ones, taught = padded(mask * 1.0), padded(batch.teacher_logprobs)
    places, moved = (row, place), padded(batch.logit_gradients)
    return Data(
        batch, batch.current, ones, old, lp, prox, ref, values, versions, places, taught, moved
    )


Advantages = Callable[[Data], Any]
Public = Callable[[Data, Any, Any], Any]
GRPO: Advantages = lambda d: P.verl_outcome("grpo", d.rewards, d.mask, d.index)  # noqa: E731
AREAL: Advantages = (  # noqa: E731
    lambda d: P.trl_advantages(d.rewards, d.index, True)[:, None] * d.mask
)


def trl(loss_type: str, **keys: Any) -> Public:
    return lambda d, lp, a: P.trl_loss(lp, d.old, a, d.mask, loss_type, **keys)


def trl_corrected(mode: str) -> Public:
    def loss(d: Data, lp: Any, a: Any) -> Any:
        factor = P.trl_correction(d.prox, d.old, d.mask, mode, 1.2)
        return P.trl_loss(lp, d.prox, a, d.mask, "dapo", factor=factor)

    return loss


def trl_beside(mode: str) -> dict[str, Any]:
    level, kind = mode.split("_")
    return RECOMPUTE | {"corrections": [{"mode": kind, "level": level, "high": 1.2}]}


def filtered(*how: Any) -> Public:
    return lambda d, lp, a: P.areal_loss(lp, d.prox, d.old, a, d.mask, 0.2, how)


def m2_mask(d: Data, lp: Any, a: Any) -> Any:
    kept = P.areal_m2_mask(d.prox, d.old, d.mask, 0.3)
    return P.areal_loss(lp, d.prox, d.prox, a, kept, 0.2)


def loglinear(d: Data, lp: Any, a: Any) -> Any:
    prox = P.areal_loglinear(lp, d.old, d.versions, d.batch.version)
    return P.areal_loss(lp, prox, d.old, a, d.mask, 0.2, ("mask", "token", 5.0))


def clip_range(find: Any, threshold: float) -> Public:
    def loss(d: Data, lp: Any, a: Any) -> Any:
        low, high = find(lp, d.old, a, d.mask, threshold)
        ratio = np.exp(lp - d.old)
        losses = P.maximum(-a * ratio, -a * P.clamp(ratio, 1 - low, 1 + high))
        return P.verl_agg(losses, d.mask, "token-mean")

    return loss


def with_kl(kind: str) -> Public:
    def loss(d: Data, lp: Any, a: Any) -> Any:
        kl = P.verl_agg(P.verl_kl(lp, d.ref, kind), d.mask, "token-mean")
        return P.verl_vanilla(lp, d.old, a, d.mask, 0.2, 0.2) + 0.3 * kl

    return loss


def off_policy(d: Data, lp: Any, a: Any) -> Any:
    factor = P.trl_off_policy_mask(lp, d.old, a, d.mask, 0.05)
    return P.trl_loss(lp, d.old, a, d.mask, "dapo", factor=factor)


def rejected(option: str, upper: float) -> Public:
    """The mask of verl in the TRL loss, whose denominator it does not change."""

    def loss(d: Data, lp: Any, a: Any) -> Any:
        kept = P.verl_rejection(d.prox, d.old, d.mask, option, upper)
        return P.trl_loss(lp, d.prox, a, d.mask, "dapo", factor=kept)

    return loss


def rejecting(option: str, upper: float) -> dict[str, Any]:
    level = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric", "seq_max": "max"}
    correction = {"level": level[option[:-3]], "estimator": option[-2:], "high": upper}
    return RECOMPUTE | {"corrections": [{"mode": "reject", **correction}]}


def dppo(kind: str) -> Public:
    return lambda d, lp, a: P.verl_dppo(kind, lp, d.old, a, d.mask, 0.02, 0.03, 1.5)


REJECTIONS = {
    "token_k2": 0.02, "token_k3": 0.02, "seq_sum_k2": 0.08, "seq_sum_k3": 0.08,
    "seq_mean_k2": 0.02, "seq_mean_k3": 0.02, "seq_max_k2": 0.04, "seq_max_k3": 0.05,
}  # fmt: skip
NARROW = {"divergence_low": 0.02, "divergence_high": 0.03, "ratio_cap": 1.5}
WEIGHTS = {"correct": 1.0, "form": 0.5}
UNBOUND = {"log_ratio_clamp": "none", "dual_clip": "none"}
ALL_ROWS = {"aggregation": "seq_mean_token_mean_all_rows"}
VANILLA: Public = lambda d, lp, a: P.verl_vanilla(lp, d.old, a, d.mask, 0.2, 0.2)  # noqa: E731
CASES: dict[str, tuple[str, dict[str, Any], Advantages | None, Public]] = {
    "verl grpo": ("grpo", VERL, GRPO, VANILLA),
    "verl rloo": ("rloo", {}, lambda d: P.verl_outcome("rloo", d.rewards, d.mask, d.index), VANILLA),
    "verl opo": ("opo", {}, lambda d: P.verl_outcome("opo", d.rewards, d.mask, d.index), VANILLA),
    "verl rf++": (
        "reinforce_pp", {"gamma": 0.9, "kl_coef": 0.1},
        lambda d: P.verl_reinforce_pp(d.last(0.1 * (d.old - d.ref)), d.mask, 0.9, False), VANILLA,
    ),
    "verl rf++ reset": (
        "reinforce_pp", {"gamma": 0.9, "holes": "reset", "kl_coef": 0.1},
        lambda d: P.verl_reinforce_pp(d.last(0.1 * (d.old - d.ref)), d.mask, 0.9, True), VANILLA,
    ),
    "verl rf++ baseline": (
        "reinforce_pp", {"baseline": "group"},
        lambda d: P.verl_outcome("reinforce_pp_baseline", d.rewards, d.mask, d.index), VANILLA,
    ),
    "verl gspo": (
        "gspo", {"form": "token", "aggregation": "seq_mean_token_mean", "clip_low": 0.1, "clip_high": 0.1,
                 "std_eps": 1e-6, "singleton_advantage": "reward"},
        GRPO, lambda d, lp, a: P.verl_gspo(lp, d.old, a, d.mask, 0.1, 0.1),
    ),
    "verl sapo": (
        "sapo", {"std_eps": 1e-6, "singleton_advantage": "reward"}, GRPO,
        lambda d, lp, a: P.verl_sapo(lp, d.old, a, d.mask, "seq-mean-token-mean"),
    ),
    "verl cispo": (
        "cispo", {"clip_low": 0.2, "clip_high": 0.2, "log_ratio_clamp": 20.0}, None,
        lambda d, lp, a: P.verl_cispo(lp, d.old, a, d.mask, 0.2, 0.2),
    ),
    **{
        f"verl {kind} in the loss": (
            "grpo", VERL | {"kl_coef": 0.3, "kl_estimator": kind.replace("+", "_plus"), "kl_clamp": "verl"},
            GRPO, with_kl(kind),
        )
        for kind in ("k1", "k2", "k3", "k1+", "k3+")
    },
    "AReaL, token mask": ("decoupled_ppo", {}, None, filtered("mask", "token", 5.0)),
    "AReaL, token clamp": (
        "decoupled_ppo", {"corrections": [{"mode": "truncate", "high": 1.2}]}, None,
        filtered("clamp", "token", 1.2),
    ),
    "AReaL, sequence mask": (
        "decoupled_ppo", {"corrections": [{"mode": "mask", "level": "geometric", "high": 1.05}]}, None,
        filtered("mask", "sequence", 1.05),
    ),
    "AReaL, sequence clamp": (
        "decoupled_ppo", {"corrections": [{"mode": "truncate", "level": "geometric", "high": 1.05}]}, None,
        filtered("clamp", "sequence", 1.05),
    ),
    "AReaL, loglinear": ("decoupled_ppo", {"proximal": "loglinear"}, None, loglinear),
    "AReaL m2": ("m2po", RECOMPUTE | {"variant": "mask_areal", "threshold": 0.3}, None, m2_mask),
    "AReaL m2, micro-batch": (
        "m2po", RECOMPUTE | {"variant": "mask_areal", "threshold": 0.3, "scope": "micro_batch"}, None,
        m2_mask,
    ),
    "AstraFlow m2po": ("m2po", {"threshold": 0.1}, None, clip_range(P.astraflow_clip_range, 0.1)),
    "AstraFlow m2po, micro-batch": (
        "m2po", {"scope": "micro_batch"}, None, clip_range(P.astraflow_clip_range, 0.01)
    ),
    "AstraFlow sapo": (
        "sapo", {"aggregation": "token_mean"}, None,
        lambda d, lp, a: P.verl_sapo(lp, d.old, a, d.mask, "token-mean"),
    ),
    "AstraFlow gspo": (
        "gspo", {"aggregation": "token_mean", "clip_low": 0.1, "clip_high": 0.1}, None,
        lambda d, lp, a: P.astraflow_gspo(lp, d.old, a, d.mask, 0.1, 0.1),
    ),
    "M2PO": (
        "m2po", {"variant": "clip_range_m2po_repo", "threshold": 0.3}, None, clip_range(P.m2po_clip_range, 0.3)
    ),
    "M2PO, micro-batch": (
        "m2po", {"variant": "clip_range_m2po_repo", "threshold": 0.3, "scope": "micro_batch"}, None,
        clip_range(P.m2po_clip_range, 0.3),
    ),
    "TRL dapo": ("grpo", {"clip_high": 0.28}, AREAL, trl("dapo", high=0.28)),
    "TRL grpo": (
        "grpo", {"aggregation": "seq_mean_token_mean_all_rows", "kl_coef": 0.04}, AREAL,
        lambda d, lp, a: P.trl_loss(lp, d.old, a, d.mask, "grpo", ref=d.ref, beta=0.04),
    ),
    "TRL dr_grpo": (
        "dr_grpo", {"max_tokens": 9},
        lambda d: P.trl_advantages(d.rewards, d.index, False)[:, None] * d.mask, trl("dr_grpo", longest=9),
    ),
    "TRL gspo": (
        "gspo", {"clip_low": 0.1, "clip_high": 0.1}, AREAL, trl("grpo", low=0.1, high=0.1, level="sequence")
    ),
    "TRL cispo": ("cispo", {}, AREAL, trl("cispo", high=5.0)),
    "TRL grpo, batch scale": (
        "grpo", {"std_of": "batch"},
        lambda d: P.trl_batch_scaled(d.rewards, d.index)[:, None] * d.mask, trl("dapo"),
    ),
    "TRL rloo": (
        "rloo", {"ratio_level": "sequence"} | UNBOUND | ALL_ROWS, None,
        lambda d, lp, a: P.trl_rloo(lp, d.old, a, d.mask, 0.2, 0.2),
    ),
    "TRL sapo": ("sapo", {"log_ratio_clamp": "none"} | ALL_ROWS, AREAL, trl("sapo")),
    "TRL sapo, rows": (
        "sapo", {"ratio_level": "geometric", "log_ratio_clamp": "none"} | ALL_ROWS, AREAL,
        trl("sapo", level="sequence"),
    ),
    "verl gpg": (
        "gpg", {"divisor": 2.0}, lambda d: P.verl_gpg(d.rewards, d.mask, d.index, 2.0),
        lambda d, lp, a: P.verl_agg(-lp * a, d.mask, "token-mean"),
    ),
    "verl gdpo": (
        "gdpo", {"rewards": WEIGHTS, "singleton_advantage": "reward"},
        lambda d: SIGNALS.verl_gdpo(d.named, (1.0, 0.5), d.mask, d.index), VANILLA,
    ),
    "verl gdpo, nothing of one": (
        "gdpo", {"rewards": WEIGHTS}, lambda d: SIGNALS.verl_gdpo(d.named, (1.0, 0.5), d.mask, d.index, False), VANILLA,
    ),
    "Tinker, engines teach": (
        "opd", {"teacher": "engine", "coef": 0.7},
        lambda d: SIGNALS.tinker_opd(d.teacher, d.old, d.mask, 0.7, 0.0),
        lambda d, lp, a: SIGNALS.tinker_importance_sampling(lp, d.old, a, d.mask),
    ),
    "verl dppo_tv": ("dppo", NARROW, GRPO, dppo("tv")),
    "verl dppo_kl": ("dppo", {"divergence": "kl"} | NARROW, GRPO, dppo("kl")),
    "prime-rl": (
        "prime_rl", {"mask_low": 0.02, "mask_high": 0.03, "advantage_coef": 0.7, "ratio_coef": 0.1},
        lambda d: P.trl_advantages(d.rewards, d.index, False)[:, None] * d.mask,
        lambda d, lp, a: P.prime_rl_loss(lp, d.old, a, d.mask, 0.02, 0.03, 0.7, 0.1),
    ),
    "FlashREINFORCE": (
        "flash_reinforce", {"delta": 0.01}, lambda d: P.flash_reinforce_advantages(d.rewards, d.mask),
        lambda d, lp, a: P.flash_reinforce_loss(lp, d.old, a, d.mask, 0.01),
    ),
    **{
        f"verl otb, tail {tail}": (
            "otb", {"zero_tail": tail},
            lambda d, tail=tail: P.verl_otb(d.last(), d.mask, d.index, d.energy, tail), VANILLA,
        ) for tail in (True, False)
    },
    "MaxRL": ("maxrl", {}, lambda d: P.maxrl_advantages(d.rewards, d.mask, d.index), VANILLA),
    **{
        f"verl {option}": ("grpo", rejecting(option, upper), None, rejected(option, upper))
        for option, upper in REJECTIONS.items()
    },
    "TRL off-policy mask": ("grpo", {"off_policy_delta": 0.05}, AREAL, off_policy),
    **{
        f"TRL {mode}": ("grpo", trl_beside(mode), AREAL, trl_corrected(mode))
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
}  # fmt: skip


def build(name: str, keys: dict[str, Any]) -> Any:
    selected, config = Catalog.discover().validate_options("algorithm", name, keys, "test")
    run = RunInfo("test", 0, 1, 0, ("p",), Path("."))
    return selected.build(
        config, ComponentContext(run=run, role="trainer", policy="p", seed=0, directory=Path("."))
    )


def completed(algorithm: Any, batch: Batch) -> Batch:
    optional = ("reference", "proximal", "current", "values", "logit_gradients")
    batch = replace(batch, **{n: None for n in optional if n not in algorithm.needs})
    batch = replace(batch, advantages=algorithm.advantages(batch))
    return replace(batch, weights=algorithm.weights(batch))


def loss_of(algorithm: Any, batch: Batch, current: Any, dtype: Any = torch.float64) -> Any:
    """Terms, value, gradient to the log-probs and metrics, everything in ``dtype``."""

    def tensor(values: Any) -> Any:
        return None if values is None else torch.tensor(np.asarray(values), dtype=dtype)

    leaf = tensor(current).requires_grad_()
    critic = None if batch.values is None else tensor(batch.values + 0.7).requires_grad_()
    loss = algorithm.loss(
        LossInputs(
            logprobs=leaf, behaviour=tensor(batch.logprobs), advantages=tensor(batch.advantages),
            mask=torch.tensor(batch.loss_mask), row=torch.tensor(batch.row_of_token),
            rows=len(batch), weights={n: tensor(w) for n, w in batch.weights.items()}, step=0,
            entropy=torch.ones_like(leaf), proximal=tensor(batch.proximal), values=tensor(batch.values),
            reference=tensor(batch.reference), current=tensor(batch.current), predicted_values=critic,
        )
    )  # fmt: skip
    value = sum(coefficient * term for coefficient, term in loss.terms.values())
    value.backward()
    return loss, value.item(), leaf.grad.numpy(), critic
